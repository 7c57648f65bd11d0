"""Several passes over rows that exceed the memory budget: each takes the keys of some hashes.

A hash join or aggregation that spilled would write what does not fit and read it back. Here the
rows are stored already, so each pass reads them again and nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, expm1
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.arrays.buffers import to_arrow, validity
from arrow_format.arrays.conversion import float_bits, key_text
from arrow_format.arrays.gather import filtered
from arrow_format.arrays.row_sizes import most_items
from arrow_format.errors import OptionError, SchemaError
from arrow_format.keys.spark_hash import check_hashable, hash_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

SEED = 0x5EED
"""Differs from Spark's: by that one, all rows of a subpartition have related hashes."""

MAX_PARTS = 64
"""A pass is split into no more parts in one step: what it would take is an estimate."""

MAX_PASSES = 1 << 16

_KNUTH = np.uint32(2654435761)
"""Spreads consecutive numbers over all of uint32 (Knuth's multiplicative hash)."""


@dataclass(frozen=True, slots=True)
class HashPass:
    """Rows whose keys have hashes of one residue, hence all rows of these keys; by default all."""

    keys: tuple[str, ...]
    modulus: int = 1
    residue: int = 0
    nulls_are_equal: bool = True
    """Whether rows with a null in their keys have equal keys. Otherwise they are spread by their
    position in their batch: then all passes must be over the same batches."""

    def of(self, keys: Sequence[str]) -> HashPass:
        """Return the same pass over rows whose keys have other names."""
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

    def split_for(self, taken: Sequence[pa.RecordBatch], times: float) -> list[HashPass]:
        """Return passes to replace this one; an empty list where rows cannot be split further.

        ``taken`` are rows that the pass took so far, at least one. ``times`` is the expected ratio
        of all its rows to the memory budget.
        """
        parts = min(max(ceil(1.25 * times), 2), MAX_PARTS)
        if self.modulus * parts > MAX_PASSES or not _hashed(taken[0].schema, self.keys):
            return []
        return self.split(parts)

    def split_where_it_helps(self, taken: Sequence[pa.RecordBatch], times: float) -> list[HashPass]:
        """Return what :meth:`split_for` does, unless most rows have one key."""
        smaller = self.split_for(taken, times)
        if not smaller:
            return []
        hashes = np.concatenate([self._hashes(batch) for batch in taken])
        counts = np.unique(hashes, return_counts=True)[1]
        # A key that has half of the rows keeps them together, and each pass reads all rows.
        return [] if 2 * int(counts.max()) > len(hashes) else smaller

    def commonest(self, taken: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``taken``, at least one, with the key that most of them have."""
        if not _hashed(taken[0].schema, self.keys):
            yield from taken
            return
        hashes = [self._hashes(batch) for batch in taken]
        values, counts = np.unique(np.concatenate(hashes), return_counts=True)
        most = values[counts.argmax()]
        for batch, of_batch in zip(taken, hashes, strict=True):
            if (of_batch == most).any():
                yield filtered(batch, to_arrow(of_batch == most))

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
    max_group_bytes: int = 1 << 62,
    row_bytes: int = 0,
    num_rows: int,
    nulls_are_equal: bool = True,
) -> Iterator[tuple[HashPass, list[pa.RecordBatch]]]:
    """Yield passes over all rows, each with its rows, which fit in ``max_bytes``.

    Only a pass of which half the rows have one key takes more; it is checked again when it has
    twice as many, and refused with OptionError from ``max_group_bytes`` on. The caller empties the
    list before it asks for the next.

    ``read`` yields about ``num_rows`` rows; it is called for every pass, and for each that turns
    out too large. A row counts ``row_bytes`` more than it has, an item of a list one more.
    """
    waiting = [HashPass(tuple(keys), nulls_are_equal=nulls_are_equal)]
    while waiting:
        hash_pass = waiting.pop()
        batches: list[pa.RecordBatch] = []
        num_bytes = rows_read = 0
        limit = max_bytes
        for batch in read():
            rows_read += batch.num_rows
            taken = hash_pass.rows_of(batch)
            del batch
            if not taken.num_rows:
                continue
            batches.append(taken)
            num_bytes += charged_bytes(taken, row_bytes)
            if num_bytes > limit:
                times = num_bytes * max(num_rows / rows_read, 1) / max_bytes
                smaller = hash_pass.split_where_it_helps(batches, times)
                if not smaller and num_bytes > max_group_bytes:
                    # Most rows may be the smaller ones.
                    own = sum(
                        charged_bytes(rows, row_bytes) for rows in hash_pass.commonest(batches)
                    )
                    if 2 * own <= num_bytes:
                        smaller = hash_pass.split_for(batches, times)
                    if not smaller:
                        raise _too_large(hash_pass, batches, num_bytes)
                if smaller:
                    waiting += smaller
                    break
                limit = min(2 * num_bytes, max_group_bytes)  # those that follow may differ
            del taken
        else:
            yield hash_pass, batches


def expected_growth(distinct_part: float, times_rows: float) -> float:
    """Estimate how many times as many groups there are in ``times_rows`` as many rows.

    ``distinct_part`` is the number of groups in some rows by that of these rows. Groups are as many
    as if each row had one of ``d`` keys at random: then ``m`` rows have ``d * (1 - exp(-m / d))``.
    Keys that come once grow with the rows, keys that come often hardly.
    """
    low, high = 0.0, 1 / distinct_part  # of m / d
    for _ in range(50):
        middle = (low + high) / 2
        if -expm1(-middle) > distinct_part * middle:
            low = middle
        else:
            high = middle
    return expm1(-high * times_rows) / expm1(-high)


def charged_bytes(batch: pa.RecordBatch, row_bytes: int) -> int:
    """Return the bytes of rows; an item of a list counts one more, a row ``row_bytes``."""
    return int(batch.nbytes + most_items(batch) + row_bytes * batch.num_rows)


def _too_large(hash_pass: HashPass, taken: Sequence[pa.RecordBatch], num_bytes: int) -> OptionError:
    own, num_own = None, 0
    for batch in hash_pass.commonest(taken):
        own, num_own = batch, num_own + batch.num_rows
    assert own is not None
    key = key_text(own, hash_pass.keys, 0)
    num_rows = sum(batch.num_rows for batch in taken)
    return OptionError(
        f"the group {key} is too large: rows of it, and fewer of others, have more than "
        f"{num_bytes >> 20} MiB in Arrow ({num_own} of {num_rows} rows read so far are its), "
        "and a group is in memory as a whole, within 3/8 of memory_bytes. Select fewer columns, "
        "give open_shuffle(path, options=ReadOptions(memory_bytes=...)) more, or use "
        "map_subpartitions, whose readers stream"
    )


def _hashed(schema: pa.Schema, keys: Sequence[str]) -> list[str]:
    """Key columns that can be hashed; without any, the rows cannot be split."""
    return [name for name in keys if _is_hashable(schema.field(name))]


def _is_hashable(field: pa.Field) -> bool:
    try:
        check_hashable(field)
    except SchemaError:
        return False
    return True
