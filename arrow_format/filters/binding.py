"""A condition bound to a schema: columns that are there, values in the types they are compared in.

The result has a normal form. ``Not`` is only in front of what is neither ``And`` nor ``Or``.
Comparisons are ``=``, ``<`` or ``<=`` of a column and a value that is not null, or of two columns;
one that equals itself is what is true wherever it has a value.
``IsIn`` has distinct values in ascending order, and none is null. Pure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.selection import keep
from arrow_format.arrays.stored_types import missing_column
from arrow_format.errors import OptionError, SchemaError
from arrow_format.filters.comparison import common_type, comparable, comparable_type, distinct
from arrow_format.filters.expression import (
    FALSE,
    FLIPPED,
    TRUE,
    UNKNOWN,
    And,
    Column,
    Comparison,
    Expression,
    IsIn,
    IsNaN,
    IsNull,
    Literal,
    Not,
    Or,
    all_of,
    any_of,
    as_sql,
    without_outer_nots,
)
from arrow_format.filters.literals import Nearest, from_text, incomparable, nearest
from arrow_format.filters.rows import truth_of
from arrow_format.filters.scalars import array_of, number
from arrow_format.filters.spark_rules import (
    COMPARED,
    MOST_DIGITS,
    common_digits,
    digits_of,
    digits_of_value,
    kind_of,
)

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from arrow_format.filters.spark_rules import SparkSettings


def bind(
    expression: Expression, schema: pa.Schema, zone: dt.tzinfo | None, sql: SqlRules | None = None
) -> Expression:
    """Return a condition on columns of a data schema in normal form.

    ``zone`` is that of dates and of timestamps without one; None where it is not known. With
    ``sql`` the condition is Spark's: a text is cast to the type of the column that it is compared
    with, and what is not Spark's bit for bit is refused. Raises SchemaError for a column that is
    missing or whose values do not compare, OptionError for what is no condition.
    """
    return without_outer_nots(_Binder(schema, zone, sql).condition(expression))


class SqlRules(NamedTuple):
    """What a condition in SQL is bound by, besides the schema."""

    settings: SparkSettings
    refused: Mapping[str, str]
    """Columns that are not compared, and why: see :func:`.spark_rules.refused_columns`."""


def _joined_values(operands: list[Expression]) -> list[Expression]:
    """Return operands of an ``or`` with the values of each column in one list.

    A list is searched once; comparisons are made one after the other.
    """
    values: dict[str, list[pa.Array]] = {}
    for operand in operands:
        known = _values(operand)
        if known is not None:
            values.setdefault(known[0].name, []).append(known[1])
    lists = {
        name: IsIn(Column(name), distinct(pa.concat_arrays(arrays)))
        for name, arrays in values.items()
        if len(arrays) > 1
    }
    others = [
        operand
        for operand in operands
        if (known := _values(operand)) is None or known[0].name not in lists
    ]
    return [*lists.values(), *others]


def _values(operand: Expression) -> tuple[Column, pa.Array] | None:
    """Return the column that a bound condition compares for equality, and the values."""
    match operand:
        case Comparison("=", Column() as column, Literal(value)):
            return column, pa.repeat(value, 1)
        case IsIn(Column() as column, values):
            return column, values
    return None


class _Binder:
    def __init__(self, schema: pa.Schema, zone: dt.tzinfo | None, sql: SqlRules | None) -> None:
        self._schema = schema
        self._zone = zone
        self._sql = sql

    def condition(self, expression: Expression) -> Expression:
        if isinstance(expression, And):
            return all_of(map(self.condition, expression.operands))
        if isinstance(expression, Or):
            return any_of(_joined_values([*map(self.condition, expression.operands)]))
        if isinstance(expression, Not):
            return Not(self.condition(expression.operand))
        if isinstance(expression, Comparison):
            return self._comparison(expression.operator, expression.left, expression.right)
        if isinstance(expression, IsIn):
            return self._is_in(self._operand(expression.operand), expression.values)
        if isinstance(expression, IsNull):
            return self._is_null(expression.operand)
        if isinstance(expression, IsNaN):
            column = self._operand(expression.operand)
            is_nan = self._compared("=", column, _nan_for(column, self._type(column)))
            return all_of([Not(IsNull(column)), is_nan])
        if isinstance(expression, Column):
            if not pt.is_boolean(self._field(expression.name).type):
                type_ = self._field(expression.name).type
                msg = (
                    f"filter: column {expression.name!r} is {type_}, and so no condition; "
                    "compare it with a value"
                )
                raise SchemaError(msg)
            return Comparison("=", expression, TRUE)
        if pt.is_null(expression.value.type):
            return UNKNOWN
        if pt.is_boolean(expression.value.type):
            return expression
        msg = f"filter: {as_sql(expression)} is no condition; compare it with a column"
        raise OptionError(msg)

    def _field(self, name: str) -> pa.Field:
        if name not in self._schema.names:
            raise SchemaError(f"filter: {missing_column(name, self._schema.names)}")
        return self._schema.field(name)

    def _type(self, column: Column) -> pa.DataType:
        """Return the type in which a column is compared."""
        stored = self._field(column.name).type
        why = None if self._sql is None else self._sql.refused.get(column.name)
        if why is not None:
            msg = (
                f"filter: column {column.name!r} {why}; use where() on the DataFrame, or compare "
                "its bytes by an expression of PyArrow"
            )
            raise SchemaError(msg)
        type_ = comparable_type(stored)
        if type_ is None:
            why = "leave it out"
            if stored.num_fields:
                why = "store what decides as a column of its own, and compare that"
            msg = f"filter: values of column {column.name!r}, {stored}, do not compare; {why}"
            raise SchemaError(msg)
        return type_

    @staticmethod
    def _operand(expression: Expression) -> Column:
        if isinstance(expression, Column):
            return expression
        msg = f"filter: {as_sql(expression)} is where the name of a column is expected"
        raise OptionError(msg)

    def _is_null(self, operand: Expression) -> Expression:
        if isinstance(operand, Column):
            self._field(operand.name)
            return IsNull(operand)
        if isinstance(operand, Literal):
            return FALSE if operand.value.is_valid else TRUE
        return IsNull(without_outer_nots(self.condition(operand)))

    def _comparison(self, operator: str, left: Expression, right: Expression) -> Expression:
        if isinstance(left, Literal) and isinstance(right, Column):
            left, right, operator = right, left, FLIPPED.get(operator, operator)
        if isinstance(left, Literal) and isinstance(right, Literal):
            return self._folded(operator, left, right)
        column = self._operand(left)
        if isinstance(right, Literal):
            return self._compared(operator, column, right.value)
        return self._of_columns(operator, column, self._operand(right))

    def _folded(self, operator: str, left: Literal, right: Literal) -> Expression:
        """Compare two literals, the left one as a column of one row."""
        one_row = _Binder(pa.schema([("literal", left.value.type)]), self._zone, self._sql)
        bound = one_row._comparison(operator, Column("literal"), right)
        return Literal(truth_of(bound, {"literal": pa.repeat(left.value, 1)}, 1)[0])

    def _of_columns(self, operator: str, left: Column, right: Column) -> Expression:
        types = self._type(left), self._type(right)
        if any(map(pt.is_null, types)) and operator != "<=>":
            return UNKNOWN
        if common_type(*types) is None:
            msg = (
                f"filter: column {left.name!r} is {types[0]} and column {right.name!r} is "
                f"{types[1]}; they do not compare"
            )
            raise SchemaError(msg)
        self._check_pair(left, types[0], f"column {right.name!r}", types[1])
        if left.name == right.name:
            if operator == "<=>":
                return TRUE
            return _always(left) if operator in ("=", "<=", ">=") else Not(_always(left))
        if operator == "<=>":
            nulls = IsNull(left), IsNull(right)
            both = all_of([*map(Not, nulls), Comparison("=", left, right)])
            return any_of([both, all_of(nulls)])
        if operator in ("=", "<", "<="):
            return Comparison(operator, left, right)
        if operator == "!=":
            return Not(Comparison("=", left, right))
        return Not(Comparison("<=" if operator == ">" else "<", left, right))

    def _compared(self, operator: str, column: Column, value: pa.Scalar) -> Expression:
        type_ = self._type(column)
        if not value.is_valid and not pt.is_null(value.type):
            self._check_pair(column, type_, "NULL", value)
        if operator == "<=>":
            if not value.is_valid:
                return IsNull(column)
            return all_of([Not(IsNull(column)), self._compared("=", column, value)])
        if not value.is_valid or pt.is_null(type_):
            return UNKNOWN
        near = self._nearest(column, type_, value)
        if operator not in ("=", "!="):
            self._check_order(column, type_, value)
        if operator in ("=", "!="):
            equal = _equal(column, near)
            return equal if operator == "=" else Not(equal)
        is_less = operator in ("<", ">=")
        bound = near.least if is_less else near.greatest
        if bound is None:
            holds: Expression = _always(column) if is_less else Not(_always(column))
        else:
            holds = Comparison("<" if is_less else "<=", column, Literal(bound))
        return holds if operator in ("<", "<=") else Not(holds)

    def _check_pair(
        self,
        column: Column,
        type_: pa.DataType,
        shown: str,
        other: pa.DataType | pa.Scalar,
        *,
        in_list: bool = False,
    ) -> None:
        """Refuse, in SQL, to compare types whose comparison is not Spark's bit for bit."""
        if self._sql is None:
            return
        is_value = isinstance(other, pa.Scalar)
        other_type = other.type if is_value else other
        ours, theirs = kind_of(type_), kind_of(other_type)
        if ours is None or theirs is None or theirs not in COMPARED[ours]:
            if is_value:
                raise SchemaError(incomparable(column.name, type_, other))
            return  # two columns of one type, which only Arrow has
        why = self._sql.settings.refusal_of_pair(ours, theirs, in_list=in_list)
        if why is not None:
            raise OptionError(f"filter: column {column.name!r} is {type_}, {shown} is not: {why}")
        digits = [digits_of(type_), digits_of_value(other) if is_value else digits_of(other_type)]
        known = [each for each in digits if each is not None]
        if "decimal" in (ours, theirs) and len(known) == 2 and common_digits(known) > MOST_DIGITS:
            msg = (
                f"filter: column {column.name!r} is {type_}, and Spark compares it with {shown} in "
                f"a decimal of {common_digits(known)} digits, of which it has {MOST_DIGITS}, so "
                "that it rounds; compare with fewer digits, or use where() on the DataFrame"
            )
            raise SchemaError(msg)

    def _check_order(self, column: Column, type_: pa.DataType, value: pa.Scalar) -> None:
        """Refuse, in SQL, an order of integers and a decimal that is no long.

        Spark takes the answer for known, of nulls too (``DecimalPrecision``).
        """
        if self._sql is None or not (pt.is_integer(type_) and pt.is_decimal(value.type)):
            return
        if not -(2**63) <= value.as_py() <= 2**63 - 1:
            msg = (
                f"filter: column {column.name!r} is {type_}, and {value} is beyond all integers: "
                "Spark compares it with nulls too; leave the comparison out, or write IS NOT NULL"
            )
            raise SchemaError(msg)

    def _nearest(
        self, column: Column, type_: pa.DataType, value: pa.Scalar, *, in_list: bool = False
    ) -> Nearest:
        self._check_pair(column, type_, as_sql(Literal(value)), value, in_list=in_list)
        if self._sql is not None and pt.is_string(value.type) and not pt.is_string(type_):
            text = value.as_py()
            value = from_text(text, type_)
            if value is None:
                msg = (
                    f"filter: column {column.name!r} is {type_}, and the text {text!r} it is "
                    "compared with is no such value; write one that is"
                )
                raise SchemaError(msg)
        return nearest(value, column.name, type_, self._zone)

    def _is_in(self, column: Column, values: pa.Array) -> Expression:
        if not len(values):
            return FALSE
        type_ = self._type(column)
        if pt.is_null(type_):
            return UNKNOWN
        parts: list[Expression] = []
        has_nulls = values.null_count > 0
        values = keep(values, values.is_valid())
        if comparable_type(values.type) != type_:
            near = [self._nearest(column, type_, value, in_list=True) for value in values]
            parts = [_equal(column, each) for each in near if each.num_equal > 1]
            same = [each.least for each in near if each.num_equal == 1]
            values = array_of(same, type_)
        values = distinct(comparable(values, type_))
        if len(values) == 1:
            parts.append(Comparison("=", column, Literal(values[0])))
        elif len(values):
            parts.append(IsIn(column, values))
        if has_nulls:
            parts.append(UNKNOWN)
        return any_of(parts) if parts else Not(_always(column))


def _equal(column: Column, near: Nearest) -> Expression:
    if near.num_equal == 0:
        return Not(_always(column))
    if near.num_equal == 1:
        return Comparison("=", column, Literal(near.least))
    below = Comparison("<", column, Literal(near.least))
    return all_of([Not(below), Comparison("<=", column, Literal(near.greatest))])


def _always(column: Column) -> Expression:
    """Return what is true where a column has a value, and null where it is null."""
    return Comparison("=", column, column)


def _nan_for(column: Column, type_: pa.DataType) -> pa.Scalar:
    if not pt.is_floating(type_):
        msg = f"filter: column {column.name!r} is {type_}; only floating-point numbers can be NaN"
        raise SchemaError(msg)
    return number(math.nan)
