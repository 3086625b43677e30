"""How many tokens each forward committed: a histogram for every method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from harness.analysis.data import Data
from harness.analysis.figures.base import Figure
from harness.analysis.figures.style import METHOD_STYLES, PAGE, display, new_figure, panel_title, style
from harness.analysis.published import FORWARD
from harness.results.tables import AVERAGE

NAME, TITLE = "acceptance_lengths", "Tokens committed by one forward"
LONGEST = 20  # tokens: what is longer is counted with it
COLUMNS = (4, 5)  # histograms beside each other: of these what needs fewer rows
Z = 1.959964  # of a two-sided 95 % interval
TAU = 0.95  # the default: of a method's settings the nearest is shown
GROUP = ("model", "task", "method", "block_size", "target", "draft")


def make(data: Data) -> list[Figure]:
    """The figure ``acceptance_lengths``: for each model and benchmark a histogram of each method and block size."""
    found = [row for cell in _cells(data) for row in _histogram(data.results.documents, cell)]
    points = pd.DataFrame(found)
    caption = "" if points.empty else _caption(points)
    missing = "any finished cell that generates text: `python -m harness.run`"
    return [Figure(NAME, TITLE, caption, points, draw, missing)]


def _caption(points: pd.DataFrame) -> str:
    sizes = sorted({int(n) for n in points["documents"]})
    documents = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    pooled = f" {LONGEST}+ stands for {LONGEST} or more." if points["or_more"].any() else ""
    return (
        f"Share of the target's forwards that committed so many tokens, over all forwards of {documents} documents, "
        f"the prompts' included.{pooled} Triangle and dashed line: the mean, which is tokens per forward; above each "
        "histogram, with its 95 % interval over documents (ratio estimator with linearised error). Of the settings of "
        f"a method the one nearest to τ = {TAU:g} is shown, by the top probability, of the default checkpoint where "
        "there is one." + (" Speculative: target/draft." if points["target"].notna().any() else "")
    )


def _cells(data: Data) -> Iterator[dict[str, Any]]:
    """Of each ``GROUP`` the cell to show, in the order of the panels."""
    rows = data.usual[(data.usual["metric"] == FORWARD) & (data.usual["task"] != AVERAGE)].copy()
    rows["far"] = (rows["tau"] - TAU).abs().fillna(0)
    rows["other"] = rows["confidence"].notna() & (rows["confidence"] != "probability")
    rows["variation"] = rows["variant"].notna()
    rows["no_cursor"] = rows["cache"] != "cursor"
    rows["fewer"] = -rows["n"]
    order = ["variation", "other", "far", "no_cursor", "fewer"]
    rows = rows.sort_values(["created", "key"], ascending=False).sort_values(order, kind="stable")
    rows = rows.drop_duplicates(list(GROUP))
    methods = {name: i for i, name in enumerate(METHOD_STYLES)}
    rows["rank"] = rows["method"].map(methods).fillna(len(methods))
    for row in rows.sort_values(["model", "task", "rank", "method", "block_size", "target", "draft"]).to_dict(
        "records"
    ):
        yield {str(name): None if pd.isna(value) else value for name, value in row.items()}


def _histogram(documents: pd.DataFrame, cell: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each length that occurs in a cell's benchmark, shorter ones that do not occur included."""
    rows = documents[(documents["key"] == cell["key"]) & (documents["benchmark"] == cell["task"])]
    lengths = [np.asarray(one, dtype=int) for one in rows["acceptance_lengths"] if one is not pd.NA and len(one)]
    if not lengths:
        return
    mean, low, high = mean_length(np.array([one.sum() for one in lengths]), np.array([len(one) for one in lengths]))
    every = np.concatenate(lengths)
    counts = np.bincount(np.minimum(every, LONGEST))
    about = {"key": cell["key"], "model": cell["model"], "benchmark": cell["task"], "method": cell["method"]}
    about |= {name: cell[name] for name in ("variant", "tau", "block_size", "target", "draft")}
    about |= {"documents": len(lengths), "forwards": len(every), "mean": mean, "mean_low": low, "mean_high": high}
    for length, count in enumerate(counts.tolist()):
        pooled = length == LONGEST and int(every.max()) > LONGEST
        yield about | {"length": length, "or_more": pooled, "count": count, "share": count / len(every)}


