"""The paper's Figures 3 and 6: score against tokens per forward, over thresholds and over acceptance metrics."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D

from harness.analysis.data import Data
from harness.analysis.figures import style
from harness.analysis.figures.base import Figure
from harness.analysis.figures.settings import known, scale_of, setting_name, settings
from harness.analysis.published import FORWARD, SCORE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

PANELS, SERIES = 12, 12  # of a figure, and curves of a panel: what a page and a legend can hold
AR, MARS = "ar_sft", "mars"
TABLE = 8  # of the paper: the scores over tau
COLUMNS = (
    "panel", "series", "source", "method", "variant", "block_size", "tau", "confidence", "setting", FORWARD, "score",
    "score_low", "score_high", "n", "is_one_token", "key",
)  # fmt: skip
METRICS: Mapping[str, tuple[str, Any, str]] = {
    "probability": ("o", "-", "#D55E00"), "margin": ("s", (0, (4, 1.5)), "#0072B2"),
    "entropy": ("^", (0, (1, 1)), "#009E73"),
}  # fmt: skip
_BLOCK_MARKERS = {2: "v", 4: "o", 8: "s", 16: "^", 32: "D"}
_INTERVALS = "Vertical lines are 95 % intervals of the score; the dashed line is AR SFT with its interval as a band."
Row = Mapping[str, Any]
Look = tuple[str, Any, Any, str]  # marker, line, colour, how the marker is filled


def make(data: Data) -> list[Figure]:
    """Both figures."""
    return [fig3(data), fig6(data)]


def fig3(data: Data) -> Figure:
    """The frontier over tau for each task, block size and variant, measured and published (Table 8)."""
    cells = _measured(data)
    cells = cells[cells["confidence"].isin(["probability", ""])]
    points, left_out = _capped(pd.concat([cells, _published(data)], ignore_index=True))
    documents = points.loc[points["source"] == "measured", "n"]
    caption = (
        "Score against committed tokens per forward, a curve for each block size B and variant over the threshold τ "
        "of the top probability (high τ to the left); ringed: one token per forward (τ = 1). Methods without a "
        f"threshold are single marks. {_INTERVALS} Published: Table 8 of the paper, intervals from its test sizes. "
    )
    caption += f"Measured: {_range(documents)} documents." if len(documents) else "Nothing is measured yet."
    run = "python -m harness.run -m method=mars,ar_sft tau=0.5,0.6,0.7,0.8,0.9,0.95,1.0"
    return Figure("fig3", "Speed and quality over the confidence threshold", caption + left_out, points, draw_fig3, run)


def fig6(data: Data) -> Figure:
    """The frontiers of the acceptance metrics, where more than one was measured."""
    cells = _measured(data)
    is_curve = (cells["method"] == MARS) & (cells["confidence"] != "")
    curves = cells[is_curve & ~cells["setting"].str.contains(" no cache| block cache")].copy()
    where = [
        f"{row['panel']}, {style.display(MARS, row['variant'] or None)} B={row['block_size']:g}"
        for row in curves.to_dict("records")
    ]
    curves = curves.assign(panel=pd.Series(where, curves.index, "object"), series=curves["confidence"])
    several = curves.groupby("panel")["confidence"].nunique()
    curves = curves[curves["panel"].isin(several[several > 1].index)]
    references = cells[cells["method"] == AR]
    lines = [references[references["panel"].map(lambda one, panel=panel: panel.startswith(f"{one}, ")).astype(bool)]
             .assign(panel=panel) for panel in curves["panel"].unique()]  # fmt: skip
    points, left_out = _capped(pd.concat([curves, *lines], ignore_index=True))
    caption = (
        "Score against committed tokens per forward for the three ways to measure confidence: the top probability and "
        "the margin of the two highest have to reach τ, the entropy (nats) must not exceed it; ringed: one token "
        f"per forward. With the cursor cache. {_INTERVALS}"
    )
    if len(points):
        caption += f" Measured: {_range(points['n'])} documents."
        if lacking := sorted(set(METRICS) - set(points["confidence"])):
            caption += f" Not measured: {', '.join(lacking)}."
    run = (
        "python -m harness.run -m method=mars confidence=probability,margin tau=0.5,0.7,0.9,0.95,1.0; "
        "python -m harness.run -m method=mars confidence=entropy tau=0,0.1,0.3,0.6,1.0"
    )
    return Figure("fig6", "Frontiers of the acceptance metrics", caption + left_out, points, draw_fig6, run)


def _measured(data: Data) -> pd.DataFrame:
    """Every greedy setting on every benchmark that generates text, as points."""
    cells = settings(data)
    cells = cells[~cells["is_average"].astype(bool) & cells[FORWARD].notna()]
    rows = [
        {
            **row, "source": "measured", "panel": style.panel_title(scale_of(row["model"]), row["benchmark"]),
            "setting": setting_name(row), "series": _series(row, "measured"),
            "score": 100 * row["score"], "score_low": 100 * row["score_low"], "score_high": 100 * row["score_high"],
        }
        for row in cells.to_dict("records")
    ]  # fmt: skip
    return _points(rows)


def _published(data: Data) -> pd.DataFrame:
    found = data.published[data.published["table"] == TABLE]
    of = ["scale", "task", "method", "variant", "block_size", "tau", "confidence"]
    speeds = found[found["metric"] == FORWARD].set_index(of)["value"]
    rows = [
        {
            **row, FORWARD: speeds[tuple(row[name] for name in of)], "source": "paper", "key": "",
            "panel": style.panel_title(row["scale"], row["task"]), "setting": setting_name(row),
            "series": _series(row, "paper"), "score": row["value"], "score_low": row["low"], "score_high": row["high"],
        }
        for row in found[found["metric"] == SCORE].to_dict("records")
    ]  # fmt: skip
    return _points(rows)


def _series(row: Row, source: str) -> str:
    name = style.display(row["method"], row["variant"] if known(row["variant"]) else None)
    rest = setting_name({**row, "confidence": None}, skip=("tau",))
    return " ".join(part for part in ("paper:" if source == "paper" else "", name, rest) if part)


def _fill(row: Row) -> str:
    """How a mark is filled; half where the block cache was used, as in the figure of speedups."""
    return "left" if " block cache" in row["series"] else "none" if " no cache" in row["series"] else "full"


def _points(rows: list[dict[str, Any]]) -> pd.DataFrame:
    for row in rows:
        for name in ("variant", "confidence"):
            row[name] = row[name] if known(row[name]) else ""
        one = 0.0 if row["confidence"] == "entropy" else 1.0
        row["is_one_token"] = bool(known(row["tau"]) and row["tau"] == one)
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    numbers = ("block_size", "tau", FORWARD, "score", "score_low", "score_high", "n")
    return frame.astype(dict.fromkeys(numbers, "float64") | {"is_one_token": "bool"})


def _capped(points: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The panels and curves with most points, curves in the order of tau; and a sentence about what is left out."""
    points = points.drop_duplicates(subset=[name for name in COLUMNS if name != "key"])
    measured = points["source"].eq("measured")
    panels = (
        points.assign(m=measured)
        .groupby("panel")
        .agg(m=("m", "sum"), n=("m", "size"), size=("block_size", "max"))
        .reset_index()
    )
    panels = panels.sort_values(["m", "n", "size", "panel"], ascending=[False, False, True, True])["panel"].tolist()
    kept, num_curves = [], 0
    for panel in panels[:PANELS]:
        part = points[points["panel"] == panel].sort_values(["source", "variant", "series"], kind="stable")
        sizes = part[part["method"] != AR].groupby("series").size().reset_index(name="size")
        sizes["is_cache"] = sizes["series"].str.contains(" no cache| block cache")  # no method goes for want of these
        names = sizes.sort_values(["is_cache", "size", "series"], ascending=[True, False, True])["series"].tolist()
        num_curves += len(names[SERIES:])
        lines = part[part["method"] == AR].drop_duplicates("source")
        part = pd.concat([lines, part[(part["method"] != AR) & part["series"].isin(names[:SERIES])]])
        kept.append(part.sort_values(["source", "method", "variant", "block_size", "series", "tau", FORWARD],
                                     ascending=[True, True, True, True, True, False, True], kind="stable"))  # fmt: skip
    found = pd.concat(kept, ignore_index=True) if kept else points
    return found, left_out(("panels", len(panels[PANELS:])), ("curves", num_curves))


