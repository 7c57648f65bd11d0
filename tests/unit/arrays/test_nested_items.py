"""How many values stand inside rows, and runs of rows by such a measure."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.arrays.row_sizes import (
    has_items,
    items_per_row,
    num_items,
    positions_of,
    runs_within,
)

INT = pa.int8()
PAIR = pa.struct({"a": pa.list_(INT), "b": pa.list_(INT)})


@pytest.mark.parametrize(
    ("values", "type_", "expected"),
    [
        ([1, 2], INT, [0, 0]),
        ([[1, 2], None, [], [3]], pa.list_(INT), [2, 0, 0, 1]),
        # Two lists and three items; a list and none.
        ([[[1, 2], [3]], [[]]], pa.list_(pa.list_(INT)), [5, 1]),
        ([[[1, 2], []], None], pa.list_(pa.list_(INT), 2), [4, 2]),
        ([[("a", [1, 2])], []], pa.map_(pa.string(), pa.list_(INT)), [3, 0]),
        ([{"a": [1], "b": [1, 2]}, None], PAIR, [3, 0]),
        ([[None] * 5, [None]], pa.list_(pa.null()), [5, 1]),
    ],
)
def test_items_at_all_depths(values, type_, expected):
    array = pa.array(values, type_)
    assert has_items(type_) == any(expected)
    for start in range(len(values) + 1):
        assert items_per_row(array[start:]).tolist() == expected[start:]
        assert num_items(array[start:]) == sum(expected[start:])


@given(st.lists(st.integers(0, 9)), st.integers(0, 20))
def test_runs_are_as_long_as_they_may_be(sizes, most):
    runs = list(runs_within(np.cumsum(sizes, dtype=np.int64), most))
    assert [i for start, stop in runs for i in range(start, stop)] == list(range(len(sizes)))
    for start, stop in runs:
        assert stop == start + 1 or sum(sizes[start:stop]) <= most
        assert stop == len(sizes) or sum(sizes[start : stop + 1]) > most


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5))))
def test_positions_of_runs(runs):
    starts, sizes = np.array(runs, np.int64).reshape(-1, 2).T
    expected = [start + i for start, size in runs for i in range(size)]
    assert positions_of(starts, sizes).tolist() == expected
