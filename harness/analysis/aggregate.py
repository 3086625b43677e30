"""Sums over documents and the ratios made of them, computed again from the documents alone.

The code that wrote the records is not used here, so that each checks the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from harness.results.records import CONTEXT, LENGTH, SCORED
from harness.results.stats import score_interval
from harness.results.tables import AVERAGE

_COUNTED = (
    "new_tokens", "prompt_tokens", "target_forwards", "draft_forwards", "positions", "draft_positions",
    "timed_forwards", "timed_draft_forwards",
)  # fmt: skip
_TOLERANCE = 1e-9  # relative, of sums of seconds in another order


def summed(documents: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Sums over documents, which add up over any division of them into parts (cells, machines, shards).

    Args:
        documents: the frame ``documents``, or some rows of it.
        by: columns of it; a row for each of their combinations.

    Returns:
        ``by``, ``documents``, ``generated``, ``score_sum``, ``cut``, ``cut_by_context``, ``generated_seconds``,
        ``seconds``, ``target_seconds``, ``draft_seconds`` and the counts; none where a document lacks its part.
    """
    reason = documents["finish_reason"]
    answered = reason != SCORED
    parts = {
        "documents": np.ones(len(documents), np.int64),
        "generated": answered.astype("Int64"),
        "score_sum": documents["score"],
        "cut": reason.isin([LENGTH, CONTEXT]).astype("Int64"),
        "cut_by_context": (reason == CONTEXT).astype("Int64"),
        "seconds": documents["share_seconds"],
        "generated_seconds": documents["share_seconds"].where(answered, 0.0),
        "target_seconds": documents["target_seconds"],
        "draft_seconds": documents["draft_seconds"],
        **{name: documents[name] for name in _COUNTED},
    }
    groups = pd.DataFrame({name: documents[name] for name in by} | parts).groupby(list(by), observed=True, dropna=False)
    sums = groups[list(parts)].sum()
    for name in ("target_seconds", "draft_seconds", "timed_forwards", "timed_draft_forwards"):  # older rows lack some
        sums[name] = sums[name].where(groups[name].count() == sums["documents"])
    return sums.reset_index()


def with_ratios(sums: pd.DataFrame) -> pd.DataFrame:
    """Sums and the ratios of them, none where nothing was generated; named and defined as in the frame ``cells``."""
    generated = sums["new_tokens"].where(sums["new_tokens"] > 0)
    cost = (sums["draft_seconds"] / _positive(sums["timed_draft_forwards"])) / _positive(
        sums["target_seconds"] / _positive(sums["timed_forwards"])
    )
    is_drafted = sums["draft_forwards"] > 0
    is_priced = ~is_drafted | sums["timed_draft_forwards"].notna()  # older documents do not know what drafts took
    equivalent = (sums["target_forwards"] + sums["draft_forwards"] * cost.fillna(0.0)).where(is_priced)
    return sums.assign(
        score=sums["score_sum"] / sums["documents"],
        tokens_per_forward=generated / _positive(sums["target_forwards"]),
        positions_per_token=sums["positions"] / generated,
        draft_positions_per_token=sums["draft_positions"] / generated,
        tokens_per_second=generated / _positive(sums["generated_seconds"]),
        draft_cost=cost,
        equivalent_forwards=equivalent,
        tokens_per_equivalent_forward=generated / _positive(equivalent),
        mean_tokens=sums["new_tokens"] / _positive(sums["generated"]),
        cut_share=sums["cut"] / _positive(sums["generated"]),
        context_share=sums["cut_by_context"] / _positive(sums["generated"]),
    )


