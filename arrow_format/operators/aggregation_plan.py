"""What an aggregation of a shuffle gives: its keys, functions, and the schema of its rows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.arrays.stored_types import data_schema, refuse_duplicates
from arrow_format.errors import ArithmeticOverflowError, OptionError, SchemaError
from arrow_format.keys.co_partitioning import (
    Partitioned,
    has_broadcast_rows,
    is_broadcast,
    partition_keys,
)
from arrow_format.keys.partitioner import RoundRobinPartitioner, as_names
from arrow_format.operators.aggregate_functions import (
    Column,
    DoesNotFitError,
    Method,
    Step,
    method_of,
)
from arrow_format.read.subpartition_reader import select_columns

Aggregation = tuple[str | Sequence[str], str] | tuple[str | Sequence[str], str, Any]
"""Column, function, and PyArrow's options of it if any."""


@dataclass(frozen=True, slots=True)
class PlannedAggregation:
    """One column of the result."""

    name: str
    columns: tuple[str, ...]
    """What it is computed of; ``count_all`` takes none."""
    function: str
    options: pc.FunctionOptions | None = None
    types: tuple[pa.DataType, ...] = ()
    """Of the columns."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Go to a task as bytes: PyArrow's options cannot be pickled."""
        options = None if self.options is None else self.options.serialize().to_pybytes()
        return _again, (self.name, self.columns, self.function, options, self.types)

    def __str__(self) -> str:
        return f"{self.function}({', '.join(self.columns)})"

    @property
    def method(self) -> Method:
        """How it is computed.

        Raises
        ------
        OptionError, SchemaError
            There is no such function, or it takes no such columns or options.
        """
        return method_of(self.function, self.types, self.options)


def _again(
    name: str,
    columns: tuple[str, ...],
    function: str,
    options: bytes | None,
    types: tuple[pa.DataType, ...],
) -> PlannedAggregation:
    made = None if options is None else pc.FunctionOptions.deserialize(pa.py_buffer(options))
    return PlannedAggregation(name, columns, function, made, types)


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
        """Whether what is kept of parts of a group gives what is kept of all of it."""
        return all(one.method.merges is not None for one in self.aggregations)

    def group(self, rows: pa.Table) -> pa.Table:
        """Return what is kept of each group of rows: one row per group, in order of appearance.

        Columns are unnamed: the keys come first, then those of each aggregation.
        """
        keys = [rows[name] for name in self.keys]
        steps = [
            (step, [rows[name] for name in one.columns])
            for one in self.aggregations
            for step in one.method.steps
        ]
        return _grouped(keys, steps)

    def merge(self, kept: pa.Table) -> pa.Table:
        """Return what is kept of groups, of several rows for each; only where it can be merged."""
        steps = [step for one in self.aggregations for step in one.method.merges or ()]
        columns = kept.columns
        keys, values = columns[: len(self.keys)], columns[len(self.keys) :]
        return _grouped(keys, [(s, [v]) for s, v in zip(steps, values, strict=True)])

    def keys_of(self, kept: pa.Table) -> pa.Table:
        """Return the keys, by their names."""
        numbers = list(range(len(self.keys)))
        return kept.select(numbers).rename_columns(list(self.keys))

    def finish(self, kept: pa.Table) -> pa.Table:
        """Return the result for each group, in the schema of the plan.

        Raises
        ------
        ArithmeticOverflowError
            A result is outside of what its type holds; names the column and the group.
        """
        columns = kept.columns
        found, values = columns[: len(self.keys)], columns[len(self.keys) :]
        for one in self.aggregations:
            method = one.method
            own, values = values[: len(method.steps)], values[len(method.steps) :]
            try:
                found.append(method.finish(*own))
            except DoesNotFitError as error:
                group = _described(self.keys_of(kept).slice(error.row, 1))
                msg = (
                    f"{one} of the group {group} is outside of what {error.type} holds: cast "
                    f"{one.columns[0]!r} to a wider type before it is written (a double, a decimal "
                    "of more digits), or aggregate what read_shuffle gives with try_sum or try_avg"
                )
                raise ArithmeticOverflowError(msg) from None
        return pa.table(found, schema=self.schema)


