"""Table 5: seconds on the clock, which are compared on one machine, batch size and set of documents only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.analysis.grids import ABSENT, Grid, Table
from harness.analysis.names import BENCHMARKS, MODELS, name
from harness.analysis.papercells import USUAL_CACHE, Cell, Setting, Source
from harness.analysis.papergrids import AR, SIDES
from harness.analysis.papernumbers import MEANING, SPEEDUP_AR, Number, Value, frame, minus, text, value_of
from harness.analysis.published import RATE, SECONDS, SPEEDUP

SCALE = "7b"  # of both tables in the paper
TAU, BLOCK_SIZE = 0.95, 4.0
HEADINGS = {RATE: "tokens/s", SECONDS: "seconds", SPEEDUP: "speedup"}
CLOCK = (
    "Seconds are of all forwards, tokens/s are committed tokens over them. Both hold for one machine: a block is one "
    "model on one machine and device, with its number of threads, dtype and documents, and nothing is compared across "
    "blocks or batch sizes. The paper's machine and documents are not told, so that only its speedups have a "
    "difference. Clocks are of one run and have no interval. "
)
CAPTION = CLOCK + (
    "speedup: seconds of AR SFT with its usual cache at the same batch size over the row's, as in the paper, so that a "
    "method that writes more tokens loses by it. The paper's τ is 0.95; its Table 5 does not print B, and its numbers "
    "stand beside B = 4. MARS is shown at τ = 0.95, other methods as measured. "
)


class Line(NamedTuple):
    """A row of Table 5: settings and cache."""

    setting: Setting
    cache: str | None
    cache_block: float | None
    accept_limit: str | None = "block_size"

    @property
    def label(self) -> str:
        """The row's name for readers."""
        parts = [self.setting.label]
        if self.cache != USUAL_CACHE:
            parts.append(f"{self.cache} cache" if self.cache != "none" else "no cache")
        parts += [f"{self.cache_block:g}"] if self.cache_block is not None else []
        parts += ["accepting by cache block"] if self.accept_limit == "cache_block" else []
        return ", ".join([parts[0], " ".join(parts[1:])]) if len(parts) > 1 else parts[0]

    @property
    def order(self) -> tuple[Any, ...]:
        """Sorts rows as the paper does."""
        return self.setting.order, ("none", "block").index(self.cache) if self.cache in ("none", "block") else -1, (
            self.cache_block or 0
        ), self.accept_limit or ""  # fmt: skip


@dataclass(frozen=True)
class Block:
    """Cells whose clocks can be compared, or none of the paper's scale."""

    scale: str
    cells: tuple[Cell, ...]

    @property
    def title(self) -> str:
        """Model, machine and documents."""
        title = name(MODELS, self.scale)
        if not self.cells:
            return title
        cell = self.cells[0]
        place, asked = cell.place, cell.benchmarks
        count = place["threads"] if place["device"] == "cpu" else None
        threads = f", {count} thread{'s' if count > 1 else ''}" if count else ""
        names = ", ".join(f"{name(BENCHMARKS, task)} (n={row['n']})" for task, row in asked.items())
        is_told = place["limit"] is None or place["limit"] in [row["n"] for row in asked.values()]
        extra = "" if is_told else f", limit {place['limit']}"
        seed = f", seed {place['seed']}" if place["seed"] else ""
        machine = place["hardware"] or "a machine that the record does not name"
        return f"{title} on {machine} ({place['device']}{threads}), {place['dtype']}: {names}{extra}{seed}"


def wall_clock(source: Source) -> Table:
    """Table 5."""
    numbers, grids = [], []
    published = _published_clock(source)
    for block in blocks_of(source, _belongs):
        grid, found = _clock_block(block, published if block.scale == SCALE else {})
        grids.append(grid)
        numbers += found
    return Table("table5", "Table 5: wall clock by cache and batch size", CAPTION + MEANING, tuple(grids),
                 frame("table5", numbers))  # fmt: skip


def _belongs(setting: Setting) -> bool:
    is_mars = setting.method == "mars"
    return setting.variant is None and (not is_mars or (setting.tau == TAU and setting.confidence is None))


