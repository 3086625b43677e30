"""The documents of all cells, small enough to travel inside a page.

Every document's score and counts are kept, so that a paired comparison in the page is of all of them. Texts weigh most:
a text that several cells gave is stored once, and where they do not fit, the same first documents of every cell keep
theirs and the page says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from harness.analysis.report.markup import packed
from harness.analysis.trace import OBSCURED

_RAW_LIMIT = 100_000_000  # characters: more has no prospect of fitting, so it is not even tried
_TEXTS, _LISTS = ("text", "extracted", "target"), ("token_ends", "acceptance_lengths")
NO_ROWS = -1


def pack(documents: pd.DataFrame, limit: int) -> tuple[dict[str, str], int | None]:
    """Documents by benchmark, packed (``markup.packed``) into at most ``limit`` characters together.

    A block has ``tasks``; ``places``, the documents in their order as [place in tasks, doc_id], one document of each
    task before the second of any; ``finish``, names of finish reasons; ``strings``, where a number stands for the text
    of a gated benchmark, which is never put into the page (equal numbers: equal texts); and ``cells`` by run key:

    * ``places`` (absent: all of them, in order), ``score`` ("0110…", or numbers where they are not 0 and 1),
      ``tokens``, ``forwards``, ``finish``: a value for each document;
    * ``text``, ``extracted``, ``target``, ``ends`` (in characters; differences), ``lengths``: places in ``strings`` for
      the first documents, −1 where there is none.

    Returns:
        The blocks, and how many documents of each cell and benchmark have their texts: None for all, ``NO_ROWS`` where
        not even the scores fit and there are no blocks at all.
    """
    parts = {
        str(name): _Benchmark(part) for name, part in documents.groupby("benchmark", observed=True, sort=False)
    }  # fmt: skip
    most = max((part.num_places for part in parts.values()), default=0)
    weight = sum(part.weight for part in parts.values())
    kept = most if weight <= _RAW_LIMIT else int(most * _RAW_LIMIT / weight)
    while True:
        blocks = {name: packed(part.block(kept)) for name, part in parts.items()}
        size = sum(map(len, blocks.values()))
        if size <= limit:
            return blocks, None if kept >= most else kept
        if kept == 0:
            return {}, NO_ROWS
        kept = min(int(kept * 0.95 * limit / size), kept - 1)


class _Benchmark:
    """The documents of one benchmark, sorted by place within each cell."""

    def __init__(self, rows: pd.DataFrame) -> None:
        tasks = rows["task"].cat.remove_unused_categories().cat
        self._tasks = [str(name) for name in tasks.categories]
        number = rows["doc_id"].to_numpy(np.int64) * len(self._tasks) + tasks.codes.to_numpy(np.int64)
        self._numbers, place = np.unique(number, return_inverse=True)
        order = np.lexsort((place, rows["key"].cat.codes.to_numpy()))
        rows, self._place = rows.iloc[order], place[order]
        self._keys = rows["key"].astype(str).to_numpy()
        bounds = np.flatnonzero(np.r_[True, self._keys[1:] != self._keys[:-1]])
        self._cells = [*pairwise([*bounds.tolist(), len(rows)])]
        self._score = rows["score"].to_numpy(np.float64)
        self._counts = {name: rows[name].to_numpy(np.int64) for name in ("new_tokens", "target_forwards")}
        finish = rows["finish_reason"].cat.remove_unused_categories().cat
        self._finish, self._finishes = finish.codes.to_numpy(), [str(name) for name in finish.categories]
        self._texts = {name: rows[name].to_numpy(object) for name in _TEXTS if name in rows}
        self._lists = {name: _flat(rows[name]) for name in _LISTS if name in rows}

    @property
    def num_places(self) -> int:
        """Different documents."""
        return len(self._numbers)

    @property
    def weight(self) -> int:
        """Roughly the characters of all texts and lists."""
        texts = sum(len(text) for texts in self._texts.values() for text in texts if isinstance(text, str))
        return texts + sum(2 * len(values) for values, _, _ in self._lists.values())

    def block(self, kept: int) -> dict[str, Any]:
        """The block of ``pack`` with the texts of the first ``kept`` documents."""
        strings = _Strings()
        cells = {str(self._keys[start]): self._cell(start, stop, kept, strings) for start, stop in self._cells}
        places = [[int(n % len(self._tasks)), int(n // len(self._tasks))] for n in self._numbers]
        return {
            "tasks": self._tasks, "places": places, "finish": self._finishes, "strings": strings.values, "cells": cells,
        }  # fmt: skip

    def _cell(self, start: int, stop: int, kept: int, strings: _Strings) -> dict[str, Any]:
        place, score = self._place[start:stop], self._score[start:stop]
        found: dict[str, Any] = {} if len(place) == self.num_places else {"places": place.tolist()}
        is_binary = bool(np.isin(score, (0.0, 1.0)).all())
        found["score"] = (
            "".join("01"[int(one)] for one in score) if is_binary else [round(x, 6) for x in score.tolist()]
        )
        found["tokens"] = self._counts["new_tokens"][start:stop].tolist()
        found["forwards"] = self._counts["target_forwards"][start:stop].tolist()
        found["finish"] = self._finish[start:stop].tolist()
        end = start + int(np.searchsorted(place, kept))
        for name, texts in self._texts.items():
            found[name] = [strings.place(text) for text in texts[start:end]]
        is_shown = [isinstance(strings.values[i], str) if i >= 0 else False for i in found.get("text", [])]
        for name, short, encode in (("token_ends", "ends", _differences), ("acceptance_lengths", "lengths", _plain)):
            if name in self._lists:
                values, at, until = self._lists[name]
                pieces = (values[at[i] : until[i]] for i in range(start, end))
                found[short] = [
                    strings.of_list(short, piece, encode) if shown and len(piece) else -1
                    for shown, piece in zip(is_shown, pieces, strict=True)
                ]
        return found


class _Strings:
    """A block's strings, each once."""

    def __init__(self) -> None:
        self.values: list[str | int] = []
        self._places: dict[Any, int] = {}
        self._num_hidden = 0

    def place(self, text: Any) -> int:
        """Where a text stands; −1 for none."""
        if not isinstance(text, str):
            return -1
        if text not in self._places:
            self._places[text] = len(self.values)
            is_hidden = text.startswith(OBSCURED)
            self._num_hidden += is_hidden
            self.values.append(self._num_hidden if is_hidden else text)
        return self._places[text]

    def of_list(self, kind: str, values: np.ndarray, encode: Callable[[np.ndarray], Sequence[int]]) -> int:
        """Where a list of whole numbers stands, as "1,4,4"."""
        name = (kind, values.tobytes())
        if name not in self._places:
            self._places[name] = self.place(",".join(map(str, encode(values))))
        return self._places[name]


