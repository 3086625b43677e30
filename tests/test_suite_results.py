"""What is said of suites and subtasks: lengths, cut answers, averages, documents that were scored without an answer."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_fakes
from run_fakes import document
from test_results import SCORED_ROW, record, rendered, rows_of

from harness.results import stats, tables
from harness.results.records import Record, Task, summarise
from harness.results.stats import Interval
from harness.results.store import Store, StoredCell

# The paper's six: documents, and tokens of an answer.
SUITE = {
    "ifeval": (541, 190), "bbh": (6511, 150), "mmlu_pro": (12032, 210), "gpqa_main_cot_zeroshot": (448, 245),
    "gsm8k_cot": (1319, 140), "humaneval_instruct": (164, 90),
}  # fmt: skip
SUBTASKS = {"bbh": 27, "mmlu_pro": 14}


def suite_rows(per_forward: float = 1.0, gain: float = 0.0, scale: float = 0.1) -> list[dict[str, Any]]:
    """Rows of the six benchmarks at a fraction of their sizes; the same seed, so that methods are paired."""
    generator, rows = np.random.default_rng(0), []
    for group, (count, length) in SUITE.items():
        for i in range(max(30, int(count * scale))):
            tokens = int(np.clip(generator.normal(length, 60), 2, 256))
            forwards = math.ceil(tokens / per_forward)
            task = f"{group}_{i % SUBTASKS[group]}" if group in SUBTASKS else group
            rows.append(
                document(
                    i, float(generator.random() < 0.4 + gain), task, group=group, new_tokens=tokens,
                    target_forwards=forwards, positions=forwards, share_seconds=forwards / 20, token_ids=[i, forwards],
                    finish_reason="length" if tokens == 256 else "eos", metrics={"m,f": 1.0},
                )
            )  # fmt: skip
    return rows


def suite_lines(scale: float = 0.1) -> list[tables.Line]:
    rows = {"a" * 16: suite_rows(scale=scale), "b" * 16: suite_rows(1.6, 0.05, scale)}
    axes = {"tau": 0.95, "block_size": 4, "confidence": "probability"}
    records = [record(rows["a" * 16], "a" * 16, "ar_sft"), record(rows["b" * 16], "b" * 16, "block_diffusion", **axes)]
    return tables.make_lines(records, rows.__getitem__)


# --- lengths, cuts, subtasks


def test_cut_share_and_length_are_of_answers() -> None:
    """Of five documents four were answered; one was cut by the limit, another by the model's context."""
    reasons = {"eos": 1, "stop": 5, "length": 10, "context": 8}
    rows = [document(i, new_tokens=n, finish_reason=reason) for i, (reason, n) in enumerate(reasons.items())]
    benchmarks, whole = summarise([*rows, SCORED_ROW | {"doc_id": 4}], {"word_problems": "m"})
    for speed in (benchmarks["word_problems"].speed, whole):
        assert (speed.documents, speed.generated) == (5, 4)
        assert (speed.mean_tokens, speed.median_tokens) == (6.0, 6.5)
        assert (speed.cut_share, speed.context_share) == (0.5, 0.25)


def test_each_task_has_its_numbers() -> None:
    rows = [
        document(0, 1.0, "a", new_tokens=10, target_forwards=10, finish_reason="length"),
        document(1, 0.0, "a", new_tokens=20, target_forwards=5),
        document(0, 1.0, "b", new_tokens=7, target_forwards=7),
        SCORED_ROW | {"task": "c"},
    ]
    [benchmark] = summarise(rows, {"word_problems": "m"})[0].values()
    low, high = stats.agresti_coull(1, 2)
    assert benchmark.tasks["a"] == Task(0.5, low, high, 2, 30 / 15, 15.0, 15.0, 0.5)
    assert (benchmark.tasks["b"].documents, benchmark.tasks["b"].tokens_per_forward) == (1, 1.0)
    of_scored = benchmark.tasks["c"]
    assert (of_scored.score, of_scored.documents) == (1.0, 1)
    assert {of_scored.tokens_per_forward, of_scored.mean_tokens, of_scored.median_tokens, of_scored.cut_share} == {None}


