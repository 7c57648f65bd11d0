"""Local writes are stored in types that Spark reads, and no value changes by that."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given

from arrow_format import (
    ColumnPartitioner,
    OptionError,
    RangePartitioner,
    SchemaError,
    open_shuffle,
    write_shuffle,
)
from arrow_format.arrays.stored_types import data_schema
from arrow_format.arrays.types_for_spark import rows_for_spark, schema_for_spark
from connector.spark_types import spark_schema_of
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import FAST, shuffle_of, write_rows
from tests.support.tables import tables

US, NS = pa.timestamp("us"), pa.timestamp("ns")

CHANGED = [
    (pa.uint8(), pa.int16(), [0, 255]),
    (pa.uint16(), pa.int32(), [0, 2**16 - 1]),
    (pa.uint32(), pa.int64(), [0, 2**32 - 1]),
    (pa.uint64(), pa.decimal128(20, 0), [0, 2**64 - 1]),
    (pa.float16(), pa.float32(), [np.float16(0.1), np.float16("-inf")]),
    (pa.date64(), pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    (pa.time32("s"), pa.time64("ns"), [dt.time(23, 59, 59)]),
    (pa.time32("ms"), pa.time64("ns"), [dt.time(23, 59, 59, 999_000)]),
    (pa.time64("us"), pa.time64("ns"), [dt.time(23, 59, 59, 999_999)]),
    (pa.timestamp("s"), US, [dt.datetime(1, 1, 1), dt.datetime(9999, 1, 1)]),
    (pa.timestamp("ms"), US, [dt.datetime(1969, 12, 31, 23, 59, 59, 999_000)]),
    (NS, US, [dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), dt.datetime(2024, 1, 1)]),
    (pa.timestamp("ns", "Asia/Tokyo"), pa.timestamp("us", "Asia/Tokyo"), []),
    (pa.duration("s"), pa.duration("us"), [dt.timedelta(-1)]),
    (pa.duration("ns"), pa.duration("us"), [dt.timedelta(microseconds=-1)]),
    (pa.decimal32(9, 2), pa.decimal128(9, 2), [Decimal("-9999999.99")]),
    (pa.decimal64(18, 0), pa.decimal128(18, 0), [Decimal(10**18 - 1)]),
    (pa.decimal256(38, 3), pa.decimal128(38, 3), [Decimal(f"{10**38 - 1}e-3")]),
    (pa.decimal128(5, -2), pa.decimal128(7, 0), [Decimal("99999e2")]),
    (pa.decimal128(2, 5), pa.decimal128(5, 5), [Decimal("-0.00099")]),
    (pa.binary(4), pa.binary(), [b"abcd"]),
    (pa.list_(pa.uint8(), 2), pa.list_(pa.int16()), [[1, None], [255, 3]]),
    (pa.list_(pa.list_(NS, 2), 1), pa.list_(pa.list_(US)), [[[None, dt.datetime(1, 2, 3)]]][:0]),
    (pa.list_(pa.uint8()), pa.list_(pa.int16()), [[], [1, None, 3]]),
    (pa.map_(pa.uint8(), pa.uint16()), pa.map_(pa.int16(), pa.int32()), [[(1, 2), (3, None)]]),
    (
        pa.struct([("a", pa.uint8()), ("b", pa.list_(NS))]),
        pa.struct([("a", pa.int16()), ("b", pa.list_(US))]),
        [{"a": 1, "b": [dt.datetime(2024, 1, 1), None]}, {"a": None, "b": None}],
    ),
]  # fmt: skip

KEPT = [
    pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(),
    pa.float64(), pa.decimal128(38, 10), pa.date32(), pa.time64("ns"), US,
    pa.timestamp("us", "Europe/Berlin"), pa.duration("us"), pa.string(), pa.binary(),
    pa.list_(pa.int8()), pa.map_(pa.string(), pa.int64()), pa.struct([("a", pa.int8())]),
]  # fmt: skip


def converted(array: pa.Array) -> pa.ChunkedArray:
    batch = pa.record_batch([array], names=["c"])
    found = rows_for_spark([batch], batch.schema)
    table = pa.Table.from_batches(found, schema_for_spark(batch.schema))
    table.validate(full=True)
    return table.column(0)


def same(one: object, other: object) -> bool:
    """Whether Python values are the same, as a list and a tuple, or 1 and Decimal(1), are."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return one == other


@pytest.mark.parametrize(("given_", "stored", "values"), CHANGED, ids=str)
def test_what_spark_lacks_becomes_what_it_has_without_loss(given_, stored, values):
    if pa.types.is_decimal128(given_) and not 0 <= given_.scale <= given_.precision:
        array = pa.array([*values, None], pa.decimal256(40, 5)).cast(given_)
    else:
        array = pa.array([*values, None], given_)
    found = converted(array)
    assert found.type.equals(stored)
    assert same(found.to_pylist(), array.to_pylist())
    assert converted(array.slice(len(values))).to_pylist() == [None]
    assert len(converted(array.slice(0, 0))) == 0


