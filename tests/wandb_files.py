"""What an offline run of wandb wrote: its file holds protocol buffers in blocks, as LevelDB's log has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7  # bytes; of a record's header: checksum (4), length (2), kind (1)


def records(path: Path) -> Iterator[Any]:
    """The records (``wandb_internal_pb2.Record``) of a ``run-….wandb`` file, in order."""
    from wandb.proto import wandb_internal_pb2 as messages

    content = path.read_bytes()
    assert content.startswith(b":W&B"), "another format than this reader knows"
    place, parts = HEADER, b""
    while place + HEADER <= len(content):
        if BLOCK - place % BLOCK < HEADER:  # the rest of a block is too short for a header
            place += BLOCK - place % BLOCK
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        parts += content[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (1, 4):  # whole, or the last part
            found = messages.Record()
            found.ParseFromString(parts)
            parts = b""
            yield found


def contents(path: Path) -> dict[str, Any]:
    """Run, its config, summary, history and artifacts (name, type, names of files) of a file."""
    found: dict[str, Any] = {"config": {}, "summary": {}, "history": {}, "artifacts": []}
    for one in records(path):
        kind = one.WhichOneof("record_type")
        if kind == "run":
            found["run"] = one.run
            found["config"] |= {item.key: json.loads(item.value_json) for item in one.run.config.update}
        elif kind in ("summary", "history"):
            items = one.summary.update if kind == "summary" else one.history.item
            found[kind] |= {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}
        elif kind == "artifact":
            files = [entry.path for entry in one.artifact.manifest.contents]
            found["artifacts"].append((one.artifact.name, one.artifact.type, files))
    return found
