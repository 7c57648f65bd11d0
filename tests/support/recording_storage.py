"""A real storage that remembers what is read and made durable, and can hold up or fail reads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from arrow_format.storage.open import PosixStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from arrow_format.storage.open import ObjectReader


class RecordingStorage(PosixStorage):
    """Reads as :class:`PosixStorage` does, and records the calls."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.rounds: list[tuple[str, list[tuple[int, int]]]] = []
        """Path and ranges of each read of a data file, in order."""
        self.others: list[str] = []
        """Path of each other file that was read, in order."""
        self.durable: list[str] = []
        """Path of each file that was asked to be durable when it was put, in order."""
        self.open: dict[str, int] = {}
        """How often each data file is open now."""
        self.most_open = 0
        self.before: Callable[[str], object] = lambda _: None
        """Called with the path before each read of a data file; it may wait, or raise."""
        self._lock = threading.Lock()

    def open_reader(self, path: str, *, mapped: bool = False) -> ObjectReader:
        reader = super().open_reader(path, mapped=mapped)
        if not path.endswith(".data"):
            self.others.append(path)
            return reader
        self.count(path, 1)
        return _RecordingReader(self, path, reader)

    def read(self, path: str, *, num_bytes: int | None = None) -> bytes:
        self.others.append(path)
        return super().read(path, num_bytes=num_bytes)

    def put_if_absent(self, path: str, data: bytes, *, sync: bool) -> None:
        super().put_if_absent(path, data, sync=sync)
        if sync:
            self.durable.append(path)

    def count(self, path: str, change: int) -> None:
        with self._lock:
            self.open[path] = self.open.get(path, 0) + change
            self.most_open = max(self.most_open, sum(self.open.values()))

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """All ranges that were read, in order."""
        return [one for _, ranges in self.rounds for one in ranges]


class _RecordingReader:
    def __init__(self, storage: RecordingStorage, path: str, reader: ObjectReader) -> None:
        self._storage = storage
        self._path = path
        self._reader = reader

    def get_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        self._storage.rounds.append((self._path, list(ranges)))
        self._storage.before(self._path)
        return self._reader.get_ranges(ranges)

    def close(self) -> None:
        self._storage.count(self._path, -1)
        self._reader.close()
