"""Rows of a shuffle by group, for functions that take a whole group at a time; bounded memory.

All rows of a key are in one subpartition. Small adjacent subpartitions are read together and
ordered by key at once; a large one is read in several passes, each over some of the keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

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

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    import pyarrow as pa

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
    for first, end in group_adjacent(weights, group_bytes, subpartitions, origin=origin):
        passes = in_passes(
            batches_again(shuffle, [(first, end)], columns, ordered=bool(shuffle.sort_by)),
            keys,
            max_bytes=group_bytes * 4 // 3,
            max_group_bytes=2 * group_bytes,
            row_bytes=ORDER_BYTES,
            num_rows=int(rows[first - origin : end - origin].sum()),
        )
        for _, batches in passes:
            if batches:
                batch = joined_rows(batches, schema)
                yield _grouped(batch, keys, sort_by, is_ordered=is_ordered)
                del batch  # before the next pass


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
