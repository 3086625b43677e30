"""Every column of the frames in one place: its type, its unit and what it means.

Types are pandas' nullable ones, so that what a record does not know is ``<NA>`` and never a 0 or an empty text.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa

TEXT, WHOLE, NUMBER, TRUTH, TIME = "text", "whole", "number", "truth", "time"
WHOLES, NUMBERS, TRUTHS = "list of whole numbers", "list of numbers", "list of truth values"
_ARROW = {
    WHOLE: pa.int64(), NUMBER: pa.float64(), TEXT: pa.string(),
    WHOLES: pa.list_(pa.int64()), NUMBERS: pa.list_(pa.float64()), TRUTHS: pa.list_(pa.bool_()),
}  # fmt: skip
_PANDAS = {WHOLE: "Int64", NUMBER: "Float64", TRUTH: "boolean", TEXT: "string", TIME: "datetime64[us, UTC]"}


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: a name that ends in ``*`` stands for a family of columns, of which a frame has as many as it needs.
        kind: what its values are.
        unit: "" where there is none; "fraction" is 0 to 1.
        repeats: a text that many rows share, kept as a category where it stands beside documents.
    """

    name: str
    kind: str
    unit: str
    meaning: str
    repeats: bool = False

    def dtype(self, frame: str) -> Any:
        """The pandas type that it has in a frame ("cells", "tasks", "documents")."""
        if self.repeats and frame == DOCUMENTS:
            return "category"
        return pd.ArrowDtype(_ARROW[self.kind]) if self.kind in (WHOLES, NUMBERS, TRUTHS) else _PANDAS[self.kind]

    @property
    def arrow(self) -> pa.DataType:
        """The type that it is read as from Parquet."""
        return _ARROW[self.kind]

    def is_named(self, name: str) -> bool:
        """Whether a frame's column is this one, or one of this family."""
        return name.startswith(self.name[:-1]) if self.name.endswith("*") else name == self.name


CELLS, TASKS, DOCUMENTS, PROBLEMS = "cells", "tasks", "documents", "problems"


def _text(name: str, meaning: str) -> Column:
    return Column(name, TEXT, "", meaning, repeats=True)


# What tells cells apart: in every frame, of documents as categories.
IDENTIFYING = (
    _text("key", "run key, the hash of everything that can change the cell's output"),
    _text("method", "decoding method; `NAME verified` where it commits what the model confirms, at any confidence"),
    Column("tau", NUMBER, "of the confidence", "confidence threshold; none where the method has none or verifies"),
    Column("block_size", WHOLE, "tokens", "B, tokens predicted together"),
    _text("confidence", "probability, margin or entropy (nats); none where tau is none"),
    Column("temperature", NUMBER, "", "0: greedy; none: a method that cannot sample"),
    _text("options", "the method's other axes, `name=value, …`, those at their default too"),
    _text("model", "name of the base model"),
    _text("variant", "which checkpoint of the method: none (its default), base (untuned), no_sft_loss, …"),
    _text("alignment", "training alignment of the checkpoint: paper or released"),
    _text("suite", "name of the suite that ran"),
    _text("benchmark", "the benchmark (`group` in documents.parquet); `average` in the row of the whole suite"),
    Column("limit", WHOLE, "documents", "documents of each task at most; none: all"),
    Column("seed", WHOLE, "", "seed of the run"),
    _text("dtype", "type of weights and activations"),
    _text("cache", "cursor, block or none"),
)  # fmt: skip

_COUNTS = (
    Column("new_tokens", WHOLE, "tokens", "committed tokens, EOS included and nothing after it"),
    Column("prompt_tokens", WHOLE, "tokens", "tokens of the prompts"),
    Column("target_forwards", WHOLE, "forwards", "forwards of the target; reading a prompt is one"),
    Column("draft_forwards", WHOLE, "forwards", "forwards of a model that drafts"),
    Column("positions", WHOLE, "positions", "window positions that the target's forwards were fed"),
    Column("draft_positions", WHOLE, "positions", "positions that a drafting model was fed"),
)
_SPEED = (
    Column("tokens_per_forward", NUMBER, "tokens / forward", "ratio of sums, exactly 1 of greedy AR; none without any"),
    Column("mean_tokens", NUMBER, "tokens", "mean length of an answer; none without answers"),
    Column("median_tokens", NUMBER, "tokens", "median length of an answer; none without answers, and in older records"),
    Column("cut_share", NUMBER, "fraction", "answers that ended at the token limit or the end of the model's context"),
)  # fmt: skip
_SCORE = (
    _text("metric", "headline metric, lm-eval's `name,filter`"),
    Column(
        "score", NUMBER, "fraction", "mean of the headline metric; of a suite, plain mean of its benchmarks' scores"
    ),
    Column("score_low", NUMBER, "fraction", "lower end of the score's 95 % interval"),
    Column("score_high", NUMBER, "fraction", "upper end of the score's 95 % interval"),
)
_METRICS = Column("metric.*", NUMBER, "of the metric", "another metric, lm-eval's `name,filter`; none elsewhere")
_PATH = Column("path", TEXT, "", "the cell's folder", repeats=True)

