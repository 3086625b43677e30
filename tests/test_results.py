"""Records on disk, their arithmetic, intervals and tables."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from run_fakes import document

from harness.engine.rows import Completion, Step
from harness.engine.stats import SequenceStats
from harness.evaluation import lm
from harness.results import provenance, stats, tables
from harness.results.records import DOCUMENT_TYPES, Record, now, summarise
from harness.results.store import DONE, FAILED, MISSING, PARTIAL, Store, StoredCell
from methods.jacobi import Jacobi

METRIC = {"word_problems": "exact_match,strict-match"}
# A document that was scored by the log-likelihoods of its choices: nothing was generated.
SCORED_ROW = document(
    0, new_tokens=0, target_forwards=0, positions=0, drafted=0, accepted=0, timed_forwards=0, target_seconds=0.0,
    acceptance_lengths=[], token_ids=[], confidences=[], text="", finish_reason="scored",
    loglikelihoods=[-1.5, -2.25], is_greedy=[True, False], token_ends=[],
)  # fmt: skip


def record(
    rows: Sequence[dict[str, Any]], key: str = "0" * 16, method: str = "mars", variant: str | None = None, **axes: Any
) -> Record:
    """A finished record of some rows."""
    benchmarks, speed = summarise(rows, METRIC | {row["group"]: "m,f" for row in rows if row["group"] not in METRIC})
    identity = {
        "method": {"name": method, "version": 1, "axes": axes},
        "model": {"model": "tiny", "dtype": "float32"},
        "suite": {"limit": None},
        "cache": {"mode": "cursor"},
        "seed": 0,
    }
    config = {
        "variant": variant,
        "cache": "cursor",
        "batch_size": 1,
        "seed": 0,
        "suite": {"name": "quick", "limit": None},
    }
    return Record(key, identity, config, benchmarks, speed, created=now())


# --- the store


def test_states_of_a_cell(tmp_path: Path) -> None:
    cell = Store(tmp_path).cell("abc")
    assert cell.state() == MISSING
    cell.fail("Traceback …")
    assert cell.state() == FAILED
    with cell.appending() as partial:
        assert cell.state() == MISSING, "a new attempt takes the old error away"
        partial.append(document(0))
        assert cell.state() == PARTIAL
    cell.fail("Traceback …")
    assert cell.state() == FAILED
    assert cell.num_partial_rows() == 1
    cell.finish(record([document(0)]), [document(0)])
    assert cell.state() == DONE
    assert {path.name for path in cell.path.iterdir()} == {"record.json", "documents.parquet"}


def test_rows_survive_and_a_torn_tail_is_cut(tmp_path: Path) -> None:
    cell = StoredCell(tmp_path / "runs" / "abc")
    cell.path.mkdir(parents=True)
    with cell.appending() as partial:
        partial.append({"doc_id": 0, "text": "line\nbreak — ü"})
        partial.append({"doc_id": 1})
    whole = cell.partial_path.read_bytes()
    for tail in (b'{"doc_id": 2, "te', b'{"doc_id": 2}', b"\x00\x00\x00\n", b"7\n"):
        cell.partial_path.write_bytes(whole + tail)
        with cell.appending() as partial:
            assert partial.rows == [{"doc_id": 0, "text": "line\nbreak — ü"}, {"doc_id": 1}]
            partial.append({"doc_id": 2})
        assert cell.partial_path.read_bytes() == whole + b'{"doc_id": 2}\n'


def test_rows_are_on_disk_one_by_one(tmp_path: Path) -> None:
    cell = StoredCell(tmp_path)
    with cell.appending() as partial:
        partial.append({"doc_id": 0})
        assert cell.partial_path.read_text() == '{"doc_id": 0}\n'


def test_crash_while_finishing_leaves_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever step fails, the cell is not done and its rows are still there."""
    cell = StoredCell(tmp_path / "abc")
    cell.path.mkdir()
    with cell.appending() as partial:
        partial.append(document(0))
    replace = os.replace
    for fatal in ("documents.parquet", "record.json"):

        def crash(source: Any, target: Any, fatal: str = fatal) -> None:
            if Path(target).name == fatal:
                raise OSError("no space left on device")
            replace(source, target)

        monkeypatch.setattr(os, "replace", crash)
        with pytest.raises(OSError, match="no space"):
            cell.finish(record([document(0)]), [document(0)])
        assert cell.state() == PARTIAL
        assert not cell.record_path.exists()
    monkeypatch.setattr(os, "replace", replace)
    cell.finish(record([document(0)]), [document(0)])
    assert cell.state() == DONE


