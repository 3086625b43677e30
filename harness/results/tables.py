"""The results table: on the terminal at the end of a run, and as Markdown and CSV.

Every score has its interval, and beside it the share of answers that were cut, their mean length, and the paired
difference from AR SFT on the same documents. A record of several benchmarks has a line for each and one for their
average; subtasks have a CSV of their own.

On the terminal what all rows share (model, benchmark, an option, …) moves to the title and a method's own options stand
below its name; several benchmarks of a record stand below its method. Where the terminal is too narrow the difference
breaks before its interval, then length and cut share move below the score, and then options break after their ``=``, so
that the table fits 80 columns.
"""

from __future__ import annotations

import csv
import dataclasses
import importlib
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from harness.evaluation import suites
from harness.results.records import CONTEXT, Benchmark, Record
from harness.results.stats import Comparison, compare, mean_interval

BASELINE = "ar_sft"
AVERAGE = "average"  # stands in the benchmark's place
NONE = "—"
# Settings that tell rows apart. The first three are always columns, tau and B unless no row has them; the others are
# where rows differ in them. Options stand below the method.
LABELS = (
    "method",
    "tau",
    "B",
    "model",
    "benchmark",
    "variant",
    "confidence",
    "options",
    "cache",
    "batch",
    "dtype",
    "limit",
    "seed",
)
ALWAYS = ("method", "tau", "B")

Documents = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Line:
    """One row of the table: a record on one benchmark, and its difference from the reference (None: there is none).

    Attributes:
        benchmark: what the row shows; of the average row, the mean score and the speed over all documents.
        same_answers: share of the documents on which its token ids are the reference's; None where there is
            no reference, or one of the two does not know its tokens.
    """

    record: Record
    benchmark: Benchmark
    labels: dict[str, str]
    delta: Comparison | None
    is_baseline: bool
    same_answers: float | None = None
    is_average: bool = False


def make_lines(
    records: Iterable[Record], scores: Callable[[str], Documents], earlier: Iterable[Record] = ()
) -> list[Line]:
    """Pair every record with its AR SFT reference: same model, documents, limits, seed and dtype.

    A record of several benchmarks has a line for each, and then one for their average.

    Args:
        records: in the order in which they are to be shown.
        earlier: further records, among which a reference may be found that ``records`` lack.
        scores: gives the documents (group, task, doc_id, score, and token_ids where known) of a run key.
    """
    records, earlier = list(records), list(earlier)
    read: dict[str, Documents] = {}

    def documents(key: str, benchmark: str) -> Documents:
        if key not in read:
            read[key] = scores(key)
        return [row for row in read[key] if row["group"] == benchmark]

    lines = []
    for record in records:
        baseline = reference(record, records) or reference(record, earlier)
        is_baseline = baseline is not None and baseline.key == record.key
        parts = []
        for name, benchmark in record.benchmarks.items():
            delta = same = None
            if baseline is not None and not is_baseline:
                pair = documents(record.key, name), documents(baseline.key, name)
                delta, same = compare(*pair), _same_answers(*pair)
            parts.append(Line(record, benchmark, _labels(record, name), delta, is_baseline, same))
        lines += [*parts, _average(parts)] if len(parts) > 1 else parts
    return lines


def _average(parts: Sequence[Line]) -> Line:
    """The suite's line: means over benchmarks of their scores and differences, and the speed over all documents.

    The interval of the difference is as honest as its parts: they are paired, on documents of their own, and so
    independent of each other. Without one of them there is no mean.
    """
    record, is_baseline = parts[0].record, parts[0].is_baseline
    benchmark = Benchmark("mean of benchmarks", record.average, metrics={}, tasks={}, speed=record.speed)
    deltas = [line.delta for line in parts if line.delta is not None]
    delta = same = None
    if len(deltas) == len(parts):
        difference = mean_interval([one.difference for one in deltas])
        delta = Comparison(difference, None, sum(one.wins for one in deltas), sum(one.losses for one in deltas))
        shares = [line.same_answers for line in parts if line.same_answers is not None]
        if len(shares) == len(parts):
            same = sum(s * one.difference.n for s, one in zip(shares, deltas, strict=True)) / difference.n
    return Line(record, benchmark, _labels(record, AVERAGE), delta, is_baseline, same, is_average=True)


