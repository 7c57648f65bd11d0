"""Rows of a shuffle, by subpartition and in reading order."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from integration.readers.arrow_frames import Row, schema_of
from integration.readers.commit_log import Log
from integration.readers.partitioned_file import PartitionedFile

# Sign of the rank of a value, and of that of a null.
ORDERS = {"ascending": (1, -1), "descending": (-1, 1)}
ORDERS |= {"ascending nulls last": (1, 1), "descending nulls first": (-1, -1)}


def read(shuffle: Path, number: int | None = None) -> pa.Table:
    """Return all rows of a version, the newest when None; their subpartition is the last column."""
    log = Log(shuffle)
    while True:
        try:
            return _rows(shuffle, *log.open_version(number))
        except Exception:
            before, log = log, Log(shuffle)
            if log.newest.number == before.newest.number:
                raise


def _rows(shuffle: Path, shape: Row, files: list[Row]) -> pa.Table:
    found = [of for file in files for of in PartitionedFile(shuffle, shape, file).regions()]
    tables = [schema_of(shape["data_schema"]).empty_table(), *(rows for _, rows in found)]
    table = pa.concat_tables(tables).combine_chunks()
    subpartition = np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in found)])
    subpartition %= shape["num_subpartitions"]
    keys = [_ranks(table[name], *ORDERS[how]) for name, how in shape.get("sort_by", ())]
    order = np.lexsort([*reversed(keys), subpartition])
    field = pa.field("_subpartition", pa.int32(), nullable=False)
    ids = pa.array(subpartition[order].astype(np.int32))
    return table.take(pa.array(order)).append_column(field, ids)


def _ranks(column: pa.ChunkedArray, sign: int, of_null: int) -> np.ndarray:
    """Return numbers in the order of a sort key."""
    keys = _keys(pa.concat_arrays([pa.array([], column.type), *column.chunks]))
    rank = {key: sign * at for at, key in enumerate(sorted({*keys} - {()}), 1)}
    rank[()] = of_null * (len(keys) + 1)
    return np.array([rank[key] for key in keys], np.int64)


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
