"""Rows between bounds: against `bisect` over the slow model, for every sortable type."""

from bisect import bisect_left, bisect_right
from fractions import Fraction
from functools import cmp_to_key
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.keys.bound_search import BoundIndex, bounds_of_sample, first_descent
from arrow_format.keys.sort_keys import ORDERS
from tests.support.spark_order_model import compare_rows, sorted_rows
from tests.unit.keys.test_spark_order import columns


@st.composite
def keyed_rows(draw):
    """One to three key columns of one length and their orders."""
    keys = draw(st.lists(columns(), min_size=1, max_size=3))
    orders = [draw(st.sampled_from(ORDERS)) for _ in keys]
    num_rows = min(map(len, keys))
    return [key.slice(0, num_rows) for key in keys], orders


def batch_of(keys):
    return pa.RecordBatch.from_arrays(keys, names=[f"k{i}" for i in range(len(keys))])


def tuples(keys):
    return list(zip(*(key.to_pylist() for key in keys), strict=True))


@given(keyed_rows(), st.integers(0, 20))
def test_a_row_stands_after_the_bounds_less_than_it(case, num_bounds):
    keys, orders = case
    rows = tuples(keys)
    in_order = sorted_rows(rows, orders)
    chosen = in_order[:: max(len(rows) // (num_bounds + 1), 1)][:num_bounds]
    bounds = batch_of([key.take(pa.array(chosen, pa.int64())) for key in keys])
    order = cmp_to_key(lambda one, other: compare_rows(one, other, orders))
    sorted_bounds = [order(rows[i]) for i in chosen]

    placed = BoundIndex(bounds, orders).place(keys)

    assert placed.dtype == np.int32
    assert placed.tolist() == [bisect_left(sorted_bounds, order(row)) for row in rows]


@given(keyed_rows(), st.integers(1, 40))
def test_bounds_of_a_sample_ascend_and_part_it(case, num_ranges):
    keys, orders = case
    rows = tuples(keys)
    bounds = bounds_of_sample(batch_of(keys), orders, num_ranges)
    found = tuples(bounds.columns)
    assert len(found) < num_ranges
    for one, other in pairwise(found):
        assert compare_rows(one, other, orders) < 0
    assert first_descent(bounds, orders) is None
    # No bound is larger than everything, and each range but the last holds a row.
    placed = BoundIndex(bounds, orders).place(keys)
    assert set(range(len(found))) <= set(placed.tolist())
    assert len(rows) == len(placed)


@given(keyed_rows(), st.integers(1, 40), st.data())
def test_a_bound_is_the_last_row_within_so_many_parts_of_the_weight(case, num_ranges, data):
    keys, orders = case
    rows = tuples(keys)
    lists = st.lists(st.integers(1, 5), min_size=len(rows), max_size=len(rows))
    weights = data.draw(st.one_of(st.just([1] * len(rows)), lists))
    found = bounds_of_sample(batch_of(keys), orders, num_ranges, np.array(weights, np.float64))
    order = cmp_to_key(lambda one, other: compare_rows(one, other, orders))
    in_order = sorted(range(len(rows)), key=lambda i: order(rows[i]))
    ends = list(accumulate(weights[i] for i in in_order))
    expected = []
    for part in range(1, num_ranges):
        before = bisect_right(ends, Fraction(part * sum(weights), num_ranges))
        if before and (not expected or order(expected[-1]) < order(rows[in_order[before - 1]])):
            expected.append(rows[in_order[before - 1]])
    assert [order(row) for row in tuples(found.columns)] == [order(row) for row in expected]
    if set(weights) == {1}:
        assert found.equals(bounds_of_sample(batch_of(keys), orders, num_ranges))


@pytest.mark.parametrize("order", ORDERS)
def test_the_first_descent_is_told(order):
    up = pa.record_batch({"k": [1, 2, 2, 3, 1, 9]})
    down = pa.record_batch({"k": [9, 3, 2, 2, 4, 1]})
    batch = down if order.startswith("descending") else up
    assert first_descent(batch, [order]) == 4
    assert first_descent(batch.slice(0, 4), [order]) is None
    assert first_descent(batch.slice(0, 0), [order]) is None
