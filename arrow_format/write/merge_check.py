"""Compares a merged file with its inputs before anything relies on it.

What was written is read back whole, and counted. That finds what storage lost, but not what a
mistake in joining mixed up: so the rows of some subpartitions are read from both sides as well, by
the way that readers take, and must be the same ones in the same order.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.nested_items import most_items
from arrow_format.arrays.numpy_arrays import to_arrow
from arrow_format.arrays.radix_sort import sort_permutation
from arrow_format.arrays.selection import take
from arrow_format.errors import CorruptShuffleError
from arrow_format.format.chunk_codec import ChunkDecoder
from arrow_format.format.layout_check import byte_schema
from arrow_format.format.totals import subpartition_totals
from arrow_format.keys.spark_order import key_codes
from arrow_format.model import RegionKind
from arrow_format.read.chunk_reader import ChunkReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.keys.sort_keys import SortBy
    from arrow_format.model import Int64Array
    from arrow_format.read.partitioned_file import PartitionedFileReader

NUM_COMPARED = 16
"""Subpartitions whose rows are compared."""

MOST_ROWS = 20_000
"""A subpartition with more rows is not compared: all of them would have to be held."""

MOST_BYTES = 64 << 20
"""... nor is one with more bytes, a value inside of a list counting as one byte more."""

ROWS_COMPARED = 256
"""Rows at both ends of a subpartition whose bytes are compared."""


def check_merged(merged: PartitionedFileReader, inputs: Sequence[PartitionedFileReader]) -> None:
    """Read a merged file whole and compare it with its inputs.

    Raises
    ------
    CorruptShuffleError
        It cannot be read back as it was written, or its subpartitions have other rows.
    """
    n = merged.metadata.num_subpartitions
    expected = np.zeros(n, np.int64)
    for one in inputs:
        expected += subpartition_totals(one.regions, n, one.file.data_bytes)[0]
    found, _ = subpartition_totals(merged.regions, n, merged.file.data_bytes)
    stored = merged.file.num_rows, merged.file.num_broadcast_rows
    if not np.array_equal(expected, found) or stored != (
        sum(one.file.num_rows for one in inputs),
        sum(one.file.num_broadcast_rows for one in inputs),
    ):
        raise _differs(merged, "the number of rows")
    copied = _are_copies(merged, inputs)
    ChunkReader(merged, ChunkDecoder(merged.metadata.data_schema)).check(decode=not copied)
    if not copied:
        _compare_rows(merged, inputs, expected)


def _compare_rows(
    merged: PartitionedFileReader, inputs: Sequence[PartitionedFileReader], rows: Int64Array
) -> None:
    candidates = np.flatnonzero((rows > 0) & (rows <= MOST_ROWS))
    places = np.linspace(0, len(candidates) - 1, min(NUM_COMPARED, len(candidates))).astype(int)
    for one in np.unique(candidates[places]).tolist():
        expected = _rows_at_ends(inputs, merged, one, most_bytes=MOST_BYTES)
        if expected is not None and expected != _rows_at_ends([merged], merged, one):
            raise _differs(merged, f"rows of subpartition {one}")


def _rows_at_ends(
    files: Sequence[PartitionedFileReader],
    merged: PartitionedFileReader,
    subpartition: int,
    *,
    most_bytes: float = inf,
) -> tuple[int, list[pa.RecordBatch]] | None:
    """How many unicast rows a subpartition has, and the bytes of the first and the last.

    Bytes, because NaN is no equal of itself, and not every value has a form in Python. None when
    the rows have more than ``most_bytes``.
    """
    schema, sort_by = merged.metadata.data_schema, merged.metadata.sort_by
    regions = []
    num_bytes = 0
    for file in files:
        chunks = ChunkReader(file, ChunkDecoder(schema))
        for number, region in enumerate(file.regions):
            if region.kind is RegionKind.UNICAST:
                batches = []
                for batch, _ in chunks.rows(number, number + 1, subpartition, subpartition + 1):
                    # Values inside of lists may take no byte at all, and their number is bounded.
                    num_bytes += batch.nbytes + most_items(batch)
                    if num_bytes > most_bytes:
                        return None
                    batches.append(batch)
                table = pa.Table.from_batches(batches, schema).combine_chunks()
                if sort_by and _sorted(table, sort_by) is not table:
                    raise _differs(merged, f"the order of rows of subpartition {subpartition}")
                regions.append(table)
    rows = pa.concat_tables([schema.empty_table(), *regions])
    if sort_by:
        rows = _sorted(rows.combine_chunks(), sort_by)
    ends = [rows.slice(0, ROWS_COMPARED), rows.slice(max(len(rows) - ROWS_COMPARED, 0))]
    return len(rows), [_as_bytes(end) for end in ends]


def _as_bytes(rows: pa.Table) -> pa.RecordBatch:
    """Return the rows with the bytes that their values are: equal where the bytes are."""
    columns = [column.combine_chunks() for column in rows.columns]
    message = pa.RecordBatch.from_arrays(columns, schema=rows.schema).serialize()
    return pa.ipc.read_record_batch(message, byte_schema(rows.schema))


def _sorted(rows: pa.Table, sort_by: SortBy) -> pa.Table:
    """Return rows in the order of the sort keys, stable; the table itself when they are."""
    if len(rows) < 2:
        return rows
    codes = key_codes([rows[name].chunk(0) for name, _ in sort_by], [o for _, o in sort_by])
    order = sort_permutation(codes)
    return rows if bool((order[1:] > order[:-1]).all()) else take(rows, to_arrow(order))


def _are_copies(merged: PartitionedFileReader, inputs: Sequence[PartitionedFileReader]) -> bool:
    """Whether all chunks are those of the inputs, byte for byte."""
    regions = [region.chunks for one in inputs for region in one.regions]
    return len(regions) == len(merged.regions) and all(
        np.array_equal(getattr(region.chunks, name), getattr(chunks, name))
        for region, chunks in zip(merged.regions, regions, strict=True)
        for name in ("first_row", "length", "raw_length", "encoding", "crc32")
    )


def _differs(merged: PartitionedFileReader, what: str) -> CorruptShuffleError:
    return CorruptShuffleError(
        f"{merged.storage.root}/{merged.file.data_path}: {what} differ from the files it was "
        "merged from, which are unharmed. Please report this"
    )