def _same_answers(first: Documents, second: Documents) -> float | None:
    """Share of the documents of both with the same token ids; None where one is not known to the token, or has none."""
    other = {(row["task"], row["doc_id"]): row.get("token_ids") for row in second}
    pairs = [(row.get("token_ids"), other[place]) for row in first if (place := (row["task"], row["doc_id"])) in other]
    if not pairs or not all(ids for pair in pairs for ids in pair):
        return None
    return sum(a == b for a, b in pairs) / len(pairs)


def reference(record: Record, records: Sequence[Record]) -> Record | None:
    """The AR SFT record to compare with: preferably the default variant, in the record's cache mode; then the newest.

    Older ones may be of weights that have been trained anew since. Sampled answers are compared with answers sampled at
    the same temperature.
    """

    def comparable(r: Record) -> tuple[Any, ...]:
        weights, method = r.identity["model"], r.identity["method"]
        return (
            weights["model"], weights["dtype"], r.identity["suite"], r.identity["seed"], r.identity.get("engine"),
            method["axes"].get("temperature", 0),
        )  # fmt: skip

    def distance(r: Record) -> tuple[bool, bool]:
        return r.config["variant"] is not None, r.identity["cache"] != record.identity["cache"]

    found = [r for r in records if r.identity["method"]["name"] == BASELINE and comparable(r) == comparable(record)]
    return min(sorted(found, key=lambda r: r.created, reverse=True), key=distance, default=None)


def _labels(record: Record, benchmark: str) -> dict[str, str]:
    config, axes = record.config, record.identity["method"]["axes"]
    is_verified = bool(axes.get("verify"))  # it then commits what the model confirms, whatever its confidence
    values = {
        "method": record.identity["method"]["name"] + (" verified" if is_verified else ""),
        "tau": None if is_verified else axes.get("tau"),
        "B": axes.get("block_size"),
        "model": record.identity["model"]["model"],
        "benchmark": benchmark,
        "variant": config["variant"],
        "confidence": None if is_verified else axes.get("confidence"),
        "options": ", ".join(_options(record)) or None,
        "cache": config["cache"],
        "batch": config["batch_size"],
        "dtype": record.identity["model"]["dtype"],
        "limit": config["suite"].get("limit"),
        "seed": config["seed"],
    }
    return {name: NONE if value is None else _text(value) for name, value in values.items()}


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _options(record: Record) -> list[str]:
    """``name=value`` of the axes that have no column of their own and are not at their default."""
    axes, defaults = record.identity["method"]["axes"], _defaults(record)
    shown = {name: value for name, value in axes.items() if name not in ("tau", "block_size", "confidence", "verify")}
    return [f"{k}={_text(v)}" for k, v in shown.items() if k not in defaults or v != defaults[k]]


def _defaults(record: Record) -> dict[str, Any]:
    """Axes of the method as it is without options; where its class is not to be had here, greedy decoding alone."""
    module, _, name = str(record.config.get("method", {}).get("_target_")).rpartition(".")
    try:
        method = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError, ValueError):
        return {"temperature": 0.0}
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(method)))  # as a record has them
    return plain


def _common_options(lines: Sequence[Line]) -> list[str]:
    """Options that all rows which have them share, for the title; not those that one of several methods has."""
    common = []
    for option in dict.fromkeys(option for line in lines for option in _options(line.record)):
        name, _, value = option.partition("=")
        having = [line for line in lines if name in line.record.identity["method"]["axes"]]
        methods = {line.record.identity["method"]["name"] for line in having}
        is_same = all(_text(line.record.identity["method"]["axes"][name]) == value for line in having)
        if is_same and (len(having) == len(lines) or len(methods) > 1):
            common.append(option)
    return common


def _benchmark_cell(line: Line, is_broken: bool) -> Text:
    """Name of a benchmark below its method; broken: after the last ``_`` within the width of the longest method."""
    name = line.labels["benchmark"]
    end = name.rfind("_", 0, METHOD_WIDTH - 1) + 1 if is_broken and len(name) >= METHOD_WIDTH else 0
    return Text(f" {name[:end]}\n  {name[end:]}" if end else f" {name}")


def _with_labels(method: Text, line: Line, columns: Sequence[str]) -> Text:
    """The cell above a record's benchmarks: its labels are no columns, they stand between method and options."""
    name, *options = method.plain.split("\n")
    shown = {label: line.labels[label] for label in columns[1:] if line.labels[label] != NONE}
    axes = " ".join(f"{label}={value}" for label, value in shown.items() if label in ALWAYS)
    others = [f"{label}={value}" for label, value in shown.items() if label not in ALWAYS]
    return Text("\n".join([name, *(f" {text}" for text in (axes, *others) if text), *options]))


