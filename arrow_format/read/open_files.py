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
"""Files kept open although nothing is read from them right now; more are opened again later."""


class DataFile(Protocol):
    """A data file to read from."""

    @property
    def storage(self) -> Storage:
        """Where it is."""

    @property
    def path(self) -> str:
        """Its path in the storage."""

    @property
    def order(self) -> int:
        """Its place in reading order; readers of the same files give the same."""

    @property
    def described(self) -> str:
        """What it is and what it is read for, for messages."""


@dataclass(slots=True)
class _Open:
    users: set[object] = field(default_factory=set)
    reads: int = 0
    reader: ObjectReader | None = None


class OpenFiles:
    """Opens files on demand and shares them between readers; safe to use from several threads.

    Parameters
    ----------
    lock
        Guards them; one that its holder may take again, since a reader of which nothing is left is
        closed wherever the interpreter notices.
    max_files
        Files kept open while nothing is read from them.
    mapped
        Map the files instead of reading from them, where the storage can.
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
        """By storage and path; those used last stand last."""

    def __len__(self) -> int:
        """Return how many files are open."""
        return sum(found.reader is not None for found in list(self._files.values()))

    def use(self, user: object, files: Sequence[DataFile]) -> None:
        """Say which files a reader needs now, if any, in place of those that it needed before.

        Each is opened at the first read and closed after its last reader. Whoever is interrupted
        here says it again: what was half said is made good.
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
            found = self._files[key]
            found.reads += 1
            self._files.move_to_end(key)
        try:
            reader = found.reader
            if reader is None:
                # Two may open it at once: the second one's is closed again.
                opened = file.storage.open_reader(file.path, mapped=self._mapped)
                with self._lock:
                    reader = found.reader = found.reader or opened
                if reader is not opened:
                    opened.close()
            return reader.get_ranges(ranges)
        finally:
            with self._lock:
                found.reads -= 1
                self._close_idle()

    def _close_idle(self) -> None:
        """Close what nobody uses, and what was used longest ago if too many are open."""
        spare = len(self) - self._max_files
        for key, found in list(self._files.items()):
            if found.reads:
                continue
            if found.reader is not None and (spare > 0 or not found.users):
                reader, found.reader = found.reader, None
                reader.close()
                spare -= 1
            if not found.users:
                self._files.pop(key, None)


def _key(file: DataFile) -> tuple[str, str]:
    return file.storage.root, file.path
