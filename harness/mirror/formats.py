"""Rows to the content of a data file: the opposite of ``documents.read_rows``, and checked against it."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness.errors import UserError
from harness.evaluation import documents
from harness.evaluation.documents import Rows


def encode(targets: Sequence[str], rows: Rows, fields: Sequence[str], folder: Path) -> tuple[str, bytes]:
    """The first data file whose format gives back exactly these rows, and its content.

    CSV holds text alone, so rows with numbers or nothing in some column take the next format. It is tried, not trusted:
    a file beside the target is read as ``documents`` will.

    Raises:
        UserError: no format does, or rows lack a field.
    """
    encoders = {".jsonl": _as_jsonl, ".json": _as_json, ".csv": _as_csv}
    for target in targets:
        encoder = encoders.get(Path(target).suffix)
        if encoder is None:
            continue
        path = folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".mirror-") as temporary:
            probe = Path(temporary) / path.name
            try:
                content = encoder(rows)
                probe.write_bytes(content)
                if documents.hash_rows(documents.read_rows(probe, fields)) == documents.hash_rows(rows):
                    return target, content
            except (TypeError, ValueError, csv.Error):
                pass  # a value that this format cannot hold; the message might quote it
            except UserError as error:
                if target == targets[-1]:
                    raise UserError(error.key, target, error.allowed) from None
    names = ", ".join(Path(target).name for target in targets)
    raise UserError("hub", targets[0], f"its rows hold values that {names} cannot give back")


def _as_jsonl(rows: Rows) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _as_json(rows: Rows) -> bytes:
    return (json.dumps({"examples": rows}, indent=1) + "\n").encode()


def _as_csv(rows: Rows) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
