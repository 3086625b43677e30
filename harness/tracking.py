"""Projects finished records to wandb; the only file that knows it. Records are the truth and can be replayed at will.

Each cell is its own wandb run: its id is the run key, its group the experiment, its config the cell's own. Under a
``wandb agent`` the run is the sweep's, under the id that the agent gave it. ``harness.sync`` remembers what was sent.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.errors import UserError
from harness.results.records import Record, Speed
from harness.results.stats import Interval

TABLE_COLUMNS = (
    "task", "doc_id", "score", "extracted", "target", "text", "new_tokens", "target_forwards", "acceptance_lengths",
    "finish_reason",
)  # fmt: skip
LONGEST = 2000  # characters of a text in the table of documents
COUNTS = ("documents", "seconds", "new_tokens", "target_forwards", "draft_forwards", "draft_cost")
LENGTHS = ("mean_tokens", "cut_share")
RATIOS = (
    "tokens_per_forward", "tokens_per_forward_task_mean", "positions_per_token", "tokens_per_second",
    "tokens_per_equivalent_forward",
)  # fmt: skip
PATIENCE = 30.0  # seconds for a server to answer
_NOT_IN_A_NAME = "/\\#?%:"  # wandb refuses projects with one of these
_told: list[Path] = []  # the one line about tracking offline was printed
_silent: dict[tuple[str | None, str], str] = {}  # entity and project that did not answer in this process, and how


@dataclass(frozen=True)
class Destination:
    """Where runs go.

    Attributes:
        entity: user or team; None is the account's own.
        directory: under it wandb keeps its files (in ``wandb/``).
    """

    project: str
    entity: str | None
    mode: Literal["online", "offline"]
    directory: Path

    def __str__(self) -> str:
        return f"{self.entity}/{self.project}" if self.entity else self.project


def in_sweep() -> bool:
    """Whether a ``wandb agent`` started this process: it then waits for the summary of a run under its own id."""
    return bool(os.environ.get("WANDB_SWEEP_ID"))


def destination(settings: Mapping[str, Any], directory: Path) -> Destination | None:
    """Where a ``tracking`` config (name, project, entity, mode) sends runs; None: nowhere.

    Raises:
        UserError: ``mode=online`` without a key, an unknown mode, a project that wandb refuses, or no wandb.
    """
    if settings["name"] == "none":
        return None
    os.environ.setdefault("WANDB_SILENT", "true")  # wandb reads it when it is imported
    mode = _mode(settings["mode"], directory)
    if mode == "disabled":
        return None
    project, entity = settings["project"], settings["entity"]
    if in_sweep():  # the agent's, which wandb takes whatever else it is told
        project, entity = os.environ.get("WANDB_PROJECT", project), os.environ.get("WANDB_ENTITY", entity)
    elif not project or len(project) > 128 or any(one in project for one in _NOT_IN_A_NAME):
        raise UserError("tracking.project", project, f"a name of 1 to 128 characters without any of {_NOT_IN_A_NAME}")
    return Destination(project, entity, mode, directory)


def replay(
    record: Record, documents: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], target: Destination
) -> str:
    """Write one record as one wandb run; a second time under the same id it replaces the first.

    Args:
        documents: the record's rows; ``settings["documents"]`` of them go into the run's table, as many of each
            benchmark and task as can be.
        settings: a ``tracking`` config (group, documents).

    Returns:
        The run's id.
    """
    import wandb

    with _open(
        target,
        record.key,
        group=group(record, settings),
        name=title(record),
        job_type="eval",
        tags=list(_names(record)),
        config=record.config | {"identity": record.identity, "provenance": record.provenance},
    ) as run:
        run.summary.update(summary(record))
        rows = [[_clip(row.get(name)) for name in TABLE_COLUMNS] for row in _spread(documents, settings["documents"])]
        if rows:
            run.log({"documents": wandb.Table(columns=list(TABLE_COLUMNS), data=rows)})
        return str(run.id)


def log_figures(folder: Path, run_id: str, group: str, cells: Sequence[str], target: Destination) -> None:
    """Write one wandb run of job type ``figures``: an artifact of a folder's files, and its PNGs to look at.

    Args:
        run_id: the same for the same figures, so that they replace themselves.
        cells: run keys of what is drawn.
    """
    import wandb

    config = {"cells": list(cells)}
    with _open(
        target, run_id, group=group, name=f"figures {group}", job_type="figures", tags=["figures"], config=config
    ) as run:
        name = re.sub(r"[^\w.-]", "-", f"figures-{group}", flags=re.ASCII)[:128]  # what wandb allows, and its limit
        artifact = wandb.Artifact(name, type="figures", metadata=config)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        for path in files:
            artifact.add_file(str(path), name=path.relative_to(folder).as_posix())
        run.log_artifact(artifact)
        run.log({path.stem: wandb.Image(str(path)) for path in files if path.suffix == ".png"})
        run.summary["cells"] = len(cells)


def group(record: Record, settings: Mapping[str, Any]) -> str:
    """The experiment that a cell belongs to: as set, or its suite."""
    return str(settings["group"] or record.config["suite"]["name"])


def title(record: Record) -> str:
    """Name of a cell's run: method, model, suite, and the method's settings."""
    axes = (f"{name}={value}" for name, value in record.identity["method"]["axes"].items())
    return " ".join([*_names(record), *axes])


def _names(record: Record) -> tuple[str, str, str]:
    return (
        record.identity["method"]["name"],
        record.identity["model"]["model"],
        record.config["suite"]["name"],
    )


def _open(target: Destination, run_id: str, **arguments: Any) -> Any:
    """A wandb run, to be used as a context; in a sweep it is the sweep's."""
    import wandb

    target.directory.mkdir(parents=True, exist_ok=True)
    where = (target.entity, target.project)
    if target.mode == "online" and where in _silent:  # waiting again for each of many cells would take hours
        raise ConnectionError(f"wandb did not answer before ({_silent[where]})")
    quiet = wandb.Settings(
        silent=True, quiet=True, console="off", x_disable_stats=True, disable_git=True, init_timeout=PATIENCE
    )
    place: dict[str, Any] = {}  # the agent's environment has it
    if not in_sweep():
        resume = "allow" if target.mode == "online" else None  # offline there is nothing to resume
        place = {"id": run_id, "project": target.project, "entity": target.entity, "resume": resume}
    try:
        return wandb.init(**place, **arguments, dir=str(target.directory), mode=target.mode, settings=quiet)
    except wandb.errors.CommError as error:
        _silent[where] = " ".join(str(error).split())
        raise


