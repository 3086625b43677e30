"""One cell from configuration to record: load, decode and score, keep, project."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from harness import grid, sync, tracking
from harness.engine.loop import Engine
from harness.evaluation.evaluate import evaluate
from harness.grid import Cell
from harness.models import checkpoints, registry
from harness.models.load import LoadedModel, load
from harness.results import provenance
from harness.results.keys import run_key
from harness.results.records import Record, now, summarise
from harness.results.store import DONE, Store, StoredCell, file_lock

TORCH_THREADS = torch.get_num_threads()  # before any cell set them
SMALL_BATCH = 8


def run_cell(cell: Cell) -> None:
    """Bring a cell to its record; whatever an earlier attempt generated is kept.

    Raises:
        UserError: what only loading the model can tell.
    """
    if cell.missing is not None:
        cell = train_missing(cell)
    stored = Store(cell.cfg.results_dir).cell(cell.key)
    with stored.lock(on_wait=lambda: _say(f"waiting: another process is at {cell.label}")):
        record = None if stored.state() == DONE else measure(cell, stored)
    if record is None and not tracking.in_sweep():  # a sweep's agent waits for the numbers of its own run
        return
    if record is not None and not sys.stderr.isatty():  # where nobody saw the bar
        one = record.speed
        decoded = f", {one.tokens_per_forward:.2f} tokens per forward" if one.generated else ""
        _say(f"done: {cell.label}: {one.documents} documents{decoded}")
    settings: Any = OmegaConf.to_container(cell.cfg.tracking, resolve=True)
    try:
        sync.track(stored, settings, Path(cell.cfg.results_dir))
    except Exception as error:  # the record is safe and can be replayed, so a tracker's trouble fails nothing
        _say(f"not tracked ({type(error).__name__}: {error}); send it later with: python -m harness.sync {stored.path}")


def train_missing(cell: Cell) -> Cell:
    """Train the checkpoint that a cell lacks, unless another process just did; returns the cell with its key."""
    assert cell.missing is not None
    root = Path(cell.cfg.checkpoints_dir or checkpoints.default_checkpoints_dir())
    with file_lock(root / "local" / ".lock", on_wait=lambda: _say("waiting: another process is training")):
        found = grid.make_cell(cell.cfg, cell.overrides)
        while found.missing is not None:  # a draft model may lack its checkpoint too
            from harness.training.recipe import train_on_demand

            _say(f"no checkpoint {found.missing.value} yet, training it: {found.missing.request.command}")
            train_on_demand(found.missing.request.overrides, cell.cfg.checkpoints_dir)
            found = grid.make_cell(cell.cfg, cell.overrides)
    Store(cell.cfg.results_dir).cell(cell.key).error_path.unlink(missing_ok=True)  # of an attempt that could not train
    return found


def cpu_threads(cfg: DictConfig) -> int:
    """``threads``, or torch's choice; one for small models in small batches.

    A second core does not make the forward of a few million parameters faster, and waiting for it makes the forward
    many times slower where another program keeps that core busy.
    """
    if cfg.threads is not None:
        return int(cfg.threads)
    return 1 if registry.spec(cfg.model).small and cfg.batch_size <= SMALL_BATCH else TORCH_THREADS


def open_engine(cell: Cell) -> tuple[Engine, LoadedModel]:
    """The cell's model, loaded, and the engine that decodes with it; this process's threads are set for it.

    Raises:
        UserError: what only loading the model can tell.
    """
    cfg, method = cell.cfg, cell.method
    torch.set_num_threads(cpu_threads(cfg))
    request = grid.checkpoint_request(cfg, method)
    loaded = load(cfg.model, method=method, dtype=cfg.dtype, device=cfg.device, **request)
    engine = Engine(
        loaded,
        method,
        batch_size=cfg.batch_size,
        cache=cfg.cache,
        cache_block=cfg.cache_block,
        accept_limit=cfg.accept_limit,
    )
    return engine, loaded


def measure(cell: Cell, stored: StoredCell) -> Record:
    """Decode and score every document that is not on disk yet, then write the record."""
    cfg = cell.cfg
    engine, loaded = open_engine(cell)
    if run_key(grid.identify(cfg, cell.method, loaded.identity)) != cell.key:
        raise RuntimeError(f"the weights of {loaded.name} changed while the cell was waiting; run it again")
    with stored.appending() as partial:
        found = evaluate(
            engine,
            loaded,
            grid.suite_config(cfg),
            seed=cfg.seed,
            resume=partial.rows,
            on_row=partial.append,
            progress=sys.stderr.isatty(),
            label=cell.title,
            batch_size=cfg.batch_size,
        )
    benchmarks, speed = summarise(
        found.rows,
        {name: one.metric for name, one in found.headline.items()},
        {name: one.metrics for name, one in found.headline.items()},
    )
    settings: Any = OmegaConf.to_container(cfg, resolve=True)
    request = grid.checkpoint_request(cfg, cell.method)
    record = Record(
        key=cell.key,
        identity=cell.identity,
        config=settings | {"variant": request["variant"], "alignment": request["alignment"]},
        benchmarks=benchmarks,
        speed=speed,
        protocol=found.protocol,
        checkpoint=None if loaded.manifest is None else dataclasses.asdict(loaded.manifest),
        provenance=provenance.collect(cfg.seed),
        created=now(),
    )
    stored.finish(record, found.rows)
    return record


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