def _method_cell(line: Line, common: Sequence[str], is_broken: bool) -> Text:
    """Name, and below it each option of its own; broken: after its ``=`` where it is wider than the longest name."""
    lines = [line.labels["method"]]
    for option in _options(line.record):
        name, _, value = option.partition("=")
        if option not in common:
            lines += [f" {name}=", f"  {value}"] if is_broken and len(option) >= METHOD_WIDTH else [f" {option}"]
    return Text("\n".join(lines))


def _columns(lines: Sequence[Line]) -> list[str]:
    """Label columns that the rows need. What one method has and another lacks (confidence) is no difference."""

    def is_needed(name: str) -> bool:
        values = {line.labels[name] for line in lines}
        if name in ALWAYS:
            return name == "method" or values != {NONE}
        return name != "options" and len(values if name == "variant" else values - {NONE}) > 1

    return [name for name in LABELS if is_needed(name)]


def percent(value: float, signed: bool = False) -> str:
    """A fraction in percent with one decimal and a true minus sign."""
    return f"{100 * value:{'+' if signed else ''}.1f}".replace("-", "−")


def _score(line: Line) -> str:
    return f"{percent(line.benchmark.score.value)} ±{percent(line.benchmark.score.half_width)}"


def _delta(line: Line) -> str:
    if line.is_baseline:
        return "reference"
    if line.delta is None:
        return NONE
    d = line.delta.difference
    return f"{percent(d.value, True)} [{percent(d.low, True)}, {percent(d.high, True)}]"


EQUIVALENT, DELTA, SAME = "tokens/ equiv. forward", "Δ vs AR SFT", "same answers"
SCORE, CUT, LENGTH, TASK_MEAN = "score %", "cut %", "mean tokens", "(task mean)"
RATE, SECONDS = "tokens/s", "seconds"
METHOD_WIDTH, DELTA_WIDTH = 15, 14  # on the terminal: of an option, and of an interval


def _measures(line: Line) -> dict[str, str]:
    speed = line.benchmark.speed

    def ratio(value: float) -> str:
        return f"{value:.2f}" if speed.new_tokens else NONE

    return {
        SCORE: _score(line),
        "n": str(line.benchmark.score.n),
        CUT: NONE if speed.cut_share is None else percent(speed.cut_share),
        LENGTH: NONE if speed.mean_tokens is None else _amount(speed.mean_tokens),
        "tokens/ forward": ratio(speed.tokens_per_forward),
        EQUIVALENT: ratio(speed.tokens_per_equivalent_forward),
        TASK_MEAN: ratio(speed.tokens_per_forward_task_mean),
        "positions/ token": ratio(speed.positions_per_token),
        RATE: _amount(speed.tokens_per_second) if speed.new_tokens else NONE,
        SECONDS: _amount(speed.seconds),
        DELTA: _delta(line),
    }


