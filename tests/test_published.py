"""The paper's numbers: that a slip of the transcription is refused, what they are called here, and their errors."""

from __future__ import annotations

import math
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from harness.analysis import gaps, published
from harness.analysis.published import AVERAGE, COST, DELTA, FORWARD, PAPER, RATE, SCORE, SECONDS, SPEEDUP, TEST_SIZES
from harness.config import CONF
from harness.results.stats import holm, score_interval, two_sided


@pytest.fixture(scope="module")
def paper() -> pd.DataFrame:
    return published.with_errors(published.read_published())


def one(frame: pd.DataFrame, metric: str = SCORE, **where: object) -> dict[str, Any]:
    [row] = gaps.pick(gaps.rows_of(frame), metric, where)
    return row


# A number of each table, as read off the paper's page.
@pytest.mark.parametrize(
    ("table", "metric", "where", "value", "unit"),
    [
        (2, SCORE, {"scale": "7b", "method": "ar_sft", "variant": "base", "task": "bbh"}, 24.0, "percent"),
        (2, SCORE, {"method": "ar_sft", "variant": "compute_matched", "task": "mmlu_pro"}, 9.3, "percent"),
        (2, SCORE, {"method": "block_diffusion", "block_size": 4, "tau": 1, "task": "bbh"}, 7.5, "percent"),
        (3, SCORE, {"method": "mars", "variant": "no_sft_loss", "block_size": 16, "task": AVERAGE}, 22.2, "percent"),
        (4, DELTA, {"scale": "0.5b", "method": "mars", "block_size": 8, "tau": 0.95, "task": "ifeval"}, -5.6, "points"),
        (4, FORWARD, {"scale": "7b", "block_size": 16, "tau": 0.95, "task": AVERAGE}, 1.87, "tokens / forward"),
        (5, RATE, {"method": "mars", "cache": "block", "cache_block": 32, "batch_size": 8}, 368.4, "tokens / s"),
        (5, SPEEDUP, {"scale": "7b", "method": "mars", "cache": "none", "batch_size": 16}, 0.23, "ratio of seconds"),
        (6, SECONDS, {"scale": "7b", "target": "mars", "draft": "ar_sft", "num_drafts": 4}, 457, "s"),
        (6, DELTA, {"scale": "7b", "target": "ar_sft", "draft": "ar_sft", "tau": None}, 0.1, "points"),
        (7, COST, {"scale": "7b", "method": "mars"}, 202, "H200 hours"),
        (8, SCORE, {"scale": "7b", "block_size": 16, "tau": 0.6, "task": "gsm8k_cot"}, 54.4, "percent"),
        (9, FORWARD, {"scale": "0.5b", "method": "jacobi", "tau": None, "block_size": None}, 1.07, "tokens / forward"),
    ],
)  # fmt: skip
def test_every_table_is_read(paper, table, metric, where, value, unit):
    row = one(paper[paper["table"] == table], metric, **where)
    assert (row["value"], row["unit"]) == (value, unit)


def test_names_are_those_of_this_project(paper, tmp_path, monkeypatch):
    suite = yaml.safe_load((CONF / "suite" / "paper.yaml").read_text())
    assert list(TEST_SIZES) == list(suite["tasks"])
    assert set(paper["task"].dropna()) == {*TEST_SIZES, AVERAGE}
    assert set(paper["method"]) <= {path.stem for path in (CONF / "method").glob("*.yaml")}
    assert set(paper["variant"].dropna()) == {"base", "compute_matched", "no_sft_loss"}
    # AR and Jacobi have neither tau nor B, whatever a table's column says.
    assert paper[paper["method"].isin(["ar_sft", "jacobi"])][["tau", "block_size"]].isna().all().all()
    monkeypatch.chdir(tmp_path)
    assert len(published.read_published()) == len(paper) == 650
    recipe = published.recipe().set_index("hyperparameter")
    assert recipe.loc["training_cost_h200_hours", "0.5b"] == "15 (AR) / 33 (MARS)"


