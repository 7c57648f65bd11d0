"""The plan of an aggregation: its keys, its functions, and the schema of its result. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.conversion import canonical_floats, key_text
from arrow_format.arrays.exact_sums import SUM_DIGITS, Column, DoesNotFitError, map_chunks
from arrow_format.arrays.gather import gathered
from arrow_format.arrays.selection import joined
from arrow_format.arrays.stored_types import ORDERED_TYPES, data_schema, refuse_duplicates
from arrow_format.errors import ArithmeticOverflowError, OptionError, SchemaError
from arrow_format.keys.co_partitioning import (
    Partitioned,
    has_broadcast_rows,
    is_broadcast,
    partition_keys,
)
from arrow_format.keys.combination import partial_error
from arrow_format.keys.key_groups import key_groups
from arrow_format.keys.partitioner import RoundRobinPartitioner, as_names
from arrow_format.operators.aggregate_functions import (
    COMPLETING,
    OF_ONE_VALUE,
    Method,
    Partial,
    method_of,
)
from arrow_format.read.subpartition_reader import select_columns

if TYPE_CHECKING:
    from arrow_format.operators.inputs import Input

Steps = Sequence[tuple[Partial, list[Column]]]
"""Each with the columns of rows that are its arguments."""

Aggregation = tuple[str | Sequence[str], str] | tuple[str | Sequence[str], str, Any]
"""Column, function, and PyArrow's options of it if any."""


@dataclass(frozen=True, slots=True)
class PlannedAggregation:
    """One column of the result."""

    name: str
    columns: tuple[str, ...]
    """Arguments of the function; ``count_all`` takes none."""
    function: str
    options: pc.FunctionOptions | None = None
    types: tuple[pa.DataType, ...] = ()
    """Of the columns."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the options as bytes: PyArrow's cannot be pickled."""
        options = None if self.options is None else self.options.serialize().to_pybytes()
        return _unpickled, (self.name, self.columns, self.function, options, self.types)

    def __str__(self) -> str:
        return f"{self.function}({', '.join(self.columns)})"

    @property
    def method(self) -> Method:
        """How it is computed; raises as :func:`method_of`."""
        return method_of(self.function, self.types, self.options)


def _unpickled(
    name: str,
    columns: tuple[str, ...],
    function: str,
    options: bytes | None,
    types: tuple[pa.DataType, ...],
) -> PlannedAggregation:
    given = None if options is None else pc.FunctionOptions.deserialize(pa.py_buffer(options))
    return PlannedAggregation(name, columns, function, given, types)


