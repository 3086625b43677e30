"""Each verdict of each claim, on invented cells: the rules of the docstrings, and no word that the numbers lack."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import synthetic_records as made
from rich.console import Console

from harness.analysis import claims, gaps
from harness.analysis.claims import CLAIMS, CONTRADICTED, NOT_MEASURED, SUPPORTED, UNDECIDED
from harness.analysis.data import Data, open_data
from harness.analysis.published import COST, FORWARD, IDENTITY, RATE, SCORE, read_published, with_errors
from harness.results import stats
from harness.results.tables import AVERAGE

Row = dict[str, Any]
AR: Row = {"method": "ar_sft"}
ONE: Row = {"method": "mars", "block_size": 4, "tau": 1.0, "confidence": "probability"}
B16: Row = ONE | {"block_size": 16}
MANY: Row = ONE | {"tau": 0.95}
NO_LOSS: Row = {"variant": "no_sft_loss"}
DIFFUSION: Row = {"method": "block_diffusion", "block_size": 4, "tau": 1.0}
JACOBI: Row = {"method": "jacobi"}


def number(cell: Row, metric: str, value: float, half: float, task: str | None = "a") -> Row:
    return {"scale": "tiny", **cell, "task": task, "metric": metric, "value": value, "low": value - half,
            "high": value + half, "n": 1000}  # fmt: skip


def scores(cell: Row, *values: float, se: float = 0.1) -> list[Row]:
    """A score for each of the tasks a, b, c, … with this standard error."""
    return [number(cell, SCORE, value, gaps.Z * se, task) for value, task in zip(values, "abcdef", strict=False)]


def frame(*rows: Row | list[Row]) -> pd.DataFrame:
    flat = [one for row in rows for one in (row if isinstance(row, list) else [row])]
    return pd.DataFrame(flat, columns=[*IDENTITY, "value", "low", "high", "n"])


def sweep(values: list[float], speeds: list[float], se: float = 0.5, **cell: Any) -> list[Row]:
    """A curve over tau = 1.0, 0.9, 0.8, …"""
    taus = [round(1 - 0.1 * i, 1) for i in range(len(values))]
    return [
        row
        for tau, value, speed in zip(taus, values, speeds, strict=True)
        for row in (
            *scores(ONE | cell | {"tau": tau}, value, se=se),
            number(ONE | cell | {"tau": tau}, FORWARD, speed, 0.005),
        )
    ]


def rates(*triples: tuple[Row, float, float]) -> list[Row]:
    return [number(cell, RATE, value, half) for cell, value, half in triples]


def four_corners(b4: float, b16: float, no_loss_b4: float, no_loss_b16: float, se: float = 0.1) -> pd.DataFrame:
    cells = zip((ONE, B16, ONE | NO_LOSS, B16 | NO_LOSS), (b4, b16, no_loss_b4, no_loss_b16), strict=True)
    return frame(*(scores(cell, value, se=se) for cell, value in cells))


def off_grid(values: list[float], confidence: str, se: float = 0.5) -> list[Row]:
    """A curve of another metric between the points of ``SPEEDS``."""
    return sweep(values, [1.0, 1.25, 1.75, 2.25], se=se, confidence=confidence)


def block_cache(other: Row, *cells: tuple[int, int, float]) -> pd.DataFrame:
    """MARS with the block cache at (cache block, batch size) by its tokens per second; another's are 100 each."""
    mine = MANY | {"cache": "block"}
    return frame(
        rates(*((mine | {"cache_block": block, "batch_size": size}, rate, 1.0) for block, size, rate in cells)),
        rates(*((other | {"batch_size": size}, 100, 1.0) for size in sorted({size for _, size, _ in cells}))),
    )


def speculation(ar: float, target: float, both: float) -> pd.DataFrame:
    spec = {"method": "speculative"}
    return frame(rates(
        (spec | {"target": "ar_sft", "draft": "ar_sft"}, ar, 0.5),
        (spec | {"target": "mars", "draft": "ar_sft"} | {"tau": 0.95}, target, 0.5),
        (spec | {"target": "mars", "draft": "mars"} | {"tau": 0.95}, both, 0.5),
    ))  # fmt: skip


