"""Filters mean what Spark's three-valued logic does, and skip nothing that passes."""

import datetime as dt
import pickle
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from arrow_format import HashPartitioner, RangePartitioner
from arrow_format.filters.expression import (
    And,
    Column,
    Comparison,
    IsIn,
    IsNaN,
    IsNull,
    Literal,
    Not,
    Or,
    as_sql,
)
from arrow_format.filters.filter import bind_filter
from arrow_format.keys.partitioner import ColumnPartitioner
from tests.support.column_statistics import in_spark_order, statistics_of

NAN = float("nan")
VALUES = {
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


def rows_of(seed, num_rows):
    """Rows of any values; drawn one by one, they would take most of the time."""
    choose = random.Random(seed).choice
    return [
        {name: choose([None, *values, *values]) for name, (_, values) in VALUES.items()}
        for _ in range(num_rows)
    ]


rows = st.builds(rows_of, st.integers(0, 2**32), st.integers(1, 12))


def scalar(value, type_):
    return pa.array([value], type_)[0]


@st.composite
def leaves(draw):
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
        return draw(st.sampled_from([Column("b"), Literal(scalar(draw(boolean), pa.bool_()))]))
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


def truth(expression, row):
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
        value = row[expression.operand.name]
        return value is not None and value != value
    if isinstance(expression, IsIn):
        values = expression.values.to_pylist()
        found = [equal(plain(row[expression.operand.name]), plain(value)) for value in values]
        if True in found:
            return True
        return None if None in found else False
    left, right = (
        plain(row[side.name] if isinstance(side, Column) else side.value.as_py())
        for side in (expression.left, expression.right)
    )
    if expression.operator == "<=>":
        return left is right is None or equal(left, right) is True
    if left is None or right is None:
        return None
    left, right = in_spark_order(left), in_spark_order(right)
    return {
        "=": left == right, "!=": left != right, "<": left < right,
        "<=": left <= right, ">": left > right, ">=": left >= right,
    }[expression.operator]  # fmt: skip


def plain(value):
    is_zoned = isinstance(value, dt.datetime) and value.tzinfo is not None
    return value.astimezone(dt.UTC) if is_zoned else value


def equal(left, right):
    if left is None or right is None:
        return None
    return in_spark_order(left) == in_spark_order(right)


def table_of(rows):
    return pa.Table.from_pylist(rows, SCHEMA).combine_chunks()


def columns_of(filter_, table):
    return [table[name].combine_chunks() for name in filter_.columns]


@given(rows, conditions)
def test_rows_pass_as_in_spark(rows, condition):
    table = table_of(rows)
    bound = bind_filter(condition, SCHEMA, time_zone="Europe/Berlin")
    expected = [truth(condition, row) is True for row in table.to_pylist()]
    assert bound.mask(columns_of(bound, table), len(rows)).tolist() == expected
    again = pickle.loads(pickle.dumps(bound))
    assert again == bound
    assert hash(again) == hash(bound)
    assert again.mask(columns_of(bound, table), len(rows)).tolist() == expected


@given(rows, conditions, st.integers(1, 4), st.booleans())
def test_what_statistics_rule_out_does_not_pass(rows, condition, size, known):
    table = table_of(rows)
    bound = bind_filter(condition, SCHEMA)
    units = [table.slice(start, size) for start in range(0, len(rows), size)]
    statistics = {
        name: statistics_of([unit[name].combine_chunks() for unit in units], known=known)
        for name in SCHEMA.names
    }
    num_rows = np.array([unit.num_rows for unit in units], np.int64)
    masks = [bound.mask(columns_of(bound, unit), unit.num_rows) for unit in units]
    may_match = bound.may_match(statistics, num_rows)
    all_match = bound.all_match(statistics, num_rows)
    for mask, may, surely in zip(masks, may_match, all_match, strict=True):
        assert may or not mask.any()
        assert not surely or mask.all()


@given(rows, conditions, st.integers(1, 20))
def test_rows_that_pass_are_in_the_subpartitions(rows, condition, num_subpartitions):
    table = table_of(rows)
    bound = bind_filter(condition, SCHEMA)
    mask = bound.mask(columns_of(bound, table), len(rows))
    batch = table.to_batches()[0]
    sample = RangePartitioner("x", ("s", "descending")).with_sample(batch, num_subpartitions)
    numbered = RangePartitioner("i").with_sample(batch, num_subpartitions)
    for partitioner in (HashPartitioner("i", "s"), HashPartitioner("x"), sample, numbered):
        assigned = partitioner.bind(batch.schema, num_subpartitions, 0)(batch)
        found = bound.subpartitions(partitioner, SCHEMA, num_subpartitions)
        assert found is None or set(assigned[mask].tolist()) <= set(found.tolist())
    by_column = bound.subpartitions(ColumnPartitioner("i"), SCHEMA, num_subpartitions)
    ids = {i for i, passes in zip(table["i"].to_pylist(), mask, strict=True) if passes and i}
    in_range = {i for i in ids if 0 <= i < num_subpartitions}
    assert by_column is None or in_range <= set(by_column.tolist())


@given(rows, conditions)
def test_the_text_of_a_filter_binds_to_the_same(rows, condition):
    table = table_of(rows)
    bound = bind_filter(condition, SCHEMA)
    again = bind_filter(as_sql(bound.expression, None), SCHEMA)
    expected = bound.mask(columns_of(bound, table), len(rows))
    assert again.mask(columns_of(again, table), len(rows)).tolist() == expected.tolist()


# PyArrow's own filter, where it agrees -----------------------------------------------------------

AGREEING = sorted(set(VALUES) - {"x", "f", "w"})


@st.composite
def comparisons(draw):
    name = draw(st.sampled_from(AGREEING))
    type_, values = VALUES[name]
    column = pc.field(name)
    kind = draw(st.sampled_from(["compare", "compare", "isin", "is_null", "is_valid"]))
    if kind in ("is_null", "is_valid"):
        return getattr(column, kind)()
    if kind == "isin":  # of a null false, in Spark null: the same unless negated
        values = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
        return column.is_valid() & column.isin(pa.array(values, type_))
    method = draw(st.sampled_from(["__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"]))
    return getattr(column, method)(scalar(draw(st.none() | st.sampled_from(values)), type_))


expressions = st.recursive(
    comparisons(),
    lambda some: st.one_of(
        st.tuples(some, some).map(lambda both: both[0] & both[1]),
        st.tuples(some, some).map(lambda both: both[0] | both[1]),
    ),
    max_leaves=5,
)


@given(rows, expressions)
def test_rows_pass_as_in_pyarrow(rows, expression):
    table = table_of(rows).append_column("row", pa.array(range(len(rows))))
    bound = bind_filter(expression, SCHEMA)
    mask = bound.mask(columns_of(bound, table), len(rows))
    assert np.flatnonzero(mask).tolist() == table.filter(expression)["row"].to_pylist()
