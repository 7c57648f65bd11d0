"""Text in Spark's SQL as a condition: parsed by sqlglot, of which a subset is understood."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.stored_types import missing_column
from arrow_format.errors import OptionError, SchemaError
from arrow_format.filters import scalars
from arrow_format.filters.expression import (
    Column,
    Comparison,
    Expression,
    IsIn,
    IsNaN,
    IsNull,
    Literal,
    Not,
    all_of,
    any_of,
)
from arrow_format.filters.literals import decimal_from_text, from_text, incomparable
from arrow_format.filters.spark_rules import (
    CAST,
    COMPARED,
    MOST_DIGITS,
    common_digits,
    digits_of,
    digits_of_value,
    kind_of,
)
from arrow_format.filters.spark_text import SPACES, instant_of

if TYPE_CHECKING:
    import datetime as dt

    from arrow_format.filters.spark_rules import SparkSettings

_COMPARISONS = {
    "EQ": "=",
    "NEQ": "!=",
    "LT": "<",
    "LTE": "<=",
    "GT": ">",
    "GTE": ">=",
    "NullSafeEQ": "<=>",
}

_TYPES = {
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMPLTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMPNTZ": pa.timestamp("us"),
    "BOOLEAN": pa.bool_(),
    "BINARY": pa.binary(),
}

_SUPPORTED = (
    "comparisons of a column with a value or a column (= != < <= > >= <=>), IN, BETWEEN, IS NULL, "
    "isnan, AND, OR, NOT, and as values numbers, 'text', X'00', TRUE, FALSE, NULL, DATE '...', "
    "TIMESTAMP '...', TIMESTAMP_NTZ '...' and CAST of a value"
)

_EXAMPLE = "day >= '2024-06-01' AND customer IN (17, 18)"

_ESCAPE = re.compile(r"\\.", re.DOTALL)
_ESCAPED = frozenset("\\'\"nrt")
"""What may follow a backslash in a text."""

_DEFAULT_DECIMAL = (10, 0)
"""Precision and scale of ``DECIMAL`` without them."""


def from_sql(
    text: str, schema: pa.Schema, zone: dt.tzinfo | None, settings: SparkSettings
) -> Expression:
    """Return a condition in SQL on columns of a schema, whose names are found in any case.

    ``zone`` is the time zone of timestamps that name none. Raises OptionError for text that does
    not parse, with the place, for what is not supported, and for what the session's settings may
    give another meaning; SchemaError for a column that is missing or that several names match.
    """
    import sqlglot  # takes 0.1 s
    from sqlglot import errors, exp

    try:
        for token in sqlglot.tokenize(text, dialect="spark"):
            _check_meaning(text[token.start : token.end + 1], settings)
            if token.token_type.name == "SEMICOLON":  # some versions leave out what follows
                raise OptionError(_place(text, token.line, token.col, ";", "one condition only"))
        tree = sqlglot.parse_one(text, into=exp.Condition, dialect="spark")
    except errors.ParseError as error:
        where = error.errors[0] if error.errors else {}
        at = where.get("highlight") or ""
        why = str(where.get("description")).partition(" for <class")[0]
        raise OptionError(_place(text, where.get("line"), where.get("col"), at, why)) from error
    except errors.SqlglotError as error:
        msg = f"filter {text!r} does not parse: {str(error).splitlines()[0]}; is a quote left open?"
        raise OptionError(msg) from error
    refusal = settings.refusal_of_all()
    if refusal is not None:
        raise OptionError(f"filter: {refusal}")
    return _Reader(schema, zone, settings).condition(tree)


def _check_meaning(token: str, settings: SparkSettings) -> None:
    """Refuse a token that Spark may read as something else."""
    why = settings.refusal_of_token(token)
    if token[:1] in "'\"" and why is None:
        others = [escape for escape in _ESCAPE.findall(token) if escape[1] not in _ESCAPED]
        why = f"{others[0]} in {token} is no escape that is known here" if others else None
    if why is not None:
        raise OptionError(f"filter: {why}")


def _place(text: str, line: int | None, end: int | None, token: str, why: str) -> str:
    """Return the message for text that does not parse at a token, which ends at column ``end``."""
    if line is None or end is None:
        return f"filter {text!r} does not parse: expected a condition such as {_EXAMPLE}"
    column = max(end - len(token) + 1, 1)
    return (
        f"filter does not parse: line {line}, column {column}, at {token!r}: {why}\n"
        f"  {text.splitlines()[line - 1]}\n  {' ' * (column - 1)}^"
    )


class _Reader:
    """Turns sqlglot's tree into ours; nodes are known by the names of their classes."""

    def __init__(self, schema: pa.Schema, zone: dt.tzinfo | None, settings: SparkSettings) -> None:
        self._schema = schema
        self._zone = zone
        self._settings = settings

    def condition(self, node: Any) -> Expression:  # noqa: ANN401  sqlglot's
        """Return a condition, or the column or value in its place."""
        kind = type(node).__name__
        if kind in ("And", "Or"):
            operands = [self.condition(part) for part in _operands(node)]
            return all_of(operands) if kind == "And" else any_of(operands)
        if kind == "Column":
            return self._column(node)
        if kind in ("Literal", "Boolean", "Null", "Neg", "Cast", "TryCast", "HexString"):
            return Literal(self._value(node))
        if kind == "Between":
            self._check(node, "this", "low", "high")
            column = self.condition(node.this)
            return all_of(
                [
                    Comparison(">=", column, self.condition(node.args["low"])),
                    Comparison("<=", column, self.condition(node.args["high"])),
                ]
            )
        if kind in _COMPARISONS:
            self._check(node, "this", "expression")
            left, right = self.condition(node.this), self.condition(node.expression)
            return Comparison(_COMPARISONS[kind], left, right)
        if kind in ("Paren", "Not", "IsNan"):
            self._check(node, "this")
            operand = self.condition(node.this)
            return {"Paren": _same, "Not": Not, "IsNan": IsNaN}[kind](operand)
        if kind == "In":
            return self._is_in(node)
        if kind == "Is":
            return self._is(node)
        self._refuse(node)

    def _is_in(self, node: Any) -> Expression:  # noqa: ANN401
        self._check(node, "this", "expressions")
        column = self.condition(node.this)
        values = [self._value(item) for item in node.expressions]
        if not values:
            self._refuse(node)
        if isinstance(column, Column):
            self._check_list(column, [value for value in values if not pt.is_null(value.type)])
        by_type: dict[pa.DataType, list[pa.Scalar]] = {}
        for value in values:
            if value.is_valid:
                by_type.setdefault(value.type, []).append(value)
        if len(values) > sum(map(len, by_type.values())):
            type_ = list(by_type)[-1] if by_type else values[0].type
            by_type.setdefault(type_, []).append(scalars.null(type_))
        return any_of(
            IsIn(column, scalars.array_of(values, type_)) for type_, values in by_type.items()
        )

    def _check_list(self, column: Column, values: list[pa.Scalar]) -> None:
        """Refuse a list that Spark compares in another type than its values one by one."""
        type_ = self._schema.field(column.name).type
        compared = COMPARED.get(kind_of(type_) or "", ())
        kinds = {kind_of(value.type) for value in values}
        for value in values:
            if kind_of(value.type) not in compared:
                raise SchemaError(incomparable(column.name, type_, value))
        if len(kinds) > 1 and not kinds <= {"integer", "decimal"}:
            msg = (
                f"filter: IN of column {column.name!r} has values of different kinds, "
                f"{', '.join(sorted(map(str, kinds)))}, and Spark compares all of them in one "
                "type; write them alike, or several conditions with OR"
            )
            raise OptionError(msg)
        digits = [digits_of(type_), *map(digits_of_value, values)]
        known = [each for each in digits if each is not None]
        if len(known) == len(digits) and common_digits(known) > MOST_DIGITS:
            msg = (
                f"filter: IN of column {column.name!r} compares in a decimal of "
                f"{common_digits(known)} digits, of which Spark has {MOST_DIGITS}, so that it "
                "rounds; write fewer digits, or several conditions with OR"
            )
            raise SchemaError(msg)

    def _is(self, node: Any) -> Expression:  # noqa: ANN401
        self._check(node, "this", "expression")
        operand = self.condition(node.this)
        what = type(node.expression).__name__
        if what == "Null":
            return IsNull(operand)
        if what != "Boolean":
            self._refuse(node)
        return all_of([Not(IsNull(operand)), operand if node.expression.this else Not(operand)])

    def _column(self, node: Any) -> Column:  # noqa: ANN401
        if type(node.this).__name__ != "Identifier":
            self._refuse(node)
        if node.table:
            msg = (
                f"filter: {node.sql('spark')} names a field inside of a column, and a filter on "
                "nested fields is not supported; a name with a dot is written in backquotes"
            )
            raise OptionError(msg)
        self._check(node, "this")
        names = [name for name in self._schema.names if name.lower() == node.name.lower()]
        if len(names) > 1:
            msg = f"filter: column {node.name!r} is ambiguous; columns are {', '.join(names)}"
            raise SchemaError(msg)
        if not names or (self._settings.is_case_sensitive and names != [node.name]):
            raise SchemaError(f"filter: {missing_column(node.name, self._schema.names)}")
        return Column(names[0])

    # Values --------------------------------------------------------------------------------------

    def _value(self, node: Any) -> pa.Scalar:  # noqa: ANN401
        kind = type(node).__name__
        if kind == "Paren":
            return self._value(node.this)
        if kind == "Null":
            return scalars.null(pa.null())
        if kind == "Boolean":
            return scalars.number(bool(node.this), pa.bool_())
        try:
            if kind == "Literal":
                return scalars.text(node.this) if node.is_string else _number(node.this)
            if kind == "HexString":
                digits = node.this if len(node.this) % 2 == 0 else "0" + node.this
                return scalars.binary(bytes.fromhex(digits))
            if kind == "Neg":
                return self._negative(node)
            if kind in ("Cast", "TryCast") and not node.args.get("safe"):
                return self._cast(self._value(node.this), node.args["to"])
        except (ValueError, ArithmeticError, pa.ArrowException) as error:
            msg = f"filter: {node.sql('spark')} is no value of its type: {error}"
            raise OptionError(msg) from error
        self._refuse(node)

    def _negative(self, node: Any) -> pa.Scalar:  # noqa: ANN401
        value = self._value(node.this)
        type_ = value.type
        if not (pt.is_integer(type_) or pt.is_decimal(type_) or pt.is_floating(type_)):
            self._refuse(node)
        if pt.is_decimal(type_):
            return scalars.decimal(-value.as_py(), type_)
        return scalars.number(-value.as_py(), type_)

    def _cast(self, value: pa.Scalar, to: Any) -> pa.Scalar:  # noqa: ANN401
        kind = to.this.name
        if kind == "DECIMAL":
            digits = [int(param.name) for param in to.expressions]
            type_ = pa.decimal128(*(digits or _DEFAULT_DECIMAL))
        elif kind in _TYPES:
            type_ = _TYPES[kind]
        else:
            msg = f"filter: a cast to {to.sql('spark')} is not supported; expected {_SUPPORTED}"
            raise OptionError(msg)
        if not value.is_valid:
            return scalars.null(type_)
        target, source = kind_of(type_), kind_of(value.type)
        if target is None or source not in CAST[target]:
            msg = (
                f"filter: a cast of {source} to {target} may give another value than Spark's; "
                "write that value itself"
            )
            raise OptionError(msg)
        return self._converted(value, type_)

    def _converted(self, value: pa.Scalar, type_: pa.DataType) -> pa.Scalar:
        """Cast between kinds of :data:`.spark_rules.CAST`; ValueError for what does not fit."""
        if pt.is_timestamp(type_):
            return self._timestamp(value, type_)
        if pt.is_decimal(type_) and pt.is_string(value.type):
            value = decimal_from_text(value.as_py())
        elif pt.is_floating(type_) and not pt.is_floating(value.type):
            text = str(value.as_py())
            value = _parsed(scalars.text(text), pa.float64())
            if pt.is_float32(type_) and math.isfinite(value.as_py()):
                # Rounded once, as Spark does, and not to a double first.
                return scalars.text(str(Decimal(text.strip(SPACES)))).cast(type_)
        elif pt.is_string(value.type):
            value = _parsed(value, type_)
        return value.cast(type_)

    def _timestamp(self, value: pa.Scalar, type_: pa.DataType) -> pa.Scalar:
        """Cast a text or a date to an instant or a local time."""
        if pt.is_string(value.type):
            value = _parsed(value, type_)
        elif pt.is_date(value.type):
            value = value.cast(pa.timestamp("us"))
        if value.type.equals(type_):
            return value
        if not value.type.equals(pa.timestamp("us")) or type_.tz is None:
            msg = "a time zone or a number has no place in it"
            raise ValueError(msg)
        instant = instant_of(value.value * 1000, self._zone) // 1000
        return scalars.number(instant).cast(type_)

    # What is not understood ----------------------------------------------------------------------

    def _check(self, node: Any, *understood: str) -> None:  # noqa: ANN401
        """Refuse a node with parts beyond those that are understood."""
        if any(part for name, part in node.args.items() if name not in understood):
            self._refuse(node)

    def _refuse(self, node: Any) -> NoReturn:  # noqa: ANN401
        msg = (
            f"filter: {node.sql('spark')!r} ({type(node).__name__}) is not supported; expected "
            f"{_SUPPORTED}"
        )
        raise OptionError(msg)


def _operands(node: Any) -> list[Any]:  # noqa: ANN401
    """Return the operands of a chain of AND or OR, which is nested to the left."""
    kind = type(node)
    operands = []
    while type(node) is kind:
        operands.append(node.expression)
        node = node.this
    return [node, *reversed(operands)]


def _parsed(text: pa.Scalar, type_: pa.DataType) -> pa.Scalar:
    value = from_text(text.as_py(), type_)
    if value is None:
        msg = "the text does not parse"
        raise ValueError(msg)
    return value


def _same(expression: Expression) -> Expression:
    return expression


def _number(text: str) -> pa.Scalar:
    """Return a number as Spark types it: a long, a decimal, or with an exponent a double."""
    if "e" in text.lower():
        if math.isinf(float(text)):
            msg = "it is beyond all doubles"
            raise ValueError(msg)
        return scalars.number(float(text))
    number = Decimal(text)
    if "." not in text and -(2**63) <= number < 2**63:
        return scalars.number(int(text))
    return scalars.decimal(number)
