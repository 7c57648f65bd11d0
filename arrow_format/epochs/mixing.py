"""How well batches of an epoch mix the rows of a shuffle, judged by its totals alone; pure.

Rows with equal keys lie in one subpartition, and in few of its chunks. A reader draws from some
chunks at a time, from those of each subpartition in proportion to its rows. Where a key has so many
rows that they fill chunks, the open chunks have a key too often or not at all, and so has a batch:
a model that learns from labels that go with the key sees some of them too often for a while.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from arrow_format.keys.partitioner import (
    BroadcastPartitioner,
    ColumnPartitioner,
    RoundRobinPartitioner,
)
from arrow_format.keys.range_partitioner import RangePartitioner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrow_format.epochs.options import Epochs
    from arrow_format.keys.partitioner import Partitioner
    from arrow_format.model import Int64Array

MOST_DISTANCE = 1.3
"""Times as far from the shares of all rows as a random batch is: a batch further away is warned
of."""

CHUNKS_IN_A_SUBPARTITION = 64
"""Of a copy that mixes, about."""


def rows_of_a_key(
    subpartition_rows: Int64Array, partitioner: Partitioner | Mapping[str, Any]
) -> float:
    """Estimate how many rows lie together: those with the key of an average row.

    A hash deals keys to subpartitions at random. Were they single rows, the variance of the rows of
    a subpartition would be their mean; with ``m`` rows of each key it is ``m`` times the mean. A
    range, or a column that names the subpartition, keeps all of a subpartition together.
    """
    rows = subpartition_rows.astype(np.float64)
    if isinstance(partitioner, RangePartitioner | ColumnPartitioner):
        return _size_met(rows)
    if isinstance(partitioner, RoundRobinPartitioner) or len(rows) == 1:
        return 1.0
    return max(float(rows.var(ddof=1) / rows.mean()), 1.0)


def distance(
    subpartition_rows: Int64Array,
    partitioner: Partitioner | Mapping[str, Any],
    chunk_rows: float,
    row_bytes: float,
    epochs: Epochs,
) -> float:
    """Estimate how far the shares of keys in a batch are from those in all rows.

    As a multiple of how far those of a random batch are: 1 for an order that mixes all rows.

    A batch of ``b`` rows that is drawn at random has a share ``p`` of a key with a variance of
    ``p (1 - p) / b``. Of a window of ``w`` rows, in lumps of ``m`` that lie together, a key has
    ``w p / m`` lumps, and as a whole number of them one more or one less: that is the rest.

    Parameters
    ----------
    subpartition_rows
        Rows of each subpartition; int64, shape ``(num_subpartitions,)``.
    partitioner
        What placed them.
    chunk_rows
        Rows of an average chunk.
    row_bytes
        Bytes in Arrow of an average row, of the columns that are read.
    epochs
        Batch size and memory; without a seed nothing is mixed.
    """
    num_rows = float(subpartition_rows.sum())
    window = epochs.open_bytes / max(row_bytes, 1e-9)
    if epochs.seed is None or num_rows <= window or isinstance(partitioner, BroadcastPartitioner):
        return 1.0
    key_rows = rows_of_a_key(subpartition_rows, partitioner)
    lump = min(key_rows, chunk_rows)
    share = min(key_rows / num_rows, 1.0)
    lumps = window * share / lump
    part = lumps % 1
    # Where in the order of its chunks a key begins is random, too.
    varies = min(max(part * (1 - part), 1 / 6), lumps)
    added = varies * (lump / window) ** 2
    at_random = share * (1 - share) / epochs.batch_size
    return float(np.sqrt(1 + added / at_random)) if at_random > 0 else 1.0


def advised_subpartitions(num_rows: int, chunk_rows: float) -> int:
    """Return how many subpartitions rows that are dealt in turn should have: a power of two."""
    wanted = max(num_rows / max(chunk_rows, 1) / CHUNKS_IN_A_SUBPARTITION, 16)
    return min(1 << int(np.ceil(np.log2(wanted))), 1 << 19)


def _size_met(rows: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Return the rows of the subpartition of an average row."""
    return float((rows * rows).sum() / rows.sum())