class Answers:
    """Stands in for ``Pairs``: 100 documents of each cell; "other 5" answers five of them otherwise."""

    def difference(self, first: str, second: str, benchmark: str) -> None:
        return None

    def same_answers(self, first: str, second: str) -> tuple[int, int]:
        return 100 - sum(int(key.split()[1]) for key in (first, second) if key.startswith("other")), 100


def answering(cells: dict[str, Row]) -> pd.DataFrame:
    """Measured cells by their keys."""
    rows = [
        row | {"key": key, "is_usual": cell is not TYPICAL} for key, cell in cells.items() for row in scores(cell, 50)
    ]
    return pd.DataFrame(rows, columns=[*IDENTITY, "value", "low", "high", "n", "key", "is_usual"])


def pairs_of(cells: pd.DataFrame) -> Any:
    return Answers() if "key" in cells else None


VERIFIED: Row = {"method": "mars verified", "block_size": 4}
TYPICAL: Row = {"method": "medusa"}
NO_CACHE: Row = MANY | {"cache": "none"}
AR_CACHE: Row = AR | {"cache": "cursor"}
SPEEDS = [1.0, 1.5, 2.0, 2.5]
STRAIGHT = sweep([80, 70, 60, 50], SPEEDS)

# For each claim and verdict: invented cells, and why they deserve it.
CASES: dict[Callable[..., claims.Finding], dict[str, dict[str, pd.DataFrame]]] = {
    claims.one_token_not_below_ar: {
        SUPPORTED: {
            "better": frame(scores(AR, 50, 60), scores(ONE, 52, 62)),
            "less than a point down": frame(scores(AR, 50, 60), scores(ONE, 49.9, 59.9)),
        },
        CONTRADICTED: {
            "down on average": frame(scores(AR, 50, 60), scores(ONE, 48, 59.9)),
            "level on average, one task down": frame(scores(AR, 50, 60), scores(ONE, 45, 65)),
            "down together, no task for certain": frame(scores(AR, *[50] * 6, se=0.4), scores(ONE, *[49] * 6, se=0.4)),
        },
        UNDECIDED: {
            "wide": frame(scores(AR, 50, 60, se=2), scores(ONE, 51, 61, se=2)),
            "a task down, not among six": frame(scores(AR, *[50] * 6, se=1), scores(ONE, 46.9, *[50.5] * 5, se=1)),
        },
        NOT_MEASURED: {
            "no AR": frame(scores(ONE, 50, 60)),
            "other block size": frame(scores(AR, 50, 60), scores(B16, 52, 62)),
            "other tasks": frame(scores(AR, 50), [row | {"task": "z"} for row in scores(ONE, 52)]),
            "an entropy of 1 nat": frame(scores(AR, 50), scores(ONE | {"confidence": "entropy"}, 52)),
            "other weights": frame(scores(AR | {"variant": "base"}, 50), scores(ONE | NO_LOSS, 52)),
        },
    },
    claims.more_ar_epochs_gain_nothing: {
        SUPPORTED: {
            "worse": frame(scores(AR, 50, 60), scores(AR | {"variant": "compute_matched"}, 48, 58)),
            "less than a point up": frame(scores(AR, 50, 60), scores(AR | {"variant": "compute_matched"}, 50.1, 60.1)),
        },
        CONTRADICTED: {
            "up on average": frame(scores(AR, 50, 60), scores(AR | {"variant": "compute_matched"}, 52, 62)),
            "level, one task up": frame(scores(AR, 50, 60), scores(AR | {"variant": "compute_matched"}, 55, 55)),
        },
        UNDECIDED: {"wide": frame(scores(AR, 50, se=2), scores(AR | {"variant": "compute_matched"}, 50, se=2))},
        NOT_MEASURED: {"5 epochs only": frame(scores(AR, 50))},
    },
    claims.block_diffusion_degrades: {
        SUPPORTED: {"down": frame(scores(AR, 50, 60), scores(DIFFUSION, 40, 59))},
        CONTRADICTED: {
            "up": frame(scores(AR, 50), scores(DIFFUSION, 52)),
            "level": frame(scores(AR, 50), scores(DIFFUSION, 50)),
        },
        UNDECIDED: {"wide": frame(scores(AR, 50, se=2), scores(DIFFUSION, 48, se=2))},
        NOT_MEASURED: {
            "no AR": frame(scores(DIFFUSION, 50)),
            "several tokens per forward": frame(scores(AR, 50), scores(DIFFUSION | {"tau": 0.9}, 40)),
        },
    },
    claims.decays_without_sft_loss: {
        SUPPORTED: {"down": frame(scores(ONE | NO_LOSS, 50, 60), scores(B16 | NO_LOSS, 40, 59))},
        CONTRADICTED: {"level": frame(scores(ONE | NO_LOSS, 50), scores(B16 | NO_LOSS, 50))},
        UNDECIDED: {"wide": frame(scores(ONE | NO_LOSS, 50, se=2), scores(B16 | NO_LOSS, 48, se=2))},
        NOT_MEASURED: {
            "one block size": frame(scores(ONE | NO_LOSS, 50), scores(B16, 40)),
            "with the loss": frame(scores(ONE, 50), scores(B16, 40)),
        },
    },
    claims.stays_with_sft_loss: {
        SUPPORTED: {"level": frame(scores(ONE, 50, 60), scores(B16, 50, 60))},
        CONTRADICTED: {
            "down": frame(scores(ONE, 50, 60), scores(B16, 48, 60)),
            "level on average, one task down": frame(scores(ONE, 50, 60), scores(B16, 45, 65)),
        },
        UNDECIDED: {"wide": frame(scores(ONE, 50, se=2), scores(B16, 50, se=2))},
        NOT_MEASURED: {"one block size": frame(scores(ONE, 50))},
    },
    claims.sft_loss_slows_decay: {
        SUPPORTED: {"9 points more": four_corners(50, 49, 50, 40)},
        CONTRADICTED: {"less": four_corners(50, 40, 50, 49)},
        UNDECIDED: {
            "wide": four_corners(50, 49, 50, 45, se=2),
            "wide with the loss only": frame(
                scores(ONE, 50, se=5), scores(B16, 49, se=5), scores(ONE | NO_LOSS, 50), scores(B16 | NO_LOSS, 40)
            ),
        },
        NOT_MEASURED: {
            "without only": frame(scores(ONE | NO_LOSS, 50), scores(B16 | NO_LOSS, 40)),
            "other tasks": frame(
                scores(ONE, 50, 50), scores(B16, 50, 50), scores(ONE | NO_LOSS, 50), scores(B16 | NO_LOSS, 9)
            ),
        },
    },
    claims.tau_frontier_is_smooth: {
        SUPPORTED: {
            "straight": frame(STRAIGHT),
            "a rise within noise": frame(sweep([80, 70, 70.5, 50], SPEEDS)),
        },
        CONTRADICTED: {
            "a rise beyond noise": frame(sweep([80, 60, 70, 50], SPEEDS)),
            "slower at a lower tau": frame(sweep([80, 70, 60, 50], [1.0, 1.5, 1.4, 2.5])),
        },
        UNDECIDED: {
            "no score lost": frame(sweep([80, 80, 80, 80], SPEEDS)),
            "no speed gained": frame(sweep([80, 70, 60, 50], [1.0, 1.0, 1.0, 1.0])),
            "one of two curves loses nothing": frame(STRAIGHT, sweep([80, 80, 80, 80], SPEEDS, block_size=8)),
        },
        NOT_MEASURED: {
            "two taus": frame(sweep([80, 70], SPEEDS[:2])),
            "of another metric": frame(sweep([80, 70, 60, 50], SPEEDS, confidence="entropy")),
            "no tokens per forward": frame([row for row in STRAIGHT if row["metric"] == SCORE]),
        },
    },
    claims.metrics_share_one_frontier: {
        SUPPORTED: {"on the line": frame(STRAIGHT, off_grid([80, 75, 65, 55], "margin"))},
        CONTRADICTED: {"beside it": frame(STRAIGHT, off_grid([80, 65, 55, 45], "entropy"))},
        UNDECIDED: {
            "wide": frame(sweep([80, 70, 60, 50], SPEEDS, se=2), off_grid([80, 75, 65, 55], "margin", se=2)),
        },
        NOT_MEASURED: {
            "one metric": frame(STRAIGHT),
            "out of range": frame(STRAIGHT, sweep([80, 40], [1.0, 3.0], confidence="margin")),
            "other block size": frame(STRAIGHT, sweep([80, 75], [1.0, 1.25], confidence="margin", block_size=8)),
        },
    },
    claims.jacobi_is_about_107: {
        SUPPORTED: {
            "1.07": frame(number(JACOBI, FORWARD, 1.07, 0.01)),
            "mean of tasks": frame(number(JACOBI, FORWARD, 1.02, 0.01), number(JACOBI, FORWARD, 1.12, 0.01, "b")),
        },
        CONTRADICTED: {
            "1.20": frame(number(JACOBI, FORWARD, 1.20, 0.01)),
            "1.00": frame(number(JACOBI, FORWARD, 1.0, 0.01)),
            "the average, not its tasks": frame(
                number(JACOBI, FORWARD, 1.07, 0.01), number(JACOBI, FORWARD, 1.3, 0.01, AVERAGE)
            ),
        },
        UNDECIDED: {"wide": frame(number(JACOBI, FORWARD, 1.10, 0.05))},
        NOT_MEASURED: {"scores only": frame(scores(JACOBI, 50))},
    },
    claims.block_cache_beats_none: {
        SUPPORTED: {"16 at both": block_cache(NO_CACHE, (16, 4, 150), (16, 8, 200), (64, 4, 90), (64, 8, 90))},
        CONTRADICTED: {"none at 8": block_cache(NO_CACHE, (16, 4, 150), (16, 8, 90), (64, 4, 150), (64, 8, 80))},
        UNDECIDED: {
            "3 %": block_cache(NO_CACHE, (16, 4, 103)),
            "another block at each batch": block_cache(NO_CACHE, (16, 4, 150), (16, 8, 90), (64, 4, 90), (64, 8, 150)),
        },
        NOT_MEASURED: {
            "beside AR": block_cache(AR_CACHE, (16, 4, 150)),
            "other batch sizes": frame(
                rates((MANY | {"cache": "block", "cache_block": 16, "batch_size": 4}, 150, 1)),
                rates((NO_CACHE | {"batch_size": 8}, 100, 1)),
            ),
        },
    },
    claims.block_cache_beats_ar: {
        SUPPORTED: {"faster": block_cache(AR_CACHE, (16, 4, 150))},
        CONTRADICTED: {"slower": block_cache(AR_CACHE, (16, 4, 90))},
        UNDECIDED: {
            "3 %": block_cache(AR_CACHE, (16, 4, 103)),
            "on one of two tasks": pd.concat([
                block_cache(AR_CACHE, (16, 4, 150)), block_cache(AR_CACHE, (16, 4, 101)).assign(task="b")
            ], ignore_index=True),
        },
        NOT_MEASURED: {
            "beside no cache": block_cache(NO_CACHE, (16, 4, 150)),
            "entropy": block_cache(AR_CACHE, (16, 4, 150)).replace({"confidence": {"probability": "entropy"}}),
        },
    },
    claims.speculative_gains_add_up: {
        SUPPORTED: {"both": speculation(40, 50, 60)},
        CONTRADICTED: {"the draft slows": speculation(40, 50, 45), "the target slows": speculation(40, 35, 60)},
        UNDECIDED: {"the draft gives 4 %": speculation(40, 50, 52)},
        NOT_MEASURED: {"no MARS draft": speculation(40, 50, 60).iloc[:2], "nothing": frame(scores(AR, 50))},
    },
    claims.lossless_methods_give_ar_answers: {
        SUPPORTED: {
            "jacobi alone": answering({"ar": AR, "jacobi": JACOBI}),
            "verified MARS beside one-token MARS": answering({"one": ONE, "same as one": VERIFIED}),
            "lossy Medusa is another thing": answering({"ar": AR, "jacobi": JACOBI, "other 5": TYPICAL}),
        },
        CONTRADICTED: {
            "one of two is off": answering({"ar": AR, "jacobi": JACOBI, "other 2": {"method": "eagle"}}),
        },
        UNDECIDED: {"a near-tie": answering({"ar": AR, "other 1": JACOBI})},
        NOT_MEASURED: {
            "no AR": answering({"jacobi": JACOBI}),
            "verified MARS beside AR": answering({"ar": AR, "same as one": VERIFIED}),
            "other block size": answering({"one": ONE, "same as one": VERIFIED | {"block_size": 8}}),
            "published": frame(scores(AR, 50), scores(JACOBI, 50)),
        },
    },
    claims.training_costs_twice: {
        SUPPORTED: {"2.1": frame(number(AR, COST, 10, 0.1, None), number(ONE, COST, 21, 0.1, None))},
        CONTRADICTED: {
            "3": frame(number(AR, COST, 10, 0.1, None), number(ONE, COST, 30, 0.1, None)),
            "1": frame(number(AR, COST, 10, 0.1, None), number(ONE, COST, 10, 0.1, None)),
        },
        UNDECIDED: {"wide": frame(number(AR, COST, 10, 2, None), number(ONE, COST, 24, 3, None))},
        NOT_MEASURED: {"AR only": frame(number(AR, COST, 10, 0.1, None))},
    },
}  # fmt: skip


