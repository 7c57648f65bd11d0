"""Keys given by a user: which rows have them, and in which subpartitions."""

import datetime as dt
import json
import pickle
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format import BroadcastPartitioner, HashPartitioner, RangePartitioner
from arrow_format.errors import OptionError, SchemaError
from arrow_format.filters.keys import _given, bind_keys, stored_keys, subpartition_of
from arrow_format.keys.partitioner import ColumnPartitioner
from tests.support.column_statistics import statistics_of
from tests.support.programs import printed

NAN = float("nan")
SCHEMA = pa.schema(
    [
        ("k", pa.int32()),
        ("s", pa.string()),
        ("x", pa.float64()),
        ("d", pa.date32()),
        ("m", pa.decimal128(5, 2)),
        ("p", pa.struct([("a", pa.int32())])),
    ]
)
ROWS = pa.table(
    {
        "k": [1, 1, 2, None],
        "s": ["a", "b", "b", "a"],
        "x": [0.0, -0.0, NAN, None],
        "d": [dt.date(2024, 1, 1)] * 4,
        "m": [Decimal("1.50")] * 4,
        "p": [{"a": 1}, {"a": None}, None, {"a": 1}],
    },
    schema=SCHEMA,
)


def rows_of(keys, *names):
    bound = bind_keys(keys, SCHEMA, HashPartitioner(*names))
    assert bound.columns == names
    columns = [ROWS[name].combine_chunks() for name in names]
    mask = bound.mask(columns)
    assert pickle.loads(pickle.dumps(bound)).mask(columns).tolist() == mask.tolist()
    return np.flatnonzero(mask).tolist()


def test_rows_of_keys():
    assert rows_of({"k": 1}, "k") == [0, 1]
    assert rows_of({"k": [1, None]}, "k") == [0, 1, 3]
    assert rows_of({"k": []}, "k") == []
    assert rows_of({"k": [1, 2], "s": ["b", "b"]}, "k", "s") == [1, 2]
    assert rows_of({"s": ["b", "a"], "k": [1, None]}, "k", "s") == [1, 3]
    assert rows_of({"k": [1, 2], "s": "b"}, "k", "s") == [1, 2]
    assert rows_of({"k": 1, "s": "b"}, "k", "s") == [1]
    assert rows_of({"x": 0}, "x") == [0, 1]
    assert rows_of({"x": [NAN, None]}, "x") == [2, 3]
    assert rows_of({"p": [{"a": 1}, None]}, "p") == [0, 2, 3]
    assert rows_of({"p": {"a": None}, "k": 1}, "p", "k") == [1]
    assert rows_of(pa.table({"k": [2, 7]}), "k") == [2]
    assert rows_of({"k": np.array([2, 7])}, "k") == [2]
    assert rows_of({"d": "2024-01-01", "m": 1.5}, "d", "m") == [0, 1, 2, 3]


COLUMNS = [
    st.lists(st.integers(-(1 << 63), 1 << 63), min_size=1),
    st.lists(st.text(), min_size=1),
    st.lists(st.none() | st.integers(0, 9) | st.booleans(), min_size=1),
    st.sampled_from(["i1", "u2", "<i8", ">i4", "f4"]).map(lambda type_: np.arange(3).astype(type_)),
]


@given(st.one_of(COLUMNS))
def test_a_column_is_what_pyarrow_makes_of_it(column):
    try:
        expected = pa.array(column, from_pandas=False)
    except (pa.ArrowException, OverflowError, TypeError):
        return
    assert _given(column, expected.type) == expected
    assert _given(column, expected.type).type == expected.type


@pytest.mark.slow
def test_whole_numbers_and_texts_need_no_pandas():
    """Which PyArrow would import, and which takes longer than the lookup of a key."""
    code = (
        "import sys, numpy, pyarrow\n"
        "from arrow_format.filters.keys import stored_keys\n"
        "schema = pyarrow.schema({'k': pyarrow.int32(), 's': pyarrow.string()})\n"
        "for keys in ({'k': 1, 's': 'a'}, {'k': [1, 2], 's': ('a', 'b')},\n"
        "             {'k': numpy.arange(3), 's': 'a'}):\n"
        "    stored_keys(keys, ['k', 's'], schema)\n"
        "sys.exit('pandas' in sys.modules)"
    )
    printed(code)


