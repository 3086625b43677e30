"""One HTML file of everything that was measured: tables, figures, claims, every cell, and cells side by side.

    python -m harness.report                       # the reference results and yours -> results/report.html
    python -m harness.report FOLDER … --out FILE   # other results folders

The file opens from disk in any browser of today and needs nothing else. Exit status: 0 written whole, 1 written without
parts that failed (the page names them), 2 a mistake on the command line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.analysis.data import RESULTS, open_data
from harness.analysis.report import make_page
from harness.errors import UserError
from harness.results.store import write_atomically


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.report", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "folders", nargs="*", metavar="FOLDER", help="results folders; results/reference and results/runs"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "report.html", metavar="FILE", help="results/report.html")
    options = parser.parse_args(arguments)
    try:
        page = make_page(open_data(*options.folders))
        _write(options.out, page.html)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if page.notice:
        print(page.notice)
    if page.failed:
        print(f"failed: {', '.join(page.failed)}", file=sys.stderr)
    print(f"report: {options.out}   ({options.out.stat().st_size / 1e6:.1f} MB)")
    return 1 if page.failed else 0


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise UserError("--out", str(path), f"a file that can be written: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
