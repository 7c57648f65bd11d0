"""The statistics of a file's chunks as bytes of its index file; pure.

One zstd frame around an Arrow IPC record batch message with a row per chunk: for each column its
minimum, maximum and null count. Its schema follows from the index, which names the columns.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.buffers import to_arrow, to_numpy
from arrow_format.errors import CorruptShuffleError
from arrow_format.format.batch_frame import MALFORMED, encode_batch, message_of
from arrow_format.format.ipc import LayoutCheck
from arrow_format.format.statistics import UNKNOWN, ColumnStatistics, has_statistics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from arrow_format.model import Int64Array


def encode_section(statistics: Mapping[str, ColumnStatistics]) -> bytes:
    """Return the section of an index with these statistics of all chunks; none for no columns."""
    if not statistics:
        return b""
    columns = [
        part
        for column in statistics.values()
        for part in (column.minimum, column.maximum, to_arrow(column.null_count))
    ]
    batch = pa.RecordBatch.from_arrays(columns, names=[str(i) for i in range(len(columns))])
    return encode_batch(batch)


def decode_section(
    section: memoryview, names: Sequence[str], schema: pa.Schema, num_rows: Int64Array
) -> dict[str, ColumnStatistics]:
    """Inverse of :func:`encode_section`.

    ``names`` are those of the columns, of the data schema ``schema``, and ``num_rows`` has the rows
    of each chunk. Raises CorruptShuffleError where the section cannot be theirs.
    """
    if not names:
        return {}
    try:
        return _decoded(section, names, schema, num_rows)
    except MALFORMED as error:
        msg = f"the index has no statistics of its chunks ({type(error).__name__}: {error})"
        raise CorruptShuffleError(msg) from error


def _decoded(
    section: memoryview, names: Sequence[str], schema: pa.Schema, num_rows: Int64Array
) -> dict[str, ColumnStatistics]:
    types = [schema.field(name).type for name in names]
    if len(set(names)) < len(names) or not all(map(has_statistics, types)):
        msg = f"not each column once, of a type that compares: {', '.join(names)}"
        raise ValueError(msg)
    columns = _columns(section, types, len(num_rows))
    decoded = {
        name: ColumnStatistics(low, high, to_numpy(nulls), num_rows)
        for name, low, high, nulls in zip(
            names, columns[::3], columns[1::3], columns[2::3], strict=True
        )
    }
    for name, column in decoded.items():
        if np.any((column.null_count < UNKNOWN) | (column.null_count > num_rows)):
            msg = f"chunks have more nulls of column {name} than rows"
            raise ValueError(msg)
    return decoded


def _columns(section: memoryview, types: Sequence[pa.DataType], num_chunks: int) -> list[pa.Array]:
    schema, layout = _stored(tuple(types))
    message = message_of(section, schema)
    batch = pa.ipc.read_record_batch(message, schema)
    if batch.num_rows != num_chunks:
        msg = f"{batch.num_rows} rows for {num_chunks} chunks"
        raise ValueError(msg)
    layout.check(message)
    for column in batch.columns:
        if pt.is_string(column.type):  # decimals of too many digits are no damage
            column.validate(full=True)
    return list(batch.columns)


@lru_cache(64)
def _stored(types: tuple[pa.DataType, ...]) -> tuple[pa.Schema, LayoutCheck]:
    """Return schema and check of messages with columns of these types, mostly the same ones."""
    fields = [each for type_ in types for each in (type_, type_, pa.int64())]
    schema = pa.schema([(str(i), type_) for i, type_ in enumerate(fields)])
    return schema, LayoutCheck(schema)