def test_scored_documents_weigh_in_no_ratio() -> None:
    answered = document(0, task="a", new_tokens=8, target_forwards=4, share_seconds=2.0)
    scored = SCORED_ROW | {"task": "b", "share_seconds": 6.0}
    [benchmark] = summarise([answered, scored], {"word_problems": "m"})[0].values()
    speed = benchmark.speed
    assert speed.tokens_per_forward == speed.tokens_per_forward_task_mean == 2.0, "b has no ratio to be averaged"
    assert (speed.tokens_per_second, speed.seconds) == (4.0, 8.0)
    benchmarks, whole = summarise([scored], {"word_problems": "m"})
    assert benchmarks["word_problems"].score.value == 1.0
    assert (whole.tokens_per_forward, whole.tokens_per_forward_task_mean, whole.tokens_per_second) == (0, 0, 0)
    assert whole.mean_tokens is whole.cut_share is whole.median_tokens is None


def test_lm_evals_own_aggregates_stand_before_means() -> None:
    rows = [document(i, metrics={"loose,none": value, "own,none": value}) for i, value in enumerate((1.0, 0.5))]
    aggregates = {"word_problems": {"loose,none": 2 / 3}, "another": {"own,none": 0.1}}
    [benchmark] = summarise(rows, {"word_problems": "m"}, aggregates)[0].values()
    assert benchmark.metrics == {"loose,none": 2 / 3, "own,none": 0.75}
    assert summarise(rows, {"word_problems": "m"})[0]["word_problems"].metrics["loose,none"] == 0.75


def old_speed(documents: int, tokens: int, forwards: int, finish_reasons: dict[str, int]) -> dict[str, Any]:
    return {
        "documents": documents, "new_tokens": tokens, "prompt_tokens": 9, "target_forwards": forwards,
        "draft_forwards": 0, "positions": 16, "draft_positions": 0, "tokens_per_forward": tokens / forwards,
        "tokens_per_forward_task_mean": tokens / forwards, "positions_per_token": 16 / tokens,
        "tokens_per_second": 20.0, "seconds": 0.4, "draft_cost": None, "equivalent_forwards": float(forwards),
        "tokens_per_equivalent_forward": tokens / forwards, "acceptance_counts": [0, 2, 0, 2],
        "finish_reasons": finish_reasons,
    }  # fmt: skip


def old_score(value: float, low: float, high: float, n: int) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high, "n": n, "how": "Agresti-Coull"}


# As records were written when a task was its score and a speed knew no median.
OLD: dict[str, Any] = {
    "key": "0" * 16,
    "identity": {
        "method": {"name": "mars", "version": 1, "axes": {"tau": 0.7}}, "model": {"model": "tiny", "dtype": "float32"},
        "suite": {"limit": None}, "cache": {"mode": "cursor"}, "seed": 0,
    },
    "config": {
        "variant": None, "cache": "cursor", "batch_size": 1, "seed": 0, "suite": {"name": "quick", "limit": None},
    },
    "benchmarks": {
        "bbh": {
            "metric": "exact_match,get-answer", "score": old_score(0.5, 0.1, 0.9, 2),
            "metrics": {"exact_match,get-answer": 0.5}, "tasks": {"bbh_a": 1.0, "bbh_b": 0.0},
            "speed": old_speed(2, 8, 4, {"eos": 1, "length": 1}),
        },
        "word_problems": {
            "metric": "exact_match,strict-match", "score": old_score(1.0, 0.2, 1.0, 1),
            "metrics": {"exact_match,strict-match": 1.0}, "tasks": {"word_problems": 1.0},
            "speed": old_speed(1, 6, 2, {"eos": 1}),
        },
    },
    "speed": old_speed(3, 14, 6, {"eos": 2, "length": 1}), "protocol": {}, "checkpoint": None, "provenance": {},
    "created": "2026-12-01T14:54:17.847+00:00",
}  # fmt: skip