def _amount(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


CAPTION = (
    "±: wider half of the score's 95 % interval. Δ: points on the same documents, paired, with its 95 % interval; "
    "one that holds 0 decides nothing. mean tokens: length of an answer; cut: answers that the token limit ended."
)
CAPTION_CONTEXT = " Of these the model's context cut {}, which no token limit changes."
CAPTION_AVERAGE = (
    f" {AVERAGE}: plain mean of the benchmarks' scores, its interval takes these benchmarks as given; its "
    "tokens/forward is over all documents, in parentheses the mean of the tasks' own."
)
CAPTION_NO_REFERENCE = f" {NONE}: no AR SFT cell with these settings yet; add method={BASELINE}."
CAPTION_EQUIVALENT = (
    " equiv.: draft forwards count too, each for its share of a target forward's seconds, so this column holds for "
    "this machine and batch size."
)


@dataclass(frozen=True)
class _Fitted:
    """The first of several layouts, widest first, that the terminal has room for; the last where it has for none."""

    layouts: Sequence[Table]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unbounded = options.update(max_width=10_000)
        for table in self.layouts[:-1]:
            if Measurement.get(console, unbounded, table).maximum <= options.max_width:
                yield table
                return
        yield self.layouts[-1]


@dataclass(frozen=True)
class _Layout:
    """How the terminal's table saves width."""

    hidden: tuple[str, ...] = ()
    is_delta_broken: bool = False
    is_length_below: bool = False  # length and cut share stand below the score
    is_name_broken: bool = False


# Widest first. Seconds are told of suites, and everywhere in the other forms of the table.
LAYOUTS = (
    _Layout((SECONDS,)),
    _Layout((SECONDS,), is_delta_broken=True),
    _Layout((SECONDS,), is_delta_broken=True, is_length_below=True),
    _Layout((SECONDS,), is_delta_broken=True, is_length_below=True, is_name_broken=True),
)
LAYOUTS_OF_SUITES = (
    _Layout(),
    *LAYOUTS,
    _Layout((SECONDS, RATE, TASK_MEAN), is_delta_broken=True, is_length_below=True, is_name_broken=True),
)


def to_rich(lines: Sequence[Line]) -> Group:
    """The terminal's table; narrow enough for 80 columns when rows differ in method, its options, tau and B only.

    Title and caption stand outside the table: rich would wrap them to its width.
    """
    has_suites = any(line.is_average for line in lines)
    columns, common = (
        [name for name in _columns(lines) if name != "benchmark" or not has_suites],
        _common_options(lines),
    )
    layouts = [_table(lines, columns, common, how) for how in (LAYOUTS_OF_SUITES if has_suites else LAYOUTS)]
    title = " · ".join([*_shared(lines, columns), *common])
    caption = CAPTION
    if by_context := sum(_cut_by_context(line) for line in lines if not line.is_average):
        caption += CAPTION_CONTEXT.format(by_context)
    if has_suites:
        caption += CAPTION_AVERAGE
    if any(line.delta is None and not line.is_baseline for line in lines):
        caption += CAPTION_NO_REFERENCE
    if _has_drafts(lines):
        caption += CAPTION_EQUIVALENT
    return Group(Text(title, "bold"), Text(), _Fitted(layouts), Text(), Text(caption, "dim"))


def _has_drafts(lines: Sequence[Line]) -> bool:
    return any(line.benchmark.speed.draft_forwards for line in lines)


def _cut_by_context(line: Line) -> int:
    return line.benchmark.speed.finish_reasons.get(CONTEXT, 0)


def _table(lines: Sequence[Line], columns: Sequence[str], common: Sequence[str], how: _Layout) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    hidden = set(how.hidden)
    if all(len(line.benchmark.tasks) == 1 for line in lines):
        hidden.add(TASK_MEAN)  # with one task it is the ratio of sums
    if len({line.benchmark.score.n for line in lines}) == 1:
        hidden.add("n")
    if not _has_drafts(lines):
        hidden.add(EQUIVALENT)  # it is tokens per forward
    if how.is_length_below:
        hidden |= {CUT, LENGTH}
    names = [name for name in _measures(lines[0]) if name not in hidden]
    has_suites = any(line.is_average for line in lines)
    for name in columns[:1] if has_suites else columns:
        table.add_column(name, overflow="fold", no_wrap=name in ALWAYS)
    for name in names[:-1]:
        heading = f"{SCORE}\ntokens, cut" if name == SCORE and how.is_length_below else _heading(name)
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(DELTA, justify="right", min_width=DELTA_WIDTH)
    for _, of_record in groupby(lines, key=lambda line: id(line.record)):
        found = list(of_record)
        method = _method_cell(found[0], common, how.is_name_broken)
        if has_suites:
            table.add_row(_with_labels(method, found[0], columns))
        for line in found:
            first = _benchmark_cell(line, how.is_name_broken) if has_suites else method
            labels = [] if has_suites else [Text(line.labels[name]) for name in columns[1:]]
            style = "bold" if line.is_average else None
            table.add_row(first, *labels, *_measured(line, names, how), style=style)
        if has_suites:
            table.add_section()
    return table


def _heading(name: str) -> str:
    if name == RATE:
        return "tokens\n/s"
    return name if "%" in name else name.replace("positions", "pos.").replace(" ", "\n")


def _measured(line: Line, names: Sequence[str], how: _Layout) -> list[Text]:
    """Cells of a line, from the score on."""
    measures = _measures(line)
    if how.is_length_below:
        below = NONE if measures[LENGTH] == NONE else f"{measures[LENGTH]}, {measures[CUT]}%"
        measures[SCORE] += f"\n{below}"
    delta = SAME if line.same_answers == 1 else measures[DELTA].replace(", ", ",")
    measures[DELTA] = delta.replace(" [", "\n[") if how.is_delta_broken else delta
    return [Text(measures[name]) for name in names]


def _shared(lines: Sequence[Line], columns: Sequence[str]) -> list[str]:
    """What all rows have in common, for the title."""
    texts = {
        "model": "{}", "benchmark": "{}", "variant": "variant {}", "confidence": "confidence {}", "cache": "{} cache",
        "batch": "batch {}",
        "dtype": "{}",
    }  # fmt: skip
    shown = []
    for name, text in texts.items():
        values = {line.labels[name] for line in lines} - {NONE}
        if name not in columns and len(values) == 1:
            shown.append(text.format(values.pop()))
    asked = [line.record.config["suite"] for line in lines]
    names = {suites.title(suite["name"], suite["tasks"]) if "tasks" in suite else suite["name"] for suite in asked}
    if any(line.is_average for line in lines) and len(names) == 1:
        shown.insert(1, names.pop())
    counts = {line.benchmark.score.n for line in lines}
    if len(counts) == 1:
        shown.insert(2, f"{counts.pop()} documents")
    return shown


def to_markdown(lines: Sequence[Line]) -> str:
    """The whole table, every label a column."""
    names = [*LABELS, *_measures(lines[0])] if lines else [*LABELS]
    rows = [[line.labels[n] for n in LABELS] + list(_measures(line).values()) for line in lines]
    text = [names, ["---"] * len(LABELS) + ["---:"] * (len(names) - len(LABELS)), *rows]
    return "".join("| " + " | ".join(cell.replace("/ ", "/").replace("|", "\\|") for cell in row) + " |\n"
                   for row in text)  # fmt: skip


def to_csv(lines: Sequence[Line]) -> str:
    """The same as plain numbers (scores and differences as fractions), with the run key."""
    buffer = io.StringIO()
    rows = [_numbers(line) for line in lines]
    writer = csv.DictWriter(buffer, list(rows[0]) if rows else [*LABELS], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def tasks_to_csv(lines: Sequence[Line]) -> str:
    """Every task of every line as plain numbers: the 27 of BBH, the 14 of MMLU-Pro, others as their only one."""
    buffer = io.StringIO()
    numbers = ("low", "high", "documents", "tokens_per_forward", "mean_tokens", "median_tokens", "cut_share")
    names = [name.replace("low", "score_low").replace("high", "score_high") for name in numbers]
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*LABELS, "task", "metric", "score", *names, "key"])
    for line in lines:
        labels = ["" if line.labels[name] == NONE else line.labels[name] for name in LABELS]
        for name, task in line.benchmark.tasks.items():
            values = ["" if (value := getattr(task, number)) is None else value for number in numbers]
            writer.writerow([*labels, name, line.benchmark.metric, task.score, *values, line.record.key])
    return buffer.getvalue()


