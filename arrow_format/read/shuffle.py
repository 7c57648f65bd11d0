"""A committed shuffle, read without Spark: the entry of the read path."""

from __future__ import annotations

import os
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from arrow_format.arrays.batch_stream import BatchReader
from arrow_format.arrays.batches import (
    ORDERING_BYTES,
    HeldRuns,
    as_batches,
    in_subpartition_order,
)
from arrow_format.arrays.buffers import to_arrow, to_numpy
from arrow_format.errors import (
    CorruptShuffleError,
    OptionError,
    ShuffleNotFoundError,
)
from arrow_format.keys.partitioner import Partitioner, partitioner_from_description
from arrow_format.log.changes import changes_of
from arrow_format.log.commit_log import CommitLog, Snapshot
from arrow_format.log.pending import no_version_error
from arrow_format.log.reader import expired_error, has_expired, translate_expired
from arrow_format.log.result import released_error
from arrow_format.options import check_read_options
from arrow_format.read.buffer_pool import ReadBufferPool
from arrow_format.read.estimates import (
    estimate_raw_bytes,
    estimate_read_bytes,
    estimate_region_bytes,
)
from arrow_format.read.explain import ReadPlan, plan_group
from arrow_format.read.index_cache import IndexCache
from arrow_format.read.plan import check_subpartitions, group_adjacent
from arrow_format.read.scheduler import ReadScheduler
from arrow_format.read.sorted_reader import sorted_rows
from arrow_format.read.subpartition_reader import (
    SortMergeSubpartitionReader,
    with_subpartition_schema,
)
from arrow_format.read.verify import VerifyReport, verify_snapshot
from arrow_format.storage.open import Place, Storage, open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from arrow_format.arrays.batches import Rows
    from arrow_format.keys.sort_keys import SortBy
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.result import ResultDescription
    from arrow_format.log.snapshot import VersionSpan
    from arrow_format.model import Int64Array, MapOutput
    from arrow_format.options import ReadOptions

BATCH_ROWS = 64 << 10

PINNED_KEPT = 2
"""Pinned shuffles that a process keeps with their indexes: what a task needs, the next one does."""


