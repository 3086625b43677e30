"""What a forward gives, task by task, and how much of it the clock sees."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.colors import to_rgb

from harness.analysis.data import Data
from harness.analysis.figures import style
from harness.analysis.figures.base import Figure
from harness.analysis.figures.frontier import AR, left_out
from harness.analysis.figures.labels import label_points
from harness.analysis.figures.settings import (
    CONDITIONS,
    ends,
    known,
    matrices,
    resampled_ratios,
    scale_of,
    setting_name,
    settings,
)
from harness.analysis.names import BENCHMARKS, MODELS
from harness.analysis.published import FORWARD, RATE
from harness.results.tables import AVERAGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

PAPER = "(paper)"
TABLE = 4  # of the paper: tokens per forward by task
PANELS, ROWS, PER_METHOD, MARKS = 6, 60, 3, 10
HEADLINE_TAU = 0.95
FORWARD_COLUMNS = (
    "panel", "benchmark", "series", "source", "method", "variant", "block_size", "tau", "setting", "value", "low",
    "high", "n", "key",
)  # fmt: skip
SPEED_COLUMNS = (
    "panel", "conditions", "method", "variant", "setting", "cache", FORWARD, "forward_low", "forward_high", "speedup",
    "speedup_low", "speedup_high", "n", "key", "reference",
)  # fmt: skip
REALISED = (0.25, 0.5, 0.75, 1.0)
_BOOTSTRAP = "95 % percentile intervals of ratios of sums over 2,000 resamples of the documents (seed 0)"
_CACHES = {"cursor": "full", "block": "left", "none": "none"}  # how a mark is filled


def make(data: Data) -> list[Figure]:
    """Both figures."""
    return [speedup(data), tokens_per_forward(data)]


def tokens_per_forward(data: Data) -> Figure:
    """Tokens per forward by task of every method, beside the paper's Table 4."""
    cells = settings(data)
    cells = cells[_is_generated(cells) & (cells["method"] != AR)]
    kept, num_settings = [], 0
    for _, part in cells.groupby(["model", "benchmark", "method", "variant"], dropna=False, sort=False):
        ranked = sorted(part.to_dict("records"), key=_from_headline)
        kept += ranked[:PER_METHOD]
        num_settings += len(ranked[PER_METHOD:])
    ratios = _intervals(data, kept)
    rows = [
        {
            **row, "panel": MODELS.get(scale_of(row["model"]), row["model"]), "source": "measured",
            "setting": setting_name(row), "value": row[FORWARD], "low": ratios[row["key"], row["benchmark"]][0],
            "high": ratios[row["key"], row["benchmark"]][1],
        }
        for row in kept
    ] + _published(data)  # fmt: skip
    for row in rows:
        row["series"] = " ".join(
            filter(None, (_name(row), row["setting"], "(paper)" if row["source"] == "paper" else ""))
        )
    frame = pd.DataFrame(rows, columns=list(FORWARD_COLUMNS))
    points, note = _panels(frame)
    caption = (
        "Committed tokens per forward of the target on each task (greedy AR: exactly 1, dashed). Lines are "
        f"{_BOOTSTRAP}. Of each method at most {PER_METHOD} settings, those nearest to τ = {HEADLINE_TAU}. Open: "
        "Table 4 of the paper, one run without spread."
    )
    note += left_out(("settings", num_settings))
    run = "python -m harness.run -m method=mars,block_diffusion,jacobi,medusa,eagle"
    return Figure("tokens_per_forward", "Tokens per forward by task", caption + note, points, draw_forward, run)


def _is_generated(cells: pd.DataFrame) -> pd.Series:
    return ~cells["is_average"].astype(bool) & cells[FORWARD].notna()


def _from_headline(row: dict[str, Any]) -> tuple[Any, ...]:
    distance = abs(row["tau"] - HEADLINE_TAU) if row["tau"] is not None else 0.0
    return (
        row["confidence"] in ("margin", "entropy"),
        row["cache"] != "cursor",
        distance,
        row["block_size"] or 0,
        row["key"],
    )


def _name(row: dict[str, Any]) -> str:
    return style.display(row["method"], row["variant"] if known(row["variant"]) else None)


