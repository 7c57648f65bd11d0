"""A user's function per group of a kept shuffle: ``applyInPandas`` without the exchange."""

from __future__ import annotations

import collections.abc
import inspect
import re
import typing
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.selection import take
from arrow_format.arrays.stored_types import conform, in_time_zone
from arrow_format.errors import OptionError
from arrow_format.extras import require
from arrow_format.keys.sort_keys import check_sort_by
from arrow_format.operators.groups import GroupBlock, group_keys, grouped_blocks
from arrow_format.operators.inputs import open_shuffles, where
from arrow_format.operators.into import check_into
from arrow_format.operators.tasks import Operation
from connector.operators.group_calls import FrameCall, GroupCall, GroupsForm, TableCall
from connector.operators.tasks import (
    run_in_groups,
    session_settings,
    session_time_zone,
    spark_struct,
)
from connector.options.batch import DEFAULT_TARGET_PARTITION_BYTES
from connector.source.reader import spark_schema
from connector.spark_types import arrow_schema_of, check_sort_keys, spark_schema_from_json
from connector.spark_version import PandasSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    import pyarrow.compute as pc
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.keys.sort_keys import SortBy
    from arrow_format.operators.inputs import Path
    from arrow_format.operators.into import Options
    from arrow_format.operators.placement import Result
    from arrow_format.options import WriteMode
    from arrow_format.read.shuffle import Shuffle
    from arrow_format.storage.open import Place


