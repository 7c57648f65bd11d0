"""What can be asked of rows, and where it runs: the same on a shuffle and on an operation.

Operators are imported where they are used: a process that looks up a key begins with a shuffle.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from arrow_format.errors import OptionError, SchemaError
from arrow_format.extras import needed_by
from arrow_format.read.shuffle import Shuffle as StoredShuffle
from connector.session import active_session, session_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    import polars as pl
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark.sql import DataFrame, SparkSession

    from arrow_format.arrays.batch_stream import BatchReader
    from arrow_format.filters.keys import Keys
    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.operators.aggregation_plan import Aggregation
    from arrow_format.operators.asof_match import Direction
    from arrow_format.operators.asof_plan import Time, Tolerance
    from arrow_format.operators.described_calls import FrameCalls, MappedGroups
    from arrow_format.operators.description import Description, Selected
    from arrow_format.operators.explanation import Explanation
    from arrow_format.operators.join_plan import JoinKind
    from arrow_format.options import WriteMode, WriteOptions
    from arrow_format.storage.open import Place

    Spark: TypeAlias = SparkSession | Literal[True] | None
    """A session; True for the active one; None for this process."""
    OnColumns: TypeAlias = str | Sequence[str | tuple[str, str]] | None


class Rows(ABC):
    """Rows in subpartitions, which can be asked for: a :class:`Shuffle` or an :class:`Operation`.

    What is asked for is described first, and nothing is read; then it is run where you say:
    ``read`` in this process, ``to_spark`` in Spark, ``write`` into another shuffle.
    """

    @property
    @abstractmethod
    def _description(self) -> Description:
        """What is asked for."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """Columns of the rows."""

    def select(
        self,
        *columns: str | Sequence[str],
        filter: str | pc.Expression | None = None,
        key_values: Keys | None = None,
        subpartitions: int | Iterable[int] | None = None,
        latest_by: str | None = None,
    ) -> Operation:
        """Ask for some columns and some rows.

        .. code-block:: python

            orders.select("customer", "price", filter="day >= DATE '2026-01-01'")
            orders.select(key_values={"customer": [17, 18]})
            orders.select(latest_by="day", filter="price > 100")

        Parameters
        ----------
        columns
            Names of columns to deliver, in that order, or a list of them; all when none is given.
            What follows, a join for example, finds the partition keys of a shuffle whether they are
            selected or not.
        filter
            Rows for which it is true: text of a condition in Spark's SQL, or a
            :class:`pyarrow.compute.Expression`. Files, regions and chunks that cannot have such
            rows are not read. Dates and timestamps without a zone have that of the session, or of
            ``read(time_zone=...)``.
        key_values
            Rows of these keys: a table of the partition keys, or a dict of columns such as
            ``{"customer": [17, 18]}``, aligned by position. A null is a key like any other.
        subpartitions
            Rows of one subpartition, a range or several. An operation on several shuffles works on
            the same subpartitions of all of them.
        latest_by
            A column: only the last row of each key is read, that with the greatest value of it, in
            Spark's order, where a null is the smallest and NaN the greatest; of several with that
            value, the last in the order of the shuffle. It is chosen of all rows of the key, before
            ``filter`` and every filter that follows: a key whose last row is not open has no open
            row. Columns of ``unique`` are the key, without any those of the partitioner. For
            shuffles to which newer rows of a key are appended; see :meth:`Shuffle.latest_by`. All
            rows when None.

        Returns
        -------
        Operation
            The rows that are left.

        Raises
        ------
        SchemaError
            There is no such column; a value does not fit its type.
        OptionError
            A subpartition is out of range; the filter has a form that is not known; the rows have
            no keys. Of ``latest_by``: an earlier select has a filter on other columns than keys,
            or rows are made by an operation, broadcast or combined.
        """
        from arrow_format.operators.description import Selected

        names = _names(columns)
        numbers: Any = subpartitions
        if numbers is not None and not isinstance(numbers, range):  # which may be a long one
            numbers = tuple(numbers) if isinstance(numbers, Iterable) else (numbers,)
        return Operation(
            Selected(self._source, names, filter, _own(key_values), numbers, latest_by)
        )

    def join(
        self,
        other: Rows | Sequence[Rows],
        on: OnColumns = None,
        how: JoinKind = "inner",
        *,
        suffixes: Sequence[str] | None = None,
        time: Time | list[Time] | None = None,
        direction: Direction = "backward",
        tolerance: Tolerance | list[Tolerance] = None,
        allow_exact_matches: bool = True,
        ties: str | list[str | None] | None = None,
        then: Callable[[BatchReader], Iterable[pa.RecordBatch]] | None = None,
        schema: Any = None,  # noqa: ANN401  a StructType, without PySpark at hand
        check: bool = False,
    ) -> Operation:
        """Ask for the rows of a join with rows that are partitioned the same way.

        .. code-block:: python

            orders.join(customers, how="left")
            orders.select("customer", "price").join(people, on=[("customer", "id")])
            labels.join([balances, visits], how="asof", time="at", tolerance="7d")

        The rows are those of Spark's join: a null equals nothing, NaN equals NaN, -0.0 equals 0.0,
        and text is compared by its bytes. Columns are in the order of ``df.join(other, on=[...])``:
        keys with one name first and once, then the others of the left, then of the right. Rows stay
        in the subpartitions of this side, or of the other in a right join.

        An as-of join gives each of these rows once, in their order within a subpartition, with the
        columns of one row of each other: that of its key which is the last before its time
        (``direction``), or nulls where there is none. A null in a key or a time matches nothing,
        nor does a time that is NaN. Of rows with one key and one time, ``backward`` and ``nearest``
        take the last in the order of the shuffle, ``forward`` the first; merges keep that order,
        and a row that an upsert corrected comes later, unless further sort keys decide. Columns of
        the others come without keys and times of the same name.

        Parameters
        ----------
        other
            Rows that are co-partitioned with these: the same partitioner over the same number of
            subpartitions, with keys that it places alike; names of keys may differ. Hashed rows of
            8 and of 12 subpartitions are read by 4, the largest number that divides both. One side
            may be broadcast: the right one of an inner, left, semi, anti or as-of join, the left
            one of an inner or right join. Of an as-of join also several, joined in one pass.
        on
            Columns that are equal: names, or pairs (left, right) of names; they contain the
            partition keys. When None, the partition keys, if they have the same names.
        how
            ``inner``, ``left``, ``right``, ``full``, ``semi`` or ``anti``, or Spark's other names;
            or ``asof``.
        suffixes
            Appended to names that several sides have, one for each side, beginning with these rows;
            when None, such names are an error.
        time
            Of an as-of join, which needs it: the column of times, or a pair (left, right) of
            columns; a list has one for each of the others. Timestamps that all have a zone or have
            none, dates, integers or floats; units of timestamps may differ.
        direction
            ``backward``: the last row before the time; ``forward``: the first after it;
            ``nearest``: the one of both that is less far, the one before if they are equally far.
        tolerance
            How far a row may be at most, that much included: a timedelta or text such as ``"7d"``
            for timestamps and dates, where a day has 24 hours; a number for numbers; None for any.
            A list has one for each of the others. What it excludes is not read, as far as files and
            chunks have bounds of their times.
        allow_exact_matches
            Whether a row of an equal time is one before, and after.
        ties
            A column of the others: of rows with one key and one time, those with its greatest value
            are taken, in Spark's order, as the time at which a row was created. A list has one for
            each of the others.
        then
            ``then(joined)`` is called in each task with a reader of the rows it joined, and returns
            or yields the result: a partial sum, say, instead of every row. It must not depend on
            which rows a task has.
        schema
            Of what ``then`` yields, as for :meth:`map_groups`; given if and only if ``then`` is.
        check
            Ask the partitioner of each shuffle about each row that is read: the first one that lies
            elsewhere is a CorruptShuffleError with its file. Costs the decoding of the keys.

        Returns
        -------
        Operation
            The joined rows.

        Raises
        ------
        OptionError
            The sides are not co-partitioned, and the message says what differs; or ``on`` lacks
            partition keys; an argument is of another kind of join, or does not fit the times. When
            it is run: the number that divides both leaves fewer tasks than run at a time.
        SchemaError
            A column is missing; keys or times have types that are not compared.
        """
        from arrow_format.operators.asof_plan import time_requests
        from arrow_format.operators.described_joins import Joined, JoinedAsOf
        from arrow_shuffle.declared_schema import declared

        made = None if schema is None else declared(schema)
        asked: dict[str, Any] = {
            "on": _own(on),
            "suffixes": _own(suffixes),
            "then": then,
            "schema": None if made is None else made.schema,
            "declared": None if made is None else made.struct,
            "check": check,
        }
        example = 'orders.join(customers, how="left")'
        if how != "asof":
            given = (time, direction, tolerance, allow_exact_matches, ties)
            if given != (None, "backward", None, True, None):
                msg = (
                    f"how={how!r}: time, direction, tolerance, allow_exact_matches and ties are of "
                    'how="asof"'
                )
                raise OptionError(msg)
            right = _rows(other, "other", example)
            return Operation(Joined(self._description, right, how=how, **asked))
        others = tuple(
            _rows(each, "other", 'labels.join([balances], how="asof", time="at")')
            for each in (other if isinstance(other, list | tuple) else [other])
        )
        return Operation(
            JoinedAsOf(
                self._description,
                others,
                time_requests(len(others), time, tolerance, ties),
                direction=direction,
                allow_exact_matches=allow_exact_matches,
                **asked,
            )
        )

    def aggregate(
        self,
        by: str | Sequence[str],
        aggregations: Sequence[Aggregation] | Mapping[str, Aggregation | str] = (),
    ) -> Operation:
        """Ask for one row per group of rows with equal values.

        .. code-block:: python

            orders.aggregate("customer", {"spent": ("price", "sum"), "n": ("*", "count")})
            orders.aggregate("customer", [("price", "sum"), ("price", "avg")])

        Parameters
        ----------
        by
            Columns to group by; they contain the partition keys, so that no group spans two
            subpartitions. Nulls form a group; so do all NaN, and -0.0 with 0.0.
        aggregations
            (column, function) or (column, function, options), with results named ``price_sum``; or
            a mapping from names of results to these, or from columns to functions. When empty, the
            result is the distinct values of ``by``. Functions of Spark's SQL give its values and
            types: ``sum``, ``avg``, ``min``, ``max``, ``count`` (of ``"*"``: rows),
            ``count_distinct``, ``first``, ``last``, ``stddev``, ``collect_list`` and more; those
            that only PyArrow has give its results. The guide on joins and aggregation lists them.

        Returns
        -------
        Operation
            The columns of ``by``, then one for each aggregation.

        Raises
        ------
        OptionError
            ``by`` lacks partition keys, or a function is not known; rows are broadcast.
        SchemaError
            A column is missing, or a function does not take its type.

        While it is read, ArithmeticOverflowError for a result that exceeds its type.
        """
        from arrow_format.operators.described_calls import Aggregated

        return Operation(Aggregated(self._description, _own(by), _own(aggregations)))

    def map_groups(
        self,
        function: Callable[..., Any],
        schema: Any,  # noqa: ANN401  a StructType, without PySpark at hand
        *,
        sort_by: Sequence[str | tuple[str, str]] | str | None = (),
        check: bool = False,
        since: Literal["last", "all"] | None = None,
        name: str | None = None,
    ) -> Operation:
        """Ask for what a function returns for each group of rows with equal partition keys.

        .. code-block:: python

            def spread(orders):
                return orders.assign(share=orders.price / orders.price.sum())

            orders.map_groups(spread, "customer bigint, price double, share double")

        The result is that of Spark's ``groupBy(*keys).applyInPandas(function, schema)`` on these
        rows, without an exchange and a sort of them.

        Parameters
        ----------
        function
            ``function(frame)`` or ``function(key, frame)``. ``frame`` is a ``pandas.DataFrame``
            with the group's rows, ``key`` a tuple of the values of its keys; returns a
            ``pandas.DataFrame``. Frames are made by PySpark's converters, which need no session and
            no JVM. If the parameter for the rows is annotated as ``pyarrow.Table``, it is one
            instead, ``key`` is of ``pyarrow`` scalars, and the result is a ``pyarrow.Table``: that
            needs neither pandas nor PySpark. If it and the result are annotated as
            ``Iterator[pandas.DataFrame]``, it is an iterator over the rows, all in one frame.
            Parameters with a default are not counted. Nulls form a group; so do all NaN, and -0.0
            with 0.0.
        schema
            Of what the function returns: a ``pyarrow`` schema, text such as ``"k bigint, v
            double"``, or a StructType of PySpark. Columns are matched by name; those of a frame
            whose labels are no text, by position.
        sort_by
            Keys by which the rows of each group are sorted, ``("a", ("b", "descending"))``, with
            Spark's order of values and nulls. When empty, they come in the order of the shuffle.
        check
            As for :meth:`join`.
        since
            ``last``: only groups whose rows changed since the result was made are made again, as
            wholes, and replaced there by ``write(path, mode="replace_groups")``; all of them where
            there is no result, or others wrote it. A group that now returns no rows, or whose rows
            are gone, vanishes from the result, which is what a run of all groups makes of it. Its
            log says which version of these rows it has seen, of which function. ``all``: all are
            made again. Of a shuffle or a selection of it; the function returns the keys of its
            group in each row. None: all groups, wherever they go.
        name
            Of the function in the log of the result, with ``since``: 1 to 50 letters, digits, ``_``
            and ``-``. Its ``__name__`` when None. The log knows the function by its name alone:
            give another whenever the same rows would make others, by another body or selection.

        Returns
        -------
        Operation
            What the function returned; groups in no particular order. A group is in memory as a
            whole: of up to 3/16 of ``memory_bytes`` always, and refused with an error that names it
            where it and what is read with it exceed 3/8.

        Raises
        ------
        OptionError
            The rows have no partition keys, or some are broadcast; the function takes other
            arguments, or has no name and ``since`` is given.
        SchemaError
            A column is missing, or has no order to sort by.
        MissingPackageError
            The function takes frames, and pandas or PySpark is not installed.

        While it is read: what the function raised, with a note of the group and the path.
        """
        from arrow_format.operators.changed_groups import check_since
        from arrow_format.operators.described_calls import MappedGroups
        from arrow_format.operators.group_calls import form_of
        from arrow_shuffle.declared_schema import declared

        frames = None if form_of(function).takes == "table" else _frame_calls()
        made = declared(schema)
        asked = MappedGroups(
            self._description,
            function,
            *made,
            sort_by=_own(sort_by),
            check=check,
            frame_calls=frames,
            since=since,
            name=check_since(since, function, name),
        )
        return Operation(asked)

    def cogroup(self, other: Rows) -> Cogroup:
        """Put the rows of each key beside those of the same key in other rows.

        .. code-block:: python

            def visits_before(key, orders, visits):
                return orders.assign(visits=len(visits))

            orders.cogroup(visits).map_groups(visits_before, "customer bigint, visits bigint")

        Parameters
        ----------
        other
            Rows that are co-partitioned with these, as for :meth:`join`, by keys of equal types;
            neither side is broadcast.

        Returns
        -------
        Cogroup
            Its ``map_groups`` asks for what a function returns for each key of either side.
        """
        return Cogroup(self._description, _rows(other, "other", "orders.cogroup(visits)"))

    def map_subpartitions(
        self,
        function: Callable[..., Iterable[pa.RecordBatch]],
        schema: Any,  # noqa: ANN401  a StructType, without PySpark at hand
        *,
        others: Rows | Sequence[Rows] = (),
    ) -> Operation:
        """Ask for what a function yields for each subpartition of these rows, and of others.

        .. code-block:: python

            def last_visit(subpartition, visits, prices):
                rows = visits.read_all().join(prices.read_all(), "item")
                yield from rows.group_by("user").aggregate([("at", "max")]).to_batches()

            visits.map_subpartitions(last_visit, "user string, at_max timestamp", others=[prices])

        Parameters
        ----------
        function
            ``function(subpartition, *readers)``, called once for every subpartition, the empty ones
            too, with a reader of the rows of each; returns or yields record batches, whose buffers
            it may use again. A reader buffers a bounded part of its rows, may be left half read,
            and is closed when the function's result ends.
        schema
            Of what the function yields, as for :meth:`map_groups`.
        others
            Rows that are co-partitioned with these, as for :meth:`join`; of a broadcast shuffle,
            each subpartition reads all.

        Returns
        -------
        Operation
            What the function yielded, in the order of subpartitions.

        Raises
        ------
        OptionError, SchemaError
            An argument does not fit the rows, or they are not co-partitioned.

        While it is read: what the function raised, with a note of the subpartition and the path.
        """
        from arrow_format.operators.described_calls import MappedSubpartitions
        from arrow_shuffle.declared_schema import declared

        given: list[object] = list(others) if isinstance(others, list | tuple) else [others]
        inputs = [self._description, *(_rows(each, "others", "others=[prices]") for each in given)]
        return Operation(MappedSubpartitions(tuple(inputs), function, *declared(schema)))

    def to_spark(
        self,
        spark: Spark = None,
        *,
        target_partition_bytes: int | None = None,
        coalesce: bool | None = None,
        split_skewed: bool = False,
        with_subpartition: bool = False,
    ) -> DataFrame:
        """Return the rows as a DataFrame of Spark.

        .. code-block:: python

            orders.join(customers).to_spark(spark).groupBy("country").count().show()

        The version of each shuffle is fixed: later commits do not change the DataFrame. The tasks
        must see the paths as this process does.

        Parameters
        ----------
        spark
            Session, classic or Connect; the active one when None.
        target_partition_bytes
            Bytes on disk that one task reads, of all shuffles together; one large subpartition may
            be more. 64 MiB when None; where a function is called there are two tasks a core at
            least.
        coalesce, split_skewed, with_subpartition
            Of rows that are read as they are, a shuffle or a selection of it. Whether one Spark
            partition reads adjacent subpartitions, otherwise each is exactly one; whether several
            read one that is larger than the target; whether to append the int column
            ``_subpartition``.

        Returns
        -------
        pyspark.sql.DataFrame
            Lazy; its Spark partitions are in subpartition order. A shuffle or a selection of it is
            read in Spark's JVM where the session can (:func:`spark_config`) and nothing is asked
            for that only the reader in Python has: ``explain`` says which reads, and why. The JVM
            divides rows into Spark partitions by itself, and does not keep their order;
            ``coalesce=True``, or another argument that divides them, has Python read.

        Raises
        ------
        OptionError, SchemaError, ShuffleNotFoundError
            The rows, or an argument, do not fit; raised here and not at the first action.
        pyspark.errors.PySparkException
            At the first action; it contains the error of this package, or of a function.
        """
        with needed_by("to_spark()"):
            from connector.operators.spark_run import frame_of
            from connector.read import frame_of_shuffle
        session = session_of(spark) or active_session()
        stored = _stored(self._description)
        if stored is not None:
            shuffle, asked = stored
            return frame_of_shuffle(
                session,
                shuffle.latest_by(asked.latest_by),
                columns=asked.columns,
                subpartitions=asked.subpartitions,
                filter=asked.filter,
                keys=asked.key_values,
                coalesce=coalesce,
                split_skewed=split_skewed,
                with_subpartition=with_subpartition,
                target_partition_bytes=target_partition_bytes,
            )
        if coalesce is False or split_skewed or with_subpartition:
            msg = (
                "coalesce, split_skewed and with_subpartition are for the rows of a shuffle or a "
                "selection of it: leave them out, or write the result first and read that"
            )
            raise OptionError(msg)
        return frame_of(session, self._description, target_partition_bytes=target_partition_bytes)

    def write(
        self,
        path: Place,
        *,
        keys: str | Sequence[str] | None = None,
        num_subpartitions: int | None = None,
        mode: WriteMode = "errorifexists",
        options: WriteOptions | None = None,
        spark: Spark = None,
        executor: Executor | None = None,
        time_zone: str | None = None,
        target_partition_bytes: int | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> ShuffleReceipt:
        """Write the rows as a shuffle, in the tasks that make them, and commit it.

        .. code-block:: python

            orders.join(customers).write("/data/joined")
            orders.write("/data/by_city", keys="city", num_subpartitions=64, spark=spark)

        Rows stay in the subpartitions that they came from, without an exchange, where they have the
        partition keys of the input. Each row is checked: one whose key belongs elsewhere is an
        error that names it.

        Parameters
        ----------
        path
            Directory or URI of the shuffle that is written.
        keys
            Columns to partition it by, as Spark hashes them. Those of the input when None; if they
            are these, and n is its too, rows stay.
        num_subpartitions
            That of the input when None.
        mode
            ``errorifexists``, ``append``, ``upsert``, ``overwrite`` or ``ignore``; and
            ``replace_groups``, of and only of ``map_groups(since=)``: subpartitions, sort keys,
            ``unique`` and codec are then those of the shuffle that is there, and the receipt
            (``notes``) says what was computed. Where nothing changed nothing is, and the receipt
            (``is_repetition``) is that of the version which has seen all.
        options
            How to write: a :class:`WriteOptions`; defaults when None.
        spark
            A session, whose tasks write; True for the active one; this process when None.
        executor, time_zone
            As for :meth:`Operation.read`; of this process only.
        target_partition_bytes
            Bytes on disk that one task reads; 64 MiB in Spark, 16 MiB here when None.
        storage_options
            Of the object store of ``path``: credentials, region, endpoint, as obstore names them.

        Returns
        -------
        ShuffleReceipt
            What was written and committed.

        Raises
        ------
        OptionError, SchemaError
            The rows do not have the keys, or an argument does not fit; a row belongs elsewhere. Of
            ``replace_groups``: the shuffle is partitioned by other columns than the groups, or was
            made by another function or of another shuffle; or a row has another key than its group.
        ShuffleExistsError
            There is a shuffle, and ``mode`` is ``errorifexists``.
        ShuffleNotFoundError
            Of ``replace_groups``: the version of the rows that the shuffle has seen has expired, so
            that all groups are to be computed again, by ``since="all"``.
        StorageError, CommitConflictError
            It could not be written; nothing is left behind. Of ``replace_groups`` also where rows
            were changed there meanwhile.
        """
        from arrow_format.operators.into import Into
        from arrow_format.operators.local_run import write_here
        from arrow_format.options import check_mode
        from arrow_format.storage.open import open_storage

        into = Into(
            open_storage(path, storage_options), keys, num_subpartitions, check_mode(mode), options
        )
        session = session_of(spark)
        if session is not None and (executor is not None or time_zone is not None):
            msg = "executor and time_zone are of this process: leave them out, Spark has its own"
            raise OptionError(msg)
        asked = self._changing(into.mode)
        description = self._description
        if asked is not None:
            from arrow_format.operators.changed_groups import changed_groups

            changed = changed_groups(asked, into.storage)
            if changed.seen is not None:
                return changed.receipt(into.storage)
            replacing = changed.replacing
            description, into = (
                changed.description,
                replace(into, mode=replacing.mode, replacing=replacing),
            )
        if session is None:
            receipt = write_here(
                description,
                into,
                executor=executor,
                time_zone=time_zone,
                target_partition_bytes=target_partition_bytes,
            )
        else:
            from connector.operators.spark_run import write_in_spark

            receipt = write_in_spark(
                session, description, into, target_partition_bytes=target_partition_bytes
            )
        return receipt if into.replacing is None else into.replacing.noted(receipt)

    def _changing(self, mode: str | None) -> MappedGroups | None:
        """Return the groups that a result asks for; None of other operations.

        Raises OptionError where the mode is of them alone, or they have another.
        """
        from arrow_format.operators.described_calls import MappedGroups

        asked = self._description
        if isinstance(asked, MappedGroups) and asked.since is not None:
            if mode not in (None, "replace_groups"):
                asked.check_runs()
            return asked
        if mode == "replace_groups":
            msg = (
                'mode="replace_groups": which groups are replaced is known of '
                'map_groups(function, schema, since="last") alone; append, upsert or overwrite'
            )
            raise OptionError(msg)
        return None

    @property
    def _source(self) -> StoredShuffle | Description:
        return self._description


class Cogroup:
    """Rows of two shuffles or operations by equal keys; see :meth:`Rows.cogroup`."""

    def __init__(self, left: Description, right: Description) -> None:
        self._sides = left, right

    def map_groups(
        self,
        function: Callable[..., Any],
        schema: Any,  # noqa: ANN401  a StructType, without PySpark at hand
        *,
        check: bool = False,
    ) -> Operation:
        """Ask for what a function returns for each key that a row of either side has.

        .. code-block:: python

            def totals(orders: pa.Table, refunds: pa.Table):
                ...

            orders.cogroup(refunds).map_groups(totals, "customer bigint, left double")

        The result is that of Spark's ``cogroup(...).applyInPandas(function, schema)``, without an
        exchange and a sort. A side that has no rows of the key is empty.

        Parameters
        ----------
        function
            ``function(left, right)`` or ``function(key, left, right)``, with frames of pandas, or
            tables of PyArrow where its last parameter is annotated as one, as for
            :meth:`Rows.map_groups`; it takes no iterators.
        schema, check
            As for :meth:`Rows.map_groups`.

        Returns
        -------
        Operation
            What the function returned, in the subpartitions of the left; groups in no particular
            order. Those of both sides are in memory together, within the bounds of
            :meth:`Rows.map_groups`.

        Raises
        ------
        OptionError
            The sides are not co-partitioned by keys, or some rows are broadcast; the function takes
            other arguments.
        SchemaError
            A column is missing, or keys are of different types.
        MissingPackageError
            The function takes frames, and pandas or PySpark is not installed.
        """
        from arrow_format.operators.described_calls import Cogrouped
        from arrow_format.operators.group_calls import form_of
        from arrow_shuffle.declared_schema import declared

        calls = _frame_calls() if form_of(function, 2).takes == "frame" else None
        return Operation(
            Cogrouped(*self._sides, function, *declared(schema), check=check, frame_calls=calls)
        )


class Operation(Rows):
    """What was asked of rows: a selection, a join, an aggregation, calls of a function.

    Made by the methods of :class:`Shuffle`, and of other operations, so that they chain. It is
    checked when it is made, and reads nothing before it is run. A function in a chain may be called
    more than once for the same rows, as where Spark repeats a task: let it return the same. DuckDB,
    Polars, pandas and all other consumers of Arrow's C stream interface accept the object itself,
    and read all its rows.

    .. code-block:: python

        per_country = orders.join(customers).aggregate("customer", {"spent": ("price", "sum")})
        per_country.read().read_all()      # in this process: a table
        per_country.to_spark(spark)        # in Spark: a DataFrame
        per_country.write("/data/spent")   # a shuffle, partitioned as its input
        print(per_country.explain())
    """

    def __init__(self, description: Description) -> None:
        from arrow_format.operators.description import ANY_PLACE

        self._asked = description
        self._plan = description.bind(ANY_PLACE)

    @property
    def _description(self) -> Description:
        return self._asked

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows."""
        return self._plan.schema

    @property
    def num_subpartitions(self) -> int:
        """Number of subpartitions that the rows lie in."""
        return self._plan.placed_as.num_subpartitions

    def read(
        self,
        *,
        ordered: bool = True,
        executor: Executor | None = None,
        time_zone: str | None = None,
        target_partition_bytes: int | None = None,
        batch_size: int | None = None,
        with_subpartition: bool = False,
    ) -> BatchReader:
        """Read the rows in this process.

        .. code-block:: python

            spent = orders.aggregate("customer", {"spent": ("price", "sum")})
            for batch in spent.read():
                print(batch.num_rows)

        Parameters
        ----------
        ordered
            Of a selection of a shuffle: whether rows come by ascending subpartition, those of each
            in order; otherwise as they lie in the files, which is faster. Rows of another operation
            come in the order of tasks, and in none within, but for those of an as-of join.
        executor
            What runs the tasks: a ``ThreadPoolExecutor`` or ``ProcessPoolExecutor`` of
            ``concurrent.futures``, which stays open until all is read, and is not shut down. When
            None, threads on all cores, which end with the reader. Functions are called by several
            threads at a time, and one that yields may go on in another; to processes they go by
            pickle, so they are at the top level of a module.
        time_zone
            Of timestamps that functions read, and of filters that are text: what the session's is
            in Spark. When None, timestamps are as they are stored, frames have UTC, and a filter
            that needs a zone is refused.
        target_partition_bytes
            Bytes on disk that one task reads, of all shuffles together; 16 MiB when None.
        batch_size, with_subpartition
            Of a selection of a shuffle, as for :meth:`Shuffle.read`.

        Returns
        -------
        BatchReader
            Yields record batches, once. Tasks begin when it is read, and stop when it is closed,
            dropped, or fails. All workers and the results that wait share ``memory_bytes`` of the
            first shuffle's :class:`ReadOptions` in equal parts; where it was opened without any,
            each part is 256 MiB.

        Raises
        ------
        OptionError, SchemaError
            An argument does not fit.
        ShuffleError
            While reading: a file is damaged, a version has expired, a process of the executor died.
        """
        stored = _stored(self._asked, keys_too=True)
        if stored is not None and executor is None:
            shuffle, asked = stored
            latest = shuffle.latest_by(asked.latest_by)
            rows = latest.where(asked.filter, time_zone=time_zone)
            if asked.key_values is not None:
                rows = rows.where(rows.bound_keys(asked.key_values))
            return rows.read(
                asked.subpartitions,
                asked.columns,
                ordered=ordered,
                batch_size=batch_size,
                with_subpartition=with_subpartition,
            )
        if batch_size is not None or with_subpartition:
            msg = "batch_size and with_subpartition: only for a selection of a shuffle"
            raise OptionError(msg)
        from arrow_format.operators.local_run import read_here

        return read_here(
            self._asked,
            executor=executor,
            time_zone=time_zone,
            target_partition_bytes=target_partition_bytes,
        )

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return all rows as an Arrow C stream, so that DuckDB, Polars and pandas take this."""
        return self.read().__arrow_c_stream__(requested_schema)

    def to_table(self) -> pa.Table:
        """Return the rows in memory; as :meth:`read`.

        .. code-block:: python

            orders.select("customer", "price").to_table()
        """
        return self.read().read_all()

    def to_pandas(self) -> Any:  # noqa: ANN401
        """Return the rows as a :class:`pandas.DataFrame`, in the types that PyArrow chooses.

        .. code-block:: python

            orders.select("customer", "price").to_pandas()
        """
        return self.read().read_pandas()

    def to_polars(self) -> pl.DataFrame:
        """Return the rows as a frame of Polars; MissingPackageError where it is not installed.

        .. code-block:: python

            orders.join(customers).to_polars()
        """
        with needed_by("to_polars()"):
            import polars as pl
        return pl.DataFrame(self.read())

    def explain(
        self,
        spark: Spark = None,
        *,
        time_zone: str | None = None,
        target_partition_bytes: int | None = None,
        into: Place | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Explanation:
        """Return what would be read and skipped, why, and by how many tasks; reads no rows.

        .. code-block:: python

            print(orders.select("price", key_values={"customer": 17}).explain())

        Parameters
        ----------
        spark
            A session, whose tasks are counted; True for the active one; this process when None.
        time_zone
            Of this process: of filters that are text, as for :meth:`read`.
        target_partition_bytes
            Bytes on disk that one task reads; 64 MiB in Spark, 16 MiB here when None.
        into, storage_options
            Of ``map_groups(since=)``: the path of the result, which says what groups are made
            again. Keys of what changed are read, and of the shuffle those of the same
            subpartitions, to count the chunks that have rows of these groups.

        Returns
        -------
        Explanation
            ``str`` shows it, beginning with the place.
        """
        from arrow_format.operators.explanation import explain_plan
        from arrow_format.operators.local_run import planned_here

        session = session_of(spark)
        asked = self._asked
        notes: tuple[str, ...] = ()
        changing = None if into is None else self._changing("replace_groups")
        if into is not None and changing is not None:
            from arrow_format.operators.changed_groups import changed_groups
            from arrow_format.storage.open import open_storage

            changed = changed_groups(changing, open_storage(into, storage_options))
            asked, notes = changed.description, changed.lines()
        if session is None:
            plan = planned_here(asked, time_zone, target_partition_bytes)
            return explain_plan("in this process", *plan, notes=notes)
        from connector.operators.spark_run import planned_in_spark

        plan = planned_in_spark(session, asked, target_partition_bytes)
        reader = _reader_in_spark(session, asked)
        return explain_plan("in Spark", *plan, reader=reader, notes=notes)

    def __repr__(self) -> str:
        return (
            f"<Operation {self._plan.what} of {self._plan.paths}: {', '.join(self.schema.names)}>"
        )

    def _repr_html_(self) -> str:
        from arrow_format.read.presentation import html_of_schema, html_table

        facts = [("operation", self._plan.what), ("of", self._plan.paths)]
        return html_table(facts) + html_of_schema(self.schema)


def _frame_calls() -> FrameCalls:
    with needed_by("map_groups, unless its function takes a pyarrow.Table"):
        from connector.operators.frame_calls import frame_calls
    return frame_calls


def _stored(
    description: Description, *, keys_too: bool = False
) -> tuple[StoredShuffle, Selected] | None:
    """Return the shuffle, and what one read of it delivers; None where it takes more.

    ``keys_too`` tells whether a read takes both a filter and keys, and rows that are restricted
    already: Spark's data source does not.
    """
    from arrow_format.operators.description import Selected

    if not isinstance(description, Selected) or not isinstance(description.source, StoredShuffle):
        return None
    shuffle = description.source
    is_twice = description.filter is not None and description.key_values is not None
    if not keys_too and (is_twice or shuffle.filter is not None):
        return None
    return shuffle, description


def _reader_in_spark(session: SparkSession, description: Description) -> str | None:
    """Return which reader brings rows into Spark, and why; None where operators read them."""
    stored = _stored(description)
    if stored is None:
        return None
    from connector.jvm_reader import why_not_jvm

    shuffle, asked = stored
    why = why_not_jvm(
        session,
        shuffle.latest_by(asked.latest_by),
        filter=asked.filter,
        keys=asked.key_values,
        subpartitions=asked.subpartitions,
    )
    return "in Spark's JVM" if why is None else f"in Python, not in Spark's JVM: {why}"


def _own(given: Any) -> Any:  # noqa: ANN401  of any type
    """Return an argument that its caller does not change later: a description stays as it was."""
    if isinstance(given, Mapping):
        return {name: _own(value) for name, value in given.items()}
    if isinstance(given, list):
        return [_own(value) for value in given]
    if isinstance(given, Iterator):  # which is empty when it is bound again
        return list(given)
    is_array = hasattr(given, "__array__") and not type(given).__module__.startswith("pyarrow")
    return copy(given) if is_array else given


def _names(columns: tuple[object, ...]) -> tuple[str, ...] | None:
    """Return names of columns as they were given; None for none."""
    if len(columns) == 1 and isinstance(columns[0], list | tuple):
        columns = tuple(columns[0])
        if not columns:
            msg = "select: the list of columns is empty: name one, or leave it out for all"
            raise SchemaError(msg)
    for column in columns:
        if not isinstance(column, str):
            msg = (
                f"select: column {column!r}: expected names, such as "
                'orders.select("customer", "price"); a condition is filter=...'
            )
            raise SchemaError(msg)
    return columns or None  # type: ignore[return-value]


def _rows(given: object, what: str, example: str) -> Description:
    """Return the description of rows that were given; raises OptionError for anything else."""
    if isinstance(given, Rows):
        return given._description
    hint = ""
    if isinstance(given, str | os.PathLike):
        hint = f" Open it first: open_shuffle({os.fspath(given)!r})."
    msg = (
        f"{what} is {type(given).__name__}: expected a shuffle that is open, or an operation."
        f"{hint} For example {example}"
    )
    raise OptionError(msg)
