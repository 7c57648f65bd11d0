"""A committed shuffle, read without Spark: the entry of the read path.

What few readers use is imported where they use it: a process that looks up a key begins with that.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Self, TypeGuard

import numpy as np

from arrow_format.arrays.batch_stream import BatchReader
from arrow_format.arrays.batches import in_batches_of
from arrow_format.arrays.buffers import to_arrow
from arrow_format.errors import CorruptShuffleError, OptionError, ShuffleNotFoundError
from arrow_format.filters.conjunction import Both
from arrow_format.filters.filter import bind_filter
from arrow_format.filters.keys import bind_keys, subpartition_of
from arrow_format.filters.spark_rules import SparkSettings
from arrow_format.keys.combination import combine_text
from arrow_format.log.carried import Carried, parts_of
from arrow_format.log.changes import changes_of, read_as
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.pending import no_version_error
from arrow_format.log.reader import translate_gone, why_gone
from arrow_format.log.result import released_error
from arrow_format.log.version_names import parse_version_name, resolve_version
from arrow_format.options import check_flag, check_integer, check_read_options
from arrow_format.read.chunk_plan import check_subpartitions, coalesce_adjacent
from arrow_format.read.estimates import TaskGroup, estimate_read_bytes
from arrow_format.read.placement_check import required_check
from arrow_format.read.rows import as_batches
from arrow_format.read.selection import select
from arrow_format.read.version_facts import VersionFacts
from arrow_format.read.version_reader import VersionReader
from arrow_format.storage.open import Place, Storage, open_storage
from arrow_format.storage.protocol import SHARED_PATH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    import pyarrow.compute as pc

    from arrow_format.filters.expression import Expression
    from arrow_format.filters.keys import Keys
    from arrow_format.filters.row_filter import RowFilter
    from arrow_format.log.carried import Ranges
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogView
    from arrow_format.log.snapshot import LaterColumns, Snapshot, VersionSpan
    from arrow_format.log.version_names import VersionName
    from arrow_format.model import Int64Array, MapOutput
    from arrow_format.options import ReadOptions
    from arrow_format.read.answers import Answer
    from arrow_format.read.chunk_cache import ChunkCache
    from arrow_format.read.chunk_plan import Piece
    from arrow_format.read.explanation import ReadExplanation
    from arrow_format.read.read_plan import ReadPlan
    from arrow_format.read.rows import Rows
    from arrow_format.read.selection import OrderOfKeys, Selection
    from arrow_format.read.subpartition_reader import SortMergeSubpartitionReader
    from arrow_format.read.verify import VerifyReport

BATCH_ROWS = 64 << 10

UNORDERED_ROWS = 1 << 10
"""Rows that a batch has at least where chunks are handed over as they are: to copy more costs more
than a batch does."""

PINNED_KEPT = 2
"""Pinned shuffles that a process keeps with their indexes: its next tasks read the same ones."""


class Shuffle(VersionFacts):
    """One committed version of a shuffle, ready to be read.

    It is a pinned snapshot: later commits do not change it. It can be pickled, and used by several
    threads and in forked processes; all readers of one process share the memory budget and the
    indexes of :class:`ReadOptions`.

    Parameters
    ----------
    storage
        Storage of the shuffle.
    snapshot
        The version.
    options
        Memory, batch size and the like; defaults when None.
    """

    def __init__(
        self,
        storage: Storage,
        snapshot: Snapshot,
        options: ReadOptions | None = None,
    ) -> None:
        snapshot = snapshot.readable()
        super().__init__(storage, snapshot)
        self._given = options
        self._options = check_read_options(options)
        self._filter: RowFilter | None = None
        self._last_of: OrderOfKeys | None = None
        self._selection: Selection | None = None
        self._checks = False
        self._is_named = False
        self._by_value: tuple[Carried | None] | None = None
        self._reader = VersionReader(storage, snapshot, self._options)

    def __reduce__(self) -> tuple[Callable[..., Shuffle], tuple[Any, ...]]:
        # By value; a large one by name, and the process that unpickles it reads the log again.
        snapshot, how = self._snapshot, (self._view,)
        if self._carried is not None:
            return open_carried, (self._storage, self._carried, self._options, *how)
        pinned = self._storage, self.version, self._entry.commit_id, self._options, self.span
        rest = snapshot.ranges, self.num_subpartitions
        return open_pinned, (*pinned, snapshot.later, *how, *rest)

    @property
    def _carried(self) -> Carried | None:
        """The version by value; None if it is too large."""
        if self._by_value is None:
            self._by_value = (Carried.of(self._snapshot),)
        return self._by_value[0]

    def for_tasks(self, tasks: Sequence[Ranges]) -> list[Shuffle]:
        """Return for each of several tasks what it is to carry, given the ranges that it reads.

        That is this version if it is small enough to be pickled by value, else what the log knows
        of the map outputs and subpartitions of these ranges, ``[first, end)`` and ascending.
        """
        parts = None if self._carried is not None else parts_of(self._snapshot, tasks)
        if parts is None:
            return [self] * len(tasks)
        return [self._part(part) for part in parts]

    def _part(self, snapshot: Snapshot) -> Shuffle:
        return self._view.of(Shuffle(self._storage, snapshot, self._options))

    @property
    def _view(self) -> View:
        return View(self._filter, self.latest_column, self._checks, self._is_named)

    def __repr__(self) -> str:
        return (
            f"<Shuffle {self.path} version {self.version}: {self.num_rows:,} rows in "
            f"{self.num_subpartitions:,} subpartitions"
            + ("" if self.latest_column is None else f", latest by {self.latest_column}")
            + (">" if self.filter is None else f", where {self.filter}>")
        )

    def _repr_html_(self) -> str:
        from arrow_format.read.presentation import (
            html_of_schema,
            html_skew,
            html_table,
            size_facts,
        )

        rows = self.subpartition_rows
        facts = [
            ("path", self.path),
            ("version", str(self.version)),
            *size_facts(self.num_rows, self.num_bytes, len(self.map_outputs), rows),
            ("partitioner", str(self.partitioner)),
            ("sorted by", ", ".join(f"{column} {order}" for column, order in self.sort_by)),
            ("combined", combine_text(self.combine)),
            ("latest by", self.latest_column or ""),
            ("unique", ", ".join(self.unique)),
            ("where", "" if self.filter is None else str(self.filter)),
        ]
        known = [(name, value) for name, value in facts if value]
        return html_table(known) + html_skew(rows) + html_of_schema(self.schema)

    @property
    def options(self) -> ReadOptions:
        """Options it is read with."""
        return self._options

    @property
    def given_options(self) -> ReadOptions | None:
        """The options that it was opened with; None where these are the defaults."""
        return self._given

    def with_options(self, options: ReadOptions) -> Shuffle:
        """Return this version, restricted and checked as it is, read with other options."""
        return self._view.of(Shuffle(self._storage, self._snapshot, options))

    @property
    def subpartition_rows(self) -> pa.Int64Array:
        """Rows of each subpartition; int64, shape ``(num_subpartitions,)``."""
        return to_arrow(self._reader.totals[0])

    @property
    def subpartition_bytes(self) -> pa.Int64Array:
        """Share of each subpartition in the data files, in bytes."""
        return to_arrow(self._reader.totals[1])

    @property
    def read_bytes(self) -> pa.Int64Array:
        """Estimated stored bytes that a reader of each subpartition reads; fewer with a filter."""
        return self._stored_bytes()

    def _stored_bytes(self) -> pa.Int64Array:
        stored = estimate_read_bytes(self._snapshot, self._reader.totals[1])
        return to_arrow(stored if self._selection is None else self._selection.weighed(stored, 0))

    def weights(
        self, columns: Sequence[str] | None = None, *, within: range | None = None
    ) -> tuple[Int64Array, Int64Array]:
        """Estimate the rows that a reader of each subpartition decodes, and their bytes in Arrow.

        ``columns`` are those to deliver, ``within`` adjacent subpartitions; all when None. Where
        all rows are read the rows are exact. Raises SchemaError for a column that is not there.
        """
        return self._reader.weights(self._names(columns), self._selection, within=within)

    @property
    def cut_bytes(self) -> pa.Int64Array | None:
        """Those of :attr:`read_bytes` that the pieces of a subpartition share, see :meth:`reader`.

        None where each piece would read all of them: of broadcast rows, and of :meth:`latest_by`.
        """
        from arrow_format.keys.co_partitioning import has_broadcast_rows

        if self._last_of is not None or has_broadcast_rows(self):
            return None
        return self._stored_bytes()

    def is_in_order(self, subpartition: int) -> bool:
        """Whether rows lie in the files in the order of :meth:`read`, so that pieces have it too.

        That is so where they are not sorted, or in one region.
        """
        if not self.sort_by:
            return True
        outputs, n = self._snapshot.map_outputs, self.num_subpartitions
        numbers, regions, first, end = (
            outputs.of_files(name)
            for name in (
                "num_subpartitions", "num_regions", "first_subpartition", "end_subpartition",
            )
        )  # fmt: skip
        may_have = (numbers > n) | ((first <= subpartition) & (subpartition < end))
        return bool((regions * numbers // n)[may_have].sum() <= 1)

    @property
    def filter(self) -> RowFilter | None:
        """The filter that all reads are restricted by; None where each row passes."""
        return self._filter

    @property
    def latest_column(self) -> str | None:
        """The column of :meth:`latest_by`; None where all rows of a key are read."""
        return None if self._last_of is None else self._last_of.by

    @property
    def is_whole(self) -> bool:
        """Whether reads deliver all rows: no filter restricts them, nor :meth:`latest_by`."""
        return self._selection is None

    def where(
        self, filter: str | pc.Expression | RowFilter | None, *, time_zone: str | None = None
    ) -> Shuffle:
        """Return this version with reads restricted to the rows that a filter is true for.

        It shares memory budget and indexes with this one. Its sizes and numbers of rows are still
        those of all rows: they are known without reading; :meth:`count_rows` counts those left. Of
        a shuffle that is restricted already, the rows that both filters are true for.

        Parameters
        ----------
        filter
            As for :meth:`read`; this shuffle itself when None.
        time_zone
            Zone of dates, and of timestamps without one, that are compared with instants: as
            Spark's ``spark.sql.session.timeZone``. Without it that is refused.

        Raises
        ------
        OptionError, SchemaError
            As for :meth:`read`.
        """
        if filter is None:
            return self
        if not _is_bound(filter):
            filter = self.bound(filter, SparkSettings(time_zone))
        filtered = self._copy()
        filtered._filter = filter if self._filter is None else Both(self._filter, filter)
        filtered._select()
        return filtered

    def latest_by(self, column: str | None) -> Self:
        """Return this version with reads restricted to the last row of each key.

        .. code-block:: python

            orders.latest_by("day").to_dataset()

        For a shuffle to which newer rows of a key are appended: the last one is that with the
        greatest value of a column, in Spark's order, where a null is the smallest and NaN the
        greatest; of several with that value, the last in the order of :meth:`read`. It is chosen of
        all rows of the key, whatever a filter says of them, and each read, count and lookup obeys.
        Columns of :attr:`unique` are the key; without any, those of the partitioner.

        To choose, a reader reads the column and the keys of a few subpartitions at a time, then
        their rows: of all rows that conditions on keys leave, which are the only ones that save
        some of that. Sizes and numbers of rows that need no reading are still those of all rows. As
        in a join, rows of a key count as such where the partitioner places them; another writer may
        have put some elsewhere, which :meth:`checking` finds.

        Parameters
        ----------
        column
            Of a type that has an order; this shuffle itself when None.

        Raises
        ------
        OptionError
            Rows have no partition keys, are broadcast, or are combined; or a filter on other
            columns was asked for before, whose rows may lack the last one of a key; or
            another column was.
        SchemaError
            There is no such column, or its values have no order that is known here.
        """
        if column is None or column == self.latest_column:
            return self
        if self.latest_column is not None:
            msg = f"latest_by={column!r}: rows are those that are latest by {self.latest_column!r}"
            raise OptionError(msg)
        from arrow_format.read.last_of_keys import order_of_keys

        order = order_of_keys(self, column)
        outside = [name for name in self._filter_columns if name not in order.keys]
        if outside:
            msg = (
                f"latest_by={column!r}: a filter on {outside[0]!r} was asked for before, which may "
                "leave out the last row of a key; ask for latest_by first, or for both in one "
                "select"
            )
            raise OptionError(msg)
        latest = self._copy()
        latest._last_of = order
        latest._select()
        return latest

    @property
    def _filter_columns(self) -> tuple[str, ...]:
        return () if self._filter is None else self._filter.columns

    def _select(self) -> None:
        """Set what is read, once it is known what is asked for."""
        self._selection = select(
            self._filter, self._snapshot, last_of=self._last_of, trusts=not self._checks
        )

    def _copy(self) -> Self:
        copied = type(self).__new__(type(self))  # copy() would open the version again
        vars(copied).update(vars(self))
        return copied

    @property
    def is_named(self) -> bool:
        """Whether this version was asked for, by number, tag or time, and not just the newest."""
        return self._is_named

    def named(self) -> Self:
        """Return this version as one that was asked for; see :attr:`is_named`."""
        named = self._copy()
        named._is_named = True
        return named

    def newest_alike(self) -> Shuffle:
        """Open the newest version, restricted and checked as this one; this one where it is that.

        Raises ShuffleNotFoundError, SchemaError and CorruptShuffleError as :func:`open_shuffle`.
        """
        newest = opened(self._storage, lambda log, view: log.snapshot_of(view), self._given)
        if (newest.version, newest.commit_id) == (self.version, self.commit_id):
            return self
        return self._view.of(newest)

    def alike(self, version: int, commit_id: str | None = None) -> Shuffle:
        """Open another version, restricted and checked as this one.

        Raises CorruptShuffleError where its commit has another id, since the directory was
        replaced; else as :func:`open_shuffle`.
        """
        found = opened(self._storage, lambda log, view: log.snapshot_of(view, version), self._given)
        if commit_id is not None:
            _check_pinned(self.path, found.snapshot.newest, commit_id)
        return self._view.of(found)

    def divided(self, num_subpartitions: int) -> Shuffle:
        """Return this version, restricted and checked as it is, read by fewer subpartitions.

        ``num_subpartitions`` divides the number that it has: subpartition i has the rows of i,
        i + n, i + 2n and so on, as a hash of the keys modulo n places them.
        """
        if num_subpartitions == self.num_subpartitions:
            return self
        snapshot = self._snapshot.divided(num_subpartitions)
        return self._view.of(Shuffle(self._storage, snapshot, self._given))

    def checking(self) -> Shuffle:
        """Return this version with reads that ask its partitioner about each row they decode.

        A filter then leaves out no subpartition for the keys that it asks for: a row of theirs that
        lies elsewhere is found. Reading raises CorruptShuffleError, with the file and the
        subpartition of the first one. Costs a few nanoseconds a row, and the keys are decoded.

        Raises
        ------
        OptionError
            The partitioner does not say where a row belongs: a user's own, or round robin.
        """
        if self._checks:
            return self
        placement = required_check(self.path, self.partitioner, self.schema, self.num_subpartitions)
        checking = self._copy()
        checking._checks = True
        checking._reader = self._reader.checking(placement)
        checking._select()
        return checking

    def bound(self, filter: str | pc.Expression | Expression, settings: SparkSettings) -> RowFilter:
        """Return a filter bound to the columns; a text means what it does in a session of Spark.

        Raises OptionError and SchemaError, as :meth:`read`.
        """
        return bind_filter(filter, self.schema, settings=settings, spark_schema=self.spark_schema)

    def bound_keys(self, keys: Keys) -> RowFilter:
        """Return the rows of keys as a filter; raises OptionError and SchemaError.

        See :meth:`lookup`.
        """
        return bind_keys(keys, self.schema, self.partitioner, self.spark_schema)

    def task_groups(
        self,
        max_bytes: int | None,
        subpartitions: int | Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> list[TaskGroup]:
        """Return what each of several tasks reads, so that together they read all; opens no file.

        Parameters
        ----------
        max_bytes
            Bytes in Arrow that a task reads at most, by estimate, unless one subpartition has more.
            Those that a filter excludes are left out. None: a task for each subpartition, for empty
            and excluded ones too.
        subpartitions, columns
            As for :meth:`read`.

        Returns
        -------
        list of TaskGroup
            In the order of subpartitions; one at least, which may have none.

        Raises
        ------
        OptionError, SchemaError
            A subpartition is out of range, or there is no such column.
        """
        n = self.num_subpartitions
        rows, _ = self._reader.totals
        _, weights = self.weights(columns)
        groups: list[tuple[tuple[int, int], ...]]
        if max_bytes is None:
            asked = check_subpartitions(subpartitions, n)
            groups = [((i, i + 1),) for i in (range(n) if asked is None else asked)]
        else:
            check_integer("max_bytes", max_bytes, 1, 1 << 62, "bytes")
            wanted = self.candidates(subpartitions)
            array = np.arange(n) if wanted is None else np.array(wanted, np.int64)
            groups = coalesce_adjacent(weights, max_bytes, array)
        return [
            TaskGroup(
                ranges,
                sum(int(rows[first:end].sum()) for first, end in ranges),
                sum(int(weights[first:end].sum()) for first, end in ranges),
            )
            for ranges in groups or [()]
        ]

    def candidates(self, subpartitions: int | Iterable[int] | None = None) -> list[int] | None:
        """Return those of some subpartitions, ascending, that can have rows to read; None for all.

        Only a filter leaves some out.

        Raises
        ------
        OptionError
            A subpartition is out of range.
        """
        wanted = check_subpartitions(subpartitions, self.num_subpartitions)
        return wanted if self._selection is None else self._selection.among(wanted)

    def read(
        self,
        subpartitions: int | Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        *,
        filter: str | pc.Expression | None = None,
        ordered: bool = True,
        batch_size: int | None = None,
        with_subpartition: bool = False,
    ) -> BatchReader:
        """Read rows by ascending subpartition, those of each in order.

        .. code-block:: python

            orders.read([0, 3], ["customer", "price"], filter="price > 100").read_all()

        The order within a subpartition is that of :attr:`sort_by`. Without sort keys, and between
        rows whose keys are equal, it is the order of writing: by version, map task, region and
        arrival.

        Parameters
        ----------
        subpartitions
            One, a range or several; all when None. Order and repetition make no difference.
        columns
            Columns to deliver, in that order; all when None. Only these are decoded, and those that
            order or filter the rows.
        filter
            Text of a condition in Spark's SQL, or a :class:`pyarrow.compute.Expression`:
            comparisons of columns with values, ``isin``, null checks, and, or, not. Delivers
            exactly the rows for which Spark's ``where``, or PyArrow, finds it true. Files, regions
            and chunks that cannot have such rows are not read. All rows when None.
        ordered
            Otherwise subpartitions alternate: batches are chunks as they lie in the files, which is
            faster, and takes the memory of a few of them. The rows of each subpartition are in the
            same order still. What is sorted comes in its order either way.
        batch_size
            Rows of each batch, the last one excepted; when None about 64 Ki or ``batch_bytes``, or
            those of a chunk.
        with_subpartition
            Append the int32 column ``_subpartition``.

        Returns
        -------
        BatchReader
            Yields batches, once. It reads as it is consumed, in the bounded memory of
            :class:`ReadOptions`. To stop early, close or drop it.

        Raises
        ------
        OptionError
            A subpartition or ``batch_size`` is out of range; the filter is of another form.
        SchemaError
            The shuffle has no such column, or has one named ``_subpartition`` itself. The filter
            compares a column with what it cannot be compared with.
        CorruptShuffleError, FormatVersionError
            While reading: a file is damaged, missing, or of a newer version.
        ShuffleNotFoundError
            While reading: the version has expired, and was removed by garbage collection.
        ClosedError
            While reading: the reader was read to its end before.
        """
        if filter is not None:
            return self.where(filter).read(
                subpartitions,
                columns,
                ordered=ordered,
                batch_size=batch_size,
                with_subpartition=with_subpartition,
            )
        check_flag("ordered", ordered)
        asked = check_subpartitions(subpartitions, self.num_subpartitions)
        schema = self.schema_of(columns, with_subpartition=with_subpartition)
        ordered = ordered or bool(self.sort_by)
        in_batches = partial(
            as_batches,
            schema=schema,
            with_subpartition=with_subpartition,
            min_rows=BATCH_ROWS if ordered else UNORDERED_ROWS,
            max_bytes=self._options.batch_bytes,
        )

        def batches() -> Iterator[pa.RecordBatch]:
            if not ordered:
                yield from in_batches(self._reader.straight(asked, columns, self._selection))
                return
            groups = self._groups(asked, columns)
            kept = self._reader.chunk_cache(groups)
            for group in groups:
                yield from in_batches(self._ordered(*group, columns, kept=kept))

        read = batches()
        return BatchReader(schema, read if batch_size is None else in_batches_of(read, batch_size))

    def rows(
        self,
        subpartitions: Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        *,
        regions: range | None = None,
        piece: Piece | None = None,
    ) -> Iterator[Rows]:
        """Yield the rows of :meth:`read`, in its order, in runs of any size.

        Each run has the subpartition of each of its rows. Memory and errors are those of
        :meth:`read`.

        Parameters
        ----------
        subpartitions, columns
            As for :meth:`read`.
        regions
            Read these regions only, numbered through the version in reading order; all when None.
        piece
            Read this one of the runs of rows that a subpartition is cut into; all when None. Where
            it is sorted, the rows of each piece are.
        """
        asked = check_subpartitions(subpartitions, self.num_subpartitions)
        groups = self._groups(asked, columns)
        kept = self._reader.chunk_cache(groups)
        for group in groups:
            yield from self._ordered(*group, columns, regions, kept, piece)

    def plan(
        self, subpartitions: int | Iterable[int] | None = None, columns: Sequence[str] | None = None
    ) -> ReadPlan:
        """Return what :meth:`read` will read of the data files; see :meth:`explain`."""
        return self.explain(subpartitions, columns).plan

    def explain(
        self,
        subpartitions: int | Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        *,
        filter: str | pc.Expression | None = None,
    ) -> ReadExplanation:
        """Return what :meth:`read` will keep and skip, and why; opens indexes and reads no rows.

        .. code-block:: python

            print(orders.explain(columns=["price"], filter="customer = 17"))

        Parameters
        ----------
        subpartitions, columns, filter
            As for :meth:`read`.

        Returns
        -------
        ReadExplanation
            Subpartitions, versions, files, regions, chunks and bytes, kept and in all; ``str``
            shows it as a table.

        Raises
        ------
        OptionError, SchemaError
            As for :meth:`read`.
        CorruptShuffleError
            An index is damaged or missing.
        """
        if filter is not None:
            return self.where(filter).explain(subpartitions, columns)
        from arrow_format.read.explanation import explain

        names = self.schema_of(columns).names
        asked = check_subpartitions(subpartitions, self.num_subpartitions)
        groups = self._groups(asked, columns)
        readers = (self.reader(first, end, columns) for first, end in groups)
        return explain(self._snapshot, self._selection, asked, names, readers)

    def _groups(
        self, asked: list[int] | None, columns: Sequence[str] | None
    ) -> list[tuple[int, int]]:
        return self._reader.groups(asked, self._names(columns), self._selection)

    def _names(self, columns: Sequence[str] | None) -> list[str] | None:
        return None if columns is None else self.schema_of(columns).names

    def _ordered(
        self,
        first: int,
        end: int,
        columns: Sequence[str] | None,
        regions: range | None = None,
        kept: ChunkCache | None = None,
        piece: Piece | None = None,
    ) -> Iterator[Rows]:
        return self._reader.ordered(
            first,
            end,
            columns,
            regions=regions,
            piece=piece,
            selection=self._selection,
            kept=kept,
        )

    def reader(
        self,
        first: int,
        end: int,
        columns: Sequence[str] | None = None,
        *,
        regions: range | None = None,
        piece: Piece | None = None,
    ) -> SortMergeSubpartitionReader:
        """Return a reader of the subpartitions ``[first, end)`` that does not order them.

        It yields runs of rows, one per chunk, as they are stored: map output after map output, the
        subpartitions of the range interleaved. Of each subpartition the rows come in the order of
        writing, so the sort order holds within a region only. Any number of readers may be consumed
        interleaved or concurrently; they share one memory budget.

        Parameters
        ----------
        first, end
            Range of subpartitions, within the shuffle's.
        columns
            Columns to deliver, in that order; all when None.
        regions
            Read these regions only, numbered through the version in reading order; all when None.
        piece
            Read this one of the runs of rows that these are cut into; all when None.

        Raises
        ------
        SchemaError
            The shuffle has no such column.
        CorruptShuffleError, FormatVersionError, ShuffleNotFoundError
            While reading, as for :meth:`read`.
        """
        return self._reader.reader(
            first, end, columns, regions=regions, piece=piece, selection=self._selection
        )

    def count_rows(self, *, filter: str | pc.Expression | None = None) -> int:
        """Return how many rows :meth:`read` delivers, of all subpartitions.

        .. code-block:: python

            orders.count_rows(filter="price > 100")

        The log says it of all rows. With a filter it says it of files, and their indexes of chunks,
        all of whose rows match or none; only the columns of the filter in others are decoded.

        Parameters
        ----------
        filter
            As for :meth:`read`.

        Raises
        ------
        OptionError, SchemaError, CorruptShuffleError, FormatVersionError, ShuffleNotFoundError
            As for :meth:`read`.
        """
        return self._answer((), filter).num_rows

    def min_max(
        self, columns: Sequence[str], *, filter: str | pc.Expression | None = None
    ) -> dict[str, tuple[pa.Scalar, pa.Scalar]]:
        """Return the least and the greatest value of columns in Spark's order, nulls left out.

        .. code-block:: python

            least, greatest = orders.min_max(["price"])["price"]

        They come from the log, or from indexes, where these know them, as of numbers, dates and
        times with statistics (:attr:`WriteOptions.statistics`); columns are decoded elsewhere.

        Parameters
        ----------
        columns
            Names of columns of flat types.
        filter
            As for :meth:`read`.

        Returns
        -------
        dict
            Two scalars by column, null where no row has a value. NaN is the greatest value, and
            -0.0 is 0.0.

        Raises
        ------
        SchemaError
            The values of a column have no order, as those of lists.
        OptionError, SchemaError, CorruptShuffleError, FormatVersionError, ShuffleNotFoundError
            As for :meth:`read`.
        """
        names = self.schema_of(columns).names
        answer = self._answer(names, filter)
        return {name: answer.bounds(name) for name in names}

    def logged_bounds(self, column: str) -> tuple[pa.Scalar, pa.Scalar] | None:
        """Return values of which none that is read is less, nor greater, by the log alone.

        None where the log does not know them; nulls where it knows that no row has a value.
        """
        from arrow_format.read.answers import logged_bounds

        return logged_bounds(self._snapshot, self._selection, column)

    def _answer(self, names: Sequence[str], filter: str | pc.Expression | None) -> Answer:
        from arrow_format.read.answers import answer

        rows = self.where(filter)
        groups = [(0, self.num_subpartitions)]
        if self._last_of is not None:  # else a bit for each row would be kept meanwhile
            groups = rows._groups(None, names)

        def readers() -> Iterator[SortMergeSubpartitionReader]:
            return (rows.reader(first, end, names) for first, end in groups)

        return answer(self._snapshot, rows._selection, names, readers)

    def subpartition_of(self, **key: Any) -> int:  # noqa: ANN401  a value of any key column
        """Return the subpartition of a key, as Spark hashes it; reads nothing.

        .. code-block:: python

            orders.subpartition(orders.subpartition_of(customer=17))

        Parameters
        ----------
        key
            A value for each key column of the partitioner, by name.

        Raises
        ------
        SchemaError
            A key column is missing or surplus, or a value does not fit its type.
        OptionError
            The shuffle is not partitioned by keys.
        """
        n = self.num_subpartitions
        return subpartition_of(key, self.partitioner, self.schema, n, self.spark_schema)

    def lookup(self, key_values: Keys, columns: Sequence[str] | None = None) -> BatchReader:
        """Read the rows of given keys, whatever else is in their subpartitions.

        .. code-block:: python

            orders.lookup({"customer": [17, 18]}, columns=["price"]).read_all()

        An open shuffle keeps the indexes that it read, within ``ReadOptions.index_bytes``: the next
        lookup reads none of them again.

        Parameters
        ----------
        key_values
            The key columns of the partitioner, one key a row: a table, or a dict of columns such as
            ``{"customer": [17, 18]}``, aligned by position; a single value goes with all others.
            A null is a key like any other.
        columns
            As for :meth:`read`.

        Returns
        -------
        BatchReader
            As of :meth:`read`, with the rows of these keys only.

        Raises
        ------
        SchemaError
            A key column is missing or surplus, or a value does not fit its type.
        OptionError
            The shuffle is not partitioned by keys.
        """
        return self.where(self.bound_keys(key_values)).read(columns=columns)

    def subpartition(
        self,
        subpartition: int,
        columns: Sequence[str] | None = None,
        *,
        with_subpartition: bool = False,
    ) -> BatchReader:
        """Read the rows of one subpartition; see :meth:`read`.

        .. code-block:: python

            orders.subpartition(3, ["customer", "price"]).read_all()
        """
        return self.read([subpartition], columns, with_subpartition=with_subpartition)

    def __len__(self) -> int:
        return self.num_subpartitions

    def __iter__(self) -> Iterator[BatchReader]:
        """Yield a reader of each subpartition, ascending, empty ones too.

        A chunk holds several small subpartitions, and each reader decodes it again. To read many of
        them quickly, use :meth:`read` with ``with_subpartition``.
        """
        return map(self.subpartition, range(self.num_subpartitions))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return all rows as an Arrow C stream, in the order of :meth:`read`."""
        return self.read().__arrow_c_stream__(requested_schema)

    def to_table(
        self,
        subpartitions: int | Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        *,
        filter: str | pc.Expression | None = None,
        ordered: bool = True,
        with_subpartition: bool = False,
    ) -> pa.Table:
        """Return rows in memory; parameters, order and errors are those of :meth:`read`.

        .. code-block:: python

            orders.to_table(columns=["customer", "price"], filter="price > 100")
        """
        return self.read(
            subpartitions,
            columns,
            filter=filter,
            ordered=ordered,
            with_subpartition=with_subpartition,
        ).read_all()

    def to_pandas(
        self,
        subpartitions: int | Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        *,
        filter: str | pc.Expression | None = None,
        ordered: bool = True,
        with_subpartition: bool = False,
    ) -> Any:  # noqa: ANN401
        """Return rows as a :class:`pandas.DataFrame`, in the types that PyArrow chooses.

        .. code-block:: python

            orders.to_pandas([0, 1]).groupby("customer").price.sum()

        For others, use ``to_table(...).to_pandas(...)``. Parameters, order and errors are those of
        :meth:`read`.
        """
        return self.read(
            subpartitions,
            columns,
            filter=filter,
            ordered=ordered,
            with_subpartition=with_subpartition,
        ).read_pandas()

    def verify(
        self,
        *,
        raise_on_damage: bool = True,
        on_file: Callable[[MapOutput], None] | None = None,
    ) -> VerifyReport:
        """Read every byte and check every checksum and count.

        .. code-block:: python

            print(orders.verify())

        Parameters
        ----------
        raise_on_damage
            Raise at the first damage; otherwise go on, and list in the report what is damaged or
            cannot be read.
        on_file
            Called after each map output, for progress.

        Raises
        ------
        CorruptShuffleError, FormatVersionError, StorageError
            Something is damaged, or cannot be read, and ``raise_on_damage`` is set.
        ShuffleNotFoundError
            The version has expired, and was removed by garbage collection.
        """
        from arrow_format.read.verify import verify_snapshot

        how = self._storage, self._entry, self._snapshot.oldest_needed
        with translate_gone(*how):
            report = verify_snapshot(
                self._storage,
                self._snapshot,
                self._reader.indexes,
                raise_on_damage=raise_on_damage,
                on_output=on_file,
            )
        if report.problems and (reason := why_gone(*how)) is not None:
            raise reason from report.problems[0]
        return report


