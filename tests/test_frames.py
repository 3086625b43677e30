"""Results folders as data frames: nothing damaged raises, merged folders equal the whole, every column is described."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import synthetic_records as made
from pandas.testing import assert_frame_equal

from harness.analysis import Results, load, paired, schema, summed, with_ratios
from harness.analysis.cells import model_size
from harness.errors import UserError
from harness.results import tables
from harness.results.keys import run_key
from harness.results.store import Store

KEY = ["key", "benchmark"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with a cell of each kind; tests that change it take a copy."""
    root = tmp_path_factory.mktemp("whole") / "results"
    made.make(root)
    return root


@pytest.fixture(scope="module")
def documents(whole: Path) -> pd.DataFrame:
    """Its documents."""
    return load(whole).documents


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(whole, tmp_path / "results"))


def folders(root: Path) -> list[Path]:
    """A results folder's cells, in the order of ``made.METHODS``."""
    return sorted((root / "runs").iterdir(), key=lambda path: json.loads((path / "record.json").read_text())["created"])


def assert_same(a: Results, b: Results) -> None:
    """All frames, but for where the cells lie."""
    assert_frame_equal(a.cells.drop(columns="path"), b.cells.drop(columns="path"))
    assert_frame_equal(a.tasks, b.tasks)
    assert_frame_equal(a.documents, b.documents)


# --- what the frames hold


def test_cells_have_a_row_per_benchmark_and_one_for_the_suite(whole: Path) -> None:
    results = load(whole)
    assert results.problems.empty
    cells = results.cells
    assert len(cells) == 4 * len(made.METHODS)
    assert cells["benchmark"].tolist() == [*made.SUITE, "average"] * len(made.METHODS)
    assert cells["is_average"].tolist() == [False, False, False, True] * len(made.METHODS)
    by_method = cells.drop_duplicates("key").set_index("method")
    assert list(by_method.index) == ["ar_sft", "mars", "mars", "mars verified", "jacobi", "medusa", "speculative"]
    assert by_method["tau"].tolist()[:4] == [pd.NA, 0.7, 0.95, pd.NA]
    assert by_method["confidence"].tolist()[2:4] == ["probability", pd.NA]
    assert by_method.loc["medusa", "options"] == "tree=[[0], [1], [0, 0]], num_nodes=16, acceptance=typical, delta=0.3"
    assert by_method.loc["jacobi", "axis.window_length"] == "4"
    assert by_method.loc["jacobi", "temperature"] is pd.NA
    assert by_method.loc["speculative", "draft_model"] == "tiny-1m"
    assert by_method.loc["speculative", "draft_cost"] > 0
    assert by_method.loc["mars", "checkpoint"].tolist() == ["909ca66d49a8621c"] * 2
    assert by_method["device"].tolist() == ["cpu"] * 7
    assert by_method["created"].is_monotonic_increasing


def test_numbers_are_those_of_the_records(whole: Path) -> None:
    cells = load(whole).cells.set_index(KEY)
    for record in Store(whole).records():
        for name, one in record.benchmarks.items():
            row = cells.loc[(record.key, name)]
            assert row[["score", "score_low", "score_high", "how", "n"]].tolist() == [
                one.score.value, one.score.low, one.score.high, one.score.how, one.score.n,
            ]  # fmt: skip
            assert row["seconds"] == one.speed.seconds
            assert row["target_forwards"] == one.speed.target_forwards
            assert list(row["acceptance_counts"]) == one.speed.acceptance_counts
            assert row[f"metric.{one.metric}"] == one.metrics[one.metric]
            if name == "arc":
                assert row[["tokens_per_forward", "cut_share", "mean_tokens"]].isna().all(), "none, and no 0"
            else:
                assert row["tokens_per_forward"] == one.speed.tokens_per_forward
        suite = cells.loc[(record.key, "average")]
        assert suite["score"] == record.average.value
        assert suite["tokens_per_forward"] == record.speed.tokens_per_forward


