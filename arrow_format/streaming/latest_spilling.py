"""The latest row of each key, of any number of rows, in bounded memory: what does not fit spills.

:func:`latest_per_key` takes an iterator; :class:`LatestPerKey` takes rows batch by batch. Rows that
can be read again need no spilling: see
:func:`~arrow_format.streaming.latest_in_memory.latest_in_passes`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from arrow_format.arrays.expansion import stored_batches
from arrow_format.arrays.stored_types import data_schema
from arrow_format.errors import ClosedError, SchemaError
from arrow_format.keys.partitioner import HashPartitioner, key_names
from arrow_format.options import LATEST_ROWS_BYTES, MAX_REGION_BYTES, check_integer
from arrow_format.streaming.latest_in_memory import KEY_BYTES, LatestRows, latest_in_passes
from arrow_format.streaming.spilled_rows import SpilledRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

"""Default memory for rows."""

LEAST_BYTES = 64 << 10


def latest_per_key(
    batches: Iterable[pa.RecordBatch],
    keys: str | Sequence[str] | None,
    *,
    max_bytes: int = LATEST_ROWS_BYTES,
    directory: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the latest row of each key.

    Nulls are equal, so are NaN, and -0.0 and 0.0.

    Parameters
    ----------
    batches
        Rows of one schema, in the order in which they came.
    keys
        Key columns, of types that can be hash keys; without any, all rows have the same key.
    max_bytes
        Memory to use, in bytes, in addition to the largest batch. What does not fit is spilled.
    directory
        Where to make a scratch directory to spill to; the system's for temporary files when None.

    Yields
    ------
    pyarrow.RecordBatch
        Of the data schema of the input (:func:`~arrow_format.arrays.stored_types.data_schema`); no
        key comes twice. Rows that fitted in memory keep their order; spilled rows have none.

    Raises
    ------
    SchemaError
        Schemas differ, a key is missing, its type cannot be a key, or an item is not a batch.
    OptionError
        ``keys`` are not column names, or one is named twice.
    StorageError, OutOfDiskError
        Rows could not be spilled.
    """
    latest: LatestPerKey | None = None
    try:
        for batch in batches:
            if not isinstance(batch, pa.RecordBatch):
                msg = f"batches hold a {type(batch).__name__}: expected pyarrow.RecordBatch"
                raise SchemaError(msg)
            if latest is None:
                latest = LatestPerKey(batch.schema, keys, max_bytes=max_bytes, directory=directory)
            for piece in latest.pieces(batch):
                latest.append(piece)
        if latest is not None:
            yield from latest.rows()
    finally:
        if latest is not None:
            latest.clear()


class LatestPerKey:
    """The latest row of each key, until it is cleared.

    Rows are stored in the :func:`~arrow_format.arrays.stored_types.data_schema` of ``schema``. Of
    ``max_bytes``, at least 64 KiB, a third is for rows, one for numbering their keys, and one for
    sorting them. Unless ``spills``, :meth:`append` returns rows that do not fit.

    Raises OptionError where ``max_bytes`` is out of range, SchemaError where a key is missing, its
    type cannot be a key, or a type cannot be stored.
    """

    def __init__(
        self,
        schema: pa.Schema,
        keys: str | Sequence[str] | None,
        *,
        max_bytes: int = LATEST_ROWS_BYTES,
        spills: bool = True,
        directory: str | None = None,
    ) -> None:
        check_integer("max_bytes", max_bytes, LEAST_BYTES, 1 << 50, "bytes")
        self.schema = data_schema(schema)
        """Schema of the stored rows."""
        self._keys = key_names(keys)
        if self._keys:
            HashPartitioner(self._keys).check(self.schema)
        self._capacity_bytes = min(max_bytes // 3, MAX_REGION_BYTES)
        self._spills = spills
        self._directory = directory
        self._in_memory = LatestRows(self.schema, self._keys, self._capacity_bytes)
        self._spilled: SpilledRows | None = None
        self._is_finished = False
        self.spilled_bytes = 0
        """Bytes written to disk so far, of finished files."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no row."""
        return not self._in_memory.num_rows and self._spilled is None

    @property
    def num_bytes(self) -> int:
        """Bytes charged for the rows in memory."""
        return self._in_memory.num_bytes

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Return the batch as slices that stay small in the stored schema, converted to it."""
        return stored_batches(batch, self.schema)

    def append(self, piece: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take rows of the stored schema, see :meth:`pieces`.

        Returns the rows that fit neither in memory nor may be spilled: yield :meth:`rows`,
        :meth:`clear`, and append these. Otherwise None. Raises StorageError where rows could not be
        spilled; then all are lost.
        """
        if self._is_finished:
            msg = "rows were given out; clear() before others are appended"
            raise ClosedError(msg)
        rest: pa.RecordBatch | None = piece
        del piece
        while rest is not None:
            rest = self._in_memory.append(rest)
            if rest is not None:
                if not self._spills:
                    return rest
                try:
                    self._spill()
                except BaseException:
                    self.clear()
                    raise
        return None

    def _spill(self) -> SpilledRows:
        if self._spilled is None:
            self._spilled = SpilledRows(self.schema, self._keys, self._directory)
        self._spilled.write([self._in_memory.take()])
        return self._spilled

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the latest row of each key; from the beginning when called again.

        Rows in memory come as one batch, in the order in which they came; spilled rows come a few
        subpartitions at a time, in no particular order. Raises StorageError or CorruptShuffleError
        where spilled rows could not be finished, or not be read; then all are lost.
        """
        if self._spilled is None:
            if self._in_memory.num_rows:
                yield self._in_memory.rows()
            return
        try:
            if not self._is_finished:
                # Rows in memory are spilled too, so that one loop merges all of them by key.
                self._spill().finish()
                self._is_finished = True
                self.spilled_bytes += self._spilled.num_bytes
            spilled = self._spilled
            for first, end, num_rows in spilled.ranges(self._capacity_bytes // 4, KEY_BYTES):
                yield from latest_in_passes(
                    partial(spilled.read, first, end, self._capacity_bytes // 4),
                    self.schema,
                    self._keys,
                    capacity_bytes=self._capacity_bytes,
                    num_rows=num_rows,
                )
        except GeneratorExit:
            raise  # a consumer that stopped may begin again
        except BaseException:
            self.clear()
            raise

    def clear(self) -> None:
        """Drop all rows and remove spilled files; rows may be appended again."""
        self._in_memory.clear()
        self._is_finished = False
        if self._spilled is not None:
            spilled, self._spilled = self._spilled, None
            spilled.remove()