COLUMNS: dict[str, tuple[Column, ...]] = {
    CELLS: (
        *IDENTIFYING,
        Column("is_average", TRUTH, "", "the row of the whole suite, which stands beside those of its benchmarks"),
        Column("axis.*", TEXT, "", "one of the method's other axes, as in `options`"),
        _text("model_family", "the model's name without its size"),
        Column("model_parameters", NUMBER, "parameters", "the model's size as its name tells it, so roughly"),
        _text("draft_model", "the model that drafted"),
        _text("checkpoint", "hash of the trained weights; none: the base as it comes"),
        _text("checkpoint_kind", "the method whose training made the checkpoint"),
        Column("checkpoint_steps", WHOLE, "steps", "optimiser steps of its last training"),
        Column("checkpoint_tokens", WHOLE, "tokens", "tokens that its last training saw"),
        Column("max_gen_toks", WHOLE, "tokens", "limit of an answer; none: each task's own"),
        Column("cache_block", WHOLE, "tokens", "block of the block cache; none with other caches"),
        _text("accept_limit", "what bounds the tokens that one forward commits: block_size or cache_block"),
        Column("batch_size", WHOLE, "rows", "documents decoded together"),
        _text("device", "cpu, cuda or cuda:N; `auto` is told as what it found"),
        _text("hardware", "the GPU, or without one the processor"),
        Column("threads", WHOLE, "threads", "CPU threads"),
        *_SCORE,
        _text("how", "how the interval was made"),
        Column("n", WHOLE, "documents", "documents that were scored"),
        Column("generated", WHOLE, "documents", "documents that were answered with text, not only scored"),
        *_COUNTS,
        *_SPEED,
        Column("context_share", NUMBER, "fraction", "the part of cut_share that the model's context cut"),
        Column("tokens_per_forward_task_mean", NUMBER, "tokens / forward",
               "mean of the tasks' ratios, as the paper averages; of a suite, of its benchmarks'"),
        Column("equivalent_forwards", NUMBER, "forwards", "target forwards, plus draft forwards times draft_cost"),
        Column("tokens_per_equivalent_forward", NUMBER, "tokens / forward", "ratio of sums; depends on the machine"),
        Column("draft_cost", NUMBER, "forwards", "seconds of a draft forward over those of a target forward"),
        Column("positions_per_token", NUMBER, "positions / token", "ratio of sums: the price of wide windows"),
        Column("draft_positions_per_token", NUMBER, "positions / token", "the same of the drafting model"),
        Column("tokens_per_second", NUMBER, "tokens / s", "wall-clock, on this machine at this batch size"),
        Column("seconds", NUMBER, "s", "of all forwards, prompts included; a forward that rows share counts once"),
        Column("acceptance_counts", WHOLES, "forwards", "how many forwards committed 0, 1, 2, … tokens"),
        _METRICS,
        Column("task_version", TEXT, "", "version of the benchmark's definition", repeats=True),
        Column("num_fewshot", WHOLE, "examples", "solved examples in the prompt"),
        _text("data_hash", "hash of the benchmark's documents; of several files, of their hashes"),
        Column("method_version", WHOLE, "", "raised by hand when the method's output can change"),
        Column("engine_version", WHOLE, "", "the same of the engine"),
        Column("created", TIME, "UTC", "when the cell finished"),
        _text("git_revision", "commit of the code that ran"),
        Column("dirty", TRUTH, "", "tracked files differed from that commit"),
        _text("lm_eval", "version of lm-eval"),
        _text("torch", "version of torch"),
        _text("transformers", "version of transformers"),
        Column("command", TEXT, "", "the command line"),
        _PATH,
    ),
    TASKS: (
        *IDENTIFYING,
        _text("task", "task or subtask of the benchmark"),
        *_SCORE,
        Column("n", WHOLE, "documents", "documents that were scored; none in older records"),
        *_SPEED,
    ),
    DOCUMENTS: (
        *IDENTIFYING,
        _text("task", "task or subtask of the benchmark"),
        Column("doc_id", WHOLE, "", "the document's place in its task"),
        Column("score", NUMBER, "fraction", "headline metric"),
        _METRICS,
        *_COUNTS,
        Column("drafted", WHOLE, "tokens", "tokens proposed beyond the guaranteed one of each forward"),
        Column("accepted", WHOLE, "tokens", "of these, committed"),
        Column("prefill_seconds", NUMBER, "s", "whole time of the forwards that read its prompt, shared or not"),
        Column("decode_seconds", NUMBER, "s", "the same of the forwards after it"),
        Column("share_seconds", NUMBER, "s", "this document's share of all its forwards; they add up"),
        Column("target_seconds", NUMBER, "s", "its share of the target's forwards after the prompt's"),
        Column("draft_seconds", NUMBER, "s", "its share of the drafting"),
        Column("timed_forwards", WHOLE, "forwards", "those that target_seconds are of; none in older records"),
        Column("timed_draft_forwards", WHOLE, "forwards", "those that draft_seconds are of; likewise"),
        _text("finish_reason", "eos, stop, length, context, or scored where nothing was generated"),
        # texts=True
        Column("text", TEXT, "", "the answer; of a gated benchmark in base64, as it is on disk"),
        Column("extracted", TEXT, "", "what the filter took from it"),
        Column("target", TEXT, "", "the right answer"),
        Column("prompt_hash", TEXT, "", "hash of the prompt"),
        # lists=…
        Column("acceptance_lengths", WHOLES, "tokens", "tokens that each forward committed"),
        Column("token_ids", WHOLES, "", "the answer's tokens"),
        Column("token_ends", WHOLES, "characters", "where in the text each token ends; none in older records"),
        Column("confidences", NUMBERS, "of the confidence", "of the committed tokens, where the method has it"),
        Column("draft_depths", WHOLES, "tokens", "of judged drafts of verified MARS: masks they were read through"),
        Column("draft_confidences", NUMBERS, "of the confidence", "the confidence that they were proposed with"),
        Column("draft_right", TRUTHS, "", "whether the model confirmed them"),
        Column("loglikelihoods", NUMBERS, "nats", "of each choice, where the document was scored by them"),
        Column("is_greedy", TRUTHS, "", "whether greedy decoding would have given the choice"),
    ),
    PROBLEMS: (
        Column("path", TEXT, "", "file or folder that was skipped"),
        Column("reason", TEXT, "", "why"),
    ),
}  # fmt: skip
TEXTS = ("text", "extracted", "target", "prompt_hash")
LISTS = (
    "acceptance_lengths", "token_ids", "token_ends", "confidences", "draft_depths", "draft_confidences", "draft_right",
    "loglikelihoods", "is_greedy",
)  # fmt: skip


