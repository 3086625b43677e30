"""How figures look and how they are written: one style per method everywhere, and the same bytes for the same points.

Drawings are ``matplotlib.figure.Figure`` objects on the Agg canvas, never pyplot's, so nothing is kept between them.
"""

from __future__ import annotations

import os
import threading
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure as Drawing

from harness.analysis.names import BENCHMARKS, METHODS, MODELS, VARIANTS, name

if TYPE_CHECKING:
    from harness.analysis.figures.base import Figure

COLUMN, PAGE = 3.4, 7.0  # inches: widths of a column and of a page of a two-column paper
DPI = 150


@dataclass(frozen=True)
class Style:
    """How a method is drawn.

    Attributes:
        name: as readers see it.
        color: tells methods apart also for the colour-blind (Okabe and Ito's palette, two of them darkened).
        marker, line: tell them apart without colour.
    """

    name: str
    color: str
    marker: str
    line: str | tuple[float, tuple[float, ...]]


METHOD_STYLES = {
    "ar_sft": Style(METHODS["ar_sft"], "#000000", "s", "-"),
    "mars": Style(METHODS["mars"], "#D55E00", "o", "-"),
    "mars verified": Style(METHODS["mars verified"], "#E69F00", "D", (0, (4, 1.5))),
    "block_diffusion": Style(METHODS["block_diffusion"], "#0072B2", "^", (0, (1, 1))),
    "jacobi": Style(METHODS["jacobi"], "#009E73", "v", (0, (5, 1, 1, 1))),
    "medusa": Style(METHODS["medusa"], "#CC79A7", "P", (0, (6, 2))),
    "eagle": Style(METHODS["eagle"], "#56B4E9", "X", (0, (3, 1, 1, 1, 1, 1))),
    "speculative": Style(METHODS["speculative"], "#5B3A8C", "h", (0, (2, 1))),
}
_COLORS = ("#7F7F7F", "#8C510A", "#01665E", "#762A83", "#B8860B", "#4D4D4D")
_MARKERS = ("<", ">", "p", "*", "d", "8")
_LINES = ((0.0, (7.0, 1.0)), (0.0, (1.0, 2.0)), (0.0, (5.0, 3.0)), (0.0, (3.0, 1.0, 1.0, 3.0)))

LOOK: dict[str, Any] = {
    "font.family": "DejaVu Sans", "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "xtick.labelsize": 7,
    "ytick.labelsize": 7, "legend.fontsize": 7, "figure.titlesize": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.linewidth": 0.6, "axes.axisbelow": True, "axes.grid": True,
    "grid.color": "#DDDDDD", "grid.linewidth": 0.5, "xtick.major.width": 0.6, "ytick.major.width": 0.6,
    "lines.linewidth": 1.2, "lines.markersize": 4, "errorbar.capsize": 0, "legend.frameon": False,
    "legend.handlelength": 2.4, "figure.constrained_layout.use": True, "savefig.dpi": DPI,
    "pdf.fonttype": 42, "svg.fonttype": "none",
}  # fmt: skip
_lock = threading.RLock()  # matplotlib's settings are global


def style(method: str) -> Style:
    """The style of a method; one that is not listed gets another of its own, always the same for its name."""
    known = METHOD_STYLES.get(method)
    if known:
        return known
    number = zlib.crc32(method.encode())
    color, marker = _COLORS[number % len(_COLORS)], _MARKERS[number // 7 % len(_MARKERS)]
    return Style(method.replace("_", " "), color, marker, _LINES[number // 49 % len(_LINES)])


def display(method: str, variant: str | None = None) -> str:
    """A method's name for readers, with its checkpoint where that is not the usual one."""
    return f"{style(method).name} {name(VARIANTS, variant)}" if variant else style(method).name


def panel_title(model: str, benchmark: str) -> str:
    """A model (or the paper's scale) and a benchmark for readers."""
    return f"{MODELS.get(model, model)}, {name(BENCHMARKS, benchmark)}"


@contextmanager
def look() -> Iterator[None]:
    """Draw with these settings, whatever the user's own are; one thread at a time."""
    settings: dict[Any, Any] = {key: value for key, value in mpl.rcParamsDefault.items() if key != "backend"} | LOOK
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", mpl.MatplotlibDeprecationWarning)
        with mpl.rc_context(settings):
            yield


def blank(width: float, height: float) -> Drawing:
    """A drawing without axes; inches."""
    drawing = Drawing(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(drawing)
    return drawing


def new_figure(
    width: float = PAGE, height: float = 2.6, rows: int = 1, columns: int = 1, **subplots: Any
) -> tuple[Drawing, np.ndarray]:
    """An empty drawing with its axes.

    Args:
        width, height: inches; ``COLUMN`` and ``PAGE`` are a paper's widths.
        rows, columns: of axes.
        subplots: further arguments of ``Figure.subplots`` (sharex, width_ratios, …).

    Returns:
        The drawing and its axes ``[rows, columns]``.
    """
    drawing = blank(width, height)
    return drawing, drawing.subplots(rows, columns, squeeze=False, **subplots)


def render(figure: Figure) -> Drawing:
    """The drawing of a figure's points in the look of all figures.

    Raises:
        ValueError: it has no points.
    """
    if figure.points.empty:
        raise ValueError(f"figure {figure.name} has no points: {figure.missing}")
    with look():
        return figure.draw(figure.points)


def save(figure: Figure, folder: Path) -> list[Path]:
    """Write a figure as PDF, PNG and CSV of its points, with its extra files; without points nothing.

    Equal points give equal bytes: no times are written.

    Returns:
        The files.
    """
    if figure.points.empty:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    pdf, png, csv = (folder / f"{figure.name}.{suffix}" for suffix in ("pdf", "png", "csv"))
    with look():
        drawing = figure.draw(figure.points)
        drawing.set_dpi(DPI)
        engine = drawing.get_layout_engine()
        if engine is not None:  # once; ``savefig`` would lay out and draw twice for each file
            engine.execute(drawing)
            drawing.set_layout_engine("none")
        content = BytesIO()
        FigureCanvasAgg(drawing).print_png(content, metadata={"Software": None})
        _put(png, content.getvalue())
        about = {
            "Title": figure.title,
            "Subject": figure.caption,
            "Creator": None,
            "Producer": None,
            "CreationDate": None,
        }
        content = BytesIO()
        FigureCanvasPdf(drawing).print_pdf(content, metadata=about)
        _put(pdf, content.getvalue())
    _put(csv, figure.points.to_csv(index=False, lineterminator="\n", float_format="%.12g").encode())
    written = [pdf, png, csv]
    for suffix, text in figure.extra.items():
        path = folder / f"{figure.name}.{suffix}"
        _put(path, text.encode())
        written.append(path)
    return written


def _put(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: half a figure would be taken for one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
