"""Rows that are too many to hold, in passes over all of them: each takes keys of some hashes.

A hash join or aggregation that spilled would write what does not fit and read it again. What is
read here is kept anyway, so the passes read it again and nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.arrays.buffers import to_arrow, validity
from arrow_format.arrays.conversion import float_bits
from arrow_format.arrays.gather import filtered
from arrow_format.arrays.row_sizes import most_items
from arrow_format.errors import SchemaError
from arrow_format.keys.spark_hash import check_hashable, hash_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

SEED = 0x5EED
"""Another than Spark's: rows of one subpartition have hashes of that seed in common."""

MOST_PARTS = 64
"""A pass is split into no more at a time: how much it would hold is an estimate."""

MOST_PASSES = 1 << 16

_KNUTH = np.uint32(2654435761)
"""Spreads numbers that follow each other over all of uint32 (Knuth's multiplicative hash)."""


@dataclass(frozen=True, slots=True)
class HashPass:
    """Rows whose keys have hashes of one residue; of modulus 1 these are all rows.

    Rows of equal keys are in the same pass.
    """

    keys: tuple[str, ...]
    """Key columns."""
    modulus: int = 1
    residue: int = 0
    nulls_are_equal: bool = True
    """Whether rows with a null in their keys have equal keys; otherwise they are spread, by their
    place in their batch: all passes have to be over the same batches."""

    def of(self, keys: Sequence[str]) -> HashPass:
        """Return the same pass over rows that name their keys otherwise."""
        return replace(self, keys=tuple(keys))

    def rows_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of ``batch`` that the pass takes, in their order."""
        if self.modulus == 1:
            return batch
        hashes = self._hashes(batch)
        return filtered(batch, to_arrow(hashes % np.uint32(self.modulus) == self.residue))

    def split(self, parts: int) -> list[HashPass]:
        """Return passes that take the rows of this one together."""
        return [
            replace(self, modulus=self.modulus * parts, residue=self.residue + self.modulus * i)
            for i in range(parts)
        ]

    def split_where_it_helps(self, held: Sequence[pa.RecordBatch], times: float) -> list[HashPass]:
        """Return passes to take instead of this one; none where they would hold no less.

        Parameters
        ----------
        held
            Rows that the pass took so far, one or more.
        times
            How many times as much as may be held all of its rows are expected to be.
        """
        parts = min(max(ceil(1.25 * times), 2), MOST_PARTS)
        if self.modulus * parts > MOST_PASSES or not _hashed(held[0].schema, self.keys):
            return []
        hashes = np.concatenate([self._hashes(batch) for batch in held])
        counts = np.unique(hashes, return_counts=True)[1]
        # A key that has half of the rows keeps them together, and each pass costs reading all rows.
        return [] if 2 * int(counts.max()) > len(hashes) else self.split(parts)

    def _hashes(self, batch: pa.RecordBatch) -> NDArray[np.uint32]:
        columns = [batch.column(name) for name in _hashed(batch.schema, self.keys)]
        hashes = hash_columns([float_bits(column) for column in columns], SEED).view(np.uint32)
        masks = [] if self.nulls_are_equal else [validity(column) for column in columns]
        valid = [mask for mask in masks if mask is not None]
        if valid:
            missing = np.flatnonzero(~np.logical_and.reduce(valid))
            hashes[missing] = missing.astype(np.uint32) * _KNUTH
        return hashes


def in_passes(
    read: Callable[[], Iterable[pa.RecordBatch]],
    keys: Sequence[str],
    *,
    max_bytes: int,
    row_bytes: int = 0,
    num_rows: int,
    nulls_are_equal: bool = True,
) -> Iterator[tuple[HashPass, list[pa.RecordBatch]]]:
    """Yield all rows, a pass at a time, of which none but the last holds more than it may.

    Parameters
    ----------
    read
        Reads all rows; called for every pass, and for one that turns out too large.
    keys
        Key columns.
    max_bytes
        What a pass may hold; an item of a list counts one byte more than it has. Rows of which
        half have one key are held together anyway, and looked at again when they are twice as many.
    row_bytes
        What each row counts beside its own bytes.
    num_rows
        How many rows there are, about.
    nulls_are_equal
        See :class:`HashPass`.

    Yields
    ------
    tuple
        A pass, and its rows. The list is the consumer's to empty before it asks for the next.
    """
    waiting = [HashPass(tuple(keys), nulls_are_equal=nulls_are_equal)]
    while waiting:
        one = waiting.pop()
        held: list[pa.RecordBatch] = []
        num_bytes = seen = 0
        limit = max_bytes
        for batch in read():
            seen += batch.num_rows
            taken = one.rows_of(batch)
            del batch
            if not taken.num_rows:
                continue
            held.append(taken)
            num_bytes += taken.nbytes + most_items(taken) + row_bytes * taken.num_rows
            if num_bytes > limit:
                expected = num_bytes * max(num_rows / seen, 1)
                passes = one.split_where_it_helps(held, expected / max_bytes)
                if passes:
                    waiting += passes
                    break
                limit = 2 * num_bytes  # what comes later may be of other keys
            del taken
        else:
            yield one, held


def _hashed(schema: pa.Schema, keys: Sequence[str]) -> list[str]:
    """Key columns that are hashed; where there are none, rows cannot be told apart."""
    return [name for name in keys if _is_hashable(schema.field(name))]


def _is_hashable(field: pa.Field) -> bool:
    try:
        check_hashable(field)
    except SchemaError:
        return False
    return True