def fit(column: Column, value: Any) -> Any:
    """A record's value, checked against its column; None is what the record does not know.

    Raises:
        ValueError: of another type than the column's, or not finite.
    """
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if column.kind == NUMBER and is_number and math.isfinite(value):
        return float(value)
    if column.kind == WHOLE and is_number and float(value).is_integer() and abs(value) < 2**63:
        return int(value)
    if column.kind == TRUTH and isinstance(value, bool):
        return value
    if column.kind == TEXT and isinstance(value, str):
        return value
    if (
        column.kind == WHOLES
        and isinstance(value, list)
        and all(type(one) is int and 0 <= one < 2**63 for one in value)
    ):
        return value
    if column.kind == TIME and isinstance(value, str):
        return pd.Timestamp(value).tz_convert("UTC").as_unit("us")
    raise ValueError(f"{column.name} is {str(value)[:80]!r}, not a {column.kind}")


def columns(frame: str, names: Sequence[str]) -> dict[str, Column]:
    """The columns that a frame has, in order; families spelled out by the names that occur, sorted.

    Args:
        names: those of families that the rows have, others are ignored.
    """
    found: dict[str, Column] = {}
    for column in COLUMNS[frame]:
        if column.name.endswith("*"):
            found |= {name: column for name in sorted(set(names)) if name not in found and column.is_named(name)}
        else:
            found[column.name] = column
    return found


def make_frame(frame: str, rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A frame with every column of its schema, in its order; what a row lacks is ``<NA>``."""
    wanted = columns(frame, [name for row in rows for name in row])
    return pd.DataFrame(
        {name: pd.Series([row.get(name) for row in rows], dtype=one.dtype(frame)) for name, one in wanted.items()}
    )


def plain_rows(data: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Rows of a frame with None for what is missing."""
    for record in data.to_dict("records"):
        yield {
            str(k): None if v is pd.NA or v is pd.NaT or (isinstance(v, float) and v != v) else v
            for k, v in record.items()
        }


def mismatches(frame: str, data: pd.DataFrame) -> list[str]:
    """What in a frame is not as the schema says: a column that it does not describe, or of another type."""
    wanted = {name: column.dtype(frame) for name, column in columns(frame, list(data.columns)).items()}
    found = [f"{name}: not described" for name in data.columns if name not in wanted]
    types = {name: str(dtype) for name, dtype in data.dtypes.items()}
    found += [f"{k}: {types[k]}, not {v}" for k, v in wanted.items() if k in types and types[k] != str(v)]
    return found


def describe(frame: str, names: Sequence[str], width: int = 110) -> str:
    """Name, type, unit and meaning of each column."""
    lines = [frame]
    for name, column in columns(frame, names).items():
        if name in names:
            told = (str(column.dtype(frame)).removesuffix("[pyarrow]"), column.unit, column.meaning)
            text = f"  {name:<30} " + " · ".join(part for part in told if part)
            lines += textwrap.wrap(text, width, subsequent_indent=" " * 33, drop_whitespace=True)
    return "\n".join(lines)
