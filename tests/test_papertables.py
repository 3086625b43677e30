"""The paper's tables: as committed files have them, by plain sums over the documents, in any order of the folders."""

from __future__ import annotations

import math
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import synthetic_records as made
from pandas.testing import assert_frame_equal

from harness.analysis import load
from harness.analysis.data import Data
from harness.analysis.grids import EMPTY, LEGEND, Grid, Table, latex, to_csv, to_html, to_latex, to_markdown
from harness.analysis.papertables import make_tables

EXPECTED = Path(__file__).parent / "golden_tables"
GOLDEN = Path(__file__).parent / "golden"
NAMES = ["table2", "table3", "table4", "table5", "table6", "table8", "table9", "methods"]
PAPER = {
    "ifeval": ("ifeval",),
    "bbh": tuple(f"bbh_{i}" for i in range(9)),
    "mmlu_pro": ("mmlu_pro_law", "mmlu_pro_math"),
    "gpqa_main_cot_zeroshot": ("gpqa_main_cot_zeroshot",),
    "gsm8k_cot": ("gsm8k_cot",),
    "humaneval_instruct": ("humaneval_instruct",),
}
GSM8K = {"gsm8k_cot": PAPER["gsm8k_cot"]}
AR = made.AR[1]
MARS = {"tau": 0.95, "block_size": 4, "confidence": "probability", "verify": False, "temperature": 0.0}
ONE = MARS | {"tau": 1.0}
VERIFIED = MARS | {"tau": None, "verify": True}
MEDUSA = {"tree": "sparse", "num_nodes": 16, "acceptance": "greedy", "epsilon": 0.09, "delta": 0.3}
SPECULATIVE = {"target": "ar_sft", "draft": "ar_sft", "num_drafts": 4, "draft_tau": None, "temperature": 0.0}
COMPOSED = MARS | SPECULATIVE | {"target": "mars", "draft": "mars"}
TOLD = [
    "table", "scale", "method", "task", "metric", "unit", "n", "measured", "low", "high",
    "difference", "difference_low", "difference_high", "p", "p_holm", "key", "reference",
]  # fmt: skip
Right = Callable[[int], bool]


class World:
    """A results folder with cells whose scores and times are chosen."""

    def __init__(self, root: Path) -> None:
        self.root, self.count = root, 0

    def add(
        self, method: str, axes: dict[str, Any], right: Right, n: int = 60, seconds: float = 0.5,
        benchmarks: Any = made.QUICK, hardware: str = "a processor", batch_size: int = 1, variant: str | None = None,
        **identity: Any,
    ) -> str:  # fmt: skip
        """Write a cell; returns its key."""
        of = made.identity(method, axes, benchmarks, **identity)
        of["bench"] = [batch_size, hardware]  # as if a benchmark cell, whose key they are part of
        rows = made.documents(of, n, benchmarks, np.random.default_rng(self.count))
        for i, row in enumerate(rows):
            width = 1 if method == "ar_sft" or axes.get("tau") == 1.0 else 1 + i % 4
            forwards = 2 + i * i % 5
            row |= {"score": float(right(i)), "new_tokens": width * forwards, "target_forwards": forwards}
            row |= {"positions": 4 * forwards, "share_seconds": seconds, "acceptance_lengths": [width] * forwards}
            row |= {"token_ids": list(range(width * forwards)), "confidences": [], "finish_reason": "eos"}
            row |= {
                "drafted": 0,
                "accepted": 0,
                "metrics": row["metrics"] | {made.METRICS[row["group"]][0]: row["score"]},
            }
        path = made.write(self.root, of, rows, made.times(self.count), batch_size=batch_size, variant=variant)
        made.edit(path, lambda found: found["provenance"]["hardware"].update(processor=hardware))
        self.count += 1
        return path.name


