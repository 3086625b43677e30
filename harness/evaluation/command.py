"""``--model harness`` for lm-eval: our engine built from lm-eval's own arguments, and its counts beside the scores."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import datasets
import torch
from lm_eval._cli import HarnessCLI
from lm_eval.api.registry import model_registry
from lm_eval.config.evaluate_config import EvaluatorConfig
from lm_eval.utils import setup_logging

from harness import compose, grid
from harness.cell import open_engine, train_missing
from harness.errors import UserError
from harness.evaluation.lm import EngineLM, Row
from harness.grid import Cell
from harness.results.records import CONTEXT, LENGTH, SCORED

NAME = "harness"
ELSEWHERE = {  # keys of the main command that lm-eval has flags for, or that mean nothing to it
    "suite": "lm-eval's own flags say what is asked: --tasks, --limit, --num_fewshot, --gen_kwargs",
    "tracking": "lm-eval tracks by itself: --wandb_args",
    "results_dir": "lm-eval writes its results: --output_path",
    "batch_size": "lm-eval has a flag for it: --batch_size",
    "device": "lm-eval has a flag for it: --device",
    "dry_run": "only python -m harness.run has it",
    "status": "only python -m harness.run has it",
}
DEFAULT_DEVICE = "cuda:0"  # what lm-eval hands over where no device was asked for
TEXTS = ("text", "token_ids", "confidences")


class HarnessLM(EngineLM):
    """Our engine as lm-eval constructs a model: from ``--model_args`` and its flags.

    Args:
        batch_size, device, max_batch_size: lm-eval's flags; the last is of account with batch_size=auto alone.
        settings: keys of the main command (conf/config.yaml), also dotted ones, with values as lm-eval parsed them.

    ``latest`` is the model that lm-eval made last: its command line keeps it to itself.

    Raises:
        UserError: a setting that does not exist or fit, several ranks, or a checkpoint that is missing.
    """

    latest: ClassVar[HarnessLM | None] = None

    def __init__(
        self,
        *,
        batch_size: int | str = 1,
        device: str | None = None,
        max_batch_size: int | None = None,
        **settings: Any,
    ) -> None:
        _check_ranks()
        cell = make_cell(settings, batch_size, device)
        if cell.missing is not None:
            cell = train_missing(cell)
        engine, loaded = open_engine(cell)
        super().__init__(
            engine,
            loaded,
            seed=cell.cfg.seed,
            batch_size=cell.cfg.batch_size,
            progress=sys.stderr.isatty(),
            label=cell.title,
        )
        self.identity = {key: value for key, value in cell.identity.items() if key != "suite"}
        HarnessLM.latest = self

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> HarnessLM:
        """From arguments that lm-eval has parsed, and its flags."""
        flags = {key: value for key, value in (additional_config or {}).items() if value is not None}
        _check_elsewhere(arg_dict)
        return cls(**arg_dict, **flags)

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> HarnessLM:
        """From ``key=value,key=value``, as lm-eval's Python interface takes it."""
        parts = [part.partition("=") for part in arg_string.split(",") if part]
        return cls.create_from_arg_obj({key: value for key, _, value in parts}, additional_config)

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Refuse ``--use_cache``: it keys answers by prompt alone, whatever method gave them, and keeps no counts.

        Raises:
            UserError: always.
        """
        raise UserError("--use_cache", "…", "not with --model harness: it would mix up methods", "leave it out")

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval adds to its results: the identity of what ran, and the counts so far."""
        return {NAME: {"identity": self.identity, **summarise(self.rows.values())}}

    def _prompt_ids(self, prompt: str) -> list[int]:
        """As lm-eval's ``hf``: prompts need not have gone through the chat template here."""
        return self.tok_encode(prompt)


def register() -> None:
    """Make ``--model harness`` known to lm-eval in this process."""
    import lm_eval.models  # noqa: F401  (or lm-eval takes the registry for filled, and knows no model but ours)

    if NAME not in model_registry:
        model_registry.register(NAME)(HarnessLM)


