"""Compares what a merge wrote with its inputs: all counts, and the rows of some subpartitions.

Both sides are read once, whatever the number of subpartitions: each chunk has rows of many.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.radix_sort import sort_permutation
from arrow_format.arrays.row_sizes import most_items
from arrow_format.arrays.schema_evolution import has_same_columns
from arrow_format.arrays.selection import take
from arrow_format.errors import CorruptShuffleError
from arrow_format.format.evolved_chunks import ChunkDecoders
from arrow_format.format.ipc import byte_schema
from arrow_format.format.regions import RegionKind
from arrow_format.keys.spark_order import key_codes
from arrow_format.read.chunk_plan import plan_wanted
from arrow_format.read.chunk_reader import ChunkReader
from arrow_format.read.fetched_chunks import FetchedChunk, decoded_rows, in_runs
from arrow_format.write.region_copier import check_written, chunk_contents

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from arrow_format.keys.sort_keys import SortBy
    from arrow_format.model import Int64Array
    from arrow_format.read.partitioned_file import PartitionedFileReader
    from arrow_format.read.rows import Rows

Ends: TypeAlias = "tuple[int, list[pa.RecordBatch]]"
"""The number of rows of a subpartition, and the first and last of them as bytes: NaN does not equal
itself, and not every value has a form in Python."""

NUM_COMPARED = 16
"""Subpartitions whose rows are compared."""

MAX_COMPARED_ROWS = 20_000
"""A subpartition with more rows is not compared: all of them would be in memory."""

MAX_COMPARED_BYTES = 64 << 20
"""... nor are the largest, while all have more bytes, a value inside of a list counting as one
more: it may take no byte."""

MAX_COMPARED_CHUNKS = 512
"""Chunks of inputs that are read again for it, or one of each region if there are more; fewer where
only some files have rows at the ends."""

ROWS_COMPARED = 256
"""Rows at both ends of a subpartition whose bytes are compared."""


def check_merged(merged: PartitionedFileReader, inputs: Sequence[PartitionedFileReader]) -> None:
    """Read a merged file whole and compare it with its inputs.

    Raises CorruptShuffleError when it cannot be read back as it was written, or its subpartitions
    have other rows than those of the inputs.
    """
    n = merged.metadata.num_subpartitions
    expected = np.zeros(n, np.int64)
    for index in inputs:
        expected += index.subpartition_rows
    num_rows = merged.subpartition_rows
    stored = merged.file.num_rows, merged.file.num_broadcast_rows
    if not np.array_equal(expected, num_rows) or stored != (
        sum(index.file.num_rows for index in inputs),
        sum(index.file.num_broadcast_rows for index in inputs),
    ):
        raise rows_differ(merged, "the number of rows")
    schema = merged.metadata.data_schema
    alike = [index for index in inputs if has_same_columns(index.metadata.data_schema, schema)]
    copies = [text for index in alike for text in chunk_contents(index).values()]
    check_written(merged, set(copies), schema)
    if len(alike) < len(inputs) or copies != [*chunk_contents(merged).values()]:
        _compare_rows(merged, inputs, expected)


def _compare_rows(
    merged: PartitionedFileReader, inputs: Sequence[PartitionedFileReader], rows: Int64Array
) -> None:
    candidates = np.flatnonzero((rows > 0) & (rows <= MAX_COMPARED_ROWS))
    some = chosen(candidates, NUM_COMPARED, sum(len(index.regions) for index in inputs))
    compare(merged, ends_of(inputs, merged, some, max_bytes=MAX_COMPARED_BYTES), [merged])


def chosen(candidates: Int64Array, most: int, num_regions: int) -> list[int]:
    """Choose some of ascending subpartitions, to read them from so many regions again.

    From all of their range; of many regions, from few places: adjacent ones are in the same chunks.
    """
    num_places = min(max(MAX_COMPARED_CHUNKS // max(num_regions, 1), 1), most)
    firsts = np.linspace(0, max(len(candidates) - most // num_places, 0), num_places).astype(int)
    places = np.unique(firsts[:, None] + np.arange(most // num_places))
    some: list[int] = candidates[places[places < len(candidates)]].tolist()
    return some


def compare(
    merged: PartitionedFileReader,
    expected: dict[int, Ends],
    written: Sequence[PartitionedFileReader],
) -> None:
    """Raise CorruptShuffleError where files have other rows of subpartitions than are expected."""
    found = ends_of(written, merged, expected, max_bytes=MAX_COMPARED_BYTES)
    for subpartition, ends in found.items():
        if ends != expected[subpartition]:
            raise rows_differ(merged, f"rows of subpartition {subpartition}")


def ends_of(
    files: Sequence[PartitionedFileReader],
    merged: PartitionedFileReader,
    subpartitions: Iterable[int],
    *,
    max_bytes: float = inf,
) -> dict[int, Ends]:
    """Return what the unicast rows of subpartitions begin and end with, in some files together.

    The largest of these are left out while all have more than ``max_bytes``. Each chunk is decoded
    once, and none of files of which no row is at an end. Raises CorruptShuffleError for rows of a
    region that are not in the order of the file.
    """
    n, is_sorted = merged.metadata.num_subpartitions, bool(merged.metadata.sort_by)
    held: dict[int, dict[object, list[pa.RecordBatch]]] = {i: {} for i in subpartitions}
    sizes = dict.fromkeys(held, 0)
    numbers = [*held]
    rows_in = np.array(
        [file.subpartition_rows[numbers] - file.file.num_broadcast_rows for file in files]
    )
    # The order of sorted rows is not that of the files.
    are_read = np.ones(len(files), np.bool_) if is_sorted else have_ends(rows_in)
    left_out = dict(zip(numbers, rows_in[~are_read].sum(axis=0).tolist(), strict=True))
    read = [file for file, is_read in zip(files, are_read, strict=True) if is_read]

    def place_of(one: FetchedChunk) -> object:
        """Rows that are sorted by themselves: those of a region."""
        return (one.source.order, one.chunk.region) if is_sorted else None

    for run in in_runs(_fetched(read, merged.metadata.data_schema, held, n), of=place_of):
        for rows_of_run in decoded_rows(run, 0, n):
            slices: dict[int, list[pa.RecordBatch]] = {}
            for subpartition, rows in by_subpartition(rows_of_run):
                if subpartition in held:
                    slices.setdefault(subpartition, []).append(rows)
            for subpartition, several in slices.items():
                # Copied: few of the many that the chunks have. As slices: a list of nulls may have
                # any number of items in no bytes, and a row that is taken an index for each.
                rows = pa.concat_batches(several)
                held[subpartition].setdefault(place_of(run[0]), []).append(rows)
                sizes[subpartition] += rows.nbytes + most_items(rows)
        while sum(sizes.values()) > max_bytes:
            largest = max(sizes, key=sizes.__getitem__)
            del held[largest], sizes[largest]
    return {
        subpartition: rows_at_ends(
            _in_order(merged, subpartition, [*regions.values()]), left_out[subpartition]
        )
        for subpartition, regions in held.items()
    }


def have_ends(rows: Int64Array) -> NDArray[np.bool_]:
    """Return of each file whether it has some of the first or last rows that are compared.

    ``rows`` has those of some subpartitions in each file, in reading order: shape (files,
    subpartitions).
    """
    behind = rows.cumsum(axis=0)
    before, after = behind - rows, rows.sum(axis=0) - behind
    are_at_ends = (rows > 0) & ((before < ROWS_COMPARED) | (after < ROWS_COMPARED))
    found: NDArray[np.bool_] = are_at_ends.any(axis=1)
    return found


def _fetched(
    files: Sequence[PartitionedFileReader],
    schema: pa.Schema,
    subpartitions: Collection[int],
    num_subpartitions: int,
) -> Iterator[FetchedChunk]:
    """Yield the unicast chunks of files that have rows of those subpartitions that are left."""
    decoders = ChunkDecoders(schema)
    for order, file in enumerate(files):
        is_wanted = np.zeros(num_subpartitions, np.bool_)
        is_wanted[[*subpartitions]] = True
        source = ChunkReader(file, decoders.of(file.metadata.data_schema), order=order)
        planned = (
            chunk
            for chunk in plan_wanted(file.regions, is_wanted)
            if file.regions[chunk.part].kind is RegionKind.UNICAST
        )
        for chunk, stored in source.fetched(planned):
            yield FetchedChunk(source, chunk, source.to_decode(chunk, stored))


def by_subpartition(run: Rows) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of a run that follow each other and are of one subpartition, with this."""
    ids = run.subpartitions
    cuts = np.flatnonzero(ids[1:] != ids[:-1]) + 1
    edges = [0, *cuts.tolist(), len(ids)]
    for start, stop in pairwise(edges):
        if stop > start:
            yield int(ids[start]), run.batch.slice(start, stop - start)