def mean_length(tokens: np.ndarray, forwards: np.ndarray) -> tuple[float, float, float]:
    """Tokens per forward, a ratio of sums over documents, with its 95 % interval.

    Documents vary, forwards within one do not vary independently: the error is that of a ratio estimator, the residuals
    tokens − ratio · forwards of the documents (Cochran 1977, chapter 6). Of one document the interval is unknown: NaN.

    Args:
        tokens, forwards: of each document.
    """
    ratio = float(tokens.sum() / forwards.sum())
    n = len(tokens)
    if n < 2:
        return ratio, float("nan"), float("nan")
    residuals = tokens - ratio * forwards
    error = float(np.sqrt((residuals**2).sum() * n / (n - 1)) / forwards.sum())
    return ratio, ratio - Z * error, ratio + Z * error


def draw(points: pd.DataFrame) -> Drawing:
    """A block of histograms for each model and benchmark."""
    blocks = [part for _, part in points.groupby(["model", "benchmark"], sort=False)]
    panels = [[one for _, one in block.groupby("key", sort=False)] for block in blocks]
    columns = min(COLUMNS, key=lambda n: sum(-(-len(block) // n) for block in panels))
    rows = [-(-len(block) // columns) for block in panels]
    drawing, axes = new_figure(PAGE, 0.35 + 1.55 * sum(rows), rows=sum(rows), columns=columns, sharey=True)
    top = 0
    for block, height in zip(panels, rows, strict=True):
        longest = max(int(panel["length"].max()) for panel in block)
        is_zero = any(panel.loc[panel["length"] == 0, "count"].sum() for panel in block)
        for place in range(height * columns):
            axis = axes[top + place // columns, place % columns]
            if place < len(block):
                _draw_histogram(axis, block[place], longest, 0 if is_zero else 1)
                if place % columns == 0:
                    axis.set_ylabel("% of forwards")
                if place + columns >= len(block):
                    axis.set_xlabel("tokens committed")
            else:
                axis.set_axis_off()
        first = block[0].iloc[0]
        if len(blocks) > 1:
            axes[top, 0].annotate(
                panel_title(first["model"], first["benchmark"]), (0, 1), (0, 33), "axes fraction",
                textcoords="offset points", weight="bold", va="bottom",
            )  # fmt: skip
        top += height
    return drawing


def _draw_histogram(axis: Axes, panel: pd.DataFrame, longest: int, shortest: int) -> None:
    first = panel.iloc[0]
    color = style(first["method"]).color
    axis.bar(panel["length"], 100 * panel["share"], width=0.8, color=color, edgecolor="#333333", linewidth=0.4)
    across = axis.get_xaxis_transform()
    axis.axvline(first["mean"], color="#333333", linestyle=(0, (3, 2)), linewidth=0.9, zorder=0.9)
    axis.plot(first["mean"], 1.0, marker="v", color="#333333", transform=across, clip_on=False, zorder=3)
    interval = "" if pd.isna(first["mean_low"]) else f" [{first['mean_low']:.2f}, {first['mean_high']:.2f}]"
    axis.set_title(f"{_name(first)}\n{first['mean']:.2f}{interval}", loc="left", fontsize=7)
    axis.set(xlim=(shortest - 0.6, longest + 0.6), ylim=(0, 104))
    step = 1 if longest - shortest < 8 else 2 if longest - shortest < 12 else 5
    ticks = [one for one in range(shortest, longest + 1) if one % step == 0 or one == shortest]
    is_pooled = longest == LONGEST and panel["or_more"].any()
    axis.set_xticks(ticks, [f"{one}+" if is_pooled and one == LONGEST else f"{one}" for one in ticks])
    axis.grid(False, axis="x")


def _name(row: pd.Series) -> str:
    """A panel's method, with what tells it from other panels below it: block size, tau; who drafts for whom beside."""
    name = display(str(row["method"]), None if pd.isna(row["variant"]) else str(row["variant"]))
    if not pd.isna(row["target"]):
        name += " " + "/".join(display(str(row[side])).removesuffix(" SFT") for side in ("target", "draft"))
    settings = [f"B = {row['block_size']:g}"] if not pd.isna(row["block_size"]) else []
    settings += [f"τ = {row['tau']:g}"] if not pd.isna(row["tau"]) else []
    return "\n".join(filter(None, [name, ", ".join(settings)]))