def make_world(root: Path) -> dict[str, str]:
    """Keys of the cells by a name of their own."""
    world, keys = World(root), {}

    def often(percent: int, step: int = 7) -> Right:
        return lambda i: (i * step) % 100 < percent

    small: dict[str, Any] = {"model": "qwen2.5-0.5b", "benchmarks": PAPER, "n": 18, "dtype": "bfloat16"}
    keys["small ar"] = world.add("ar_sft", AR, often(40), **small)
    keys["small one"] = world.add("mars", ONE, often(45), **small)
    keys["small mars"] = world.add("mars", MARS, often(42, 11), **small)
    keys["small jacobi"] = world.add("jacobi", {"window_length": None, "initial": "prompt"}, often(40), **small)
    keys["ar"] = world.add("ar_sft", AR, often(60), seconds=1.0)
    keys["one"] = world.add("mars", ONE, often(62))
    keys["mars"] = world.add("mars", MARS, often(95), seconds=0.4)
    keys["low"] = world.add("mars", MARS | {"tau": 0.5}, often(15))
    keys["verified"] = world.add("mars", VERIFIED, often(62), seconds=0.7)
    keys["jacobi"] = world.add("jacobi", {"window_length": 4, "initial": "prompt"}, often(60))
    keys["medusa"] = world.add("medusa", MEDUSA, often(60))
    keys["ar ar"] = world.add("speculative", SPECULATIVE, often(60), seconds=0.8)
    keys["mars mars"] = world.add("speculative", COMPOSED, often(66), seconds=0.4)
    large: dict[str, Any] = {"model": "qwen2.5-7b", "benchmarks": GSM8K, "n": 30, "batch_size": 4}
    block = {"mode": "block", "block": 16, "accept_limit": "block_size"}
    keys["large ar"] = world.add("ar_sft", AR, often(70), seconds=3.0, hardware="H200", **large)
    keys["large block"] = world.add("mars", MARS, often(70), seconds=2.0, hardware="H200", cache=block, **large)
    keys["large other"] = world.add("mars", MARS, often(70), seconds=0.1, hardware="laptop", cache=block, **large)
    return keys


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    root = tmp_path_factory.mktemp("world") / "results"
    with pytest.MonkeyPatch.context() as patch:
        for task in PAPER:
            patch.setitem(made.METRICS, task, made.METRICS.get(task, ("exact_match,none",)))
        yield root, make_world(root)


def tables_of(*roots: Path) -> dict[str, Table]:
    return {table.name: table for table in make_tables(Data(load(*roots, quiet=True), roots))}


@pytest.fixture(scope="module")
def tables(world: tuple[Path, dict[str, str]]) -> dict[str, Table]:
    return tables_of(world[0])


@pytest.fixture(scope="module")
def real() -> dict[str, Table]:
    """Of a few small cells that were really run."""
    return tables_of(GOLDEN)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """The published numbers, and no cell."""
    root = tmp_path_factory.mktemp("nothing")
    return Data(load(root, quiet=True), (root,))


def documents(root: Path, key: str, benchmark: str) -> list[dict[str, Any]]:
    rows = pq.read_table(root / "runs" / key / "documents.parquet").to_pylist()
    return [row for row in rows if row["group"] == benchmark]


def measured(table: Table) -> pd.DataFrame:
    """The measured numbers, without what says little more than the key does."""
    return table.numbers.loc[table.numbers["measured"].notna(), TOLD].reset_index(drop=True)


def compare(found: pd.DataFrame, written: pd.DataFrame) -> None:
    """Exactly the same rows; numbers as far as a file keeps them."""
    assert list(written.columns) == TOLD
    for column in TOLD:
        if pd.api.types.is_numeric_dtype(written[column]):
            np.testing.assert_allclose(found[column].astype("float64"), written[column], rtol=1e-9, atol=1e-12)
        else:
            assert found[column].fillna("").tolist() == written[column].fillna("").tolist(), column


def number(table: Table, **where: Any) -> Any:
    """The only row of a table's numbers that has these values."""
    found = table.numbers
    for column, value in where.items():
        found = found[found[column].isna() if value is None else found[column] == value]
    [row] = found.to_dict("records")
    return row


def texts(table: Table) -> str:
    return "\n".join((to_markdown(table), to_latex(table), to_html(table)))


