"""Measured cells in the published numbers' columns, the one that stands for several, and paired differences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import synthetic_records as made

from harness.analysis import load
from harness.analysis.frames import Results
from harness.analysis.measured import COLUMNS, EQUIVALENT, POSITIONS, SPEEDS, TASK_MEAN, measured, usual
from harness.analysis.pairs import Pairs
from harness.analysis.published import FORWARD, IDENTITY, RATE, SCORE, SECONDS, read_published
from harness.results import stats
from harness.results.tables import AVERAGE

AXES = dict(made.METHODS)["mars"]  # of verified MARS, the last of them
MARS = ("mars", {"tau": 0.95, "block_size": 4, "confidence": "probability", "verify": False, "temperature": 0.0})
SPECULATIVE = {
    "target": "mars", "draft": "ar_sft", "draft_model": None, "draft_checkpoint": None, "num_drafts": 4, "tau": 0.95,
    "block_size": 4, "confidence": "probability", "draft_tau": None, "temperature": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Results:
    root = tmp_path_factory.mktemp("suite")
    made.make(root)
    return load(root, texts=True)


def cells_of(root: Path, *cells: tuple[str, dict[str, Any], int, dict[str, Any]]) -> Results:
    """Cells of (method, axes, documents, values of identity and config), each later than the one before it."""
    for n, (method, axes, count, values) in enumerate(cells):
        config = {name: values[name] for name in ("batch_size", "variant") if name in values}
        of = made.identity(method, axes, **{name: value for name, value in values.items() if name not in config})
        rows = made.documents(of, count, made.QUICK, np.random.default_rng(n))
        made.write(root, of, rows, made.times(n), **config)
    return load(root, texts=True)


def test_every_number_is_the_cells(suite: Results) -> None:
    frame = measured(suite)
    assert tuple(frame.columns) == COLUMNS
    cells = suite.cells.set_index(["key", "benchmark"])
    assert len(cells) == len(frame[frame["metric"] == SCORE]) == 4 * len(made.METHODS)
    for row in frame.to_dict("records"):
        cell = cells.loc[(row["key"], row["task"])]
        assert row["n"] == cell["n"]
        if row["metric"] == SCORE:
            expected = [100 * cell[name] for name in ("score", "score_low", "score_high")]
            assert [row["value"], row["low"], row["high"]] == expected
            assert row["low"] <= row["value"] <= row["high"]
            assert row["low"] < row["high"]
        else:
            assert row["value"] == row["low"] == row["high"] == cell[row["metric"]]
    assert frame["se"].isna().all(), "the interval is not a normal one"
    assert frame.loc[frame["metric"] == SCORE, "unit"].eq("percent").all()


def test_what_was_not_generated_has_no_speed(suite: Results) -> None:
    frame = measured(suite)
    assert set(frame.loc[frame["task"] == "arc", "metric"]) == {SCORE}, "scored by log-likelihoods"
    assert set(frame.loc[frame["task"] == "bbh", "metric"]) == {SCORE, *SPEEDS}
    assert {FORWARD, TASK_MEAN, EQUIVALENT, POSITIONS, RATE, SECONDS} == {*SPEEDS}


def test_names_are_the_published_ones(tmp_path: Path) -> None:
    """The identity of the same cell, with the same types, so that the two frames can be joined."""
    frame = measured(cells_of(
        tmp_path,
        (*MARS, 4, {"model": "qwen2.5-0.5b", "cache": {"mode": "block", "block": 16, "accept_limit": "block_size"}}),
        ("speculative", SPECULATIVE, 4, {"model": "qwen2.5-7b"}),
        ("mars", AXES, 4, {"model": "tiny"}),
        ("ar_sft", {"temperature": 0.0}, 4, {"model": "tiny", "variant": "base", "batch_size": 8}),
    ))  # fmt: skip
    scores = frame[frame["metric"] == SCORE].set_index("scale")
    expected: dict[str, dict[str, Any]] = {
        "0.5b": {"method": "mars", "tau": 0.95, "block_size": 4, "confidence": "probability", "cache": "block",
                 "cache_block": 16, "num_drafts": None, "model": "qwen2.5-0.5b"},
        "7b": {"method": "speculative", "target": "mars", "draft": "ar_sft", "num_drafts": 4, "tau": 0.95},
    }  # fmt: skip
    for scale, values in expected.items():
        for name, value in values.items():
            found = scores.loc[scale, name]
            assert pd.isna(found) if value is None else found == value, (scale, name)
    tiny = scores.loc["tiny"].set_index("method")
    assert pd.isna(tiny.loc["mars verified", "tau"])
    assert (tiny.loc["ar_sft", "variant"], tiny.loc["ar_sft", "batch_size"]) == ("base", 8)
    paper = read_published()
    for name in (*IDENTITY, "value", "unit"):
        assert frame[name].dtype == paper[name].dtype, name
    assert set(paper["scale"].dropna()) == {"0.5b", "7b"}


def test_sampled_cells_are_left_out(tmp_path: Path) -> None:
    results = cells_of(
        tmp_path, ("ar_sft", {"temperature": 0.8}, 3, {}), ("ar_sft", {"temperature": 0.0}, 3, {}),
        ("jacobi", {"window_length": 4, "initial": "prompt"}, 3, {}),  # cannot sample: its temperature is unknown
    )  # fmt: skip
    assert sorted(set(measured(results)["method"])) == ["ar_sft", "jacobi"]
    assert measured(results)["key"].nunique() == 2


def test_nothing_measured_is_an_empty_frame(tmp_path: Path) -> None:
    frame = measured(load(tmp_path, quiet=True))
    assert frame.empty
    assert tuple(frame.columns) == COLUMNS
    assert usual(frame).empty


# --- the cell that stands for several


@pytest.mark.parametrize(
    ("cells", "chosen", "why"),
    [
        ([(9, {}), (4, {"seed": 1})], 0, "more documents, though older"),
        ([(4, {}), (4, {"seed": 1})], 1, "the newest of as many"),
        ([(4, {"dtype": "bfloat16"}), (3, {}), (2, {"seed": 2})], 0, "more documents of another type"),
    ],
)
def test_one_cell_stands_for_those_that_the_paper_does_not_tell_apart(
    tmp_path: Path, cells: list[tuple[int, dict[str, Any]]], chosen: int, why: str
) -> None:
    results = cells_of(tmp_path, *((*MARS, count, values) for count, values in cells))
    keys = results.cells["key"].tolist()
    frame = usual(measured(results))
    assert frame["key"].unique().tolist() == [keys[chosen]], why
    assert len(frame) == 1 + len(SPEEDS)


def test_what_the_paper_tells_apart_stays(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {}, {"batch_size": 8, "seed": 5}, {"variant": "no_sft_loss", "checkpoint": "other"}, {"model": "tiny-1m"},
        {"cache": {"mode": "block", "block": 16, "accept_limit": "block_size"}},
    ]  # fmt: skip
    results = cells_of(tmp_path, *((*MARS, 3, change) for change in changes))
    assert usual(measured(results))["key"].nunique() == len(changes)


@pytest.mark.parametrize(
    "others",
    [
        {"window_length": None, "initial": "prompt"},
        {"window_length": 8, "initial": "prompt"},
        {"window_length": 4, "initial": "random"},
    ],
)
def test_usual_options_stand_for_others(tmp_path: Path, others: dict[str, Any]) -> None:
    """Those of conf/method, although the other cell is newer and of more documents."""
    results = cells_of(
        tmp_path, ("jacobi", {"window_length": 4, "initial": "prompt"}, 3, {}), ("jacobi", others, 9, {})
    )
    frame = measured(results)
    assert frame.groupby("key", sort=False)["is_usual"].first().tolist() == [True, False]
    assert usual(frame)["key"].unique().tolist() == results.cells["key"].tolist()[:1]


def test_a_cell_is_chosen_whole(tmp_path: Path) -> None:
    """Not BBH of a suite and IFEval of another cell, although that is newer and of more documents of it."""
    for n, (count, benchmarks) in enumerate(((6, made.SUITE), (9, {"ifeval": made.SUITE["ifeval"]}))):
        of = made.identity(*MARS, benchmarks)
        made.write(tmp_path, of, made.documents(of, count, benchmarks, np.random.default_rng(n)), made.times(n))
    frame = measured(load(tmp_path))
    chosen = usual(frame)
    assert chosen["key"].nunique() == 1
    assert set(chosen["task"]) == {*made.SUITE, AVERAGE}
    shuffled = usual(frame.sample(frac=1, random_state=0))
    order = ["task", "metric"]
    pd.testing.assert_frame_equal(*(one.sort_values(order, ignore_index=True) for one in (shuffled, chosen)))


# --- pairs


def test_differences_are_the_paired_ones_and_their_average(suite: Results) -> None:
    pairs = Pairs(suite)
    first, second = suite.cells["key"].unique()[:2]
    documents = suite.documents.rename(columns={"benchmark": "group"})[["key", "group", "task", "doc_id", "score"]]
    parts = []
    for name in made.SUITE:
        sides = [documents[(documents["key"] == key) & (documents["group"] == name)].to_dict("records")
                 for key in (first, second)]  # fmt: skip
        expected = stats.compare(*sides)
        assert expected is not None
        assert pairs.difference(first, second, name) == expected
        parts.append(expected)
    whole = pairs.difference(first, second, AVERAGE)
    assert whole is not None
    assert whole.difference == stats.mean_interval([one.difference for one in parts])
    assert (whole.wins, whole.losses, whole.p_value) == (sum(p.wins for p in parts), sum(p.losses for p in parts), None)
    assert pairs.difference(first, second, "humaneval") is None
    assert pairs.benchmarks(first) == list(made.SUITE)
    back = pairs.difference(second, first, "ifeval")
    assert back is not None
    assert back.difference.value == -parts[0].difference.value


def test_same_answers_are_counted(tmp_path: Path) -> None:
    """The same text of as many tokens; of eight documents one differs in text and one in tokens, one is missing."""
    ar, jacobi = made.identity(*made.AR), made.identity("jacobi", {"window_length": 4, "initial": "prompt"})
    rows = made.documents(ar, 8, made.QUICK, np.random.default_rng(0))
    changed = [dict(row) for row in rows]
    changed[1]["text"] += "!"
    changed[3]["new_tokens"] += 1
    made.write(tmp_path, ar, rows[:7], made.times(0))
    made.write(tmp_path, jacobi, changed, made.times(1))
    keys = load(tmp_path).cells["key"].tolist()
    assert Pairs(load(tmp_path, texts=True)).same_answers(*keys) == (5, 7)
    assert Pairs(load(tmp_path)).same_answers(*keys) == (0, 0), "without texts nothing is known"
