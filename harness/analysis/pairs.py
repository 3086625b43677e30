"""Paired comparisons of cells on the documents that both answered, each computed once."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from harness.analysis.frames import Results
from harness.results.stats import Comparison, compare, mean_interval
from harness.results.tables import AVERAGE

_NEEDED = ("benchmark", "task", "doc_id", "score")
_ANSWER = ("text", "new_tokens")  # the same text of as many tokens


class Pairs:
    """Differences in score between cells, document by document; fractions, first minus second."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._known: dict[tuple[str, str, str], Comparison | None] = {}

    def difference(self, first: str, second: str, benchmark: str) -> Comparison | None:
        """Paired difference of two cells on a benchmark, or with ``average`` the plain mean over those of both.

        Args:
            first, second: run keys.

        Returns:
            None where they share no document. The average's parts are on documents of their own, so independent: its
            interval is that of ``stats.mean_interval``, and it has no p-value.
        """
        place = (first, second, benchmark)
        if place not in self._known:
            found = self._average(first, second) if benchmark == AVERAGE else self._compare(first, second, benchmark)
            self._known[place] = found
        return self._known[place]

    def same_answers(self, first: str, second: str) -> tuple[int, int]:
        """Documents that two cells answered alike (the same text in as many tokens), and those that both answered.

        Where texts were not loaded, or are not known, there are none of either.
        """
        sides = [self._answers.get(key, {}) for key in (first, second)]
        shared = sides[0].keys() & sides[1].keys()
        return sum(sides[0][place] == sides[1][place] for place in shared), len(shared)

    def benchmarks(self, key: str) -> list[str]:
        """Benchmarks of a cell."""
        return [benchmark for other, benchmark in self._scores if other == key]

    @cached_property
    def _scores(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        columns = (self._results.documents[name].tolist() for name in ("key", *_NEEDED))
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for key, benchmark, task, doc_id, score in zip(*columns, strict=True):
            found.setdefault((key, benchmark), []).append({"task": task, "doc_id": doc_id, "score": score})
        return found

    @cached_property
    def _answers(self) -> dict[str, dict[tuple[Any, ...], tuple[Any, ...]]]:
        documents = self._results.documents
        if "text" not in documents.columns:
            return {}
        known = documents[documents["text"].notna() & (documents["new_tokens"] > 0)]
        found: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = {}
        for key, *row in known[["key", "benchmark", "task", "doc_id", *_ANSWER]].itertuples(index=False):
            found.setdefault(str(key), {})[tuple(row[:3])] = tuple(row[3:])
        return found

    def _compare(self, first: str, second: str, benchmark: str) -> Comparison | None:
        a, b = (self._scores.get((key, benchmark), []) for key in (first, second))
        return compare(a, b) if a and b else None

    def _average(self, first: str, second: str) -> Comparison | None:
        shared = [name for name in self.benchmarks(first) if (second, name) in self._scores]
        found = [self.difference(first, second, name) for name in shared]
        parts = [one for one in found if one is not None]
        if not parts:
            return None
        whole = mean_interval([one.difference for one in parts])
        return Comparison(whole, None, sum(one.wins for one in parts), sum(one.losses for one in parts))