def _intervals(data: Data, cells: list[dict[str, Any]]) -> dict[tuple[str, str], tuple[float, float]]:
    """Of tokens per forward, by key and benchmark."""
    found = {}
    wanted = {(row["key"], row["benchmark"]) for row in cells}
    columns = ("new_tokens", "target_forwards")
    for benchmark, matrix in matrices(data, [row["key"] for row in cells], columns).items():
        ratios = resampled_ratios(matrix.values[columns[0]], matrix.values[columns[1]])
        for column, key in enumerate(matrix.keys):
            if (key, benchmark) in wanted:
                found[key, benchmark] = ends(ratios[:, column])
    return found


def _published(data: Data) -> list[dict[str, Any]]:
    table = data.published[(data.published["table"] == TABLE) & (data.published["metric"] == FORWARD)]
    return [
        {
            **row, "panel": MODELS[row["scale"]], "benchmark": row["task"], "source": "paper", "key": "",
            "setting": setting_name(row), "low": np.nan, "high": np.nan,
        }
        for row in table.to_dict("records") if row["task"] != AVERAGE
    ]  # fmt: skip


def _panels(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Models with measurements first; rows by task, then method, as many as a page holds."""
    order = _numbered((*BENCHMARKS, *sorted(set(frame["benchmark"]))))
    methods = _numbered((*style.METHOD_STYLES, *sorted(set(frame["method"]))))
    frame = frame.assign(
        task=frame["benchmark"].map(order), kind=frame["method"].map(methods), is_paper=frame["source"] == "paper",
        order=frame.groupby("panel")["source"].transform(lambda one: int((one == "measured").sum())),
    ).sort_values(["order", "panel", "task", "kind", "variant", "is_paper", "block_size", "tau", "setting", "key"],
                  ascending=[False, *8 * [True], True], kind="stable", na_position="first")  # fmt: skip
    names = list(dict.fromkeys(frame["panel"]))
    frame = frame[frame["panel"].isin(names[:PANELS])]
    kept = frame[frame.groupby("panel").cumcount() < ROWS]
    note = left_out(("models", len(names[PANELS:])), ("rows", len(frame) - len(kept)))
    return kept[list(FORWARD_COLUMNS)].reset_index(drop=True), note


def _numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def draw_forward(points: pd.DataFrame) -> Drawing:
    """A panel for each model; tasks are headings, methods rows."""
    measured: list[tuple[str, pd.DataFrame]] = []
    paper: list[tuple[str, pd.DataFrame]] = []
    for panel, part in points.groupby("panel", sort=False):
        (paper if part["source"].eq("paper").all() else measured).append((str(panel), part))
    rows = [panels[start : start + 2] for panels in (measured, paper) for start in range(0, len(panels), 2)]
    sizes = [0.55 + 0.15 * max(len(part) + part["benchmark"].nunique() for _, part in row) for row in rows]
    drawing = style.blank(style.PAGE, sum(sizes))
    for figure, row in zip(
        drawing.subfigures(len(rows), 1, squeeze=False, height_ratios=sizes)[:, 0], rows, strict=True
    ):
        for place, (panel, part) in zip(figure.subplots(1, len(row), squeeze=False)[0], row, strict=True):
            is_paper = part["source"].eq("paper").all()
            place.set_title(f"{panel} {PAPER}" if is_paper else panel)
            place.set_xlabel("tokens / forward")
            _rows(place, part, f" {PAPER}" if is_paper else "")
    return drawing


def _rows(place: Axes, part: pd.DataFrame, known_suffix: str) -> None:
    highest = float(part[["value", "high"]].max().max())
    ticks: list[tuple[float, str, bool]] = []
    y = 0
    for benchmark, rows in part.groupby("benchmark", sort=False):
        ticks.append((y, BENCHMARKS.get(str(benchmark), str(benchmark).replace("_", " ")), True))
        for row in rows.to_dict("records"):
            y += 1
            of = style.style(row["method"])
            is_paper = row["source"] == "paper"
            if known(row["low"]):
                place.plot([row["low"], row["high"]], [y, y], color=of.color, lw=2.4, alpha=0.35, solid_capstyle="butt")
            place.plot(
                row["value"], y, of.marker, color=of.color, mfc="white" if is_paper else of.color, mew=0.9, ms=4.5
            )
            place.annotate(f"{row['value']:.2f}", (max(row["value"], np.nan_to_num(row["high"])), y), (5, 0),
                           textcoords="offset points", va="center", fontsize=6)  # fmt: skip
            ticks.append((y, row["series"].removesuffix(known_suffix), False))
        y += 1
    place.set_ylim(y - 0.4, -0.8)
    place.set_xlim(0, 1.25 * max(highest, 1))
    place.axvline(1, color="black", lw=0.8, ls="--", zorder=1)
    place.grid(axis="y", visible=False)
    place.tick_params(axis="y", length=0)
    place.set_yticks([tick[0] for tick in ticks], [tick[1] for tick in ticks], fontsize=6.2)
    for tick, (_, _, is_heading) in zip(place.get_yticklabels(), ticks, strict=True):
        tick.set_fontweight("bold" if is_heading else "normal")


def speedup(data: Data) -> Figure:
    """Speedup on the clock against tokens per forward, among cells of one machine."""
    cells = settings(data, *CONDITIONS)
    cells = cells[_is_generated(cells) & (cells[RATE].fillna(0).astype(float) > 0)]
    panels = []
    for place, part in cells.groupby(["model", "benchmark", *CONDITIONS], dropna=False, sort=True):
        baselines = part[(part["method"] == AR) & part["variant"].isna()].to_dict("records")
        others = part[part["method"] != AR].to_dict("records")
        if baselines and others:
            baselines.sort(key=lambda one: (one["cache"] != "cursor", -one["n"], one["key"]))
            panels.append((place, baselines[0], others))
    panels.sort(key=lambda panel: -len(panel[2]))
    rows, num_marks = [], 0
    for place, baseline, others in panels[:PANELS]:
        shown = _spread(others)
        num_marks += len(others) - len(shown)
        rows += _speedups(data, place, baseline, shown)
    points = pd.DataFrame(rows, columns=list(SPEED_COLUMNS))
    caption = (
        "Tokens per second over AR SFT's, against tokens per forward: on the diagonal a forward costs what one of "
        "AR SFT costs and all of the gain is realised; the lines below it are shares of it. Compared are only cells "
        "with the same hardware, device, threads, dtype and batch size, with AR SFT's usual cache as the reference. "
        f"Filled: cursor cache, half: block cache, open: no cache. Thin lines are {_BOOTSTRAP}; each cell was timed "
        "once, so that they do not hold what another run on the machine would differ by."
    )
    note = left_out(("machines, models and benchmarks", len(panels[PANELS:])), ("settings", num_marks))
    run = "python -m harness.run -m method=ar_sft,mars,block_diffusion,jacobi,medusa,eagle"
    return Figure("speedup", "Speed on the clock against tokens per forward", caption + note, points, draw_speedup, run)


def _spread(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each method as many as are legible, evenly over their tokens per forward."""
    kept = []
    for method in sorted({row["method"] for row in cells}):
        own = sorted((row for row in cells if row["method"] == method), key=lambda row: (row[FORWARD], row["key"]))
        chosen = np.unique(np.linspace(0, len(own) - 1, min(MARKS, len(own))).round().astype(int))
        kept += [own[index] for index in chosen]
    return kept


def _speedups(
    data: Data, where: tuple[Hashable, ...], baseline: dict[str, Any], cells: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    model, benchmark, hardware, device, threads, dtype, batch = where
    columns = ("new_tokens", "target_forwards", "share_seconds")
    matrix = matrices(data, [baseline["key"], *(row["key"] for row in cells)], columns)[str(benchmark)]
    tokens, forwards, seconds = (matrix.values[name] for name in columns)
    per_forward, rates = resampled_ratios(tokens, forwards), resampled_ratios(tokens, seconds)
    told = {
        "panel": style.panel_title(scale_of(str(model)), str(benchmark)), "reference": baseline["key"],
        "conditions": f"{hardware or 'unknown machine'}, {device}, {_threads(threads)}{dtype}, batch {batch}",
    }  # fmt: skip
    rows = []
    for row in cells:
        own, other = (matrix.places[one["key"]] for one in (row, baseline))
        (forward_low, forward_high), (low, high) = ends(per_forward[:, own]), ends(rates[:, own] / rates[:, other])
        rows.append({
            **row, **told, "setting": setting_name(row, skip=("cache",)), "speedup": row[RATE] / baseline[RATE],
            "forward_low": forward_low, "forward_high": forward_high, "speedup_low": low, "speedup_high": high,
        })  # fmt: skip
    return rows


def _threads(threads: Hashable) -> str:
    """How many CPU threads; nothing where it is not known."""
    return f"{threads} thread{'' if threads == 1 else 's'}, " if known(threads) else ""


def draw_speedup(points: pd.DataFrame) -> Drawing:
    """A panel for each model, benchmark and machine; labels where there is room."""
    panels = list(points.groupby(["panel", "conditions"], sort=False))
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    drawing, axes = style.new_figure(style.PAGE if columns > 1 else 4.8, 0.7 + 2.9 * rows, rows, columns)
    for place in axes.flat[len(panels) :]:
        place.set_axis_off()
    handles: dict[str, Any] = {}
    for place, ((title, conditions), part) in zip(axes.flat, panels, strict=False):
        place.set_title(f"{title}\n{conditions}", fontsize=7)
        place.set_xlabel("tokens / forward")
        place.set_ylabel("tokens / s over AR SFT's")
        _diagonals(place, part)
        for row in part.to_dict("records"):
            of = style.style(row["method"])
            place.hlines(row["speedup"], row["forward_low"], row["forward_high"], color=of.color, lw=0.7, alpha=0.6)
            place.vlines(row[FORWARD], row["speedup_low"], row["speedup_high"], color=of.color, lw=0.7, alpha=0.6)
            [mark] = place.plot(
                row[FORWARD], row["speedup"], of.marker, color=_face(row, of.color), mec=of.color, ms=5, mew=0.9,
                markerfacecoloralt="white", fillstyle=_CACHES.get(row["cache"], "full"), label=_name(row),
            )  # fmt: skip
            handles.setdefault(_name(row), mark)
    names = [style.display(method) for method in style.METHOD_STYLES]
    handles = dict(sorted(handles.items(), key=lambda one: (names.index(one[0]) if one[0] in names else 99, one[0])))
    [reference] = axes[0, 0].plot([], [], "s", color="black", ms=4, label=style.display(AR))
    drawing.legend(handles=[reference, *handles.values()], loc="outside lower center", ncols=min(4, len(handles) + 1))
    engine = drawing.get_layout_engine()
    assert engine is not None
    engine.execute(drawing)
    for place, (_, part) in zip(axes.flat, panels, strict=False):
        label_points(place, [(1, 1, ""), *zip(part[FORWARD], part["speedup"], part["setting"], strict=True)])
    return drawing


def _face(row: dict[str, Any], color: str) -> Any:
    """A method's colour, made light for a checkpoint that is not its usual one."""
    red, green, blue = to_rgb(color)
    light = 0.65 if known(row["variant"]) else 0.0
    return tuple(one + light * (1 - one) for one in (red, green, blue))


def _diagonals(place: Axes, part: pd.DataFrame) -> None:
    right = 1.1 * max(1.5, float(part[[FORWARD, "forward_high"]].max().max()))
    top = 1.1 * max(1.5, float(part[["speedup", "speedup_high"]].max().max()))
    place.set_xlim(0, right)
    place.set_ylim(0, top)
    place.axhline(1, color="black", lw=0.6, ls=":")
    place.plot(1, 1, "s", color="black", ms=4)
    for share in REALISED:
        place.plot([0, right], [0, share * right], color="#888888", lw=1.0 if share == 1 else 0.6, zorder=1)
        x, y = min(right, top / share), min(top, share * right)
        is_right = x == right
        place.annotate(f"{share:.0%}", (x, y), (2, 0) if is_right else (4, -2), textcoords="offset points", fontsize=6,
                       va="center" if is_right else "top", color="#555555", annotation_clip=False)  # fmt: skip