def test_documents_keep_their_types(tmp_path: Path) -> None:
    import pandas as pd
    import pyarrow.parquet as pq

    rows = [
        document(
            0, metrics={"a": 1, "b": 0.5}, draft_depths=[1, 2], draft_confidences=[1, 0.5], draft_right=[True, False]
        ),
        document(1, metrics={"a": 0}, confidences=[], token_ids=[], token_ends=[]),
    ]
    chosen = SCORED_ROW | {"doc_id": 2, "metrics": {"a": 1}}
    cell = StoredCell(tmp_path / "abc")
    cell.path.mkdir()
    cell.finish(record([*rows, chosen]), [*rows, chosen])
    assert cell.documents() == [row | {"loglikelihoods": None, "is_greedy": None} for row in rows] + [chosen]
    assert cell.scores()[1] | {"metrics": {}} == {
        "group": "word_problems", "task": "word_problems", "doc_id": 1, "score": 1.0, "token_ids": [], "metrics": {},
    }  # fmt: skip
    schema = pq.read_schema(cell.documents_path)
    assert str(schema.field("score").type) == "double"
    assert str(schema.field("acceptance_lengths").type.value_type) == "int64"
    assert str(schema.field("loglikelihoods").type.value_type) == "double"
    assert str(schema.field("draft_confidences").type.value_type) == "double"
    for name in ("is_greedy", "draft_right"):
        assert str(schema.field(name).type.value_type) == "bool"
    assert set(DOCUMENT_TYPES) <= set(schema.names)
    frame = pd.read_parquet(cell.documents_path)
    assert frame["metric.a"].tolist() == [1, 0, 1]
    assert frame["acceptance_lengths"][0].tolist() == [1, 3]


HOLDER = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from harness.results.store import StoredCell
    with StoredCell(Path(sys.argv[1])).lock(on_wait=lambda: print("waits", flush=True)):
        print("holds", flush=True)
        time.sleep(float(sys.argv[2]))
    """
)


def test_two_processes_take_turns_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    def hold(seconds: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path / "abc"), seconds], stdout=subprocess.PIPE, text=True
        )

    first = hold("60")
    assert first.stdout is not None
    assert first.stdout.readline() == "holds\n"
    second = hold("0")
    assert second.stdout is not None
    assert second.stdout.readline() == "waits\n"
    assert second.poll() is None
    first.kill()
    first.wait()
    assert second.stdout.readline() == "holds\n"
    assert second.wait(30) == 0


def test_records_are_listed_oldest_first_and_foreign_folders_ignored(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for key in ("b1", "a2"):
        cell = store.cell(key)
        cell.path.mkdir(parents=True)
        cell.finish(record([document(0)], key=key), [document(0)])
    (store.root / ".hydra").mkdir()
    assert [r.key for r in store.records()] == ["b1", "a2"]


# --- records


def test_a_record_of_another_version_does_not_hide_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cell = Store(tmp_path).cell("a" * 16)
    cell.path.mkdir(parents=True)
    cell.finish(record([document(0)], cell.key), [document(0)])
    for key, text in (("b" * 16, '{"key": "b"}'), ("c" * 16, "{")):
        (tmp_path / "runs" / key).mkdir()
        (tmp_path / "runs" / key / "record.json").write_text(text)
    assert [r.key for r in Store(tmp_path).records()] == ["a" * 16]
    assert sum("is not read" in message for message in caplog.messages) == 2


def test_processes_may_write_one_file_at_once(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from harness.results.store import write_atomically as w\n"
    code += "for i in range(200): w(Path(sys.argv[1]), sys.argv[2] * 1000)"
    target = tmp_path / "table.md"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(target), letter]) for letter in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert target.read_text() in ("a" * 1000, "b" * 1000)
    assert [path.name for path in tmp_path.iterdir()] == ["table.md"]


def test_ratio_of_sums_and_mean_of_ratios_are_told_apart() -> None:
    """One task of 10 tokens in 10 forwards, one of 90 in 30: 100/40 = 2.5 against (1 + 3)/2 = 2."""
    slow = document(0, task="a", new_tokens=10, target_forwards=10, positions=40, share_seconds=1.0)
    fast = document(0, task="b", new_tokens=90, target_forwards=30, positions=120, share_seconds=4.0)
    benchmarks, speed = summarise([slow, fast], METRIC)
    one = benchmarks["word_problems"].speed
    assert one.tokens_per_forward == 2.5
    assert one.tokens_per_forward_task_mean == 2.0
    assert one.positions_per_token == 1.6
    assert one.tokens_per_second == 20.0
    assert one.acceptance_counts == [0, 2, 0, 2]
    assert speed.tokens_per_forward_task_mean == 2.5, "over benchmarks, of which there is one"


def test_benchmarks_are_not_averaged_together() -> None:
    rows = [document(0, 1.0), document(1, 1.0, group="other", task="other"), document(2, 0.0, group="other", task="x")]
    benchmarks, _ = summarise(rows, METRIC | {"other": "acc,none"})
    assert benchmarks["word_problems"].score.value == 1.0
    assert benchmarks["other"].score.value == 0.5
    assert {name: task.score for name, task in benchmarks["other"].tasks.items()} == {"other": 1.0, "x": 0.0}
    assert benchmarks["other"].metric == "acc,none"


def test_a_draft_forward_costs_its_share_of_a_target_forward() -> None:
    """8 timed drafts in 2 s, 4 timed target forwards in 4 s: a quarter each, and that price holds for all drafts."""
    rows = [
        document(
            i, new_tokens=9, target_forwards=3, timed_forwards=2, target_seconds=2.0,
            draft_forwards=6, timed_draft_forwards=4, draft_seconds=1.0, draft_positions=18,
        )
        for i in range(2)
    ]  # fmt: skip
    _, speed = summarise(rows, METRIC)
    assert speed.draft_cost == 0.25
    assert speed.equivalent_forwards == 6 + 12 / 4
    assert speed.tokens_per_equivalent_forward == 2.0
    assert speed.tokens_per_forward == 3.0
    assert speed.draft_positions_per_token == 2.0
    halved = [row | {"target_seconds": 1.0, "draft_seconds": 0.5} for row in rows]
    assert summarise(halved, METRIC)[1].draft_cost == 0.25, "shares of a batch of two have the same ratio"
    slow = [row | {"draft_seconds": 4.0} for row in rows]
    assert summarise(slow, METRIC)[1].tokens_per_equivalent_forward == 1.0, "drafts as dear as the target"


def test_without_a_model_that_drafts_nothing_is_priced() -> None:
    """Also where proposing took time: the time of a method's own arithmetic is no forward."""
    _, speed = summarise([document(0, draft_seconds=0.5)], METRIC)
    assert speed.draft_cost is None
    assert speed.equivalent_forwards == speed.target_forwards
    assert speed.tokens_per_equivalent_forward == speed.tokens_per_forward
    only_first = document(0, draft_forwards=4, timed_draft_forwards=0, timed_forwards=0, target_seconds=0.0)
    assert summarise([only_first], METRIC)[1].draft_cost is None