def _numbers(line: Line) -> dict[str, Any]:
    score, speed = line.benchmark.score, line.benchmark.speed
    labels = {name: "" if value == NONE else value for name, value in line.labels.items()}

    def known(value: float | None) -> float | str:
        return "" if value is None else value

    def ratio(value: float) -> float | str:
        return value if speed.new_tokens else ""

    difference = line.delta.difference if line.delta else None
    return labels | {
        "metric": line.benchmark.metric,
        "score": score.value,
        "score_low": score.low,
        "score_high": score.high,
        "n": score.n,
        "cut_share": known(speed.cut_share),
        "context_share": known(speed.context_share),
        "mean_tokens": known(speed.mean_tokens),
        "median_tokens": known(speed.median_tokens),
        "tokens_per_forward": ratio(speed.tokens_per_forward),
        "tokens_per_forward_task_mean": ratio(speed.tokens_per_forward_task_mean),
        "positions_per_token": ratio(speed.positions_per_token),
        "draft_forwards": speed.draft_forwards,
        "draft_cost": known(speed.draft_cost),
        "equivalent_forwards": speed.equivalent_forwards,
        "tokens_per_equivalent_forward": ratio(speed.tokens_per_equivalent_forward),
        "draft_positions_per_token": ratio(speed.draft_positions_per_token),
        "tokens_per_second": ratio(speed.tokens_per_second),
        "seconds": speed.seconds,
        "delta": difference.value if difference else "",
        "delta_low": difference.low if difference else "",
        "delta_high": difference.high if difference else "",
        "delta_n": difference.n if difference else "",
        "mcnemar_p": line.delta.p_value if line.delta and line.delta.p_value is not None else "",
        "same_answers": known(line.same_answers),
        "key": line.record.key,
    }
