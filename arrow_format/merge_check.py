"""Compares a merged file with its inputs before anything relies on it.

What was written is read back whole, and counted. That finds what storage lost, but not what a
mistake in joining mixed up: so the rows of some subpartitions are read from both sides as well, by
the way that readers take, and must be the same ones in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.chunk_reader import ChunkReader
from arrow_format.codec import ChunkDecoder
from arrow_format.errors import CorruptShuffleError
from arrow_format.model import RegionKind
from arrow_format.numpy_arrays import to_arrow
from arrow_format.selection import take
from arrow_format.sort_permutation import sort_permutation
from arrow_format.spark_order import key_codes
from arrow_format.totals import subpartition_totals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.model import Int64Array
    from arrow_format.partitioned_file import PartitionedFileReader
    from arrow_format.sort_order import SortBy

NUM_COMPARED = 16
"""Subpartitions whose rows are compared."""

MOST_ROWS = 20_000
"""A subpartition with more rows is not compared: all of them would have to be held."""

ROWS_SHOWN = 256
"""Rows at both ends of a subpartition that are compared value by value."""


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
        if _rows_at_ends(inputs, merged, one) != _rows_at_ends([merged], merged, one):
            raise _differs(merged, f"rows of subpartition {one}")


def _rows_at_ends(
    files: Sequence[PartitionedFileReader], merged: PartitionedFileReader, subpartition: int
) -> tuple[int, str]:
    """How many unicast rows a subpartition has, and the first and last as text.

    Text, because NaN is no equal of itself.
    """
    schema, sort_by = merged.metadata.data_schema, merged.metadata.sort_by
    regions = []
    for file in files:
        chunks = ChunkReader(file, ChunkDecoder(schema))
        for number, region in enumerate(file.regions):
            if region.kind is RegionKind.UNICAST:
                found = chunks.rows(number, number + 1, subpartition, subpartition + 1)
                table = pa.Table.from_batches(
                    [batch for batch, _ in found], schema
                ).combine_chunks()
                if sort_by and _sorted(table, sort_by) is not table:
                    raise _differs(merged, f"the order of rows of subpartition {subpartition}")
                regions.append(table)
    rows = pa.concat_tables([schema.empty_table(), *regions])
    if sort_by:
        rows = _sorted(rows.combine_chunks(), sort_by)
    ends = [rows.slice(0, ROWS_SHOWN), rows.slice(max(len(rows) - ROWS_SHOWN, 0))]
    try:
        return len(rows), repr([_as_bytes(end).to_pylist() for end in ends])
    except UnicodeDecodeError as error:
        msg = (
            f"{merged.storage.root}: a text in subpartition {subpartition}, inside of a list, "
            "struct or map, is no UTF-8, so the merge cannot be checked. Nothing was merged"
        )
        raise CorruptShuffleError(msg) from error


def _as_bytes(rows: pa.Table) -> pa.Table:
    """Return the rows with texts as the bytes they are: nobody has looked whether they are text."""
    # Not a cast of the table: PyArrow makes a sliced list of structs of nulls invalid by it.
    columns = [
        column.cast(pa.binary()) if pa.types.is_string(column.type) else column
        for column in rows.columns
    ]
    return pa.Table.from_arrays(columns, rows.schema.names)


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
