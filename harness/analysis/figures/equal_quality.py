"""Speed at equal quality: for each method the fastest setting whose paired loss in score is bounded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from harness.analysis.data import Data
from harness.analysis.figures import style
from harness.analysis.figures.base import Figure
from harness.analysis.figures.frontier import AR, left_out
from harness.analysis.figures.settings import (
    CONDITIONS,
    Matrix,
    known,
    matrices,
    scale_of,
    setting_name,
    settings,
)
from harness.analysis.published import FORWARD, RATE, SCORE
from harness.results.stats import LEVEL, MIN_CLUSTERS, Interval, bonett_price, mean_interval, student
from harness.results.tables import AVERAGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

BOUNDS = (1, 2, 5)  # points of score that a setting may lose at most
PANELS, METHODS = 6, 12
SPEEDS = {FORWARD: "tokens / forward (AR SFT: 1)", "speedup": "tokens / s over AR SFT's"}
COLUMNS = (
    "panel", "method", "series", "speed", "bound", "value", "setting", "key", "difference", "low", "level",
    "num_settings", "best_low", "n",
)  # fmt: skip
_LOOKS = {1: ("#000000", "o"), 2: ("#6E6E6E", "s"), 5: ("#ABABAB", "D")}


def make(data: Data) -> list[Figure]:
    """The figure."""
    points, num_left = _points(data)
    counts = points["num_settings"]
    tried = f"{counts.min():.0f} to {counts.max():.0f} settings" if len(points) else "no setting"
    caption = (
        "For each method the most committed tokens per forward, and the most tokens per second over AR SFT's on the "
        "same machine, among its settings (threshold, block size, confidence, cache, options) that lose at most 1, 2 "
        "or 5 points of score against AR SFT on the same documents: the lower end of the interval of their paired "
        f"difference lies above −1, −2, −5. The best of {tried} of a method (their number stands below its name) is a "
        "choice, so all of its intervals are widened to hold together: each is at level "
        f"1 − {1 - LEVEL:.2g} / (settings tried), Bonferroni's; different methods are not corrected for each other. A "
        f"setting also has to keep the bound in the tables' interval at {LEVEL:.0%}. What cannot be shown with this "
        "many documents counts as not within the bound, whatever the method guarantees. The dashed line is AR SFT; "
        "each cell was timed once."
    )
    caption += "".join(_other_baselines(data))
    if len(points):
        documents = sorted({f"{n:,.0f}" for n in points["n"]}, key=lambda text: int(text.replace(",", "")))
        caption += f" Shared documents: {documents[0]}" + (f" to {documents[-1]}." if documents[1:] else ".")
    run = "python -m harness.run -m method=ar_sft,mars,block_diffusion,jacobi,medusa,eagle tau=0.7,0.8,0.9,0.95,1.0"
    return [Figure("equal_quality", "Speed at equal quality", caption + num_left, points, draw, run)]


def _points(data: Data) -> tuple[pd.DataFrame, str]:
    cells = settings(data, *CONDITIONS)
    references = {key: data.results.reference(key) for key in cells["key"].unique()}
    cells = cells.assign(reference=cells["key"].map(references))
    is_compared = (cells["method"] != AR) & cells["reference"].notna() & cells[FORWARD].notna()
    compared = cells[is_compared]
    found = matrices(data, [*compared["key"], *compared["reference"]], ["score"])
    panels = _in_turns(list(compared.groupby(["model", "benchmark"], sort=True)))
    rows, num_methods = [], 0
    for (model, benchmark), part in panels[:PANELS]:
        is_baseline = (cells["method"] == AR) & cells["variant"].isna()
        here = cells[is_baseline & (cells["model"] == model) & (cells["benchmark"] == benchmark)].to_dict("records")
        baselines = [one for one in here if one[RATE]]
        series = list(part.groupby(["method", "variant"], dropna=False, sort=False))
        num_methods += len(series[METHODS:])
        panel = style.panel_title(scale_of(model), benchmark)
        bests = [_best(data, tried, baselines, found, panel) for _, tried in series[:METHODS]]
        for best in sorted(bests, key=_rank):
            rows += best
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame, left_out(("panels", len(panels[PANELS:])), ("methods", num_methods))


def _other_baselines(data: Data) -> Iterator[str]:
    """A sentence for each AR SFT checkpoint that is not the reference: what a bound against it would start from."""
    scores = data.usual[
        (data.usual["metric"] == SCORE) & (data.usual["method"] == AR) & (data.usual["task"] != AVERAGE)
    ]
    usual = scores[scores["variant"].isna()].drop_duplicates(["scale", "task"])
    for row in scores[scores["variant"].notna()].drop_duplicates(["scale", "task", "variant"]).to_dict("records"):
        beside = usual[(usual["scale"] == row["scale"]) & (usual["task"] == row["task"])]["value"]
        if len(beside):
            yield (
                f" Not the reference: {style.display(AR, row['variant'])} has a score of {row['value']:.1f} on "
                f"{style.panel_title(row['scale'], row['task'])}, the reference {beside.iloc[0]:.1f}."
            )


Panel = tuple[Any, pd.DataFrame]  # (model, benchmark) and their settings


def _in_turns(panels: Sequence[Panel]) -> list[Panel]:
    """Models take turns; of each its average comes first, then the benchmark with most settings, then by name."""
    ranked = []
    for model in sorted({model for (model, _), _ in panels}):
        own = [panel for panel in panels if panel[0][0] == model]
        own.sort(key=lambda panel: (panel[0][1] != AVERAGE, -len(panel[1])))
        ranked += list(enumerate(own))
    ranked.sort(key=lambda place: (place[0], -len(place[1][1])))
    return [panel for _, panel in ranked]


def _best(
    data: Data, tried: pd.DataFrame, baselines: Sequence[dict[str, Any]], found: dict[str, Matrix], panel: str
) -> list[dict[str, Any]]:
    """A row for each speed and bound of a method; without a setting within the bound its value is empty."""
    num_settings = tried["key"].nunique()
    level = 1 - (1 - LEVEL) / num_settings
    candidates = []
    for row in tried.to_dict("records"):
        own = difference(found, row["key"], row["reference"], row["benchmark"], level)
        if own is not None:
            candidates.append({**row, "interval": own, "speedup": _speedup(row, baselines)})
    if not candidates:
        return []
    first = candidates[0]
    shared = {
        "panel": panel, "method": first["method"], "series": style.display(first["method"], first["variant"]),
        "level": level, "num_settings": num_settings,
        "best_low": max(100 * one["interval"].low for one in candidates),
    }  # fmt: skip
    rows = []
    for speed in SPEEDS:
        timed = [one for one in candidates if one[speed] is not None]
        timed.sort(key=lambda one: (-one[speed], one["key"]))
        for points in BOUNDS if timed else ():
            best = next((one for one in timed if _is_within(data, one, points)), None)
            row = shared | {"speed": speed, "bound": points, "n": max(one["interval"].n for one in timed)}
            if best is not None:
                interval = best["interval"]
                row |= {
                    "value": best[speed], "setting": setting_name(best), "key": best["key"], "n": interval.n,
                    "difference": 100 * interval.value, "low": 100 * interval.low,
                }  # fmt: skip
            rows.append(row)
    return rows


def _is_within(data: Data, cell: dict[str, Any], points: float) -> bool:
    """Whether the loss is bounded by the interval at the wider level and by that of the tables, which may differ."""
    if 100 * cell["interval"].low <= -points:
        return False
    told = data.pairs.difference(cell["key"], cell["reference"], cell["benchmark"])
    return told is not None and 100 * told.difference.low > -points


def _rank(rows: list[dict[str, Any]]) -> tuple[float, ...]:
    """Methods with most tokens per forward within the tightest bound come first, then within the next one."""
    return tuple(-row.get("value", 0.0) for row in rows if row["speed"] == FORWARD)


def _speedup(row: dict[str, Any], baselines: Sequence[dict[str, Any]]) -> float | None:
    """Tokens per second over those of AR SFT under the same conditions, with its usual cache if that was measured.

    None where there is no such AR SFT.
    """
    same = [one for one in baselines if all(one[name] == row[name] for name in CONDITIONS)]
    same.sort(key=lambda one: (one["cache"] != "cursor", one["cache"] != row["cache"], -one["n"], one["key"]))
    return float(row[RATE] / same[0][RATE]) if same and row[RATE] is not None else None


def difference(found: dict[str, Matrix], key: str, reference: str, benchmark: str, level: float) -> Interval | None:
    """Paired difference of a cell from its reference with an interval at a level.

    Args:
        found: scores by benchmark.
        benchmark: with ``average`` the plain mean over those of both.

    Returns:
        None where they share no document.
    """
    parts = []
    for name, matrix in found.items():
        if benchmark not in (AVERAGE, name) or not {key, reference} <= matrix.places.keys():
            continue
        first, second = (matrix.values["score"][:, matrix.places[one]] for one in (key, reference))
        shared = ~(np.isnan(first) | np.isnan(second))
        if shared.any():
            parts.append(paired_interval(first[shared], second[shared], matrix.tasks[shared], level))
    return mean_interval(parts) if parts else None


def paired_interval(first: np.ndarray, second: np.ndarray, tasks: Sequence[str], level: float) -> Interval:
    """Mean of first minus second, whose interval also holds at levels that 10,000 resamples cannot tell.

    Right and wrong answers have Bonett and Price's, as in ``stats.compare``. From ``MIN_CLUSTERS`` subtasks on it is
    Student's over subtasks (of such answers the wider of the two at each end), of other scores Student's over
    documents.
    """
    differences = first - second
    n, mean = len(differences), float(differences.mean())
    clusters = np.unique(np.asarray(tasks, dtype=str), return_inverse=True)[1]
    is_clustered = int(clusters.max()) + 1 >= MIN_CLUSTERS
    ends = []
    if bool(np.isin(np.concatenate([first, second]), (0.0, 1.0)).all()):
        ends.append(bonett_price(int((differences > 0).sum()), int((differences < 0).sum()), n, level))
    if is_clustered or not ends:
        sums = np.bincount(clusters, weights=differences - mean) if is_clustered else differences - mean
        k = len(sums)
        error = math.inf if k < 2 else math.sqrt(float((sums**2).sum()) * k / (k - 1)) / n * student(k - 1, level)
        ends.append((mean - error, mean + error))
    return Interval(mean, min(low for low, _ in ends), max(high for _, high in ends), n, "paired")


def draw(points: pd.DataFrame) -> Drawing:
    """A row of panels for each model and benchmark, a band for each method, in it a line for each bound."""
    panels = list(points.groupby("panel", sort=False))
    heights = [part["series"].nunique() for _, part in panels]
    drawing, axes = style.new_figure(
        style.PAGE, 0.9 + sum(0.3 + 0.42 * height for height in heights), len(panels), 2, height_ratios=heights
    )
    for places, (title, part) in zip(axes, panels, strict=True):
        names = list(dict.fromkeys(part["series"]))
        for place, (speed, label) in zip(places, SPEEDS.items(), strict=True):
            _panel(place, part[part["speed"] == speed], names)
            place.set_xlabel(label)
            if place is places[0]:
                place.set_yticks(range(len(names)), [_tried(part, name) for name in names])
                place.set_title(str(title), loc="left")
            else:
                place.set_yticks(range(len(names)), [""] * len(names))
    handles = [
        axes[0, 0].plot(
            [], [], marker=marker, color=color, lw=1.6, label=f"loses less than {points} point{'s'[: points > 1]}"
        )[0]
        for points, (color, marker) in _LOOKS.items()
    ]
    drawing.legend(handles=handles, loc="outside lower center", ncols=3)
    return drawing


def _tried(part: pd.DataFrame, series: str) -> str:
    count = int(part.loc[part["series"] == series, "num_settings"].iloc[0])
    return f"{series}\n{count} setting{'s'[: count > 1]}"


def _panel(place: Axes, part: pd.DataFrame, names: list[str]) -> None:
    highest = max(2.0, part["value"].max()) if part["value"].notna().any() else 2.0  # room for "none within …"
    place.set_xlim(0, 1.55 * highest)  # room for the settings' names
    place.set_ylim(len(names) - 0.5, -0.5)
    place.grid(axis="y", visible=False)
    place.tick_params(axis="y", length=0)
    place.axvline(1, color="black", lw=0.8, ls="--")
    for number, name in enumerate(names):
        rows = part[part["series"] == name]
        if number:
            place.axhline(number - 0.5, color="#DDDDDD", lw=0.5)
        if rows.empty:
            place.text(1.03, number, "no AR SFT on the same machine", va="center", fontsize=6, style="italic")
        elif rows["value"].isna().all():
            low = rows["best_low"].iloc[0]
            text = f"none within {BOUNDS[-1]} points (best bound: −{-low:.1f})"
            place.text(1.03, number, text, va="center", fontsize=6, style="italic")
        else:
            _marks(place, rows, number)


def _marks(place: Axes, rows: pd.DataFrame, number: int) -> None:
    said = ""
    for offset, row in zip((-0.27, 0.0, 0.27), rows.sort_values("bound").to_dict("records"), strict=True):
        color, marker = _LOOKS[row["bound"]]
        y = number + offset
        if not known(row["value"]):
            place.text(1.03, y, f"none within {row['bound']}", va="center", fontsize=6, style="italic")
            continue
        place.plot([1, row["value"]], [y, y], color=color, lw=1.6, solid_capstyle="butt")
        place.plot(row["value"], y, marker, color=color, ms=4.2, mec="black", mew=0.5)
        text = f"{row['value']:.2f}" + (f"  {row['setting']}" if row["setting"] and row["setting"] != said else "")
        said = row["setting"]
        place.annotate(text, (max(1, row["value"]), y), (5, 0), textcoords="offset points", va="center", fontsize=6)
