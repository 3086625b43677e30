"""Text as HTML: whatever a record holds, it is shown and never obeyed."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from harness.analysis.grids import EMPTY

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # the last turn what is read


def escape(value: object) -> str:
    """As text or as a quoted attribute. Control characters and halves of characters become question marks."""
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    return html.escape(_CONTROL.sub("\ufffd", text), quote=True)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], num_labels: int, caption: str = "") -> str:
    """A table in its own scrolling frame: texts, of which the first columns of a row say what it is.

    An empty text among the others is a number that was never measured.
    """
    head = "".join(
        f'<th scope="col"{"" if i < num_labels else _NUMBER}>{escape(name)}</th>' for i, name in enumerate(header)
    )
    body = "".join(f"<tr>{''.join(_cell(i, text, num_labels) for i, text in enumerate(row))}</tr>\n" for row in rows)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    label = escape(caption or ", ".join(header))
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>{title}'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n"
    )


_NUMBER = ' class="number"'


def _cell(place: int, text: str, num_labels: int) -> str:
    if place == 0 and num_labels:
        return f'<th scope="row">{escape(text)}</th>'
    if place < num_labels:
        return f"<td>{escape(text)}</td>"
    return f"<td{_NUMBER}>{escape(text)}</td>" if text else f'<td class="number empty">{EMPTY}</td>'


def packed(value: Any) -> str:
    """Plain values as JSON in gzip in base64, which no HTML parser can mistake for anything else."""
    content = json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
    return base64.b64encode(gzip.compress(content, 6, mtime=0)).decode("ascii")
