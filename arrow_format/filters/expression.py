"""Conditions as a tree of frozen values, and as text. Pure.

What a filter means is Spark's three-valued logic: a comparison with null is null, and a row passes
where the condition is true. NaN equals NaN and is the largest number, -0.0 equals 0.0, texts and
binaries compare by unsigned bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.buffers import to_scalar
from arrow_format.filters.scalars import null, number

if TYPE_CHECKING:
    from collections.abc import Iterable

COMPARISONS = ("=", "!=", "<", "<=", ">", ">=", "<=>")
"""Operators of a comparison; ``<=>`` is the equality for which null equals null."""

FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""Operators that change when the sides of a comparison do."""

_SHOWN_VALUES = 12
"""Values of an ``IN`` that are shown to people."""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """A column by name; as a condition, one of booleans."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A value, which may be null; as a condition, a boolean."""

    value: pa.Scalar

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle an array of the value: of many types, a scalar does not survive as Python's."""
        return _literal, (pa.repeat(self.value, 1),)


def _literal(values: pa.Array) -> Literal:
    return Literal(values[0])


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Two values compared by one of :data:`COMPARISONS`."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True, eq=False)
class IsIn:
    """Whether a column has one of several values.

    As Spark's ``IN``: where none equals, null if a value or the column is null. Without values,
    false.
    """

    operand: Expression
    values: pa.Array


@dataclass(frozen=True, slots=True, eq=False)
class IsNull:
    """Whether a column or a condition is null."""

    operand: Expression


@dataclass(frozen=True, slots=True, eq=False)
class IsNaN:
    """Whether a column is NaN; false where it is null, as Spark's ``isnan``."""

    operand: Expression


@dataclass(frozen=True, slots=True, eq=False)
class Not:
    """True where a condition is false, false where it is true."""

    operand: Expression


@dataclass(frozen=True, slots=True, eq=False)
class And:
    """True where all conditions are, false where one is false."""

    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Or:
    """True where one condition is, false where all are false."""

    operands: tuple[Expression, ...]


Expression = Column | Literal | Comparison | IsIn | IsNull | IsNaN | Not | And | Or

EXPRESSIONS = (Column, Literal, Comparison, IsIn, IsNull, IsNaN, Not, And, Or)

TRUE, FALSE = (Literal(to_scalar(value, pa.bool_())) for value in (True, False))
UNKNOWN = Literal(null(pa.bool_()))


def all_of(operands: Iterable[Expression]) -> Expression:
    """Return the conjunction; conjunctions among the operands become part of it."""
    return _joined(And, operands, TRUE, FALSE)


def any_of(operands: Iterable[Expression]) -> Expression:
    """Return the disjunction; disjunctions among the operands become part of it."""
    return _joined(Or, operands, FALSE, TRUE)


def _joined(
    kind: type[And | Or], operands: Iterable[Expression], neutral: Literal, absorbing: Literal
) -> Expression:
    parts: list[Expression] = []
    for operand in operands:
        for part in operand.operands if isinstance(operand, kind) else (operand,):
            if is_constant(part, absorbing):
                return absorbing
            if not is_constant(part, neutral):
                parts.append(part)
    if not parts:
        return neutral
    return parts[0] if len(parts) == 1 else kind(tuple(parts))


def is_constant(expression: Expression, constant: Literal) -> bool:
    """Whether an expression is this literal of booleans."""
    return isinstance(expression, Literal) and expression.value.equals(constant.value)


def is_never_true(expression: Expression) -> bool:
    """Whether a bound condition is false or null for every row, whatever its values."""
    if isinstance(expression, Literal):
        return not is_constant(expression, TRUE)
    inside = expression.operand if isinstance(expression, Not) else None
    return (
        isinstance(inside, Comparison)
        and isinstance(inside.left, Column)
        and isinstance(inside.right, Column)
        and inside.left.name == inside.right.name
    )


def negated(expression: Expression) -> Expression:
    """Return the negation, with ``Not`` only in front of what is neither ``And`` nor ``Or``."""
    if isinstance(expression, Not):
        return without_outer_nots(expression.operand)
    if isinstance(expression, And):
        return any_of(map(negated, expression.operands))
    if isinstance(expression, Or):
        return all_of(map(negated, expression.operands))
    if isinstance(expression, Literal):
        for constant, opposite in ((TRUE, FALSE), (FALSE, TRUE), (UNKNOWN, UNKNOWN)):
            if is_constant(expression, constant):
                return opposite
    return Not(expression)


def without_outer_nots(expression: Expression) -> Expression:
    """Return the same condition, with ``Not`` only in front of what is neither And nor Or."""
    if isinstance(expression, Not):
        return negated(expression.operand)
    if isinstance(expression, And):
        return all_of(map(without_outer_nots, expression.operands))
    if isinstance(expression, Or):
        return any_of(map(without_outer_nots, expression.operands))
    return expression


def column_names(expression: Expression) -> set[str]:
    """Return the names of the columns that an expression reads."""
    if isinstance(expression, Column):
        return {expression.name}
    if isinstance(expression, Literal):
        return set()
    if isinstance(expression, Comparison):
        return column_names(expression.left) | column_names(expression.right)
    if isinstance(expression, And | Or):
        return set().union(*map(column_names, expression.operands))
    return column_names(expression.operand)