def copy_with(folder: Path, file: str, old: str, new: str) -> Path:
    shutil.copytree(PAPER, folder / "paper")
    [path] = (folder / "paper").glob(f"{file}*.csv")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return folder / "paper"


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("table2", "48.4,26.3,11.9", "48.4,23.6,11.9", "mean of its tasks"),  # digits swapped
        ("table9", "41.0,19.2", "41.0,18.2", "mean of its tasks"),
        ("table4", "avg,29.0,-1.4,1.46", "avg,29.0,-1.4,1.49", "mean of its tasks"),
        ("table4", "ifeval,45.5,-5.8", "ifeval,45.5,5.8", "difference of the scores"),  # a lost sign
        ("table4", "gsm8k,31.1,-1.7", "gsm8k,31.1,-1.9", "difference of the scores"),
        ("table5", "248.8,1.11", "248.8,1.14", "ratio of the seconds"),
        ("table6", "53.3,457", "53.3,475", "ratio of the seconds"),
        ("table8", "7b,mars,,8,1.0,gsm8k", "7b,mars,,4,1.0,gsm8k", "twice in one table"),
        ("table8", "gsm8k,21.5", "gsm8k,215", "score of 215"),
        ("table8", "gsm8k,21.5", "gsm8k,", "could not convert"),
        ("table8", "mars", "mras", "mras"),
        ("table3", "no_sft_loss", "no sft loss", "no sft loss"),
        ("table4", "gpqa", "gqpa", "gqpa"),
    ],
)
def test_a_slip_is_refused(tmp_path, file, old, new, says):
    with pytest.raises(ValueError, match=says):
        published.read_published(copy_with(tmp_path, file, old, new))


def test_a_missing_table_is_refused(tmp_path):
    folder = copy_with(tmp_path, "table7", "15", "15")
    (folder / "table7_training.csv").unlink()
    with pytest.raises(ValueError, match="0 files of table 7"):
        published.read_published(folder)


def test_a_cell_with_two_values_is_listed_and_kept(tmp_path):
    frame = published.read_published(
        copy_with(tmp_path, "table8", "0.5b,mars,,4,1.0,gsm8k,32.8", "0.5b,mars,,4,1.0,gsm8k,33.8")
    )
    found = published.deviations(frame).query("kind == 'two tables'")
    [says] = found["says"]
    assert says == "32.8 in table 2, 32.8 in table 3, 33.8 in table 8"
    assert not found["is_error"].any()


def test_what_is_odd_in_the_papers_own_numbers(paper):
    """README.md in results/paper tells these; none is a slip."""
    found = published.deviations(paper)
    assert found["kind"].value_counts().to_dict() == {"share": 11, "length": 2}
    shares = found[found["kind"] == "share"]["where"]
    assert shares.str.contains("ifeval").sum() == 8
    assert shares.str.contains("humaneval").sum() == 3
    assert all("(+10%)" in says for says in found[found["kind"] == "length"]["says"])


def test_scores_have_binomial_errors_at_their_benchmarks_size(paper):
    row = one(paper[paper["table"] == 2], scale="0.5b", method="mars", variant=None, task="humaneval_instruct")
    assert row["n"] == 164
    assert row["se"] == pytest.approx(100 * math.sqrt(0.402 * 0.598 / 164))
    # Agresti and Coull's interval of 66 of 164, by its formula: z² answers more, half of them right.
    z = 1.959964
    n = 164 + z**2
    p = (66 + z**2 / 2) / n
    half = z * math.sqrt(p * (1 - p) / n)
    assert (row["low"], row["high"]) == pytest.approx((100 * (p - half), 100 * (p + half)), abs=1e-4)


def test_an_average_has_the_error_of_a_mean_of_independent_parts(paper):
    cells = paper[(paper["table"] == 2) & (paper["scale"] == "7b") & (paper["method"] == "mars")]
    average = one(cells, task=AVERAGE)
    parts = [one(cells, task=task) for task in TEST_SIZES]
    assert average["n"] == sum(TEST_SIZES.values())
    assert average["se"] == pytest.approx(math.sqrt(sum(part["se"] ** 2 for part in parts)) / 6)
    assert average["value"] - average["low"] == pytest.approx(
        math.sqrt(sum((part["value"] - part["low"]) ** 2 for part in parts)) / 6
    )


def test_what_has_no_sampling_error_has_the_span_of_its_rounding(paper):
    row = one(paper, SECONDS, target="mars", draft="mars")
    assert (row["low"], row["high"]) == (416.5, 417.5)  # printed without a decimal
    row = one(paper, FORWARD, method="jacobi")
    assert (row["low"], row["high"]) == pytest.approx((1.065, 1.075))
    assert math.isnan(row["n"])


def test_holm():
    # The worked case of the step-down rule: 4·0.005, 3·0.01, then 2·0.03 and no less for the last.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    assert two_sided(1.959964) == pytest.approx(0.05, abs=1e-6)
    assert two_sided(-1.959964) == pytest.approx(0.05, abs=1e-6)