def test_record_survives_json() -> None:
    before = record([document(0), document(1, 0.0)], tau=0.7)
    assert Record.from_dict(json.loads(json.dumps(before.to_dict()))) == before


def test_a_record_from_before_draft_costs_is_read() -> None:
    before = record([document(0)])
    old = json.loads(json.dumps(before.to_dict()))
    for speed in (old["speed"], old["benchmarks"]["word_problems"]["speed"]):
        for name in ("draft_cost", "equivalent_forwards", "tokens_per_equivalent_forward"):
            del speed[name]
    assert Record.from_dict(old) == before


def test_rows_are_made_of_what_the_engine_counted() -> None:
    """Times belong to the forwards after the prompt's that asked the method; one that only stored has no step."""
    stats = SequenceStats(target_forwards=4, draft_forwards=9, target_seconds=2.0, draft_seconds=1.0)
    trace = [Step([5], draft_forwards=4), Step([6], draft_forwards=3), Step([7], draft_forwards=2)]
    row = lm._row(Completion(("a", 1), [1], [5, 6, 7], "x", stats, trace), "hash")
    assert (row["timed_forwards"], row["timed_draft_forwards"]) == (2, 5)
    assert (row["target_seconds"], row["draft_seconds"]) == (2.0, 1.0)
    scored = {"group", "score", "extracted", "target", "loglikelihoods", "is_greedy"}
    assert set(DOCUMENT_TYPES) - scored == set(row), "every column is declared, and every declared one is there"


def test_provenance_names_code_versions_and_machine() -> None:
    found = provenance.collect(seed=7)
    assert found["seed"] == 7
    assert found["threads"] >= 1
    assert found["hardware"]["cores"] >= 1
    assert found["versions"]["hydra-core"].startswith("1.3")
    if found["git"]:
        assert len(found["git"]["revision"]) == 40
        assert found["git"]["dirty"] in (True, False)


# --- intervals


def test_agresti_coull_holds_wilsons_published_intervals() -> None:
    """Newcombe (1998), Table I, method 3: 81/263, 15/148, 0/20, 1/29. Both have one centre where nothing is cut off."""
    for successes, n, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605)):
        found = stats.agresti_coull(successes, n)
        assert sum(found) == pytest.approx(low + high, abs=1e-4)
        assert 0 < low - found[0] < 0.0011
        assert 0 < found[1] - high < 0.0011
    for successes, n, high in ((0, 20, 0.1611), (1, 29, 0.1718)):  # near the end it is clearly wider
        found = stats.agresti_coull(successes, n)
        assert found[0] == 0
        assert 0.01 < found[1] - high < 0.03
        assert stats.agresti_coull(n - successes, n) == pytest.approx((1 - found[1], 1))