def _plain(values: np.ndarray) -> Sequence[int]:
    return list(values.tolist())


def _differences(values: np.ndarray) -> Sequence[int]:
    return list(np.diff(values, prepend=0).tolist())


def _flat(column: pd.Series) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A column of lists as its values one after the other, and where each row's begin and end (none: nowhere)."""
    lists = column.array.__arrow_array__()
    if hasattr(lists, "combine_chunks"):
        lists = lists.combine_chunks()
    offsets = lists.offsets.to_numpy()
    starts, stops = offsets[:-1], offsets[1:]
    stops = np.where(np.asarray(lists.is_valid()), stops, starts)
    return lists.values.to_numpy(zero_copy_only=False), starts, stops


def notice(kept: int | None) -> str:
    """What the page says where texts were left out; "" where none were."""
    if kept is None:
        return ""
    if kept == NO_ROWS:
        return "The documents of these cells do not fit into one page: none is here, and cells cannot be compared."
    return (
        f"The texts of all documents do not fit into one page: of every cell and benchmark the first {kept:,} "
        "documents have theirs. Scores, tokens and forwards are of all documents, and so is every comparison."
    )


def summary(blocks: Mapping[str, str]) -> list[dict[str, Any]]:
    """The blocks by name, for the page's index: which element holds which."""
    return [{"benchmark": name, "element": f"documents-{i}"} for i, name in enumerate(blocks)]