@overload
def map_groups(
    spark: SparkSession,
    path: Path,
    function: Callable[..., Any],
    schema: StructType | pa.Schema | str,
    *,
    columns: Sequence[str] | None = None,
    filter: str | pc.Expression | None = None,
    sort_by: Sequence[str | tuple[str, str]] | str | None = (),
    subpartitions: int | Iterable[int] | None = None,
    version: int | None = None,
    target_partition_bytes: int = DEFAULT_TARGET_PARTITION_BYTES,
    check: bool = False,
    into: None = None,
    options: Options = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame: ...
@overload
def map_groups(
    spark: SparkSession,
    path: Path,
    function: Callable[..., Any],
    schema: StructType | pa.Schema | str,
    *,
    columns: Sequence[str] | None = None,
    filter: str | pc.Expression | None = None,
    sort_by: Sequence[str | tuple[str, str]] | str | None = (),
    subpartitions: int | Iterable[int] | None = None,
    version: int | None = None,
    target_partition_bytes: int = DEFAULT_TARGET_PARTITION_BYTES,
    check: bool = False,
    into: Place,
    keys: str | Sequence[str] | None = None,
    num_subpartitions: int | None = None,
    mode: WriteMode = "errorifexists",
    options: Options = None,
    storage_options: Mapping[str, str] | None = None,
) -> ShuffleReceipt: ...
def map_groups(
    spark: SparkSession,
    path: Path,
    function: Callable[..., Any],
    schema: StructType | pa.Schema | str,
    *,
    columns: Sequence[str] | None = None,
    filter: str | pc.Expression | None = None,
    sort_by: Sequence[str | tuple[str, str]] | str | None = (),
    subpartitions: int | Iterable[int] | None = None,
    version: int | None = None,
    target_partition_bytes: int = DEFAULT_TARGET_PARTITION_BYTES,
    check: bool = False,
    into: Place | None = None,
    keys: str | Sequence[str] | None = None,
    num_subpartitions: int | None = None,
    mode: WriteMode = "errorifexists",
    options: Options = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame | ShuffleReceipt:
    """Call a function once per group of rows with equal partition keys, in the task that reads it.

    .. code-block:: python

        def spread(orders):
            return orders.assign(share=orders.price / orders.price.sum())

        map_groups(spark, path, spread, "customer bigint, price double, share double")

    The result is that of ``groupBy(*keys).applyInPandas(function, schema)`` on the rows of the
    shuffle, without an exchange and a sort of them, and they never pass through the JVM; what the
    function returns does, unless it is written with ``into``.

    Parameters
    ----------
    spark
        Session, classic or Connect.
    path
        Path or URI of a shuffle with partition keys: by hash, by range or by column.
    function
        ``function(frame)`` or ``function(key, frame)``, called once for each group. ``frame`` is a
        ``pandas.DataFrame`` with the group's rows, ``key`` a tuple of the values of its keys;
        returns a ``pandas.DataFrame``. If the parameter for the rows is annotated as
        ``pyarrow.Table``, it is one instead, ``key`` is of ``pyarrow`` scalars, and the result is a
        ``pyarrow.Table``, as in ``applyInArrow``. If it and the result are annotated as
        ``Iterator[pandas.DataFrame]``, it is an iterator over the rows, all in one frame, and the
        function returns or yields frames, as in ``applyInPandas`` from Spark 4.1 on. Parameters
        with a default are not counted. Nulls form a group; so do all NaN, and -0.0 with 0.0. Values
        have the types, and timestamps the time zone, of ``applyInPandas``.
    schema
        Of what the function returns: a StructType, DDL text or a ``pyarrow`` schema. Columns are
        matched by name; those of a frame whose labels are no text, by position. Values of a frame
        are cast as in ``applyInPandas``, with the session's settings of it; a table must have the
        types.
    columns
        Columns of ``frame``, in that order; all when None. Others are not decoded, unless they are
        keys.
    filter
        Only the rows for which it is true: text or an expression, as for
        :func:`~connector.read_shuffle`. A group without such rows is left out.
    sort_by
        Keys by which the rows of each group are sorted, ``("a", ("b", "descending"))``, with
        Spark's order of values and nulls. When empty, they come in the order of the shuffle.
    subpartitions
        One, a range or several; all when None.
    version
        The newest when None.
    target_partition_bytes
        Bytes on disk that one task may read; one large subpartition may be more. However few bytes
        there are, there are two tasks for each core that Spark has.
    check
        Ask the partitioner of the shuffle about each row that is read: the first one that is in
        another subpartition than it belongs to is a CorruptShuffleError with its file. Otherwise
        rows are taken to be where the log says. Costs the decoding of the keys.
    into
        Path or URI of a shuffle that the tasks write the result to, instead of passing it to the
        JVM. Rows stay in the subpartitions that they came from, without an exchange, where the
        result has the partition keys of the input. Each row is checked: one whose key
        belongs elsewhere is an error that names it.
    keys
        With ``into`` only: columns of the result to partition it by, as Spark hashes them. If
        they are the partition keys of the input, and n is its too, rows stay.
    num_subpartitions, mode
        With ``into`` only: of the shuffle that is written, as for
        :func:`~connector.write_shuffle`; the number is that of the input when None.
    options
        Memory of a task, and whether files are mapped: a :class:`~arrow_format.ReadOptions`. With
        ``into`` also, or instead, how to write: a :class:`~arrow_format.WriteOptions`. Defaults
        when None.
    storage_options
        Of an object store: credentials, region, endpoint, as obstore names them. They win over the
        environment, travel to the tasks, and are never shown.

    Returns
    -------
    DataFrame or ShuffleReceipt
        Lazy; groups in no particular order. With ``into``, once all is written and committed, its
        receipt. A group is in memory as a whole: of up to 3/16 of ``memory_bytes`` (48 MiB in Arrow
        by default) always, and refused with an error that names it where it and what is read with
        it exceed 3/8. The task, which reads and orders several small subpartitions together, takes
        up to ``memory_bytes``, besides the frames; with ``into`` also what writing takes.

    Raises
    ------
    MissingPackageError
        pandas is not installed.
    ShuffleNotFoundError, OptionError, SchemaError, CorruptShuffleError
        An argument does not fit the shuffle, or it cannot be opened; raised here and not at the
        first action. So is a shuffle without partition keys, or with broadcast rows.
    pyspark.errors.PySparkException
        At the first action. It contains what the function raised, with the group and the path;
        OptionError for a group that is too large.
    """
    reading, target = check_into(
        into,
        options,
        keys=keys,
        num_subpartitions=num_subpartitions,
        mode=mode,
        storage_options=storage_options,
    )
    (opened,) = open_shuffles(path, version, reading, storage_options, check=check)
    own_keys = group_keys(opened)
    asked = form_of(function)
    takes_key, takes_table = asked.takes_key, asked.takes == "table"
    if not takes_table:
        require("pandas", "map_groups, unless its function takes a pyarrow.Table,")
    given = opened.schema_of(columns)
    if not given.names:
        msg = "columns is empty: a frame without columns has no rows; name one"
        raise OptionError(msg)
    if not takes_table:
        # Spark makes the frames, in a task; a type that it lacks is refused here, by column.
        spark_schema(opened, list(dict.fromkeys([*given.names, *(own_keys if takes_key else ())])))
    order = check_sort_by(opened.schema, sort_by)
    if opened.spark_schema is not None:
        sorted_by = [name for name, _ in order]
        check_sort_keys(spark_schema_from_json(opened.spark_schema, sorted_by), order)
    zone = session_time_zone(spark)
    opened = where(opened, filter, session_settings(spark, filter))
    struct = spark_struct(spark, schema)
    names = dict.fromkeys([*given.names, *own_keys, *(name for name, _ in order)])
    form = GroupsForm(
        path=opened.path,
        keys=own_keys,
        columns=tuple(given.names),
        takes_key=takes_key,
        takes_frames=asked.takes == "frames",
        schema=arrow_schema_of(struct),
    )
    call: GroupCall = (
        TableCall(form, function)
        if takes_table
        else FrameCall(form, function, struct, PandasSettings.of(spark.conf, zone))
    )
    work = EachGroup(opened, tuple(names), order, call, zone)
    return run_in_groups(
        spark,
        Operation((opened,), work, candidates=opened.candidates()),
        struct,
        what="map_groups",
        subpartitions=subpartitions,
        target_partition_bytes=target_partition_bytes,
        into=target,
        calls_function=True,
    )


@dataclass(frozen=True)
class Form:
    """What a function of a group takes."""

    takes_key: bool
    takes: Literal["frame", "frames", "table"]


def form_of(function: Any) -> Form:  # noqa: ANN401
    """Return what a function takes, by its parameters and their annotations; raises OptionError."""
    if not callable(function):
        msg = f"function is {type(function).__name__}: expected a callable(frame) or (key, frame)"
        raise OptionError(msg)
    signature = inspect.signature(function)
    parameters = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    if len(parameters) not in (1, 2):
        msg = (
            f"function takes {len(parameters)} arguments: expected function(frame) or "
            "function(key, frame)"
        )
        raise OptionError(msg)
    while isinstance(function, partial):
        function = function.func
    takes_key, of_rows = len(parameters) == 2, parameters[-1]
    hints = {of_rows.name: of_rows.annotation, "return": signature.return_annotation}
    if any(isinstance(annotation, str) for annotation in hints.values()):
        # One that only a type checker imports.
        with suppress(NameError, AttributeError, KeyError, TypeError):
            method = function if inspect.isroutine(function) else type(function).__call__
            hints |= typing.get_type_hints(method)
    given = hints[of_rows.name]
    if given in (pa.Table, "pa.Table", "pyarrow.Table"):
        return Form(takes_key, "table")
    if _is_iterator_of(given, "RecordBatch"):
        msg = (
            "function takes an iterator of pyarrow.RecordBatch: expected a pyarrow.Table, an "
            "iterator of pandas.DataFrame, or a frame; map_subpartitions hands over batches"
        )
        raise OptionError(msg)
    # As applyInPandas decides: by both, and from the annotations alone.
    if _is_iterator_of(given, "DataFrame") and _is_iterator_of(hints["return"], "DataFrame"):
        return Form(takes_key, "frames")
    return Form(takes_key, "frame")


def _is_iterator_of(annotation: Any, kind: str) -> bool:  # noqa: ANN401
    """Whether an annotation is an iterator of a class of that name; text may not be resolved."""
    if isinstance(annotation, str):
        return re.fullmatch(rf"([\w.]+\.)?Iterator\[([\w.]+\.)?{kind}\]", annotation) is not None
    items = typing.get_args(annotation)
    return (
        typing.get_origin(annotation) is collections.abc.Iterator
        and len(items) == 1
        and getattr(items[0], "__name__", None) == kind
    )


@dataclass(frozen=True)
class EachGroup:
    """Reads subpartitions, and yields what the function returns for each of their groups."""

    shuffle: Shuffle
    columns: tuple[str, ...]
    sort_by: SortBy
    call: GroupCall
    time_zone: str

    def __call__(self, subpartitions: Sequence[int]) -> Generator[Result]:
        """Yield the results, each row with the subpartition of its group."""
        shuffle, keys = self.shuffle, self.call.form.keys
        place = shuffle.partitioner.bind(shuffle.schema_of(keys), shuffle.num_subpartitions, 0)  # type: ignore[union-attr]
        zoned = in_time_zone(shuffle.schema_of(self.columns), self.time_zone)
        blocks = grouped_blocks(shuffle, keys, self.columns, subpartitions, sort_by=self.sort_by)
        with closing(blocks):
            for block in blocks:
                firsts = take(block.batch.select(keys), to_arrow(block.starts[:-1]))
                ids = np.asarray(place(firsts), np.int32)
                for groups, counts, batch in self.call.results(
                    GroupBlock(conform(block.batch, zoned), block.starts)
                ):
                    yield np.repeat(ids[groups], counts), batch
                del block  # before the next is read
