"""Bytes and items of rows against what Arrow says of each row, and ranges cut by such sizes."""

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
    row_sizes,
    runs_within,
)

TEXTS = ["", "a", None, "é" * 50, "x" * 1_000]
COLUMNS = {
    "numbers": pa.array(range(5), pa.int64()),
    "flags": pa.array([True, None, False, True, True]),
    "money": pa.array([1, 2, None, 4, 5], pa.decimal128(20, 2)),
    "nothing": pa.nulls(5),
    "texts": pa.array(TEXTS),
    "lists": pa.array([[text] * i for i, text in enumerate(TEXTS)], pa.list_(pa.string())),
    "maps": pa.array(
        [[(str(i), text)] * i for i, text in enumerate(TEXTS)], pa.map_(pa.string(), pa.string())
    ),
    "structs": pa.array([{"t": text, "l": [1] * i} for i, text in enumerate(TEXTS)]),
    "fixed": pa.array([[1, 2, 3]] * 5, pa.list_(pa.int64(), 3)),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize(("first", "end"), [(0, 5), (2, 5), (1, 3), (2, 2)])
def test_sizes_are_about_those_of_single_rows(name, first, end):
    column = COLUMNS[name].slice(first, end - first)
    batch = pa.record_batch([column, column], names=["a", "b"])
    sizes = row_sizes(batch.columns, batch.num_rows)
    assert sizes.shape == (end - first,)
    for i, size in enumerate(sizes.tolist()):
        alone = pa.concat_batches([batch.slice(i, 1)]).nbytes
        assert abs(size - alone) <= 60


def test_items_without_bytes_count_and_cost_nothing():
    """A billion nulls: an array with an entry for each would take 8 GB."""
    offsets = pa.array([0, 5, 5, 1_000_000_005], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, pa.nulls(1_000_000_005))
    assert row_sizes([lists], 3).tolist() == [9, 4, 1_000_000_004]
    assert row_sizes([lists.slice(1)], 2).tolist() == [4, 1_000_000_004]
    fixed = pa.FixedSizeListArray.from_arrays(pa.nulls(12), 4)
    assert row_sizes([fixed.slice(1)], 2).tolist() == [4, 4]


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