def _in_order(
    merged: PartitionedFileReader, subpartition: int, regions: Sequence[list[pa.RecordBatch]]
) -> pa.Table:
    """Return the rows of a subpartition in the order that a merged file has them in."""
    schema, sort_by = merged.metadata.data_schema, merged.metadata.sort_by
    if not sort_by:
        return pa.Table.from_batches([rows for region in regions for rows in region], schema)
    tables = [pa.Table.from_batches(region, schema).combine_chunks() for region in regions]
    if any(_sorted(table, sort_by) is not table for table in tables):
        raise rows_differ(merged, f"the order of rows of subpartition {subpartition}")
    return _sorted(pa.concat_tables([schema.empty_table(), *tables]).combine_chunks(), sort_by)


def rows_at_ends(rows: pa.Table, num_left_out: int = 0) -> Ends:
    """Return the number of rows, and the bytes of the first and last, to compare them.

    So many are not among ``rows``: some between the first and last.
    """
    ends = [rows.slice(0, ROWS_COMPARED), rows.slice(max(len(rows) - ROWS_COMPARED, 0))]
    return len(rows) + num_left_out, [_as_bytes(end) for end in ends]


def _as_bytes(rows: pa.Table) -> pa.RecordBatch:
    """Return the rows as columns of bytes, which are equal exactly where the bytes are."""
    columns = [column.combine_chunks() for column in rows.columns]
    message = pa.RecordBatch.from_arrays(columns, schema=rows.schema).serialize()
    return pa.ipc.read_record_batch(message, byte_schema(rows.schema))


def _sorted(rows: pa.Table, sort_by: SortBy) -> pa.Table:
    """Return the rows stably sorted; the table itself when they are in order already."""
    if len(rows) < 2:
        return rows
    codes = key_codes([rows[name].chunk(0) for name, _ in sort_by], [order for _, order in sort_by])
    permutation = sort_permutation(codes)
    if bool((permutation[1:] > permutation[:-1]).all()):
        return rows
    return take(rows, to_arrow(permutation))


def rows_differ(merged: PartitionedFileReader, what: str) -> CorruptShuffleError:
    """Return the error of a merged file that has other rows than its inputs."""
    return CorruptShuffleError(
        f"{merged.storage.root}/{merged.file.data_path}: {what} differ from the files it was "
        "merged from, which are unharmed. Please report this"
    )
