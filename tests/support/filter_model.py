"""Conditions on rows of any types, and what Spark's three-valued logic says of them, row by row."""

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from arrow_format.filters.expression import (
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
)
from tests.support.column_statistics import in_spark_order

NAN = float("nan")
Row = dict[str, Any]

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int32(), [-1, 0, 1, 2]),
    "x": (pa.float64(), [-1.0, -0.0, 0.0, 1.5, NAN, float("inf")]),
    "f": (pa.float32(), [-0.0, 1.5, NAN]),
    "s": (pa.string(), ["", "a", "ab", "abc", "é"]),
    "y": (pa.binary(), [b"", b"\x00", b"a\xff\xff", b"\xff"]),
    "b": (pa.bool_(), [False, True]),
    "d": (pa.date32(), [dt.date(1500, 3, 1), dt.date(2024, 1, 1)]),
    "t": (pa.timestamp("us", "Europe/Berlin"), [dt.datetime(1969, 1, 1), dt.datetime(2024, 1, 1)]),
    "n": (pa.timestamp("ms"), [dt.datetime(1969, 1, 1), dt.datetime(2024, 1, 1)]),
    "m": (pa.decimal128(5, 2), [Decimal("-1.00"), Decimal("0.00"), Decimal("1.50")]),
    "w": (pa.decimal64(5, 1), [Decimal("-1.0"), Decimal("1.5")]),
}  # fmt: skip
SCHEMA = pa.schema([(name, type_) for name, (type_, _) in VALUES.items()])


def rows_of(seed: int, num_rows: int) -> list[Row]:
    """Rows of any values; drawn one by one, they would take most of the time."""
    choose = random.Random(seed).choice
    return [
        {name: choose([None, *values, *values]) for name, (_, values) in VALUES.items()}
        for _ in range(num_rows)
    ]


rows = st.builds(rows_of, st.integers(0, 2**32), st.integers(1, 12))


def scalar(value: object, type_: pa.DataType) -> pa.Scalar:
    return pa.array([value], type_)[0]


@st.composite
def leaves(draw: st.DrawFn) -> Expression:
    name = draw(st.sampled_from(sorted(VALUES)))
    type_, values = VALUES[name]
    column = Column(name)
    kind = draw(st.sampled_from(["compare"] * 5 + ["in", "in", "null", "nan", "bool", "columns"]))
    if kind == "in":
        some = draw(st.lists(st.none() | st.sampled_from(values), max_size=3))
        return IsIn(column, pa.array(some, type_))
    if kind == "null":
        return IsNull(column)
    if kind == "nan":
        return IsNaN(Column(draw(st.sampled_from(["x", "f"]))))
    if kind == "bool":
        boolean = st.none() | st.booleans()
        return Column("b") if draw(st.booleans()) else Literal(scalar(draw(boolean), pa.bool_()))
    operator = draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "<=>"]))
    if kind == "columns":
        return Comparison(operator, Column("x"), Column(draw(st.sampled_from(["x", "f", "i"]))))
    other = Literal(scalar(draw(st.none() | st.sampled_from(values)), type_))
    sides = (column, other) if draw(st.booleans()) else (other, column)
    return Comparison(operator, *sides)


conditions = st.recursive(
    leaves(),
    lambda some: st.one_of(
        some.map(Not),
        some.map(lambda one: one if isinstance(one, Literal) else IsNull(one)),
        st.tuples(some, some).map(And),
        st.tuples(some, some).map(Or),
    ),
    max_leaves=5,
)


# What Spark does, for one row --------------------------------------------------------------------


def truth(expression: Expression, row: Row) -> Any:
    if isinstance(expression, Column):
        return row[expression.name]
    if isinstance(expression, Literal):
        return expression.value.as_py()
    if isinstance(expression, Not):
        inside = truth(expression.operand, row)
        return None if inside is None else not inside
    if isinstance(expression, And | Or):
        decisive = isinstance(expression, Or)
        parts = [truth(operand, row) for operand in expression.operands]
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive
    if isinstance(expression, IsNull):
        return truth(expression.operand, row) is None
    if isinstance(expression, IsNaN):
        value = truth(expression.operand, row)
        return value is not None and value != value
    if isinstance(expression, IsIn):
        values = expression.values.to_pylist()
        one = plain(truth(expression.operand, row))
        found = [equal(one, plain(value)) for value in values]
        if True in found:
            return True
        return None if None in found else False
    left, right = (plain(truth(side, row)) for side in (expression.left, expression.right))
    if expression.operator == "<=>":
        return left is right is None or equal(left, right) is True
    if left is None or right is None:
        return None
    left, right = in_spark_order(left), in_spark_order(right)
    return {
        "=": left == right, "!=": left != right, "<": left < right,
        "<=": left <= right, ">": left > right, ">=": left >= right,
    }[expression.operator]  # fmt: skip


def plain(value: Any) -> Any:
    is_zoned = isinstance(value, dt.datetime) and value.tzinfo is not None
    return value.astimezone(dt.UTC) if is_zoned else value


def equal(left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    return bool(in_spark_order(left) == in_spark_order(right))


def table_of(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA).combine_chunks()