@pytest.mark.parametrize("type_", [*KEPT, *(stored for _, stored, _ in CHANGED)], ids=str)
def test_what_spark_has_stays(type_):
    schema = pa.schema([pa.field("c", type_, metadata={"a": "b"})])
    assert schema_for_spark(schema).equals(schema, check_metadata=True)
    assert spark_schema_of(schema).names == ["c"]


@pytest.mark.parametrize("type_", [given_ for given_, _, _ in CHANGED], ids=str)
def test_spark_lacks_what_is_changed(type_):
    schema = pa.schema([("c", type_)])
    with pytest.raises(SchemaError, match="Spark cannot read"):
        spark_schema_of(schema)
    assert spark_schema_of(schema_for_spark(schema)).names == ["c"]


@guarantee("types for Spark")
@given(tables())
def test_any_rows_are_the_same_in_types_of_spark(table):
    plain = data_schema(table.schema)
    if "decimal256(60" in str(plain):
        with pytest.raises(SchemaError, match="for_spark=False"):
            schema_for_spark(table.schema)
        return
    target = schema_for_spark(table.schema)
    found = pa.Table.from_batches(rows_for_spark(table.to_batches(), table.schema), target)
    found.validate(full=True)
    assert schema_for_spark(target).equals(target)
    assert spark_schema_of(target).names == table.schema.names
    assert same(found.to_pylist(), table.to_pylist())


ODD = pa.array([7], NS)


@guarantee("types for Spark")
@pytest.mark.parametrize(
    "array",
    [
        pa.array([1_000, 1_001], NS),
        pa.array([1], pa.duration("ns")),
        pa.array([2**62], pa.timestamp("s")),
        pa.array([-(2**62)], pa.duration("s")),
        pa.array([1], pa.int64()).view(pa.date64()),
        pa.array([[1_001]], pa.list_(NS)),
        pa.array([{"a": 1_001}], pa.struct([("a", NS)])),
        pa.array([[(1, 1_001)]], pa.map_(pa.int8(), NS)),
    ],
    ids=lambda array: str(array.type),
)
def test_a_value_that_would_change_is_refused_by_name(array, tmp_path):
    table = pa.table({"k": range(len(array)), "c": array})
    message = r"column 'c' of type .* has a value that does not fit into .*for_spark=False"
    with pytest.raises(SchemaError, match=message):
        write_rows(tmp_path / "s", table, "k", n=2)
    assert not (tmp_path / "s").exists()
    write_rows(tmp_path / "s", table, "k", n=1, for_spark=False)
    assert open_shuffle(tmp_path / "s").read().read_all()["c"].combine_chunks().equals(array)


@pytest.mark.parametrize(
    "type_",
    [pa.month_day_nano_interval(), pa.decimal256(39, 0), pa.decimal128(38, -1)],
    ids=str,
)
def test_what_spark_has_nothing_for_is_refused_by_name(type_):
    for schema, path in (
        (pa.schema([("c", type_)]), "c"),
        (pa.schema([("c", pa.list_(type_))]), "c.element"),
    ):
        message = rf"column '{path}' has type .*, and Spark has no type .*for_spark=False"
        with pytest.raises(SchemaError, match=message):
            schema_for_spark(schema)


def test_what_stands_under_nulls_is_not_looked_at():
    odd = pa.array([1_000, 7, 2_000], NS)
    hidden = pa.array([False, True, False])
    offsets = pa.array([0, 1, 2, 3], pa.int32())
    keys = pa.array([7, 7, 7], pa.uint8())
    for array in (
        pa.StructArray.from_arrays([odd], ["a"], mask=hidden),
        pa.ListArray.from_arrays(offsets, odd, mask=hidden),
        pa.FixedSizeListArray.from_arrays(odd, 1, mask=hidden),
        pa.MapArray.from_arrays(offsets, keys, odd, mask=hidden),
        pa.Array.from_buffers(NS, 3, [pa.py_buffer(b"\x05"), odd.buffers()[1]]),
    ):
        found = converted(array)
        assert found.null_count == 1
        assert same(found.to_pylist(), array.to_pylist())
        assert same(converted(array.slice(1)).to_pylist(), array.slice(1).to_pylist())


def test_a_large_batch_is_converted_a_few_megabytes_at_a_time():
    batch = pa.record_batch([pa.array(np.arange(4 << 20, dtype=np.uint64))], names=["c"])
    sizes = [one.nbytes for one in rows_for_spark([batch], batch.schema)]
    assert sum(sizes) == 16 * batch.num_rows
    assert max(sizes) <= 16 << 20


# Written ------------------------------------------------------------------------------------------


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "k": np.array([1, 2, 255], np.uint8),
            "t": pd.to_datetime(
                ["2024-01-01", None, "1969-12-31 23:59:59.999999"], format="ISO8601"
            ),
            "d": pd.to_timedelta(["1 day", None, "-1 us"]),
            "c": pd.Categorical(["x", None, "y"]),
        }
    ).astype({"t": "datetime64[ns]", "d": "timedelta64[ns]"})


