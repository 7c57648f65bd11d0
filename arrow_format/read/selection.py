"""What is asked for leaves of a version to be read, from the coarse to the fine. Pure.

Subpartitions by the keys that the filter asks for, of files whose rows are known to be where they
belong; files by what the log knows of them, chunks by what an index knows. A region is left out
where all of its chunks are. Only then are rows decoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from arrow_format.filters.units import possible_keys
from arrow_format.keys.partitioner import partitioner_from_description
from arrow_format.read.chunk_plan import adjacent_ranges, extent_of, subpartitions_of_chunks
from arrow_format.read.partitioned_file import chunk_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from numpy.typing import NDArray

    from arrow_format.filters.row_filter import RowFilter
    from arrow_format.keys.key_set import KeySet
    from arrow_format.keys.sort_keys import SortBy
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.model import Int64Array
    from arrow_format.read.chunk_plan import ChunkRead
    from arrow_format.read.partitioned_file import IndexPart

SHARE_OF_KEY = 1 / 64
"""Of the rows of its subpartition, those that a key is taken to have."""

LEAST_SHARE = 1 / 16
"""Of the rows of a subpartition, those that given keys are taken to have at least, unless a reader
goes on one subpartition after the other where they have more: it then reads so many times as much
at most as was planned."""


@dataclass(frozen=True, slots=True)
class OrderOfKeys:
    """Which row of each key is its last one."""

    keys: tuple[str, ...]
    """Columns of the key."""
    sort_by: SortBy
    """What decides which of several rows comes later, the most significant first; where it leaves
    that open, their order in the files does."""

    @property
    def by(self) -> str:
        """The column that decides first."""
        return self.sort_by[0][0]

    @property
    def columns(self) -> list[str]:
        """What is read to tell, each once."""
        return list(dict.fromkeys([*self.keys, *(name for name, _ in self.sort_by)]))


@dataclass(frozen=True, slots=True)
class LastOfKeys:
    """The last row of each key, of all rows that conditions on keys leave."""

    of: OrderOfKeys
    among: Selection | None
    """What those conditions leave; None for all."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What a filter, or the choice of the last row of each key, leaves of one version."""

    where: RowFilter | None
    """The filter; None where each row passes."""
    subpartitions: Int64Array | None
    """Those that rows can be in, ascending; None for all."""
    of_keys: Int64Array | None
    """Those that rows can belong to, and are in where a file is trusted; None for all."""
    keys: KeySet | None
    """Keys of which each row has one, and that say in which subpartition it is; None for any."""
    files: NDArray[np.bool_]
    """Whether each file, in reading order, can have rows."""
    trusted: NDArray[np.bool_]
    """Whether the rows of each file are known to be where they belong."""
    share: float
    """Of the bytes of all data files, those in files that can have rows."""
    last: LastOfKeys | None = None
    """Which rows pass at all, whatever the filter says of others; None: all."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the filter."""
        return () if self.where is None else self.where.columns

    def ranges(
        self, first: int, end: int, *, of_trusted: bool = False
    ) -> tuple[tuple[int, int], ...]:
        """Return the subpartitions of ``[first, end)`` to be read, as the fewest ranges.

        They are those to be read of any file, or of one that is trusted.
        """
        wanted = self.of_keys if of_trusted else self.subpartitions
        if wanted is None:
            return ((first, end),)
        return adjacent_ranges(_within(wanted, first, end))

    def can_match_in(self, within: range) -> NDArray[np.bool_]:
        """Return of each of some adjacent subpartitions whether it is to be read."""
        can_match = np.full(len(within), self.subpartitions is None)
        if self.subpartitions is not None:
            can_match[_within(self.subpartitions, within.start, within.stop) - within.start] = True
        return can_match

    def weighed(
        self, weights: Int64Array, origin: int, *, least_share: float = LEAST_SHARE
    ) -> Int64Array:
        """Return what is left of weights of subpartitions from one on, as far as that is known.

        Keys are taken to have few of the rows of their subpartition, but together so many at least.
        """
        left: NDArray[np.floating[Any]] = weights * self.share
        if self.subpartitions is not None:
            within = range(origin, origin + len(weights))
            left *= self.can_match_in(within)
            if self.keys is not None:
                first, end = self.keys.extents(
                    *(np.arange(at, at + len(weights)) for at in (origin, origin + 1))
                )
                left *= np.clip((end - first) * SHARE_OF_KEY, least_share, 1)
        rounded: Int64Array = np.ceil(left).astype(np.int64)
        return rounded

    def among(self, wanted: list[int] | None) -> list[int] | None:
        """Return those of ascending subpartitions, all when None, that are to be read."""
        if self.subpartitions is None:
            return wanted
        left = self.subpartitions
        if wanted is not None:
            among = extent_of(wanted, 0)
            left = _within(left, among.start, among.stop)
            left = np.intersect1d(left, np.array(wanted, np.int64), assume_unique=True)
        numbers: list[int] = left.tolist()
        return numbers


