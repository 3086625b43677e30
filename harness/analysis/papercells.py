"""Which measured and published cells are the same row of a table, and how the row is called.

A ``Setting`` is what a table tells rows apart by. Cells that agree in it differ in what hardly changes an answer (the
cache, batch size, seed, dtype, number of documents): the one with most documents stands for them, of equal ones the one
with the usual cache, then the newest. Of weights that were trained several times one training stands for all rows of
its method (``measured.is_current``). The run key of whichever was taken stands beside its numbers in the CSV files.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from harness.analysis.data import Data
from harness.analysis.measured import is_current
from harness.analysis.names import METHODS, VARIANTS, name
from harness.analysis.published import TEST_SIZES
from harness.analysis.schema import plain_rows
from harness.results.tables import AVERAGE

USUAL_CACHE = "cursor"
EVERY_TOKEN = "every token"  # Jacobi that guesses the whole rest of the answer: the paper's
ONE_TOKEN = 1.0  # τ of one-token mode, under which entropy's 0 and margin's 1 stand too: their answers are the same
# Options that are told where they are not this; others where cells of one model and method differ in them.
DEFAULTS = {"acceptance": "greedy", "store": "separate", "initial": "prompt"}
# In columns or words of their own; another method's option of such a name is an option like any other.
_TOLD = {"speculative": ("target", "draft", "num_drafts"), "jacobi": ("window_length",)}
_VARIANT_ORDER = ("base", "no_sft_loss", None, "compute_matched")
_SIDES = {"ar_sft": "AR", "mars": "MARS"}
_PLACE = (
    "cache", "cache_block", "accept_limit", "batch_size", "hardware", "device", "threads", "dtype", "seed", "limit",
    "max_gen_toks", "draft_model", "alignment", "checkpoint",
)  # fmt: skip


class Setting(NamedTuple):
    """What tells the rows of a table apart; ``confidence`` is None for the top probability, ``other`` is the rest."""

    method: str
    variant: str | None = None
    block_size: float | None = None
    tau: float | None = None
    confidence: str | None = None
    target: str | None = None
    draft: str | None = None
    num_drafts: float | None = None
    other: str = ""

    @property
    def label(self) -> str:
        """The row's name for readers."""
        parts = [name(METHODS, self.method)]
        if self.method == "speculative":
            parts.append(f"{_SIDES.get(str(self.draft), self.draft)} → {_SIDES.get(str(self.target), self.target)}")
        parts += [name(VARIANTS, self.variant)] if self.variant else []
        threshold = f"{self.confidence} τ" if self.confidence else "τ"
        for letter, value in (("K", self.num_drafts), ("B", self.block_size), (threshold, self.tau)):
            parts += [] if value is None else [f"{letter}={value:g}"]
        return " ".join([*parts, self.other] if self.other else parts)

    @property
    def order(self) -> tuple[Any, ...]:
        """Sorts rows as the paper does; methods and variants that it lacks come last."""
        methods = list(METHODS)
        place = methods.index(self.method) if self.method in METHODS else len(methods)
        known = self.variant in _VARIANT_ORDER
        variant = _VARIANT_ORDER.index(self.variant) if known else len(_VARIANT_ORDER)
        sides = (self.target == "mars", self.draft == "mars")
        numbers = (sides, self.num_drafts or 0, self.block_size or 0, -(self.tau or 0))
        return place, self.method, variant, self.variant or "", *numbers, self.confidence or "", self.other

    @property
    def is_one_token(self) -> bool:
        """MARS or Block Diffusion at one token per forward."""
        return self.method in ("mars", "block_diffusion") and self.tau == ONE_TOKEN and self.confidence is None

    @property
    def is_lossless(self) -> bool:
        """It commits several tokens per forward, and those of greedy one-token decoding of its weights."""
        if self.method == "speculative":
            return self.target == "ar_sft"
        return self.method in ("mars verified", "jacobi", "medusa", "eagle") and "acceptance=typical" not in self.other


