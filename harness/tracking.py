"""Projects finished records to wandb; the only file that knows it. Records are the truth and can be replayed at will.

    python -m harness.tracking results/runs/<key> …     # replay cells, for example after `wandb login`

Each cell is its own wandb run: its id is the run key, its group the experiment, its config the cell's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from harness.errors import UserError
from harness.results.records import Record, Speed
from harness.results.stats import Interval
from harness.results.store import DONE, StoredCell

TABLE_COLUMNS = (
    "task", "doc_id", "score", "extracted", "target", "text", "new_tokens", "target_forwards", "acceptance_lengths",
    "finish_reason",
)  # fmt: skip
COUNTS = ("documents", "seconds", "new_tokens", "target_forwards", "draft_forwards", "draft_cost")
LENGTHS = ("mean_tokens", "cut_share")
RATIOS = (
    "tokens_per_forward", "tokens_per_forward_task_mean", "positions_per_token", "tokens_per_second",
    "tokens_per_equivalent_forward",
)  # fmt: skip
_told: list[Path] = []  # the one line about tracking offline was printed


def replay(
    record: Record, documents: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], directory: Path
) -> None:
    """Write one record as one wandb run; a second time under the same id it replaces the first.

    Args:
        documents: the record's rows; ``settings["documents"]`` of them go into the run's table.
        settings: a ``tracking`` config (project, entity, group, mode, documents); ``name: none`` does nothing.
        directory: under it wandb keeps its files (in ``wandb/``).

    Raises:
        UserError: ``mode=online`` without a key.
    """
    if settings["name"] == "none":
        return
    os.environ.setdefault("WANDB_SILENT", "true")  # wandb reads it when it is imported
    mode = _mode(settings["mode"], directory)
    import wandb

    directory.mkdir(parents=True, exist_ok=True)
    quiet = wandb.Settings(silent=True, quiet=True, console="off", x_disable_stats=True, disable_git=True)
    names = {"method": record.identity["method"]["name"], "model": record.identity["model"]["model"]}
    names["suite"] = record.config["suite"]["name"]
    with wandb.init(
        project=settings["project"],
        entity=settings["entity"],
        group=settings["group"] or names["suite"],
        id=record.key,
        name=" ".join([*names.values(), *_axes(record)]),
        job_type="eval",
        tags=list(names.values()),
        config=record.config | {"identity": record.identity, "provenance": record.provenance},
        dir=str(directory),
        mode=mode,
        resume="allow" if mode == "online" else None,
        settings=quiet,
    ) as run:
        run.summary.update(summary(record))
        rows = [[row.get(name) for name in TABLE_COLUMNS] for row in documents[: settings["documents"]]]
        if rows:
            run.log({"documents": wandb.Table(columns=list(TABLE_COLUMNS), data=rows)})


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


def _axes(record: Record) -> list[str]:
    return [f"{name}={value}" for name, value in record.identity["method"]["axes"].items()]


def _mode(wanted: str | None, directory: Path) -> Literal["online", "offline", "disabled"]:
    """Online where a key is present or asked for, else offline with one line that says so, once per process."""
    wanted = wanted or os.environ.get("WANDB_MODE")
    if wanted == "disabled":
        return "disabled"
    if wanted not in (None, "online", "offline"):
        raise UserError("tracking.mode", wanted, "online or offline")
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
    import wandb

    return wandb.login(prompt=False, verify=False)


def main(arguments: Sequence[str]) -> int:
    """Replay cells given by their directories; returns the exit status."""
    if not arguments or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments else 2
    for path in map(Path, arguments):
        cell = StoredCell(path)
        if cell.state() != DONE:
            print(f"{path}: no finished record there", file=sys.stderr)
            return 2
        record = cell.record()
        settings = record.config["tracking"]
        if settings["name"] == "none":
            print(f"{path}: ran with tracking=none; its record names no project", file=sys.stderr)
            return 2
        replay(record, cell.documents(), settings, path.parent.parent)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
