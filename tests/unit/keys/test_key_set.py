"""Which rows have a given key: equal as partitioners put rows together."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from arrow_format.keys.key_set import KeySet
from arrow_format.keys.partitioner import HashPartitioner

N = 7


def key_set(*columns):
    batch = pa.RecordBatch.from_arrays(list(columns), [f"k{i}" for i in range(len(columns))])
    assign = HashPartitioner(batch.schema.names).bind(batch.schema, N, 0)
    return KeySet(batch, assign(batch), N), assign


def found(keys, rows):
    """Which rows are found, by the subpartitions they have, and as broadcast rows."""
    among, assign = key_set(keys)
    ids = assign(pa.record_batch({"k0": rows}))
    by_subpartition = among.among([rows], ids)
    assert np.array_equal(by_subpartition, among.among([rows], None))
    return by_subpartition.tolist()


VALUES = {
    "int8": pa.array([1, 2, None, 3], pa.int8()),
    "int64": pa.array([1 << 62, -(1 << 62), None, 0]),
    "text": pa.array(["", "a", None, "ab" * 50]),
    "binary": pa.array([b"", b"\0", None, b"\0\0"]),
    "double": pa.array([0.0, math.nan, None, 1.5]),
    "float": pa.array([0.0, math.nan, None, 1.5], pa.float32()),
    "bool": pa.array([True, False, None, True]),
    "decimal": pa.array([Decimal("1.20"), Decimal("-3.00"), None, Decimal(0)], pa.decimal128(9, 2)),
    "long decimal": pa.array([Decimal(10) ** 30, Decimal(1), None, -1], pa.decimal128(38, 0)),
    "date": pa.array([date(2020, 1, 1), date(1, 1, 1), None, date(1970, 1, 1)]),
    "timestamp": pa.array(
        [datetime(2020, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC), None, 0],
        pa.timestamp("us", "UTC"),
    ),
    "struct": pa.array([{"a": 1, "b": "x"}, {"a": None, "b": "x"}, None, {"a": 1, "b": None}]),
    "list": pa.array([[1, 2], [], None, [None]]),
    "nested": pa.array([[{"f": math.nan}], [{"f": -0.0}], None, [None]]),
}


@pytest.mark.parametrize("rows", VALUES.values(), ids=VALUES.keys())
def test_each_value_is_found_and_no_other(rows):
    for i in range(len(rows)):
        same = [math.nan if v is None else v == rows[i] for v in rows]
        expected = [j == i or bool(same[j] and rows[j].equals(rows[i])) for j in range(len(rows))]
        assert found(rows.slice(i, 1), rows) == expected, rows[i]


def test_nans_are_equal_and_so_are_zeros():
    negative_nan = pa.array(np.array([-(1 << 51)], np.int64)).view(pa.float64())
    rows = pa.concat_arrays([pa.array([math.nan, 0.0, -0.0, 1.0]), negative_nan])
    assert found(pa.array([math.nan]), rows) == [True, False, False, False, True]
    assert found(pa.array([-0.0]), rows) == [False, True, True, False, False]


def test_keys_of_several_columns_are_found_as_a_whole():
    among, assign = key_set(pa.array([1, 2, None]), pa.array(["x", "y", None]))
    rows = [pa.array([1, 1, 2, None, None]), pa.array(["x", "y", "y", None, "x"])]
    ids = assign(pa.record_batch(rows, ["k0", "k1"]))
    assert among.among(rows, ids).tolist() == [True, False, True, True, False]


def test_slices_and_many_keys():
    random = np.random.default_rng(1)
    keys, rows = random.integers(0, 3_000, 900), random.integers(0, 3_000, 5_000)
    among, assign = key_set(pa.array(np.append(0, keys)).slice(1))
    column = pa.array(np.append(0, rows)).slice(1)
    ids = assign(pa.record_batch([column], ["k0"]))
    assert np.array_equal(among.among([column], ids), np.isin(rows, keys))
    assert len(among) == 900


def test_values_in_common_by_column():
    among, _ = key_set(pa.array([1, None]), pa.array(["x", "y"]))
    assert not among.has_value_of("k0", pa.array([2, None]))
    assert among.has_value_of("k1", pa.array(["z", "y"]))


def test_values_of_another_time_zone_are_shared():
    moment = datetime(2020, 1, 1, tzinfo=UTC)
    among, _ = key_set(pa.array([moment, None], pa.timestamp("us", "Europe/Berlin")))
    for value, is_shared in ((moment, True), (datetime(2021, 1, 1, tzinfo=UTC), False)):
        others = pa.array([value], pa.timestamp("us", "UTC"))
        assert among.has_value_of("k0", others) == is_shared
