"""Table 6: speculative decoding, its draft and target AR or MARS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from harness.analysis.clocktables import CLOCK, SCALE, TAU, Block, blocks_of, fill_clock, lines
from harness.analysis.grids import Grid, Table
from harness.analysis.measured import EQUIVALENT
from harness.analysis.papercells import Cell, Setting, Source
from harness.analysis.papergrids import AR
from harness.analysis.papernumbers import (
    DELTA_AR,
    MEANING,
    SPEEDUP_AR,
    STARS,
    Number,
    by_block,
    correct,
    frame,
    minus,
    points,
    value_of,
)
from harness.analysis.published import DELTA, FORWARD, RATE, SCORE, SECONDS, SPEEDUP, TASKS

DRAFTS, BLOCK_SIZE = 4.0, 4.0  # the paper's K and B
TASK = TASKS["gsm8k"]
HEADINGS = {
    SCORE: "score", DELTA_AR: "Δ AR SFT", RATE: "tokens/s", SECONDS: "seconds", SPEEDUP: "speedup",
    SPEEDUP_AR: "over AR SFT", FORWARD: "tokens/ forward", EQUIVALENT: "tokens/ equiv. forward",
}  # fmt: skip
CAPTION = CLOCK + (
    "A row is draft → target, K drafts for each forward of the target. speedup: seconds of AR → AR with the same K "
    "over the row's, as in the paper; over AR SFT: seconds of plain AR SFT over the row's. tokens/forward: of the "
    "target; equivalent forwards: draft forwards count too, by their seconds. Δ AR SFT: points, paired on the same "
    "documents; the paper does not tell against which score its own is, so that it has no difference. Holm's family: "
    "the rows of a block. "
) + STARS + " "  # fmt: skip


def speculative(source: Source) -> Table:
    """Table 6."""
    numbers: list[Number] = []
    grids = []
    for block in _blocks(source):
        grid, found = _block(source, block)
        grids.append(grid)
        numbers += found
    return Table("table6", "Table 6: speculative decoding composed with MARS", CAPTION + MEANING, tuple(grids),
                 frame("table6", numbers))  # fmt: skip


def _blocks(source: Source) -> Iterator[Block]:
    """Comparable cells of one batch size, of which one is speculative; of the paper's scale at least an empty block."""
    found = []
    for block in blocks_of(source, lambda setting: setting.method == "speculative" or setting == AR):
        for batch in sorted({cell.place["batch_size"] for cell in block.cells}):
            cells = tuple(cell for cell in block.cells if cell.place["batch_size"] == batch)
            if any(cell.setting.method == "speculative" for cell in cells):
                found.append(replace(block, cells=cells))
    if not any(block.scale == SCALE for block in found):
        yield Block(SCALE, ())
    yield from found


def _block(source: Source, block: Block) -> tuple[Grid, list[Number]]:
    published = source.published(6, SCALE) if block.scale == SCALE else {}
    newest = {cell.setting: cell for cell in block.cells}  # they are oldest first
    numbers: dict[Setting, list[Number]] = {}
    for setting in _rows([one for one in newest if one.method == "speculative"], list(published)):
        printed = published.get(setting, {})
        numbers[setting] = [_number(source, block, setting, metric, newest, printed) for metric in HEADINGS]
    every = [one for found in numbers.values() for one in found]
    correct(every, by_block)
    rows = [
        line for setting, found in numbers.items() for line in lines(setting.label.removeprefix("Speculative "), found)
    ]
    return Grid(_title(block), ("draft → target", "", *HEADINGS.values()), tuple(rows), 2), every


def _title(block: Block) -> str:
    if not block.cells:
        return block.title
    drafts = sorted({str(cell.place["draft_model"]) for cell in block.cells if cell.place["draft_model"]})
    told = f"; drafts by {', '.join(drafts)}" if drafts else ""
    return f"{block.title}; batch {block.cells[0].place['batch_size']}{told}"


def _rows(measured: Sequence[Setting], published: Sequence[Setting]) -> list[Setting]:
    """Printed and measured rows, and an empty one for a composition of the paper that is neither."""
    rows = {*measured, *published}
    for draft, target in (("ar_sft", "ar_sft"), ("ar_sft", "mars"), ("mars", "mars")):
        if not any((one.draft, one.target) == (draft, target) for one in rows):
            has_mars = target == "mars"
            b, tau = (BLOCK_SIZE, TAU) if has_mars else (None, None)
            rows.add(Setting("speculative", None, b, tau, None, target, draft, DRAFTS))
    return sorted(rows, key=lambda one: one.order)


def _number(
    source: Source, block: Block, setting: Setting, metric: str, newest: Mapping[Setting, Cell],
    printed: Mapping[tuple[str, str], Mapping[str, object]],
) -> Number:  # fmt: skip
    cell = newest.get(setting)
    number = Number(block.scale, setting, cell.task if cell else TASK, metric)
    number.published = value_of(printed.get((TASK, DELTA if metric == DELTA_AR else metric)))
    if cell is None:
        return number
    if metric == DELTA_AR:
        _compare(source, number, cell)
    elif metric in (SPEEDUP, SPEEDUP_AR):
        other = " ".join(one for one in setting.other.split() if not one.startswith("alignment="))  # AR SFT has none
        plain = Setting("speculative", target="ar_sft", draft="ar_sft", num_drafts=setting.num_drafts, other=other)
        fill_clock(number, cell, newest.get(plain if metric == SPEEDUP else AR))
    else:
        fill_clock(number, cell, None)
        if metric == FORWARD:
            number.difference = minus(number.measured, number.published)
    return number


def _compare(source: Source, number: Number, cell: Cell) -> None:
    reference = source.reference(cell.key)
    found = reference and source.data.pairs.difference(cell.key, reference, cell.task)
    if found:
        number.measured, number.p, number.n = points(found), found.p_value, found.difference.n
        number.cell, number.reference = cell, reference