def make_cell(settings: Mapping[str, Any], batch_size: int | str = 1, device: str | None = None) -> Cell:
    """The configuration that lm-eval's arguments describe, composed and checked as the main command's.

    Raises:
        UserError: anything wrong with it that can be known without loading a model.
    """
    _check_elsewhere(settings)
    if not str(batch_size).isdecimal():
        allowed = "a whole number, at least 1: how much fits depends on the method and on the answers"
        raise UserError("--batch_size", batch_size, allowed, "--batch_size 8")
    if device is None or (device == DEFAULT_DEVICE and not torch.cuda.is_available()):
        device = "auto"  # as hf does
    given = {key: value for key, value in settings.items() if key != "trust_remote_code"}  # lm-eval's, for data sets
    overrides = [f"{key}={_value(value)}" for key, value in given.items()]
    found, _ = compose.expand([*overrides, f"batch_size={batch_size}", f"device={device}"], multirun=False)
    return grid.make_cell(found[0][0])


def _check_elsewhere(settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        if allowed := ELSEWHERE.get(key.split(".")[0]):
            raise UserError(key, value, allowed)


def _check_ranks() -> None:
    ranks = os.environ.get("WORLD_SIZE", "1")
    if ranks not in ("", "1"):
        allowed = "1: every rank would answer everything by itself"
        raise UserError("WORLD_SIZE", ranks, allowed, "start one process, without torchrun or accelerate launch")


def _value(value: Any) -> str:
    """A value as Hydra reads it on a command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_value, value))}]"
    text = str(value)
    return text if re.fullmatch(r"[\w.+/-]+", text) else "'" + text.replace("'", r"\'") + "'"


def summarise(rows: Iterable[Row]) -> dict[str, Any]:
    """Counts of each task and of all. Ratios are of sums, over generated documents; None where there are none."""
    tasks: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        tasks[row["task"]].append(row)
    every = [row for found in tasks.values() for row in found]
    return {"tasks": {name: _counts(found) for name, found in tasks.items()}, "all": _counts(every)}


def _counts(rows: list[Row]) -> dict[str, Any]:
    generated = [row for row in rows if row["finish_reason"] != SCORED]
    tokens, forwards = (sum(row[name] for row in generated) for name in ("new_tokens", "target_forwards"))
    cut = sum(row["finish_reason"] in (LENGTH, CONTEXT) for row in generated)
    return {
        "documents": len(rows),
        "generated": len(generated),
        "new_tokens": tokens,
        "target_forwards": forwards,
        "tokens_per_forward": tokens / forwards if forwards else None,
        "mean_tokens": tokens / len(generated) if generated else None,
        "cut_share": cut / len(generated) if generated else None,
    }


def table(summary: Mapping[str, Any]) -> str:
    """The counts in Markdown, as lm-eval prints its tables."""

    def line(name: str, counts: Mapping[str, Any]) -> list[str]:
        shown = (("tokens_per_forward", ".2f"), ("mean_tokens", ".1f"), ("cut_share", ".1%"))
        values = ["" if counts[key] is None else format(counts[key], spec) for key, spec in shown]
        return [name, str(counts["documents"]), *values]

    head = ["Tasks", "documents", "tokens/forward", "tokens/answer", "cut at the limit"]
    lines = [line(name, counts) for name, counts in summary["tasks"].items()]
    lines += [line("all", summary["all"])] if len(lines) > 1 else []
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]

    def text(cells: list[str]) -> str:
        padded = [cells[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))]
        return f"|{'|'.join(padded)}|"

    rule = [("-" * widths[0]), *("-" * (w - 1) + ":" for w in widths[1:])]
    return "\n".join(map(text, [head, rule, *lines]))


def write_documents(rows: Iterable[Row], output_path: str, with_texts: bool) -> Path:
    """Write a line per document beside the results that lm-eval has just written, under the same date.

    Args:
        output_path: lm-eval's: a folder, or a .json file that it puts the date into the name of.
        with_texts: the answers too, and not only their counts.
    """
    given = Path(output_path)
    is_file = given.suffix == ".json"
    found = given.parent.glob(f"{given.stem}_*.json") if is_file else given.glob("*/results_*.json")
    results = max(found, key=lambda path: path.stat().st_mtime)
    path = results.with_name(f"harness_documents_{results.stem.rpartition('_')[2]}.jsonl")
    dropped = () if with_texts else TEXTS
    kept = ({key: value for key, value in row.items() if key not in dropped} for row in rows)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept), encoding="utf-8")
    return path


def run(help_text: str) -> None:
    """lm-eval's command line on ``sys.argv``; afterwards, of our model, the table of counts and the documents.

    Args:
        help_text: stands before lm-eval's own examples in its help.

    Raises:
        UserError: a mistake in our model's settings (told before lm-eval looks for tasks), or while it runs.
    """
    setup_logging()
    register()
    HarnessLM.latest = None  # of an earlier call in this process
    cli = HarnessCLI()
    for parser in (cli._parser, cli._subparsers.choices["run"]):
        parser.epilog = f"{help_text}\n{parser.epilog}"
    args = cli.parse_args()
    given = _given(args) if args.command == "run" else {}
    if given.get("model") == NAME:
        _check_ranks()
        make_cell(EvaluatorConfig(**given)._parse_dict_args().model_args, given.get("batch_size", 1), args.device)
    samples = _samples(given)
    if given.get("model") == NAME:
        if samples:
            args.samples = samples
        _execute(cli, args)
    else:
        cli.execute(args)
    if (lm := HarnessLM.latest) is None:
        return
    print(table(summarise(lm.rows.values())))
    if output_path := given.get("output_path"):
        with_texts = bool(given.get("log_samples") or given.get("predict_only"))
        rows = (row | {"doc_id": _number(row, samples)} for row in lm.rows.values())
        print(f"documents: {write_documents(rows, output_path, with_texts)}")


def _samples(given: Mapping[str, Any]) -> dict[str, list[int]]:
    """The documents of ``--samples`` by task, ascending: lm-eval asks them so, and numbers them as they are listed."""
    found = EvaluatorConfig(samples=given.get("samples"))._process_arguments().samples
    return {task: sorted(set(ids)) for task, ids in found.items()} if isinstance(found, dict) else {}


def _number(row: Row, samples: Mapping[str, list[int]]) -> int:
    """A document's number in its task, as in lm-eval's samples; the model is told its place among those asked."""
    chosen, place = samples.get(row["task"]), int(row["doc_id"])
    return chosen[place] if chosen else place


def _execute(cli: HarnessCLI, args: Any) -> None:
    """Run lm-eval; what a user can mend is told in one message.

    Raises:
        UserError: a task that lm-eval does not know, or a dataset that the hub does not give.
    """
    try:
        cli.execute(args)
    except ValueError as error:
        if "Tasks not found" not in str(error):
            raise
        allowed = f"tasks, groups and tags of lm-eval's ({error})"
        raise UserError("--tasks", args.tasks, allowed, "lm-eval ls tasks; --include_path DIR adds your own") from None
    except (ConnectionError, datasets.exceptions.DatasetsError) as error:
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        allowed = f"tasks whose data can be loaded ({type(error).__name__}: {reason})"
        fix = "go online; or python -m harness.run suite=… suite.data_dir=DIR reads the paper's benchmarks from files"
        raise UserError("--tasks", args.tasks, allowed, fix) from error


def _given(args: Any) -> dict[str, Any]:
    """What was set, on the command line or in the file of ``--config``."""
    known = EvaluatorConfig.__dataclass_fields__
    own = {key: value for key, value in vars(args).items() if value and key in known}
    return {**(EvaluatorConfig.load_yaml_config(args.config) if args.config else {}), **own}
