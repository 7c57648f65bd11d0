"""Filters mean what Spark's three-valued logic does, and skip nothing that passes."""

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import example, given
from hypothesis import strategies as st

from arrow_format import HashPartitioner, RangePartitioner
from arrow_format.filters.expression import Column, IsIn, as_sql
from arrow_format.filters.filter import bind_filter
from arrow_format.filters.spark_rules import SparkSettings
from arrow_format.keys.partitioner import ColumnPartitioner
from tests.support.column_statistics import statistics_of
from tests.support.filter_model import SCHEMA, VALUES, conditions, rows, scalar, table_of, truth


def columns_of(filter_, table):
    return [table[name].combine_chunks() for name in filter_.columns]


@given(rows, conditions)
def test_rows_pass_as_in_spark(rows, condition):
    table = table_of(rows)
    bound = bind_filter(condition, SCHEMA, settings=SparkSettings("Europe/Berlin"))
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
    passing = bound.must_match(statistics, num_rows)
    for mask, may, surely in zip(masks, may_match, passing, strict=True):
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
@example(rows=[], condition=IsIn(Column("f"), pa.array([-0.0, np.nan], pa.float32())))
@example(rows=[], condition=IsIn(Column("x"), pa.array([None, 1.5, 1e300], pa.float64())))
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