def test_documents_are_the_stored_rows_with_their_cells(whole: Path) -> None:
    results = load(whole, texts=True, lists=schema.LISTS)
    documents = results.documents
    assert len(documents) == 18 * len(made.METHODS)
    for key, rows in documents.groupby("key", observed=True):
        stored = Store(whole).cell(str(key)).documents()
        for (_, row), kept in zip(rows.iterrows(), stored, strict=True):
            assert row["benchmark"] == kept["group"]
            for name in ("task", "doc_id", "score", "new_tokens", "share_seconds", "finish_reason", *schema.TEXTS):
                assert row[name] == kept[name], name
            for name in schema.LISTS:
                found = row[name]
                assert (None if found is pd.NA else list(found)) == kept[name], name
            metrics = row.filter(like="metric.").dropna()
            assert {name.removeprefix("metric."): value for name, value in metrics.items()} == kept["metrics"]
        cell = results.cells[results.cells["key"] == key].iloc[0]
        for column in schema.IDENTIFYING:
            if column.name != "benchmark":
                [value] = rows[column.name].unique().tolist()
                is_unknown = bool(pd.isna(cell[column.name]))
                assert bool(pd.isna(value)) if is_unknown else value == cell[column.name], column.name


def test_texts_and_lists_are_read_only_if_asked(whole: Path) -> None:
    assert not {*schema.TEXTS, *schema.LISTS} & {*load(whole).documents.columns}
    some = load(whole, lists=["acceptance_lengths"]).documents
    assert "acceptance_lengths" in some.columns
    assert "token_ids" not in some.columns
    assert "text" in load(whole, texts=True).documents.columns
    with pytest.raises(UserError, match="acceptance_lengths"):
        load(whole, lists="acceptance")


def test_tasks_have_their_intervals(whole: Path) -> None:
    tasks = load(whole).tasks
    assert len(tasks) == 9 * len(made.METHODS)
    assert (tasks["score_low"] <= tasks["score"]).all()
    assert tasks["tokens_per_forward"][tasks["benchmark"] == "arc"].isna().all()


def test_models_tell_their_size() -> None:
    assert model_size("qwen2.5-7b") == ("qwen2.5", 7e9)
    assert model_size("smollm2-135m") == ("smollm2", 135e6)
    assert model_size("Qwen--Qwen2.5-0.5B-Instruct") == ("Qwen--Qwen2.5", 0.5e9)
    assert model_size("tiny") == ("tiny", None)
    assert model_size("my-4bit-model") == ("my-4bit-model", None)


def test_gated_texts_stay_as_they_are(tmp_path: Path) -> None:
    of = made.identity(*made.AR)
    rows = made.documents(of, 2, made.QUICK, np.random.default_rng(0))
    made.write(tmp_path, of, [row | {"text": "base64:YW5zd2Vy"} for row in rows], made.times(0))
    assert load(tmp_path, texts=True).documents["text"].tolist() == ["base64:YW5zd2Vy"] * 2


# --- the schema


def described(results: Results) -> None:
    """Fails where a column of any frame is not described, or is of another type."""
    for frame in schema.COLUMNS:
        assert schema.mismatches(frame, getattr(results, frame)) == [], frame


def test_every_column_is_described_whatever_is_missing(copy: Path, tmp_path: Path) -> None:
    described(load(copy, texts=True, lists=schema.LISTS))
    new, *others = folders(copy)
    for path in others[:2]:
        made.age(path)
    mixed = load(copy, texts=True, lists=schema.LISTS)
    described(mixed)
    assert mixed.problems.empty
    assert mixed.cells["draft_cost"].notna().any()
    assert mixed.documents["timed_forwards"].isna().sum() == 36
    for path in (new, *others[2:]):
        shutil.rmtree(path)
    old = load(copy, texts=True, lists=schema.LISTS)
    described(old)
    assert old.documents[["text", "token_ends", "draft_right"]].isna().all(axis=None), "and never an empty list"
    assert old.cells[["git_revision", "hardware", "checkpoint_steps", "lm_eval"]].isna().all(axis=None)
    (tmp_path / "empty").mkdir()
    described(load(tmp_path / "empty", texts=True, quiet=True))


