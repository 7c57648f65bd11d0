"""One version of a shuffle, as the commit log has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arrow_format.log_entry import LogEntry
    from arrow_format.model import MapOutput
    from arrow_format.result_description import Released


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One committed version of a shuffle, pinned: later commits do not change it."""

    entries: tuple[LogEntry, ...]
    """From the entry that started this version, or a checkpoint in the place of the first of them,
    to the one that completed it."""

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
