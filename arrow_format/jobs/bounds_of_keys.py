"""Columns of which the log has bounds that may be values of given keys.

Bounds of ranges are in shapes, those of files beside their map outputs. A deletion names both: who
keeps its receipt learns from it when the last of these values is gone too.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.errors import ShuffleError
from arrow_format.format.single_values import from_binaries
from arrow_format.jobs.live_outputs import lost_among, lost_bounds
from arrow_format.keys.column_statistics import MOST_CHARACTERS
from arrow_format.keys.partitioner import partitioner_from_description
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.log.entry import TAKE_NOTHING
from arrow_format.log.outputs import NO_OUTPUTS, MapOutputs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from arrow_format.jobs.live_outputs import LostBounds
    from arrow_format.keys.key_set import KeySet
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogReader, LogView


MOST_COMPARED = 8
"""How often a commit that others overtake compares bounds. After that any column may have bounds of
the keys: a deletion that never ends is worse than a receipt that waits for a compaction."""


@dataclass(slots=True)
class LookedBack:
    """Which bounds of the past may be of rows of the keys, as of a number of the log.

    It keeps what came after that number, so that each entry is read once, however often a commit is
    tried.
    """

    number: int
    now: MapOutputs
    """Of the version that was to come then."""
    columns: frozenset[str]
    late: list[LogEntry] = field(default_factory=list)
    """Entries after :attr:`number`, without gaps."""
    num_compared: int = 0
    """How often bounds of the whole version were compared since."""


class BoundsOfKeys:
    """Looks for values of keys among the bounds of a version, and of the log's past."""

    def __init__(self, log: LogReader, version: LogEntry, keys: KeySet) -> None:
        self._log = log
        self._newest = version
        self._keys = keys

    def of_ranges(self) -> tuple[str, ...]:
        """Return key columns of which a value is a bound of the version's ranges."""
        partitioner = partitioner_from_description(self._newest.partitioner)
        if not isinstance(partitioner, RangePartitioner) or not len(self._keys):
            return ()
        bounds = partitioner.fitted(self._newest.data_schema).bounds
        if bounds is None:
            return ()
        return tuple(n for n in self._keys.names if self._keys.has_value_of(n, bounds[n]))

    def looked_back(self, after: Callable[[MapOutputs], MapOutputs]) -> LookedBack:
        """Look for bounds that the log has of the past alone, and that may be of rows of the keys.

        Of files, and of ranges of other shapes. ``after`` makes the map outputs of a version those
        without these. Rows of the keys that only older files had are not read, so every bound that
        only files of the past have may be of one. It takes long, where the log is: before the
        commit, which comes to a decision again for each writer that is faster.
        """
        log, partitioner = self._log, self._newest.partitioner

        def read(view: LogView) -> LookedBack:
            snapshot = log.snapshot_of(view)
            now = after(NO_OUTPUTS if snapshot is None else snapshot.map_outputs)
            lost = lost_bounds(log, view, now, partitioner)
            return LookedBack(view.newest, now, self._columns_of(lost))

        for _ in range(2):  # or a moment's fault keeps the receipt open until a compaction
            with contextlib.suppress(ShuffleError):  # nothing that a deletion should fail for
                return log.read(read)
        return LookedBack(self._newest.version, NO_OUTPUTS, self._any_column())

    def columns_at(
        self, view: LogView, back: LookedBack, now: Callable[[], MapOutputs]
    ) -> frozenset[str]:
        """Return columns of such bounds at a number: those of a moment ago, and what came since.

        ``now`` makes the map outputs of the version that is to come.
        """
        with contextlib.suppress(ShuffleError):  # one was removed meanwhile, say
            numbers = range(back.number + 1 + len(back.late), view.newest + 1)
            if len(numbers) == 1 and view.last is not None:
                back.late.append(view.last)
            else:
                back.late += self._log.records(numbers).values()
            # What is pending is in no version, so its bounds count as lost.
            if all(one.operation in TAKE_NOTHING and not one.is_pending for one in back.late):
                return back.columns
            if back.num_compared < MOST_COMPARED:
                back.num_compared += 1
                past = [(entry, entry.map_outputs) for entry in back.late]
                lost = lost_among([*past, (None, back.now)], now(), self._newest.partitioner)
                return back.columns | self._columns_of(lost)
        return self._any_column()

    def _any_column(self) -> frozenset[str]:
        return frozenset(self._newest.data_schema.names)

    def _columns_of(self, lost: LostBounds) -> frozenset[str]:
        """Return columns of which bounds of the past may be values of the deleted rows."""
        names = {id_: name for name, id_ in self._newest.columns.by_name.items()}
        of_files = {
            names.get(id_, f"#{id_}")  # of a column that the version lacks
            for id_, values in lost.of_files.items()
            if self._may_be(names.get(id_, ""), values)
        }
        return frozenset(of_files.union(*map(self._columns_of_ranges, lost.of_shapes)))

    def _columns_of_ranges(self, description: Mapping[str, Any]) -> set[str]:
        """Return columns of which bounds of an earlier shape may be values of the deleted rows."""
        partitioner = partitioner_from_description(description)
        bounds = partitioner.bounds if isinstance(partitioner, RangePartitioner) else None
        if bounds is None:
            return set()
        names = self._keys.names
        return {
            name
            for name in bounds.schema.names
            if name not in names or self._may_have_value_of(name, bounds[name])
        }

    def _may_have_value_of(self, name: str, values: pa.Array) -> bool:
        try:
            return self._keys.has_value_of(name, values)
        except (ValueError, pa.ArrowException):  # of a type that was not widened to the keys'
            return True

    def _may_be(self, name: str, stored: pa.Array) -> bool:
        if name not in self._keys.names:
            return True
        try:
            values = from_binaries(stored, self._newest.data_schema.field(name).type)
        except (ValueError, pa.ArrowException):  # of an earlier type
            return True
        is_text = pt.is_string(values.type) or pt.is_binary(values.type)
        if is_text and pc.max(pc.binary_length(values)).as_py() >= MOST_CHARACTERS:
            return True  # it may be cut
        return self._keys.has_value_of(name, values)
