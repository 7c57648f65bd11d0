"""Which subpartitions the rows that pass a bound condition can be in. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import to_arrow, validity
from arrow_format.arrays.selection import ascending, joined, take
from arrow_format.filters.comparison import comparable_type
from arrow_format.filters.expression import (
    And,
    Column,
    Comparison,
    Expression,
    IsIn,
    IsNull,
    Literal,
    Or,
    is_never_true,
)
from arrow_format.filters.units import possible
from arrow_format.format.statistics import UNKNOWN, ColumnStatistics
from arrow_format.keys.key_numbers import key_numbers
from arrow_format.keys.partitioner import ColumnPartitioner, HashPartitioner, key_columns
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.keys.sort_keys import is_descending, puts_nulls_first

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrow_format.model import Int64Array

MOST_KEYS = 10_000
"""Most keys that are assigned, one by one, to find their subpartitions."""

_Points = dict[str, pa.Array]
"""Values of columns, one of which every row has that passes; of other columns nothing is known."""


def subpartitions_of(
    expression: Expression, partitioner: object, schema: pa.Schema, num_subpartitions: int
) -> Int64Array | None:
    """Return the subpartitions, ascending, that rows for which a condition is true can be in.

    None if that is all, or not known. Rows of broadcast partitioners belong to every subpartition,
    and those of users' own partitioners to any. ``schema`` is the data schema by which the
    partitioner assigned the rows.
    """
    found: Int64Array | None = None
    if isinstance(partitioner, HashPartitioner | RangePartitioner):
        keys = keys_given(expression, partitioner, schema)
        if keys is not None:
            found = ascending(partitioner.bind(keys.schema, num_subpartitions, 0)(keys))
    if found is None and isinstance(partitioner, RangePartitioner):
        found = _of_ranges(expression, partitioner, schema)
    if isinstance(partitioner, ColumnPartitioner):
        found = _of_column(expression, partitioner, schema, num_subpartitions)
    return None if found is None or len(found) == num_subpartitions else found


def _of_ranges(
    expression: Expression, partitioner: RangePartitioner, schema: pa.Schema
) -> Int64Array:
    """Compare the condition with each range, as with a unit whose bounds are the range's.

    Of the keys after the first, only ranges say something between whose bounds all keys before are
    equal.
    """
    bounds = partitioner.fitted(schema).bounds
    assert bounds is not None  # a fitted partitioner has bounds
    num_ranges = bounds.num_rows + 1
    is_tied = np.ones(num_ranges, np.bool_)
    statistics: dict[str, ColumnStatistics] = {}
    for number, (name, order) in enumerate(partitioner.keys):
        column = bounds.column(number)
        if comparable_type(column.type) is not None:
            statistics[name] = _between_bounds(column, order, is_tied)
        if not bounds.num_rows:
            break
        numbers, _ = key_numbers(bounds.columns[: number + 1])
        is_tied = np.zeros(num_ranges, np.bool_)
        is_tied[1:-1] = numbers[1:] == numbers[:-1]
    return _of_units(expression, statistics, schema, np.ones(num_ranges, np.int64))


def _between_bounds(bounds: pa.Array, order: str, applies: np.ndarray) -> ColumnStatistics:
    """Return what is known of a key in each range, where its bounds apply; a unit is one row."""
    num_ranges = len(bounds) + 1
    inside = np.arange(num_ranges)
    before = take(bounds, to_arrow(inside - 1, (inside == 0) | ~applies))
    after = take(bounds, to_arrow(inside, (inside == len(bounds)) | ~applies))
    valid = validity(bounds)
    is_null = np.zeros(len(bounds), np.bool_) if valid is None else ~valid
    null_before, null_after = np.append(False, is_null), np.append(is_null, False)
    first, last = inside == 0, inside == len(bounds)
    if puts_nulls_first(order):
        only_nulls, may_have_nulls = null_after, first | null_before
    else:
        only_nulls, may_have_nulls = null_before, last | null_after
    null_count = np.where(may_have_nulls | ~applies, UNKNOWN, 0)
    null_count[only_nulls & applies] = 1
    low, high = (after, before) if is_descending(order) else (before, after)
    return ColumnStatistics(low, high, null_count, np.ones(num_ranges, np.int64))


def _of_column(
    expression: Expression,
    partitioner: ColumnPartitioner,
    schema: pa.Schema,
    num_subpartitions: int,
) -> Int64Array:
    """Compare the condition with each subpartition, whose rows all have its number."""
    type_ = schema.field(partitioner.column).type
    most = 2 ** (type_.bit_width - pa.types.is_signed_integer(type_))
    numbers = np.arange(min(num_subpartitions, most), dtype=np.int64)
    ids = to_arrow(numbers).cast(type_)
    one = np.ones(len(numbers), np.int64)
    statistics = {partitioner.column: ColumnStatistics(ids, ids, np.zeros_like(one), one)}
    return _of_units(expression, statistics, schema, one)


def _of_units(
    expression: Expression,
    statistics: Mapping[str, ColumnStatistics],
    schema: pa.Schema,
    num_rows: Int64Array,
) -> Int64Array:
    types = {name: schema.field(name).type for name in statistics}
    return np.flatnonzero(possible(expression, statistics, types, num_rows).true)


# Points ------------------------------------------------------------------------------------------


def keys_given(
    expression: Expression, partitioner: HashPartitioner | RangePartitioner, schema: pa.Schema
) -> pa.RecordBatch | None:
    """Return the keys of which each row that passes has one; None where there is no such list.

    They have the key columns of the partitioner, in the types of the data schema.
    """
    alternatives = _points(expression)
    if alternatives is None:
        return None
    names = key_columns(partitioner) or ()
    keys = pa.schema([pa.field(name, schema.field(name).type) for name in names])
    batches = [] if alternatives else [pa.RecordBatch.from_pylist([], keys)]
    num_keys = 0
    for points in alternatives:
        if any(name not in points for name in keys.names):
            return None
        num_keys += int(np.prod([float(len(points[name])) for name in keys.names]))
        if num_keys > MOST_KEYS:
            return None
        batches.append(_product([points[name] for name in keys.names], keys))
    return joined(batches)


def _product(values: list[pa.Array], keys: pa.Schema) -> pa.RecordBatch:
    """Return all combinations of the values of each key."""
    places = np.indices([len(column) for column in values]).reshape(len(values), -1)
    columns = [
        take(column, to_arrow(np.ascontiguousarray(place))).cast(field.type)
        for column, place, field in zip(values, places, keys, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=keys)


def _points(expression: Expression) -> list[_Points] | None:
    """Return alternatives of which each row that passes fulfils one; None where there are many."""
    if isinstance(expression, Or):
        each = [_points(operand) for operand in expression.operands]
        if any(alternatives is None for alternatives in each):
            return None
        found = [points for alternatives in each for points in alternatives or ()]
        return found if len(found) <= MOST_KEYS else None
    if isinstance(expression, And):
        found = [{}]
        for operand in expression.operands:
            alternatives = _points(operand)
            if alternatives is None or len(found) * len(alternatives) > MOST_KEYS:
                continue  # what is known of the others stays true
            found = [_both(some, more) for some in found for more in alternatives]
        return found
    if is_never_true(expression):
        return []
    if isinstance(expression, IsIn):
        return [{_name(expression.operand): expression.values}]
    if isinstance(expression, IsNull) and isinstance(expression.operand, Column):
        return [{expression.operand.name: pa.nulls(1)}]
    if (
        isinstance(expression, Comparison)
        and expression.operator == "="
        and isinstance(expression.right, Literal)
    ):
        return [{_name(expression.left): pa.repeat(expression.right.value, 1)}]
    return [{}]


def _both(some: _Points, more: _Points) -> _Points:
    """Return what is known where both hold; of two lists of values, the shorter one."""
    shorter = {
        name: min(some[name], values, key=len) for name, values in more.items() if name in some
    }
    return some | more | shorter


def _name(operand: Expression) -> str:
    assert isinstance(operand, Column)  # the normal form has no others
    return operand.name
