"""The documents of many cells as one frame, read column by column, with what tells their cells apart beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.analysis import schema
from harness.analysis.cells import REQUIRED, Damage, LoadedCell

_ON_DISK = {"benchmark": "group"}  # where a column has another name there
_OF_CELL = tuple(column for column in schema.IDENTIFYING if column.name != "benchmark")
_CATEGORY = pa.dictionary(pa.int32(), pa.string())


def read_documents(cell: LoadedCell, optional: Sequence[str]) -> pa.Table:
    """A cell's documents with the columns of the schema that stand on disk; those that it lacks are null.

    Args:
        optional: which of ``schema.TEXTS`` and ``schema.LISTS`` are wanted.

    Raises:
        Damage: what the footer did not tell.
    """
    path = Path(cell.path) / "documents.parquet"
    left_out = {name for name in (*schema.TEXTS, *schema.LISTS) if name not in optional}
    try:
        with pq.ParquetFile(path) as file:
            there = file.schema_arrow.names
            wanted = {name: column for name, column in _columns(there).items() if name not in left_out}
            names = {name: _ON_DISK.get(name, name) for name in wanted}
            table = file.read([name for name in names.values() if name in there], use_threads=False)
        found = {
            name: table[names[name]].cast(column.arrow)
            if names[name] in table.column_names
            else pa.nulls(len(table), column.arrow)
            for name, column in wanted.items()
        }
        pa.table(found).validate(full=True)  # texts too: what is no UTF-8 would fail only when it is shown
    except (OSError, pa.ArrowException) as error:
        raise Damage(f"documents.parquet cannot be read: {error}") from None
    _check(found)
    return pa.table(
        {name: values.cast(_CATEGORY) if wanted[name].repeats else values for name, values in found.items()}
    )


def _columns(on_disk: Sequence[str]) -> dict[str, schema.Column]:
    """Those of the schema that come from a documents file with these columns."""
    of_cell = {column.name for column in _OF_CELL}
    return {k: v for k, v in schema.columns(schema.DOCUMENTS, on_disk).items() if k not in of_cell}


def _check(found: dict[str, Any]) -> None:
    """Raises Damage where a value that every document has is missing, or a document stands there twice."""
    for name, values in found.items():
        if _ON_DISK.get(name, name) in REQUIRED and values.null_count:
            raise Damage(f"documents.parquet has {values.null_count} documents without {name}")
    if not pc.all(pc.is_finite(found["score"])).as_py():
        raise Damage("documents.parquet has scores that are no numbers")
    places = pa.table({name: found[name] for name in ("benchmark", "task", "doc_id")})
    if (twice := len(places) - len(places.group_by(places.column_names, use_threads=False).aggregate([]))) > 0:
        raise Damage(f"documents.parquet has {twice} documents twice")


def make_documents(cells: Sequence[LoadedCell], tables: Sequence[pa.Table]) -> pd.DataFrame:
    """The frame ``documents`` of cells and their tables, in this order."""
    if not cells:
        return schema.make_frame(schema.DOCUMENTS, [])
    whole = pa.concat_tables(tables, promote_options="default")
    counts = [len(table) for table in tables]
    del tables
    wanted = schema.columns(schema.DOCUMENTS, whole.column_names)
    of_cell = {column.name for column in _OF_CELL}
    found = {}
    for name, column in wanted.items():
        dtype = column.dtype(schema.DOCUMENTS)
        if name in of_cell:
            found[name] = _repeated([cell.rows[0][name] for cell in cells], counts, dtype)
        elif name in whole.column_names:
            found[name] = _series(whole[name], dtype)
    return pd.DataFrame(found)


def _repeated(values: Sequence[Any], counts: Sequence[int], dtype: Any) -> Any:
    """A value for each cell, repeated for its documents."""
    if dtype != "category":
        return pd.array(list(values), dtype=dtype).repeat(counts)
    categories = sorted({value for value in values if value is not None})
    codes = {value: code for code, value in enumerate(categories)} | {None: -1}
    numbers = np.repeat(np.array([codes[value] for value in values], np.int32), counts)
    return pd.Categorical.from_codes(numbers, categories=pd.Index(categories, dtype="string"))


def _series(values: pa.ChunkedArray, dtype: Any) -> Any:
    """An Arrow column in a type of the schema."""
    if dtype == "category":
        one = values.unify_dictionaries().combine_chunks()
        order = pc.array_sort_indices(one.dictionary).to_numpy()
        place = np.empty(len(order) + 1, np.int32)
        place[order], place[-1] = np.arange(len(order)), -1
        codes = one.indices.fill_null(len(order)).to_numpy(zero_copy_only=False)
        return pd.Categorical.from_codes(
            place[codes], categories=pd.Index(one.dictionary.take(order).to_pylist(), dtype="string")
        )
    if isinstance(dtype, pd.ArrowDtype):
        return pd.arrays.ArrowExtensionArray(values)
    if dtype == "string":
        return pd.Series(values.to_pandas(types_mapper={pa.string(): pd.StringDtype()}.get)).array
    return values.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype(), pa.float64(): pd.Float64Dtype()}.get).array