class Shuffle:
    """One committed version of a shuffle.

    It is a pinned snapshot: later commits do not change it. DuckDB, Polars, pandas and everything
    else that knows Arrow's C stream interface takes the object itself.

    Parameters
    ----------
    storage
        Where the files are.
    snapshot
        The version.
    options
        How to read; defaults when None.
    """

    def __init__(
        self, storage: Storage, snapshot: Snapshot, options: ReadOptions | None = None
    ) -> None:
        self._storage = storage
        self._snapshot = snapshot
        self._entry: LogEntry = snapshot.newest
        self._options = check_read_options(options)
        self._known_totals: tuple[Int64Array, Int64Array] | None = None
        self._begin_reading()

    def _begin_reading(self) -> None:
        self._process = os.getpid()
        self._indexes = IndexCache(self._storage, self._options.index_bytes)
        self._scheduler = ReadScheduler(
            ReadBufferPool(self._options.fetched_bytes), mapped=self._options.memory_map
        )

    def __reduce__(self) -> tuple[Callable[..., Shuffle], tuple[Any, ...]]:
        # By name: what stands in the log is read again wherever this arrives.
        pinned = self._storage, self.version, self._entry.commit_id, self._options, self.span
        return open_pinned, pinned

    def __repr__(self) -> str:
        return (
            f"<Shuffle {self.path} version {self.version}: {self.num_rows:,} rows in "
            f"{self.num_subpartitions:,} subpartitions>"
        )

    @property
    def path(self) -> str:
        """Absolute path or URI."""
        return self._storage.root

    @property
    def storage(self) -> Storage:
        """Where its files are."""
        return self._storage

    @property
    def schema(self) -> pa.Schema:
        """Columns as they are stored."""
        return self._entry.data_schema

    @property
    def spark_schema(self) -> str | None:
        """Spark's JSON of the schema; None when the shuffle was written without Spark."""
        return self._entry.spark_schema

    @property
    def version(self) -> int:
        """Number of this version, from 1."""
        return self._snapshot.version

    @property
    def entries(self) -> tuple[LogEntry, ...]:
        """Log entries that make up this version, oldest first."""
        return self._snapshot.entries

    @property
    def span(self) -> VersionSpan | None:
        """Which rows of the log these are; None: all of the version."""
        return self._snapshot.span

    @property
    def commit_id(self) -> str:
        """Id of the commit that made this version: no other has the same."""
        return self._entry.commit_id

    @property
    def options(self) -> ReadOptions:
        """How it is read."""
        return self._options

    @property
    def num_subpartitions(self) -> int:
        """How many subpartitions there are, empty ones included."""
        return self._entry.num_subpartitions

    @property
    def num_rows(self) -> int:
        """Rows stored; a broadcast row counts once."""
        return self._snapshot.num_rows

    @property
    def num_bytes(self) -> int:
        """Bytes of the data files on disk."""
        return self._snapshot.num_bytes

    @property
    def partitioner(self) -> Partitioner | Mapping[str, Any]:
        """The partitioner, or its description when it is a user's own."""
        description = self._entry.partitioner
        return partitioner_from_description(description) or description

    @property
    def sort_by(self) -> SortBy:
        """Pairs of column and order by which the rows of each subpartition come; empty if none."""
        return self._entry.sort_by

    @property
    def result(self) -> ResultDescription:
        """Result type, bounds and owner."""
        return self._entry.result

    @property
    def map_outputs(self) -> tuple[MapOutput, ...]:
        """What the map tasks wrote, in reading order."""
        return self._snapshot.map_outputs

    @property
    def _totals(self) -> tuple[Int64Array, Int64Array]:
        # No cached_property: up to Python 3.11 one lock serves all shuffles, and a process that is
        # forked while a thread holds it waits for it for ever.
        if self._known_totals is None:
            self._known_totals = CommitLog(self._storage).totals(self._snapshot)
        return self._known_totals

    @property
    def subpartition_rows(self) -> pa.Int64Array:
        """Rows of each subpartition."""
        return to_arrow(self._totals[0])

    @property
    def subpartition_bytes(self) -> pa.Int64Array:
        """Bytes of each subpartition: its share of the data files."""
        return to_arrow(self._totals[1])

    @property
    def read_bytes(self) -> pa.Int64Array:
        """Stored bytes that a reader of each subpartition reads, about."""
        return to_arrow(estimate_read_bytes(self._snapshot, self._totals[1]))

    @property
    def raw_bytes(self) -> pa.Int64Array:
        """Bytes that the rows a reader of each subpartition gets take in Arrow, about."""
        return to_arrow(estimate_raw_bytes(self._snapshot, *self._totals))

    @property
    def region_bytes(self) -> Int64Array:
        """Stored bytes of each region, numbered through the version in reading order, about."""
        return estimate_region_bytes(self._snapshot, self.path)

    def subpartition(
        self,
        subpartition: int,
        columns: Sequence[str] | None = None,
        *,
        with_subpartition: bool = False,
    ) -> BatchReader:
        """Rows of one subpartition; see :meth:`read`."""
        return self.read([subpartition], columns, with_subpartition=with_subpartition)

    def read(
        self,
        subpartitions: int | Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        *,
        with_subpartition: bool = False,
    ) -> BatchReader:
        """Rows by ascending subpartition; within one by :attr:`sort_by`, or as they were written.

        As written means by version, map task, region and arrival, and so do rows whose sort keys
        agree.

        Parameters
        ----------
        subpartitions
            One, a range or several; all when None. Order and repetition make no difference.
        columns
            Columns to deliver, in that order; all when None.
        with_subpartition
            Append the int32 column ``_subpartition``.

        Returns
        -------
        BatchReader
            Reads as it is consumed, once, in the bounded memory of :class:`ReadOptions`. To stop
            early, close it or let go of it.

        Raises
        ------
        OptionError
            A subpartition is out of range.
        SchemaError
            A column is not there.
        CorruptShuffleError
            While reading: a file is damaged or missing.
        ShuffleNotFoundError
            While reading: the version has expired, and was removed by garbage collection.
        ClosedError
            While reading: the reader was read to its end before.
        """
        wanted = check_subpartitions(subpartitions, self.num_subpartitions)
        reader = self.reader(0, 0, columns)
        schema = with_subpartition_schema(reader.schema) if with_subpartition else reader.schema

        def batches() -> Iterator[pa.RecordBatch]:
            for group in self._groups(wanted):
                yield from as_batches(
                    self._ordered(*group, columns),
                    schema,
                    with_subpartition=with_subpartition,
                    min_rows=BATCH_ROWS,
                    max_bytes=self._options.batch_bytes,
                )

        return BatchReader(schema, batches())

    def rows(
        self,
        subpartitions: Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        *,
        regions: range | None = None,
    ) -> Iterator[Rows]:
        """Rows in the order of :meth:`read`, with the subpartition of each; in runs of any size.

        With ``regions`` those of these regions only, numbered through the version in reading order.
        """
        for group in self._groups(check_subpartitions(subpartitions, self.num_subpartitions)):
            yield from self._ordered(*group, columns, regions)

    def plan(
        self, subpartitions: int | Iterable[int] | None = None, columns: Sequence[str] | None = None
    ) -> ReadPlan:
        """Return what :meth:`read` will read of the data files; opens indexes, reads no rows.

        Parameters
        ----------
        subpartitions, columns
            As for :meth:`read`. Columns make no difference: every chunk is read whole and verified.

        Raises
        ------
        OptionError, SchemaError
            As for :meth:`read`.
        CorruptShuffleError
            An index is damaged or missing.
        """
        wanted = check_subpartitions(subpartitions, self.num_subpartitions)
        return ReadPlan(
            tuple(
                plan_group(first, end, self.reader(first, end, columns))
                for first, end in self._groups(wanted)
            )
        )

    def _groups(self, wanted: list[int] | None) -> list[tuple[int, int]]:
        """Ranges of subpartitions that are read together."""
        weights = to_numpy(self.raw_bytes) + ORDERING_BYTES * self._totals[0]
        return group_adjacent(weights, self._options.group_bytes, wanted)

    def _ordered(
        self,
        first: int,
        end: int,
        columns: Sequence[str] | None,
        regions: range | None = None,
    ) -> Iterator[Rows]:
        """Rows of a group of subpartitions, by subpartition, and there by the sort keys if any.

        A group is sized by the average row. Where its rows turn out much larger, its subpartitions
        are read one by one, which needs no room to put them in order.
        """
        most = 2 * self._options.group_bytes
        reader = partial(self.reader, regions=regions)
        if self.sort_by:
            yield from sorted_rows(reader, first, end, self.sort_by, columns, hold_bytes=most)
            return
        if end - first > 1:
            held = HeldRuns(most)
            for run in reader(first, end, columns):
                if not held.add(run):
                    break
            else:
                yield from in_subpartition_order(held.runs)
                return
            del held, run
        for one in range(first, end):
            yield from reader(one, one + 1, columns)

    def reader(
        self,
        first: int,
        end: int,
        columns: Sequence[str] | None = None,
        *,
        regions: range | None = None,
    ) -> SortMergeSubpartitionReader:
        """Reader of the subpartitions ``[first, end)`` that does not order them.

        With ``regions`` it reads these only, numbered through the version in reading order.
        """
        if self._process != os.getpid():
            # After a fork: locks may be held for ever by threads that were not taken along.
            self._begin_reading()
        return SortMergeSubpartitionReader(
            self._storage,
            self._snapshot.entries,
            first,
            end,
            columns=columns,
            regions=regions,
            indexes=self._indexes,
            scheduler=self._scheduler,
            oldest_needed=self._snapshot.oldest_needed,
        )

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """All rows as an Arrow C stream."""
        return self.read().__arrow_c_stream__(requested_schema)

    def verify(
        self,
        *,
        raise_on_damage: bool = True,
        on_file: Callable[[MapOutput], None] | None = None,
    ) -> VerifyReport:
        """Read everything and check every checksum and count.

        Parameters
        ----------
        raise_on_damage
            Raise at the first damage; otherwise go on and list in the report what is damaged or
            cannot be read.
        on_file
            Called after each map output, for progress.

        Raises
        ------
        CorruptShuffleError, FormatVersionError, StorageError
            Something is damaged, or cannot be read, and ``raise_on_damage`` is set.
        ShuffleNotFoundError
            The version has expired meanwhile, and was removed by garbage collection.
        """
        needed = self._snapshot.oldest_needed
        with translate_expired(self._storage, needed):
            report = verify_snapshot(
                self._storage,
                self._snapshot,
                self._indexes,
                raise_on_damage=raise_on_damage,
                on_output=on_file,
            )
        if report.problems and has_expired(self._storage, needed):
            raise expired_error(self._storage, needed) from report.problems[0]
        return report