@dataclass(frozen=True, slots=True)
class AggregationPlan:
    """What to group by and what to compute of each group."""

    keys: tuple[str, ...]
    aggregations: tuple[PlannedAggregation, ...]
    schema: pa.Schema
    """Of the result: the keys, then a column for each aggregation."""

    @property
    def columns(self) -> list[str]:
        """Columns to read."""
        arguments = [name for aggregation in self.aggregations for name in aggregation.columns]
        return list(dict.fromkeys([*self.keys, *arguments]))

    @property
    def can_merge(self) -> bool:
        """Whether values kept of parts of a group can be merged into those of the whole group."""
        return all(aggregation.method.merges is not None for aggregation in self.aggregations)

    @property
    def whole_groups(self) -> tuple[str, ...]:
        """Aggregations that need all rows of a group together, also where it has a few pieces."""
        methods = {str(each): each.method for each in self.aggregations}
        return tuple(
            name for name, each in methods.items() if (each.merges or each.of_pieces) is None
        )

    @property
    def kept_schema(self) -> pa.Schema:
        """Of the values that :meth:`group` keeps."""
        arguments = {
            name: type_
            for aggregation in self.aggregations
            for name, type_ in zip(aggregation.columns, aggregation.types, strict=True)
        }
        keys = {field.name: field.type for field in self.schema}
        row = {name: pa.nulls(1, arguments.get(name, keys.get(name))) for name in self.columns}
        return self.group(pa.table(row)).schema

    def group(self, rows: pa.Table) -> pa.Table:
        """Return the values kept of each group: one row per group, in no particular order.

        Columns are unnamed: the keys come first, then those of each aggregation. Keys are as Spark
        has them: NaN is one key, and so are 0.0 and -0.0.
        """
        keys = [rows[name] for name in self.keys]
        steps = [
            (step, [rows[name] for name in aggregation.columns])
            for aggregation in self.aggregations
            for step in aggregation.method.steps
        ]
        return _grouped(keys, steps)

    def merge(self, groups: pa.Table) -> pa.Table:
        """Merge several rows per group, in order, into one; only where :attr:`can_merge`.

        Of a few pieces also where no aggregation is of :attr:`whole_groups`.
        """
        methods = [aggregation.method for aggregation in self.aggregations]
        merges = [step for each in methods for step in each.merges or each.of_pieces or ()]
        columns = groups.columns
        keys, values = columns[: len(self.keys)], columns[len(self.keys) :]
        return _grouped(keys, [(s, [v]) for s, v in zip(merges, values, strict=True)])

    def keys_of(self, groups: pa.Table) -> pa.Table:
        """Return the keys, with their names."""
        return groups.select(list(range(len(self.keys)))).rename_columns(list(self.keys))

    def finish(self, groups: pa.Table) -> pa.Table:
        """Return the result for each group, in the schema of the plan.

        Raises ArithmeticOverflowError, with column and group, for a result out of range.
        """
        columns = groups.columns
        results, values = columns[: len(self.keys)], columns[len(self.keys) :]
        for aggregation in self.aggregations:
            method = aggregation.method
            own, values = values[: len(method.steps)], values[len(method.steps) :]
            try:
                results.append(method.finish(*own))
            except DoesNotFitError as error:
                keys = self.keys_of(groups)
                group = key_text(keys, keys.column_names, error.row)
                msg = (
                    f"{aggregation} of the group {group} is outside of what {error.type} holds: "
                    f"cast {aggregation.columns[0]!r} to a wider type before it is written (a "
                    "double, a decimal of more digits), or aggregate the DataFrame of to_spark() "
                    "with try_sum or try_avg"
                )
                raise ArithmeticOverflowError(msg) from None
        return pa.table(results, schema=self.schema)


def _grouped(keys: list[Column], steps: Steps) -> pa.Table:
    if keys[0].length() and _take_numbers(keys, steps):
        return _grouped_by_numbers(keys, steps)
    return _grouped_by_pyarrow(keys, steps)


def _take_numbers(keys: list[Column], steps: Steps) -> bool:
    """Whether keys and steps have what :func:`_grouped_by_numbers` needs."""
    return all(step.takes_numbers for step, _ in steps) and all(
        any(is_ordered(key.type) for is_ordered in ORDERED_TYPES) for key in keys
    )


def _grouped_by_numbers(keys: list[Column], steps: Steps) -> pa.Table:
    """Give each group a number; twice as fast as PyArrow's tables, and in less memory."""
    columns = [joined(key.chunks) for key in keys]
    groups, last = key_groups(columns)
    rows = to_arrow(last.astype(np.uint32))
    grouped: list[Any] = [canonical_floats(gathered(column, rows)) for column in columns]
    del columns, rows
    for step, arguments in steps:
        grouped.append(step.of_groups(arguments, groups, len(last)))
    return pa.table(grouped, names=[str(number) for number in range(len(grouped))])


def _grouped_by_pyarrow(keys: list[Column], steps: Steps) -> pa.Table:
    columns = [map_chunks(canonical_floats, key) for key in keys]
    requests: list[Any] = []
    for step, arguments in steps:
        first = len(columns)
        columns += [step.before(column) for column in arguments]
        names = [str(number) for number in range(first, len(columns))]
        requests.append((names if len(names) != 1 else names[0], step.function, step.options))
    table = pa.table(columns, names=[str(number) for number in range(len(columns))])
    by = [str(number) for number in range(len(keys))]
    # PyArrow returns the keys first, then the values in the order of the requests.
    grouped = table.group_by(by, use_threads=False).aggregate(requests).columns
    for number, (step, arguments) in enumerate(steps, start=len(keys)):
        if arguments:
            grouped[number] = step.after(grouped[number], arguments[0])
    return pa.table(grouped, names=[str(number) for number in range(len(grouped))])


