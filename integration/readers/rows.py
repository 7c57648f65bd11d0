"""Rows of a shuffle, by subpartition and in reading order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from integration.readers.arrow_frames import check, schema_of
from integration.readers.commit_log import open_version
from integration.readers.partitioned_file import PartitionedFile

if TYPE_CHECKING:
    from pathlib import Path


def read(shuffle: Path, number: int | None = None) -> pa.Table:
    """Return all rows of a version, the newest when None; their subpartition is the last column."""
    shape, outputs = open_version(shuffle, number)
    n, schema = shape["num_subpartitions"], schema_of(shape["data_schema"])
    tables, count = [schema.empty_table()], 0
    places, subpartitions = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for output in outputs:
        for file in output["files"]:
            check(file["num_subpartitions"] % n == 0, "subpartitions of a file")
            for of, rows in PartitionedFile(shuffle, shape, output, file).regions():
                place = np.arange(count, count + len(rows))
                tables.append(rows)
                places.append(np.tile(place, n) if of is None else place)
                subpartitions.append(np.repeat(np.arange(n), len(rows)) if of is None else of % n)
                count += len(rows)
    table = pa.concat_tables(tables).combine_chunks()
    places, subpartitions = np.concatenate(places), np.concatenate(subpartitions)
    keys = [_ranks(table[name], how)[places] for name, how in shape.get("sort_by", ())]
    order = np.lexsort([*reversed(keys), subpartitions])
    field = pa.field("_subpartition", pa.int32(), nullable=False)
    ids = pa.array(subpartitions[order].astype(np.int32))
    return table.take(pa.array(places[order])).append_column(field, ids)


def _ranks(column: pa.ChunkedArray, how: str) -> np.ndarray:
    """Return numbers in the order of a sort key."""
    keys = _keys(pa.concat_arrays([pa.array([], column.type), *column.chunks]))
    down = how.startswith("descending")
    nulls_first = how.endswith("first") if "nulls" in how else not down
    last = len(keys) + 1
    rank = {key: at for at, key in enumerate(sorted({*keys} - {()}), 1)}
    of_null = -last if nulls_first else last
    return np.array([(-rank[k] if down else rank[k]) if k else of_null for k in keys], np.int64)


def _keys(array: pa.Array) -> list[tuple[Any, ...]]:
    """Return values as Python compares them as the page says; () for a null."""
    kind, found = array.type, None
    if pt.is_struct(kind):
        inside = [_keys(array.field(i)) for i in range(kind.num_fields)]
        found = [*zip(*inside, strict=True)]
    elif pt.is_floating(kind):
        found = [(v != v, 0.0 if v != v else v) for v in array.fill_null(0).to_pylist()]
    elif not pt.is_null(kind):
        if pt.is_string(kind):
            array = array.view(pa.binary())
        elif pt.is_temporal(kind):
            array = array.view(pa.int64() if kind.bit_width == 64 else pa.int32())
        found = [(value,) for value in array.to_pylist()]
    there = array.is_valid().to_pylist()
    return [key if valid else () for key, valid in zip(found or there, there, strict=True)]
