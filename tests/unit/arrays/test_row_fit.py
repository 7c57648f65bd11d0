"""Rows brought to a later schema: exact at the ends of every range, null where a column lacks."""

import math
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given

from arrow_format.arrays.row_fit import RowFit
from tests.support.tables import types


def limits(dtype):
    """The extremes of a type, and what is special in it."""
    if pa.types.is_floating(dtype):
        tiny = {pa.float32(): 2.0**-149, pa.float64(): 5e-324}[dtype]
        largest = {pa.float32(): (2 - 2.0**-23) * 2.0**127, pa.float64(): 1.7e308}[dtype]
        return [largest, -largest, tiny, -tiny, 0.0, -0.0, math.inf, -math.inf, math.nan]
    if pa.types.is_decimal(dtype):
        most = Decimal((0, (9,) * dtype.precision, -dtype.scale))
        return [most, most.copy_negate(), Decimal(0), Decimal((0, (1,), -dtype.scale))]
    signed = pa.types.is_signed_integer(dtype)
    bits = dtype.bit_width - signed
    return [2**bits - 1, -(2**bits) if signed else 0, 0, 1]


WIDENINGS = [
    (narrow, wide)
    for chain in (
        [pa.int8(), pa.int16(), pa.int32(), pa.int64()],
        [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()],
        [pa.float32(), pa.float64()],
        [pa.decimal128(5, 2), pa.decimal128(38, 2), pa.decimal256(76, 2)],
        [pa.decimal32(5, 1), pa.decimal64(5, 1), pa.decimal128(19, 1)],
    )
    for i, narrow in enumerate(chain)
    for wide in chain[i + 1 :]
]


def as_schema(dtype):
    return pa.schema([("a", dtype)])


def fitted(batch, schema, columns=None):
    fit = RowFit(batch.schema, schema, columns)
    stored = batch.select(fit.columns).columns
    positions = range(len(fit.schema))
    assert fit.sources(positions) == [*range(len(stored))]
    arrays = fit.fit(stored, positions, batch.num_rows)
    for i in reversed(positions):  # each alone, as a filter asks for them
        (array,) = fit.fit([stored[source] for source in fit.sources([i])], [i], batch.num_rows)
        assert repr(array.to_pylist()) == repr(arrays[i].to_pylist())
    rows = pa.RecordBatch.from_arrays(arrays, schema=fit.schema)
    assert rows.schema.equals(fit.schema)
    rows.validate(full=True)
    return rows


@pytest.mark.parametrize(("narrow", "wide"), WIDENINGS, ids=str)
def test_every_widening_is_exact(narrow, wide):
    values = [None, *limits(narrow), None]
    whole = pa.record_batch([pa.array(values, narrow)], names=["a"])
    for batch in (whole, whole.slice(1, len(values) - 2)):
        rows = fitted(batch, as_schema(wide))
        assert rows["a"].type == wide
        expected = batch["a"].to_pylist()
        # By their text: NaN does not equal itself, and 0.0 equals -0.0.
        assert list(map(str, rows["a"].to_pylist())) == list(map(str, expected))


def test_values_of_too_many_digits_stay_as_spark_wrote_them():
    many = pa.array([Decimal("12345678.90")], pa.decimal128(10, 2)).view(pa.decimal128(5, 2))
    batch = pa.record_batch([many], names=["a"])
    for wide in (pa.decimal128(38, 2), pa.decimal256(50, 2)):
        assert fitted(batch, as_schema(wide))["a"].to_pylist() == [Decimal("12345678.90")]


@given(types())
def test_a_column_that_lacks_is_null(pair):
    dtype, _ = pair
    if isinstance(dtype, pa.DictionaryType) or pa.types.is_large_string(dtype):
        return
    batch = pa.record_batch([[1, 2, 3]], names=["k"])
    rows = fitted(batch, pa.schema([("new", dtype), ("k", pa.int64())]))
    assert rows["new"].null_count == 3
    assert rows["k"].equals(batch["k"])


def test_columns_in_another_order_and_some_of_them():
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.int8())])
    batch = pa.record_batch({"b": ["x"], "unread": [0.5], "a": pa.array([1], pa.int8())})
    rows = fitted(batch, schema)
    assert rows.to_pylist() == [{"a": 1, "b": "x", "c": None}]
    assert fitted(batch, schema, [2, 1]).to_pylist() == [{"c": None, "b": "x"}]
    only_new = fitted(batch, schema, [2])
    assert only_new.to_pylist() == [{"c": None}]
    assert fitted(batch, schema, []).num_columns == 0


def test_labels_are_those_of_the_later_schema_without_a_cast():
    stored = pa.schema([("t", pa.timestamp("us", tz="UTC"))])
    later = pa.schema([("t", pa.timestamp("us", tz="Asia/Tokyo")), ("n", pa.int8())])
    assert RowFit(stored, later).stored.field("t").type == later.field("t").type


def test_how_much_a_row_grows():
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.decimal128(9, 2))])
    stored = pa.schema([("a", pa.int8())])
    assert RowFit(stored, schema).added_row_bytes == 7 + 16
    assert RowFit(stored, schema, [0]).added_row_bytes == 7
    assert RowFit(stored, schema, [1]).added_row_bytes == 0