def _grouped(keys: list[Column], steps: Sequence[tuple[Step, list[Column]]]) -> pa.Table:
    columns = list(keys)
    asked: list[Any] = []
    for step, given in steps:
        first = len(columns)
        columns += [step.before(column) for column in given]
        names = [str(number) for number in range(first, len(columns))]
        asked.append((names if len(names) != 1 else names[0], step.function, step.options))
    table = pa.table(columns, names=[str(number) for number in range(len(columns))])
    by = [str(number) for number in range(len(keys))]
    # Its columns come keys first and in the order asked for.
    found = table.group_by(by, use_threads=False).aggregate(asked).columns
    for number, (step, given) in enumerate(steps, start=len(keys)):
        if given:
            found[number] = step.after(found[number], given[0])
    return pa.table(found, names=[str(number) for number in range(len(found))])


def _described(keys: pa.Table) -> str:
    return ", ".join(f"{name}={_text(keys[name][0])}" for name in keys.column_names)


def _text(value: pa.Scalar) -> str:
    try:
        return repr(value.as_py())
    except ValueError:  # dates that Python lacks, text that is no UTF-8
        return f"some {value.type}"


def plan_aggregation(
    shuffle: Partitioned,
    keys: str | Sequence[str],
    aggregations: Sequence[Aggregation] | Mapping[str, Aggregation | str],
) -> AggregationPlan:
    """Plan an aggregation whose groups lie in one subpartition each.

    Raises
    ------
    OptionError
        ``keys`` lack a partition key, so that groups would lie in several subpartitions, rows are
        broadcast, so that several subpartitions would count them, or an aggregation is not of the
        form, or has a function or options that are not known.
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
    planned = _planned(aggregations, shuffle.schema)
    refuse_duplicates([*names, *(one.name for one in planned)], "columns of the result")
    # Keys are as they are stored, also in their nullability.
    fields = [shuffle.schema.field(name) for name in names]
    fields += [_result_field(one, shuffle.schema) for one in planned]
    return AggregationPlan(names, planned, pa.schema(fields))


def _result_field(one: PlannedAggregation, schema: pa.Schema) -> pa.Field:
    """Find out the type of a result by aggregating no rows."""
    rows = pa.schema([schema.field(name) for name in dict.fromkeys(one.columns)]).empty_table()
    key = pa.chunked_array([], pa.int8())
    try:
        steps = [(step, [rows[name] for name in one.columns]) for step in one.method.steps]
        found = one.method.finish(*_grouped([key], steps).columns[1:])
        (field,) = data_schema(pa.schema([(one.name, found.type)]))
    except (SchemaError, OptionError) as error:
        msg = f"aggregation {one}: {error}"
        raise type(error)(msg) from error
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        msg = f"aggregation {one}: {error}"
        raise SchemaError(msg) from error
    return field.with_nullable(one.method.nullable)


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
    aggregations: Sequence[Aggregation] | Mapping[str, Aggregation | str], schema: pa.Schema
) -> tuple[PlannedAggregation, ...]:
    if isinstance(aggregations, Mapping):
        return tuple(
            _one((name, given), None, schema)
            if isinstance(given, str)
            else _one(given, str(name), schema)
            for name, given in aggregations.items()
        )
    if isinstance(aggregations, str) or not isinstance(aggregations, Sequence):
        msg = (
            f"aggregations={aggregations!r}: expected a list of (column, function), or a mapping "
            "of columns to functions, or of names to (column, function)"
        )
        raise OptionError(msg)
    return tuple(_one(given, None, schema) for given in aggregations)


def _one(given: object, name: str | None, schema: pa.Schema) -> PlannedAggregation:
    form = given if isinstance(given, tuple | list) and len(given) in (2, 3) else (None, None)
    columns, function, *options = form
    names = (columns,) if isinstance(columns, str) else columns
    if (
        not isinstance(names, tuple | list)
        or not all(isinstance(one, str) for one in names)
        or not isinstance(function, str)
    ):
        msg = (
            f"aggregation {given!r}: expected (column, function) or (column, function, options), "
            'such as ("x", "sum")'
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
    if function == "count" and tuple(names) in ((), ("*",)):
        names = ()
        named = name if name is not None else function
        function = "count_all"
    else:
        named = name if name is not None else "_".join([*names, function])
    select_columns(schema, names)
    types = tuple(schema.field(one).type for one in names)
    return PlannedAggregation(named, tuple(names), function, given_options, types)