def test_agresti_coull_by_hand() -> None:
    """z² = 3.8415 answers more, half of them right."""
    centre = (66 + 1.92073) / 167.84146
    half = 1.959964 * math.sqrt(centre * (1 - centre) / 167.84146)
    assert stats.agresti_coull(66, 164) == pytest.approx((centre - half, centre + half), abs=1e-5)


def test_mcnemar_against_binomial_tails() -> None:
    assert stats.mcnemar(0, 0) == 1.0
    assert stats.mcnemar(5, 5) == 1.0
    assert stats.mcnemar(10, 2) == pytest.approx(2 * (1 + 12 + 66) / 2**12)
    assert stats.mcnemar(2, 10) == stats.mcnemar(10, 2)
    assert 0 <= stats.mcnemar(3000, 2500) < 1e-9, "large counts do not overflow"


def test_bootstrap_agrees_with_the_normal_interval() -> None:
    values = np.random.default_rng(1).normal(0.5, 0.1, 400)
    interval = stats.score_interval(list(values))
    half = 1.96 * values.std(ddof=1) / 20
    assert interval.how == "bootstrap"
    assert interval.high - interval.value == pytest.approx(half, rel=0.1)
    assert stats.score_interval(list(values)) == interval, "seeded"


def test_clusters_widen_the_interval() -> None:
    """Ten subtasks, each all right or all wrong: as good as ten documents, not 500."""
    scores = [float(i % 2) for i in range(10) for _ in range(50)]
    clusters = [i for i in range(10) for _ in range(50)]
    clustered = stats.score_interval(scores, clusters)
    assert clustered.half_width > 5 * stats.score_interval(scores).half_width
    few = stats.score_interval(scores, [c % 2 for c in clusters])
    assert few.how == "Agresti-Coull", "two subtasks cannot be resampled"


