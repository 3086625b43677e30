"""Data for machines without network: benchmarks, nltk's data and models in one folder, with a manifest of hashes.

    python -m harness.data mirror DIR      where there is a network: write all of it to DIR
    python -m harness.data check DIR       anywhere: what of it is present, missing or altered
    python -m harness.run suite=paper suite.data_dir=DIR ...

What a mirror wrote is compared with its manifest whenever it is read. Exit status: 0 all is there; 1 some is missing,
altered or was refused by the hub; 2 a mistake on the command line.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Container, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.errors import UserError
from harness.mirror import inventory, mirror

COLORS = {mirror.FAILED: "red", mirror.INCOMPLETE: "red", mirror.WRITTEN: "green"}


def main(arguments: Sequence[str]) -> int:
    """Command line; returns the exit status."""
    args = parser().parse_args(list(arguments))
    console = Console(highlight=False, soft_wrap=False)
    try:
        benchmarks = mirror.protocol(args.only)
        if args.command == "check":
            return report(console, inventory.check(args.folder, benchmarks, with_models=args.only in (None, "none")))
        outcomes: list[mirror.Outcome] = []
        for outcome in mirror.mirror(args.folder, benchmarks, args.model, args.other, not args.no_checkpoints):
            show(console, outcome, told={one.fix for one in outcomes})
            outcomes.append(outcome)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"error: {error.filename or args.folder}: {error.strerror or type(error).__name__}", file=sys.stderr)
        return 2
    failed = {outcome.part for outcome in outcomes if outcome.state in mirror.BAD}
    if any(outcome.state in (mirror.WRITTEN, mirror.KEPT) for outcome in outcomes):
        how = how_to_use(args.folder.absolute(), [name for name in benchmarks if name not in failed], outcomes)
        console.print(Text(f"\nWithout network:\n{how}"), soft_wrap=True)
    return int(bool(failed))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    whole = argparse.ArgumentParser(
        prog="python -m harness.data", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = whole.add_subparsers(dest="command", required=True, metavar="{mirror,check}")
    names = ", ".join(mirror.KNOWN)
    one = commands.add_parser(
        "mirror",
        help="write everything to a folder",
        description=mirror.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument(
        "--from",
        dest="other",
        type=Path,
        metavar="FOLDER",
        help="take upstream's files from this folder (git clones, another mirror) instead of the hub",
    )
    one.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help="also a registered model (conf/model/NAME.yaml) and the checkpoints known for it; repeatable",
    )
    one.add_argument("--no-checkpoints", action="store_true", help="the models' own weights alone")
    two = commands.add_parser(
        "check",
        help="say what a folder has",
        description=inventory.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for command in (one, two):
        command.add_argument("folder", type=Path, metavar="DIR")
        command.add_argument("--only", metavar="LIST", help=f"these, with commas between, or none: {names}")
    return whole  # fmt: skip


def how_to_use(folder: Path, benchmarks: Sequence[str], outcomes: Sequence[mirror.Outcome]) -> str:
    """The command line of a run from the folder, one for each model in it."""
    environment = ["HF_HUB_OFFLINE=1"]
    if any((folder / mirror.MODELS).glob("models--*")):
        environment.append(f"HF_HUB_CACHE={shlex.quote(str(folder / mirror.MODELS))}")
    settings = []
    if benchmarks:
        tasks = [] if len(benchmarks) == len(mirror.KNOWN) else [f"suite.tasks=[{','.join(benchmarks)}]"]
        settings = ["suite=paper", *map(shlex.quote, tasks), mirror.setting("suite.data_dir", folder)]
    models = dict.fromkeys(outcome.usage for outcome in outcomes if outcome.usage) or [""]
    return "\n".join(" ".join([" ", *environment, "python -m harness.run", *settings, m]).rstrip() for m in models)


def show(console: Console, outcome: mirror.Outcome, told: Container[str] = ()) -> None:
    """One line for a part that is done; where it failed, why, and the fix unless it was ``told`` already."""
    line = Text(f"{outcome.part:<34} ").append(f"{outcome.state:<8}", COLORS.get(outcome.state, ""))
    if outcome.state in mirror.BAD:
        console.print(line.append(f" {outcome.note}"), soft_wrap=True)
        if outcome.fix and outcome.fix not in told:
            console.print(Text(f"  fix: {outcome.fix}"), soft_wrap=True)
    else:
        rows = "" if outcome.rows is None else f"{outcome.rows:,} rows"
        console.print(line.append(f" {rows:>11}  {outcome.note}"), soft_wrap=True)


def report(console: Console, items: Sequence[inventory.Item]) -> int:
    """The table of a check, and what to do about each part that is not right; returns the exit status."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    for heading, justify in (("part", "left"), ("state", "left"), ("rows", "right"), ("of", "right"), ("file", "left")):
        table.add_column(heading, justify=justify, no_wrap=heading in ("part", "state"))  # type: ignore[arg-type]
    for item in items:
        color = "red" if item.state not in inventory.FINE else "yellow" if item.state == inventory.UNLISTED else "green"
        numbers = ["" if count is None else f"{count:,}" for count in (item.rows, item.expected)]
        table.add_row(Text(item.part), Text(item.state, color), *numbers, Text(item.where))
    console.print(table)
    for item in items:
        if item.problem:
            console.print(Text(f"\n{item.part}: {item.where}: {item.problem}\n  fix: {item.fix}"), soft_wrap=True)
    if any(item.state == inventory.UNLISTED for item in items):
        console.print(Text("\nunlisted: no manifest says what it should be; mirror DIR --from DIR makes one", "dim"))
    return int(any(item.state not in inventory.FINE for item in items))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