def _spread(documents: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """As many documents as asked for, in their order: in turns of every benchmark, and in it of every task."""
    order = list(range(len(documents)))
    for names in (("group", "task"), ("group",)):
        seen: Counter[tuple[Any, ...]] = Counter()
        turns = {}
        for i in order:
            part = tuple(documents[i].get(name) for name in names)
            turns[i] = seen[part]
            seen[part] += 1
        order.sort(key=turns.__getitem__)
    return [documents[i] for i in sorted(order[:count])]


def _clip(value: Any) -> Any:
    if isinstance(value, str) and len(value) > LONGEST:
        return f"{value[:LONGEST]} … [clipped, {len(value):,} characters]"
    return value


def summary(record: Record) -> dict[str, Any]:
    """The numbers of a record as flat summary metrics: speed by name, scores by benchmark and by subtask.

    Lengths are left out where nothing was generated, and ratios where no token was.
    """
    flat: dict[str, Any] = {name: getattr(record.speed, name) for name in COUNTS} | _tokens(record.speed, RATIOS)
    for name, benchmark in record.benchmarks.items():
        flat |= _scores(name, benchmark.score)
        flat |= {f"{name}/{metric}": value for metric, value in benchmark.metrics.items()}
        flat |= {f"{name}/{key}": value for key, value in _tokens(benchmark.speed, RATIOS[:1]).items()}
        if len(benchmark.tasks) > 1:
            flat |= {f"{name}/{task}/score": one.score for task, one in benchmark.tasks.items()}
    if len(record.benchmarks) > 1:
        flat |= _scores("average", record.average)
    return flat | {"score": record.average.value}  # what a wandb sweep optimises


def _tokens(speed: Speed, ratios: Sequence[str]) -> dict[str, float]:
    names = (*(LENGTHS if speed.generated else ()), *(ratios if speed.new_tokens else ()))
    return {name: getattr(speed, name) for name in names}


def _scores(name: str, score: Interval) -> dict[str, float]:
    return {f"{name}/score": score.value, f"{name}/score_low": score.low, f"{name}/score_high": score.high}


def _mode(wanted: str | None, directory: Path) -> Literal["online", "offline", "disabled"]:
    """Online where a key is present or asked for, else offline with one line that says so, once per process."""
    wanted = wanted or os.environ.get("WANDB_MODE")
    if wanted == "disabled":
        return "disabled"
    if wanted not in (None, "online", "offline"):
        key = "WANDB_MODE" if wanted == os.environ.get("WANDB_MODE") else "tracking.mode"
        raise UserError(key, wanted, "online, offline or disabled" if key == "WANDB_MODE" else "online or offline")
    if wanted != "offline" and _has_key():
        return "online"
    if wanted == "online":
        fix = "wandb login, or tracking.mode=offline, or tracking=none"
        raise UserError("tracking.mode", wanted, "needs a wandb key, and none is present", fix)
    if not _told:
        _told.append(directory)
        why = "" if wanted else "no key, "
        later = f"wandb sync {directory / 'wandb'}/offline-run-*"
        print(f"wandb: {why}tracking offline; send it later with: {later}", file=sys.stderr)
    return "offline"


def _has_key() -> bool:
    try:
        import wandb
    except Exception as error:  # not installed, or broken: a package that it needs may have another version
        told = f"needs wandb, which cannot be imported ({type(error).__name__}: {error})"
        raise UserError("tracking", "wandb", told, "pip install wandb, or tracking=none") from None
    return wandb.login(prompt=False, verify=False)
