"""What an aggregation of a shuffle gives: its keys, functions, and the schema of its rows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.arrow_types import data_schema, refuse_duplicates
from arrow_format.co_partitioning import (
    Partitioned,
    has_broadcast_rows,
    is_broadcast,
    partition_keys,
)
from arrow_format.errors import OptionError, SchemaError
from arrow_format.partitioner import RoundRobinPartitioner, as_names
from arrow_format.subpartition_reader import select_columns

MERGED_BY = {
    "all": "all",
    "any": "any",
    "count": "sum",
    "count_all": "sum",
    "first": "first",
    "last": "last",
    "max": "max",
    "min": "min",
    "one": "one",
    "product": "product",
    "sum": "sum",
}
"""Functions whose results over parts of a group give, by another one, the result over all of it."""

Aggregation = tuple[str | Sequence[str], str] | tuple[str | Sequence[str], str, Any]
"""As ``pyarrow.TableGroupBy.aggregate`` takes it: column, function, and its options if any."""


@dataclass(frozen=True, slots=True)
class PlannedAggregation:
    """One column of the result."""

    name: str
    columns: tuple[str, ...]
    """What it is computed of; ``count_all`` takes none."""
    function: str
    options: pc.FunctionOptions | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Go to a task as bytes: PyArrow's options cannot be pickled."""
        options = None if self.options is None else self.options.serialize().to_pybytes()
        return _again, (self.name, self.columns, self.function, options)

    @property
    def merged_by(self) -> str | None:
        """The function that makes one result of several; None when there is none."""
        return MERGED_BY.get(self.function) if self.options is None else None

    def as_pyarrow(self) -> tuple[Any, ...]:
        """Return what ``TableGroupBy.aggregate`` takes."""
        columns: Any = self.columns[0] if len(self.columns) == 1 else list(self.columns)
        if self.options is None:
            return columns, self.function
        return columns, self.function, self.options


def _again(
    name: str, columns: tuple[str, ...], function: str, options: bytes | None
) -> PlannedAggregation:
    made = None if options is None else pc.FunctionOptions.deserialize(pa.py_buffer(options))
    return PlannedAggregation(name, columns, function, made)


@dataclass(frozen=True, slots=True)
class AggregationPlan:
    """An aggregation."""

    keys: tuple[str, ...]
    aggregations: tuple[PlannedAggregation, ...]
    schema: pa.Schema
    """Of the result: the keys, then a column for each aggregation."""

    @property
    def columns(self) -> list[str]:
        """Columns to read."""
        read = [*self.keys, *(name for one in self.aggregations for name in one.columns)]
        return list(dict.fromkeys(read))

    @property
    def can_merge(self) -> bool:
        """Whether results over parts of a group give the result over all of it."""
        return all(one.merged_by is not None for one in self.aggregations)


def plan_aggregation(
    shuffle: Partitioned,
    keys: str | Sequence[str],
    aggregations: Sequence[Aggregation] | Mapping[str, Aggregation],
) -> AggregationPlan:
    """Plan an aggregation whose groups lie in one subpartition each.

    Raises
    ------
    OptionError
        ``keys`` lack a partition key, so that groups would lie in several subpartitions, rows are
        broadcast, so that several subpartitions would count them, or an aggregation is not of the
        form or has options or a function that PyArrow does not know.
    SchemaError
        A column is not there, a key is nested, a function does not take the column's type, or two
        columns of the result have one name.
    """
    names = as_names(keys)
    select_columns(shuffle.schema, names)
    for name in names:
        type_ = shuffle.schema.field(name).type
        if pt.is_nested(type_):
            msg = (
                f"key {name!r} is {type_}: rows cannot be grouped by a nested column; store "
                "what is in it as columns of their own"
            )
            raise SchemaError(msg)
    _check_partitioning(shuffle, names)
    planned = _planned(aggregations)
    for one in planned:
        select_columns(shuffle.schema, one.columns)
    refuse_duplicates([*names, *(one.name for one in planned)], "columns of the result")
    read = dict.fromkeys([*names, *(column for one in planned for column in one.columns)])
    empty = pa.schema([shuffle.schema.field(name) for name in read]).empty_table()
    found = data_schema(grouped(empty, names, planned).schema)
    # Keys are as they are stored, also in their nullability.
    fields = [shuffle.schema.field(name) for name in names] + list(found)[len(names) :]
    return AggregationPlan(names, planned, pa.schema(fields))