def _is_bound(filter: object) -> TypeGuard[RowFilter]:
    # By its class: a Column of Spark has attributes of any name.
    return hasattr(type(filter), "may_match")


@lru_cache(PINNED_KEPT)
def _kept(
    storage: Storage,
    version: int,
    commit_id: str,
    options: ReadOptions,
    span: VersionSpan | None,
    later: LaterColumns | None,
    ranges: Ranges | None,
    num_subpartitions: int | None,
) -> Shuffle:
    """Open a pinned version; a commit never changes, so the tasks of a process share it."""
    if span is None:
        shuffle = open_shuffle(storage, version, options=options)
    else:
        shuffle = Shuffle(storage, changes_of(CommitLog(storage), span), options)
    _check_pinned(shuffle.path, shuffle.snapshot.newest, commit_id)
    snapshot = shuffle.snapshot
    if later is not None:
        snapshot = read_as(snapshot, later)
    if num_subpartitions is not None:
        snapshot = snapshot.divided(num_subpartitions)
    if ranges is not None:
        snapshot = snapshot.part(ranges)
    return shuffle if snapshot is shuffle.snapshot else Shuffle(storage, snapshot, options)


@lru_cache(PINNED_KEPT)
def _kept_carried(storage: Storage, carried: Carried, options: ReadOptions) -> Shuffle:
    return Shuffle(storage, carried.snapshot(), options)