def test_keys_skip_units():
    bound = bind_keys({"k": [1, 9], "s": "b"}, SCHEMA, HashPartitioner("k", "s"))
    units = [pa.array([2, 3], pa.int32()), pa.array([1, 1], pa.int32())]
    texts = [pa.array(["b", "b"]), pa.array(["b", "b"])]
    statistics = {"k": statistics_of(units), "s": statistics_of(texts)}
    num_rows = np.array([2, 2])
    assert bound.may_match(statistics, num_rows).tolist() == [False, True]
    one = bind_keys({"k": 1}, SCHEMA, HashPartitioner("k"))
    assert one.may_match(statistics, num_rows).tolist() == [False, True]
    assert one.filter.must_match(statistics, num_rows).tolist() == [False, True]


def test_subpartitions_of_keys():
    by_k = HashPartitioner("k")
    bound = bind_keys({"k": [1, 2, 1, None]}, SCHEMA, by_k)
    each = {subpartition_of({"k": key}, by_k, SCHEMA, 50) for key in (1, 2, None)}
    assert bound.subpartitions(by_k, SCHEMA, 50).tolist() == sorted(each)
    assert bound.subpartitions(HashPartitioner("s"), SCHEMA, 50) is None
    assert bound.subpartitions({"kind": "own"}, SCHEMA, 50) is None
    assert bind_keys({"k": []}, SCHEMA, by_k).subpartitions(by_k, SCHEMA, 50).tolist() == []
    ranges = RangePartitioner("k", bounds=[10, 20])
    assert bind_keys({"k": [20, 21]}, SCHEMA, ranges).subpartitions(ranges, SCHEMA, 3).tolist() == [
        1, 2,
    ]  # fmt: skip
    by_column = ColumnPartitioner("k")
    numbers = bind_keys({"k": [3, -1, 99, None]}, SCHEMA, by_column)
    assert numbers.subpartitions(by_column, SCHEMA, 10).tolist() == [3]
    with pytest.raises(SchemaError, match="holds subpartition 99"):
        subpartition_of({"k": 99}, by_column, SCHEMA, 10)


def test_keys_are_values():
    by_k = HashPartitioner("k")
    some, same, other = (bind_keys({"k": keys}, SCHEMA, by_k) for keys in ([1, 2], [1, 2], [1, 3]))
    assert some == same
    assert hash(some) == hash(same)
    assert some != other
    assert str(some) == "keys (k): (1), (2)"
    assert str(bind_keys({"k": range(9)}, SCHEMA, by_k)) == "keys (k): (0), (1), (2), ... 6 more"


@pytest.mark.parametrize(
    ("keys", "error", "says"),
    [
        ({}, SchemaError, "key column 'k' is missing"),
        ({"k": 1}, SchemaError, "key column 's' is missing"),
        ({"k": 1, "s": "a", "x": 1}, SchemaError, "column 'x' is not a key column"),
        ({"k": [1, 2], "s": ["a"]}, SchemaError, "different lengths: 1, 2"),
        ({"k": 2.5, "s": "a"}, SchemaError, "column 'k' does not fit the stored type int32"),
        ({"k": 2**40, "s": "a"}, SchemaError, "column 'k' does not fit"),
        ({"k": "x", "s": "a"}, SchemaError, "column 'k' does not fit"),
        ({"k": True, "s": "a"}, SchemaError, "values are bool"),
        ({"k": dt.date(2024, 1, 1), "s": "a"}, SchemaError, "values are date32"),
        ({"k": 1, "s": 17}, SchemaError, "column 's' does not fit .* values are int64"),
        ({"k": [1, "a"], "s": "a"}, SchemaError, "column 'k' does not fit"),
        ([("k", 1)], OptionError, "key_values is list"),
        (None, OptionError, "key_values is NoneType"),
    ],
)
def test_keys_that_do_not_fit(keys, error, says):
    with pytest.raises(error, match=says):
        bind_keys(keys, SCHEMA, HashPartitioner("k", "s"))


def test_a_time_of_day_is_not_cut_off():
    with pytest.raises(SchemaError, match="would be truncated"):
        stored_keys({"d": dt.datetime(2024, 1, 1, 5)}, ["d"], SCHEMA)