@lru_cache(PINNED_KEPT)
def _kept(
    storage: Storage, version: int, commit_id: str, options: ReadOptions, span: VersionSpan | None
) -> Shuffle:
    """Open what was pinned elsewhere; what a commit made never changes, so tasks may share it."""
    if span is None:
        shuffle = open_shuffle(storage, version, options=options)
    else:
        shuffle = Shuffle(storage, changes_of(CommitLog(storage), span), options)
    _check_pinned(shuffle.path, shuffle.entries[-1], commit_id)
    return shuffle


def open_pinned(
    storage: Storage,
    version: int,
    commit_id: str,
    options: ReadOptions,
    span: VersionSpan | None = None,
) -> Shuffle:
    """Open the very version that was pinned elsewhere, or what some versions up to it added.

    Raises
    ------
    CorruptShuffleError
        It is another one: the directory was replaced.
    ShuffleNotFoundError
        It has expired meanwhile.
    """
    # Read each time: the directory may have been replaced since another task opened it.
    _check_pinned(storage.root, CommitLog(storage).entry(version, commit_id), commit_id)
    return _kept(storage, version, commit_id, options, span)


def _check_pinned(path: str, entry: LogEntry, commit_id: str) -> None:
    if entry.commit_id != commit_id:
        msg = (
            f"{path}: version {entry.version} is another one than when the read was planned; the "
            "directory was replaced. Read it again"
        )
        raise CorruptShuffleError(msg)


