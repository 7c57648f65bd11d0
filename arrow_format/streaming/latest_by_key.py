"""The latest row of each key, of any number of rows, in bounded memory.

What does not fit is spilled. :func:`latest_per_key` does it to an iterator; :class:`LatestPerKey`
to rows that come one batch after the other. What can be read again needs no spilling:
:func:`~arrow_format.streaming.latest_rows.latest_in_passes`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from arrow_format.arrays.expansion import stored_batches
from arrow_format.arrays.stored_types import data_schema
from arrow_format.errors import ClosedError, SchemaError
from arrow_format.keys.partitioner import HashPartitioner, key_names
from arrow_format.options import MAX_REGION_BYTES, check_integer
from arrow_format.streaming.latest_rows import KEY_BYTES, LatestRows, latest_in_passes
from arrow_format.streaming.spilled_rows import SpilledRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

DEFAULT_BYTES = 64 << 20
"""Memory for rows where nothing else is said."""

LEAST_BYTES = 64 << 10


def latest_per_key(
    batches: Iterable[pa.RecordBatch],
    keys: str | Sequence[str] | None,
    *,
    max_bytes: int = DEFAULT_BYTES,
    directory: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the latest row of each key.

    Nulls are equal, so are NaN, and -0.0 and 0.0.

    Parameters
    ----------
    batches
        Rows of one schema, in the order in which they came.
    keys
        Key columns, of types that can be hash keys; without any, the latest row of all is yielded.
    max_bytes
        Memory to take, in bytes, beside the largest batch. What does not fit is spilled.
    directory
        Where a scratch directory is made for that; the system's for temporary files when None.

    Yields
    ------
    pyarrow.RecordBatch
        Of the data schema of the input (:func:`~arrow_format.arrays.stored_types.data_schema`); no
        key is there twice.

    Raises
    ------
    SchemaError
        Schemas differ, a key is missing, or its type cannot be a key; or something is no batch.
    OptionError
        ``keys`` are no names, or one is named twice.
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
    """Keeps the latest row of each key until it is cleared.

    Parameters
    ----------
    schema
        Of the batches to come; what is kept is its
        :func:`~arrow_format.arrays.stored_types.data_schema`.
    keys
        Key columns; without any, all rows have the same key.
    max_bytes
        Memory to take, in bytes: a third for rows, one for numbering their keys, one for putting
        them in order.
    spills
        Whether rows that do not fit are written to disk; otherwise they are refused.
    directory
        Where a scratch directory is made for them; the system's for temporary files when None.

    Raises
    ------
    OptionError
        ``max_bytes`` is no number of bytes from 64 KiB on.
    SchemaError
        A key is missing, or its type cannot be a key; or a type cannot be stored.
    """

    def __init__(
        self,
        schema: pa.Schema,
        keys: str | Sequence[str] | None,
        *,
        max_bytes: int = DEFAULT_BYTES,
        spills: bool = True,
        directory: str | None = None,
    ) -> None:
        check_integer("max_bytes", max_bytes, LEAST_BYTES, 1 << 50, "bytes")
        self.schema = data_schema(schema)
        """Schema of the rows that are kept."""
        self._keys = key_names(keys)
        if self._keys:
            HashPartitioner(self._keys).check(self.schema)
        self._capacity_bytes = min(max_bytes // 3, MAX_REGION_BYTES)
        self._spills = spills
        self._directory = directory
        self._held = LatestRows(self.schema, self._keys, self._capacity_bytes)
        self._spilled: SpilledRows | None = None
        self._is_finished = False
        self.spilled_bytes = 0
        """Bytes that were written to disk so far, by files that were finished."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no row."""
        return not self._held.num_rows and self._spilled is None

    @property
    def num_bytes(self) -> int:
        """Bytes charged for the rows in memory."""
        return self._held.num_bytes

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Cut a batch so that no piece grows large by being made to fit the schema, and fit it.

        Raises
        ------
        SchemaError
            It does not fit.
        """
        return stored_batches(batch, self.schema)

    def append(self, piece: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take rows.

        Parameters
        ----------
        piece
            Rows of exactly the schema: one of :meth:`pieces`.

        Returns
        -------
        pyarrow.RecordBatch or None
            Rows that are left over, because memory is full and nothing may be spilled: give the
            rows out, :meth:`clear`, and append them. Otherwise None.

        Raises
        ------
        StorageError, OutOfDiskError
            Rows could not be spilled; everything was let go.
        ClosedError
            Rows were given out; clear first.
        """
        if self._is_finished:
            msg = "rows were given out; clear() before others are appended"
            raise ClosedError(msg)
        rest: pa.RecordBatch | None = piece
        del piece
        while rest is not None:
            rest = self._held.append(rest)
            if rest is not None:
                if not self._spills:
                    return rest
                self._spill()
        return None

    def _spill(self) -> None:
        try:
            if self._spilled is None:
                self._spilled = SpilledRows(self.schema, self._keys, self._directory)
            self._spilled.write([self._held.take()])
        except BaseException:
            self.clear()
            raise

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the latest row of each key; again from the beginning when called again.

        Rows in memory come as one batch, in the order in which they came; rows that were spilled
        come a few subpartitions at a time, in no particular order.

        Raises
        ------
        StorageError, OutOfDiskError, CorruptShuffleError
            What was spilled could not be finished, or not be read; everything was let go.
        """
        if self._spilled is None:
            if self._held.num_rows:
                yield self._held.rows()
            return
        try:
            if not self._is_finished:
                # The rest goes to disk too: it is merged with what is there, key by key, by the
                # same few lines as everything else.
                self._spilled.write([self._held.take()])
                self._spilled.finish()
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
            raise  # whoever stopped reading may begin again
        except BaseException:
            self.clear()
            raise

    def clear(self) -> None:
        """Let all rows go and remove what was spilled; others can be appended after it."""
        self._held.clear()
        self._is_finished = False
        if self._spilled is not None:
            spilled, self._spilled = self._spilled, None
            spilled.remove()
