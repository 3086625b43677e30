"""The cells as the page lists them, and their whole records."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from harness.analysis.data import Data
from harness.config import CONF
from harness.evaluation.suites import SuiteConfig

SECTIONS = ("identity", "config", "protocol", "checkpoint", "provenance", "speed", "benchmarks")
# What a row of the list shows in columns of its own; of the others it tells those in which a method's cells differ.
SHOWN = (
    "key", "method", "tau", "block_size", "model", "benchmark", "is_average", "n", "score", "score_low", "score_high",
    "tokens_per_forward", "positions_per_token", "tokens_per_second",
)  # fmt: skip
_OTHERS = (
    "confidence", "temperature", "variant", "alignment", "suite", "limit", "seed", "dtype", "cache", "cache_block",
    "accept_limit", "batch_size", "max_gen_toks", "hardware", "threads", "checkpoint",
)  # fmt: skip
# Settings that choose what runs, in the order in which a user would type them.
_SETTINGS = ("tau", "block_size", "confidence", "verify", "temperature", "alignment", "variant", "checkpoint", "cache",
             "cache_block", "accept_limit", "seed", "dtype", "batch_size", "device", "sandbox", "threads")  # fmt: skip
_AXES = ("tau", "block_size", "confidence", "verify", "temperature")  # of which each method has some
_TOLD = ("tau", "block_size")  # which a reader looks for, so they are told at their default too


def rows(data: Data) -> dict[str, Any]:
    """The list of cells: a row for each cell and benchmark, and one for its average, by column.

    Returns:
        ``columns`` (``SHOWN``, then ``others``: the settings that tell a method's cells apart, as text; ``delta``: the
        paired difference from the cell's AR SFT reference with its interval and the reference's key, or None) and
        ``rows``; scores and differences are fractions.
    """
    cells = data.results.cells
    others = _others(cells)
    found = []
    for row, told in zip(cells.to_dict("records"), others, strict=True):
        plain = [None if pd.isna(row[name]) else row[name] for name in SHOWN]
        found.append([*plain, told, _delta(data, str(row["key"]), str(row["benchmark"]))])
    return {"columns": [*SHOWN, "others", "delta"], "rows": found}


def _others(cells: pd.DataFrame) -> list[str]:
    """Of each row, the settings in which cells of its method differ (a method's own options too)."""
    own = sorted(name for name in cells.columns if name.startswith("axis."))
    told: list[list[str]] = [[] for _ in range(len(cells))]
    place = {index: i for i, index in enumerate(cells.index)}
    for _, part in cells.groupby("method", sort=False):
        for name in (*own, *_OTHERS):
            values = part[name].astype("string")
            if values.nunique(dropna=False) > 1:
                for index, value in values.items():
                    if value is not pd.NA:
                        told[place[index]].append(f"{name.removeprefix('axis.')}={value}")
    return [", ".join(one) for one in told]


def _delta(data: Data, key: str, benchmark: str) -> list[Any] | None:
    reference = data.results.reference(key)
    found = None if reference in (None, key) else data.pairs.difference(key, str(reference), benchmark)
    if found is None:
        return None
    return [found.difference.value, found.difference.low, found.difference.high, found.difference.n, reference]


def records(data: Data) -> dict[str, Any]:
    """Every cell's record, parts that several share stored once.

    Returns:
        ``values``, and ``records``: by run key each section's entries as places in ``values``, the command that runs
        the cell again, its folder and time. A record that cannot be read any more has only the latter two.
    """
    values: list[Any] = []
    places: dict[str, int] = {}

    def keep(value: Any) -> int:
        text = json.dumps(value, sort_keys=True)
        if text not in places:
            places[text] = len(values)
            values.append(value)
        return places[text]

    cells = data.results.cells.drop_duplicates("key")
    found = {str(key): _record(str(path), keep) for key, path in zip(cells["key"], cells["path"], strict=True)}
    return {"values": values, "records": found}


def _record(path: str, keep: Callable[[Any], int]) -> dict[str, Any]:
    try:
        text = (Path(path) / "record.json").read_text(encoding="utf-8")
        record = json.loads(text, parse_constant=str)  # a NaN is shown as the word: JSON in the browser has none
    except (OSError, ValueError) as error:
        return {"path": path, "error": f"record.json cannot be read any more: {error}"}
    sections = {
        name: {entry: keep(value) for entry, value in record[name].items()} for name in SECTIONS if record.get(name)
    }
    found = {"path": path, "created": record.get("created"), "sections": sections}
    return found | {"command": command(record["config"], record["identity"])}


def command(config: Mapping[str, Any], identity: Mapping[str, Any]) -> str | None:
    """The command line that runs one cell again; None for a configuration that says too little.

    Settings at their default are left out, and so are those that the method does not have.
    """
    try:
        return shlex.join(["python", "-m", "harness.run", *_overrides(config, identity)])
    except (KeyError, TypeError, AttributeError):
        return None


def _overrides(config: Mapping[str, Any], identity: Mapping[str, Any]) -> Iterator[str]:
    method, model, suite = config["method"], config["model"], config["suite"]
    is_registered = (CONF / "model" / f"{model['name']}.yaml").exists()
    chosen = {"method": method["name"], "model": model["name" if is_registered else "source"], "suite": suite["name"]}
    for group, name in chosen.items():
        yield f"{group}={name}"
        default = _read(f"{group}/{name}.yaml")
        if group == "suite":
            default = {one.name: one.default for one in fields(SuiteConfig)} | default | {"sandbox": config["sandbox"]}
        yield from (
            f"{group}.{key}={_value(value)}"
            for key, value in config[group].items()
            if key in default and value != default[key] and not isinstance(value, dict)
        )
    default, axes = _read("config.yaml"), identity["method"]["axes"]
    for name in _SETTINGS:
        value, is_axis = config.get(name), axes.get(name) is not None
        is_without_effect = name in _AXES and not is_axis
        if name in config and not is_without_effect and (value != default[name] or (is_axis and name in _TOLD)):
            yield f"{name}={_value(value)}"


def _read(name: str) -> dict[str, Any]:
    """A file of ``conf``; an unknown method's is empty."""
    path = CONF / name
    return (yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.exists() else {}


def _value(value: Any) -> str:
    """As Hydra's command line reads it."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