def test_gaps_of_table_2(paper):
    """The design's own example: 40.2 against 35.4 on HumanEval is inside one standard error."""
    table = gaps.all_gaps(paper[paper["table"] == 2])
    mars = table[table["comparison"] == "one-token MARS − AR SFT"]
    row = mars[(mars["scale"] == "0.5b") & (mars["task"] == "humaneval_instruct")].iloc[0]
    assert row["gap"] == pytest.approx(4.8)
    assert row["se"] == pytest.approx(100 * math.sqrt(0.402 * 0.598 / 164 + 0.354 * 0.646 / 164))
    assert row["z"] == pytest.approx(row["gap"] / row["se"]) == pytest.approx(0.8975, abs=1e-3)
    assert not row["exceeds"]
    average = mars[(mars["scale"] == "0.5b") & (mars["task"] == AVERAGE)].iloc[0]
    parts = mars[(mars["scale"] == "0.5b") & (mars["task"] != AVERAGE)]
    assert len(parts) == 6
    assert average["gap"] == pytest.approx(parts["gap"].mean())
    assert average["se"] == pytest.approx(math.sqrt((parts["se"] ** 2).sum()) / 6)


def test_which_published_gaps_exceed_their_error(paper):
    table = gaps.all_gaps(paper[paper["table"] == 2]).set_index(["comparison", "scale", "task"])
    alone, corrected = (set(table[table[name]].index) for name in ("exceeds", "exceeds_holm"))
    assert corrected == {
        ("AR SFT 10 − 5 epochs", "0.5b", "mmlu_pro"),
        ("AR SFT 10 − 5 epochs", "0.5b", AVERAGE),
        ("Block Diffusion − AR SFT", "0.5b", "bbh"),
        ("Block Diffusion − AR SFT", "0.5b", "mmlu_pro"),
        ("Block Diffusion − AR SFT", "0.5b", AVERAGE),
    }
    assert alone - corrected == {
        ("AR SFT 10 − 5 epochs", "0.5b", "gsm8k_cot"),
        ("one-token MARS − AR SFT", "7b", "gsm8k_cot"),
    }


def test_holm_corrects_over_tasks_and_block_sizes(paper):
    table = gaps.all_gaps(paper)
    family = table[(table["comparison"] == "one-token MARS − AR SFT") & (table["scale"] == "7b")]
    tasks = family[family["task"] != AVERAGE]
    assert len(tasks) == 18
    assert list(tasks["p_holm"]) == pytest.approx(holm(list(tasks["p"])))
    assert list(zip(*tasks.loc[tasks["exceeds_holm"], ["block_size", "task"]].values.T, strict=True)) == [
        (16, "gsm8k_cot")
    ]


def exact_coverage(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Exact coverage of ``score_interval`` at the true rates between 2 % and 98 % at which it is least.

    Between two ends of intervals the same outcomes cover; the chance of consecutive outcomes rises and then falls with
    the rate, so that it is least at one of the ends.

    Returns:
        Rates and coverages, [points].
    """
    intervals = [score_interval([1.0] * k + [0.0] * (n - k)) for k in range(n + 1)]
    low, high = (np.array([getattr(one, name) for one in intervals]) for name in ("low", "high"))
    ends = np.unique(np.concatenate([low, high, [0.02, 0.98]]))
    ends = ends[(ends >= 0.02) & (ends <= 0.98)]
    k = np.arange(n + 1)
    choose = np.array([math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) for i in k])
    rates, coverages = [], []
    for left, right in pairwise(ends):
        covers = (low <= (left + right) / 2) & ((left + right) / 2 <= high)
        for rate in (left, right):
            chances = np.exp(choose[covers] + k[covers] * math.log(rate) + (n - k[covers]) * math.log1p(-rate))
            rates.append(rate)
            coverages.append(chances.sum())
    return np.array(rates), np.array(coverages)


@pytest.mark.parametrize(("n", "least"), [(164, 0.9401), (448, 0.9430), (541, 0.9426), (1319, 0.9444)])
def test_intervals_cover_at_the_benchmarks_sizes(n, least):
    _, coverages = exact_coverage(n)
    assert coverages.min() == pytest.approx(least, abs=5e-5)
    assert coverages.min() >= 0.93


@pytest.mark.parametrize("n", [164, 448, 541, 1319])
def test_intervals_cover_in_a_simulation(n):
    """The same by drawing 20,000 test sets at each rate, through the function that makes records' intervals."""
    generator = np.random.default_rng(n)
    intervals = [score_interval([1.0] * k + [0.0] * (n - k)) for k in range(n + 1)]
    low, high = (np.array([getattr(one, name) for one in intervals]) for name in ("low", "high"))
    rates = [0.02, 0.025, 0.03, *np.linspace(0.05, 0.95, 19), 0.97, 0.975, 0.98]
    for rate in rates:
        right = generator.binomial(n, rate, size=20_000)
        assert ((low[right] <= rate) & (rate <= high[right])).mean() >= 0.93