def _within(subpartitions: Int64Array, first: int, end: int) -> Int64Array:
    """Return those of ascending subpartitions that are in ``[first, end)``."""
    lo, hi = np.searchsorted(subpartitions, (first, end))
    return subpartitions[lo:hi]


def select(
    where: RowFilter | None,
    snapshot: Snapshot,
    *,
    last_of: OrderOfKeys | None = None,
    trusts: bool = True,
) -> Selection | None:
    """Return what a filter leaves of a version by what its log knows; None where that is all.

    Where rows belong is asked of files that are marked only; of none unless the reader ``trusts``.
    With ``last_of`` only the last row of each key passes. Which one that is, no condition decides
    that asks for more than keys: all rows of a key are compared, wherever they are.
    """
    last = None
    if last_of is not None:
        of_keys = None if where is None else where.part_on(last_of.keys)
        last = LastOfKeys(last_of, select(of_keys, snapshot, trusts=trusts))
    newest, outputs = snapshot.newest, snapshot.map_outputs
    stored = outputs.of_files("data_bytes")
    files = np.ones(len(stored), np.bool_)
    trusted = outputs.placed if trusts else np.zeros_like(files)
    if where is None:
        every = None, None, None, None, files, trusted, 1.0
        return None if last is None else Selection(*every, last)
    partitioner = partitioner_from_description(newest.partitioner)
    possible = keys = None
    # Rows that every subpartition reads count for each of them, whatever their keys.
    if partitioner is not None and not snapshot.num_broadcast_rows:
        how = partitioner, newest.data_schema, newest.num_subpartitions
        possible, keys = where.subpartitions(*how), where.keys(*how)
    statistics = outputs.file_statistics(where.columns, newest.columns)
    files = where.may_match(statistics, outputs.stored_rows)
    share = int(stored[files].sum()) / max(int(stored.sum()), 1)
    of_any = possible if trusted[files].all() else None
    return Selection(where, of_any, possible, keys, files, trusted, share, last)


def select_chunks(
    chunks: Iterable[ChunkRead],
    selection: Selection,
    index: IndexPart,
    schema: pa.Schema,
    *,
    is_trusted: bool,
) -> Iterable[ChunkRead]:
    """Return those of some chunks of a file in which a row can match; ``schema`` is read with.

    In a file that ``is_trusted``, a chunk has only keys of its own subpartitions.
    """
    planned = list(chunks)
    if len(planned) < 2:  # reading it costs no more than comparing it
        return planned
    known = index.chunk_statistics(selection.columns, schema)
    if selection.where is None or not known:  # as of texts that are only hashed
        return planned
    first_chunk = np.cumsum([0, *(len(region.chunks) for region in index.regions)])
    at = first_chunk[[one.part for one in planned]] + [one.chunk for one in planned]
    known = {name: column.at(at) for name, column in known.items()}
    can_match = selection.where.may_match(known, chunk_rows(index.regions)[at])
    if selection.keys is not None and len(selection.keys) > 1 and is_trusted:
        n = index.metadata.num_subpartitions
        extents = selection.keys.extents(*subpartitions_of_chunks(planned, index.regions, n))
        can_match &= possible_keys(selection.keys.keys, *extents, known)
    return [*compress(planned, can_match.tolist())]