def test_older_records_are_read(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(json.dumps(OLD))
    found = StoredCell(tmp_path).record()
    assert found.benchmarks["bbh"].tasks == {"bbh_a": Task(1.0), "bbh_b": Task(0.0)}
    assert found.benchmarks["word_problems"].tasks == {
        "word_problems": Task(1.0, 0.2, 1.0, 1, 3.0, 6.0, median_tokens=None, cut_share=0.0)
    }, "a task alone is the benchmark"
    assert (found.speed.mean_tokens, found.speed.cut_share, found.speed.median_tokens) == (14 / 3, 1 / 3, None)
    lines = tables.make_lines([found], lambda _: [])
    assert "50.0 ±40.0" in rendered(lines, 120)
    first = next(csv.DictReader(io.StringIO(tables.tasks_to_csv(lines))))
    assert (first["task"], first["score"], first["documents"], first["cut_share"]) == ("bbh_a", "1.0", "", "")
    assert Record.from_dict(json.loads(json.dumps(found.to_dict()))) == found


# --- the average


def test_mean_of_independent_intervals() -> None:
    """Symmetric parts add as standard errors do, and unlike distances stay unlike."""
    parts = [Interval(0.5, 0.5 - half, 0.5 + half, 10, "Agresti-Coull") for half in (0.3, 0.4)]
    mean = stats.mean_interval(parts)
    assert (mean.value, mean.low, mean.high, mean.n) == pytest.approx((0.5, 0.25, 0.75, 20))
    skewed = stats.mean_interval([Interval(0.0, 0.0, 0.2, 5, "Agresti-Coull")] * 4)
    assert (skewed.low, skewed.high) == pytest.approx((0.0, 0.1))
    assert stats.mean_interval(parts[:1]) == parts[0]
    with pytest.raises(ValueError, match="at least one"):
        stats.mean_interval([])


def test_coverage_of_the_mean_of_intervals() -> None:
    """Six benchmarks of unlike size and difficulty, two near the ends: the 95 % interval holds the true average."""
    generator = np.random.default_rng(0)
    truth, sizes = np.array([0.03, 0.2, 0.35, 0.5, 0.7, 0.97]), (30, 500, 120, 60, 160, 40)
    held = 0
    for _ in range(1000):
        right = generator.binomial(sizes, truth)
        parts = [
            Interval(k / n, *stats.agresti_coull(int(k), n), n, "Agresti-Coull")
            for k, n in zip(right, sizes, strict=True)
        ]
        mean = stats.mean_interval(parts)
        held += mean.low <= truth.mean() <= mean.high
    assert 930 <= held <= 975


def test_average_line_weighs_benchmarks_and_sums_tokens() -> None:
    """One benchmark of 30 documents, one of 10: scores 1 and 0 average to a half; 30 · 4 + 10 · 20 tokens."""
    mars = [document(i, 1.0, group="a", task="a", token_ids=[1]) for i in range(30)]
    mars += [
        document(i, 0.0, group="b", task="b", token_ids=[2], new_tokens=20, target_forwards=4, finish_reason="length")
        for i in range(10)
    ]
    plain = [row | {"score": 1.0 if row["doc_id"] < 5 else 0.0, "token_ids": [1]} for row in mars]
    rows = {"a" * 16: mars, "b" * 16: plain}
    records = [record(mars, "a" * 16), record(plain, "b" * 16, "ar_sft")]
    first, second, average, *rest = tables.make_lines(records, rows.__getitem__)
    assert [line.is_average for line in (first, second, average, *rest)] == [False, False, True] * 2
    assert (average.labels["benchmark"], average.benchmark.score.value) == ("average", 0.5)
    speed = average.benchmark.speed
    assert speed.tokens_per_forward == (30 * 4 + 10 * 20) / (30 * 2 + 10 * 4)
    assert speed.tokens_per_forward_task_mean == (2 + 5) / 2
    assert (speed.mean_tokens, speed.cut_share) == (320 / 40, 10 / 40)
    assert first.delta is not None
    assert second.delta is not None
    assert average.delta is not None
    assert average.delta.difference.value == pytest.approx((25 / 30 - 5 / 10) / 2)
    ends = [(one.delta.difference.low, one.delta.difference.value) for one in (first, second) if one.delta]
    low = average.delta.difference.value - math.hypot(*(value - low for low, value in ends)) / 2
    assert average.delta.difference.low == pytest.approx(low)
    assert (average.delta.wins, average.delta.losses) == (25, 5)
    assert average.same_answers == 30 / 40, "all of a, none of b"
    assert rest[-1].is_baseline
    del rows["b" * 16][-10:]
    partial = tables.make_lines(records, rows.__getitem__)
    assert [line.delta is None for line in partial[:3]] == [False, True, True], "no mean without each of its parts"


def test_one_benchmark_has_no_average_line() -> None:
    assert len(tables.make_lines([record([document(0)])], lambda _: [])) == 1
    assert record([document(0), document(1, 0.0)]).average.value == 0.5


# --- how it looks


@pytest.mark.parametrize("width", [80, 100, 120])
def test_six_benchmarks_and_two_methods_fit(width: int) -> None:
    text = rows_of(suite_lines(), width)
    assert all(len(row) <= width for row in text)
    assert not any("…" in row for row in text)
    assert text[0].startswith("tiny · quick · confidence probability"), "the suite's name"
    assert sum(row.startswith(" average ") for row in text) == 2
    assert sum(row.count(" ±") for row in text) == 14
    assert not any("bbh_1" in row for row in text), "subtasks are elsewhere"
    [place] = [i for i, row in enumerate(text) if row == "block_diffusion"]
    assert text[place + 1] == " tau=0.95 B=4"
    if width >= 100:
        benchmarks = [row.split()[0] for row in text[place + 2 : place + 9]]
        assert benchmarks == [*SUITE, "average"], "each on one line, with its difference"
        assert all("[" in row for row in text[place + 2 : place + 9])
        assert "cut % tokens" in next(row for row in text if row.startswith("method"))
    assert ("seconds" in " ".join(text)) == (width == 120)


def test_numbers_of_the_paper_size_fit() -> None:
    """12,032 documents, and a model that needs days."""
    lines = suite_lines(scale=1.0)
    text = rows_of(lines, 110)
    [row, _] = [row for row in text if row.startswith(" mmlu_pro")]
    assert row.split()[3] == "12032"
    assert all(len(row) <= 110 for row in text)


@pytest.mark.parametrize("tasks", [1, 27])
def test_ordinary_sweep_keeps_its_rows_on_one_line(tasks: int) -> None:
    """Method by tau on one benchmark, BBH too, in 80 columns."""

    def made(n: int) -> list[dict[str, Any]]:
        values = {"new_tokens": 200, "target_forwards": 55, "positions": 110, "token_ids": [n]}
        return [
            document(i, float(i // 27 % 3 > 0 or i % (29 + 2 * n) == 0), f"t{i % tasks}", **values) for i in range(540)
        ]

    rows = {k * 16: made(n) for n, k in enumerate("abc")}
    axes = {"block_size": 4, "confidence": "probability"}
    records = [record(rows[k * 16], k * 16, tau=tau, **axes) for k, tau in (("a", 0.7), ("b", 0.95))]
    text = rows_of(tables.make_lines([*records, record(rows["c" * 16], "c" * 16, "ar_sft")], rows.__getitem__), 80)
    [heading] = [i for i, row in enumerate(text) if row.startswith("method")]
    assert text[heading].split()[3:7] == ["score", "%", "cut", "%"]
    assert [row.split()[0] for row in text[heading + 2 : heading + 5]] == ["mars", "mars", "ar_sft"]
    assert all(row.endswith("]") for row in text[heading + 2 : heading + 4])
    assert all(row.split()[5:7] == ["0.0", "200"] for row in text[heading + 2 : heading + 5])
    assert any("mean" in row.replace("mean tokens", "") for row in text[: heading + 1]) == (tasks > 1), "of the tasks"


def test_answers_that_the_context_cut_are_told() -> None:
    rows = [document(i, finish_reason=reason) for i, reason in enumerate(("eos", "length", "context", "context"))]

    def shown(found: list[dict[str, Any]]) -> str:
        return " ".join(rendered(tables.make_lines([record(found)], lambda _: found), 120).split())

    assert " 75.0 4.0 " in shown(rows)
    assert "the model's context cut 2," in shown(rows)
    both = [*rows, *(row | {"group": "other", "task": "other"} for row in rows)]
    assert "the model's context cut 4," in shown(both), "the average counts none of them again"
    assert "context" not in shown(rows[:2])


def test_scored_documents_show_no_ratio() -> None:
    rows = [SCORED_ROW | {"doc_id": i, "group": "arc", "task": "arc"} for i in range(3)]
    reference = [row | {"score": 0.0} for row in rows]
    found = {"a" * 16: rows, "b" * 16: reference}
    records = [record(rows, "a" * 16), record(reference, "b" * 16, "ar_sft")]
    lines = tables.make_lines(records, found.__getitem__)
    assert lines[0].same_answers is None, "no answers, so no equal ones"
    assert lines[0].delta is not None
    [row] = [row for row in rows_of(lines, 120) if row.startswith("mars")]
    assert row.split()[1:8] == ["100.0", "±61.7", "—", "—", "—", "—", "—"]
    narrow = rows_of(lines, 50)
    [place] = [i for i, row in enumerate(narrow) if row.startswith("mars")]
    assert narrow[place].split()[1:6] == ["100.0", "±61.7", "—", "—", "—"]
    assert narrow[place + 1].split()[0] == "—", "length and cut share, below the score"
    written = next(csv.DictReader(io.StringIO(tables.to_csv(lines))))
    names = ("cut_share", "mean_tokens", "tokens_per_forward", "positions_per_token", "tokens_per_second")
    assert {written[name] for name in names} == {""}
    assert (written["score"], written["n"]) == ("1.0", "3")
    assert "| — | — | — | — | — | — | — |" in tables.to_markdown(lines)


def test_markdown_and_csv_have_the_suite_too() -> None:
    lines = suite_lines()
    markdown = tables.to_markdown(lines).splitlines()
    assert len(markdown) == 2 + 14
    assert "| cut % | mean tokens |" in markdown[0]
    assert "| average |" in markdown[8]
    rows = list(csv.DictReader(io.StringIO(tables.to_csv(lines))))
    assert [row["benchmark"] for row in rows] == [*SUITE, "average"] * 2
    of_suite, parts = rows[13], rows[7:13]
    assert float(of_suite["score"]) == pytest.approx(np.mean([float(row["score"]) for row in parts]))
    assert float(of_suite["delta"]) == pytest.approx(np.mean([float(row["delta"]) for row in parts]))
    assert float(of_suite["seconds"]) == pytest.approx(sum(float(row["seconds"]) for row in parts))
    assert float(of_suite["delta_low"]) < float(of_suite["delta"]) < float(of_suite["delta_high"])
    assert {row["metric"] for row in parts} == {"m,f"}
    assert float(of_suite["mean_tokens"]) > 0 < float(of_suite["cut_share"])


def test_subtasks_have_a_csv() -> None:
    rows = list(csv.DictReader(io.StringIO(tables.tasks_to_csv(suite_lines()))))
    assert len(rows) == 2 * (27 + 14 + 4), "and none for the average"
    bbh = [row for row in rows if row["benchmark"] == "bbh" and row["method"] == "ar_sft"]
    assert {row["task"] for row in bbh} == {f"bbh_{i}" for i in range(27)}
    assert sum(int(row["documents"]) for row in bbh) == 651
    assert all(float(row["score_low"]) <= float(row["score"]) <= float(row["score_high"]) for row in rows)
    assert {row["tokens_per_forward"] for row in bbh} == {"1.0"}


def test_a_run_keeps_all_metrics_and_writes_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_fakes.install(monkeypatch, run_fakes.FakeEvaluation())
    run_fakes.write_checkpoints(tmp_path / "checkpoints")
    assert run_fakes.command("method=ar_sft", *run_fakes.settings(tmp_path)) == 0
    [row] = csv.DictReader((tmp_path / "results/runs/tasks.csv").open())
    assert (row["task"], row["score"], row["documents"]) == ("word_problems", "0.5", "6")
    [found] = Store(tmp_path / "results").records()
    metrics = found.benchmarks["word_problems"].metrics
    assert metrics == {"exact_match,strict-match": 0.5, "own,none": 0.25}, "lm-eval's aggregates are kept"
