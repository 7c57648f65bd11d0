"""Batches that can be read again: made once, kept in memory, beyond that in a temporary file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from arrow_format.storage.scratch import ScratchDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from arrow_format.storage.local import PosixStorage


class Replayed:
    """Yields the batches that ``make`` makes, each time that it is iterated over.

    Making them goes on where an earlier iteration stopped. Only one iteration is read at a time. Up
    to ``max_bytes`` of batches are in memory; the file is removed with this object. With
    ``makes_equal``, ``make`` makes the same batches each time: then a file is written in the second
    iteration that needs them and not in the first, which may be the only one.
    """

    def __init__(
        self,
        schema: pa.Schema,
        make: Callable[[], Generator[pa.RecordBatch]],
        max_bytes: int,
        *,
        makes_equal: bool = False,
    ) -> None:
        self._schema = schema
        self._make = make
        self._made = make()
        self._kept: list[pa.RecordBatch] = []
        self._spare_bytes = max_bytes
        self._spills = not makes_equal
        self._is_gap = False
        """Whether batches were made after those that are kept."""
        self._file: _Spilled | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self._kept
        if self._file is not None:
            yield from self._file
        if self._is_gap:
            self._made.close()
            self._made = self._make()
            for _ in self._kept:
                next(self._made)
            self._is_gap, self._spills = False, True
        for batch in self._made:
            self._keep(batch)
            yield batch
            del batch  # before the next is made

    def _keep(self, batch: pa.RecordBatch) -> None:
        self._spare_bytes -= batch.nbytes
        if self._spare_bytes >= 0 and self._file is None and not self._is_gap:
            self._kept.append(batch)
            return
        if not self._spills:
            self._is_gap = True
            return
        if self._file is None:
            self._file = _Spilled(self._schema)
        self._file.add(batch)


class _Spilled:
    """Batches in a file of a scratch directory, as messages of Arrow."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._directory = ScratchDirectory()
        self._storage: PosixStorage = self._directory.storage
        self._sizes: list[int] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        name = str(len(self._sizes))
        message = batch.serialize()
        writer = self._storage.open_writer(name, sync=False)
        try:
            writer.writev([message])
        except BaseException:
            writer.abort()
            raise
        writer.close()
        self._sizes.append(message.size)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for number, size in enumerate(self._sizes):
            (message,) = self._storage.get_ranges(str(number), [(0, size)])
            yield pa.ipc.read_record_batch(message, self._schema)