def blocks_of(source: Source, takes: Callable[[Setting], bool]) -> Iterator[Block]:
    """The paper's scale, measured or not, then other models; each machine and set of documents apart."""
    for scale in [SCALE, *(one for one in source.scales if one != SCALE)]:
        places: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
        for cell in source.current:
            if cell.scale == scale and takes(cell.setting) and cell.place["batch_size"] is not None:
                machine = tuple(str(cell.place[one] or "") for one in ("hardware", "device", "threads", "dtype"))
                places[(*machine, cell.questions)].append(cell)
        for _, cells in sorted(places.items(), key=lambda item: repr(item[0])):
            yield Block(scale, tuple(sorted(cells, key=lambda one: (one.created, one.key))))
        if scale == SCALE and not places:
            yield Block(scale, ())


def _published_clock(source: Source) -> dict[tuple[Line, float], dict[str, Value]]:
    """Published numbers by row and batch size."""
    frame = source.data.published
    found: dict[tuple[Line, float], dict[str, Value]] = defaultdict(dict)
    for row in frame[frame["table"] == 5].to_dict("records"):
        is_mars = row["method"] == "mars"
        setting = Setting("mars", None, BLOCK_SIZE, row["tau"]) if is_mars else AR
        size = row["cache_block"]
        line = Line(setting, row["cache"], None if size != size else size)
        found[line, row["batch_size"]][row["metric"]] = value_of(row) or Value(0, 0, 0)
    return found


def _line(cell: Cell) -> Line:
    place = cell.place
    size = float(place["cache_block"]) if place["cache"] == "block" else None
    return Line(cell.setting, place["cache"], size, place["accept_limit"])


def _clock_block(
    block: Block, published: Mapping[tuple[Line, float], Mapping[str, Value]]
) -> tuple[Grid, list[Number]]:
    newest = {(_line(cell), float(cell.place["batch_size"])): cell for cell in block.cells}  # they are oldest first
    places = {*published, *newest}
    batches = sorted({batch for _, batch in places})
    metrics = (RATE, SECONDS, SPEEDUP)
    rows: list[tuple[str, ...]] = []
    numbers: list[Number] = []
    for line in sorted({line for line, _ in places}, key=lambda one: one.order):
        of_row = []
        for metric in metrics:
            for batch in batches:
                cell, reference = newest.get((line, batch)), newest.get((Line(AR, USUAL_CACHE, None), batch))
                number = Number(block.scale, line.setting, cell.task if cell else "", metric)
                number.published = published.get((line, batch), {}).get(metric)
                number.place = {"cache": line.cache, "cache_block": line.cache_block, "batch_size": batch}
                fill_clock(number, cell, reference)
                of_row.append(number)
        rows += lines(line.label, of_row)
        numbers += of_row
    header = [f"{HEADINGS[metric]}, batch {batch:g}" for metric in metrics for batch in batches]
    return Grid(block.title, ("method", "", *header), tuple(rows), 2), numbers


def fill_clock(number: Number, cell: Cell | None, reference: Cell | None) -> None:
    """Fill in a clock: of the cell itself, or its seconds against the reference's."""
    if cell is None:
        return
    if number.metric in (SPEEDUP, SPEEDUP_AR):
        if reference is None:
            return
        seconds = [value_of(one.values.get((one.task, SECONDS))) for one in (reference, cell)]
        if seconds[0] is None or seconds[1] is None or not seconds[1].value:
            return
        ratio = seconds[0].value / seconds[1].value
        number.measured, number.reference = Value(ratio, ratio, ratio), reference.key
        number.difference = minus(number.measured, number.published)
    else:
        number.measured = value_of(cell.values.get((cell.task, number.metric)))
    number.cell, number.n = cell, sum(row["n"] for row in cell.benchmarks.values())


def lines(label: str, numbers: Sequence[Number]) -> Iterator[tuple[str, ...]]:
    """Published, measured and their difference below each other, as far as there is something to tell."""
    for side in SIDES:
        if side == "measured" or any(getattr(one, side) is not None for one in numbers):
            missing = "" if side == "measured" else ABSENT
            yield (label, side, *(text(one, side) or missing for one in numbers))
            label = ""