# --- what stands in them


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_those_of_the_committed_files(name: str, tables: dict[str, Table]) -> None:
    """``PYTHONPATH=. python tests/test_papertables.py`` writes them anew after a change that is meant."""
    assert to_markdown(tables[name]) == (EXPECTED / f"{name}.md").read_text(encoding="utf-8")
    compare(measured(tables[name]), pd.read_csv(EXPECTED / f"{name}.csv"))


def test_real_cells(real: dict[str, Table]) -> None:
    """Every measured number of ``tests/golden`` in a committed file, and by plain sums over the documents."""
    for name in ("table9", "methods"):
        assert to_markdown(real[name]) == (EXPECTED / f"real_{name}.md").read_text(encoding="utf-8")
    written = pd.read_csv(EXPECTED / "real.csv")
    compare(pd.concat([measured(table) for table in real.values()], ignore_index=True), written)
    numbers = real["methods"].numbers
    cells = sorted(path.parent for path in GOLDEN.rglob("record.json"))
    assert len(cells) == (numbers["metric"] == "score").sum() > 8
    for folder in cells:
        rows = pq.read_table(folder / "documents.parquet").to_pylist()
        found = numbers[numbers["key"] == folder.name].set_index("metric")["measured"]
        sums = {
            name: sum(row[name] for row in rows) for name in ("score", "new_tokens", "target_forwards", "positions")
        }
        assert found["score"] == pytest.approx(100 * sums["score"] / len(rows))
        assert found["tokens_per_forward"] == sums["new_tokens"] / sums["target_forwards"]
        assert found["positions_per_token"] == sums["positions"] / sums["new_tokens"]


def test_every_published_number_is_in_its_table(alone: Data) -> None:
    """Once, with its value, and as the mean of tasks' ratios where it is tokens per forward of a table of scores."""
    tables = {table.name: table for table in make_tables(alone)}
    assert list(tables) == NAMES
    renamed = {
        2: {},
        3: {},
        4: {"tokens_per_forward": "tokens_per_forward_task_mean"},
        5: {},
        6: {"delta": "delta_ar_sft"},
    }
    renamed |= {8: renamed[4], 9: renamed[4]}
    frame = alone.published
    for table, names in renamed.items():
        numbers = tables[f"table{table}"].numbers
        wanted = frame[frame["table"] == table]
        assert len(numbers) == len(wanted) == numbers["published"].notna().sum()
        assert numbers["measured"].isna().all()

        def listed(rows: pd.DataFrame, names: dict[str, str], value: str) -> list[Any]:
            columns = ["scale", "method", "variant", "tau", "cache_block", "batch_size", "draft", "metric", value]
            found = rows.assign(metric=rows["metric"].replace(names))[columns].astype(object)
            return sorted(map(repr, found.where(found.notna(), None).itertuples(index=False, name=None)))

        assert listed(numbers, {}, "published") == listed(wanted, names, "value")
    assert tables["methods"].grids == ()


def test_without_cells_everything_measured_is_visibly_empty(alone: Data) -> None:
    for table in make_tables(alone):
        for grid in table.grids:
            lines = [row for row in grid.rows if "published" not in row[1]]
            assert lines, grid.title
            for row in lines:
                assert set(row[2:]) <= {"", "—"}, row
                assert "" in row
        shown = to_markdown(table)
        assert not re.search(r"\bnan\b|None|<NA>", texts(table))
        assert shown.count(EMPTY) > 10 or table.name == "methods"
        assert LEGEND in shown


def test_every_method_of_the_project_has_a_row(alone: Data) -> None:
    """Also those that the paper lacks, measured or not, at both scales."""
    by_name = {table.name: table for table in make_tables(alone)}
    for name in ("table2", "table4"):
        for grid in by_name[name].grids:
            labels = " | ".join(row[0] for row in grid.rows)
            for method in ("MARS verified", "Jacobi", "Medusa", "EAGLE", "Speculative AR → AR", "Block Diffusion"):
                assert method in labels, (name, grid.title, method)


# --- against plain sums over the documents