def verify(cells: pd.DataFrame, tasks: pd.DataFrame, documents: pd.DataFrame, intervals: bool = False) -> pd.DataFrame:
    """Compare records with their documents: counts exactly, ratios and seconds to rounding.

    What one of the two does not know (older records) is not compared. lm-eval's other metrics are not either: some are
    no means over documents.

    Args:
        cells, tasks, documents: the frames of ``Results``.
        intervals: also compute every benchmark's interval again (seconds per thousand), which tells records made when
            intervals were computed otherwise.

    Returns:
        A row per disagreement: key, benchmark, task (none: of the whole benchmark), what, and the two values.
    """
    of_tasks = _recomputed(documents, ["key", "benchmark", "task"])
    of_benchmarks = _recomputed(documents, ["key", "benchmark"])
    of_suites = _recomputed(documents, ["key"])
    means = _means(of_benchmarks, ["key"])
    of_benchmarks = of_benchmarks.merge(_means(of_tasks, ["key", "benchmark"]).drop(columns="score"), how="left")
    of_suites = of_suites.drop(columns="score").merge(means, how="left").assign(benchmark=AVERAGE)
    if intervals:
        of_benchmarks = of_benchmarks.merge(_intervals(documents), how="left")
    is_average = cells["is_average"].astype(bool)
    of_suites = of_suites[of_suites["key"].isin(cells["key"][is_average])]
    return pd.concat(
        [
            _disagreements(cells[~is_average], of_benchmarks, ["key", "benchmark"]),
            _disagreements(cells[is_average], of_suites, ["key", "benchmark"]),
            _disagreements(tasks, of_tasks, ["key", "benchmark", "task"]),
        ],
        ignore_index=True,
    ).sort_values(["key", "benchmark", "task", "what"], ignore_index=True)


def _recomputed(documents: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    found = with_ratios(summed(documents, by)).rename(columns={"documents": "n"})
    answers = documents[documents["finish_reason"] != SCORED]
    medians = answers.groupby(by, observed=True)["new_tokens"].median().rename("median_tokens").reset_index()
    found = found.merge(medians.astype({"median_tokens": "Float64"}), how="left", on=by)
    return found.assign(**{name: found[name].astype("string") for name in by})


def _means(parts: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Plain means of ratios over parts; those that generated nothing are left out."""
    groups = parts.groupby(by)[["score", "tokens_per_forward"]].mean().reset_index()
    return groups.rename(columns={"tokens_per_forward": "tokens_per_forward_task_mean"})


def _intervals(documents: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for (key, benchmark), part in documents.groupby(["key", "benchmark"], observed=True):
        one = score_interval(part["score"].tolist(), part["task"].tolist())
        rows.append({"key": key, "benchmark": benchmark, "score_low": one.low, "score_high": one.high})
    types = {"key": "string", "benchmark": "string", "score_low": "Float64", "score_high": "Float64"}
    return pd.DataFrame(rows, columns=list(types)).astype(types)


def _disagreements(recorded: pd.DataFrame, recomputed: pd.DataFrame, places: list[str]) -> pd.DataFrame:
    """Rows of ``verify`` for one kind of row; a row that only one of the two has disagrees in n."""
    names = [name for name in recomputed.columns if name in recorded.columns and name not in places]
    both = recorded[[*places, *names]].merge(
        recomputed[[*places, *names]], on=places, how="outer", suffixes=("", " again")
    )
    is_new = both["score"].isna()
    found = []
    for name in names:
        was, now = both[name], both[f"{name} again"]
        if name == "n":
            was, now = was.mask(is_new, 0), now.fillna(0)
        is_close = (was - now).abs() <= _TOLERANCE * now.abs() if was.dtype == "Float64" else was == now
        rows = np.flatnonzero(~is_close.fillna(True).to_numpy(bool))
        if len(rows):
            values = {"record": was.astype("Float64"), "documents": now.astype("Float64")}
            found.append(both.loc[rows, places].assign(what=name, **{k: v[rows] for k, v in values.items()}))
    types = {"key": "string", "benchmark": "string", "task": "string", "what": "string"}
    whole = pd.concat(found) if found else pd.DataFrame()
    types |= {"record": "Float64", "documents": "Float64"}
    return whole.reindex(columns=list(types)).astype(types)


def _positive(values: pd.Series) -> pd.Series:
    return values.where(values > 0)