@dataclass(frozen=True)
class Cell:
    """A measured cell.

    Attributes:
        scale: the paper's scale, or the model's name.
        setting: the row that it belongs to.
        place: cache, batch size, hardware and what else tells it from other cells of that row (``_PLACE``).
        benchmarks: rows of ``Results.cells`` by benchmark, without the average.
        values: rows of ``measured`` by benchmark (and ``average``) and metric.
    """

    key: str
    scale: str
    model: str
    created: str
    setting: Setting
    place: Mapping[str, Any]
    benchmarks: Mapping[str, Mapping[str, Any]]
    values: Mapping[tuple[str, str], Mapping[str, Any]]

    @property
    def task(self) -> str:
        """What the whole cell is: its only benchmark, or ``average``."""
        return next(iter(self.benchmarks)) if len(self.benchmarks) == 1 else AVERAGE

    @property
    def questions(self) -> tuple[Any, ...]:
        """What it was asked: equal of cells whose seconds can be compared."""
        asked = tuple(sorted((task, row["n"], row["data_hash"] or "") for task, row in self.benchmarks.items()))
        return asked, self.place["limit"], self.place["max_gen_toks"], self.place["seed"]

    def asks_the_same(self, other: Cell, task: str) -> bool:
        """Whether both answered the same documents of a benchmark with the same weights, numbers and limits."""
        names = ("checkpoint", "dtype", "seed", "limit", "max_gen_toks")
        hashes = [one.benchmarks[task]["data_hash"] if task in one.benchmarks else None for one in (self, other)]
        return task in other.benchmarks and hashes[0] == hashes[1] and all(
            self.place[one] == other.place[one] for one in names
        )  # fmt: skip


Published = dict[Setting, dict[tuple[str, str], dict[str, Any]]]


class Source:
    """Cells by row, and published numbers by row."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self._references: dict[str, str | None] = {}

    @cached_property
    def cells(self) -> list[Cell]:
        """Every greedy cell."""
        by_key: dict[str, dict[tuple[str, str], dict[str, Any]]] = defaultdict(dict)
        for row in plain_rows(self.data.measured):
            by_key[row["key"]][row["task"], row["metric"]] = row
        rows: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        for row in plain_rows(self.data.results.cells):
            if row["key"] in by_key and not row["is_average"]:
                rows[row["key"]][row["benchmark"]] = row
        other = _others([next(iter(found.values())) for found in rows.values()])
        return [_cell(key, found, by_key[key], other[key]) for key, found in rows.items()]

    @cached_property
    def current(self) -> list[Cell]:
        """Those of the weights that stand for their method (``measured.is_current``)."""
        frame = self.data.measured
        keys = set(frame["key"][is_current(frame)])
        return [cell for cell in self.cells if cell.key in keys]

    @cached_property
    def scales(self) -> list[str]:
        """The paper's two, then other models that were measured."""
        return ["0.5b", "7b", *sorted({cell.scale for cell in self.cells} - {"0.5b", "7b"})]

    @cached_property
    def _by_row(self) -> dict[tuple[str, Setting, str], list[Cell]]:
        found = defaultdict(list)
        for cell in self.current:
            for task in cell.benchmarks:
                found[cell.scale, cell.setting, task].append(cell)
        return found

    def settings(self, scale: str) -> list[Setting]:
        """Rows that were measured of a scale, in the order of tables."""
        return sorted({cell.setting for cell in self.current if cell.scale == scale}, key=lambda one: one.order)

    def tasks(self, scale: str, settings: Sequence[Setting]) -> list[str]:
        """Benchmarks of these rows: the paper's in its order, then the others by name."""
        names = {task for cell in self.cells if cell.scale == scale and cell.setting in settings
                 for task in cell.benchmarks}  # fmt: skip
        return [task for task in TEST_SIZES if task in names] + sorted(names - {*TEST_SIZES})

    def pick(self, scale: str, setting: Setting, task: str) -> Cell | None:
        """The cell that stands for a row on a benchmark."""

        def rank(cell: Cell) -> tuple[Any, ...]:
            return cell.benchmarks[task]["n"], cell.place["cache"] == USUAL_CACHE, cell.created, cell.key

        return max(self._by_row.get((scale, setting, task), []), key=rank, default=None)

    def like(self, cell: Cell, setting: Setting, task: str) -> Cell | None:
        """The newest cell of another row on the same documents."""
        same = [one for one in self._by_row.get((cell.scale, setting, task), []) if cell.asks_the_same(one, task)]
        return max(same, key=lambda one: (one.created, one.key), default=None)

    def reference(self, key: str) -> str | None:
        """The AR SFT cell that a cell is compared with (``Results.reference``)."""
        if key not in self._references:
            self._references[key] = self.data.results.reference(key)
        return self._references[key]

    def published(self, table: int, scale: str) -> Published:
        """Rows of ``published`` of one of the paper's tables, by row, then by task and metric."""
        found: Published = defaultdict(dict)
        frame = self.data.published
        for row in plain_rows(frame[(frame["table"] == table) & (frame["scale"] == scale)]):
            found[_published_setting(row)][row["task"], row["metric"]] = row
        return found


