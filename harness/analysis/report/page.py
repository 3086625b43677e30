"""One HTML file with everything in it: no server, no network, no font or script from elsewhere.

What needs no script (overview, claims, tables, figures) stands in it as HTML. Cells and documents are data that its
script shows: JSON in gzip in base64, unpacked by the browser (``DecompressionStream``). The page's own policy forbids
it every address, and every script but its own by hash, so that no text of a model can become one.
"""

from __future__ import annotations

import base64
import hashlib
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files

from harness.analysis import names
from harness.analysis.data import Data
from harness.analysis.report import documents, parts, records
from harness.analysis.report.markup import escape, packed

LIMIT = 14_500_000  # bytes of the whole file; texts of documents are left out beyond it


@dataclass(frozen=True)
class Page:
    """The report.

    Attributes:
        html: the whole file.
        failed: parts that could not be made; the page says so where they would stand.
        notice: what was left out of the page, or "".
    """

    html: str
    failed: tuple[str, ...]
    notice: str


def make_page(data: Data, limit: int = LIMIT) -> Page:
    """The report of everything that was read. A part that fails is named in the page, and the others are there.

    Args:
        limit: bytes of the file at most, as far as leaving out documents can bring it there.
    """
    failed: list[str] = []

    def attempt(name: str, make: Callable[[], str]) -> str:
        try:
            return make()
        except Exception as error:  # whatever it was: the rest of the report is not lost
            failed.append(name)
            print(f"the report goes on without {name}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            told = f"{type(error).__name__}: {error}"
            return f'<p class="failed">This part could not be made ({escape(name)}): <code>{escape(told)}</code></p>\n'

    data.results.documents  # noqa: B018  first, because cells with damaged documents leave with it
    fill = {
        "overview": attempt("overview", lambda: parts.overview(data)),
        "claims": attempt("claims", lambda: _claims(data)),
        "tables": attempt("tables", lambda: _tables(data)),
        "figures": attempt("figures", lambda: _figures(data, attempt)),
        "lost": "",
    }
    index: dict[str, object] = {
        "cells": {"columns": [], "rows": []}, "values": [], "records": {}, "names": names.METHODS | names.BENCHMARKS,
    }  # fmt: skip
    fill["lost"] += attempt("list of cells", lambda: _update(index, {"cells": records.rows(data)}))
    fill["lost"] += attempt("records", lambda: _update(index, records.records(data)))
    blocks: dict[str, str] = {}
    kept: int | None = None
    index["blocks"] = []
    room = limit - sum(len(part.encode()) for part in fill.values()) - len(packed(index)) - 100_000

    def pack() -> str:
        nonlocal blocks, kept
        blocks, kept = documents.pack(data.results.documents, room)
        return ""

    fill["lost"] += attempt("documents", pack)
    notice = documents.notice(kept)
    index |= {"blocks": documents.summary(blocks), "kept": kept}
    fill["notice"] = f'<p class="notice">{escape(notice)}</p>' if notice else ""
    named = "".join(f"<li>{escape(name)}</li>" for name in failed)
    fill["failed"] = f'<div class="failed"><p>These parts failed:</p><ul>{named}</ul></div>' if failed else ""
    elements = {"index": packed(index)} | {f"documents-{i}": block for i, block in enumerate(blocks.values())}
    fill["data"] = "".join(f'<script type="application/octet-stream" id="{name}">{content}</script>\n'
                           for name, content in elements.items())  # fmt: skip
    return Page(_whole(fill), tuple(failed), notice)


def _whole(fill: Mapping[str, str]) -> str:
    """The page with its style, its script and its parts; nothing inside a part is taken for a place to fill."""
    here = files("harness.analysis.report")
    page, style, script = ((here / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    fill = {**fill, "style": style, "script": script, "policy": f"script-src 'sha256-{digest}'"}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fill[match[1]], page)


def _claims(data: Data) -> str:
    from harness.analysis.claims import board

    return parts.claims(board(data))


def _tables(data: Data) -> str:
    from harness.analysis.papertables import make_tables

    return parts.tables(make_tables(data))


def _figures(data: Data, attempt: Callable[[str, Callable[[], str]], str]) -> str:
    from harness.analysis.figures import make_figures

    return parts.figures(make_figures(data), attempt)


def _update(index: dict[str, object], values: Mapping[str, object]) -> str:
    packed(values)  # what cannot be packed fails here, as the part that it is
    index.update(values)
    return ""