def test_a_frame_of_pandas_is_one_that_spark_reads(tmp_path):
    shuffle = shuffle_of(tmp_path / "s", frame(), "k", n=3)
    types = dict(zip(shuffle.schema.names, shuffle.schema.types, strict=True))
    assert types == {"k": pa.int16(), "t": US, "d": pa.duration("us"), "c": pa.string()}
    found = shuffle.read().read_all().sort_by("k").to_pylist()
    assert found == pa.table(frame()).sort_by("k").to_pylist()


def test_a_frame_of_polars_is_one_that_spark_reads(tmp_path):
    given_ = pl.DataFrame(
        {
            "k": [3, 1],
            "n": [1, None],
            "t": [dt.datetime(2024, 1, 1), None],
            "o": [dt.time(1), None],
        },
        schema={"k": pl.UInt32, "n": pl.UInt64, "t": pl.Datetime("ns", "UTC"), "o": pl.Time},
    )
    shuffle = shuffle_of(tmp_path / "s", given_, ["k", "n"], n=1)
    assert shuffle.schema.types == [
        pa.int64(), pa.decimal128(20, 0), pa.timestamp("us", "UTC"), pa.time64("ns"),
    ]  # fmt: skip
    assert sorted(row["n"] or 0 for row in shuffle.read().read_all().to_pylist()) == [0, 1]


def test_an_append_to_what_spark_wrote_takes_the_types_of_pandas(tmp_path):
    spark = pa.table({"k": pa.array([7], pa.int16()), "t": pa.array([None], US)})
    where = {"path": tmp_path / "s", "keys": "k", "num_subpartitions": 2, "options": FAST}
    write_shuffle(spark, **where)
    receipt = write_shuffle(frame()[["k", "t"]], mode="append", **where)
    assert (receipt.version, open_shuffle(tmp_path / "s").num_rows) == (2, 4)
    odd = frame()[["k", "t"]].astype({"k": np.int16})
    with pytest.raises(SchemaError, match=r"timestamp\[ns\]"):
        write_shuffle(odd, mode="append", for_spark=False, **where)


def test_an_append_keeps_to_types_that_spark_lacks(tmp_path):
    where = {"path": tmp_path / "s", "keys": "k", "num_subpartitions": 2, "options": FAST}
    odd = pa.table({"k": [1], "t": pa.array([1_001], NS)})
    write_shuffle(odd, for_spark=False, **where)
    write_shuffle(odd, mode="append", **where)
    assert open_shuffle(tmp_path / "s").schema.field("t").type == NS
    with pytest.raises(SchemaError, match="for_spark=False"):
        write_shuffle(odd, mode="overwrite", **where)


def test_bounds_of_ranges_are_in_the_types_that_are_stored(tmp_path):
    rows = frame().dropna()
    for column in ("k", "t", "d"):
        shuffle = shuffle_of(
            tmp_path / column, pa.table(rows), n=2, partitioner=RangePartitioner(column)
        )
        assert shuffle.subpartition_rows.to_pylist() == [1, 1]
        assert shuffle.partitioner.bounds.schema.field(0).type == shuffle.schema.field(column).type


def test_a_column_of_subpartitions_stays_an_integer(tmp_path):
    table = pa.table({"p": pa.array([2, 0], pa.uint64()), "u": pa.array([1, 2], pa.uint64())})
    shuffle = shuffle_of(tmp_path / "s", table, n=3, partitioner=ColumnPartitioner("p"))
    assert shuffle.schema.types == [pa.int64(), pa.decimal128(20, 0)]
    assert shuffle.subpartition(2).read_all()["u"].to_pylist() == [1]


def test_what_is_no_choice_is_refused(tmp_path):
    with pytest.raises(OptionError, match="for_spark='no': expected True or False"):
        write_shuffle(
            pa.table({"k": [1]}), tmp_path / "s", keys="k", num_subpartitions=1, for_spark="no"
        )


def test_items_that_are_no_batches_are_still_named(tmp_path):
    batch = pa.record_batch([pa.array([1], pa.uint8())], names=["k"])
    with pytest.raises(SchemaError, match=r"item 1 of batches \(from 0\) is int"):
        write_shuffle([batch, 5], tmp_path / "s", keys="k", num_subpartitions=1)


def test_an_append_of_what_spark_has_nothing_for_goes_only_to_such(tmp_path):
    where = {"path": tmp_path / "s", "keys": "k", "num_subpartitions": 1, "options": FAST}
    odd = pa.table({"k": [1], "i": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    for mode in ("append", "overwrite", "errorifexists"):
        with pytest.raises(SchemaError, match="column 'i' has type month_day_nano"):
            write_shuffle(odd, mode=mode, **where)
    write_shuffle(odd, for_spark=False, **where)
    assert write_shuffle(odd, mode="append", **where).version == 2
    # What does not fit is told in its own type: no other would do.
    with pytest.raises(SchemaError, match=r"column 'i' is month_day_nano_interval .*uint8"):
        write_shuffle(odd.set_column(1, "i", pa.array([1], pa.uint8())), mode="append", **where)
