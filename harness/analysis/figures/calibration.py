"""Confidence of MARS's predictions against how often the model confirms them, by the number of masks in between."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FixedLocator, NullFormatter

from harness.analysis.data import Data
from harness.analysis.figures.base import Figure
from harness.analysis.figures.style import PAGE, new_figure
from harness.analysis.names import MODELS, VARIANTS
from harness.results.stats import LEVEL, agresti_coull
from harness.results.tables import AVERAGE

NAME, TITLE = "calibration", "Calibration of MARS's predictions by the number of masks they were read through"
METHOD = "mars verified"
LINEAR, TAIL = "confidence", "doubt"  # the two ways of binning: by confidence, and by 1 − confidence on a log scale
MICRO = 10**6  # confidences are compared in millionths: they are stored to six decimals
# Upper ends of the bins in millionths: tenths of confidence, and half decades of 1 − confidence from 10⁻⁵ on.
LINEAR_EDGES = np.arange(1, 10) * MICRO // 10
TAIL_EDGES = np.array([round(10 ** (1 + k / 2)) for k in range(10)])
SINGLE = 3  # masks up to this number have a line each, further ones share: 4–7, 8–15, …
FEWEST = 10  # drafts of a bin that is plotted
RESAMPLES = 2_000
FLOOR = 1e-5  # of the tail's error axis: rates below are drawn there
LOOKS = (
    ("#0072B2", "o", "-"),
    ("#D55E00", "^", "--"),
    ("#000000", "s", ":"),
    ("#009E73", "D", "-."),
    ("#CC79A7", "v", (0, (5, 1))),
    ("#7F7F7F", "P", (0, (1, 2))),
)


def make(data: Data) -> list[Figure]:
    """The figure ``calibration``: a row for each model, block size and checkpoint that verified MARS was run with."""
    found = [points for cell in _cells(data) if not (points := _points(data.results.documents, cell)).empty]
    points = pd.concat(found, ignore_index=True) if found else pd.DataFrame()
    command = "python -m harness.run method=mars verify=true"
    return [Figure(NAME, TITLE, _caption(points), points, draw, f"cells of verified MARS: `{command}`")]


def _caption(points: pd.DataFrame) -> str:
    if points.empty:
        return ""
    cells = points.drop_duplicates(["key"])
    sizes = "; ".join(
        f"{row.model}, B = {row.block_size}: {row.documents} documents of {row.benchmarks}"
        for row in cells.itertuples()
    )
    return (
        "Accuracy is the share of predictions that the model's own next-token prediction confirmed, given the text "
        "before them: masks are calibrated against the model itself, not against right answers. A prediction is judged "
        "only where all before it in its block were right. m: masks between the last known token and the predicted "
        "one. Left: tenths of confidence; right: half decades of 1 − confidence, where most predictions lie, on "
        "logarithmic axes, with the error rate, 1 − accuracy; a bar without a marker is an upper bound, no error "
        "was seen; a bar that reaches the bottom holds no error at all. Below them: predictions in each bin. Dotted "
        "diagonal: calibrated; below it on the left and above "
        "it on the right: overconfident. Bars: 95 % intervals from resampling documents, no narrower than those of as "
        "many independent predictions (Agresti-Coull); markers of different m are moved aside a little. ECE: expected "
        "calibration error over the tenths, |accuracy − confidence| weighted by predictions, in points. Bins of fewer "
        f"than {FEWEST} predictions are not plotted but count in the ECE. {sizes}."
    )


def _cells(data: Data) -> Iterator[dict[str, Any]]:
    """Of each model, block size and variant of verified MARS the cell with most documents; of those the newest."""
    rows = data.usual[(data.usual["method"] == METHOD) & (data.usual["task"] != AVERAGE)]
    sizes = rows.drop_duplicates(["key", "task"]).groupby("key")["n"].sum()
    ranked = rows.assign(all=rows["key"].map(sizes)).sort_values(["all", "created", "key"], ascending=False)
    kept = ranked.drop_duplicates(["model", "block_size", "variant"])
    for row in kept.sort_values(["model", "block_size", "variant"]).to_dict("records"):
        yield {str(name): row[name] for name in ("key", "model", "block_size", "variant")}


def _points(documents: pd.DataFrame, cell: dict[str, Any]) -> pd.DataFrame:
    rows = documents[documents["key"] == cell["key"]]
    judged = _drafts(rows)
    if judged.empty:
        return pd.DataFrame()
    count = int(judged["document"].max()) + 1
    weights = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)  # [R, documents]
    about = {
        "key": cell["key"],
        "model": cell["model"],
        "block_size": int(cell["block_size"]),
        "variant": cell["variant"],
        "benchmarks": ", ".join(sorted({str(name) for name in rows["benchmark"]})),
        "documents": count,
    }
    found = []
    for (first, last), part in _by_masks(judged):
        masks = f"{first}" if first == last else f"{first}–{last}"
        found += [about | {"masks": masks} | row for row in binned(part, weights)]
    return pd.DataFrame(found)


def _drafts(rows: pd.DataFrame) -> pd.DataFrame:
    """Judged drafts of a cell, one row each: document (its number among those that have any), masks, confidence, right.

    Documents of older records, without drafts, or whose lists differ in length have none.
    """
    parts = []
    for depths, confidences, right in zip(
        rows["draft_depths"], rows["draft_confidences"], rows["draft_right"], strict=True
    ):
        lists = [[] if one is None or one is pd.NA else list(one) for one in (depths, confidences, right)]
        if lists[0] and len({len(one) for one in lists}) == 1:
            parts.append(lists)
    sizes = [len(part[0]) for part in parts]
    columns = [np.concatenate([part[i] for part in parts]) if parts else np.zeros(0) for i in range(3)]
    return pd.DataFrame({
        "document": np.repeat(np.arange(len(parts)), sizes), "masks": columns[0].astype(int),
        "confidence": columns[1].astype(float), "right": columns[2].astype(bool),
    })  # fmt: skip


def _by_masks(judged: pd.DataFrame) -> Iterator[tuple[tuple[int, int], pd.DataFrame]]:
    most, first = int(judged["masks"].max()), 1
    while first <= most:
        last = first if first <= SINGLE else min(2 * first - 1, most)
        part = judged[judged["masks"].between(first, last)]
        if len(part):
            yield (first, last), part
        first = last + 1


def binned(judged: pd.DataFrame, weights: np.ndarray) -> list[dict[str, Any]]:
    """Accuracy by confidence in both ways of binning, and the expected calibration error.

    Args:
        judged: columns document, confidence, right.
        weights: how often each document is drawn, ``[resamples, documents]``.

    Returns:
        A row for each bin with at least one draft; the ends of a bin are confidences. ``plotted``: it has enough.
    """
    micro = np.rint(judged["confidence"].to_numpy() * MICRO).astype(int)
    document, right = judged["document"].to_numpy(), judged["right"].to_numpy()
    rows, ece = [], (0.0, 0.0, 0.0)
    for scale, edges, value in ((LINEAR, LINEAR_EDGES, micro), (TAIL, TAIL_EDGES, MICRO - micro)):
        bins = np.searchsorted(edges, value, side="right")
        shape = (weights.shape[1], len(edges) + 1)

        def sums(of: np.ndarray, bins: np.ndarray = bins, shape: tuple[int, int] = shape) -> np.ndarray:
            """Totals ``[documents, bins]``."""
            return np.bincount(document * shape[1] + bins, of, shape[0] * shape[1]).reshape(shape)

        drafts, hits, total = sums(np.ones(len(bins))), sums(right), sums(judged["confidence"].to_numpy())
        n, k, c = drafts.sum(0), hits.sum(0), total.sum(0)
        drawn = [weights @ one for one in (drafts, hits, total)]  # [resamples, bins] each
        with np.errstate(invalid="ignore"):
            rates = drawn[1] / drawn[0]
        if scale == LINEAR:
            ece = _ece(n, k, c, drawn)
        ends = np.concatenate([[0], edges, [MICRO]]) / MICRO
        for i in np.flatnonzero(n):
            low, high = np.nanquantile(rates[:, i], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
            alone = agresti_coull(int(k[i]), int(n[i]))
            bounds = (ends[i], ends[i + 1]) if scale == LINEAR else (1 - ends[i + 1], 1 - ends[i])
            rows.append({
                "scale": scale, "bin_low": round(float(bounds[0]), 6), "bin_high": round(float(bounds[1]), 6),
                "drafts": int(n[i]), "confidence": c[i] / n[i], "accuracy": k[i] / n[i],
                "accuracy_low": min(float(low), alone[0]), "accuracy_high": max(float(high), alone[1]),
                "plotted": bool(n[i] >= FEWEST),
            })  # fmt: skip
    of_all = {"ece": ece[0], "ece_low": ece[1], "ece_high": ece[2], "all_drafts": len(judged)}
    return [row | of_all for row in rows]


def _ece(n: np.ndarray, k: np.ndarray, c: np.ndarray, drawn: list[np.ndarray]) -> tuple[float, float, float]:
    """Expected calibration error, Σ |hits − confidence| ÷ drafts over bins, with its percentile interval.

    Noise only adds to an error that cannot be negative, so resampled ones lie a little high: the interval is made to
    hold the estimate.
    """
    value = float(np.abs(k - c).sum() / n.sum())
    with np.errstate(invalid="ignore"):
        resampled = np.abs(drawn[1] - drawn[2]).sum(1) / drawn[0].sum(1)
    low, high = np.nanquantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return value, min(value, float(low)), max(value, float(high))


def draw(points: pd.DataFrame) -> Drawing:
    """Two reliability diagrams for each cell, with the number of predictions below each."""
    keys = list(dict.fromkeys(points["key"]))
    drawing, axes = new_figure(
        PAGE, 0.2 + 3.7 * len(keys), rows=2 * len(keys), columns=2, height_ratios=[3, 1] * len(keys)
    )
    for i, key in enumerate(keys):
        cell = points[points["key"] == key]
        _draw_linear(axes[2 * i, 0], axes[2 * i + 1, 0], cell[cell["scale"] == LINEAR], _heading(cell.iloc[0]))
        _draw_tail(axes[2 * i, 1], axes[2 * i + 1, 1], cell[cell["scale"] == TAIL])
    return drawing


def _heading(row: pd.Series) -> str:
    variant = "" if pd.isna(row["variant"]) else f", {VARIANTS.get(row['variant'], row['variant'])}"
    return f"MARS verified, {MODELS.get(row['model'], row['model'])}, B = {row['block_size']}{variant}"


def _lines(cell: pd.DataFrame) -> Iterator[tuple[pd.DataFrame, float, dict[str, Any]]]:
    """Bins of each m, how far aside it stands (−1 to 1), and its look."""
    groups = list(dict.fromkeys(cell["masks"]))
    for i, masks in enumerate(groups):
        color, marker, line = LOOKS[i % len(LOOKS)]
        aside = 0.0 if len(groups) == 1 else 2 * i / (len(groups) - 1) - 1
        part = cell[(cell["masks"] == masks) & cell["plotted"]].sort_values("confidence")
        yield part, aside, {"color": color, "marker": marker, "linestyle": line}


def _draw_linear(axis: Axes, below: Axes, cell: pd.DataFrame, heading: str) -> None:
    axis.plot([0, 1], [0, 1], color="#888888", linestyle=(0, (1, 1.5)), linewidth=0.9, zorder=1)
    for part, aside, look in _lines(cell):
        if part.empty:
            continue
        x = part["confidence"] + 0.009 * aside
        first = part.iloc[0]
        ece, low, high = (100 * first[name] for name in ("ece", "ece_low", "ece_high"))
        label = (
            f"m = {first['masks']}: ECE {ece:.1f} [{low:.1f}, {high:.1f}] points, {first['all_drafts']:,} predictions"
        )
        axis.vlines(x, part["accuracy_low"], part["accuracy_high"], color=look["color"], linewidth=0.8)
        axis.plot(x, part["accuracy"], label=label, linewidth=0.8, markersize=3.5, **look)
        below.plot(x, part["drafts"], linewidth=0.8, markersize=2.5, **look)
    axis.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), ylabel="accuracy (confirmed by the model)")
    axis.legend(
        title=heading, loc="lower left", bbox_to_anchor=(0, 1), alignment="left", borderaxespad=0.2, borderpad=0,
        title_fontsize=8,
    )  # fmt: skip
    axis.tick_params(labelbottom=False)
    below.set(xlim=(-0.03, 1.03), yscale="log", ylabel="predictions", xlabel="confidence")
    _whole_decades(below, cell)


def _draw_tail(axis: Axes, below: Axes, cell: pd.DataFrame) -> None:
    axis.plot([FLOOR / 10, 1], [FLOOR / 10, 1], color="#888888", linestyle=(0, (1, 1.5)), linewidth=0.9, zorder=1)
    for part, aside, look in _lines(cell):
        x = (1 - part["confidence"]).clip(lower=1 / MICRO) * 10 ** (0.05 * aside)
        low, high = (1 - part["accuracy_high"]).clip(lower=FLOOR), (1 - part["accuracy_low"]).clip(lower=FLOOR)
        error = 1 - part["accuracy"]
        axis.vlines(x, low, high, color=look["color"], linewidth=0.8)
        none = error <= 0
        axis.plot(x[none], high[none], linestyle="none", marker="_", markersize=5, color=look["color"])
        axis.plot(x, error.mask(none), linewidth=0.8, markersize=3.5, **look)
        below.plot(x, part["drafts"], linewidth=0.8, markersize=2.5, **look)
    for one in (axis, below):
        one.set(xscale="log", yscale="log", xlim=(1.3, 1.6e-6))  # certain predictions on the right, as on the left
        one.xaxis.set_major_locator(FixedLocator([10.0**-k for k in range(6)]))
        one.xaxis.set_minor_formatter(NullFormatter())
    axis.set(ylim=(FLOOR, 1.5), ylabel="error rate (1 − accuracy)")
    axis.set_title("the same near certainty, logarithmic", loc="left")
    for x, y, side, ha, va in ((0.98, 0.96, "over", "right", "top"), (0.02, 0.04, "under", "left", "bottom")):
        axis.text(
            x, y, f"{side}confident", ha=ha, va=va, transform=axis.transAxes, color="#555555", size=7,
            bbox={"fc": "white", "ec": "none", "pad": 1},
        )  # fmt: skip
    axis.tick_params(labelbottom=False)
    below.set(xlabel="1 − confidence")
    _whole_decades(below, cell)


def _whole_decades(axis: Axes, cell: pd.DataFrame) -> None:
    """Counts from the fewest plotted up to a power of ten."""
    axis.set_ylim(FEWEST / 2, 10 ** math.ceil(math.log10(cell["drafts"].max() + 1)))
    axis.yaxis.set_minor_formatter(NullFormatter())
