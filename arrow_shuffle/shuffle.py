"""A shuffle as its users have it: one version to read, and verbs that act on what is there now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrow_format.errors import OptionError
from arrow_format.options import SECONDS
from arrow_format.read import shuffle as stored
from arrow_shuffle.conversions import Convertible
from arrow_shuffle.maintenance import Maintained
from arrow_shuffle.operation import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow.dataset as ds

    from arrow_format.arrays.batch_stream import BatchReader
    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.log.version_names import VersionName
    from arrow_format.operators.description import Description
    from arrow_format.options import ReadOptions, WriteOptions
    from arrow_format.storage.open import Place
    from arrow_format.streaming.consumption import Consumption
    from arrow_shuffle.operation import Spark
    from arrow_shuffle.write import Source


class Shuffle(Convertible, Maintained, Rows):
    """One committed version of a shuffle; made by :func:`open_shuffle`.

    .. code-block:: python

        orders = arrow_shuffle.open_shuffle("/data/orders")
        orders.select("customer", "price", filter="price > 100").to_table()
        orders.lookup({"customer": [17, 18]}).read_all()
        orders.append(new_rows)
        orders = orders.newest()

    - Describe what you want, in a chain: ``select``, ``join``, ``aggregate``, ``map_groups``,
      ``map_subpartitions``. Run it: ``read``, ``to_spark``, ``write``.
    - Read it as it is: ``read``, ``to_table``, ``to_pandas``, ``lookup``, ``subpartition``,
      ``to_polars``, ``to_dataset``, ``to_dask``, ``to_ray``, ``to_torch``.
    - Ask about it: ``schema``, ``num_rows``, ``num_subpartitions``, ``count_rows``, ``min_max``,
      ``subpartition_of``, ``explain``, ``history``, ``changes``, ``added``, ``tags``,
      ``consumers``, ``verify``.
    - Change it: ``append``, ``delete``, ``rename_columns``, ``drop_columns``, ``rollback``,
      ``tag``.
    - Look after it: ``merge``, ``collect_garbage``, ``flush_pending``, ``release``, ``repair``,
      ``relocate``.

    It is pinned: later commits do not change what it reads. What changes the shuffle acts on its
    newest version and returns a receipt; :meth:`newest` opens that. It can be pickled, and used by
    several threads and in forked processes. ``len`` is the number of subpartitions, and iterating
    reads each. DuckDB, Polars, pandas and all other consumers of Arrow's C stream interface accept
    the object itself, and read all of it.
    """

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _unpickled, super().__reduce__()

    @property
    def _description(self) -> Description:
        from arrow_format.operators.description import Selected

        return Selected(self)

    @property
    def _source(self) -> stored.Shuffle:
        return self

    def newest(self) -> Shuffle:
        """Open the newest version, all rows of it, with the options of this one.

        .. code-block:: python

            orders = orders.newest()
        """
        return open_shuffle(self._storage, options=self.given_options)

    def changes(self, since: VersionName, columns: Sequence[str] | None = None) -> BatchReader:
        """Read the net change of the rows since a version: which were deleted and inserted.

        .. code-block:: python

            seen = 3
            changed = orders.newest().changes(since=seen).read_all()
            gone = [row for row in changed.to_pylist() if row["_change_type"] != "insert"]

        The rows of version ``since``, without the deleted and erased ones and with the inserted
        ones, are those of this version. A merge, and columns that were renamed or added, change
        no row; a row that was replaced is deleted and inserted. Equal rows, one deleted and one
        inserted, cancel, whatever happened to them in between: rows are equal whose columns are, as
        of this version, a null to a null, a NaN to a NaN, and -0.0 to 0.0.

        Only files are read that one of the versions lacks, of those that a mask changed the chunks
        of these rows, of those that an erasure wrote again the subpartitions that lost some, and
        nothing of what a merge only moved. Rows of both versions are compared by subpartition,
        within the memory of :class:`ReadOptions`; only where most rows are equal are all of these
        in memory together.

        Parameters
        ----------
        since
            The version whose rows are known, as for :func:`open_shuffle`; 0 for none.
        columns
            Columns to deliver, and by whose values rows differ; all when None.

        Returns
        -------
        BatchReader
            The columns, all but the keys nullable, and ``_change_type``: a text. Rows come by
            subpartition where these are compared, else in any order: a row that was replaced may be
            inserted first. A broadcast row comes once for each subpartition, as in :meth:`read`. Of
            a row that is deleted and may have been erased, by ``delete(erase=True)``, only its keys
            come, as ``erase``: that is each row deleted from a file which a version right after a
            deletion had not any more, since the log does not have what was erased.

        Raises
        ------
        ShuffleNotFoundError
            Version ``since`` does not exist; or it has expired, so that all that was made of the
            shuffle is to be computed again. Its subclass ``ResultReleasedError``: it was released.
        OptionError
            This version is before ``since``; or its rows are restricted by a filter or a span.
        SchemaError
            A column has types in the two versions of which neither holds the other; there is no
            such column, or one named ``_change_type``.
        CorruptShuffleError, FormatVersionError
            While reading: a file is damaged, missing, or of a newer version.
        """
        from arrow_format.operators.net_changes import read_changes

        return read_changes(self, since, columns)

    def added(self, since: int, *, overwrites: str = "fail") -> Shuffle:
        """Return the rows that were added after a version, up to this one.

        What they add to a reader that follows: it does not say what was deleted or replaced, as
        :meth:`changes` does.

        .. code-block:: python

            seen = 3
            new = orders.newest().added(since=seen)
            new.read().read_all()
            seen = new.version

        Parameters
        ----------
        since
            Last version whose rows are known; 0 for none. Where the first versions have expired, 0
            gives all rows of the oldest version that has not, and what was added after it.
        overwrites
            ``fail``: a version after ``since`` that overwrote the shuffle is an error. ``deliver``:
            its rows are delivered like those of one that appended.

        Returns
        -------
        Shuffle
            Holds these rows only, and reads them as any other; merges add no rows.

        Raises
        ------
        ShuffleOverwrittenError
            A version after ``since`` overwrote the shuffle, or replaced rows by an upsert.
        OptionError
            This version is before ``since``; or of its rows only the last of each key are read,
            which is to be asked of what this returns.
        ShuffleNotFoundError
            Versions after ``since`` have expired.
        SchemaError
            A version that overwrote the shuffle has another schema or number of subpartitions.
        """
        from arrow_format.read.shuffle_changes import open_shuffle_changes

        if self.latest_column is not None:
            msg = (
                f"{self.path}: added(since=) is of all rows; ask what it returns for "
                f"latest_by({self.latest_column!r})"
            )
            raise OptionError(msg)
        rows = open_shuffle_changes(
            self._storage, since, self.version, overwrites=overwrites, options=self.given_options
        )
        return as_public(rows)

    def append(
        self,
        source: Source,
        *,
        options: WriteOptions | None = None,
        columns: Sequence[str] | None = None,
        filter: ds.Expression | None = None,
        num_map_tasks: int | None = None,
        for_spark: bool = True,
        expected_version: int | None = None,
        transaction: tuple[str, int] | None = None,
        spark: Spark = None,
    ) -> ShuffleReceipt:
        """Append rows: partitioned, sorted and stored as those that are there.

        .. code-block:: python

            orders.append(pa.table({"customer": [17], "price": [9.5]}))

        Number of subpartitions, partitioner, sort keys, combined columns and codec are those of the
        newest version. Columns are matched by name: one that the rows lack is null there, and must
        be nullable; one that the shuffle lacks becomes a new nullable column, and one that may be
        null in these rows becomes nullable. A number may be wider than before, unless it is a key.
        A shuffle of combined rows takes no new columns.

        Parameters
        ----------
        source, columns, filter, num_map_tasks, for_spark, spark
            As for :func:`~arrow_shuffle.write_shuffle`.
        options
            How to write; its codec and ``schema_evolution`` are not used. Defaults when None.
        expected_version, transaction
            As for :func:`~arrow_shuffle.write_shuffle`.

        Returns
        -------
        ShuffleReceipt
            What was appended.

        Raises
        ------
        ShuffleNotFoundError, ResultReleasedError
            There is no shuffle to append to any more.
        OptionError
            A partitioner of your own places its rows: give it to ``write_shuffle(...,
            mode="append")``.
        DuplicateKeyError
            A row has the :attr:`unique` key of one that is there, or of another one.
        SchemaError, StorageError, CommitConflictError
            As for :func:`~arrow_shuffle.write_shuffle`; nothing is left behind.
        """
        from arrow_shuffle.write import append_shuffle

        return append_shuffle(
            source,
            self._storage,
            options=options,
            columns=columns,
            filter=filter,
            num_map_tasks=num_map_tasks,
            for_spark=for_spark,
            expected_version=expected_version,
            transaction=transaction,
            spark=spark,
        )

    def upsert(
        self,
        source: Source,
        *,
        row_kind: str | None = None,
        sequence_by: str | None = None,
        options: WriteOptions | None = None,
        columns: Sequence[str] | None = None,
        filter: ds.Expression | None = None,
        num_map_tasks: int | None = None,
        for_spark: bool = True,
        expected_version: int | None = None,
        transaction: tuple[str, int] | None = None,
        spark: Spark = None,
    ) -> ShuffleReceipt:
        """Add rows, which replace those that are equal in the columns of :attr:`unique`.

        .. code-block:: python

            prices = pa.table({"item": [1, 2], "price": [9.5, 3.0]})
            arrow_shuffle.write_shuffle(prices, "/data/rates", keys="item", unique="item")
            shuffle = arrow_shuffle.open_shuffle("/data/rates")
            shuffle.upsert(pa.table({"item": [2, 3], "price": [3.5, 1.0]}))

        New rows and masks of those that they replace are one version: readers see all of it or
        nothing. Nothing is written again, so it costs what the new rows do, and the columns of
        ``unique`` of the subpartitions that they are in; a merge leaves out what was replaced. What
        others write meanwhile counts: of two upserts of one new key, one row stays.

        Parameters
        ----------
        source, options, columns, filter, num_map_tasks, for_spark, spark
            As for :meth:`append`. No two rows may be equal in the columns of ``unique``, unless
            ``sequence_by`` says which is newer.
        row_kind
            Of a change feed: the column that says what each change does, in the words of Debezium
            (``c r u d``), Spark and Delta (``insert update_postimage delete``) or Flink
            (``+I +U -D``). It is not stored. A deletion needs values of ``unique`` and
            ``sequence_by`` alone; ``-U`` and ``update_preimage`` are passed over. Without a
            sequence the rows come in the order of the changes, the last of each key counts, and all
            are in memory together, in this process. None: each row is there.
        sequence_by
            The column of which a newer change of a row has a larger value, such as a position in
            the log of a database, or the time of the change; a null is less than all. Of several
            changes of a row the newest counts, in whatever order and in whichever upsert they come:
            one that is older than the row that is there is dropped, and so is one that is older
            than the deletion of its row, as long as the version of that is kept. Of equal ones
            the last counts, in the order in which the shuffle has them, and a row before a
            deletion.
            It is kept with the shuffle: later upserts leave it out.
        expected_version, transaction
            As for :func:`~arrow_shuffle.write_shuffle`.

        Returns
        -------
        ShuffleReceipt
            What was added, and how many rows that replaced.

        Raises
        ------
        DuplicateKeyError
            Two rows are equal in the columns of ``unique``, or one of these is null.
        OptionError
            No columns of the shuffle identify a row; or ``row_kind`` is given without a sequence
            where tasks of Spark write, which keep no order.
        ShuffleNotFoundError, ResultReleasedError, SchemaError, StorageError, CommitConflictError
            As for :meth:`append`; nothing is left behind.
        """
        from arrow_shuffle.write import append_shuffle

        return append_shuffle(
            source,
            self._storage,
            mode="upsert",
            row_kind=row_kind,
            sequence_by=sequence_by,
            options=options,
            columns=columns,
            filter=filter,
            num_map_tasks=num_map_tasks,
            for_spark=for_spark,
            expected_version=expected_version,
            transaction=transaction,
            spark=spark,
        )

    def consume(
        self,
        consumer: str,
        *,
        request_timeout: str | float = 0.0,
        allow_empty: bool = False,
        flush: bool = False,
    ) -> Consumption[Shuffle]:
        """Request what a named consumer has not consumed yet; see :func:`consume`.

        .. code-block:: python

            with orders.consume("report") as consumption:
                table = consumption.shuffle.to_table()
        """
        return consume(
            self._storage,
            consumer=consumer,
            request_timeout=request_timeout,
            allow_empty=allow_empty,
            flush=flush,
            options=self.given_options,
        )


def as_public(rows: stored.Shuffle) -> Shuffle:
    """Return a shuffle of the engine as its users have it; nothing is opened again."""
    shuffle = Shuffle.__new__(Shuffle)
    vars(shuffle).update(vars(rows))
    return shuffle


def _unpickled(make: Callable[..., stored.Shuffle], given: tuple[Any, ...]) -> Shuffle:
    return as_public(make(*given))


def open_shuffle(
    path: Place,
    version: VersionName | None = None,
    *,
    options: ReadOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Shuffle:
    """Open a committed version of a shuffle; no session of Spark is needed.

    .. code-block:: python

        orders = arrow_shuffle.open_shuffle("/data/orders")
        orders.read(columns=["customer"]).read_all()

    Parameters
    ----------
    path
        Directory or URI of the shuffle.
    version
        Number of the version; or name of its tag; or a time, as a ``datetime`` or a text such as
        ``2026-11-20 12:00+01:00``, for the newest version that was committed by then; without a
        zone it is a time of this process's. The newest when None.
    options
        Memory, and whether files are mapped; defaults when None. Operations on several shuffles
        read within those of the first.
    storage_options
        Of an object store: credentials, region, endpoint, as obstore names them. They win over the
        environment, travel to tasks, and are never shown. Verbs of the shuffle use them too.

    Returns
    -------
    Shuffle
        The version.

    Raises
    ------
    ShuffleNotFoundError
        There is no shuffle, no such version or tag, or no version that old; or it has expired. Its
        subclass ``ResultReleasedError``: the result was consumed or released.
    OptionError
        The path or an option has a bad value.
    CorruptShuffleError, FormatVersionError
        The commit log is damaged or of a newer format version.
    """
    if hasattr(type(version), "readStream"):
        msg = "version is a Spark session: no session opens a shuffle; .to_spark(spark) reads it"
        raise OptionError(msg)
    opened = stored.open_shuffle(path, version, options=options, storage_options=storage_options)
    return as_public(opened)


def consume(
    path: Place,
    *,
    consumer: str,
    request_timeout: str | float = 0.0,
    allow_empty: bool = False,
    flush: bool = False,
    options: ReadOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Consumption[Shuffle]:
    """Request a result as a named consumer, and wait until it has rows to consume.

    .. code-block:: python

        with arrow_shuffle.consume("/data/orders", consumer="report") as consumption:
            print(consumption.shuffle.count_rows())

    Parameters
    ----------
    path
        Directory or URI of the shuffle; it need not exist yet.
    consumer
        Name of the consumer, under which its progress is kept: 1 to 100 letters, digits, ``_`` and
        ``-``. One process holds it at a time.
    request_timeout
        Seconds, or text such as ``10min``, to wait for the result, for new rows of a pipelined one,
        or for the name. The consumer is registered while it waits, so a bounded result waits for
        it. If no result appears, the registration is removed. Where another machine may hold the
        name, it takes up to a minute more to learn whether its process is alive.
    allow_empty
        What to return if a pipelined result has nothing new by then: a shuffle without rows when
        True; when False, RequestTimeoutError is raised.
    flush
        Whether rows of a stream that have waited longer than its flush interval become a version
        first, and whenever there is nothing to consume while this waits. False: a consumer leaves
        them to the stream.
    options, storage_options
        As for :func:`~arrow_shuffle.open_shuffle`.

    Returns
    -------
    Consumption
        A context manager; its rows count as consumed when it ends without an exception.

    Raises
    ------
    ConsumerError
        A living process holds the name.
    ResultReleasedError
        The result was released.
    ResultFailedError
        Its producer failed during the wait, or before and none has committed since.
    RequestTimeoutError
        There was no result in time, or nothing new of it, unless ``allow_empty``.
    ShuffleNotFoundError
        There is no result, and no timeout; or versions expired before they were consumed.
    OptionError
        The name or the timeout is malformed.
    """
    from arrow_format.streaming.consumption import Consumption, request_result

    if hasattr(type(consumer), "readStream"):
        msg = (
            "consumer is a Spark session: expected a name, consume(path, consumer='report'); its "
            "rows are read by .shuffle.to_spark(spark)"
        )
        raise OptionError(msg)
    timeout = request_timeout
    if isinstance(timeout, str):
        timeout = SECONDS.of_text("request_timeout", timeout)
    consumer_at_work, rows = request_result(
        path, consumer, timeout, allow_empty, options, storage_options, flush=flush
    )
    return Consumption(consumer_at_work, as_public(rows))
