"""A bound condition evaluated for rows. Pure.

On its own, since binding evaluates comparisons of two values with it.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrow_format.arrays.buffers import boolean_values, to_arrow, validity
from arrow_format.filters.comparison import common_type, comparable, compare, is_in
from arrow_format.filters.expression import (
    And,
    Column,
    Comparison,
    Expression,
    IsIn,
    IsNull,
    Literal,
    Not,
    Or,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


def truth_of(
    expression: Expression, columns: Mapping[str, pa.Array], num_rows: int
) -> pa.BooleanArray:
    """Return the truth of a bound condition for each row: true, false or null."""
    if isinstance(expression, And | Or):
        join = pc.and_kleene if isinstance(expression, And) else pc.or_kleene
        return reduce(join, (truth_of(part, columns, num_rows) for part in expression.operands))
    if isinstance(expression, Not):
        return pc.invert(truth_of(expression.operand, columns, num_rows))
    if isinstance(expression, Literal):
        return pa.repeat(expression.value, num_rows)
    if isinstance(expression, Comparison):
        return _compared(expression, columns)
    if isinstance(expression, IsIn):
        return is_in(comparable(_values(expression.operand, columns)), expression.values)
    assert isinstance(expression, IsNull)  # the normal form has no others
    if isinstance(expression.operand, Column):
        return pc.is_null(_values(expression.operand, columns))
    return pc.is_null(truth_of(expression.operand, columns, num_rows))


def rows_that_pass(truth: pa.BooleanArray) -> NDArray[np.bool_]:
    """Return which rows a condition is true for, neither null nor false."""
    values = boolean_values(truth).view(np.bool_)
    valid = validity(truth)
    return values if valid is None else values & valid


def _values(operand: Expression, columns: Mapping[str, pa.Array]) -> pa.Array:
    assert isinstance(operand, Column)
    return columns[operand.name]


def _compared(comparison: Comparison, columns: Mapping[str, pa.Array]) -> pa.BooleanArray:
    left = _values(comparison.left, columns)
    if isinstance(comparison.right, Literal):
        return compare(comparison.operator, comparable(left), comparison.right.value)
    right = _values(comparison.right, columns)
    if right is left:  # true wherever there is a value
        valid = validity(left)
        mask = None if valid is None else ~valid
        return to_arrow(np.ones(len(left), np.bool_), mask)
    left, right = comparable(left), comparable(right)
    type_ = common_type(left.type, right.type)
    left, right = comparable(left, type_), comparable(right, type_)
    return compare(comparison.operator, left, right)
