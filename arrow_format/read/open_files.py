"""Data files that are open for reading: opened for the first reader, closed after the last."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    import pyarrow as pa

    from arrow_format.storage.open import ObjectReader, Storage

MAX_OPEN_FILES = 8
"""Files kept open while nothing is read from them; more are opened again later."""


class DataFile(Protocol):
    """A data file to read from."""

    storage: Storage
    path: str
    order: int
    """Its position in reading order, the same for all readers of the same files."""

    @property
    def described(self) -> str:
        """What it is and what it is read for, for messages."""


@dataclass(slots=True)
class _Open:
    users: set[object] = field(default_factory=set)
    reads: int = 0
    reader: ObjectReader | None = None


class OpenFiles:
    """Opens files on demand and shares them between readers and threads.

    ``lock`` guards them. It must be reentrant: the interpreter may close a reader that is garbage
    at any point, also in a thread that holds the lock. ``max_files`` limits the files kept open
    while nothing is read from them. With ``mapped`` files are mapped, where the storage can.
    """

    def __init__(
        self,
        lock: threading.Condition,
        max_files: int = MAX_OPEN_FILES,
        *,
        mapped: bool = False,
    ) -> None:
        self._max_files = max_files
        self._mapped = mapped
        self._lock = lock
        self._files: OrderedDict[tuple[str, str], _Open] = OrderedDict()
        """By storage and path; most recently used last."""

    def __len__(self) -> int:
        """Return how many files are open."""
        return sum(file.reader is not None for file in list(self._files.values()))

    def use(self, user: object, files: Sequence[DataFile]) -> None:
        """Set the files that a reader needs now, in place of those that it needed before.

        Each is opened at the first read and closed after its last reader. After an interruption in
        here the next call repairs what was half done.
        """
        with self._lock:
            wanted = {_key(file) for file in files}
            for key in wanted:
                self._files.setdefault(key, _Open()).users.add(user)
            for key in self._files.keys() - wanted:
                self._files[key].users.discard(user)
            self._close_idle()

    def read(self, file: DataFile, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Read ranges of a file that is in use; see ``Storage.get_ranges``."""
        key = _key(file)
        with self._lock:
            open_file = self._files[key]
            open_file.reads += 1
            self._files.move_to_end(key)
        try:
            reader = open_file.reader
            if reader is None:
                # Two threads may open it at the same time: the second one closes its own again.
                opened = file.storage.open_reader(file.path, mapped=self._mapped)
                with self._lock:
                    reader = open_file.reader = open_file.reader or opened
                if reader is not opened:
                    opened.close()
            return reader.get_ranges(ranges)
        finally:
            with self._lock:
                open_file.reads -= 1
                self._close_idle()

    def _close_idle(self) -> None:
        """Close files without users, and the least recently used if too many are open."""
        surplus = len(self) - self._max_files
        for key, file in list(self._files.items()):
            if file.reads:
                continue
            if file.reader is not None and (surplus > 0 or not file.users):
                reader, file.reader = file.reader, None
                reader.close()
                surplus -= 1
            if not file.users:
                self._files.pop(key, None)


def _key(file: DataFile) -> tuple[str, str]:
    return file.storage.root, file.path
