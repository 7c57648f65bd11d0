"""How well batches of an epoch mix the rows of a shuffle, judged by its totals alone; pure.

An epoch shuffles a window of rows at a time, of adjacent subpartitions. Rows with equal keys lie in
one subpartition, so where each key has many rows a window has few keys, and a batch fewer than one
that is drawn from all rows: a model that learns from labels that go with the key sees a few labels
at a time.
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

    from arrow_format.integrations.epochs import Epochs
    from arrow_format.keys.partitioner import Partitioner
    from arrow_format.model import Int64Array

LEAST_SHARE = 0.5
"""Of the keys that a batch of a random order has: a batch with fewer is warned of."""

SUBPARTITIONS_IN_A_WINDOW = 16
"""What the advice aims at: whole subpartitions, so that their order of arrival does not show."""


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


def fault_of(
    subpartition_rows: Int64Array, partitioner: Partitioner | Mapping[str, Any], epochs: Epochs
) -> str | None:
    """Return what is wrong with the batches of an epoch, with figures; None where nothing is.

    Parameters
    ----------
    subpartition_rows
        Rows of each subpartition; int64, shape ``(num_subpartitions,)``.
    partitioner
        What placed them.
    epochs
        Batch size and window; without a seed nothing is shuffled, nor warned of.
    """
    num_rows, window = int(subpartition_rows.sum()), epochs.window_batches * epochs.batch_size
    if epochs.seed is None or num_rows <= window or isinstance(partitioner, BroadcastPartitioner):
        return None
    together = rows_of_a_key(subpartition_rows, partitioner)
    keys, keys_of_window = num_rows / together, max(window / together, 1.0)
    found = _distinct(keys_of_window, epochs.batch_size)
    at_random = _distinct(keys, epochs.batch_size)
    size = _size_met(subpartition_rows.astype(np.float64))
    if found < LEAST_SHARE * at_random:
        return (
            f"a batch of {epochs.batch_size:,} rows has about {found:.0f} different keys, and of a"
            f" random order about {at_random:.0f}: some {together:,.0f} rows of a key lie together,"
            f" and {window:,} rows are shuffled at a time"
        )
    if size > window:
        return (
            f"{window:,} rows are shuffled at a time, {window / size:.0%} of a subpartition of"
            f" {size:,.0f} rows, which are in the order of arrival"
        )
    return None


def advised_subpartitions(num_rows: int, epochs: Epochs) -> int:
    """Return how many subpartitions rows that are dealt in turn should have: a power of two."""
    window = epochs.window_batches * epochs.batch_size
    wanted = max(SUBPARTITIONS_IN_A_WINDOW * num_rows / window, SUBPARTITIONS_IN_A_WINDOW)
    return min(1 << int(np.ceil(np.log2(wanted))), 1 << 19)


def _distinct(num_keys: float, num_rows: int) -> float:
    """Return how many of equally frequent keys so many rows have, on average."""
    return float(-num_keys * np.expm1(num_rows * np.log1p(-1 / num_keys))) if num_keys > 1 else 1.0


def _size_met(rows: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Return the rows of the subpartition of an average row."""
    return float((rows * rows).sum() / rows.sum())