@dataclass(frozen=True, slots=True)
class View:
    """Which rows of a version are read, and how: what is asked for after it was opened."""

    where: RowFilter | None = None
    latest_by: str | None = None
    checks: bool = False
    """Whether it is :meth:`Shuffle.checking`."""
    is_named: bool = False
    """:attr:`Shuffle.is_named`."""

    def of(self, shuffle: Shuffle) -> Shuffle:
        """Return a version, of which all rows are read, as it was asked for."""
        named = shuffle.named() if self.is_named else shuffle
        checked = named.checking() if self.checks else named
        return checked.latest_by(self.latest_by).where(self.where)


ALL_ROWS = View()


def open_carried(
    storage: Storage, carried: Carried, options: ReadOptions, view: View = ALL_ROWS
) -> Shuffle:
    """Return the version that another process opened, without a request; see :func:`open_pinned`.

    Whether it is still there is seen when it is read: files have random names, and the checksums of
    their directories are in what was carried.
    """
    return view.of(_kept_carried(storage, carried, options))


def open_pinned(
    storage: Storage,
    version: int,
    commit_id: str,
    options: ReadOptions,
    span: VersionSpan | None = None,
    later: LaterColumns | None = None,
    view: View = ALL_ROWS,
    ranges: Ranges | None = None,
    num_subpartitions: int | None = None,
) -> Shuffle:
    """Open the version that another process pinned, or with ``span`` the rows it pinned of it.

    ``later`` are columns of a later version to read the rows with; their own when None. ``view`` is
    what is read of them. With ``ranges`` of subpartitions, no others are to be read of it;
    ``num_subpartitions`` is the number that they are of, that of the version when None.

    Raises
    ------
    CorruptShuffleError
        The commit has another id: the directory was replaced.
    ShuffleNotFoundError
        The version has expired.
    """
    # Checked each time: the directory may have been replaced since another task opened it.
    log = CommitLog(storage)
    try:
        entry = log.entry(version, commit_id)
    except ShuffleNotFoundError as error:
        is_apart = type(error) is ShuffleNotFoundError and not log.view().newest
        if not is_apart or "://" in storage.root:
            raise
        msg = (
            f"{error}, on {socket.gethostname()}, and there was one where this read was planned. "
            f"{SHARED_PATH}. Or the shuffle was removed meanwhile"
        )
        raise ShuffleNotFoundError(msg) from None
    _check_pinned(storage.root, entry, commit_id)
    pinned = storage, version, commit_id, options, span
    return view.of(_kept(*pinned, later, ranges, num_subpartitions))


