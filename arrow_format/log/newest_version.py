"""The newest version as commits are tried: composed once, while others only add to it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from arrow_format.log.delta import compose
from arrow_format.log.entry import TAKE_NOTHING
from arrow_format.log.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogReader, LogView


class NewestVersion:
    """The newest version as a commit is tried: composed once, while others only add to it.

    Composing takes longer than a commit of another writer. Who does it in each try loses each.
    """

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._composed: Snapshot | None = None
        self._number = 0
        """Of the last look; 0 before one."""
        self._later: list[LogEntry] = []
        """Entries after that number, without gaps."""

    @contextlib.contextmanager
    def look(self, view: LogView) -> Iterator[Snapshot | None]:
        """Give the newest version; None where it has all that it had at the last look.

        A look that raised does not count: what it found was not checked.
        """
        follows = self._number and view.newest == self._number + 1
        self._number = 0
        if follows and view.last is not None and view.last.operation in TAKE_NOTHING:
            self._later.append(view.last)
            yield None
        else:
            self._composed, self._later = self._log.snapshot_of(view), []
            yield self._composed
        self._number = view.newest

    def version(self) -> Snapshot:
        """Return the newest version as of the last look, at which there was one."""
        assert self._composed is not None
        newest = [self._composed.newest, *(entry for entry in self._later if entry.is_version)][-1]
        deltas = [self._composed.whole, *(entry.delta for entry in self._later)]
        return Snapshot.of(newest, compose(deltas))
