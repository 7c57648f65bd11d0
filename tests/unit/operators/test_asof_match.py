"""Blocks of rows matched by key and time, against the rule row by row."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.operators.asof_match import TimedRows, TimeRule, matches
from tests.support.asof_model import as_of

DIRECTIONS = st.sampled_from(["backward", "forward", "nearest"])
SMALL = st.integers(-3, 9)
WIDE = st.sampled_from([-(2**63), 2**63 - 1, -(2**62), 0, 1, 2])
FLOATS = st.sampled_from([0.0, -0.0, 1.5, 2.5, 7.0, math.inf, -math.inf, math.nan])
KEYS = st.sampled_from([None, 0, 1, 2**63 - 1, -(2**63)])


def block(rows, type_):
    keys, times = zip(*rows, strict=True) if rows else ((), ())
    return TimedRows([pa.array(keys, pa.int64())], pa.array(times, type_))


@given(st.data())
def test_each_row_has_the_row_of_the_rule(data):
    times = data.draw(st.sampled_from([SMALL, WIDE, FLOATS]))
    type_ = pa.float64() if times is FLOATS else pa.int64()
    rows = st.lists(st.tuples(KEYS, st.none() | times), max_size=12)
    labels, features = data.draw(rows), data.draw(rows)
    how = {
        "direction": data.draw(DIRECTIONS),
        "allow_exact_matches": data.draw(st.booleans()),
        "tolerance": data.draw(st.none() | st.integers(0, 4)),
    }
    ties = None
    if data.draw(st.booleans()):
        each = st.lists(
            st.none() | st.integers(0, 2), min_size=len(features), max_size=len(features)
        )
        ties = data.draw(each)
    found = matches(
        block(labels, type_),
        block(features, type_),
        TimeRule(**how),
        None if ties is None else pa.array(ties, pa.int16()),
    )
    expected = as_of(labels, features, ties=ties, **how)
    assert found.tolist() == [-1 if place is None else place for place in expected]


@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
@pytest.mark.parametrize("type_", [pa.int64(), pa.float64()])
def test_a_tie_of_times_is_decided_by_place(direction, type_):
    features = block([(1, 5), (1, 5), (1, 7), (1, 7)], type_)
    labels = block([(1, 6), (1, 5), (1, 8), (1, 4)], type_)
    found = matches(labels, features, TimeRule(direction)).tolist()
    # pandas takes the last backward and the first forward, and goes backward from the middle.
    assert found == {
        "backward": [1, 1, 3, -1], "forward": [2, 0, -1, 0], "nearest": [1, 1, 3, 1],
    }[direction]  # fmt: skip


def test_infinite_times_are_times():
    features = block([(1, -math.inf), (1, 3.0), (1, math.inf)], pa.float64())
    labels = block([(1, math.inf), (1, 2.0), (1, -math.inf)], pa.float64())
    assert matches(labels, features, TimeRule()).tolist() == [2, 0, 0]
    assert matches(labels, features, TimeRule(tolerance=5.0)).tolist() == [2, -1, 0]


def test_keys_of_several_columns_are_equal_as_in_spark():
    def rows(keys, texts, times):
        columns = [pa.array(keys, pa.float64()), pa.array(texts)]
        return TimedRows(columns, pa.array(times, pa.int64()))

    features = rows([math.nan, 0.0, 1.0, 1.0], ["a", "b", None, "c"], [1, 2, 3, 4])
    labels = rows([math.nan, -0.0, 1.0, 1.0], ["a", "b", None, "d"], [9, 9, 9, 9])
    assert matches(labels, features, TimeRule()).tolist() == [0, 1, -1, -1]


def test_times_far_apart_and_many_keys_need_more_than_64_bits_together():
    features = block([(2**62, -(2**63)), (-(2**62), 2**63 - 1), (7, 0)], pa.int64())
    labels = block([(7, 2**63 - 1), (2**62, -(2**63)), (-(2**62), 0)], pa.int64())
    assert matches(labels, features, TimeRule()).tolist() == [2, 0, -1]
    assert matches(labels, features, TimeRule("nearest")).tolist() == [2, 0, 1]
    assert matches(labels, features, TimeRule(tolerance=2**63 - 2)).tolist() == [-1, 0, -1]
    assert matches(labels, features, TimeRule(tolerance=2**63 - 1)).tolist() == [2, 0, -1]