def test_every_claim_has_a_case_for_every_verdict():
    assert set(CASES) == set(CLAIMS.values())
    assert all(set(cases) == {SUPPORTED, CONTRADICTED, UNDECIDED, NOT_MEASURED} for cases in CASES.values())


@pytest.mark.parametrize(
    ("check", "verdict", "cells"),
    [
        pytest.param(check, verdict, cells, id=f"{check.__name__}-{verdict}-{why}")
        for check, verdicts in CASES.items()
        for verdict, cases in verdicts.items()
        for why, cells in cases.items()
    ],
)
def test_verdict(check, verdict, cells):
    finding = check(cells, pairs_of(cells))
    assert finding.verdict == verdict, finding.numbers
    assert finding.numbers
    assert len(finding.numbers) <= 79  # one line of the board
    # Neither the order of the rows nor the frame's types matter.
    assert check(cells.iloc[::-1], pairs_of(cells)) == finding
    assert check(cells.convert_dtypes(), pairs_of(cells)) == finding


@pytest.mark.parametrize("check", CLAIMS.values())
def test_no_cells_are_no_verdict(check):
    assert check(frame()).verdict == NOT_MEASURED
    other = frame(number({"method": "other"}, SCORE, 1, 0.1))
    assert check(other.dropna(axis="columns")).verdict == NOT_MEASURED  # most columns are missing


