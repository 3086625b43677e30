"""One cell on disk, read and checked: its rows for the frames, or the reason why it is not used.

Only the footer of the documents is read here: their types and number have to fit the record.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.analysis import schema
from harness.results.keys import run_key
from harness.results.records import DOCUMENT_TYPES, Record, Speed
from harness.results.stats import Interval
from harness.results.tables import AVERAGE

# What no documents are without; others are missing in older ones.
REQUIRED = (
    "task", "doc_id", "group", "score", "new_tokens", "prompt_tokens", "target_forwards", "draft_forwards", "positions",
    "draft_positions", "share_seconds", "finish_reason",
)  # fmt: skip
METRIC = "metric."
_OWN_COLUMNS = ("tau", "block_size", "confidence", "verify", "temperature")
_RATIOS = (
    "tokens_per_forward", "tokens_per_forward_task_mean", "tokens_per_equivalent_forward", "positions_per_token",
    "draft_positions_per_token", "tokens_per_second",
)  # fmt: skip
_SUMS = (
    "new_tokens", "prompt_tokens", "target_forwards", "draft_forwards", "positions", "draft_positions",
    "equivalent_forwards", "seconds", "generated",
)  # fmt: skip
_KNOWN = ("method", "model", "suite", "metric", "score", "how", *_SUMS)  # of every record
_MEASURES = ("mean_tokens", "median_tokens", "cut_share", "context_share", "draft_cost", "acceptance_counts")
_SIZE = re.compile(r"[-_](\d+(?:\.\d+)?)([kmb])(?![a-z0-9])", re.IGNORECASE)
_UNITS = {"k": 1e3, "m": 1e6, "b": 1e9}


class Damage(Exception):
    """Why a file is not used; its text says it in words."""


@dataclass(frozen=True)
class LoadedCell:
    """A healthy cell.

    Attributes:
        path: its folder, as it was found.
        record: without measurements: what choosing its reference needs.
        rows, tasks: of the frames ``cells`` and ``tasks``.
        num_documents: rows of ``documents.parquet``.
        digest: of the record's text, by which copies are known.
    """

    path: str
    record: Record
    rows: list[dict[str, Any]]
    tasks: list[dict[str, Any]]
    num_documents: int
    digest: str

    @property
    def key(self) -> str:
        """Its run key."""
        return self.record.key


def read_cell(path: Path) -> LoadedCell:
    """Read a cell's record and check it and the footer of its documents.

    Raises:
        Damage: anything that keeps the cell from being used.
    """
    try:
        str(path).encode()
        content = (path / "record.json").read_bytes()
    except UnicodeEncodeError:
        raise Damage("the name of its folder is not UTF-8") from None
    except OSError as error:
        raise Damage(f"record.json cannot be read: {error.strerror}") from None
    try:
        data = json.loads(content)
        json.dumps(data, ensure_ascii=False).encode()  # halves of characters are no text
    except (ValueError, RecursionError) as error:
        raise Damage(f"record.json is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise Damage("record.json is not a record")
    try:
        record = Record.from_dict(data)
        key = run_key(record.identity)
        if record.key != key:
            raise Damage(f"its key {record.key} is not the hash of its identity, {key}")
        rows, tasks = _rows(record, str(path)), _tasks(record)
    except KeyError as error:
        raise Damage(f"record.json lacks {error}") from None
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise Damage(f"record.json is not a record that is known here: {error}") from None
    num_documents = _check_documents(path / "documents.parquet")
    if num_documents != record.speed.documents:
        raise Damage(f"documents.parquet has {num_documents} documents, its record {record.speed.documents}")
    return LoadedCell(str(path), _slim(record), rows, tasks, num_documents, hashlib.sha256(content).hexdigest())


def _check_documents(path: Path) -> int:
    """Number of documents.

    Raises:
        Damage: the file is missing or no Parquet, or a column is missing or of the wrong type.
    """
    try:
        with pq.ParquetFile(path) as file:
            found, count = file.schema_arrow, int(file.metadata.num_rows)
    except FileNotFoundError:
        raise Damage("documents.parquet is missing") from None
    except (OSError, ValueError, pa.ArrowException) as error:
        raise Damage(f"documents.parquet cannot be read: {error}") from None
    if missing := [name for name in REQUIRED if name not in found.names]:
        raise Damage(f"documents.parquet lacks {', '.join(missing)}")
    for field in found:
        wanted = "double" if field.name.startswith(METRIC) else DOCUMENT_TYPES.get(field.name)
        if wanted is not None and not _is_like(field.type, wanted):
            raise Damage(f"documents.parquet has {field.name} as {field.type}, not {wanted}")
    return count


def _is_like(found: pa.DataType, wanted: str) -> bool:
    """Whether a column can be taken for a declared type: another width is no other type, nor is a column of nulls."""
    if pa.types.is_null(found):
        return True
    if wanted.startswith("list<"):
        is_list = pa.types.is_list(found) or pa.types.is_large_list(found)
        return is_list and _is_like(found.value_type, wanted[len("list<") : -1])
    if wanted == "double":
        return pa.types.is_floating(found) or pa.types.is_integer(found)
    if wanted == "int64":
        return bool(pa.types.is_integer(found))
    if wanted == "bool":
        return bool(pa.types.is_boolean(found))
    return bool(pa.types.is_string(found) or pa.types.is_large_string(found))


def _slim(record: Record) -> Record:
    """The record without what makes thousands of them large."""
    return Record(
        record.key, record.identity, {"variant": record.config["variant"]}, {}, record.speed, created=record.created
    )


def _rows(record: Record, path: str) -> list[dict[str, Any]]:
    """The cell's rows of the frame ``cells``: one for each benchmark, and one for all where there are several."""
    if not record.benchmarks:
        raise ValueError("no benchmark was measured")
    if AVERAGE in record.benchmarks:
        raise ValueError(f"a benchmark is called {AVERAGE}, as the mean of benchmarks is")
    if not isinstance(record.created, str):
        raise ValueError("created is no text")
    shared = _shared(record) | {"path": path}
    suite = record.identity["suite"].get("tasks", {})
    rows = []
    for name, one in record.benchmarks.items():
        own = _measured(one.score, one.speed) | {"benchmark": name, "metric": one.metric, "is_average": False}
        own |= {METRIC + metric: value for metric, value in one.metrics.items()}
        rows.append(shared | own | _definition(suite.get(name, {})))
    if len(rows) > 1:
        own = {"benchmark": AVERAGE, "metric": "mean of benchmarks", "is_average": True}
        data = {name: one.get("data") for name, one in suite.items()}
        rows.append(shared | _measured(record.average, record.speed) | own | {"data_hash": run_key(data)})
    return _fitted(schema.CELLS, rows)


