"""Data that scoring needs beside the documents, looked for before anything is generated."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from harness.errors import UserError
from harness.mirror import manifest


def nltk_resource(name: str, data_dir: str | None) -> str:
    """Make an nltk resource available, from ``data_dir``/nltk_data, nltk's own folders, or nltk's server.

    Args:
        name: nltk's path of it ("tokenizers/punkt_tab").

    Returns:
        "sha256:" and the hash of its English files.

    Raises:
        UserError: it is nowhere, or altered since it was mirrored.
    """
    import nltk

    if data_dir is not None:
        folder = str((Path(data_dir).expanduser() / "nltk_data").absolute())
        nltk.data.path[:] = [folder, *(path for path in nltk.data.path if path != folder)]  # before another suite's
    found = _find(name)
    if found is None and os.environ.get("HF_HUB_OFFLINE", "0") in ("", "0"):
        nltk.download(Path(name).name, quiet=True)
        found = _find(name)
    if found is None:
        where = "suite.data_dir=DIR with DIR/nltk_data, or NLTK_DATA=DIR"
        short = Path(name).name
        fix = f"python -m nltk.downloader {short} on a connected machine, then {where}; python -m harness.data does it"
        raise UserError("nltk", name, f"IFEval's rules need nltk's {short}, which is not on this machine", fix)
    digest = hashlib.sha256()
    for path in sorted(one for one in found.rglob("*") if one.is_file()):
        content = path.read_bytes()
        if data_dir is not None:
            manifest.verify(Path(data_dir).expanduser(), path, content)
        digest.update(path.name.encode() + content)
    return f"sha256:{digest.hexdigest()}"


def _find(name: str) -> Path | None:
    import nltk

    try:
        return Path(nltk.data.find(f"{name}/english"))
    except LookupError:
        return None
