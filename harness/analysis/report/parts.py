"""The parts of the page that need no script: overview, claims, tables, figures."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from harness.analysis.claims import CAPTION, CAPTION_MEASURED, CAPTION_PUBLISHED
from harness.analysis.data import Data
from harness.analysis.grids import LEGEND, Table
from harness.analysis.report.markup import escape, table
from harness.results.tables import AVERAGE

_SVG_LIMIT = 200_000  # bytes: a drawing of more marks than that is smaller as a picture
_VERDICTS = {"supported": "✓", "contradicted": "✗", "undecided": "?", "not measured": "·"}


def overview(data: Data) -> str:
    """How much there is, and what was skipped."""
    results = data.results
    documents, cells = results.documents, results.cells  # in this order: damaged documents take their cells along
    own = cells.drop_duplicates("key")
    counts = {
        "cell": len(own), "model": cells["model"].nunique(), "method": cells["method"].nunique(),
        "benchmark": int(cells.loc[cells["benchmark"] != AVERAGE, "benchmark"].nunique()), "document": len(documents),
        "skipped": len(results.problems),
    }  # fmt: skip
    words = {name: name if name == "skipped" or count == 1 else f"{name}s" for name, count in counts.items()}
    numbers = "".join(f"<div><dt>{words[name]}</dt><dd>{count:,}</dd></div>" for name, count in counts.items())
    found = f'<dl class="counts">{numbers}</dl>\n'
    if not len(own):
        command = "<code>python -m harness.run -m method=mars,ar_sft</code>"
        found += f'<p class="notice">No cell was found. {command} makes two.</p>\n'
    else:
        newest = own["created"].max()
        when = "" if pd.isna(newest) else f"; the newest cell finished on {newest:%Y-%m-%d at %H:%M} UTC"
        found += f"<p>From {', '.join(f'<code>{escape(root)}</code>' for root in data.roots)}{escape(when)}.</p>\n"
    rows = [(str(row["path"]), str(row["reason"])) for row in results.problems.to_dict("records")]
    if rows:
        what = f"{len(rows):,} skipped, because damaged, incomplete or there twice"
        listed = table(("path", "reason"), rows, 2)
        found += f"<details{' open' if len(rows) <= 5 else ''}><summary>{what}</summary>{listed}</details>\n"
    return found


def claims(board: pd.DataFrame) -> str:
    """The board: a line for each claim and whose numbers they are."""
    names = [name for name in ("source", "family", "scale") if name in board]
    has_how = "how" in board and bool(board["how"].astype(str).str.len().any())
    header = ["claim", *names, "verdict", "numbers", *(["how"] if has_how else [])]
    bodies = []
    for words, rows in board.groupby("claim", sort=False):
        lines = []
        for row in rows.to_dict("records"):
            verdict = _text(row["verdict"])
            labels = "".join(f"<td>{escape(_text(row[name]))}</td>" for name in names)
            how = f"<td>{escape(_text(row['how']))}</td>" if has_how else ""
            badge = f'<span class="verdict {escape(verdict.replace(" ", "-"))}">{_VERDICTS.get(verdict, "")} '
            lines.append(
                f"{labels}<td>{badge}{escape(verdict)}</span></td><td>{escape(_text(row['numbers']))}</td>{how}"
            )
        first = f'<th scope="rowgroup" rowspan="{len(lines)}">{escape(words)}</th>'
        bodies.append("<tbody>" + "".join(f"<tr>{first if i == 0 else ''}{x}</tr>\n" for i, x in enumerate(lines)))
    head = "".join(f'<th scope="col">{name}</th>' for name in header)
    notes = (
        CAPTION.format("unpaired (published) and paired (measured)"),
        f"Published: {CAPTION_PUBLISHED}",
        f"Measured: {CAPTION_MEASURED}",
    )
    return (
        f"<p>{escape(' '.join(notes))}</p>\n"
        '<div class="scroll" tabindex="0" role="region" aria-label="claims"><table class="claims">'
        f"<thead><tr>{head}</tr></thead>\n{''.join(f'{body}</tbody>' for body in bodies)}</table></div>\n"
    )


def tables(found: Sequence[Table]) -> str:
    """Tables, block after block."""
    parts = [_contents("table", found)]
    for one in found:
        grids = "".join(table(grid.header, grid.rows, grid.num_labels, grid.title) for grid in one.grids)
        head = f"<h3>{escape(one.title)}</h3>\n<p>{escape(one.caption)} {escape(LEGEND)}</p>\n"
        parts.append(f'<article id="table-{_id(one.name)}">{head}{grids}</article>\n')
    return "".join(parts)


def figures(found: Sequence[Any], attempt: Callable[[str, Callable[[], str]], str]) -> str:
    """Figures (``figures.base.Figure``), each drawn for itself; what was never measured says what to run.

    Args:
        attempt: runs a part under a name; returns what it made, or what the page says of its failure.
    """
    parts = [_contents("figure", found)]
    for one in found:
        body = attempt(f"figure {one.name}", lambda one=one: _figure(one))  # type: ignore[misc]
        parts.append(f'<article id="figure-{_id(one.name)}"><h3>{escape(one.title)}</h3>\n{body}</article>\n')
    return "".join(parts)


def _figure(one: Any) -> str:
    if one.points.empty:
        return f'<p class="notice">Not measured. {escape(one.missing)}</p>\n'
    caption = f"<figcaption>{escape(one.caption)}</figcaption>"
    if extra := one.extra.get("html"):  # escaped where it is made; text that can be read and copied beats its picture
        return f"<figure>{extra}{caption}</figure>\n"
    kind, content = _picture(one)
    source = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    return f'<figure><img src="{source}" alt="{escape(one.title)}">{caption}</figure>\n'


def _picture(one: Any) -> tuple[str, bytes]:
    """Media type and content; equal points give equal bytes. Letters are outlines, so no font is needed."""
    import matplotlib as mpl

    from harness.analysis.figures.style import DPI, render

    drawing, file = render(one), io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": one.name}):
        drawing.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    if file.tell() <= _SVG_LIMIT:
        return "image/svg+xml", file.getvalue()
    file = io.BytesIO()
    drawing.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
    return "image/png", file.getvalue()


def _contents(kind: str, found: Sequence[Any]) -> str:
    """Links to what follows."""
    links = "".join(f'<li><a href="#{kind}-{_id(one.name)}">{escape(one.title)}</a></li>' for one in found)
    return f'<ul class="contents">{links}</ul>\n'


def _id(name: str) -> str:
    return re.sub(r"[^\w-]", "-", name)


def _text(value: Any) -> str:
    return "" if value is None or value is pd.NA or value != value else str(value)
