"""The paper's published numbers (results/paper/*.csv) as one tidy frame, in this project's names and checked.

The files are transcriptions of Tables 2 to 9 of arXiv 2604.07023; results/paper/README.md describes them. Reading them
refuses what cannot be a faithful copy (an average that is not the mean of its tasks, …); what is merely odd in the
paper's own numbers is listed by ``deviations`` and stays as printed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from harness.config import ROOT
from harness.results.stats import Interval, agresti_coull, mean_interval
from harness.results.tables import AVERAGE

PAPER = ROOT / "results" / "paper"

# Documents of each benchmark's test set, of which every published score is taken to be a share.
TEST_SIZES = {
    "ifeval": 541,
    "bbh": 6511,
    "mmlu_pro": 12032,
    "gpqa_main_cot_zeroshot": 448,
    "gsm8k_cot": 1319,
    "humaneval_instruct": 164,
}
# The paper's words, in this project's.
TASKS = {
    "ifeval": "ifeval",
    "bbh": "bbh",
    "mmlu_pro": "mmlu_pro",
    "gpqa": "gpqa_main_cot_zeroshot",
    "gsm8k": "gsm8k_cot",
    "humaneval": "humaneval_instruct",
    "avg": AVERAGE,
}
METHODS = {
    "base": "ar_sft",  # method=ar_sft variant=base
    "ar": "ar_sft",
    "ar_sft": "ar_sft",
    "mars": "mars",
    "block_diffusion": "block_diffusion",
    "jacobi": "jacobi",
}
VARIANTS = {"no fine-tune": "base", "5 epochs": None, "10 epochs": "compute_matched", "no_sft_loss": "no_sft_loss"}
CACHES = {"ar": "cursor", "mars_no_cache": "none", "mars_block_cache": "block"}  # AR's is the usual KV cache

SCORE, DELTA, FORWARD = "score", "delta", "tokens_per_forward"
RATE, SECONDS, SPEEDUP = "tokens_per_second", "seconds", "speedup"
COST = "training_cost"
UNITS = {
    SCORE: "percent", DELTA: "points", FORWARD: "tokens / forward", RATE: "tokens / s",
    SECONDS: "s", SPEEDUP: "ratio of seconds", COST: "H200 hours",
}  # fmt: skip
# Half a unit of the last printed place: what is printed as 1.2 tokens per forward is 1.195 to 1.205.
ROUNDING = {SCORE: 0.05, DELTA: 0.05, FORWARD: 0.005, RATE: 0.05, SECONDS: 0.05, SPEEDUP: 0.005, COST: 0.5}
WHOLE_SECONDS = 6  # the table that prints seconds without a decimal

# What tells cells apart. Empty (NaN) is what a cell does not have, or its table does not say.
IDENTITY = (
    "scale", "method", "variant", "block_size", "tau", "confidence", "cache", "cache_block", "batch_size",
    "target", "draft", "num_drafts", "task", "metric",
)  # fmt: skip
COLUMNS = ("table", *IDENTITY, "value", "unit", "rounding")
TEXTS = ("scale", "method", "variant", "confidence", "cache", "target", "draft", "task", "metric", "unit")
SUMS = 1e-9  # of floating point, on top of roundings

Row = dict[str, Any]


def read_published(folder: Path = PAPER) -> pd.DataFrame:
    """All published numbers, one row each.

    Returns:
        ``COLUMNS``: the table's number; the cell (``IDENTITY``; ``variant`` is empty for a method's default, 5 epochs;
        ``task`` is ``average`` for the paper's averages and empty where a table does not name its benchmark); the value
        as printed, its unit, and half a unit of its last printed place.

    Raises:
        ValueError: a file that is missing or has unknown names, or numbers that contradict each other by more than
            rounding can: an average against its tasks, a delta against its scores, a speedup against its seconds.
    """
    rows: list[Row] = []
    for number, read in READERS.items():
        found = sorted(folder.glob(f"table{number}_*.csv"))
        if len(found) != 1:
            raise ValueError(f"{folder}: {len(found)} files of table {number}, not one")
        for record in pd.read_csv(found[0], dtype=str, keep_default_na=False).to_dict("records"):
            try:
                rows += [{"table": number, **row} for row in read({str(k): str(v) for k, v in record.items()})]
            except (KeyError, ValueError) as error:
                raise ValueError(f"{found[0].name}: {error} in {record}") from error
    frame = pd.DataFrame([_complete(row) for row in rows], columns=list(COLUMNS))
    frame = frame.astype({name: "object" if name in TEXTS else "float64" for name in COLUMNS} | {"table": "int64"})
    wrong = deviations(frame)
    wrong = wrong[wrong["is_error"]]
    if len(wrong):
        raise ValueError(f"{folder}: " + "; ".join(f"{one.where}: {one.says}" for one in wrong.itertuples()))
    return frame


def recipe(folder: Path = PAPER) -> pd.DataFrame:
    """Table 7 as printed: one row per hyperparameter, one text column per scale."""
    return pd.read_csv(folder / "table7_training.csv", dtype=str)


def _complete(row: Row) -> Row:
    """A row with its unit, rounding and confidence, once its numbers are known to be possible."""
    metric, value = row["metric"], row["value"]
    if not math.isfinite(value) or (metric == SCORE and not 0 <= value <= 100) or (metric != DELTA and value < 0):
        raise ValueError(f"table {row['table']}: {metric} of {value}")
    rounding = 0.5 if metric == SECONDS and row["table"] == WHOLE_SECONDS else ROUNDING[metric]
    # The paper accepts by the top probability; where it compares others (Figure 6) it prints no numbers.
    confidence = "probability" if row["method"] == "mars" and row.get("tau") is not None else None
    return {"confidence": confidence, **row, "unit": UNITS[metric], "rounding": rounding}


def _number(text: str) -> float | None:
    return float(text) if text else None


def _cell(record: Mapping[str, str], tau: float | None = None) -> Row:
    """Names and settings of a row of the tables of scores; AR and Jacobi have neither tau nor B."""
    method = METHODS[record["method"]]
    variant = record.get("variant", "")
    has_tau = method in ("mars", "block_diffusion")
    return {
        "scale": record["scale"],
        "method": method,
        "variant": VARIANTS[variant] if variant else None,
        "block_size": _number(record["block_size"]),
        "tau": (_number(record["tau"]) if record.get("tau") else tau) if has_tau else None,
    }


def _by_task(record: Mapping[str, str]) -> Iterator[Row]:
    """Tables 2, 3 and 9: a column per task. The first two are one-token mode, which is tau = 1."""
    cell = _cell(record, tau=1.0)
    for name, task in TASKS.items():
        yield {**cell, "task": task, "metric": SCORE, "value": float(record[name])}
    if FORWARD in record:
        yield {**cell, "task": AVERAGE, "metric": FORWARD, "value": float(record[FORWARD])}


def _one_task(record: Mapping[str, str]) -> Iterator[Row]:
    """Tables 4 and 8: a row per task."""
    cell = {**_cell(record), "task": TASKS[record["task"]]}
    for metric, name in ((SCORE, "score"), (DELTA, "delta_vs_tau1"), (FORWARD, FORWARD)):
        if name in record:
            yield {**cell, "metric": metric, "value": float(record[name])}


def _wall_clock(record: Mapping[str, str]) -> Iterator[Row]:
    """Table 5."""
    is_ar = record["configuration"] == "ar"
    cell = {
        "scale": record["scale"],
        "method": "ar_sft" if is_ar else "mars",
        "tau": None if is_ar else float(record["tau"]),
        "cache": CACHES[record["configuration"]],
        "cache_block": _number(record["cache_block"]),
        "batch_size": float(record["batch_size"]),
    }
    for metric, name in ((RATE, RATE), (SECONDS, SECONDS), (SPEEDUP, "speedup_vs_ar")):
        yield {**cell, "metric": metric, "value": float(record[name])}


def _speculative(record: Mapping[str, str]) -> Iterator[Row]:
    """Table 6, whose scale is the target's. AR on both sides has neither tau nor B."""
    (target, scale), (draft, _) = record["target"].split(), record["draft"].split()
    has_mars = "mars" in (target, draft)
    cell = {
        "scale": scale,
        "method": "speculative",
        "target": METHODS[target],
        "draft": METHODS[draft],
        "num_drafts": float(record["draft_tokens"]),
        "block_size": float(record["block_size"]) if has_mars else None,
        "tau": float(record["tau"]) if has_mars else None,
        "task": TASKS["gsm8k"],
    }
    names = {
        DELTA: "gsm8k_delta",
        RATE: RATE,
        SECONDS: SECONDS,
        SPEEDUP: SPEEDUP,
        FORWARD: "tokens_per_target_forward",
    }
    for metric, name in names.items():
        yield {**cell, "metric": metric, "value": float(record[name])}


