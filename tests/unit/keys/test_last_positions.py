"""The last row of each key: exact, whatever the type, without a loop over rows."""

import math
from datetime import time, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.keys import key_groups
from arrow_format.keys import last_positions as module
from arrow_format.keys.last_positions import SAMPLE_ROWS, last_positions
from tests.support.guarantees import guarantee
from tests.support.spark_order_model import as_key


def rows_of(*columns):
    return last_positions(list(columns), len(columns[0])).tolist()


def test_the_last_of_each_key_in_the_order_of_rows():
    assert rows_of(pa.array([7, 8, 7, 9, 8])) == [2, 3, 4]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([math.nan, -math.nan, 0.0, -0.0, None, None]),
        pa.array([math.nan, -math.nan, 0.0, -0.0, None, None], pa.float32()),
        pa.array([math.nan, -math.nan, 0.0, -0.0, None, None], pa.float16()),
        pa.array([[math.nan], [-math.nan], [0.0], [-0.0], [None], [None]]),
        pa.array([{"x": value} for value in [math.nan, -math.nan, 0.0, -0.0, None, None]]),
    ],
    ids=["double", "float", "halffloat", "list", "struct"],
)
def test_nulls_are_equal_and_so_are_nans_and_zeros(column):
    assert rows_of(column) == [1, 3, 5]


@guarantee("distinct keys")
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


LEAVES = {
    pa.int64(): st.sampled_from([-(2**63), 2**63 - 1, 0, 1]),
    pa.int8(): st.sampled_from([-128, 127]),
    pa.float64(): st.sampled_from([0.0, -0.0, math.nan, -math.nan, -1e308, 5e-324]),
    pa.string(): st.sampled_from(["", "a", "a\0"]),
    pa.decimal128(38, 0): st.sampled_from([Decimal(10**37), Decimal(0)]),
    pa.bool_(): st.booleans(),
}
"""Few values of each type, among them those furthest from each other."""


def keys_of(type_):
    """Values of a type, at any depth."""
    if pa.types.is_struct(type_):
        values = st.fixed_dictionaries({field.name: keys_of(field.type) for field in type_})
    elif pa.types.is_list(type_):
        values = st.lists(keys_of(type_.value_type), max_size=2)
    else:
        values = LEAVES[type_]
    return st.none() | values


def nested(children):
    fields = st.lists(children, min_size=1, max_size=2)
    structs = fields.map(
        lambda types: pa.struct([(f"f{i}", type_) for i, type_ in enumerate(types)])
    )
    return structs | children.map(pa.list_)


TYPES = st.recursive(st.sampled_from(list(LEAVES)), nested, max_leaves=3)


@given(st.lists(TYPES, min_size=1, max_size=2), st.data())
def test_keys_of_any_type_are_those_of_python(types, data):
    rows = data.draw(st.lists(st.tuples(*map(keys_of, types)), min_size=1, max_size=12))
    expected = {repr(as_key(list(row))): number for number, row in enumerate(rows)}
    columns = [
        pa.array(values, type_)
        for values, type_ in zip(zip(*rows, strict=True), types, strict=True)
    ]
    assert rows_of(*columns) == sorted(expected.values())


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
    keys = zip(*(column.tolist() for column in columns), strict=True)
    expected = {key: row for row, key in enumerate(keys)}
    assert rows_of(*map(pa.array, columns)) == sorted(expected.values())


@pytest.mark.parametrize("num_keys", [3, 900, 20_000, 10**9])
@pytest.mark.parametrize("kind", ["near", "far", "all", "text", "struct", "mixed", "nulls"])
def test_every_way_finds_the_same(num_keys, kind):
    rng = np.random.default_rng(num_keys)
    keys = rng.integers(0, num_keys, 3 * SAMPLE_ROWS)
    expected = sorted({key: row for row, key in enumerate(keys.tolist())}.values())
    far = keys * 7_919_000_003 % 2**62
    texts = pa.array(keys.astype(str))
    columns = {
        "near": [pa.array(keys)],
        "far": [pa.array(far)],
        "all": [pa.array((keys.astype(np.uint64) * np.uint64(2**61 + 1)).view(np.int64))],
        "text": [texts],
        "struct": [pa.StructArray.from_arrays([texts], ["x"])],
        "mixed": [pa.array(keys % 2), texts, pa.array(far)],
        "nulls": [pa.array(keys, mask=keys == keys[0])],
    }[kind]
    assert rows_of(*columns) == expected


@pytest.mark.parametrize("factors", [(1, 1), (1,), ()])
def test_numbers_that_have_one_place_are_different_keys(monkeypatch, factors):
    # The place is the high bits of a product: with a factor of 1, those of the number itself.
    monkeypatch.setattr(key_groups, "FACTORS", factors)
    numbers = np.array([2**62 + 1, 2**62 + 2, -(2**62), 2**62 + 1] * 1_500)
    assert rows_of(pa.array(numbers)) == [5_997, 5_998, 5_999]


@guarantee("distinct keys")
@pytest.mark.parametrize("num_hashes", [1, 7, 5_000])
@pytest.mark.parametrize("kind", ["text", "nulls", "floats", "lists"])
def test_rows_of_one_hash_are_told_apart_by_their_keys(monkeypatch, num_hashes, kind):
    monkeypatch.setattr(module, "MANY_KEYS", 1)
    keys = np.random.default_rng(num_hashes).integers(0, 6_000, SAMPLE_ROWS * 2)
    monkeypatch.setattr(
        module, "hash_columns", lambda columns: (keys % num_hashes).astype(np.int32)
    )
    texts = pa.array(keys.astype(str))
    columns = {
        "text": [texts],
        "nulls": [pa.array(keys.astype(str), mask=keys == 0)],
        "floats": [pa.array(np.where(keys == 0, np.nan, keys - 1.0)), texts],
        "lists": [pa.ListArray.from_arrays(np.arange(len(keys) + 1, dtype=np.int32), texts)],
    }[kind]
    expected = {key: row for row, key in enumerate(keys.tolist())}
    assert rows_of(*columns) == sorted(expected.values())


def test_without_columns_all_rows_have_one_key():
    assert last_positions([], 5).tolist() == [4]
    assert last_positions([], 0).tolist() == []
    assert last_positions([pa.array([], pa.int64())], 0).tolist() == []
