"""Runs cells: one configuration is one cell is one record in results/.

    python -m harness.run -m method=mars,ar_sft tau=0.7,0.95                  # a sweep
    python -m harness.run -m method=mars,ar_sft tau=0.7,0.95 dry_run=true     # what it would run, and the cost
    python -m harness.run -m method=mars,ar_sft tau=0.7,0.95 status=true      # the state of every cell

The whole sweep is validated before its first cell runs. A failed cell leaves its traceback and the sweep goes on. All
state is on disk: the same command again resumes, and prints the table when nothing is left to do. Exit status: 0 all
cells done, 1 some failed, 2 a mistake in the configuration.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from harness import config, grid, tracking
from harness.errors import UserError
from harness.results.store import DONE, Store, write_atomically

config.register()


@hydra.main(version_base="1.3", config_path=str(config.CONF), config_name="config")
def job(cfg: DictConfig) -> None:
    """One cell under Hydra, on whatever machine its launcher chose. Never raises: the outcome is on disk."""
    from harness.cell import run_cell

    cell = grid.make_cell(cfg)
    stored = Store(cfg.results_dir).cell(cell.key)
    try:
        run_cell(cell)
    except Exception as error:
        is_user = isinstance(error, UserError)
        told = str(error) if is_user else f"{type(error).__name__}: {error}"
        stored.fail(f"{told}\n" if is_user else traceback.format_exc())
        _say(f"failed: {cell.label}\n  {told}\n  see {stored.error_path}")


def main(arguments: Sequence[str]) -> int:
    """Validate, run what is not done yet, print the table; returns the exit status."""
    args = get_args_parser().parse_args(list(arguments))
    if args.help or args.hydra_help or args.cfg or args.info or args.shell_completion:
        job()
        return 0
    command = (args.overrides, args.multirun, args.config_name or "config", args.config_dir)
    try:
        plan = grid.make_plan(*command)
        if plan.cells[0].cfg.status or plan.cells[0].cfg.dry_run:
            _show(plan)
            return 0
        _check_agent(plan)
        for notice in plan.notices():
            _say(notice)
        started = time.time()
        is_left = any(plan.state(cell) != DONE for cell in plan.cells)
        if is_left:
            plan.store.check_writable()
        if plan.adaptive or is_left or tracking.in_sweep():
            job()
        if plan.adaptive:
            return _report_adaptive(plan.store, started)
        if any(cell.missing for cell in plan.cells):  # trained checkpoints have given their cells their keys
            plan = grid.make_plan(*command)
        status = _report(plan)
        if args.multirun and not tracking.in_sweep():
            _track_figures(plan)
        return status
    except UserError as error:
        _say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        _say("interrupted; the same command resumes")
        return 130


def _check_agent(plan: grid.Plan) -> None:
    """A wandb agent gives each command one run.

    Raises:
        UserError: it is a sweep of several cells, which would all be that run.
    """
    is_tracked = plan.cells[0].cfg.tracking.name != "none"
    if tracking.in_sweep() and is_tracked and (plan.adaptive or len(plan.cells) > 1):
        allowed = "one cell under a wandb agent, whose run it becomes (WANDB_SWEEP_ID is set)"
        raise UserError("-m", f"{len(plan.cells)} cells", allowed, "list the values in the sweep's YAML")


def _track_figures(plan: grid.Plan) -> None:
    """Figures of the sweep's finished cells, to wandb; trouble with them fails nothing."""
    from harness import sync

    done = [(plan.store.cell(cell.key), cell) for cell in plan.cells if plan.state(cell) == DONE]
    settings: list[Any] = [OmegaConf.to_container(cell.cfg.tracking, resolve=True) for _, cell in done]
    try:
        sync.track_figures(list(zip([stored for stored, _ in done], settings, strict=True)), plan.store.root.parent)
    except Exception as error:
        _say(f"figures were not tracked ({type(error).__name__}: {error}); later: python -m harness.sync --figures")


def _show(plan: grid.Plan) -> None:
    """``status=true`` and ``dry_run=true``."""
    from harness import listing

    console = Console()
    if plan.adaptive:
        console.print("the sweeper chooses cells as it goes; this is where it starts")
    for notice in plan.notices():
        console.print(notice, style="dim", highlight=False)
    if plan.cells[0].cfg.status:
        console.print(listing.status_table(plan))
        return
    table, total = listing.dry_run_table(plan)
    console.print(table)
    console.print(total, highlight=False, soft_wrap=True)


def _report(plan: grid.Plan) -> int:
    """Print the table of the sweep's records and where they are; 0 if all cells are done."""
    done = [cell for cell in plan.cells if plan.state(cell) == DONE]
    if done:
        from harness.results import tables

        records = [plan.store.cell(cell.key).record() for cell in done]
        lines = tables.make_lines(records, plan.store.scores, plan.store.records())
        Console().print(tables.to_rich(lines))
        try:
            write_atomically(plan.store.root / "table.md", tables.to_markdown(lines))
            write_atomically(plan.store.root / "table.csv", tables.to_csv(lines))
            write_atomically(plan.store.root / "tasks.csv", tables.tasks_to_csv(lines))
        except OSError as error:  # finished cells may lie on a read-only disk
            _say(f"table.md, table.csv and tasks.csv were not written: {error}")
    left = [cell for cell in plan.cells if cell not in done]
    for cell in left:
        _say(f"{plan.state(cell)}: {cell.label}   ({plan.store.cell(cell.key).path})")
    also = "; also table.md, table.csv, tasks.csv" if done else ""
    print(f"records: {plan.store.root}   ({len(done)} of {len(plan.cells)} cells done{also})")
    return 1 if left else 0


def _report_adaptive(store: Store, started: float) -> int:
    """Nobody knew the cells beforehand: failures since the start are looked for on disk."""
    failed = [path for path in store.root.glob("*/error.txt") if path.stat().st_mtime >= started]
    print(f"records: {store.root}   ({len(failed)} cells failed)")
    return 1 if failed else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