def test_better_is_said_only_where_shown():
    better, level = CASES[claims.one_token_not_below_ar][SUPPORTED].values()
    assert ": better;" in claims.one_token_not_below_ar(better).numbers
    assert ": better not shown;" in claims.one_token_not_below_ar(level).numbers


def test_a_speed_without_an_interval_decides_nothing():
    cells = block_cache(AR_CACHE, (16, 4, 150))
    cells[["low", "high"]] = None
    assert claims.block_cache_beats_ar(cells).verdict == UNDECIDED


def test_two_cells_that_a_claim_cannot_tell_apart_are_refused():
    cells = frame(scores(AR, 50), scores(AR | {"batch_size": 8}, 51), scores(ONE, 50))
    with pytest.raises(ValueError, match=r"several values of score .*task: a"):
        claims.one_token_not_below_ar(cells)
    cells.loc[cells["value"] == 51, "value"] = 50.0  # the same number, from two tables
    assert claims.one_token_not_below_ar(cells).verdict == SUPPORTED


@pytest.fixture(scope="module")
def board() -> pd.DataFrame:
    return claims.judge(with_errors(read_published()))


def test_the_published_numbers(board):
    verdicts = board.set_index(["claim", "scale"])["verdict"].unstack()
    assert {claim: tuple(row[["0.5b", "7b"]]) for claim, row in verdicts.iterrows()} == {
        "One-token MARS is not below AR SFT": (SUPPORTED, SUPPORTED),
        "Compute-matched AR SFT (10 epochs) gains nothing over 5": (SUPPORTED, NOT_MEASURED),
        "Block Diffusion degrades": (SUPPORTED, NOT_MEASURED),
        "Without the SFT loss quality decays with block size": (SUPPORTED, NOT_MEASURED),
        "With the SFT loss it does not": (UNDECIDED, UNDECIDED),
        "Without the SFT loss it decays more than with it": (SUPPORTED, NOT_MEASURED),
        "The tau frontier is smooth": (SUPPORTED, SUPPORTED),
        "The three confidence metrics trace one frontier": (NOT_MEASURED, NOT_MEASURED),
        "Jacobi commits about 1.07 tokens per forward": (SUPPORTED, NOT_MEASURED),
        "The block cache is faster than none": (NOT_MEASURED, SUPPORTED),
        "With the block cache MARS is faster than AR": (NOT_MEASURED, SUPPORTED),
        "Speculative gains add up": (NOT_MEASURED, SUPPORTED),
        "Training costs about twice AR SFT's": (SUPPORTED, SUPPORTED),
        "Lossless methods give AR SFT's answers": (NOT_MEASURED, NOT_MEASURED),
    }
    numbers = board.set_index(["claim", "scale"])["numbers"]
    # By hand: (2.9+0.3+0.5+1.5+0.8+4.8)/6 = 1.8, and 1.96 times its error of 1.16.
    assert numbers["One-token MARS is not below AR SFT", "0.5b"].startswith(
        "+1.8 [−0.5, +4.1]: better not shown; 6 of 6 up"
    )
    assert numbers["With the block cache MARS is faster than AR", "7b"].startswith("blocks of 16: 1.59, 1.43, 1.30×")
    assert numbers["Training costs about twice AR SFT's", "0.5b"] == "2.20× [2.10, 2.31]"


