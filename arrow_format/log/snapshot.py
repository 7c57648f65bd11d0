"""A version as it is read: its newest entry and its map outputs. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from arrow_format.errors import CorruptShuffleError
from arrow_format.log.delta import Delta, decoded
from arrow_format.log.outputs import NO_OUTPUTS, MapOutputs
from arrow_format.log.totals import sum_totals

if TYPE_CHECKING:
    from arrow_format.arrays.column_ids import Columns
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.result import Released
    from arrow_format.log.totals import Totals

LaterColumns: TypeAlias = "tuple[Columns, str | None]"
"""Columns of a later version, and Spark's JSON of them, if it has any."""


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Which rows to read: all of one version, and those that versions after another one added."""

    base: int
    """The version whose rows are all read; 0 for none."""
    start: int
    """Versions after this one, up to :attr:`end`, give the rows they added; a merge adds none."""
    end: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One committed version of a shuffle, pinned: later commits do not change it."""

    newest: LogEntry
    """The entry of this version; of a span, of :attr:`VersionSpan.end`, with the shape in which all
    of its rows can be read."""
    map_outputs: MapOutputs
    """In reading order; with :attr:`tombstones`, unless these are apart."""
    totals: Totals | None = field(default=None, compare=False)
    """Rows and bytes, int64, of which those of number ``r`` count for subpartition ``r`` modulo n;
    None for no rows and no bytes."""
    span: VersionSpan | None = None
    """Which rows of the log these are; None: all of a version."""
    oldest_needed: int = 0
    """The oldest version that must not expire while these rows are read."""
    later: LaterColumns | None = None
    """Columns of a later version that its rows are read with; None: those of :attr:`newest`."""
    ranges: tuple[tuple[int, int], ...] | None = None
    """Ranges ``[first, end)`` of subpartitions that it is of, ascending; None: of all.

    Then it has the map outputs with rows of these, and totals of others are 0."""
    tombstones: MapOutputs = NO_OUTPUTS
    """What of :attr:`map_outputs` no reader reads, where it is apart from them."""

    @staticmethod
    def of(entry: LogEntry, whole: Delta) -> Snapshot:
        """Return the version of an entry, with all that the numbers up to it do together."""
        len(whole.added)  # so that what is damaged is refused when it is opened
        return Snapshot(entry, whole.added, decoded(whole.totals), oldest_needed=entry.version)

    def part(self, ranges: tuple[tuple[int, int], ...]) -> Snapshot:
        """Return what is read of ranges ``[first, end)`` of subpartitions, ascending."""
        n = self.newest.num_subpartitions
        rows, sizes = sum_totals([self.totals], n)
        is_other = np.ones(n, np.bool_)
        for first, end in ranges:
            is_other[first:end] = False
        rows[is_other] = sizes[is_other] = 0
        outputs = self.map_outputs.of_ranges(ranges, n)
        return replace(self, map_outputs=outputs, totals=(rows, sizes), ranges=ranges)

    def divided(self, num_subpartitions: int) -> Snapshot:
        """Return the same rows by a divisor of their number of subpartitions.

        Subpartition i has those that i, i + n, i + 2n and so on had, in the order of their files.
        """
        if num_subpartitions == self.newest.num_subpartitions:
            return self
        return replace(self, newest=self.newest.divided(num_subpartitions))

    def readable(self) -> Snapshot:
        """Return it with its tombstones apart.

        Raises CorruptShuffleError where a file has no multiple of its number of subpartitions.
        """
        if len(self.tombstones):
            return self
        numbers, n = self.map_outputs.of_files("num_subpartitions"), self.newest.num_subpartitions
        others = numbers[numbers % n > 0]
        if len(others):
            msg = f"version {self.version} has {n} subpartitions, and a file of {others[0]}"
            raise CorruptShuffleError(msg)
        outputs, tombstones = self.map_outputs.apart()
        return replace(self, map_outputs=outputs, tombstones=tombstones)

    @property
    def all_outputs(self) -> MapOutputs:
        """Its map outputs, and its tombstones."""
        if not len(self.tombstones):  # to compose takes long
            return self.map_outputs
        return MapOutputs.concat([self.map_outputs, self.tombstones])

    @property
    def whole(self) -> Delta:
        """All that the numbers up to this version do together."""
        return Delta(self.all_outputs, clears=True, totals=self.totals)

    @property
    def version(self) -> int:
        """Number of this version, from 1."""
        return self.newest.version

    @property
    def ended(self) -> Released | None:
        """How the result was released as a whole; None of a result that can be read."""
        return self.newest.state.released if self.newest.state.is_ended else None

    @property
    def num_rows(self) -> int:
        """Rows of this version."""
        return self.map_outputs.num_rows

    @property
    def num_bytes(self) -> int:
        """Bytes of its data files."""
        return self.map_outputs.num_bytes

    @property
    def raw_bytes(self) -> int:
        """Bytes of its rows in Arrow."""
        return self.map_outputs.raw_bytes

    @property
    def num_broadcast_rows(self) -> int:
        """Rows that every subpartition reads."""
        return self.map_outputs.num_broadcast_rows
