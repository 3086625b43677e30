"""The notebooks: committed without outputs, and every cell runs in a fresh kernel, offline, leaving nothing behind."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from harness.config import ROOT

NOTEBOOKS = ROOT / "notebooks"
NAMES = ("results_tour", "add_a_method", "mask_anatomy")
MOST_BYTES = 50_000


def read(name: str) -> Any:
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=nbformat.NO_CONVERT)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short folder for the kernel's own files (a Unix socket's path has 107 characters at most)."""
    with tempfile.TemporaryDirectory(prefix="nb-") as folder:
        for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
            monkeypatch.setenv(name, f"{folder}/{name.lower()}")
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        yield Path(folder)


def run(notebook: Any, where: Path, sockets: Path) -> Any:
    """Execute all cells; the kernel speaks through sockets in a folder, so that no two tests meet on a port.

    Raises:
        CellExecutionError: a cell raised.
    """
    kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=str(sockets / "kernel"))
    client = NotebookClient(notebook, km=kernel, timeout=250, resources={"metadata": {"path": str(where)}})
    return client.execute()


def present() -> set[Path]:
    """What lies where a notebook might leave something: Hydra's, wandb's and Jupyter's folders, results, files."""
    usual = {ROOT / name for name in ("outputs", "multirun", "wandb", ".ipynb_checkpoints")}
    return {path for path in usual if path.exists()} | set(NOTEBOOKS.iterdir()) | set((ROOT / "results").iterdir())


def test_all_notebooks_are_tested() -> None:
    assert sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_are_committed_without_outputs(name: str) -> None:
    path = NOTEBOOKS / f"{name}.ipynb"
    notebook = read(name)
    nbformat.validate(notebook)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5), "cells have ids from 4.5 on"
    assert path.stat().st_size < MOST_BYTES
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    for cell in notebook["cells"]:
        assert not cell.get("outputs"), cell["id"]
        assert cell.get("execution_count") is None, cell["id"]
        assert not cell["metadata"], cell["id"]
    ids = [cell["id"] for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_run_from_top_to_bottom(name: str, offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the folder that a notebook lies in, and one of them from the project's root."""
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    before = present()
    done = run(read(name), ROOT if name == "mask_anatomy" else NOTEBOOKS, offline)
    codes = [cell for cell in done["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in codes] == list(range(1, len(codes) + 1))
    drawn = [o for cell in codes for o in cell["outputs"] if "image/png" in o.get("data", {})]
    assert len(drawn) == {"results_tour": 2, "add_a_method": 0, "mask_anatomy": 2}[name]
    assert present() == before


def test_a_cell_that_raises_fails(offline: Path) -> None:
    """The execution above is no formality: one false claim in a cell ends it."""
    broken = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("assert 1 == 2, 'so it is'")])
    with pytest.raises(CellExecutionError, match="so it is"):
        run(broken, NOTEBOOKS, offline)