def printed(what: Any) -> list[str]:
    console = Console(file=io.StringIO(), width=100, highlight=False)
    console.print(what)
    return console.file.getvalue().splitlines()


def test_the_board_fits_100_columns_with_a_line_for_each_verdict(board):
    lines = printed(claims.to_rich(board, "Title"))
    assert max(map(len, lines)) <= 100
    for claim, check in CLAIMS.items():
        at = lines.index(claim)
        assert [line[:6].split() for line in lines[at + 1 : at + 3]] == [["0.5b"], ["7b"]], check
        assert lines[at + 3] == ""
    for row in board.itertuples():
        assert any(row.numbers in line and row.verdict in line for line in lines)


TAUS = (1.0, 0.9, 0.7)


def measured_folder(root: Path) -> Path:
    """AR, MARS at ``TAUS`` with losses of 0, 4 and 60 of 400 documents, Jacobi with AR's answers, two caches."""
    generator = np.random.default_rng(0)
    ar = made.identity(*made.AR)
    base = made.documents(ar, 400, made.QUICK, generator)
    for i, row in enumerate(base):
        row["score"] = float(i < 300)
    cells: list[tuple[dict[str, Any], list[Row], dict[str, Any]]] = [(ar, base, {})]
    for tau, lost in zip(TAUS, (0, 4, 60), strict=True):
        axes = {"tau": tau, "block_size": 4, "confidence": "probability", "verify": False, "temperature": 0.0}
        speed = 4 if tau < 1 else 1
        rows = [
            row
            | {"score": float(lost <= i < 300), "text": f"{tau} {i}", "new_tokens": 12, "target_forwards": 12 // speed}
            for i, row in enumerate(base)
        ]
        if tau == 0.9:
            rows = [row | {"target_forwards": 6} for row in rows]
        cells.append((made.identity("mars", axes), rows, {}))
        if tau == 0.9:  # worse, and not what a claim about scores means
            none = {"mode": "none", "accept_limit": "block_size"}
            cells.append(
                (made.identity("mars", axes, cache=none), [row | {"score": 0.0} for row in rows], {"cache": "none"})
            )
    cells.append((made.identity("jacobi", {"window_length": 4, "initial": "prompt"}), base, {}))
    for n, (of, rows, config) in enumerate(cells):
        made.write(root, of, rows, made.times(n), **config)
    return root


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return open_data(measured_folder(tmp_path_factory.mktemp("measured")))


def test_the_board_of_measured_cells_is_paired(data):
    board = claims.board(data)
    assert list(board.columns) == list(claims.COLUMNS)
    measured = board[board["source"] == "measured"].set_index("claim")
    assert set(measured["family"] + " " + measured["scale"]) == {"tiny tiny"}
    assert len(board) == 3 * len(CLAIMS)
    one = measured.loc["One-token MARS is not below AR SFT"]
    assert (one["verdict"], one["how"]) == (SUPPORTED, "paired; Holm over tasks")
    assert one["numbers"] == "+0.0 [−0.7, +0.7]: better not shown; word_problems, 400 documents, p=1.000"
    frontier = measured.loc["The tau frontier is smooth"]
    assert frontier["verdict"] == SUPPORTED
    assert frontier["numbers"].startswith("1 curve: −15.0 for up to 4.00 tokens/forward")
    jacobi = measured.loc["Jacobi commits about 1.07 tokens per forward"]
    assert jacobi["numbers"].endswith("; score against AR: +0.0 [−0.7, +0.7], word_problems, 400 documents, p=1.000")
    lossless = measured.loc["Lossless methods give AR SFT's answers"]
    assert (lossless["verdict"], lossless["numbers"]) == (SUPPORTED, "400 of 400: jacobi")
    published = board[board["source"] == "published"]
    assert set(published["family"]) == {"qwen2.5"}
    assert published["how"].str.startswith("unpaired").sum() == 2 * 8


def test_measured_gaps_are_those_of_the_documents(data):
    table = gaps.all_gaps(data.usual, data.pairs).set_index(["comparison", "task"])
    row = table.loc[("one-token MARS − AR SFT", "word_problems")]
    assert (row["gap"], row["n"], row["p"]) == (0, 400, 1)
    assert bool(row["is_paired"])
    [loss] = [
        gap
        for rows in [gaps.rows_of(data.usual, data.pairs)]
        for gap in gaps.compare(rows, {"method": "mars", "tau": 0.9}, gaps.AR).tasks  # the cursor cache's
    ]
    low, high = stats.bonett_price(0, 4, 400)
    assert (loss.gap, loss.low, loss.high) == pytest.approx((-1, 100 * low, 100 * high))
    assert loss.p == stats.mcnemar(0, 4) == 0.125
    assert not loss.exceeds
    unpaired = gaps.compare(gaps.rows_of(data.usual[data.usual["cache"] == "cursor"]), {"tau": 0.9}, gaps.AR)
    assert unpaired.average.high - unpaired.average.low > 3 * (loss.high - loss.low)


def test_speeds_are_compared_on_one_machine():
    mine = MANY | {"cache": "block", "cache_block": 16.0, "batch_size": 4.0, "key": "a", "hardware": "x"}
    other = AR_CACHE | {"batch_size": 4.0, "key": "b", "hardware": "x"}
    rows = [number(mine, RATE, 150, 0), number(other, RATE, 100, 0)]
    assert claims.block_cache_beats_ar(pd.DataFrame(rows), Answers()).verdict == SUPPORTED
    for change in ({"hardware": "y"}, {"threads": 2.0}, {"batch_size": 8.0}, {"n": 5}):
        elsewhere = pd.DataFrame([rows[0], rows[1] | change])
        assert claims.block_cache_beats_ar(elsewhere, Answers()).verdict == NOT_MEASURED


def test_better_needs_both_interval_and_test():
    gap = gaps.Gap("a", 60, 50, 1.0, 100, paired=stats.Interval(10, 1, 19, 100, "Bonett-Price"), p_value=0.07)
    assert gap.low > 0
    assert not gap.exceeds


def test_without_results_the_published_numbers_are_all(capsys, tmp_path):
    claims.main([str(tmp_path)])
    found = capsys.readouterr().out
    assert "Nothing is measured yet" in found
    assert "Measured on" not in found


def test_a_folder_that_is_not_there_is_told(capsys, tmp_path):
    assert claims.main([str(tmp_path / "nowhere")]) == 2
    assert "FOLDER=" in capsys.readouterr().err


def test_the_command(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    folder = str(measured_folder(tmp_path / "results"))
    assert claims.main([folder]) == 0
    board = capsys.readouterr().out
    assert board.index("published numbers") < board.index("Measured on tiny (tiny)")
    claims.main([folder, "--gaps"])
    both = capsys.readouterr().out
    assert both.startswith(board)
    assert "one-token MARS − AR SFT, tiny" in both
    assert "one-token MARS − AR SFT, 7b" in both
    [line] = [line for line in both.splitlines() if "+6.4" in line]  # B=16, the one task that stands out
    assert line.split() == ["16", "gsm8k_cot", "1,319", "75.1", "68.7", "+6.4", "3.4", "3.7", "0.004", "**"]
    assert max(map(len, both.splitlines())) <= 100
