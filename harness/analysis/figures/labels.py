"""Labels beside points where there is room for them, so that none overlaps another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from matplotlib.transforms import Bbox

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg

# Where a label goes by preference: horizontal and vertical alignment, offset in points.
_PLACES = (
    ("left", "center", (4.5, 0)), ("left", "bottom", (3, 3)), ("left", "top", (3, -3)), ("right", "center", (-4.5, 0)),
    ("center", "bottom", (0, 4.5)), ("center", "top", (0, -4.5)), ("right", "bottom", (-3, 3)),
    ("right", "top", (-3, -3)),
)  # fmt: skip
_MARKER = 3.0  # points: half a marker


def label_points(place: Axes, points: Sequence[tuple[float, float, str]], size: float = 6) -> list[str]:
    """Write each text beside its point (in data coordinates), in the order given while there is room.

    A point without a text is only kept clear of. The axes' place and limits have to be final: the layout engine has
    run, nothing is added after.

    Returns:
        The texts that found no room.
    """
    drawing = place.get_figure(root=True)
    assert drawing is not None
    canvas: FigureCanvasAgg = drawing.canvas  # type: ignore[assignment]
    renderer, inside, dots = canvas.get_renderer(), place.get_window_extent(), drawing.dpi / 72
    centres: Iterable[Sequence[float]] = place.transData.transform([(x, y) for x, y, _ in points]) if points else []
    half = _MARKER * dots
    taken = [Bbox([[x - half, y - half], [x + half, y + half]]) for x, y in centres]
    taken += [text.get_window_extent(renderer) for text in place.texts]
    without = []
    for x, y, text in points:
        if not text:
            continue
        label = place.annotate(text, (x, y), (0, 0), textcoords="offset points", fontsize=size, zorder=5)
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.3})
        label.set_in_layout(False)
        for across, up, offset in _PLACES:
            label.set(ha=across, va=up, position=offset)
            box = label.get_window_extent(renderer).padded(0.5 * dots)
            is_inside = inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1
            if is_inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
        else:
            label.remove()
            without.append(text)
    return without
