"""Which rows are passed over, since a later one of their key is among those that count.

The columns that tell are read first, of all rows that conditions on keys leave. All rows of a key
are in one subpartition, so a few subpartitions at a time are compared, in bounded memory; the
answer is a bit for each of their rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import to_arrow, to_numpy
from arrow_format.arrays.selection import joined
from arrow_format.errors import OptionError, SchemaError
from arrow_format.filters.spark_rules import collations
from arrow_format.format.masks import RowMask
from arrow_format.keys.co_partitioning import partition_keys
from arrow_format.keys.hash_passes import in_passes
from arrow_format.keys.last_positions import last_by
from arrow_format.keys.sort_keys import ORDERS, key_fields
from arrow_format.read.selection import OrderOfKeys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from arrow_format.format.masks import Stretch
    from arrow_format.read.subpartition_reader import SortMergeSubpartitionReader
    from arrow_format.read.version_facts import VersionFacts

ROW_BYTES = 48
"""Charged for a row in addition to its columns: its number, and the sort and search of it."""


def order_of_keys(rows: VersionFacts, column: str) -> OrderOfKeys:
    """Return by what the last row of each key is known, most of all by a column.

    The key is what identifies a row; where nothing is said to, that of the partitioner.

    Raises
    ------
    OptionError
        Rows have no partition keys, are broadcast, or are combined.
    SchemaError
        There is no such column, or its values, or those of a key, have no order or no equality
        that is known here.
    """
    what = f"latest_by={column!r}"
    keys = rows.unique or partition_keys(rows)
    why = ""
    if not isinstance(column, str):
        why = "expected the name of one column"
    elif not keys:
        why = (
            f"{rows.path} is partitioned without keys, or by a partitioner of your own, and rows "
            "have no key of which one is the last; write it with keys"
        )
    elif rows.snapshot.num_broadcast_rows:
        why = f"{rows.path} has broadcast rows, which every subpartition reads"
    elif rows.combine:
        why = (
            f"{rows.path} is combined: rows of a key add to one another, and none replaces another"
        )
    if why or not keys:
        raise OptionError(f"{what}: {why}")
    key_fields(rows.schema, ((column, ORDERS[0]),), "latest_by")
    for path, collation in collations(rows.spark_schema, (*keys, column)).items():
        msg = f"{what}: column {path!r} has the collation {collation}, and bytes are compared here"
        raise SchemaError(msg)
    ties = [key for key in rows.sort_by if key[0] != column]
    return OrderOfKeys(keys, ((column, ORDERS[0]), *ties))


def passed_over(
    readers: Iterable[tuple[SortMergeSubpartitionReader, int]],
    of: OrderOfKeys,
    *,
    max_bytes: int,
) -> dict[int, RowMask]:
    """Return the rows that are not the last of their key, by the number of their file.

    Parameters
    ----------
    readers
        Of disjoint ranges of subpartitions: each delivers the columns ``of.columns``, and comes
        with about how many rows it has.
    of
        Which row of a key is its last one.
    max_bytes
        Memory for the rows of one reader. One with more is read several times, unless most of them
        have one key.

    Raises
    ------
    CorruptShuffleError, FormatVersionError, ShuffleNotFoundError
        As for reading.
    """
    found: dict[int, list[Stretch]] = {}
    for reader, num_rows in readers:
        for order, stretch in _passed_over_in(reader, num_rows, of, max_bytes):
            found.setdefault(order, []).append(stretch)
    return {order: RowMask.of_stretches(stretches) for order, stretches in found.items()}


def _passed_over_in(
    reader: SortMergeSubpartitionReader, num_rows: int, of: OrderOfKeys, max_bytes: int
) -> Iterator[tuple[int, Stretch]]:
    """Yield stretches of regions that have rows which are passed over, with their file."""
    columns = of.columns
    names = [*map(str, range(len(columns))), "number"]
    chunks: list[tuple[int, int, int, int]] = []
    """File, region, first row and number of rows of each chunk, in the order in which it came."""

    def numbered() -> Iterator[pa.RecordBatch]:
        chunks.clear()
        before = 0
        for run, batch, rows in reader.located():
            numbers = to_arrow(before + rows)
            for source, chunk in run:
                num_wanted = chunk.end_row - chunk.first_row
                chunks.append((source.order, chunk.region, source.place(chunk), num_wanted))
                before += num_wanted
            yield pa.RecordBatch.from_arrays([*batch.columns, numbers], names=names)

    keys = names[: len(of.keys)]
    at = [columns.index(name) for name, _ in of.sort_by]
    orders = [order for _, order in of.sort_by]
    last = []
    passes = in_passes(numbered, keys, max_bytes=max_bytes, row_bytes=ROW_BYTES, num_rows=num_rows)
    for _, batches in passes:
        if batches:
            batch = joined(batches)
            batches.clear()
            by = [batch.column(i) for i in at]
            rows = last_by(batch.columns[: len(keys)], by, orders)
            last.append(to_numpy(batch.column(len(columns)))[rows])
    edges = np.cumsum([0, *(num_wanted for *_, num_wanted in chunks)])
    is_passed_over = np.ones(int(edges[-1]), np.bool_)
    for numbers in last:
        is_passed_over[numbers] = False
    for (order, region, first, num_wanted), edge in zip(chunks, edges.tolist(), strict=False):
        gone = is_passed_over[edge : edge + num_wanted]
        if gone.any():
            yield order, (region, first, np.packbits(gone, bitorder="little"))
