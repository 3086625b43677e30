"""python -m harness.figures: every table and figure from the records, measured beside published."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.analysis import grids
from harness.analysis.data import RESULTS, Data, open_named
from harness.analysis.figures import Figure, make_figures, style
from harness.analysis.papertables import make_tables
from harness.errors import UserError
from harness.results.store import write_atomically

OUT = RESULTS / "figures"
CAPTIONS = "captions.md"
WRITERS: Mapping[str, Callable[[grids.Table], str]] = {
    "md": grids.to_markdown, "tex": grids.to_latex, "csv": grids.to_csv,
}  # fmt: skip


@dataclass
class Report:
    """What became of everything that was asked for.

    Attributes:
        written: files of each table and figure, by name.
        titles: of all of them, by name.
        missing: figures of which nothing was measured, with what measures them.
        broken: what failed, with the error.
    """

    written: dict[str, list[Path]] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    def fail(self, name: str, error: Exception) -> None:
        """Keep the error, and tell its traceback on stderr."""
        self.broken[name] = f"{type(error).__name__}: {error}"
        traceback.print_exception(error)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write all tables and figures, and say what was written and what was not.

    Returns:
        0; 1 where a table or a figure could not be made; 2 after a mistake in the arguments.
    """
    options = _parser().parse_args(arguments)
    try:
        data = open_named(options.folders, quiet=True)
        report = write(data, options.out, options.only)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    _tell(report, data, options.out)
    return 1 if report.broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m harness.figures", description=__doc__)
    parser.add_argument("folders", nargs="*", metavar="FOLDER", type=Path,
                        help="results folders; without any: results/reference and results/runs")  # fmt: skip
    parser.add_argument("--out", type=Path, default=OUT, help="where to write (default: results/figures)")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="these tables and figures: table4 fig3 …")
    return parser


def write(data: Data, out: Path, only: Sequence[str] = ()) -> Report:
    """Write tables as Markdown, LaTeX and CSV, figures as PDF, PNG and CSV, and the captions of all figures.

    Args:
        out: the folder; made where it is missing, other files in it are left alone.
        only: names of what to write; empty: everything.

    Raises:
        UserError: a name that nothing has, or a folder that cannot be written to.
    """
    report = Report()
    tables: list[grids.Table] = []
    try:
        tables = make_tables(data)
    except Exception as error:  # the figures are made all the same
        report.fail("tables", error)
    figures = make_figures(data, report.fail)
    everything: list[grids.Table | Figure] = [*tables, *figures]
    known = [one.name for one in everything]
    for name in only:
        if name not in known and not report.broken:
            raise UserError("--only", name, f"of {', '.join(known)}")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for one in everything:
            if not only or one.name in only:
                _write(one, out, report)
        if not only:
            text = "\n".join(f"## {one.name}: {one.title}\n\n{one.caption}\n" for one in figures if len(one.points))
            write_atomically(out / CAPTIONS, text)
            report.written["captions"], report.titles["captions"] = [out / CAPTIONS], "What each figure shows"
    except OSError as error:
        allowed = f"a folder that can be written to and has room ({error.strerror})"
        raise UserError("--out", str(out), allowed) from None
    return report


def _write(one: grids.Table | Figure, out: Path, report: Report) -> None:
    try:
        written = style.save(one, out) if isinstance(one, Figure) else _save_table(one, out)
    except OSError:
        raise
    except Exception as error:  # the others are drawn all the same
        report.fail(one.name, error)
        return
    report.titles[one.name] = one.title
    if written:
        report.written[one.name] = written
    elif isinstance(one, Figure):
        report.missing[one.name] = one.missing


def _save_table(table: grids.Table, out: Path) -> list[Path]:
    paths = []
    for suffix, convert in WRITERS.items():
        path = out / f"{table.name}.{suffix}"
        write_atomically(path, convert(table))
        paths.append(path)
    return paths


def _tell(report: Report, data: Data, out: Path) -> None:
    cells = data.results.cells["key"].nunique()
    print(f"{cells} cells of {', '.join(str(root) for root in data.roots)}; written to {out}:")
    width = max((len(name) for name in report.titles), default=0)
    for name, paths in report.written.items():
        suffixes = " ".join(path.suffix[1:] for path in paths)
        print(f"  {name:<{width}}  {suffixes:<11}  {report.titles[name]}")
    if report.missing:
        print("not measured:")
        for name, command in report.missing.items():
            old = " (files of an earlier time are still there)" if any(out.glob(f"{name}.*")) else ""
            print(f"  {name:<{width}}  {report.titles[name]}{old}\n  {'':<{width}}  {command}")
    problems = data.results.problems
    if len(problems):
        print("skipped as damaged or doubled:")
        for row in problems.itertuples():
            print(f"  {row.path}: {row.reason}")
    if report.broken:
        print("failed:")
        for name, error in report.broken.items():
            print(f"  {name}: {error}")


if __name__ == "__main__":
    sys.exit(main())
