"""One version of a shuffle, or what some versions added, as the commit log has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.result import Released
    from arrow_format.model import MapOutput


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Which rows: all of one version, and those that the versions after another one added."""

    base: int
    """The version of which all rows are among them; 0 when there is none."""
    start: int
    """Versions after this one, up to :attr:`end`, give the rows they added; a merge adds none."""
    end: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One committed version of a shuffle, pinned: later commits do not change it."""

    entries: tuple[LogEntry, ...]
    """From the entry that started this version, or a checkpoint in the place of the first of them,
    to the one that completed it. With a span those that added its rows, and last the one of
    :attr:`VersionSpan.end`, without map outputs where it added none."""
    span: VersionSpan | None = None
    """Which rows of the log these are; None: all of a version."""

    @property
    def is_version(self) -> bool:
        """Whether these are all rows of a version: then a checkpoint may have its entries as one.

        Otherwise they are a part of one, or pending.
        """
        return self.span is None and self.entries[0].is_whole

    @property
    def oldest_needed(self) -> int:
        """The oldest version that must not expire while these rows are read."""
        if self.span is None:
            return self.version
        return self.span.base or self.entries[0].version

    @property
    def newest(self) -> LogEntry:
        """The entry of this version."""
        return self.entries[-1]

    @property
    def version(self) -> int:
        """Number of this version, from 1."""
        return self.newest.version

    @property
    def ended(self) -> Released | None:
        """How the result was released as a whole; None while it is there."""
        released = self.newest.released
        return released if released is not None and released.ended else None

    @property
    def map_outputs(self) -> tuple[MapOutput, ...]:
        """All map outputs in reading order: by version, then map task."""
        return tuple(output for entry in self.entries for output in entry.map_outputs)

    @property
    def num_rows(self) -> int:
        """Rows of this version."""
        return sum(entry.num_rows for entry in self.entries)

    @property
    def num_bytes(self) -> int:
        """Bytes of its data files."""
        return sum(entry.num_bytes for entry in self.entries)
