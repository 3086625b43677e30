"""The overview of every measured cell: score, paired difference from AR SFT, and what it costs."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.grids import ABSENT, Grid, Table
from harness.analysis.measured import EQUIVALENT, POSITIONS
from harness.analysis.names import BENCHMARKS, MODELS, name
from harness.analysis.papercells import Cell, Source
from harness.analysis.papernumbers import DELTA_AR, MEANING, Number, amount, correct, frame, points, text, value_of
from harness.analysis.published import FORWARD, RATE, SCORE
from harness.results.tables import AVERAGE

METRICS = (SCORE, DELTA_AR, FORWARD, EQUIVALENT, POSITIONS, RATE)
HEADER = (
    "method", "settings", "n", "score", "Δ AR SFT", "p (Holm)", "says", "tokens/ forward", "tokens/ equiv. forward",
    "positions/ token", "tokens/s",
)  # fmt: skip
# What may tell rows of equal name apart, and how it is written; it is shown where rows of a grid differ in it.
_SETTINGS = {
    "cache": "{} cache", "cache_block": "cache block {}", "accept_limit": "accepts by {}", "batch_size": "batch {}",
    "dtype": "{}", "seed": "seed {}", "limit": "limit {}", "hardware": "{}", "device": "{}", "threads": "{} threads",
    "max_gen_toks": "{} tokens at most",
}  # fmt: skip
CAPTION = (
    "Every greedy cell. score: percent, ± the wider half of its 95 % interval. Δ AR SFT: points on the same documents, "
    "paired with AR SFT of the same model, documents, seed and dtype, with its 95 % interval. p: McNemar's exact test "
    "with Holm's correction over all the methods and settings of one model and benchmark, which are a grid here; "
    f"{ABSENT} of averages and of scores that are not right or wrong. says: “better” or “worse” only where the "
    "corrected p is below 0.05 and the interval does not hold 0; “not told apart” is no finding of equality. "
    "tokens/forward: of the target; equivalent forwards: draft forwards count too, by their seconds; positions/token: "
    "window positions fed for a committed token; tokens/s: on the machine, at the batch size and with the threads of "
    "the cell, to be compared where these are equal only. "
)


@dataclass(frozen=True)
class _Row:
    cell: Cell
    numbers: Mapping[str, Number]
    is_reference: bool


def cell_table(source: Source) -> Table:
    """The table ``methods``."""
    numbers: list[Number] = []
    grids = []
    for scale in source.scales:
        cells = sorted((one for one in source.cells if one.scale == scale),
                       key=lambda one: (one.setting.order, one.created, one.key))  # fmt: skip
        for task in _tasks(source, scale, cells):
            rows = [_row(source, cell, task) for cell in cells if (task, SCORE) in cell.values]
            found = [number for row in rows for number in row.numbers.values()]
            correct(found, lambda one: one.metric)
            grids.append(_grid(f"{name(MODELS, scale)}, {name(BENCHMARKS, task)}", rows))
            numbers += found
    return Table("methods", "Every measured cell", CAPTION + MEANING, tuple(grids), frame("methods", numbers))


def _tasks(source: Source, scale: str, cells: Sequence[Cell]) -> list[str]:
    found = source.tasks(scale, [cell.setting for cell in cells])
    return [*found, AVERAGE] if any((AVERAGE, SCORE) in cell.values for cell in cells) else found


def _row(source: Source, cell: Cell, task: str) -> _Row:
    reference = source.reference(cell.key)
    numbers = {}
    for metric in METRICS:
        number = numbers[metric] = Number(cell.scale, cell.setting, task, metric)
        if metric != DELTA_AR:
            row = cell.values.get((task, metric))
            number.measured, number.cell, number.n = value_of(row), cell, None if row is None else row["n"]
        elif reference is not None and reference != cell.key:
            found = source.data.pairs.difference(cell.key, reference, task)
            if found is not None:
                number.measured, number.p, number.n = points(found), found.p_value, found.difference.n
                number.cell, number.reference = cell, reference
    return _Row(cell, numbers, reference == cell.key)


def _grid(title: str, rows: Sequence[_Row]) -> Grid:
    differing = [one for one in _SETTINGS if len({row.cell.place[one] for row in rows}) > 1]
    trainings: dict[Hashable, set[str | None]] = {}
    for row in rows:
        trainings.setdefault(_trained(row.cell), set()).add(row.cell.place["checkpoint"])
    several = {place for place, found in trainings.items() if len(found) > 1}
    texts = [_texts(row, differing, _trained(row.cell) in several) for row in rows]
    return Grid(title, HEADER, tuple(tuple(one) for one in texts), 2)


def _trained(cell: Cell) -> Hashable:
    """What is equal of cells whose weights readers would take for the same."""
    one, place = cell.setting, cell.place
    method = one.method.removesuffix(" verified")
    return method, one.variant, one.block_size, one.target, one.draft, place["alignment"], place["draft_model"]


def _texts(row: _Row, differing: Sequence[str], is_told: bool) -> Iterator[str]:
    delta = row.numbers[DELTA_AR]
    yield row.cell.setting.label
    place = row.cell.place
    shown = [_SETTINGS[one].format(place[one]) for one in differing if place[one] is not None]
    shown += [f"weights {str(place['checkpoint'])[:8]}" if place["checkpoint"] else "the base's weights"] * is_told
    yield ", ".join(shown)
    yield f"{row.numbers[SCORE].n:g}"
    yield text(row.numbers[SCORE], "measured")
    if row.is_reference:
        yield from ("reference", ABSENT, ABSENT)
    elif delta.measured is None:
        yield from ("", "", "")
    else:
        yield "{} [{}, {}]".format(*(amount(DELTA_AR, one, True) for one in delta.measured))
        yield ABSENT if delta.p_holm is None else "<0.001" if delta.p_holm < 0.001 else f"{delta.p_holm:.3f}"
        yield _verdict(delta)
    for metric in METRICS[2:]:
        yield text(row.numbers[metric], "measured") or ("" if _is_generated(row) else ABSENT)


def _is_generated(row: _Row) -> bool:
    """Whether there are answers; log-likelihoods have no speed."""
    return row.numbers[FORWARD].measured is not None


def _verdict(delta: Number) -> str:
    """What the difference supports."""
    if delta.p_holm is None or delta.measured is None:
        return ABSENT
    if delta.is_certain:
        return "better" if delta.measured.value > 0 else "worse"
    return "not told apart"