def _training(record: Mapping[str, str]) -> Iterator[Row]:
    """Table 7: of its recipe, only the cost is a measurement ("15 (AR) / 33 (MARS)")."""
    if record["hyperparameter"] != "training_cost_h200_hours":
        return
    for scale in ("0.5b", "7b"):
        for part in record[scale].split(" / "):
            hours, method = part.rstrip(")").split(" (")
            yield {"scale": scale, "method": METHODS[method.lower()], "metric": COST, "value": float(hours)}


READERS: dict[int, Callable[[Mapping[str, str]], Iterator[Row]]] = {
    2: _by_task, 3: _by_task, 4: _one_task, 5: _wall_clock, 6: _speculative, 7: _training, 8: _one_task, 9: _by_task,
}  # fmt: skip


def deviations(frame: pd.DataFrame) -> pd.DataFrame:
    """Where the printed numbers do not agree with each other.

    Returns:
        ``kind``, ``where``, ``says`` and ``is_error`` (more than rounding and a last digit can explain: a slip of the
        transcription until shown otherwise). Kinds:
        *average*: not the mean of its tasks to the printed digit; an error from 0.1 on (0.01 for tokens per forward).
        *delta*: not the difference of the printed scores; an error from more than 0.1 on, as scores are rounded too.
        *speedup*: not the ratio of the printed seconds; an error beyond 0.01 more than their roundings.
        *two tables*: one cell printed with two values.
        *length*: seconds times tokens per second, the tokens written, is more than 5 % off AR's in the same table:
        there the ratio of seconds and that of tokens per second are different speedups.
        *share*: a score that no number of right answers among the test set's documents rounds to.
    """
    checks = {
        "average": _averages, "delta": _deltas, "speedup": _speedups,
        "two tables": _two_tables, "length": _lengths, "share": _shares,
    }  # fmt: skip
    rows: list[Row] = [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
    found = [(kind, *one) for kind, check in checks.items() for one in check(rows)]
    return pd.DataFrame(found, columns=["kind", "where", "says", "is_error"]).astype({"is_error": bool})


Deviation = tuple[str, str, bool]


def _averages(rows: Sequence[Row]) -> Iterator[Deviation]:
    for average, parts in _with_parts([row for row in rows if row["metric"] in (SCORE, FORWARD)]):
        if {row["task"] for row in parts} == set(TEST_SIZES):  # Table 9 has no tokens per forward by task
            mean = sum(row["value"] for row in parts) / len(parts)
            yield from _compare(average, mean, "mean of its tasks", 2 * average["rounding"])


def _with_parts(rows: Sequence[Row]) -> Iterator[tuple[Row, list[Row]]]:
    """Every average, with the rows of the same cell and table that it is the average of."""
    groups = _grouped(rows, lambda row: (row["table"], _key(row | {"task": None})))
    for group in groups.values():
        averages, parts = (
            [row for row in group if (row["task"] == AVERAGE) == is_average] for is_average in (True, False)
        )
        for average in averages:
            yield average, parts


def _deltas(rows: Sequence[Row]) -> Iterator[Deviation]:
    scores = _first(rows, SCORE)
    for row in (row for row in rows if row["metric"] == DELTA and row["method"] == "mars"):
        cell = row | {"metric": SCORE}
        now, before = scores.get(_key(cell)), scores.get(_key(cell | {"tau": 1.0}))
        if now is None or before is None:
            yield _name(row), "no scores to take the difference of", True
        else:
            yield from _compare(row, now - before, "difference of the scores", 2 * row["rounding"])


def _compare(row: Row, expected: float, what: str, error: float) -> Iterator[Deviation]:
    distance = abs(row["value"] - expected)
    if distance > row["rounding"] + SUMS:
        yield _name(row), f"{row['value']:g}, {what} {expected:.3f}", distance > error + SUMS


def _speedups(rows: Sequence[Row]) -> Iterator[Deviation]:
    for row, seconds, reference in _timed(rows):
        ends = [(reference["value"] + sign * reference["rounding"]) / (seconds["value"] - sign * seconds["rounding"])
                for sign in (-1, 1)]  # fmt: skip
        outside = max(ends[0] - row["value"], row["value"] - ends[1]) - row["rounding"]
        if outside > SUMS:
            ratio = reference["value"] / seconds["value"]
            yield _name(row), f"{row['value']:g}, ratio of the seconds {ratio:.3f}", outside > 0.01


def _lengths(rows: Sequence[Row]) -> Iterator[Deviation]:
    rates = _first(rows, RATE)
    for row, seconds, reference in _timed(rows):
        here, there = (one["value"] * rates[_key(one | {"metric": RATE})] for one in (seconds, reference))
        if abs(here / there - 1) > 0.05:
            yield _name(row), f"{here:.0f} tokens in all, the reference {there:.0f} ({here / there - 1:+.0%})", False


def _timed(rows: Sequence[Row]) -> Iterator[tuple[Row, Row, Row]]:
    """Every speedup with its seconds and those of the row that it is a speedup over: AR at the same batch size."""
    timed = [row for row in rows if row["metric"] in (SECONDS, SPEEDUP)]
    for group in _grouped(timed, lambda row: (row["table"], _key(row)[IDENTITY.index("batch_size")])).values():
        seconds = {_key(row): row for row in group if row["metric"] == SECONDS}
        speedups = [row for row in group if row["metric"] == SPEEDUP]
        [reference] = [row for row in speedups if "mars" not in (row["method"], row["target"])]
        for row in speedups:
            yield row, seconds[_key(row | {"metric": SECONDS})], seconds[_key(reference | {"metric": SECONDS})]


def _two_tables(rows: Sequence[Row]) -> Iterator[Deviation]:
    for group in _grouped(rows, _key).values():
        if len({row["table"] for row in group}) < len(group):
            yield _name(group[0]), "twice in one table", True
        elif len({row["value"] for row in group}) > 1:
            yield _name(group[0]), ", ".join(f"{row['value']:g} in table {row['table']}" for row in group), False


def _shares(rows: Sequence[Row]) -> Iterator[Deviation]:
    scores = [row for row in rows if row["metric"] == SCORE and row["task"] in TEST_SIZES]
    for row, *_ in _grouped(scores, lambda row: (row["task"], row["value"])).values():
        n = TEST_SIZES[row["task"]]
        nearest = 100 * round(row["value"] * n / 100) / n
        if abs(nearest - row["value"]) > row["rounding"] + SUMS:
            yield _name(row), f"{row['value']:g}, nearest share of {n} is {nearest:.3f}", False


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(None if value != value else value for value in (row[name] for name in IDENTITY))  # NaN is not NaN


def _grouped(rows: Iterable[Row], key: Callable[[Row], Hashable]) -> dict[Hashable, list[Row]]:
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _first(rows: Sequence[Row], metric: str) -> dict[Hashable, float]:
    """A metric's value by the identity of its cell; of cells in several tables the first one's."""
    found = _grouped([row for row in rows if row["metric"] == metric], _key)
    return {key: group[0]["value"] for key, group in found.items()}


def _name(row: Row) -> str:
    settings = [f"{name}={row[name]:g}" if isinstance(row[name], float) else str(row[name])
                for name in IDENTITY if row[name] is not None and row[name] == row[name]]  # fmt: skip
    return f"table {row['table']}: " + " ".join(settings)


def with_errors(frame: pd.DataFrame) -> pd.DataFrame:
    """Adds ``n``, ``low``, ``high`` (95 %, in the value's unit) and ``se``, as far as the printed numbers give them.

    A score gets Agresti and Coull's interval and the binomial standard error at its benchmark's size, as if its
    documents were drawn independently (BBH's and MMLU-Pro's come in subtasks, which the paper does not give; by them
    the errors would be larger). An average gets those of a mean of independent parts; its ``n`` is that of all. Every
    other number has no sampling error in the paper (one run, no spread): ``low`` and ``high`` are what it may have been
    before it was rounded, and ``n`` and ``se`` are empty.
    """
    rows: list[Row] = [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
    for row in rows:
        value, n = row["value"], TEST_SIZES.get(row["task"])
        row |= {"n": math.nan, "low": value - row["rounding"], "high": value + row["rounding"], "se": math.nan}
        if row["metric"] == SCORE and n:
            low, high = agresti_coull(round(value / 100 * n), n)
            row |= {"n": n, "low": min(100 * low, value), "high": max(100 * high, value)}
            row["se"] = math.sqrt(value * (100 - value) / n)
    for average, parts in _with_parts([row for row in rows if row["metric"] == SCORE]):
        whole = mean_interval(
            [Interval(one["value"], one["low"], one["high"], one["n"], "Agresti-Coull") for one in parts]
        )
        # The printed average is not quite the mean of the printed scores; the interval goes with the former.
        shift = average["value"] - whole.value
        average |= {"n": whole.n, "low": whole.low + shift, "high": whole.high + shift}
        average["se"] = math.sqrt(sum(one["se"] ** 2 for one in parts)) / len(parts)
    columns = ("n", "low", "high", "se")
    return frame.assign(**{name: pd.Series([row[name] for row in rows], frame.index, "float64") for name in columns})