MOMENTS = pa.schema(
    [
        ("ns", pa.timestamp("ns")),
        ("local", pa.timestamp("us")),
        ("at", pa.timestamp("us", "UTC")),
        ("x", pa.float64()),
        ("u", pa.uint64()),
        ("i", pa.int64()),
        ("c", pa.string()),
    ]
)
ONE_NS = pd.Timestamp("2024-01-01 05:00:00.000000001")


@pytest.mark.parametrize(
    ("name", "given", "stored"),
    [
        ("ns", ONE_NS, [1_704_085_200_000_000_001]),
        ("ns", [ONE_NS, None], [1_704_085_200_000_000_001, None]),
        ("ns", np.datetime64("2024-01-01T05:00:00.000000001"), [1_704_085_200_000_000_001]),
        ("ns", pd.Series([ONE_NS, pd.NaT]), [1_704_085_200_000_000_001, None]),
        ("at", pd.Timestamp("2024-01-01 05:00", tz="America/New_York"), [1_704_103_200_000_000]),
        ("u", 2**64 - 1, [2**64 - 1]),
        ("u", np.array(7), [7]),
        ("i", pc.run_end_encode(pa.array([1, 1]))[0], [1]),
        ("i", pc.run_end_encode(pa.array([None, None], pa.int64()))[0], [None]),
        ("i", pd.Series([1, None], dtype="Int64"), [1, None]),
        ("c", pa.array(["a"]).dictionary_encode()[0], ["a"]),
    ],
)
def test_keys_are_the_values_that_were_given(name, given, stored):
    column = stored_keys({name: given}, [name], MOMENTS).column(0)
    assert column.type == MOMENTS.field(name).type
    plain = column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column
    assert plain.to_pylist() == stored


@pytest.mark.parametrize(
    "given", [NAN, [NAN], np.array([NAN]), pd.Series([NAN]), pd.DataFrame({"x": [NAN]})["x"]]
)
def test_nan_is_a_key_and_no_null(given):
    (found,) = stored_keys({"x": given}, ["x"], MOMENTS).column(0).to_pylist()
    assert np.isnan(found)


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("local", dt.datetime(2024, 1, 1, tzinfo=dt.UTC), r"are instants, and .* no time zone"),
        ("at", dt.datetime(2024, 1, 1), r"have no time zone, and the stored ones are instants"),
        ("at", dt.date(2024, 1, 1), "have no time zone"),
        ("at", "2024-01-01 05:00", "zone offset"),
        ("i", (x for x in [1]), r"<generator ob.* is generator; give a value of that type"),
        ("i", pd.NA, r"<NA> is NAType; .* None for null"),
        ("i", pd.Series([1, NAN]), "does not fit the stored type int64"),
        ("c", pd.Series(["a", NAN]), "is Series; give .* None for null"),
        ("u", -1, "does not fit the stored type uint64"),
        ("u", 2**64, "does not fit the stored type uint64: 18446744073709551616 is int"),
    ],
)
def test_keys_that_may_mean_another_value_are_refused(name, given, says):
    with pytest.raises(SchemaError, match=says):
        stored_keys({name: given}, [name], MOMENTS)


def test_texts_that_are_shorter_than_the_padded_ones_are_refused():
    """As a lookup they would find nothing, and a deletion would say that all is gone."""
    field = {"name": "c", "type": "string", "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}}
    spark_schema = json.dumps({"type": "struct", "fields": [field]})
    by_c = HashPartitioner("c")
    with pytest.raises(SchemaError, match=r"CHAR\(3\), .* 'a' is shorter; write 'a  '"):
        bind_keys({"c": ["abc", "a", None]}, MOMENTS, by_c, spark_schema)
    with pytest.raises(SchemaError, match="write 'a  '"):
        subpartition_of({"c": "a"}, by_c, MOMENTS, 3, spark_schema)
    bind_keys({"c": ["abc", "a  ", None]}, MOMENTS, by_c, spark_schema)


def test_keys_that_decide_nothing():
    for partitioner in (BroadcastPartitioner(), {"kind": "own"}):
        with pytest.raises(OptionError, match="no key says where its rows are"):
            bind_keys({"k": 1}, SCHEMA, partitioner)