def plan_aggregation(
    shuffle: Partitioned,
    keys: str | Sequence[str],
    aggregations: Sequence[Aggregation] | Mapping[str, Aggregation | str],
) -> AggregationPlan:
    """Plan an aggregation whose groups lie in one subpartition each.

    Raises OptionError where ``keys`` lack a partition key, so that groups would lie in several
    subpartitions; where rows are broadcast, so that several subpartitions would count them; and
    where an aggregation is malformed or unknown, or takes partial results of combined rows for
    rows. Raises SchemaError where a column is missing or has a type that the key or function does
    not take, or two of the result have the same name.
    """
    names = as_names(keys, "by")
    select_columns(shuffle.schema, names)
    for name in names:
        if name in shuffle.combine:
            raise partial_error(f"by={list(names)!r}", shuffle.path, shuffle.combine, name)
        type_ = shuffle.schema.field(name).type
        if pt.is_nested(type_):
            msg = (
                f"key {name!r} is {type_}: rows cannot be grouped by a nested column; store "
                "its fields as columns of their own"
            )
            raise SchemaError(msg)
    _check_partitioning(shuffle, names)
    planned = _planned(aggregations, shuffle.schema)
    if shuffle.combine:
        planned = tuple(_of_partial_results(shuffle, each) for each in planned)
    refuse_duplicates([*names, *(each.name for each in planned)], "columns of the result")
    # Keys are as they are stored, also in their nullability.
    fields = [shuffle.schema.field(name) for name in names]
    fields += [_result_field(aggregation, shuffle.schema) for aggregation in planned]
    return AggregationPlan(names, planned, pa.schema(fields))


def _result_field(aggregation: PlannedAggregation, schema: pa.Schema) -> pa.Field:
    """Learn the type of a result by aggregating no rows."""
    names = aggregation.columns
    rows = pa.schema([schema.field(name) for name in dict.fromkeys(names)]).empty_table()
    key = pa.chunked_array([], pa.int8())
    try:
        method = aggregation.method
        steps = [(step, [rows[name] for name in names]) for step in method.steps]
        result = method.finish(*_grouped_by_pyarrow([key], steps).columns[1:])
        (field,) = data_schema(pa.schema([(aggregation.name, result.type)]))
    except (SchemaError, OptionError) as error:
        msg = f"aggregation {aggregation}: {error}"
        raise type(error)(msg) from error
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        msg = f"aggregation {aggregation}: {error}"
        raise SchemaError(msg) from error
    return field.with_nullable(method.nullable)


def _check_partitioning(shuffle: Partitioned, keys: Sequence[str]) -> None:
    if is_broadcast(shuffle) or isinstance(shuffle.partitioner, RoundRobinPartitioner):
        how = "broadcast" if is_broadcast(shuffle) else "written in turn, whatever its values"
        msg = (
            f"{shuffle.path} is {how}, so a group does not lie in one subpartition; aggregate the "
            "DataFrame of to_spark() in Spark"
        )
        raise OptionError(msg)
    if has_broadcast_rows(shuffle):
        msg = (
            f"{shuffle.path}: rows of the shuffle are broadcast and every subpartition reads them, "
            "so their groups would come once for each subpartition; aggregate the rows with Spark "
            "as they were before they were written"
        )
        raise OptionError(msg)
    missing = [name for name in partition_keys(shuffle) or () if name not in keys]
    if missing:
        msg = (
            f"by={list(keys)!r} lack the partition key(s) {', '.join(missing)} of "
            f"{shuffle.path}, so a group may lie in several subpartitions; group by them too, or "
            "aggregate the DataFrame of to_spark() in Spark"
        )
        raise OptionError(msg)


