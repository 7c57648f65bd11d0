"""The rows of one version: which subpartitions are read together, and in which order they come.

Source: FLIP-148, I/O scheduler; the order is that of writing, or of the sort keys.
"""

from __future__ import annotations

import os
from copy import copy
from functools import partial
from itertools import chain, starmap
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.read.buffer_pool import ReadBufferPool
from arrow_format.read.chunk_cache import ChunkCache
from arrow_format.read.chunk_plan import adjacent_ranges, extent_of, group_adjacent
from arrow_format.read.estimates import estimate_column_share, estimate_raw_bytes
from arrow_format.read.index_cache import IndexCache
from arrow_format.read.rows import ORDERING_BYTES, HeldRuns, in_subpartition_order
from arrow_format.read.scheduler import ReadScheduler
from arrow_format.read.selection import LEAST_SHARE
from arrow_format.read.sorted_reader import sorted_rows
from arrow_format.read.subpartition_reader import SortMergeSubpartitionReader
from arrow_format.read.totals import totals_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from arrow_format.format.masks import RowMask
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.model import Int64Array
    from arrow_format.options import ReadOptions
    from arrow_format.read.chunk_plan import Piece
    from arrow_format.read.placement_check import PlacementCheck
    from arrow_format.read.rows import Rows
    from arrow_format.read.selection import LastOfKeys, Selection
    from arrow_format.storage.open import Storage


