"""The last row of each key: exact, whatever the type, without a loop over rows."""

import math
from collections import Counter
from datetime import time, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from arrow_format.key_numbers import key_numbers, last_rows


def rows_of(*columns):
    return last_rows(list(columns), len(columns[0])).tolist()


def test_the_last_of_each_key_in_the_order_of_rows():
    assert rows_of(pa.array([7, 8, 7, 9, 8])) == [2, 3, 4]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([math.nan, -math.nan, 0.0, -0.0, None, None]),
        pa.array([math.nan, -math.nan, 0.0, -0.0, None, None], pa.float32()),
        pa.array([[math.nan], [-math.nan], [0.0], [-0.0], [None], [None]]),
        pa.array([{"x": one} for one in [math.nan, -math.nan, 0.0, -0.0, None, None]]),
    ],
    ids=["double", "float", "list", "struct"],
)
def test_nulls_are_equal_and_so_are_nans_and_zeros(column):
    assert rows_of(column) == [1, 3, 5]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([-(2**63), 2**63 - 1, -(2**63), None, 0]),
        pa.array([-128, 127, -128, None, 0], pa.int8()),
        pa.array(["a", "", "a", None, "a\0"]),
        pa.array([b"a", b"", b"a", None, b"a\0"]),
        pa.array([Decimal(10**20), Decimal(1), Decimal(10**20), None, Decimal(0)]),
        pa.array([time(1), time(2), time(1), None, time(0)], pa.time64("ns")),
        pa.array([timedelta(1), timedelta(2), timedelta(1), None, timedelta(0)], pa.duration("us")),
        pa.array([[1, 2], [1], [1, 2], None, []]),
        pa.array([["a", ""], ["", "a"], ["a", ""], None, [None]]),
        pa.array([[[1], []], [[], [1]], [[1], []], None, [None]]),
        pa.array([{"x": 1, "y": "b"}, {"x": 1, "y": "c"}, {"x": 1, "y": "b"}, None, {}]),
    ],
    ids=lambda column: str(column.type),
)
def test_every_type_of_key(column):
    assert rows_of(column) == [1, 2, 3, 4]
    # The same of a slice, whose buffers begin before its rows.
    padded = pa.concat_arrays([column.slice(2, 3), column]).slice(3)
    assert rows_of(padded) == [1, 2, 3, 4]


def test_what_stands_under_a_null_does_not_count():
    hidden = pa.Array.from_buffers(
        pa.int64(), 3, [pa.py_buffer(b"\x04"), pa.py_buffer(np.array([5, -(2**62), 5]))]
    )
    assert hidden.to_pylist() == [None, None, 5]
    assert rows_of(hidden) == [1, 2]


def test_a_null_struct_is_not_the_struct_of_nulls():
    assert rows_of(pa.array([{"x": None}, None, {"x": None}], pa.struct({"x": pa.int8()}))) == [
        1,
        2,
    ]


def test_several_columns_are_one_key():
    rng = np.random.default_rng(1)
    far = rng.integers(-(2**63), 2**63 - 1, 4)
    columns = [rng.choice(far, 500), rng.choice(far, 500), rng.choice(["", "a", "b"], 500)]
    keys = zip(*(one.tolist() for one in columns), strict=True)
    expected = {key: row for row, key in enumerate(keys)}
    assert rows_of(*map(pa.array, columns)) == sorted(expected.values())


def test_numbers_are_few_however_far_apart_values_are():
    rng = np.random.default_rng(2)
    columns = [pa.array(rng.integers(0, 2**61, 1_000)) for _ in range(3)]
    numbers, width = key_numbers(columns)
    assert numbers.max() < width <= 4_096
    assert set(Counter(numbers.tolist()).values()) == {1}


def test_without_columns_all_rows_have_one_key():
    assert last_rows([], 5).tolist() == [4]
    assert last_rows([], 0).tolist() == []
    assert last_rows([pa.array([], pa.int64())], 0).tolist() == []
