"""The name of a cell: a hash of its identity. Needs the standard library only: readers of records do too."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def run_key(identity: dict[str, Any]) -> str:
    """First 16 hex digits of the SHA-256 of the identity as canonical JSON (1 and 1.0 are the same number).

    Raises:
        ValueError: a number that is not finite.
    """

    def canonical(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(k): canonical(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [canonical(v) for v in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    text = json.dumps(canonical(identity), sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