class VersionReader:
    """Reads rows of a version; all its readers share one memory budget and one cache of indexes.

    ``options`` bound both. It may be used by several threads, and in a forked process, where it
    begins with an empty cache.
    """

    def __init__(self, storage: Storage, snapshot: Snapshot, options: ReadOptions) -> None:
        self._storage = storage
        self._snapshot = snapshot
        self._options = options
        self._known_totals: tuple[Int64Array, Int64Array] | None = None
        self._placement: PlacementCheck | None = None
        self._begin()

    def checking(self, placement: PlacementCheck) -> VersionReader:
        """Return one that checks where rows are; both share what they have read until now."""
        checking = copy(self)
        checking._placement = placement
        return checking

    def _begin(self) -> None:
        self._process = os.getpid()
        self._indexes = IndexCache(self._storage, self._options.index_bytes)
        self._scheduler = ReadScheduler(
            ReadBufferPool(self._options.fetched_bytes), mapped=self._options.memory_map
        )

    def _check_process(self) -> None:
        if self._process != os.getpid():
            # After a fork: threads that do not exist here may hold the locks forever.
            self._begin()

    @property
    def indexes(self) -> IndexCache:
        """Indexes of the version's files."""
        self._check_process()
        return self._indexes

    @property
    def scheduler(self) -> ReadScheduler:
        """Fetches chunks for all readers."""
        self._check_process()
        return self._scheduler

    @property
    def totals(self) -> tuple[Int64Array, Int64Array]:
        """Rows and bytes of each subpartition; without a filter."""
        # No cached_property: up to Python 3.11 one lock serves all shuffles, and a process forked
        # while a thread holds it would deadlock.
        if self._known_totals is None:
            self._known_totals = totals_of(self._snapshot, self._storage.root)
        return self._known_totals

    def weights(
        self,
        columns: Iterable[str] | None,
        selection: Selection | None = None,
        *,
        within: range | None = None,
        least_share: float = LEAST_SHARE,
    ) -> tuple[Int64Array, Int64Array]:
        """Estimate rows of each subpartition that a reader decodes, and their bytes in Arrow.

        ``columns`` are those to deliver, all when None; ``within`` are adjacent subpartitions, all
        when None. With a selection, only rows count that are in its subpartitions, and its share of
        the files.
        """
        rows, stored = self.totals
        if within is not None:
            rows, stored = rows[within.start : within.stop], stored[within.start : within.stop]
        raw = estimate_raw_bytes(self._snapshot, rows, stored)
        tested = () if selection is None else selection.columns
        share = 1.0
        if columns is not None:
            share = estimate_column_share(self._snapshot, {*columns, *tested})
        if selection is not None:
            origin = 0 if within is None else within.start
            rows = selection.weighed(rows, origin, least_share=least_share)
            raw = selection.weighed(raw, origin, least_share=least_share)
        return rows, np.ceil(raw * share).astype(np.int64)

    def groups(
        self,
        asked: list[int] | None,
        columns: Iterable[str] | None,
        selection: Selection | None = None,
        *,
        row_bytes: int = ORDERING_BYTES,
    ) -> list[tuple[int, int]]:
        """Return ranges ``[first, end)`` of subpartitions whose rows fit into memory together.

        ``asked`` are the subpartitions to read, ascending, all when None; ``columns`` those to
        deliver, all when None. A row takes ``row_bytes`` besides its own. With a selection a range
        may have others between them, of which no row can match.
        """
        left = asked if selection is None else selection.among(asked)
        if left is not None and len(left) <= 1:  # nothing to weigh, so no totals of all are needed
            return [(subpartition, subpartition + 1) for subpartition in left]
        if columns is not None:
            columns = [*columns, *(name for name, _ in self._snapshot.newest.sort_by)]
        within = extent_of(asked, self._snapshot.newest.num_subpartitions)
        # Where they have more, their subpartitions are read one by one.
        rows, raw = self.weights(columns, selection, within=within, least_share=0)
        weights = raw + row_bytes * rows
        most, origin = self._options.group_bytes, within.start
        if selection is None or selection.subpartitions is None:
            return group_adjacent(weights, most, asked, origin=origin)
        if asked is not None:  # what lies between and has no row that can match parts no groups
            together = ~selection.can_match_in(within)
            together[np.array(asked) - origin] = True
            asked = (origin + np.flatnonzero(together)).tolist()
        groups = group_adjacent(weights, most, asked, origin=origin)
        return [group for group in groups if selection.ranges(*group)]

    def chunk_cache(self, groups: Sequence[tuple[int, int]]) -> ChunkCache | None:
        """Return what readers of groups, in their order, keep for the next; None for one group."""
        return ChunkCache(2 * self._options.group_bytes, groups[-1][1]) if len(groups) > 1 else None

    def ordered(
        self,
        first: int,
        end: int,
        columns: Sequence[str] | None,
        *,
        regions: range | None = None,
        piece: Piece | None = None,
        selection: Selection | None = None,
        kept: ChunkCache | None = None,
    ) -> Iterator[Rows]:
        """Yield the rows of a group of subpartitions, by subpartition, then by the sort keys.

        The group was sized by the average row. Where its rows are much larger, its subpartitions
        are read one by one: then there is nothing to put in order, and so nothing to hold.
        """
        hold_bytes = 2 * self._options.group_bytes
        reader = partial(self.reader, regions=regions, piece=piece, selection=selection, kept=kept)
        sort_by = self._snapshot.newest.sort_by
        if sort_by:
            yield from sorted_rows(reader, first, end, sort_by, columns, hold_bytes=hold_bytes)
            return
        if end - first > 1:
            held = HeldRuns(hold_bytes)
            for run in reader(first, end, columns).with_gone():
                if not held.add(run):
                    break
            else:
                yield from in_subpartition_order(held.runs)
                return
            del held, run
        ranges = [(first, end)] if selection is None else selection.ranges(first, end)
        for subpartition in chain.from_iterable(starmap(range, ranges)):
            of_one = reader(subpartition, subpartition + 1, columns)
            # Rows of one are in order as they lie in the files.
            yield from of_one.straight() if kept is None else of_one

    def straight(
        self, asked: list[int] | None, columns: Sequence[str] | None, selection: Selection | None
    ) -> Iterator[Rows]:
        """Yield the rows of some subpartitions, all when None, as they lie in the files.

        Of adjacent ones together: these alternate, and the rows of each keep their order.
        """
        wanted = range(self._snapshot.newest.num_subpartitions) if asked is None else asked
        ranges: Iterable[tuple[int, int]] = adjacent_ranges(wanted)
        if selection is not None and selection.last is not None:  # a bit for each row of a range
            ranges = self.groups(asked, columns, selection)
        for first, end in ranges:
            yield from self.reader(first, end, columns, selection=selection).straight()

    def reader(
        self,
        first: int,
        end: int,
        columns: Sequence[str] | None = None,
        *,
        regions: range | None = None,
        piece: Piece | None = None,
        selection: Selection | None = None,
        kept: ChunkCache | None = None,
    ) -> SortMergeSubpartitionReader:
        """Return a reader of the subpartitions ``[first, end)`` that does not order them."""
        passed = None
        if selection is not None and selection.last is not None:
            passed = partial(self._passed_over, first, end, selection.last)
        return SortMergeSubpartitionReader(
            self._storage,
            self._snapshot.newest,
            self._snapshot.map_outputs,
            first,
            end,
            columns=columns,
            regions=regions,
            piece=piece,
            selection=selection,
            indexes=self.indexes,
            scheduler=self.scheduler,
            oldest_needed=self._snapshot.oldest_needed,
            kept=kept,
            placement=self._placement,
            passed_over=passed,
        )

    def _passed_over(self, first: int, end: int, last: LastOfKeys) -> dict[int, RowMask]:
        """Return the rows of some subpartitions that are not the last of their key, by file.

        Of all regions, whichever are read.
        """
        from arrow_format.read.last_of_keys import ROW_BYTES, passed_over

        columns, (rows, _) = last.of.columns, self.totals
        groups = self.groups([*range(first, end)], columns, last.among, row_bytes=ROW_BYTES)
        readers = (
            (self.reader(*group, columns, selection=last.among), int(rows[slice(*group)].sum()))
            for group in groups
        )
        return passed_over(readers, last.of, max_bytes=2 * self._options.group_bytes)