def _of_partial_results(shuffle: Partitioned, planned: PlannedAggregation) -> PlannedAggregation:
    """Return an aggregation that completes partial results, or is of keys alone.

    Raises OptionError for another, which would take a partial result for a row.
    """
    combine = shuffle.combine
    partial = [name for name in planned.columns if name in combine]
    # Options may ask how many values there are.
    if not partial and planned.columns and not planned.options and planned.function in OF_ONE_VALUE:
        return planned
    name = partial[0] if partial else next(iter(combine))
    if not partial or planned.options or planned.function not in COMPLETING[combine[name]]:
        raise partial_error(f"aggregation {planned}", shuffle.path, combine, name)
    if combine[name] == "sum":
        return replace(planned, types=tuple(map(_type_of_parts, planned.types)))
    return planned


def refuse_partial_filter(shuffle: Input) -> None:
    """Raise OptionError where a shuffle is restricted by partial results of combined rows."""
    for name in () if shuffle.filter is None else shuffle.filter.columns:
        if name in shuffle.combine:
            raise partial_error(f"filter {shuffle.filter}", shuffle.path, shuffle.combine, name)


def _type_of_parts(type_: pa.DataType) -> pa.DataType:
    """Return a type whose sums have the given type, as those of partial sums have."""
    if not pt.is_decimal(type_):
        return type_
    return pa.decimal128(max(type_.precision - SUM_DIGITS, 1), type_.scale)


def _planned(
    aggregations: Sequence[Aggregation] | Mapping[str, Aggregation | str], schema: pa.Schema
) -> tuple[PlannedAggregation, ...]:
    if isinstance(aggregations, Mapping):
        for name, given in aggregations.items():
            if isinstance(given, str) and name not in (*schema.names, "*"):
                msg = (
                    f"aggregations={{{name!r}: {given!r}}}: column {name!r} is not there; of a new "
                    f'name it is a pair, {{{name!r}: ("{schema.names[0]}", "max")}}; columns are '
                    f"{', '.join(schema.names)}"
                )
                raise SchemaError(msg)
        return tuple(
            _parsed((name, given), None, schema)
            if isinstance(given, str)
            else _parsed(given, str(name), schema)
            for name, given in aggregations.items()
        )
    if isinstance(aggregations, str) or not isinstance(aggregations, Sequence):
        msg = (
            f"aggregations={aggregations!r}: expected a list of (column, function), or a mapping "
            "of columns to functions, or of names to (column, function)"
        )
        raise OptionError(msg)
    return tuple(_parsed(given, None, schema) for given in aggregations)


def _parsed(given: object, name: str | None, schema: pa.Schema) -> PlannedAggregation:
    form = given if isinstance(given, tuple | list) and len(given) in (2, 3) else (None, None)
    columns, function, *rest = form
    names = (columns,) if isinstance(columns, str) else columns
    if (
        not isinstance(names, tuple | list)
        or not all(isinstance(column, str) for column in names)
        or not isinstance(function, str)
    ):
        msg = (
            f"aggregation {given!r}: expected (column, function) or (column, function, options), "
            'such as ("x", "sum")'
        )
        raise OptionError(msg)
    options = rest[0] if rest else None
    if options is not None and not isinstance(options, pc.FunctionOptions):
        msg = (
            f"aggregation {given!r}: options is {type(options).__name__}; expected options "
            'of pyarrow.compute, such as CountOptions(mode="all"), or None'
        )
        raise OptionError(msg)
    function = function.removeprefix("hash_")
    if function == "count" and tuple(names) in ((), ("*",)):
        default, names, function = function, (), "count_all"
    else:
        default = "_".join([*names, function])
    select_columns(schema, names)
    types = tuple(schema.field(column).type for column in names)
    return PlannedAggregation(
        default if name is None else name, tuple(names), function, options, types
    )
