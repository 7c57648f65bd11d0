"""A bound condition evaluated for units of rows, of which only statistics are known. Pure.

For each unit: may a row of it be true, may one be false, may one be null. An answer of no is
certain, one of yes is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import boolean_values, to_arrow, validity
from arrow_format.arrays.selection import ranges, take
from arrow_format.filters.comparison import (
    common_type,
    comparable,
    comparable_type,
    compare,
)
from arrow_format.filters.expression import (
    FALSE,
    TRUE,
    And,
    Column,
    Comparison,
    Expression,
    IsIn,
    IsNull,
    Literal,
    Not,
    Or,
    is_constant,
)
from arrow_format.keys.bound_search import BoundIndex

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from arrow_format.format.statistics import ColumnStatistics
    from arrow_format.model import Int64Array

    Flags = NDArray[np.bool_]

MOST_PAIRS = 1 << 20
"""Keys and units that are compared with each other, at most."""


class Possible(NamedTuple):
    """What the truth of rows may be, for each unit."""

    true: Flags
    false: Flags
    null: Flags


class _Known(NamedTuple):
    """What is known of a column; a bound is null where there is none."""

    minimum: pa.Array
    maximum: pa.Array
    has_values: Flags
    has_nulls: Flags


def possible(
    expression: Expression,
    statistics: Mapping[str, ColumnStatistics],
    types: Mapping[str, pa.DataType],
    num_rows: Int64Array,
) -> Possible:
    """Return what the truth of a bound condition may be in units of ``num_rows`` rows.

    ``types`` are the stored types of the columns. Statistics may be of an earlier, narrower type.
    """
    known = {
        name: _known(statistics[name], comparable_type(type_), num_rows)
        for name, type_ in types.items()
        if name in statistics and comparable_type(type_) is not None
    }
    has_rows = num_rows > 0
    found = _possible(expression, known, has_rows)
    return Possible(*(flags & has_rows for flags in found))


def possible_keys(
    keys: pa.RecordBatch,
    first: Int64Array,
    end: Int64Array,
    statistics: Mapping[str, ColumnStatistics],
) -> Flags:
    """Return for each unit whether a row of it may have one of the keys ``[first, end)``.

    As for :func:`possible`, ``statistics`` may be of some key columns; a null is a key like any
    other. Each unit is compared with each of its keys, which are :data:`MOST_PAIRS` at most, or
    nothing is said.
    """
    counts = end - first
    if counts.sum() > MOST_PAIRS:
        return counts > 0
    unit = np.repeat(np.arange(len(counts)), counts)
    key = ranges(first, counts)
    may_be = np.ones(len(unit), np.bool_)
    for name, column in zip(keys.schema.names, keys.columns, strict=True):
        type_ = comparable_type(column.type)
        if name in statistics and type_ is not None:
            of_pair = statistics[name].at(unit)
            known = _known(of_pair, type_, of_pair.num_rows)
            values = take(comparable(column), to_arrow(key))
            is_within = _maybe(compare("<=", known.minimum, values))
            is_within &= ~_surely(compare("<", known.maximum, values))
            is_there = _present(values)
            may_be &= np.where(is_there, is_within & known.has_values, known.has_nulls)
    found: Flags = np.bincount(unit[may_be], minlength=len(counts)) > 0
    return found


def _known(column: ColumnStatistics, type_: pa.DataType, num_rows: Int64Array) -> _Known:
    return _Known(
        comparable(comparable(column.minimum), type_),
        comparable(comparable(column.maximum), type_),
        (column.null_count < 0) | (column.null_count < num_rows),
        column.null_count != 0,
    )


def _possible(expression: Expression, known: Mapping[str, _Known], some: Flags) -> Possible:
    none = np.zeros(len(some), np.bool_)
    if isinstance(expression, Not):
        true, false, null = _possible(expression.operand, known, some)
        return Possible(false, true, null)
    if isinstance(expression, And | Or):
        parts = [_possible(operand, known, some) for operand in expression.operands]
        return _all(parts) if isinstance(expression, And) else _any(parts)
    if isinstance(expression, Literal):
        is_true, is_false = is_constant(expression, TRUE), is_constant(expression, FALSE)
        return Possible(
            some if is_true else none,
            some if is_false else none,
            none if is_true or is_false else some,
        )
    if isinstance(expression, IsNull):
        return _is_null(expression.operand, known, some)
    assert isinstance(expression, Comparison | IsIn)  # the normal form has no others
    operands = (
        [expression.operand]
        if isinstance(expression, IsIn)
        else [expression.left, expression.right]
    )
    columns = [operand.name for operand in operands if isinstance(operand, Column)]
    if any(name not in known for name in columns):
        return Possible(some, some, some)
    about = [known[name] for name in columns]
    if isinstance(expression, IsIn):
        true, false = _is_in(about[0], expression.values)
    else:
        true, false = _compared(expression, about)
    has_values = np.logical_and.reduce([column.has_values for column in about])
    has_nulls = np.logical_or.reduce([column.has_nulls for column in about])
    return Possible(true & has_values, false & has_values, has_nulls)


def _all(parts: list[Possible]) -> Possible:
    true = np.logical_and.reduce([part.true for part in parts])
    false = np.logical_or.reduce([part.false for part in parts])
    # Null unless a part is false: every part is null or true, and one is null.
    not_false = np.logical_and.reduce([part.true | part.null for part in parts])
    null = np.logical_or.reduce([part.null for part in parts])
    return Possible(true, false, null & not_false)


def _any(parts: list[Possible]) -> Possible:
    opposite = _all([Possible(part.false, part.true, part.null) for part in parts])
    return Possible(opposite.false, opposite.true, opposite.null)


def _is_null(operand: Expression, known: Mapping[str, _Known], some: Flags) -> Possible:
    none = np.zeros(len(some), np.bool_)
    if not isinstance(operand, Column):
        true, false, null = _possible(operand, known, some)
        return Possible(null, true | false, none)
    if operand.name not in known:
        return Possible(some, some, none)
    column = known[operand.name]
    return Possible(column.has_nulls, column.has_values, none)


def _compared(comparison: Comparison, about: list[_Known]) -> tuple[Flags, Flags]:
    """Whether a comparison may be true, and may be false, for a row with values."""
    left = about[0]
    if isinstance(comparison.right, Literal):
        value = comparison.right.value
        low, high = left.minimum, left.maximum
        if comparison.operator == "=":
            true = _maybe(compare("<=", low, value)) & ~_surely(compare("<", high, value))
            same = _surely(compare("=", low, value)) & _surely(compare("=", high, value))
            return true, ~same
        return (
            _maybe(compare(comparison.operator, low, value)),
            ~_surely(compare(comparison.operator, high, value)),
        )
    right = about[1]
    if right is left:  # the same column: true wherever there is a value
        return np.ones(len(left.minimum), np.bool_), np.zeros(len(left.minimum), np.bool_)
    type_ = common_type(left.minimum.type, right.minimum.type)
    low, high = comparable(left.minimum, type_), comparable(left.maximum, type_)
    right_low, right_high = comparable(right.minimum, type_), comparable(right.maximum, type_)
    if comparison.operator == "=":
        true = _maybe(compare("<=", low, right_high)) & _maybe(compare("<=", right_low, high))
        same = _surely(compare("=", low, right_high)) & _surely(compare("=", high, right_low))
        return true, ~same
    return (
        _maybe(compare(comparison.operator, low, right_high)),
        ~_surely(compare(comparison.operator, high, right_low)),
    )


def _is_in(column: _Known, values: pa.Array) -> tuple[Flags, Flags]:
    """As :func:`_compared`; values are distinct and ascend."""
    index = BoundIndex(pa.RecordBatch.from_arrays([values], ["values"]), ["ascending"])
    at = index.place([column.minimum])  # how many values are less; a null comes before all
    following = take(values, to_arrow(np.minimum(at, len(values) - 1)))
    true = (at < len(values)) & _maybe(compare("<=", following, column.maximum))
    same = _surely(compare("=", column.minimum, column.maximum))
    return true, ~(true & same & _surely(compare("=", column.minimum, following)))


def _present(bounds: pa.Array) -> Flags:
    valid = validity(bounds)
    return np.ones(len(bounds), np.bool_) if valid is None else valid


def _maybe(truth: pa.BooleanArray) -> Flags:
    """Return where a comparison with a bound holds, or there is no bound."""
    return boolean_values(truth).view(np.bool_) | ~_present(truth)


def _surely(truth: pa.BooleanArray) -> Flags:
    """Return where a comparison with a bound holds, and there is one."""
    return boolean_values(truth).view(np.bool_) & _present(truth)