def pairs(outcomes: Sequence[tuple[float, float]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    return [document(i, a) for i, (a, _) in enumerate(outcomes)], [document(i, b) for i, (_, b) in enumerate(outcomes)]


def test_comparison_is_paired() -> None:
    """The same marginals: 60 against 50 of 100, once nested and once as crossed as can be."""
    nested = stats.compare(*pairs([(1, 1)] * 50 + [(1, 0)] * 10 + [(0, 0)] * 40))
    crossed = stats.compare(*pairs([(1, 1)] * 10 + [(1, 0)] * 50 + [(0, 1)] * 40))
    assert nested is not None
    assert crossed is not None
    assert nested.difference.value == crossed.difference.value == pytest.approx(0.1)
    assert nested.difference.low > 0 > crossed.difference.low
    assert nested.p_value is not None
    assert nested.p_value == pytest.approx(2 / 2**10)
    assert (crossed.wins, crossed.losses) == (50, 40)


def test_comparison_joins_by_document_and_not_by_order() -> None:
    first, second = pairs([(1, 0), (0, 1), (1, 1)])
    found = stats.compare(first, list(reversed(second))[:2])
    assert found is not None
    assert found.difference.n == 2
    assert (found.wins, found.losses) == (0, 1)
    assert stats.compare(first, [document(0, task="another")]) is None


def test_equal_answers_do_not_prove_equality() -> None:
    """20 documents without a difference leave room for one; 2,000 leave little."""
    few, many = (stats.compare(*pairs([(1, 1)] * n)) for n in (20, 2000))
    assert few is not None
    assert many is not None
    assert few.difference.value == 0
    assert few.difference.low < -0.05
    assert few.difference.high > 0.05
    assert many.difference.half_width < 0.002


def test_three_wins_in_three_documents_are_no_certainty() -> None:
    won = stats.compare(*pairs([(1, 0)] * 3))
    assert won is not None
    assert won.difference.value == 1
    assert won.difference.low < 0.5


def test_students_quantile_against_the_printed_table() -> None:
    for freedom, quantile in ((7, 2.365), (13, 2.160), (26, 2.056), (1000, 1.962)):
        assert stats.student(freedom) == pytest.approx(quantile, abs=1.5e-3)


def test_bonett_price_by_hand() -> None:
    """12 wins and 3 losses in 98: 13 and 4 hundredths, whatever the bootstrap would say."""
    half = 1.959964 * math.sqrt((0.17 - 0.09**2) / 100)
    expected = pytest.approx((0.09 - half, 0.09 + half), abs=1e-6)
    assert stats.bonett_price(12, 3, 98) == expected
    found = stats.compare(*pairs([(1, 0)] * 12 + [(0, 1)] * 3 + [(1, 1)] * 83))
    assert found is not None
    assert (found.difference.low, found.difference.high) == expected
    assert (found.difference.value, found.difference.how) == (pytest.approx(9 / 98), "Bonett-Price")


def paired_coverage(n: int, up: float, down: float) -> float:
    """Exact: the chances of all outcomes (wins, losses) of n pairs whose interval holds the truth."""
    most = min(n, int(n * (up + down) + 8 * math.sqrt(n * (up + down)) + 8))
    logs = [math.lgamma(i + 1) for i in range(n + 1)]
    covered = 0.0
    for wins in range(most + 1):
        for losses in range(most + 1 - wins if down else 1):
            low, high = stats.bonett_price(wins, losses, n)
            if low <= up - down <= high:
                rest = n - wins - losses
                ways = logs[n] - logs[wins] - logs[losses] - logs[rest]
                chance = wins * math.log(up) + (losses * math.log(down) if down else 0) + rest * math.log1p(-up - down)
                covered += math.exp(ways + chance)
    return covered


@pytest.mark.parametrize(("n", "discordant"), [
    *itertools.product((164, 448, 541, 1319), (0.005, 0.01, 0.02, 0.03)), (164, 0.1), (448, 0.1),
])  # fmt: skip
def test_paired_intervals_cover_however_few_pairs_differ(n: int, discordant: float) -> None:
    """Evenly, three to one, and all one way. A percentile bootstrap covers 84 % of 164 with 2 % all one way."""
    for share in (0.5, 0.75, 1.0):
        assert paired_coverage(n, discordant * share, discordant * (1 - share)) >= 0.93


def test_the_paired_interval_that_records_get_covers_in_a_simulation() -> None:
    """164 documents, 3 % of them discordant, three of four for the first: in at least 93 % of 200 comparisons."""
    generator = np.random.default_rng(0)
    held = 0
    for wins, losses, _ in generator.multinomial(164, [0.0225, 0.0075, 0.97], size=200):
        found = stats.compare(*pairs([(1, 0)] * wins + [(0, 1)] * losses + [(1, 1)] * (164 - wins - losses)))
        assert found is not None
        held += found.difference.low <= 0.015 <= found.difference.high
    assert 186 <= held < 200


def test_intervals_over_subtasks_cover(monkeypatch: pytest.MonkeyPatch) -> None:
    """14 subtasks (MMLU-Pro's number) whose own rates differ: percentiles alone cover 90 %, the moved ones 94 %."""
    monkeypatch.setattr(stats, "RESAMPLES", 500)
    generator = np.random.default_rng(0)
    sizes = generator.integers(10, 40, 14)
    clusters = np.repeat(np.arange(14), sizes).tolist()
    rates = generator.beta(6, 14, size=(300, 14))
    held = 0
    for rate in rates:
        scores = (generator.random(sizes.sum()) < np.repeat(rate, sizes)).astype(float)
        found = stats.score_interval(scores.tolist(), clusters)
        held += found.low <= 0.3 <= found.high
    assert 0.93 * 300 <= held < 300


# --- tables


@pytest.fixture
def lines() -> list[tables.Line]:
    documents = {
        "a" * 16: [document(i, float(i % 3 > 0), token_ids=[i % 3]) for i in range(30)],
        "b" * 16: [document(i, float(i % 2), token_ids=[5]) for i in range(30)],
        "c" * 16: [document(i, float(i % 2), target_forwards=4, acceptance_lengths=[1] * 4) for i in range(30)],
    }
    records = [
        record(documents["a" * 16], "a" * 16, tau=0.7, block_size=4, confidence="probability"),
        record(documents["b" * 16], "b" * 16, tau=0.95, block_size=4, confidence="probability"),
        record(documents["c" * 16], "c" * 16, "ar_sft"),
    ]
    return tables.make_lines(records, lambda key: documents[key])


def line(*rows: dict[str, Any], method: str = "mars", cls: str = "methods.mars.Mars", **axes: Any) -> tables.Line:
    """A line of the table for a method whose class is known."""
    found = record(rows or [document(0)], method[0] * 16, method, **axes)
    found = Record(**{**vars(found), "config": found.config | {"method": {"_target_": cls, "name": method}}})
    [made] = tables.make_lines([found], lambda _: rows)
    return made


# A draft forward takes half the time of a target forward.
DRAFTED: dict[str, Any] = {"draft_forwards": 8, "timed_draft_forwards": 4, "draft_seconds": 0.2}


def rendered(lines: Sequence[tables.Line], width: int) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(tables.to_rich(lines))
    return console.export_text()


@pytest.mark.parametrize("width", [80, 120])
def test_terminal_table_fits_and_every_score_has_its_interval(lines: list[tables.Line], width: int) -> None:
    text = rendered(lines, width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    assert "66.7 ±" in text
    assert text.count(" ±") == 3
    assert "+16.7 [" in text
    assert "reference" in text
    assert "tiny · word_problems" in text
    [ar] = [line for line in text.splitlines() if line.startswith("ar_sft")]
    assert ar.split()[1:3] == ["—", "—"], "tau and B are no axes of AR SFT"
    assert " 1.00 " in ar


def test_columns_appear_where_rows_differ(lines: list[tables.Line]) -> None:
    other = record([document(0)], "d" * 16, variant="no_sft_loss", tau=0.7, block_size=4, confidence="margin")
    wider = [*lines, *tables.make_lines([other], lambda key: [document(0)])]
    header = rendered(wider, 160)
    for name in ("variant", "confidence", " n "):
        assert name not in rendered(lines, 160).split("──")[0].replace("confidence probability", "")
        assert name in header
    assert "no_sft_loss" in header


def test_options_show_where_they_are_not_the_default() -> None:
    plain = {"tau": 0.7, "block_size": 4, "confidence": "probability", "verify": False, "temperature": 0.0}
    assert line(**plain).labels["options"] == tables.NONE
    verified = line(**plain | {"verify": True, "temperature": 0.5}).labels
    assert verified["method"] == "mars verified"
    assert (verified["tau"], verified["confidence"]) == (tables.NONE, tables.NONE), "both are of no account"
    assert verified["options"] == "temperature=0.5"
    jacobi = {"method": "jacobi", "cls": "methods.jacobi.Jacobi", "initial": "prompt"}
    assert line(**jacobi, window_length=Jacobi().window_length).labels["options"] == tables.NONE
    assert line(**jacobi, window_length=99).labels["options"] == "window_length=99"
    elsewhere = line(cls="nowhere.Mine", method="mine", guesses=3, temperature=0.0)
    assert elsewhere.labels["options"] == "guesses=3", "its defaults are not known here"
    other = line(method="medusa", cls="methods.medusa.Medusa", temperature=0.0)
    text = rows_of([line(**jacobi, window_length=99), other], 80)
    place = text.index(" window_length=99")
    assert text[place - 1].startswith("jacobi ")
    assert not any(" tau " in row for row in text), "no row has one"


def rows_of(lines: Sequence[tables.Line], width: int) -> list[str]:
    return [row.rstrip() for row in rendered(lines, width).splitlines()]


def test_options_that_all_rows_share_stand_in_the_title() -> None:
    """Those of several methods, and those of every row; what one of several methods has stays below it."""
    ar = line(method="ar_sft", cls="methods.ar_sft.ArSft", temperature=0.8)
    medusa = line(method="medusa", cls="methods.medusa.Medusa", temperature=0.8, num_heads=4)
    block = line(method="block_diffusion", cls="methods.block_diffusion.BlockDiffusion", tau=0.9)  # cannot sample
    for rows in ([ar, medusa], [ar, medusa, block]):
        text = rows_of(rows, 120)
        assert text[0].endswith(" · temperature=0.8")
        assert sum("temperature" in row for row in text) == 1
        assert " num_heads=4" in text
    text = rows_of(
        [line(method="medusa", cls="methods.medusa.Medusa", temperature=t, num_heads=4) for t in (0, 1)], 120
    )
    assert text[0].endswith(" · num_heads=4"), "of the only method, at two temperatures"
    assert text.count(" temperature=1") == 1
    unlike = rows_of([ar, line(method="medusa", cls="methods.medusa.Medusa", temperature=0.0)], 120)
    assert " temperature=0.8" in unlike, "the other has the option too, at its default"


def test_options_break_only_where_the_terminal_is_narrow() -> None:
    """First an interval goes below its difference, then lengths below the score, only then a value below its name."""
    documents = {"a" * 16: [document(i, float(i % 2), **DRAFTED) for i in range(20)]}
    documents["b" * 16] = [document(i, float(i % 3 > 0), token_ids=[i], **DRAFTED) for i in range(20)]
    reference = record(documents["a" * 16], "a" * 16, "ar_sft")
    found = tables.make_lines(
        [reference, record(documents["b" * 16], "b" * 16, guesses_ahead=12)], documents.__getitem__
    )
    whole = max(len(row) for row in rows_of(found, 120) if "──" in row)
    seen = []
    for width in range(120, 60, -1):
        text = rows_of(found, width)
        assert all(len(row) <= width for row in text)
        [place] = [i for i, row in enumerate(text) if row.startswith("mars")]
        is_interval_below = "[" not in text[place]
        is_option_whole = text[place + 1].split()[0] == "guesses_ahead=12"
        assert is_option_whole or text[place + 1].split()[0] == "guesses_ahead="
        is_length_below = "4.0, 0.0%" in text[place + 1]
        seen.append((is_interval_below, is_length_below, is_option_whole))
    steps = [(False, False, True), (True, False, True), (True, True, True), (True, True, False)]
    assert list(dict.fromkeys(seen)) == steps
    assert seen.count(steps[0]) == 120 - whole + 1, "in one piece as long as there is room"


def test_a_missing_reference_is_explained(lines: list[tables.Line]) -> None:
    sentence = "—: no AR SFT cell with these settings yet; add method=ar_sft"
    assert sentence not in " ".join(rendered(lines, 120).split())
    assert sentence in " ".join(rendered([*lines, line(tau=0.7)], 120).split())


def test_answers_equal_to_the_token_are_told_from_an_equal_score() -> None:
    """Medusa answers as AR SFT does; MARS scores the same with other words in one of four documents."""
    keys = {"ar_sft": "a" * 16, "medusa": "b" * 16, "mars": "c" * 16}
    documents = {key: [document(i, token_ids=[i]) for i in range(4)] for key in keys.values()}
    documents[keys["mars"]][3]["token_ids"] = [3, 3]

    def made() -> list[tables.Line]:
        records = [record(documents[key], key, method) for method, key in keys.items()]
        return tables.make_lines(records, documents.__getitem__)

    text = rows_of(made(), 120)
    assert [row.split("  ")[-1].strip() for row in text if row.startswith("ar_sft")] == ["reference"]
    assert [row.endswith(" same answers") for row in text if row.startswith(("medusa", "mars"))] == [True, False]
    assert [row.endswith("]") for row in text if row.startswith("mars")] == [True]
    rows = list(csv.DictReader(io.StringIO(tables.to_csv(made()))))
    assert [row["same_answers"] for row in rows] == ["", "1.0", "0.75"]
    assert [row["delta"] for row in rows] == ["", "0.0", "0.0"], "numbers stay numbers"
    assert "same answers" not in tables.to_markdown(made())
    del documents[keys["medusa"]][0]["token_ids"]
    assert made()[1].same_answers is None, "not known of every document"
    assert "same answers" not in rendered(made(), 120)


def test_documents_without_token_ids_are_read(tmp_path: Path) -> None:
    rows = [{k: v for k, v in document(i).items() if k != "token_ids"} for i in range(2)]
    cell = StoredCell(tmp_path / "abc")
    cell.path.mkdir()
    cell.finish(record(rows), rows)
    assert [row["score"] for row in cell.scores()] == [1.0, 1.0]
    assert not any("token_ids" in row for row in cell.scores())


def test_seven_methods_with_drafts_and_options_fit_80_columns() -> None:
    """Wide scores, intervals with two digits on both sides, the longest names."""

    def score(i: int, k: int) -> float:
        return 1.0 if i == 5 else float((k * 7 + i) % 4 < 2)  # one method is always right: 100.0

    documents = {f"{i:016x}": [document(k, score(i, k), token_ids=[i], **DRAFTED) for k in range(20)] for i in range(8)}
    named = [
        ("ar_sft", "ArSft", {}),
        ("block_diffusion", "BlockDiffusion", {"tau": 0.95, "block_size": 4}),
        ("jacobi", "Jacobi", {"window_length": 8, "initial": "prompt"}),
        ("medusa", "Medusa", {"temperature": 0.0}),
        ("eagle", "Eagle", {"temperature": 0.0}),
        ("mars", "Mars", {"tau": 0.95, "block_size": 4, "confidence": "probability", "verify": False}),
        ("mars", "Mars", {"tau": None, "block_size": 4, "confidence": "probability", "verify": True}),
        ("speculative", "Speculative", {"tau": 0.95, "block_size": 4, "draft": "mars", "draft_model": "tiny-1m"}),
    ]
    records = []
    for (key, rows), (name, cls, axes) in zip(documents.items(), named, strict=True):
        made = record(rows, key, name, **axes)
        config = made.config | {"method": {"_target_": f"methods.{name}.{cls}", "name": name}}
        records.append(Record(**{**vars(made), "config": config}))
    text = rendered(tables.make_lines(records, documents.__getitem__), 80)
    assert all(len(row) <= 80 for row in text.splitlines())
    assert "…" not in text
    names = ("block_diffusion ", "mars verified ", "\n draft=mars ", "\n draft_model=", "\n  tiny-1m ")
    for whole in (*names, " 100.0 ±19.0 "):
        assert whole in text
    assert text.count("] ") + text.count("]\n") >= 7, "no interval is cut"


def test_cost_of_drafts_is_shown_where_drafts_are(lines: list[tables.Line]) -> None:
    """4 tokens, 2 forwards and 8 drafts at half a forward each: 2 per forward, 4 / 6 per equivalent forward."""
    drafted = line(document(0, **DRAFTED), tau=0.7)
    without, text = rendered(lines, 80), rendered([*lines, drafted], 80)
    assert "equiv." not in without
    assert text.count("equiv.") == 2, "a heading, and a sentence that explains it"
    assert " 2.00    0.67 " in text
    markdown = tables.to_markdown(lines).splitlines()[0]
    assert "| tokens/forward | tokens/equiv. forward |" in markdown
    plain, priced = csv.DictReader(io.StringIO(tables.to_csv([lines[0], drafted])))
    assert (plain["draft_forwards"], plain["draft_cost"], plain["draft_positions_per_token"]) == ("0", "", "0.0")
    assert plain["tokens_per_equivalent_forward"] == plain["tokens_per_forward"] == "2.0"
    assert (priced["draft_forwards"], priced["draft_cost"], priced["equivalent_forwards"]) == ("8", "0.5", "6.0")


def test_a_sampled_answer_is_not_compared_with_greedy_ones(lines: list[tables.Line]) -> None:
    documents = [document(i, 1.0) for i in range(30)]
    sampled = record(documents, "e" * 16, "mars", tau=None, verify=True, temperature=0.7)
    [alone] = tables.make_lines([sampled], lambda _: documents, earlier=[lines[2].record])
    assert alone.delta is None
    reference = record(documents, "f" * 16, "ar_sft", temperature=0.7)
    [paired] = tables.make_lines([sampled], lambda _: documents, earlier=[lines[2].record, reference])
    assert paired.delta is not None


def test_reference_of_an_earlier_run_is_found(lines: list[tables.Line]) -> None:
    documents = [document(i, 1.0) for i in range(30)]
    mars, ar = record(documents, "e" * 16, tau=1.0), lines[2].record
    alone = tables.make_lines([mars], lambda _: documents)
    assert alone[0].delta is None
    [line] = tables.make_lines([mars], lambda _: documents, earlier=[ar])
    assert line.delta is not None
    other_suite = Record(**{**vars(ar), "identity": ar.identity | {"suite": {"limit": 5}}})
    assert tables.make_lines([mars], lambda _: documents, earlier=[other_suite])[0].delta is None


def test_the_reference_is_the_newest_of_its_kind_and_of_this_engine(lines: list[tables.Line]) -> None:
    documents = {letter * 16: [document(i, score) for i in range(30)] for letter, score in (("1", 1.0), ("2", 0.0))}
    mars = lines[0].record
    old, new = (record(found, key, "ar_sft") for key, found in documents.items())
    old, new = (Record(**{**vars(r), "created": day}) for r, day in ((old, "2026-01-01"), (new, "2026-01-02")))

    def delta(*earlier: Record) -> float | None:
        half = [document(i, 0.5) for i in range(30)]
        [line] = tables.make_lines([mars], lambda key: documents.get(key, half), earlier)
        return line.delta and line.delta.difference.value

    assert delta(old, new) == 0.5, "weights may have been trained anew since the older one"
    assert delta(old, Record(**{**vars(new), "identity": new.identity | {"engine": 0}})) == -0.5


def test_markdown_and_csv_carry_everything(lines: list[tables.Line]) -> None:
    markdown = tables.to_markdown(lines).splitlines()
    assert len(markdown) == 2 + 3
    assert len({line.count("|") for line in markdown}) == 1
    rows = list(csv.DictReader(io.StringIO(tables.to_csv(lines))))
    assert [row["tau"] for row in rows] == ["0.7", "0.95", ""]
    assert float(rows[0]["score_low"]) < float(rows[0]["score"]) < float(rows[0]["score_high"])
    assert float(rows[0]["delta"]) == pytest.approx(1 / 6)
    assert rows[2]["delta"] == ""
    assert rows[0]["key"] == "a" * 16
    assert float(rows[0]["tokens_per_forward"]) == 2.0


def test_few_questions_of_many_subtasks_are_no_certainty() -> None:
    """One wrong answer in each of 14 subtasks resamples to an interval without width."""
    found = stats.score_interval([0.0] * 14, list(range(14)))
    assert (found.low, found.high) == stats.agresti_coull(0, 14)
    spread = stats.score_interval([1.0] * 50 + [0.0] * 350, [i // 50 for i in range(400)])
    assert spread.high > stats.agresti_coull(50, 400)[1] + 0.1  # subtasks that differ as wholes still widen it
