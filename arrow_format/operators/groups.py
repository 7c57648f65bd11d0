"""Rows of a shuffle by group, for functions that take a whole group at a time; bounded memory.

All rows of a key are in one subpartition. Small adjacent subpartitions are read together and
ordered by key at once; a large one is read in several passes, each over some of the keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.radix_sort import sort_permutation
from arrow_format.arrays.selection import take
from arrow_format.errors import OptionError
from arrow_format.keys.co_partitioning import has_broadcast_rows, partition_keys
from arrow_format.keys.hash_passes import in_passes
from arrow_format.keys.key_numbers import key_numbers
from arrow_format.keys.spark_order import key_codes
from arrow_format.operators.inputs import batches_again
from arrow_format.operators.join import joined_rows
from arrow_format.read.chunk_plan import extent_of, group_adjacent
from arrow_format.read.shuffle import Shuffle

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from arrow_format.keys.co_partitioning import Partitioned
    from arrow_format.keys.sort_keys import SortBy
    from arrow_format.model import Int64Array
    from arrow_format.operators.inputs import Input

ORDER_BYTES = 24
"""Charged for a row in addition to its bytes: its key number, and the sort of it."""


@dataclass(frozen=True, slots=True)
class GroupBlock:
    """Some groups, whole."""

    batch: pa.RecordBatch
    """Rows, those of each group adjacent and in order."""
    starts: Int64Array
    """First row of each group, and the number of rows; shape (groups + 1,)."""
    other: tuple[pa.RecordBatch, Int64Array] | None = None
    """The same of the other side of a cogroup, whose groups these are too: of either side a group
    may have no rows."""
    of_groups: pa.RecordBatch | None = None
    """Keys of the groups of a cogroup; None where each has a row in :attr:`batch`."""

    def keys(self, names: Sequence[str]) -> pa.RecordBatch:
        """Return the keys of each group, by the columns ``names``."""
        if self.of_groups is not None:
            return self.of_groups
        return take(self.batch.select(names), to_arrow(self.starts[:-1]))


def group_keys(shuffle: Partitioned) -> tuple[str, ...]:
    """Return the partition keys of a shuffle, of which all rows with equal values are together.

    Raises OptionError where they are not, or the partitioner does not say its keys.
    """
    keys = partition_keys(shuffle)
    if not keys:
        how = "by a partitioner of your own, which does not say by which columns"
        if keys is not None:
            how = "whatever the values of rows are"
        msg = (
            f"{shuffle.path} is partitioned {how}, so it has no groups: write it with keys, or use "
            "map_subpartitions"
        )
        raise OptionError(msg)
    if has_broadcast_rows(shuffle):
        msg = (
            f"{shuffle.path} has broadcast rows, which every subpartition reads, so their groups "
            "would come once for each; use map_subpartitions"
        )
        raise OptionError(msg)
    return keys


def grouped_blocks(
    shuffle: Input,
    keys: Sequence[str],
    columns: Sequence[str],
    subpartitions: Sequence[int] | None = None,
    *,
    sort_by: SortBy = (),
    group_bytes: int | None = None,
) -> Generator[GroupBlock]:
    """Yield all groups of rows with equal keys; of the given subpartitions, or of all.

    A null equals a null, NaN every NaN, and -0.0 equals 0.0. Rows of a group are in the order of
    ``sort_by``; without it, and where that leaves it open, in the order of the shuffle. Groups are
    in no particular order.

    A group of up to ``group_bytes`` raw bytes (by default what the shuffle's options allow, 3/16 of
    their ``memory_bytes``) is always yielded. It is refused where it, and what is read with it,
    have more than twice as many.

    Parameters
    ----------
    shuffle, keys
        A shuffle and its :func:`group_keys`.
    columns
        Columns to read; keys and sort keys are among them.
    subpartitions
        Ascending; all when None.
    sort_by
        Sort keys, as :func:`~arrow_format.keys.sort_keys.check_sort_by` returned them.

    Raises
    ------
    OptionError
        While reading: a group is too large; the message has its key and what to do.
    """
    if group_bytes is None:
        group_bytes = shuffle.options.working_set_bytes
    within = extent_of(subpartitions, shuffle.num_subpartitions)
    rows, weights = shuffle.weights(columns, within=within)

    # Where the shuffle is sorted by its keys, their rows come together: nothing is to be ordered.
    sorted_first = {name for name, _ in shuffle.sort_by[: len(keys)]}
    is_ordered = sorted_first == set(keys) and not sort_by
    schema = shuffle.schema_of(columns)
    weights = weights + ORDER_BYTES * rows
    origin = within.start
    if subpartitions is not None and _are_all(shuffle, subpartitions, within):
        # Those between have no rows to read: a read of many apart would cost one for each.
        is_read = np.zeros(len(within), np.bool_)
        is_read[np.asarray(subpartitions) - origin] = True
        rows, weights = np.where(is_read, rows, 0), np.where(is_read, weights, 0)
        subpartitions = within
    for first, end in group_adjacent(weights, group_bytes, subpartitions, origin=origin):
        read = batches_again(shuffle, [(first, end)], columns, ordered=bool(shuffle.sort_by))
        passes = _passes(read, keys, group_bytes, rows[first - origin : end - origin])
        for _, batches in passes:
            if batches:
                batch = joined_rows(batches, schema)
                yield _grouped(batch, keys, sort_by, is_ordered=is_ordered)
                del batch  # before the next pass


def cogrouped_blocks(
    sides: Sequence[Input],
    keys: Sequence[Sequence[str]],
    columns: Sequence[Sequence[str]],
    subpartitions: Sequence[int] | None = None,
    *,
    group_bytes: int | None = None,
) -> Generator[GroupBlock]:
    """Yield the groups of two co-partitioned shuffles by equal keys, those of one side too.

    Rows, memory and errors are those of :func:`grouped_blocks`, of both sides together. ``keys``
    and ``columns`` are of each side, keys among the columns and of equal types.
    """
    if group_bytes is None:
        group_bytes = min(side.options.working_set_bytes for side in sides)
    within = extent_of(subpartitions, sides[0].num_subpartitions)
    sizes = [side.weights(of, within=within) for side, of in zip(sides, columns, strict=True)]
    rows = sizes[0][0] + sizes[1][0]
    weights = sizes[0][1] + sizes[1][1] + ORDER_BYTES * rows
    schemas = [side.schema_of(of) for side, of in zip(sides, columns, strict=True)]
    # Batches of both pass: with one name for each key, and the number of the side in a last column.
    called = [
        [keys[0][of.index(name)] if name in of else f"{number} {name}" for name in schema.names]
        for number, (of, schema) in enumerate(zip(keys, schemas, strict=True))
    ]
    origin = within.start
    for first, end in group_adjacent(weights, group_bytes, subpartitions, origin=origin):
        reads = [
            batches_again(side, [(first, end)], of, ordered=bool(side.sort_by))
            for side, of in zip(sides, columns, strict=True)
        ]
        both = partial(_of_both, reads, called)
        passes = _passes(both, keys[0], group_bytes, rows[first - origin : end - origin])
        for _, batches in passes:
            if batches:
                of_sides = [
                    joined_rows(
                        [
                            pa.RecordBatch.from_arrays(batch.columns[:-1], schema=schema)
                            for batch in batches
                            if batch.column(batch.num_columns - 1)[0].as_py() == number
                        ],
                        schema,
                    )
                    for number, schema in enumerate(schemas)
                ]
                batches.clear()
                yield _cogrouped(of_sides, keys)
                del of_sides  # before the next pass


def _passes(
    read: Callable[[], Iterator[pa.RecordBatch]],
    keys: Sequence[str],
    group_bytes: int,
    num_rows: Int64Array,
) -> Iterator[tuple[object, list[pa.RecordBatch]]]:
    """Return the passes over rows that are grouped together, of some keys each."""
    return in_passes(
        read,
        keys,
        max_bytes=group_bytes * 4 // 3,
        max_group_bytes=2 * group_bytes,
        row_bytes=ORDER_BYTES,
        num_rows=int(num_rows.sum()),
    )


def _of_both(
    reads: Sequence[Callable[[], Iterator[pa.RecordBatch]]], called: Sequence[Sequence[str]]
) -> Iterator[pa.RecordBatch]:
    for number, (read, names) in enumerate(zip(reads, called, strict=True)):
        for batch in read():
            if batch.num_rows:
                side = to_arrow(np.full(batch.num_rows, number, np.int8))
                yield pa.RecordBatch.from_arrays([*batch.columns, side], [*names, " side"])


def _cogrouped(sides: Sequence[pa.RecordBatch], keys: Sequence[Sequence[str]]) -> GroupBlock:
    pairs = [
        [side[name] for side, name in zip(sides, names, strict=True)]
        for names in zip(*keys, strict=True)
    ]
    of_both = [pa.concat_arrays(pair) for pair in pairs]
    _, firsts, of_row = np.unique(key_numbers(of_both)[0], return_index=True, return_inverse=True)
    num_left = sides[0].num_rows
    made = []
    for side, groups in zip(sides, (of_row[:num_left], of_row[num_left:]), strict=True):
        order = np.argsort(groups, kind="stable")
        starts = np.searchsorted(groups[order], np.arange(len(firsts) + 1))
        made.append((take(side, to_arrow(order)), starts))
    (batch, starts), other = made
    index = to_arrow(firsts)
    of_groups = pa.RecordBatch.from_arrays([take(each, index) for each in of_both], [*keys[0]])
    return GroupBlock(batch, starts, other, of_groups)


def _are_all(shuffle: Input, subpartitions: Sequence[int], within: range) -> bool:
    """Whether a filter leaves out all subpartitions of a range but some."""
    if len(subpartitions) == len(within) or not isinstance(shuffle, Shuffle):
        return False
    left = shuffle.candidates(within)
    return left is not None and {*left} <= {*subpartitions}


def _grouped(
    batch: pa.RecordBatch, keys: Sequence[str], sort_by: SortBy, *, is_ordered: bool
) -> GroupBlock:
    # Which number is smaller is of no interest, so that they may wrap around.
    numbers = key_numbers([batch.column(name) for name in keys])[0].view(np.uint64)
    if not is_ordered:
        columns = [batch.column(name) for name, _ in sort_by]
        codes = key_codes(columns, [order for _, order in sort_by])
        order = sort_permutation(codes, numbers)
        numbers = numbers[order]
        batch = take(batch, to_arrow(order))
    starts = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    return GroupBlock(batch, np.concatenate([[0], starts, [len(numbers)]]))