def test_numbers_are_those_of_the_documents(world: tuple[Path, dict[str, str]], tables: dict[str, Table]) -> None:
    root, keys = world
    rows, base, one = (documents(root, keys[name], "word_problems") for name in ("mars", "ar", "one"))
    place = {"scale": "tiny", "method": "mars", "tau": 0.95, "task": "word_problems"}

    def of(metric: str) -> Any:
        return number(tables["table4"], metric=metric, **place)

    assert of("score")["measured"] == 100 * sum(row["score"] for row in rows) / 60
    assert of("score")["n"] == 60
    sums = {name: sum(row[name] for row in rows) for name in ("new_tokens", "target_forwards", "positions")}
    assert of("tokens_per_forward")["measured"] == sums["new_tokens"] / sums["target_forwards"]
    assert of("positions_per_token")["measured"] == sums["positions"] / sums["new_tokens"]
    for metric, other, name in (("delta", one, "one"), ("delta_ar_sft", base, "ar")):
        row = of(metric)
        score = {(one["task"], one["doc_id"]): one["score"] for one in other}
        differences = [one["score"] - score[one["task"], one["doc_id"]] for one in rows]
        assert row["measured"] == pytest.approx(100 * sum(differences) / 60, abs=1e-12)
        assert (row["key"], row["reference"]) == (keys["mars"], keys[name])
        assert row["low"] < row["measured"] < row["high"]
        wins, losses = differences.count(1.0), differences.count(-1.0)
        tail = sum(math.comb(wins + losses, k) for k in range(min(wins, losses) + 1)) / 2 ** (wins + losses)
        assert row["p"] == pytest.approx(min(1.0, 2 * tail))


def test_averages_are_over_the_benchmarks(world: tuple[Path, dict[str, str]], tables: dict[str, Table]) -> None:
    """Scores and the paper's tokens per forward as means, the other tokens per forward as a ratio of sums."""
    root, keys = world
    place = {"scale": "0.5b", "method": "mars", "tau": 0.95, "block_size": 4, "task": "average"}
    scores, ratios, new, forwards = [], [], 0, 0
    for task in PAPER:
        rows = documents(root, keys["small mars"], task)
        scores.append(100 * sum(row["score"] for row in rows) / len(rows))
        by_task = []
        for name in PAPER[task]:
            part = [row for row in rows if row["task"] == name]
            by_task.append(sum(row["new_tokens"] for row in part) / sum(row["target_forwards"] for row in part))
        ratios.append(sum(by_task) / len(by_task))
        new, forwards = new + sum(r["new_tokens"] for r in rows), forwards + sum(r["target_forwards"] for r in rows)
    score = number(tables["table4"], metric="score", **place)
    assert score["measured"] == pytest.approx(sum(scores) / 6)
    assert score["published"] == 29.0
    assert score["difference"] == pytest.approx(sum(scores) / 6 - 29.0)
    mean = number(tables["table4"], metric="tokens_per_forward_task_mean", **place)
    assert mean["measured"] == pytest.approx(sum(ratios) / 6)
    assert mean["published"] == 1.46
    assert number(tables["table4"], metric="tokens_per_forward", **place)["measured"] == pytest.approx(new / forwards)
    assert new / forwards != pytest.approx(sum(ratios) / 6, abs=1e-3), "else this tells nothing"


def test_differences_from_the_paper_count_both_errors(tables: dict[str, Table], alone: Data) -> None:
    place = {"scale": "0.5b", "method": "mars", "block_size": 4, "task": "gsm8k_cot", "metric": "score"}
    row = number(tables["table2"], variant=None, tau=1.0, **place)
    frame = alone.published
    for column, value in (place | {"table": 2, "tau": 1.0}).items():
        frame = frame[frame[column] == value]
    [paper] = frame[frame["variant"].isna()].to_dict("records")
    assert row["published"] == paper["value"] == 32.8
    below = math.sqrt((row["measured"] - row["low"]) ** 2 + (paper["high"] - paper["value"]) ** 2)
    assert row["difference"] == pytest.approx(row["measured"] - 32.8)
    assert row["difference_low"] == pytest.approx(row["difference"] - below)
    assert below > row["measured"] - row["low"]