def _check_pinned(path: str, entry: LogEntry, commit_id: str) -> None:
    if entry.commit_id != commit_id:
        msg = (
            f"{path}: version {entry.version} is another one than when the read was planned; the "
            "directory was replaced. Read it again"
        )
        raise CorruptShuffleError(msg)


def check_there(storage: Storage, *, may_come: bool = False) -> None:
    """Raise :class:`ShuffleNotFoundError` unless the root of a storage is a directory.

    Nothing there is no error where it ``may_come``. A store lists up to 1,000 names for it: where a
    log was read, ask only if that was empty.
    """
    stat = storage.stat("")
    if stat is None and may_come:
        return
    if stat is None:
        msg = f"{storage.root}: is not there; check the path"
        raise ShuffleNotFoundError(msg)
    if not stat.is_directory:
        msg = f"{storage.root}: is a file, not the directory of a shuffle"
        raise ShuffleNotFoundError(msg)


def open_shuffle(
    path: Place,
    version: VersionName | None = None,
    *,
    options: ReadOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Shuffle:
    """Open a committed version of a shuffle. Reads its commit log, and no data before it is asked.

    Parameters
    ----------
    path
        Directory or URI of the shuffle.
    version
        Number of the version; or name of its tag; or a time, as a ``datetime`` or a text such as
        ``2026-11-20 12:00``, for the newest version that was committed by then. A time without a
        zone is one of the local zone of this process. The newest when None.
    options
        Memory, batch size and the like; defaults when None.
    storage_options
        Of an object store: credentials, region, endpoint, with obstore's names. They override the
        environment, travel to the tasks, and never appear in messages.

    Returns
    -------
    Shuffle
        Pinned to that version; its map outputs are in memory, its indexes are opened on demand.

    Raises
    ------
    ShuffleNotFoundError
        The path does not exist, holds no shuffle, or has no such version, tag, or version that was
        committed by then and has not expired. Its subclass
        ``ResultReleasedError``: the result was consumed or released.
    OptionError
        The path or an option has a bad value.
    CorruptShuffleError, FormatVersionError
        The commit log is damaged or of a newer format version.
    """
    storage = open_storage(path, storage_options)
    if version is not None:
        version = parse_version_name(version)
    found = opened(
        storage,
        lambda log, view: log.snapshot_of(view, resolve_version(log, view, version)),
        options,
    )
    return found if version is None else found.named()


def opened(
    storage: Storage,
    look: Callable[[CommitLog, LogView], Snapshot | None],
    options: ReadOptions | None,
) -> Shuffle:
    """Open what ``look`` finds in the log, in one read of it; raises as :func:`open_shuffle`."""
    log = CommitLog(storage)

    def found(view: LogView) -> Snapshot | None:
        if view.last is None:
            check_there(storage)
        return look(log, view)

    snapshot = log.read(found)
    if snapshot is None:
        raise no_version_error(log)
    if snapshot.ended is not None:
        raise released_error(storage.root, snapshot.ended)
    return Shuffle(storage, snapshot, options)
