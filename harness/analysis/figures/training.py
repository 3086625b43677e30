"""How the losses of the checkpoints fell: both streams of MARS, and what the other methods train."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from harness.analysis.data import Data
from harness.analysis.figures.base import Figure
from harness.analysis.figures.style import METHOD_STYLES, PAGE, display, new_figure, style
from harness.analysis.names import MODELS, VARIANTS
from harness.analysis.training import HELD_OUT, LOSS

NAME, TITLE = "training_loss", "Training loss"
MARS, MASKED, CLEAN = "mars", "masked", "clean"
STREAMS: dict[str, Any] = {MASKED: "-", CLEAN: (0, (2, 1.2))}
# What others train, in the order and words of the legend; cross-entropies, so in nats per token.
PARTS = {
    ("ar_sft", "ar"): "next token",
    ("block_diffusion", "masked"): "masked tokens",
    ("eagle", "soft"): "soft cross-entropy",
    ("eagle", "regression"): "",  # a distance between hidden states, no cross-entropy
}
LOOKS = (("#D55E00", "o"), ("#0072B2", "^"), ("#5B3A8C", "s"), ("#009E73", "D"), ("#CC79A7", "v"), ("#7F7F7F", "P"))
MOST = len(LOOKS)  # MARS checkpoints of a panel


def make(data: Data) -> list[Figure]:
    """The figure ``training_loss``: a row for each model that has logs, of the measured ones where there are any."""
    logs = data.training
    measured = set(data.results.cells["model"])
    logs = logs[logs["model"].isin(measured)] if measured & set(logs["model"]) else logs
    drawn = [_is_drawn(*pair) for pair in zip(logs["kind"], logs["part"], strict=True)]
    points = logs[np.array(drawn, dtype=bool)]  # also where there is none
    points = points.drop(columns=["path", "created"]).reset_index(drop=True)
    missing = "a training log: `python -m harness.train method=mars`"
    return [Figure(NAME, TITLE, "" if points.empty else _caption(points), points, draw, missing)]


def _is_drawn(kind: str, part: str) -> bool:
    if kind == MARS:
        return part in STREAMS
    return part not in (LOSS, HELD_OUT) and PARTS.get((kind, part)) != ""


def _caption(points: pd.DataFrame) -> str:
    begun = points.drop_duplicates(["model", "name"])
    made = ", ".join(
        f"{row.model}/{row.name_}" + (f" (from {row.init_from})" if isinstance(row.init_from, str) else "")
        for row in begun.rename(columns={"name": "name_"}).itertuples()
    )
    return (
        "Mean training loss in nats per token since the point before, over the tokens seen (copies of the layout not "
        "counted), both streams of MARS on the left: cross-entropy of the masked stream and of the clean one, which "
        "without the SFT loss is not trained and not measured. On the right what other methods train: each predicts "
        "something else, so their heights are not to be compared; EAGLE's soft cross-entropy has the entropy of the "
        f"target's prediction as its floor. One training of each checkpoint, so without intervals: {made}."
    )


def draw(points: pd.DataFrame) -> Drawing:
    """For each model MARS on the left, the others on the right, both on the same logarithmic axis."""
    models = list(dict.fromkeys(points["model"]))
    drawing, axes = new_figure(PAGE, 0.2 + 2.5 * len(models), rows=len(models), columns=2, sharex="row", sharey="row")
    for row, model in zip(axes, models, strict=True):
        part = points[points["model"] == model]
        _draw_mars(row[0], part[part["kind"] == MARS])
        _draw_others(row[1], part[part["kind"] != MARS])
        title = MODELS.get(model, model)
        for axis, what in zip(row, ("MARS", "other methods"), strict=True):
            axis.set_title(f"{title}: {what}", loc="left")
            axis.set(yscale="log", xlim=(0, None))
        row[0].set_ylabel("loss (nats / token)")
        row[0].yaxis.set_tick_params(which="minor", length=1.5)
    for axis in axes[-1]:
        axis.set_xlabel("million tokens seen")
    return drawing


def _draw_mars(axis: Axes, logs: pd.DataFrame) -> None:
    """A colour for each checkpoint, a line style for each stream."""
    handles = []
    logs = logs.sort_values(["block_size", "variant"], na_position="first", kind="stable")
    for (name, part), look in zip(logs.groupby("name", sort=False), LOOKS, strict=False):
        color, marker = look
        for stream, line in STREAMS.items():
            one = part[part["part"] == stream]
            if len(one):
                axis.plot(
                    one["tokens"].astype(float) / 1e6, one["value"].astype(float), color=color, marker=marker,
                    markersize=3, linestyle=line,
                )  # fmt: skip
        handles.append(Line2D([], [], color=color, marker=marker, markersize=3, label=_checkpoint(part.iloc[0], name)))
    if not handles:
        _say_nothing(axis)
        return
    streams = [
        Line2D([], [], color="#555555", linestyle=line, label=f"{stream} stream")
        for stream, line in STREAMS.items()
        if (logs["part"] == stream).any()
    ]
    axis.legend(handles=[*handles, *streams], loc="best", frameon=True, framealpha=0.9, edgecolor="none")


def _checkpoint(row: pd.Series, name: str) -> str:
    """What tells a checkpoint of MARS from others; its folder's name where this does not tell it."""
    block = "" if pd.isna(row["block_size"]) else f"B = {row['block_size']}"
    if pd.isna(row["variant"]):
        return block or str(name)
    variant = str(row["variant"])
    return ", ".join(filter(None, [block, VARIANTS.get(variant, variant.replace("_", " "))]))


def _draw_others(axis: Axes, logs: pd.DataFrame) -> None:
    order = {kind: i for i, kind in enumerate(METHOD_STYLES)}
    kinds = sorted(dict.fromkeys(logs["kind"]), key=lambda kind: order.get(kind, len(order)))
    for kind in kinds:
        for name, part in logs[logs["kind"] == kind].groupby("name", sort=False):
            _draw_other(axis, part, str(name))
    if kinds:
        axis.legend(loc="best")
    else:
        _say_nothing(axis)


def _draw_other(axis: Axes, logs: pd.DataFrame, name: str) -> None:
    """The parts of one checkpoint: one line each, labelled once where there are several alike (Medusa's heads)."""
    kind = str(logs["kind"].iloc[0])
    look = style(kind)
    parts = list(dict.fromkeys(logs["part"]))
    heads = len(parts)
    for i, part in enumerate(parts):
        one = logs[logs["part"] == part]
        label = _label(logs.iloc[0], name, str(part), heads) if i == 0 or not str(part).startswith("head_") else None
        axis.plot(
            one["tokens"].astype(float) / 1e6, one["value"].astype(float), color=look.color, marker=look.marker,
            markersize=3, linestyle=look.line, label=label, alpha=1 - 0.6 * i / heads,
            markerfacecolor=look.color if pd.isna(logs["variant"].iloc[0]) else "white",
        )  # fmt: skip


def _label(row: pd.Series, name: str, part: str, heads: int) -> str:
    known = PARTS.get((row["kind"], part), f"heads 1 to {heads}" if part.startswith("head_") else part)
    variant = None if pd.isna(row["variant"]) else str(row["variant"])
    block = "" if pd.isna(row["block_size"]) else f", B = {row['block_size']}"
    return f"{display(str(row['kind']), variant)}{block}: {known}"


def _say_nothing(axis: Axes) -> None:
    axis.text(0.5, 0.5, "no training log", ha="center", va="center", transform=axis.transAxes, color="#555555")
