"""What a plan looks like on the terminal: the state of every cell, and what running the rest would cost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from harness.errors import UserError
from harness.evaluation import documents, suites
from harness.grid import Cell, Plan, checkpoint_request, settings_text, suite_config
from harness.models import checkpoints, registry
from harness.results.provenance import machine
from harness.results.records import Record
from harness.results.store import DONE

# A forward's time where nothing was measured yet: a fixed part, and reading the weights from memory.
SECONDS_PER_FORWARD, BYTES_PER_SECOND = 3e-3, 6e9
BYTES_PER_PARAMETER = 2
ROUGH_ANSWER = 0.5  # of the longest answer allowed
NONE = "—"


@dataclass(frozen=True)
class Estimate:
    """What a cell would cost; None where it cannot be known beforehand. ``basis`` says where the number is from."""

    documents: int | None
    seconds_per_document: float | None
    basis: str

    @property
    def seconds(self) -> float | None:
        """Of the whole cell."""
        if self.documents is None or self.seconds_per_document is None:
            return None
        return self.documents * self.seconds_per_document


def status_table(plan: Plan) -> Group:
    """Every cell with its key and its state: done, partial, failed or missing."""
    title, table, labels = _table(plan, "state", "rows", "key")
    for cell, label in zip(plan.cells, labels, strict=True):
        rows = str(plan.store.cell(cell.key).num_partial_rows() or "")
        table.add_row(*label, plan.state(cell), rows, "(after training)" if cell.missing else cell.key)
    return Group(*title, table)


def dry_run_table(plan: Plan) -> tuple[Group, str]:
    """Every cell with its state and estimated cost, and a line with the sum. Nothing is run."""
    title, table, labels = _table(plan, "state", "docs", "estimate", "basis")
    records = plan.store.records()
    total, unknown = 0.0, 0
    for cell, label in zip(plan.cells, labels, strict=True):
        state = plan.state(cell)
        estimate = estimate_cell(cell, records)
        count = "?" if estimate.documents is None else str(estimate.documents)
        if state == DONE:
            table.add_row(*label, state, count, "", "")
            continue
        total += estimate.seconds or 0.0
        unknown += estimate.seconds is None
        table.add_row(*label, state, count, duration(estimate.seconds), estimate.basis)
    line = f"about {duration(total)} in all" if total else "nothing to estimate"
    if unknown:
        line += f"; {unknown} cells of unknown cost (documents on the hub, or a model of unknown size)"
    commands = dict.fromkeys(cell.missing.request.command for cell in plan.cells if cell.missing)
    trained = [f"trained first, not in the estimate: {command}" for command in commands]
    return Group(*title, table), "\n".join([line, *trained])


def estimate_cell(cell: Cell, records: Sequence[Record]) -> Estimate:
    """From the last record of the same model and method on this machine, else roughly from the size of the weights."""
    count = count_documents(cell)
    method, model = cell.identity["method"]["name"], cell.identity["model"]["model"]
    for record in reversed(records):
        same = (record.identity["method"]["name"], record.identity["model"]["model"]) == (method, model)
        hardware = record.provenance.get("hardware", {})
        if same and all(hardware.get(name) == value for name, value in machine().items()):
            return Estimate(count, record.speed.seconds / record.speed.documents, "measured")
    parameters = count_parameters(cell)
    if parameters is None:
        return Estimate(count, None, "no size known")
    per_forward = SECONDS_PER_FORWARD + parameters * BYTES_PER_PARAMETER / BYTES_PER_SECOND
    forwards = ROUGH_ANSWER * cell.cfg.suite.max_gen_toks  # one token each
    size = f"{parameters / 1e6:.0f}M" if parameters < 1e9 else f"{parameters / 1e9:.1f}B"
    return Estimate(count, per_forward * forwards, f"rough ({size})")


def count_documents(cell: Cell) -> int | None:
    """Documents of a cell; None where only the hub knows."""
    suite = suite_config(cell.cfg)
    total = 0
    for task, spec in suite.selected().items():
        for leaf in spec.subtasks or [task]:
            rows = documents.load(spec, suite, leaf)
            if rows is None and suite.limit is None:
                return None
            counts = [suite.limit] if rows is None else [len(rows), suite.limit or len(rows)]
            total += min(c for c in counts if c is not None)
    return total


def count_parameters(cell: Cell) -> float | None:
    """Parameters, from the size of the checkpoint on disk, or from a model name that ends in one (…-135m, …-7b)."""
    model = registry.spec(cell.cfg.model)
    try:
        found = checkpoints.resolve(
            model, kind=cell.method.trained_as.checkpoint_kind, **checkpoint_request(cell.cfg, cell.method)
        )
    except UserError:
        found = checkpoints.Resolved()
    found = found.under or found
    if found.directory and not found.is_adapter:
        return sum(p.stat().st_size for p in found.directory.glob("*.safetensors")) / BYTES_PER_PARAMETER
    size = re.search(r"(\d+(?:\.\d+)?)([mb])\b", model.name.lower())
    return float(size[1]) * {"m": 1e6, "b": 1e9}[size[2]] if size else None


def duration(seconds: float | None) -> str:
    """Seconds as a reader says them."""
    if seconds is None:
        return "?"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def _table(plan: Plan, *columns: str) -> tuple[list[Text], Table, list[list[str]]]:
    """Title, an empty table, and each cell's labels in it; what all cells share moves to the title.

    The title stands outside the table: rich would wrap it to the table's width.
    """
    described = [_describe(cell) for cell in plan.cells]
    names = list(dict.fromkeys(name for labels in described for name in labels))
    values = {name: [labels.get(name, NONE) for labels in described] for name in names}
    shown = [name for name in names if name == "method" or len(set(values[name])) > 1]
    title = " · ".join(f"{name} {values[name][0]}" for name in names if name not in shown and values[name][0] != NONE)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name in (*shown, *columns):
        table.add_column(name, overflow="fold")
    above = [Text(title, "bold"), Text()] if title else []
    return above, table, [[values[name][i] for name in shown] for i in range(len(plan.cells))]


def _describe(cell: Cell) -> dict[str, str]:
    """What may tell a cell from the others of its sweep."""
    settings = dict(text.split("=", 1) for text in settings_text(cell.method))
    axes: dict[str, str] = {name: settings.pop(name, NONE) for name in ("tau", "B")}
    axes |= {"options": " ".join(f"{name}={value}" for name, value in settings.items()) or NONE}
    request = checkpoint_request(cell.cfg, cell.method)
    chosen = {name: str(request[name] or NONE) for name in ("variant", "alignment", "checkpoint")}
    suite = suites.title(cell.cfg.suite.name, cell.cfg.suite.tasks)
    rest = {"suite": suite, "cache": str(cell.cfg.cache), "seed": str(cell.cfg.seed)}
    dtype = {"dtype": cell.identity["model"]["dtype"]}
    return {"method": cell.method.name, **axes, "model": cell.identity["model"]["model"], **chosen, **rest, **dtype}