def left_out(*counts: tuple[str, int]) -> str:
    """A sentence about what a figure had no room for; nothing where it had."""
    said = [f"{count} {what}" for what, count in counts if count]
    return f" Left out for want of room: {' and '.join(said)}." if said else ""


def _range(n: pd.Series) -> str:
    low, high = f"{n.min():,.0f}", f"{n.max():,.0f}"
    return low if low == high else f"{low} to {high}"


def draw_fig3(points: pd.DataFrame) -> Drawing:
    """Colour and line tell the method, marker and shade the block size; filled are usual ones with the usual cache."""
    return _draw(points, _method_look)


def draw_fig6(points: pd.DataFrame) -> Drawing:
    """Colour, line and marker tell the metric."""

    def look(row: Row) -> Look:
        marker, line, color = METRICS[row["confidence"]]
        return marker, line, color, _fill(row)

    return _draw(points, look)


def _method_look(row: Row) -> Look:
    of = style.style(row["method"])
    fill = "none" if row["variant"] else _fill(row)
    if row["method"] != MARS:
        return of.marker, of.line, of.color, fill
    size = row["block_size"]
    shade = {2: 1.35, 8: 0.68, 16: 0.4, 32: 0.2}.get(size, 1.0)
    color = tuple(min(1.0, part * shade) for part in to_rgb(of.color))
    return _BLOCK_MARKERS.get(size, "p"), (0, (4, 1.5)) if row["variant"] else of.line, color, fill