def _tasks(record: Record) -> list[dict[str, Any]]:
    """The cell's rows of the frame ``tasks``."""
    shared = {column.name: _identifying(record).get(column.name) for column in schema.IDENTIFYING}
    rows = [
        shared
        | {
            "benchmark": name, "task": task, "metric": benchmark.metric, "score": one.score, "score_low": one.low,
            "score_high": one.high, "n": one.documents, "tokens_per_forward": one.tokens_per_forward,
            "mean_tokens": one.mean_tokens, "median_tokens": one.median_tokens, "cut_share": one.cut_share,
        }
        for name, benchmark in record.benchmarks.items()
        for task, one in benchmark.tasks.items()
    ]  # fmt: skip
    return _fitted(schema.TASKS, rows)


def _fitted(frame: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    wanted = schema.columns(frame, [name for row in rows for name in row])
    for row in rows:
        if unknown := [name for name in _KNOWN if name in row and row[name] is None]:
            raise ValueError(f"{', '.join(unknown)} of {row['benchmark']} is null")
    return [{name: schema.fit(wanted[name], value) for name, value in row.items()} for row in rows]


def _identifying(record: Record) -> dict[str, Any]:
    """What tells the cell from others."""
    identity, config = record.identity, record.config
    axes = identity["method"]["axes"]
    is_verified = bool(axes.get("verify"))
    return {
        "key": record.key,
        "method": identity["method"]["name"] + (" verified" if is_verified else ""),
        "tau": None if is_verified else axes.get("tau"),
        "block_size": axes.get("block_size"),
        "confidence": None if is_verified else axes.get("confidence"),
        "temperature": axes.get("temperature"),
        "options": ", ".join(f"{name}={value}" for name, value in _options(axes)) or None,
        "model": identity["model"]["model"],
        "variant": config["variant"],
        "alignment": (record.checkpoint or {}).get("alignment") or config.get("alignment"),
        "suite": config["suite"]["name"],
        "limit": identity["suite"]["limit"],
        "seed": identity["seed"],
        "dtype": identity["model"]["dtype"],
        "cache": identity["cache"]["mode"],
    }


def _options(axes: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Axes without a column of their own, that are set, as the command line has them."""
    for name, value in axes.items():
        if name not in _OWN_COLUMNS and value is not None:
            yield name, value if isinstance(value, str) else json.dumps(value)


def _shared(record: Record) -> dict[str, Any]:
    """What all rows of the cell have in common."""
    identity, config, provenance = record.identity, record.config, record.provenance
    weights, made = identity["model"], record.checkpoint or {}
    family, parameters = model_size(weights["model"])
    hardware, versions, git = (provenance.get(name) or {} for name in ("hardware", "versions", "git"))
    device = config.get("device")
    command = provenance.get("command")
    return _identifying(record) | {
        **{f"axis.{name}": value for name, value in _options(identity["method"]["axes"])},
        "model_family": family,
        "model_parameters": parameters,
        "draft_model": (weights.get("companions") or {}).get("draft", {}).get("model"),
        "checkpoint": (weights.get("checkpoint") or {}).get("hash"),
        "checkpoint_kind": made.get("kind"),
        "checkpoint_steps": made.get("steps"),
        "checkpoint_tokens": made.get("tokens"),
        "max_gen_toks": identity["suite"].get("max_gen_toks"),
        "cache_block": identity["cache"].get("block"),
        "accept_limit": identity["cache"].get("accept_limit"),
        "batch_size": config.get("batch_size"),
        "device": ("cuda" if "gpu" in hardware else "cpu") if device == "auto" else device,
        "hardware": hardware.get("gpu") or hardware.get("processor"),
        "threads": provenance.get("threads"),
        "method_version": identity["method"].get("version"),
        "engine_version": identity.get("engine"),
        "created": record.created or None,
        "git_revision": git.get("revision"),
        "dirty": git.get("dirty"),
        **{name: versions.get(name) for name in ("lm_eval", "torch", "transformers")},
        "command": None if command is None else shlex.join(command),
    }


def _measured(score: Interval, speed: Speed) -> dict[str, Any]:
    """Of one benchmark, or of all. Where nothing was generated there are no ratios, as in the table."""
    ratios = {name: getattr(speed, name) if speed.new_tokens else None for name in _RATIOS}
    return {
        "score": score.value,
        "score_low": score.low,
        "score_high": score.high,
        "how": score.how,
        "n": score.n,
        **{name: getattr(speed, name) for name in (*_SUMS, *_MEASURES)},
        **ratios,
    }


def _definition(task: Mapping[str, Any]) -> dict[str, Any]:
    """How the benchmark was defined; none of it is known of lm-eval's tasks without a pinned definition."""
    data = task.get("data")
    if isinstance(data, dict):
        data = next(iter(data.values())) if len(data) == 1 else run_key(data)
    version = task.get("version")
    return {
        "task_version": None if version is None else str(version),
        "num_fewshot": task.get("num_fewshot"),
        "data_hash": data,
    }


def model_size(name: str) -> tuple[str, float | None]:
    """Family and number of parameters of a model, as far as its name tells: ("qwen2.5", 7e9) of "qwen2.5-7b"."""
    found = _SIZE.search(name)
    return (name[: found.start()], float(found[1]) * _UNITS[found[2].lower()]) if found else (name, None)