def _published_setting(row: Mapping[str, Any]) -> Setting:
    other = EVERY_TOKEN if row["method"] == "jacobi" else ""
    names = ("method", "variant", "block_size", "tau", "target", "draft", "num_drafts")
    return Setting(**{one: row[one] for one in names}, other=other)


def _cell(
    key: str, rows: Mapping[str, Mapping[str, Any]], values: Mapping[tuple[str, str], Mapping[str, Any]], other: str
) -> Cell:
    row, first = next(iter(values.values())), next(iter(rows.values()))
    tau, confidence = row["tau"], None if row["confidence"] == "probability" else row["confidence"]
    if row["method"] == "mars" and (confidence, tau) in (("entropy", 0.0), ("margin", 1.0)):
        tau, confidence = ONE_TOKEN, None
    setting = Setting(
        row["method"], row["variant"], row["block_size"], tau, confidence,
        row["target"], row["draft"], row["num_drafts"], other,
    )  # fmt: skip
    if row["method"] == "speculative" and "mars" not in (row["target"], row["draft"]):
        setting = setting._replace(block_size=None, tau=None, confidence=None)
    place = {one: first[one] for one in _PLACE}
    return Cell(key, row["scale"], row["model"], str(row["created"]), setting, place, rows, values)


def _others(cells: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """By run key what a row's name says of options without a column: see ``DEFAULTS``."""
    siblings = defaultdict(list)
    for cell in cells:
        siblings[cell["model"], cell["method"]].append(cell)
    found = {}
    for group in siblings.values():
        axes = [_axes(cell) for cell in group]
        names = sorted({axis for one in axes for axis in one} - {*DEFAULTS})
        names = [axis for axis in names if axis not in _TOLD.get(group[0]["method"], ())]
        differing = [axis for axis in names if len({one.get(axis) for one in axes}) > 1]
        if len({one["alignment"] for one in axes if "alignment" in one}) < 2 and "alignment" in differing:
            differing.remove("alignment")  # AR SFT's weights have none: beside MARS's they tell no rows apart
        for cell, one in zip(group, axes, strict=True):
            parts = [f"{axis}={one[axis]}" for axis, usual in DEFAULTS.items() if one.get(axis, usual) != usual]
            told = [axis for axis in differing if axis != "alignment" or axis in one]
            parts += [f"{axis}={_short(one.get(axis, 'null'))}" for axis in told]
            if cell["method"] == "jacobi":
                parts.insert(0, f"n={one['window_length']}" if one.get("window_length") else EVERY_TOKEN)
            found[cell["key"]] = " ".join(parts)
    return found


def _axes(cell: Mapping[str, Any]) -> dict[str, str]:
    """Options that are set, the draft model and the training's alignment among them."""
    axes = {k.removeprefix("axis."): str(v) for k, v in cell.items() if k.startswith("axis.") and v is not None}
    extra = {one: cell[one] for one in ("draft_model", "alignment") if cell[one] is not None}
    return {k: str(v) for k, v in extra.items()} | axes


def _short(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:12]}…{zlib.crc32(text.encode()):08x}"