def _draw(points: pd.DataFrame, look: Callable[[Row], Look]) -> Drawing:
    panels = list(points.groupby("panel", sort=False))
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    drawing, axes = style.new_figure(style.PAGE if columns > 1 else 4.6, 0.9 + 2.0 * rows, rows, columns)
    handles: dict[str, Line2D] = {}
    for place, (title, part) in zip(axes.flat, panels, strict=False):
        place.set_title(textwrap.fill(str(title), 30 if columns > 1 else 60))
        handles |= dict(_curves(place, part, look))
    for place in axes.flat[len(panels) :]:
        place.set_axis_off()
    for number, place in enumerate(axes.flat[: len(panels)]):
        if number % columns == 0:
            place.set_ylabel("score (%)")
        if number + columns >= len(panels):
            place.set_xlabel("tokens / forward")
    names = sorted(handles, key=lambda name: (name.startswith("paper:"), list(handles).index(name)))
    drawing.legend([handles[name] for name in names], names, loc="outside lower center", ncols=min(3, len(names)))
    return drawing


def _curves(place: Axes, part: pd.DataFrame, look: Callable[[Row], Look]) -> Iterator[tuple[str, Line2D]]:
    """Draw a panel; yields what its legend has."""
    for source, reference in part[part["method"] == AR].groupby("source", sort=True):
        one = reference.iloc[0]
        gray, line = ("#000000", "--") if source == "measured" else ("#777777", "-.")
        name = str(one["series"])
        place.axhspan(one["score_low"], one["score_high"], color=gray, alpha=0.1, lw=0)
        yield name, place.axhline(one["score"], color=gray, lw=0.9, ls=line, label=name)
    for name, curve in part[part["method"] != AR].groupby("series", sort=False):
        first = curve.iloc[0]
        marker, line, color, fill = look(first.to_dict())
        of_paper = first["source"] == "paper"
        size, width = (3.2, 0.8) if of_paper else (4.6, 1.3)
        x, y = curve[FORWARD], curve["score"]
        is_curve = curve["tau"].notna().all()
        place.vlines(x, curve["score_low"], curve["score_high"], color=color, lw=0.6, alpha=0.45)
        options = {"color": color, "marker": marker, "ms": size, "lw": width, "ls": line if is_curve else "none",
                   "mfc": "white" if fill == "none" else color, "mfcalt": "white", "mew": 0.8,
                   "fillstyle": "left" if fill == "left" else "full"}  # fmt: skip
        [drawn] = place.plot(x, y, label=str(name), zorder=3, **options)
        ringed = curve[curve["is_one_token"]]
        place.plot(ringed[FORWARD], ringed["score"], "o", ms=size + 4, mfc="none", mec="black", mew=0.6, zorder=4)
        yield str(name), drawn