def check_there(storage: Storage) -> None:
    """Check that there is a directory where a shuffle is looked for.

    Raises
    ------
    ShuffleNotFoundError
        There is none.
    """
    stat = storage.stat("")
    if stat is None:
        msg = f"{storage.root}: is not there; check the path"
        raise ShuffleNotFoundError(msg)
    if not stat.is_directory:
        msg = f"{storage.root}: is a file, not the directory of a shuffle"
        raise ShuffleNotFoundError(msg)


def open_shuffle(
    path: Place,
    version: int | None = None,
    *,
    options: ReadOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Shuffle:
    """Open a committed version of a shuffle.

    Parameters
    ----------
    path
        Directory or URI of the shuffle.
    version
        The newest when None.
    options
        How to read; defaults when None.
    storage_options
        Of an object store: credentials, region, endpoint, as obstore names them. They win over the
        environment, travel to the tasks, and are never shown.

    Raises
    ------
    ShuffleNotFoundError
        The path is not there, is no shuffle, or has no such version.
    CorruptShuffleError, FormatVersionError
        The commit log is damaged or of a newer format version.
    """
    storage = open_storage(path, storage_options)
    if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
        msg = f"version={version!r}: expected a whole number"
        raise OptionError(msg)
    check_there(storage)
    log = CommitLog(storage)
    snapshot = log.snapshot(version)
    if snapshot is None:
        raise no_version_error(log, "nothing was written, or not committed")
    if snapshot.ended is not None:
        raise released_error(storage.root, snapshot.ended)
    return Shuffle(storage, snapshot, options)