def grouped(
    table: pa.Table, keys: Sequence[str], aggregations: Sequence[PlannedAggregation]
) -> pa.Table:
    """Aggregate a table: one row per group, the keys first.

    Raises
    ------
    OptionError, SchemaError
        PyArrow does not know the function, or it does not take the column's type.
    """
    asked = [one.as_pyarrow() for one in aggregations]
    try:
        found = table.group_by(list(keys), use_threads=False).aggregate(asked)
    except (KeyError, pa.ArrowKeyError) as error:
        msg = f"aggregations: PyArrow knows no such function ({error}); expected sum, mean, ..."
        raise OptionError(msg) from error
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        functions = ", ".join(f"{one.function}({', '.join(one.columns)})" for one in aggregations)
        msg = f"aggregations {functions}: {error}"
        raise SchemaError(msg) from error
    columns = found.columns
    # Spark has no unsigned integers; a sum of booleans is one. Keys are as they are stored.
    for number, one in enumerate(aggregations, start=len(keys)):
        if pt.is_uint64(columns[number].type):
            try:
                columns[number] = columns[number].cast(pa.int64())
            except pa.ArrowInvalid as error:
                msg = f"aggregation {one.function}({', '.join(one.columns)}): {error}"
                raise SchemaError(msg) from error
    # Columns come keys first and in the order asked for; names of two aggregations may be alike.
    return pa.table(columns, names=[*keys, *(one.name for one in aggregations)])


def _check_partitioning(shuffle: Partitioned, keys: Sequence[str]) -> None:
    needed = partition_keys(shuffle)
    if is_broadcast(shuffle) or isinstance(shuffle.partitioner, RoundRobinPartitioner):
        how = "broadcast" if is_broadcast(shuffle) else "written in turn, whatever its values"
        msg = (
            f"{shuffle.path} is {how}, so a group does not lie in one subpartition; aggregate what "
            "read_shuffle gives with Spark"
        )
        raise OptionError(msg)
    if has_broadcast_rows(shuffle):
        msg = (
            f"{shuffle.path}: rows of the shuffle are broadcast and every subpartition reads them, "
            "so their groups would come once for each subpartition; aggregate the rows with Spark "
            "as they were before they were written"
        )
        raise OptionError(msg)
    missing = [name for name in needed or () if name not in keys]
    if missing:
        msg = (
            f"keys={list(keys)!r} lack the partition key(s) {', '.join(missing)} of "
            f"{shuffle.path}, so a group may lie in several subpartitions; group by them too, or "
            "aggregate what read_shuffle gives with Spark"
        )
        raise OptionError(msg)


def _planned(
    aggregations: Sequence[Aggregation] | Mapping[str, Aggregation],
) -> tuple[PlannedAggregation, ...]:
    if isinstance(aggregations, Mapping):
        return tuple(_one(given, str(name)) for name, given in aggregations.items())
    if isinstance(aggregations, str) or not isinstance(aggregations, Sequence):
        msg = f"aggregations={aggregations!r}: expected a list of (column, function)"
        raise OptionError(msg)
    return tuple(_one(given, None) for given in aggregations)


def _one(given: object, name: str | None) -> PlannedAggregation:
    form = given if isinstance(given, tuple | list) and len(given) in (2, 3) else (None, None)
    columns, function, *options = form
    names = (columns,) if isinstance(columns, str) else columns
    if (
        not isinstance(names, tuple | list)
        or not all(isinstance(one, str) for one in names)
        or not isinstance(function, str)
    ):
        msg = (
            f"aggregation {given!r}: expected (column, function) or (column, function, options) "
            'as TableGroupBy.aggregate takes it, such as ("x", "sum")'
        )
        raise OptionError(msg)
    given_options = options[0] if options else None
    if given_options is not None and not isinstance(given_options, pc.FunctionOptions):
        msg = (
            f"aggregation {given!r}: options is {type(given_options).__name__}; expected options "
            'of pyarrow.compute, such as CountOptions(mode="all"), or None'
        )
        raise OptionError(msg)
    function = function.removeprefix("hash_")
    named = name if name is not None else "_".join([*names, function])
    return PlannedAggregation(named, tuple(names), function, given_options)