def test_descriptions_are_complete() -> None:
    for frame, columns in schema.COLUMNS.items():
        names = [column.name for column in columns]
        assert len(set(names)) == len(names), frame
        assert all(column.meaning for column in columns)
    frame = load("nowhere", quiet=True).cells
    assert schema.mismatches("cells", frame.astype({"tau": "float64"})) == ["tau: float64, not Float64"]
    assert schema.mismatches("cells", frame.assign(new=1)) == ["new: not described"]


def test_describe_prints_every_column(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = load(whole)
    results.describe()
    text = capsys.readouterr().out
    for frame in schema.COLUMNS:
        for name in getattr(results, frame).columns:
            assert f"  {name} " in text
    assert "window positions that the target's forwards were fed" in " ".join(text.split())
    assert max(len(line) for line in text.splitlines()) <= 110
    results.describe("problems")
    assert "tau" not in capsys.readouterr().out
    with pytest.raises(UserError, match="cells"):
        results.describe("cell")


# --- damage


def broken_record(path: Path) -> None:
    made.truncate(path / "record.json")


def broken_documents(path: Path) -> None:
    made.truncate(path / "documents.parquet")


def no_documents(path: Path) -> None:
    (path / "documents.parquet").unlink()


def no_record(path: Path) -> None:
    (path / "record.json").unlink()


def wrong_key(path: Path) -> None:
    made.edit(path, lambda found: found["identity"].update(seed=7))


def text_for_number(path: Path) -> None:
    made.edit(path, lambda found: found["speed"].update(seconds="long"))


def no_score(path: Path) -> None:
    made.edit(path, lambda found: found["benchmarks"]["bbh"]["score"].update(value=None))


def too_large(path: Path) -> None:
    made.edit(path, lambda found: found["speed"].update(positions=2**70))


def no_seconds(path: Path) -> None:
    made.edit(path, lambda found: found["benchmarks"]["bbh"]["speed"].update(seconds=None))


def no_time(path: Path) -> None:
    made.edit(path, lambda found: found.update(created=None))


def not_a_number(path: Path) -> None:
    made.edit(path, lambda found: found["benchmarks"]["bbh"]["score"].update(high=float("nan")))


def other_version(path: Path) -> None:
    made.edit(path, lambda found: found["speed"].update(watts=1.0))


def no_identity(path: Path) -> None:
    made.edit(path, lambda found: found.pop("identity"))


def score_as_text(path: Path) -> None:
    made.rewrite(path, lambda t: t.set_column(t.column_names.index("score"), "score", t["score"].cast("string")))


def no_column(path: Path) -> None:
    made.rewrite(path, lambda t: t.drop_columns(["target_forwards"]))


def rows_lost(path: Path) -> None:
    made.rewrite(path, lambda t: t.slice(1))


def row_twice(path: Path) -> None:
    made.rewrite(path, lambda t: t.take([0, 0, *range(2, len(t))]))


def empty_score(path: Path) -> None:
    made.rewrite(
        path, lambda t: t.set_column(t.column_names.index("score"), "score", [[None, *t["score"].to_pylist()[1:]]])
    )


def scrambled(path: Path) -> None:
    made.scramble(path / "documents.parquet")


DAMAGES: dict[Any, str] = {
    broken_record: "not JSON", broken_documents: "documents.parquet cannot be read", wrong_key: "not the hash",
    no_documents: "documents.parquet is missing", no_record: "record.json is missing", other_version: "watts",
    text_for_number: "seconds is 'long', not a number", no_score: "record", not_a_number: "score_high is 'nan'",
    no_seconds: "seconds of bbh is null", no_time: "created is no text",
    no_identity: "identity", too_large: "positions is '1180591620717411303424'",
    score_as_text: "score as string, not double", no_column: "lacks target_forwards",
    rows_lost: "17 documents, its record 18", row_twice: "1 documents twice",
    empty_score: "1 documents without score", scrambled: "documents.parquet cannot be read",
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_told_and_the_rest_is_loaded(
    damage: Any, copy: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folders(copy)[2]
    damage(path)
    results = load(copy)
    rest = load(whole)
    assert len(results.cells) >= 4 * (len(made.METHODS) - 1)
    assert len(results.tasks) >= 9 * (len(made.METHODS) - 1)
    documents = results.documents
    [problem] = results.problems.to_dict("records")
    assert problem["path"] == str(path)
    assert DAMAGES[damage] in problem["reason"]
    [line] = capsys.readouterr().err.splitlines()
    assert line == f"skipped: {problem['path']}: {problem['reason']}"
    kept = rest.cells["key"] != path.name
    assert_frame_equal(results.cells.drop(columns="path"), rest.cells[kept].drop(columns="path").reset_index(drop=True))
    assert_frame_equal(results.tasks, rest.tasks[rest.tasks["key"] != path.name].reset_index(drop=True))
    assert len(documents) == 18 * (len(made.METHODS) - 1)
    assert path.name not in set(documents["key"])
    described(results)
    load(copy, quiet=True).documents  # noqa: B018
    assert capsys.readouterr().err == ""


def test_names_that_are_no_text_are_told(copy: Path) -> None:
    path = folders(copy)[0]
    os.rename(path, os.fsencode(path) + b"\xff")
    results = load(copy, quiet=True)
    assert len(set(results.cells["key"])) == len(made.METHODS) - 1
    [problem] = results.problems.to_dict("records")
    assert problem == {"path": f"{path}\\xff", "reason": "the name of its folder is not UTF-8"}


def test_folders_that_may_not_be_read_are_told(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folders(copy)[0]
    monkeypatch.setattr(os, "access", lambda one, mode: Path(one) != path)
    [problem] = load(copy, quiet=True).problems.to_dict("records")
    assert problem == {"path": str(path), "reason": "cannot be read: Permission denied"}


def test_no_benchmark_is_called_as_their_mean(copy: Path) -> None:
    path = folders(copy)[0]
    made.edit(path, lambda found: found["benchmarks"].update(average=found["benchmarks"].pop("bbh")))
    [problem] = load(copy, quiet=True).problems.to_dict("records")
    assert "a benchmark is called average" in problem["reason"]


def test_all_damages_at_once(copy: Path) -> None:
    made.make(copy, seed=1)
    made.make(copy, seed=2)
    for path, damage in zip(folders(copy), DAMAGES, strict=False):
        damage(path)
    results = load(copy, quiet=True)
    assert len(results.documents) == 18 * (21 - len(DAMAGES))
    assert len(results.problems) == len(DAMAGES)
    described(results)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to every value inside plain data."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*([path] if path else []), *(place for key, one in items for place in places(one, (*path, key)))]


JUNK = (None, True, -1, 2.5, "x", "", [], {}, [1], {"a": 1}, float("nan"), 10**400, "\ud800", -(2**70))


def test_no_record_whatever_it_holds_raises(tmp_path: Path) -> None:
    """A value anywhere in it is lost or replaced by another, and the key made to fit."""
    generator = random.Random(0)
    of = made.identity(*made.METHODS[-1])
    path = made.write(tmp_path, of, made.documents(of, 3, made.QUICK, np.random.default_rng(0)), made.times(0))
    text = (path / "record.json").read_text()
    told = 0
    for _ in range(40):
        found = json.loads(text)
        *parents, last = generator.choice(places(found))
        node = found
        for key in parents:
            node = node[key]
        node[last] = generator.choice(JUNK)
        with contextlib.suppress(ValueError, KeyError):
            found["key"] = run_key(found["identity"])
        (path / "record.json").write_text(json.dumps(found))
        results = load(tmp_path, quiet=True)
        described(results)
        told += len(results.problems)
    assert 15 < told < 40


def test_no_documents_whatever_they_hold_raise(tmp_path: Path) -> None:
    """Bytes anywhere in the file are replaced."""
    generator = random.Random(0)
    of = made.identity(*made.METHODS[1])
    path = made.write(tmp_path, of, made.documents(of, 3, made.QUICK, np.random.default_rng(0)), made.times(0))
    content = (path / "documents.parquet").read_bytes()
    told = 0
    for _ in range(30):
        changed = bytearray(content)
        for _ in range(generator.choice((1, 5, 50))):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
        (path / "documents.parquet").write_bytes(changed)
        results = load(tmp_path, texts=True, lists=schema.LISTS, quiet=True)
        documents = results.documents
        documents.to_csv()
        described(results)
        told += len(results.problems)
        assert len(documents) + 3 * len(results.problems) == 3
    assert told > 10


def test_unfinished_cells_are_no_problem(copy: Path) -> None:
    cell = Store(copy).cell("0" * 16)
    with cell.lock(lambda: None), cell.appending() as partial:
        partial.append({"doc_id": 0})
    shutil.copy(next(copy.glob("runs/*/documents.parquet")), cell.path)  # killed between the two files
    Store(copy).cell("1" * 16).fail("Traceback …")
    (copy / "runs" / ".hydra").mkdir()
    assert load(copy).problems.empty


def test_folders_without_cells_are_told(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    results = load(copy, tmp_path / "empty", tmp_path / "typo", quiet=True)
    assert len(results.cells) == 4 * len(made.METHODS)
    assert results.problems["reason"].tolist() == ["no finished cell is here", "no such folder"]
    with pytest.raises(UserError, match="results folder"):
        load()


# --- merging


@pytest.mark.parametrize("seed", range(3))
def test_shards_in_any_order_equal_the_whole(seed: int, whole: Path, tmp_path: Path) -> None:
    generator = random.Random(seed)
    shards = [tmp_path / name for name in "abc"]
    for path in folders(whole):
        shutil.copytree(path, generator.choice(shards) / "runs" / path.name)
    shards = [shard for shard in shards if shard.exists()]
    merged = load(*shards)
    assert_same(merged, load(whole))
    assert merged.problems.empty
    generator.shuffle(shards)
    again = load(*shards)
    assert_frame_equal(again.cells, merged.cells)
    assert_frame_equal(again.documents, merged.documents)


def test_copies_count_once(copy: Path, whole: Path, tmp_path: Path) -> None:
    """In two folders, in one folder under another name, and newer with other numbers; a link is no copy."""
    first, second, *_ = folders(copy)
    shutil.copytree(first, copy / "runs" / "copy of it")
    other = tmp_path / "other" / "runs" / second.name
    shutil.copytree(second, other)
    made.edit(other, lambda found: found.update(created=made.times(1000)))
    (tmp_path / "link").symlink_to(copy)
    one = load(copy, tmp_path / "other", quiet=True)
    assert len(one.documents) == 18 * len(made.METHODS)
    assert one.problems.to_dict("records") == [
        {"path": str(second), "reason": f"the same cell as {other}, which is newer"},
        {"path": str(copy / "runs" / "copy of it"), "reason": f"a copy of {first}"},
    ]
    assert one.cells["path"].tolist()[-4:] == [str(other)] * 4, "the newest is shown, and last"
    two = load(tmp_path / "other", tmp_path / "link", copy, copy, quiet=True)
    assert_same(two, one)
    assert two.problems["path"].tolist() == [str(path).replace("results", "link") for path in one.problems["path"]]


def test_a_healthy_copy_stands_in_for_a_damaged_cell(copy: Path, whole: Path) -> None:
    broken_documents(folders(copy)[0])
    results = load(copy, whole, quiet=True)
    assert_same(results, load(whole))


@pytest.mark.parametrize("seed", range(8))
def test_ratios_of_sums_do_not_depend_on_how_documents_are_divided(seed: int, documents: pd.DataFrame) -> None:
    shards = np.random.default_rng(seed).integers(0, 5, len(documents))
    by = [["key"], KEY, ["method", "tau"], ["benchmark", "task"]][seed % 4]
    parts = [summed(documents[shards == shard], by) for shard in range(5)]
    added = pd.concat(parts).groupby(by, observed=True, dropna=False).sum().reset_index()
    expected, found = with_ratios(summed(documents, by)), with_ratios(added)
    assert expected["documents"].sum() == len(documents), "cells without a tau too"
    whole_numbers = [name for name in expected.columns if expected[name].dtype == "Int64"]
    assert {"new_tokens", "target_forwards", "positions", "timed_forwards", "cut"} <= {*whole_numbers}
    assert_frame_equal(found[whole_numbers], expected[whole_numbers], check_exact=True)
    assert_frame_equal(found, expected, rtol=1e-12)
    exact = ["tokens_per_forward", "positions_per_token", "cut_share", "mean_tokens", "score"]
    assert_frame_equal(found[exact], expected[exact], check_exact=True)


def test_ratios_of_documents_by_hand() -> None:
    of = made.identity(*made.METHODS[-1])
    rows = made.documents(of, 2, made.QUICK, np.random.default_rng(0))
    counts = {"new_tokens": 9, "target_forwards": 3, "positions": 12, "draft_forwards": 6, "draft_positions": 18}
    times = {"timed_forwards": 2, "target_seconds": 2.0, "timed_draft_forwards": 4, "draft_seconds": 1.0}
    documents = pd.DataFrame([row | counts | times | {"share_seconds": 3.0, "key": "k"} for row in rows])
    documents["finish_reason"] = ["eos", "context"]
    [row] = with_ratios(summed(documents, ["key"])).to_dict("records")
    assert row["tokens_per_forward"] == 3.0
    assert row["draft_cost"] == 0.25
    assert row["equivalent_forwards"] == 6 + 12 / 4
    assert row["tokens_per_equivalent_forward"] == 2.0
    assert row["draft_positions_per_token"] == 2.0
    assert row["tokens_per_second"] == 3.0
    assert (row["cut_share"], row["context_share"]) == (0.5, 0.5)


# --- records against their documents


def test_records_agree_with_their_documents(copy: Path) -> None:
    assert load(copy).verify(intervals=True).empty
    first, *_, last = folders(copy)
    made.age(first)
    made.rewrite(last, lambda table: table.drop_columns(["timed_forwards", "timed_draft_forwards"]))
    old = load(copy)
    assert old.verify().empty, "what one of the two does not know is not compared"
    priced = with_ratios(summed(old.documents, ["method"])).set_index("method")["equivalent_forwards"]
    assert priced[priced.isna()].index.tolist() == ["speculative"]
    assert (priced["medusa"] > 0) & (priced["ar_sft"] > 0), "without drafts there is nothing to price"


# Where in a record a number is changed, which, and what then disagrees: one for each cell of the folder.
CHANGES = (
    (("benchmarks", "bbh", "score"), "value", "score"),
    (("benchmarks", "ifeval", "speed"), "new_tokens", "new_tokens"),
    (("benchmarks", "ifeval", "speed"), "tokens_per_forward", "tokens_per_forward"),
    (("benchmarks", "bbh", "speed"), "tokens_per_forward_task_mean", "tokens_per_forward_task_mean"),
    (("benchmarks", "bbh", "speed"), "median_tokens", "median_tokens"),
    (("benchmarks", "bbh", "speed"), "draft_cost", "draft_cost"),
    (("benchmarks", "bbh", "tasks", "bbh_3"), "score", "score"),
    (("benchmarks", "bbh", "score"), "n", "n"),
    (("benchmarks", "bbh", "score"), "low", "score_low"),
    (("benchmarks", "ifeval", "speed"), "seconds", "seconds"),
    (("speed",), "positions_per_token", "positions_per_token"),
    (("speed",), "tokens_per_forward_task_mean", "tokens_per_forward_task_mean"),
    (("benchmarks", "bbh", "speed"), "tokens_per_second", "tokens_per_second"),
)
DERIVED = {"new_tokens": {"mean_tokens"}}  # made of it as in ``Speed``, not kept


def test_records_that_disagree_are_told(copy: Path) -> None:
    """A ten-thousandth too much in each cell, or one."""
    cells = dict(zip([*folders(copy), *made.make(copy, seed=1)], CHANGES, strict=False))
    for path, (where, name, _) in cells.items():

        def change(found: dict[str, Any], where: tuple[str, ...] = where, name: str = name) -> None:
            for key in where:
                found = found[key]
            old = found[name]
            found[name] = old * 1.0001 if isinstance(old, float) and old else old + 1

        made.edit(path, change)
    found = load(copy).verify(intervals=True)
    assert set(found["key"]) == {path.name for path in cells}
    for path, (where, _, what) in cells.items():
        rows = found[found["key"] == path.name]
        named = rows[rows["what"] == what]
        benchmarks = {"average"} if len(where) == 1 else {where[1]}
        averaged = {"average"} if what in ("score", "n") and len(where) == 3 else set()  # made of them
        assert set(named["benchmark"]) == benchmarks | averaged, what
        assert set(rows["what"]) == {what} | DERIVED.get(what, set()), what
        assert set(named["task"].dropna()) == ({where[3]} if len(where) == 4 else set()), what
        assert (named["record"] > named["documents"]).all()


def test_documents_of_another_benchmark_disagree(copy: Path) -> None:
    path = folders(copy)[0]

    def change(table: Any) -> Any:
        groups = ["other" if group == "ifeval" else group for group in table["group"].to_pylist()]
        return table.set_column(table.column_names.index("group"), "group", [groups])

    made.rewrite(path, change)
    found = load(copy).verify()
    counts = found[found["what"] == "n"].set_index("benchmark")
    assert counts.loc["ifeval", ["record", "documents"]].values.tolist() == [[6.0, 0.0]] * 2
    assert counts.loc["other", ["record", "documents"]].values.tolist() == [[0.0, 6.0]] * 2


# --- pairs and references


def test_pairs_are_the_documents_of_both(whole: Path) -> None:
    documents = load(whole, texts=True).documents
    first, second = (path.name for path in folders(whole)[:2])
    short = documents[(documents["key"] != second) | (documents["doc_id"] > 0)]
    found = paired(short, first, second)
    stored = {key: Store(whole).cell(key).documents() for key in (first, second)}
    other = {(row["task"], row["doc_id"]): row for row in stored[second]}
    expected = {
        (row["task"], row["doc_id"]): row["score"] - other[row["task"], row["doc_id"]]["score"]
        for row in stored[first]
        if row["doc_id"] > 0
    }
    assert 0 < len(found) == len(expected) < 18
    assert {(r.task, r.doc_id): r.difference for r in found.itertuples()} == expected
    assert (found["key_a"].unique().tolist(), found["key_b"].unique().tolist()) == ([first], [second])
    assert found["method_b"].unique().tolist() == ["mars"]
    back = paired(short, second, first)
    assert (back["difference"] == -found["difference"]).all()
    with pytest.raises(UserError, match="nothing"):
        paired(documents, first, "nothing")


def test_reference_is_the_one_of_the_table(tmp_path: Path) -> None:
    """Over models, seeds, limits, caches, variants and temperatures, some without a reference."""
    generator, n = np.random.default_rng(0), 0
    sampled = [("ar_sft", {"temperature": 0.8}), ("medusa", {"temperature": 0.8})]
    caches = [{"mode": "cursor", "accept_limit": "block_size"}, {"mode": "none", "accept_limit": "block_size"}]
    for method, axes in (*made.METHODS[:3], *sampled):
        for values in ({}, {"seed": 1}, {"limit": 3}, {"cache": caches[1]}, {"checkpoint": "other"}, {"model": "x-7b"}):
            if values == {"model": "x-7b"} and method == "ar_sft":
                continue
            of = made.identity(method, axes, **values)
            rows = made.documents(of, 2, made.QUICK, generator)
            variant = "base" if values == {"checkpoint": "other"} else None
            made.write(tmp_path, of, rows, made.times(n := n + 1), variant=variant)
    results = load(tmp_path)
    records = Store(tmp_path).records()
    expected = {record.key: tables.reference(record, records) for record in records}
    found = {key: results.reference(key) for key in results.cells["key"]}
    assert found == {key: one and one.key for key, one in expected.items()}
    assert len(set(found.values())) > 6
    assert None in found.values()
    with pytest.raises(UserError, match="nothing"):
        results.reference("nothing")


# --- speed

MEASURE = textwrap.dedent(
    """
    import json, re, sys, time
    started = time.process_time()
    from harness.analysis import load
    results = load(sys.argv[1])
    cells = len(results.cells)
    told = time.process_time() - started
    documents = len(results.documents)
    seconds = time.process_time() - started
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024  # maxrss is inherited
    heavy = [name for name in ("torch", "transformers", "lm_eval") if name in sys.modules]
    print(json.dumps([cells, documents, told, seconds, peak, heavy]))
    """
)


def measured(root: Path) -> list[Any]:
    """Cells, documents, processor seconds until cells were there and until all was, peak bytes, heavy modules."""
    run = subprocess.run([sys.executable, "-c", MEASURE, str(root)], capture_output=True, text=True, check=True)
    found: list[Any] = json.loads(run.stdout)
    return found


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_many_cells_are_read_quickly(tmp_path: Path) -> None:
    made.make_many(tmp_path, 100, 50)
    cells, documents, _, seconds, peak, heavy = measured(tmp_path)
    assert (cells, documents) == (100, 5000)
    assert heavy == [], "a notebook waits for pandas and for nothing else"
    assert seconds < 15
    assert peak < 500 * 2**20


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_two_thousand_cells(tmp_path: Path) -> None:
    """8 s of one core and 0.5 GB when it was written."""
    made.make_many(tmp_path, 2000, 200)
    cells, documents, told, seconds, peak, _ = measured(tmp_path)
    print(f"\ncells after {told:.1f} s, documents after {seconds:.1f} s, peak {peak / 2**20:.0f} MiB")
    assert (cells, documents) == (2000, 400_000)
    assert seconds < 40
    assert peak < 2 * 2**30


DRAW = textwrap.dedent(
    """
    import json, re, sys, time
    from harness import figures
    status = figures.main([sys.argv[1], "--out", sys.argv[2]])
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
    print(json.dumps([status, time.process_time(), peak]))
    """
)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_two_thousand_cells_are_drawn(tmp_path: Path) -> None:
    """Every table and figure of them: 24 s of one core and 0.8 GB when it was written."""
    made.make_many(tmp_path / "cells", 2000, 200)
    drawn = tmp_path / "drawn"
    run = subprocess.run(
        [sys.executable, "-c", DRAW, str(tmp_path / "cells"), str(drawn)], capture_output=True, text=True, check=True
    )
    status, seconds, peak = json.loads(run.stdout.splitlines()[-1])
    print(f"\n{seconds:.1f} s, peak {peak / 2**20:.0f} MiB")
    assert status == 0
    assert {"table4.md", "methods.tex", "fig3.pdf", "equal_quality.png", "speedup.csv"} <= {
        path.name for path in drawn.iterdir()
    }
    assert seconds < 60
    assert peak < 2 * 2**30