# As text -----------------------------------------------------------------------------------------

_NEGATED = {"=": "!=", "<": ">=", "<=": ">"}


def as_sql(expression: Expression, most_values: int | None = _SHOWN_VALUES) -> str:
    """Return a condition as SQL text; of an ``IN``, at most so many values."""
    if isinstance(expression, Column):
        return _quoted(expression.name)
    if isinstance(expression, Literal):
        return value_as_sql(expression.value)
    if isinstance(expression, And | Or):
        word = " AND " if isinstance(expression, And) else " OR "
        return word.join(_inside(operand, most_values) for operand in expression.operands)
    if isinstance(expression, Not):
        return _negation(expression.operand, most_values)
    if isinstance(expression, Comparison):
        return _compared(expression, expression.operator, most_values)
    if isinstance(expression, IsIn):
        return _is_in(expression, "IN", most_values)
    operand = _operand(expression.operand, most_values)
    return f"{operand} IS NULL" if isinstance(expression, IsNull) else f"isnan({operand})"


def _inside(expression: Expression, most_values: int | None) -> str:
    text = as_sql(expression, most_values)
    return f"({text})" if isinstance(expression, And | Or) else text


def _operand(expression: Expression, most_values: int | None) -> str:
    text = as_sql(expression, most_values)
    return text if isinstance(expression, Column | Literal) else f"({text})"


def _negation(operand: Expression, most_values: int | None) -> str:
    if isinstance(operand, IsNull):
        return f"{_operand(operand.operand, most_values)} IS NOT NULL"
    if isinstance(operand, IsIn):
        return _is_in(operand, "NOT IN", most_values)
    if isinstance(operand, Comparison) and operand.operator in _NEGATED:
        return _compared(operand, _NEGATED[operand.operator], most_values)
    return f"NOT {_operand(operand, most_values)}"


def _compared(comparison: Comparison, operator: str, most_values: int | None) -> str:
    left, right = (_inside(side, most_values) for side in (comparison.left, comparison.right))
    return f"{left} {operator} {right}"


def _is_in(expression: IsIn, word: str, most_values: int | None) -> str:
    count = len(expression.values)
    shown = count if most_values is None or count <= most_values else most_values
    texts = [value_as_sql(expression.values[i]) for i in range(shown)]
    if pt.is_floating(expression.values.type):
        texts = _of_one_kind(texts)
    if shown < count:
        texts.append(f"... {count - shown:,} more")
    return f"{_inside(expression.operand, most_values)} {word} ({', '.join(texts)})"


def _of_one_kind(numbers: list[str]) -> list[str]:
    """Return numbers as doubles unless all are decimals: ``1.5`` is one in SQL, ``1e300`` is not.

    A list of both is not what each of them is by itself, see ``from_sql``.
    """
    if all(_DECIMAL.fullmatch(text) or text == "NULL" for text in numbers):
        return numbers
    return [f"{text}D" if _DECIMAL.fullmatch(text) else text for text in numbers]


_DECIMAL = re.compile(r"-?\d+\.\d+")


def _quoted(name: str) -> str:
    is_plain = name.isidentifier() and name.isascii() and name.upper() not in _RESERVED
    return name if is_plain else "`" + name.replace("`", "``") + "`"


_RESERVED = frozenset(
    ("AND", "OR", "NOT", "IN", "IS", "NULL", "TRUE", "FALSE", "BETWEEN", "CAST", "LIKE", "CASE")
)


def value_as_sql(value: pa.Scalar) -> str:
    """Return a value as a literal of SQL."""
    type_ = value.type
    if not value.is_valid:
        return "NULL"
    if pt.is_string(type_):
        escaped = value.as_py().replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    if pt.is_binary(type_):
        return f"X'{value.as_py().hex().upper()}'"
    if pt.is_floating(type_):
        number = repr(float(value.as_py()))
        return number if np.isfinite(float(number)) else f"CAST('{number}' AS DOUBLE)"
    if pt.is_timestamp(type_) and type_.tz is not None:
        return f"TIMESTAMP '{_cast(value, pa.timestamp(type_.unit))}Z'"
    for is_of, word in (
        (pt.is_timestamp, "TIMESTAMP_NTZ"), (pt.is_date, "DATE"), (pt.is_time, "TIME"),
    ):  # fmt: skip
        if is_of(type_):
            return f"{word} '{_cast(value, type_)}'"
    if pt.is_duration(type_):
        return f"INTERVAL '{value.value}' {type_.unit}"
    if pt.is_boolean(type_):
        return str(value).upper()
    return str(value)


def _cast(value: pa.Scalar, type_: pa.DataType) -> str:
    whole = number(value.value) if pt.is_timestamp(type_) else None
    text = str((value if whole is None else whole.cast(type_)).cast(pa.string()))
    if "out of range" in text:
        return f"{value.value} {type_}"
    return text.rstrip("0").rstrip(".") if "." in text else text
