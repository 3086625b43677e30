"""Imports point one way, and each library is known to one place (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(p.relative_to(ROOT) for folder in ("harness", "methods") for p in (ROOT / folder).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Modules that a file imports anywhere, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def under(path: Path, *places: str) -> bool:
    return any(path == Path(place) or Path(place) in path.parents for place in places)


@pytest.mark.parametrize(
    ("library", "places"),
    [
        ("lm_eval", ["harness/evaluation"]),
        ("wandb", ["harness/tracking.py"]),
        ("transformers.cache_utils", ["harness/engine/cache.py"]),
        ("peft", ["harness/training", "harness/models"]),
    ],
)
def test_a_library_is_known_to_one_place(library: str, places: list[str]) -> None:
    users = [p for p in FILES if any(m == library or m.startswith(f"{library}.") for m in imports(p))]
    assert users, f"nobody imports {library}: the test is out of date"
    assert [str(p) for p in users if not under(p, *places)] == []


def test_imports_point_one_way() -> None:
    """harness.run → methods → harness.engine → harness.errors."""
    for path in FILES:
        ours = {m for m in imports(path) if m.split(".")[0] in ("harness", "methods")}
        if under(path, "harness/engine"):
            assert all(m.startswith(("harness.engine", "harness.errors")) for m in ours), path
        elif under(path, "methods"):
            assert all(m.startswith(("harness.engine", "harness.errors", "methods")) for m in ours), path


def test_the_engine_knows_no_method_by_name() -> None:
    methods = {p.stem for p in (ROOT / "conf" / "method").glob("*.yaml")}
    assert {"mars", "ar_sft"} <= methods
    for path in FILES:
        if under(path, "harness/engine"):
            tree = ast.parse((ROOT / path).read_text("utf-8"))
            names = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
            assert not names & methods, path