def by_hand(ps: list[float]) -> list[float]:
    """Holm's p-values, by his words."""
    found = [1.0] * len(ps)
    highest = 0.0
    for rank, (p, i) in enumerate(sorted((p, i) for i, p in enumerate(ps))):
        highest = max(highest, min(1.0, p * (len(ps) - rank)))
        found[i] = highest
    return found


def test_better_is_said_where_it_is_supported(world: tuple[Path, dict[str, str]], tables: dict[str, Table]) -> None:
    keys = world[1]
    table = tables["methods"]
    deltas = table.numbers[(table.numbers["metric"] == "delta_ar_sft") & (table.numbers["scale"] == "tiny")]
    assert len(deltas) == 8, "every method but the reference"
    assert deltas["p_holm"].tolist() == pytest.approx(by_hand(deltas["p"].tolist()))
    says = dict(zip(deltas["key"], deltas["p_holm"] < 0.05, strict=True))
    assert {name for name in keys if says.get(keys[name])} == {"mars", "low"}
    [grid] = [grid for grid in table.grids if grid.title == "tiny, word problems"]
    verdict = {row[0]: row[grid.header.index("says")] for row in grid.rows}
    assert verdict["MARS B=4 τ=0.95"] == "better"
    assert verdict["MARS B=4 τ=0.5"] == "worse"
    assert verdict["Medusa"] == "not told apart"
    assert verdict["AR SFT"] == "—"
    starred = [row for row in tables["table4"].grids[2].rows if row[-1].endswith("*")]
    assert [row[1] for row in starred] == ["Δ τ=1", "Δ AR SFT"], "of MARS at 0.95"


def test_every_measured_cell_is_in_the_overview_once(
    world: tuple[Path, dict[str, str]], tables: dict[str, Table]
) -> None:
    cells = load(world[0]).cells
    scores = tables["methods"].numbers[tables["methods"].numbers["metric"] == "score"]
    assert sorted(zip(scores["key"], scores["task"], strict=True)) == sorted(
        zip(cells["key"], cells["benchmark"], strict=True)
    )
    assert sum(len(grid.rows) for grid in tables["methods"].grids) == len(cells)


def test_the_papers_jacobi_is_the_one_that_guesses_every_token(tables: dict[str, Table], world: Any) -> None:
    row = number(tables["table9"], scale="0.5b", method="jacobi", task="gsm8k_cot", metric="score")
    assert (row["published"], row["key"]) == (36.5, world[1]["small jacobi"])
    assert number(tables["table9"], scale="tiny", method="jacobi", metric="score")["other"] == "n=4"


def test_sweep_has_taus_in_columns(tables: dict[str, Table], world: Any) -> None:
    [grid] = [grid for grid in tables["table8"].grids if grid.title.startswith("tiny")]
    assert grid.header == ("method", "", "τ=1", "τ=0.95", "τ=0.5")
    by_line = {(row[0], row[1]): row[2:] for row in grid.rows}
    assert by_line["AR SFT", "score"][1:] == ("—", "—")
    assert all(by_line["MARS B=4", "score"])
    [paper] = [grid for grid in tables["table8"].grids if grid.title.startswith("Qwen2.5-0.5B, GSM8K")]
    lines = [row for row in paper.rows if row[0] == "MARS B=8"]
    assert lines[0][2:] == ("32.8 ±2.6", "31.7 ±2.6", "30.0 ±2.6", "26.5 ±2.5", "22.1 ±2.3", "18.0 ±2.1", "10.5 ±1.7")


# --- clocks


def test_seconds_are_compared_on_one_machine_only(tables: dict[str, Table], world: tuple[Path, dict[str, str]]) -> None:
    """The laptop's MARS would be 30 times as fast as the H200's AR SFT."""
    keys = world[1]
    titles = [grid.title for grid in tables["table5"].grids]
    assert [title.split(" (")[0] for title in titles] == [
        "Qwen2.5-7B on H200", "Qwen2.5-7B on laptop", "Qwen2.5-0.5B on a processor", "tiny on a processor",
    ]  # fmt: skip
    speedups = tables["table5"].numbers[tables["table5"].numbers["metric"] == "speedup"]
    row = speedups[speedups["key"] == keys["large block"]].to_dict("records")[0]
    assert (row["measured"], row["published"], row["batch_size"]) == (pytest.approx(1.5), 1.62, 4)
    assert row["difference"] == pytest.approx(-0.12)
    assert row["reference"] == keys["large ar"]
    assert speedups[speedups["key"] == keys["large other"]].empty, "no AR SFT was timed there"
    tiny = speedups[speedups["key"] == keys["mars"]].to_dict("records")[0]
    assert tiny["measured"] == pytest.approx(2.5)


def test_other_batch_sizes_and_documents_are_no_reference(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.add("ar_sft", AR, bool, n=10, batch_size=1)
    world.add("mars", MARS, bool, n=10, batch_size=8)
    world.add("mars", MARS, bool, n=12, batch_size=1, limit=12)
    numbers = tables_of(tmp_path)["table5"].numbers
    found = numbers[(numbers["metric"] == "speedup") & numbers["measured"].notna()]
    assert found["method"].tolist() == ["ar_sft"]


def test_speculation_is_compared_with_speculation_and_with_plain_ar(tables: dict[str, Table]) -> None:
    place = {"scale": "tiny", "draft": "mars", "target": "mars"}
    assert number(tables["table6"], metric="speedup", **place)["measured"] == pytest.approx(2.0)
    assert number(tables["table6"], metric="speedup_over_ar_sft", **place)["measured"] == pytest.approx(2.5)
    [grid] = [grid for grid in tables["table6"].grids if grid.title.startswith("tiny")]
    assert [row[0] for row in grid.rows if row[2] == ""] == ["AR → MARS K=4 B=4 τ=0.95"], "never measured"


@pytest.mark.parametrize("alignments", [("paper",), ("paper", "released")], ids=" ".join)
def test_the_alignment_of_mars_does_not_part_it_from_ar(tmp_path: Path, alignments: tuple[str, ...]) -> None:
    world = World(tmp_path)
    world.add("speculative", SPECULATIVE, bool, n=10, seconds=0.8)
    for n, alignment in enumerate(alignments):
        key = world.add("speculative", COMPOSED, bool, n=10, seconds=0.4, checkpoint=f"{n}" * 16)
        made.edit(tmp_path / "runs" / key, lambda found, told=alignment: found["checkpoint"].update(alignment=told))
    [*_, grid] = tables_of(tmp_path)["table6"].grids
    shown = {row[0]: row[grid.header.index("speedup")] for row in grid.rows if row[2]}
    label, several = "MARS → MARS K=4 B=4 τ=0.95", len(alignments) > 1
    assert shown == {"AR → AR K=4": "1.00"} | {label + f" alignment={one}" * several: "2.00" for one in alignments}


# --- whatever the order


def test_order_of_folders_and_cells_changes_nothing(world: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    generator, whole = random.Random(1), tables_of(world[0])
    folders = sorted((world[0] / "runs").iterdir())
    generator.shuffle(folders)
    shards = [tmp_path / name for name in "ba"]
    for i, folder in enumerate(folders):
        shutil.copytree(folder, shards[i % 2] / "runs" / f"{i:02} {folder.name}")
    for roots in (shards, shards[::-1]):
        found = tables_of(*roots)
        for name in NAMES:
            assert found[name].grids == whole[name].grids
            assert_frame_equal(found[name].numbers, whole[name].numbers)


def test_most_documents_stand_for_a_row(tmp_path: Path) -> None:
    """Older and longer before newer and shorter; of equally long ones the newest."""
    world = World(tmp_path)
    long = [world.add("mars", ONE, bool, n=n, limit=n, seed=seed) for n, seed in ((30, 0), (30, 1), (12, 0))]
    row = number(tables_of(tmp_path)["table3"], scale="tiny", method="mars", metric="score")
    assert (row["key"], row["n"]) == (long[1], 30)


def test_a_row_is_of_one_training(tmp_path: Path) -> None:
    """That with most documents, of equal ones the newest; the overview has both and tells them apart."""
    world = World(tmp_path)
    keys = {
        (weights, tau): world.add("mars", MARS | {"tau": tau}, bool, n=n, checkpoint=weights * 16)
        for weights, tau, n in (("a", 1.0, 30), ("b", 1.0, 30), ("b", 0.95, 30), ("a", 0.95, 12), ("a", 0.5, 12))
    }
    found = tables_of(tmp_path)
    scores = measured(found["table8"]).query("metric == 'score'")
    assert sorted(scores["key"]) == sorted([keys["b", 1.0], keys["b", 0.95]]), "the old one's τ = 0.5 is no point of it"
    assert number(found["table4"], scale="tiny", metric="delta")["reference"] == keys["b", 1.0]
    shown = [row[1] for row in found["methods"].grids[0].rows]
    assert sum("weights aaaaaaaa" in text for text in shown) == 3
    assert sum("weights bbbbbbbb" in text for text in shown) == 2


def test_odd_options_of_own_methods_tell_rows_apart(tmp_path: Path) -> None:
    """Also where they are called as those of a method that has columns for them, and hold words for numbers."""
    world = World(tmp_path)
    for drafts in ("auto", 3):
        world.add("lookup", {"num_drafts": drafts, "window_length": drafts}, bool, n=5)
    world.add("speculative", SPECULATIVE | {"num_drafts": "auto"}, bool, n=5)
    labels = [row[0] for row in tables_of(tmp_path)["methods"].grids[0].rows]
    assert labels == [
        "Speculative AR → AR", "lookup num_drafts=3 window_length=3", "lookup num_drafts=auto window_length=auto",
    ]  # fmt: skip


def test_options_tell_rows_apart(tmp_path: Path) -> None:
    world = World(tmp_path)
    for n in (16, 64):
        world.add("medusa", MEDUSA | {"num_nodes": n}, bool, n=10)
    world.add("medusa", MEDUSA | {"acceptance": "typical"}, bool, n=10)
    found = tables_of(tmp_path)
    labels = {name: {row[0] for row in found[name].grids[-1].rows if "Medusa" in row[0]}
              for name in ("table2", "table4")}  # fmt: skip
    assert labels["table4"] == {
        "Medusa num_nodes=16", "Medusa num_nodes=64", "Medusa acceptance=typical num_nodes=16",
    }  # fmt: skip
    assert labels["table2"] == {"Medusa num_nodes=16", "Medusa num_nodes=64"}, "typical acceptance is lossy"


# --- as files

ODD = Grid("50 % & more_#1", ("method", "x|y"), (("MARS τ=0.95 {a}", "−1.0 ±2.0*"), ("AR → AR", ""), ("", "—")), 1)


def test_latex_is_escaped() -> None:
    found = to_latex(Table("odd", "A_title", "Δ ≥ 1.", (ODD,), pd.DataFrame()))
    assert r"\caption{A\_title. 50 \% \& more\_\#1. $\Delta$ $\ge$ 1." in found
    assert r"MARS $\tau$=0.95 \{a\} & $-$1.0 $\pm$2.0$^*$ \\" in found
    assert r"AR $\to$ AR & $\cdot$ \\" in found
    assert found.isascii()
    assert latex(r"a\b~^") == r"a\textbackslash{}b\textasciitilde{}\textasciicircum{}"


def test_latex_is_well_formed(tables: dict[str, Table]) -> None:
    """Plain characters, balanced braces and environments, and as many cells in a row as columns."""
    for table in tables.values():
        found = to_latex(table)
        assert found.isascii(), {c for c in found if not c.isascii()}
        bare = found.replace(r"\{", "").replace(r"\}", "")
        assert bare.count("{") == bare.count("}")
        assert len(re.findall(r"(?<!\\)\$", found)) % 2 == 0
        begun, ended = (re.findall(rf"\\{word}{{(\w+)}}", found) for word in ("begin", "end"))
        assert sorted(begun) == sorted(ended)
        assert begun == ["table", "tabular"] * (len(begun) // 2)
        for spec, body in re.findall(r"\\begin{tabular}{([lr]+)}\n(.*?)\\end{tabular}", found, re.DOTALL):
            rows = [line for line in body.splitlines() if line.endswith(r"\\")]
            assert 2 <= len(rows) <= 49
            assert {len(re.split(r"(?<!\\)&", row)) for row in rows} == {len(spec)}
        assert found.count(r"\toprule") == found.count(r"\midrule") == found.count(r"\bottomrule")
        assert len(set(re.findall(r"\\label{(.*?)}", found))) == found.count(r"\label")


def test_long_grids_become_several_floats() -> None:
    rows = tuple((f"row {i}" if i % 3 == 0 else "", "1") for i in range(120))
    found = to_latex(Table("long", "Long", "", (Grid("", ("a", "b"), rows, 1),), pd.DataFrame()))
    bodies = re.findall(r"\\midrule\n(.*?)\\bottomrule", found, re.DOTALL)
    assert len(bodies) == 4
    assert all(body.startswith("row") for body in bodies), "broken where a row begins"
    assert sum(body.count(r"\\") for body in bodies) == 120


def test_markdown_columns_are_aligned(tables: dict[str, Table]) -> None:
    for table in tables.values():
        lines = to_markdown(table).splitlines()
        grids = re.split(r"\n(?=[^|])", "\n".join(lines))
        for grid in grids:
            widths = {len(line) for line in grid.splitlines() if line.startswith("|")}
            assert len(widths) <= 1
    assert "x\\|y" in to_markdown(Table("odd", "", "", (ODD,), pd.DataFrame()))


class Cells(HTMLParser):
    """Counts cells of each row, and checks that what opens closes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append(dict(attrs).get("class") or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_marks_what_was_never_measured(tables: dict[str, Table]) -> None:
    for table in tables.values():
        parser = Cells()
        parser.feed(to_html(table))
        assert parser.open == []
        shown = [row for grid in table.grids for row in (grid.header, *grid.rows)]
        assert [len(row) for row in parser.rows] == [len(row) for row in shown]
        empty = sum(text == "" for grid in table.grids for row in grid.rows for text in row[grid.num_labels :])
        assert sum(row.count("empty") for row in parser.rows) == empty
    assert "&lt;b&gt;" in to_html(Table("odd", "<b>", "", (ODD,), pd.DataFrame()))


def test_grids_have_a_text_for_every_column(tables: dict[str, Table], alone: Data) -> None:
    for table in [*tables.values(), *make_tables(alone)]:
        for grid in table.grids:
            assert {len(row) for row in grid.rows} == {len(grid.header)}
        assert not re.search(r"\bnan\b|\bNone\b|<NA>", texts(table))
        shown = [text for grid in table.grids for row in grid.rows for text in row[grid.num_labels :]]
        assert not any("-" in text for text in shown), "a true minus sign"


def test_csv_has_the_numbers_unrounded(tables: dict[str, Table], tmp_path: Path) -> None:
    for table in tables.values():
        (tmp_path / "x.csv").write_text(to_csv(table), encoding="utf-8")
        found = pd.read_csv(tmp_path / "x.csv")
        measured = table.numbers["measured"].astype("float64")
        np.testing.assert_array_equal(found["measured"].to_numpy(), measured.to_numpy())


def write_expected(root: Path) -> None:
    """The committed files, from what the tables are now."""
    EXPECTED.mkdir(exist_ok=True)
    make_world(root)
    for name, table in tables_of(root).items():
        (EXPECTED / f"{name}.md").write_text(to_markdown(table), encoding="utf-8")
        measured(table).to_csv(EXPECTED / f"{name}.csv", index=False, lineterminator="\n")
    real = tables_of(GOLDEN)
    for name in ("table9", "methods"):
        (EXPECTED / f"real_{name}.md").write_text(to_markdown(real[name]), encoding="utf-8")
    every = pd.concat([measured(table) for table in real.values()])
    every.to_csv(EXPECTED / "real.csv", index=False, lineterminator="\n")


if __name__ == "__main__":
    made.METRICS |= {task: made.METRICS.get(task, ("exact_match,none",)) for task in PAPER}
    with tempfile.TemporaryDirectory() as folder:
        write_expected(Path(folder))
