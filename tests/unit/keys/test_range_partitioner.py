"""The range partitioner as a value: the forms of its keys and bounds, and its description."""

import datetime as dt
import json
import pickle
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import given

from arrow_format import OptionError, RangePartitioner, SchemaError, sample_bounds
from arrow_format.keys.bounds import bounds_of_rows
from arrow_format.keys.partitioner import as_described, partitioner_from_description
from arrow_format.keys.sampling import MAX_ROWS, sample_columns, sample_positions, sample_size
from connector.cli.inspection import partitioner_text
from tests.support.spark_order_model import sorted_rows
from tests.unit.keys.test_bound_search import batch_of, keyed_rows, tuples

TABLE = pa.table({"a": [3, 1, 2, 5, 4, None], "b": ["x", "y", "z", "x", "y", "z"]})
UP = "ascending"


def assigned(partitioner, table, n):
    assign = partitioner.bind(table.schema, n, 0)
    return [i for batch in table.to_batches() for i in assign(batch).tolist()]


# Keys --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partitioner", "keys"),
    [
        (RangePartitioner("a"), (("a", UP),)),
        (RangePartitioner("a", "b"), (("a", UP), ("b", UP))),
        (RangePartitioner(["a", "b"]), (("a", UP), ("b", UP))),
        (RangePartitioner(("a", "b")), (("a", UP), ("b", UP))),
        (RangePartitioner(("b", "descending")), (("b", "descending"),)),
        (RangePartitioner("a", ("b", "descending")), (("a", UP), ("b", "descending"))),
        (RangePartitioner(keys="a"), (("a", UP),)),
        (RangePartitioner(keys=("a", ("b", "descending"))), (("a", UP), ("b", "descending"))),
    ],
)
def test_keys_are_given_as_in_sort_by(partitioner, keys):
    assert partitioner.keys == keys
    assert partitioner.bounds is None


def test_bad_keys():
    with pytest.raises(OptionError, match="expected one of them"):
        RangePartitioner()
    with pytest.raises(OptionError, match="expected one of them"):
        RangePartitioner("a", keys="b")
    with pytest.raises(OptionError, match="expected at least one column"):
        RangePartitioner(keys=())
    with pytest.raises(OptionError, match="a column is named twice"):
        RangePartitioner("a", "a")
    with pytest.raises(OptionError, match="order 'down' is not one of"):
        RangePartitioner("a", ("b", "down"))


def test_keys_are_checked_against_the_data():
    partitioner = RangePartitioner("c", bounds=[1])
    with pytest.raises(SchemaError, match="range keys: column 'c' is not there"):
        partitioner.check(TABLE.schema)
    with pytest.raises(SchemaError, match="column 'c' of type map"):
        partitioner.check(pa.schema([("c", pa.map_(pa.string(), pa.string()))]))


# Bounds ------------------------------------------------------------------------------------------


def test_a_bound_belongs_to_the_subpartition_before_it():
    partitioner = RangePartitioner("a", bounds=[1, 3])
    assert assigned(partitioner, TABLE, 3) == [1, 0, 1, 2, 2, 0]
    assert assigned(partitioner, TABLE, 100) == [1, 0, 1, 2, 2, 0]


@pytest.mark.parametrize(
    "bounds",
    [
        [(1, "y"), (3, "x")],
        [[1, "y"], [3, "x"]],
        pa.table({"b": ["y", "x"], "a": [1, 3], "c": [0, 0]}),
        pa.record_batch({"a": pa.array([1, 3], pa.int32()), "b": pa.array(["y", "x"])}),
        pa.table({"a": [1, 3], "b": pa.array(["y", "x"]).dictionary_encode()}),
        pa.table({"a": [0, 1, 3], "b": pa.array(["", "y", "x"], pa.large_string())}).slice(1),
    ],
    ids=["tuples", "lists", "table", "batch", "dictionary", "slice"],
)
def test_forms_of_bounds(bounds):
    partitioner = RangePartitioner("a", "b", bounds=bounds).fitted(TABLE.schema, 3)
    expected = RangePartitioner("a", "b", bounds=[(1, "y"), (3, "x")])
    assert partitioner == expected
    assert partitioner.describe() == expected.describe()
    assert assigned(partitioner, TABLE, 3) == [1, 0, 1, 2, 2, 0]


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (
            [3, 1],
            r"bounds must ascend in the order of the keys \(a ascending\), but bound 1, \(1\)",
        ),
        ([1, None], "but bound 1"),
        ([(1, 2)], r"bounds: \(1, 2\) has 2 value\(s\) for the 1 key\(s\) a"),
        ([1, "x"], "bounds: the values for key 'a' are not of one type"),
        (5, "bounds=5: expected values, tuples"),
        ("abc", "bounds='abc': expected values"),
        (pa.table({"b": [1]}), "bounds or sample: key column 'a' is not there; columns are b"),
    ],
)
def test_bad_bounds(bounds, message):
    with pytest.raises(OptionError, match=message):
        RangePartitioner("a", bounds=bounds)


def test_bounds_ascend_in_the_order_of_the_keys():
    assert RangePartitioner(("a", "descending"), bounds=[3, 1, None]).bounds.num_rows == 3
    assert RangePartitioner("a", bounds=[None, 1, 1]).bounds.num_rows == 3
    with pytest.raises(OptionError, match="a descending"):
        RangePartitioner(("a", "descending"), bounds=[1, 3])


def test_too_many_bounds():
    partitioner = RangePartitioner("a", bounds=[1, 2, 3])
    with pytest.raises(OptionError, match="3 bounds make 4 ranges; num_subpartitions is 3"):
        partitioner.bind(TABLE.schema, 3, 0)
    partitioner.bind(TABLE.schema, 4, 0)


def test_bounds_that_do_not_fit_the_column():
    with pytest.raises(OptionError, match=r"bounds of key 'a' are string, .* fit int64"):
        RangePartitioner("a", bounds=["x"]).check(TABLE.schema)
    with pytest.raises(OptionError, match=r"bounds of key 'a' are int64, .* fit int8"):
        RangePartitioner("a", bounds=[1_000]).check(pa.schema([("a", pa.int8())]))


@pytest.mark.parametrize(
    ("bound", "type_"),
    [
        (-1.5, pa.int32()),
        (dt.datetime(2024, 6, 30, 12), pa.date32()),
        (pa.scalar(1, pa.timestamp("ns")), pa.timestamp("us")),
        (Decimal("0.001"), pa.decimal128(5, 2)),
        (Decimal("1.5"), pa.int64()),
    ],
)
def test_bounds_are_never_cut_to_fit(bound, type_):
    partitioner = RangePartitioner("a", bounds=[bound])
    with pytest.raises(OptionError, match=r"bounds of key 'a' are .* does not fit "):
        partitioner.check(pa.schema([("a", type_)]))


@pytest.mark.parametrize(
    ("bound", "type_"),
    [
        (2.0, pa.int32()),
        (0.1, pa.float32()),
        (dt.datetime(2024, 6, 30), pa.timestamp("us", tz="UTC")),
        (1, pa.decimal128(5, 2)),
        (Decimal("1.5"), pa.float64()),
        ("2024-06-30", pa.date32()),
        (None, pa.int8()),
    ],
)
def test_bounds_of_another_type_that_fit(bound, type_):
    RangePartitioner("a", bounds=[bound]).check(pa.schema([("a", type_)]))


def test_bounds_of_a_struct_are_dicts_with_its_fields_in_their_order():
    rows = [{"z": 1, "a": {"y": 9, "b": None}}, {"z": 2, "a": {"y": 0, "b": "x"}}]
    type_ = pa.array(rows).type
    assert [field.name for field in type_] == ["z", "a"]
    schema = pa.schema({"s": type_})
    partitioner = RangePartitioner("s", bounds=rows).fitted(schema)
    assert partitioner.bounds == pa.record_batch([pa.array(rows, type_)], schema=schema)
    assert RangePartitioner("s", bounds=[{"z": 1}]).fitted(schema).bounds.to_pylist() == [
        {"s": {"z": 1, "a": None}}
    ]


@pytest.mark.parametrize(
    "bound",
    [{"z": 1, "q": 2}, {"z": 1.5}, {"z": 1, "a": {"y": 1, "q": 2}}, {"z": 1, "a": {"y": "1x"}}],
)
def test_bounds_of_a_struct_are_never_cut_to_fit(bound):
    type_ = pa.struct({"z": pa.int64(), "a": pa.struct({"y": pa.int64()})})
    with pytest.raises(OptionError, match=r"bounds of key 's' are struct<.*does not fit "):
        RangePartitioner("s", bounds=[bound]).fitted(pa.schema({"s": type_}))


def test_no_bounds():
    with pytest.raises(OptionError, match=r"has no bounds: give bounds=..., or take them from a s"):
        RangePartitioner("a").check(TABLE.schema)
    assert assigned(RangePartitioner("a", bounds=[]), TABLE, 5) == [0] * 6


def test_bounds_take_the_types_of_the_data():
    day = dt.date(2024, 2, 29)
    moment = dt.datetime(2024, 2, 29, 12)
    for type_, values in [
        (pa.int8(), [1]),
        (pa.float32(), [1.5]),
        (pa.decimal128(10, 2), [Decimal("1.25")]),
        (pa.decimal128(38, 2), [7]),
        (pa.date32(), [day]),
        (pa.timestamp("us"), [moment]),
        (pa.timestamp("us", "UTC"), [moment]),
        (pa.timestamp("us", "UTC"), [moment.replace(tzinfo=dt.UTC)]),
        (pa.duration("us"), [dt.timedelta(1)]),
        (pa.binary(), [b"x"]),
        (pa.string(), [None]),
    ]:
        schema = pa.schema([("a", type_)])
        fitted = RangePartitioner("a", bounds=values).fitted(schema)
        assert fitted.bounds.schema.types == [type_]
        assert fitted.fitted(schema) == fitted
        typed = pa.record_batch({"a": fitted.bounds["a"]})
        assert RangePartitioner("a", bounds=typed).describe() == fitted.describe()


def test_labels_of_types_make_no_other_bounds():
    """What may be appended may differ in nullability, metadata and time zone."""
    moment = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
    rows = [{"x": 1, "t": moment}, {"x": 2, "t": None}]
    found = []
    for nullable, zone in [(True, "UTC"), (False, "Asia/Tokyo")]:
        inner = [pa.field("x", pa.int64(), nullable), pa.field("t", pa.timestamp("us", zone))]
        type_ = pa.struct([field.with_metadata({"a": zone}) for field in inner])
        schema = pa.schema([pa.field("s", type_, nullable)])
        for bounds in (rows, pa.table({"s": pa.array(rows, type_)})):
            partitioner = RangePartitioner("s", bounds=bounds).fitted(schema)
            found.append(partitioner.describe())
            batch = pa.record_batch([pa.array(rows[::-1], type_)], schema=schema)
            assert partitioner.bind(schema, 3, 0)(batch).tolist() == [1, 0]
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("n", [0, "8", None, 1_000_001])
def test_bad_numbers_of_ranges(n):
    for sample in (RangePartitioner.sampled, sample_bounds):
        with pytest.raises(OptionError, match=f"num_subpartitions={n!r}: expected a whole number"):
            sample(TABLE, "a", n)


def test_bounds_that_were_written_down():
    fields = list(pa.schema([("d", pa.date32()), ("x", pa.decimal128(9, 2)), ("i", pa.int16())]))
    bounds = bounds_of_rows([["2024-01-31", "1.50", 7], [None, "9", None]], fields)
    assert bounds.to_pylist() == [
        {"d": dt.date(2024, 1, 31), "x": Decimal("1.50"), "i": 7},
        {"d": None, "x": Decimal("9.00"), "i": None},
    ]
    with pytest.raises(OptionError, match="bounds of key 'd' are string"):
        bounds_of_rows([["soon", "1", 1]], fields)
    with pytest.raises(OptionError, match=r"has 1 value\(s\) for the 3 key\(s\)"):
        bounds_of_rows([1], fields)


# Description -------------------------------------------------------------------------------------


@given(keyed_rows())
def test_a_description_gives_the_partitioner_back(case):
    keys, orders = case
    in_order = sorted_rows(tuples(keys), orders)
    bounds = batch_of([key.take(pa.array(in_order, pa.int64())) for key in keys])
    pairs = list(zip(bounds.schema.names, orders, strict=True))
    partitioner = RangePartitioner(keys=pairs, bounds=bounds)

    text = json.dumps(partitioner.describe())
    back = partitioner_from_description(json.loads(text))

    assert as_described(partitioner) is partitioner
    assert back == partitioner
    assert back.describe() == partitioner.describe()
    assert hash(back) == hash(partitioner)
    assert pickle.loads(pickle.dumps(partitioner)) == partitioner
    assert back.bounds.schema == bounds.schema
    n = bounds.num_rows + 1
    table = pa.Table.from_batches([bounds])
    assert assigned(back, table, n) == assigned(partitioner, table, n)


def test_what_a_description_says():
    partitioner = RangePartitioner("a", ("b", "descending"))
    assert partitioner.describe() == {
        "kind": "range",
        "keys": [["a", "ascending"], ["b", "descending"]],
        "bounds": None,
    }
    assert partitioner_from_description(partitioner.describe()) == partitioner
    assert repr(partitioner) == "RangePartitioner('a', ('b', 'descending'))"
    some = RangePartitioner("a", bounds=[1, 2, 3])
    assert repr(some) == "RangePartitioner('a', 3 bounds from (1) to (3))"
    assert repr(RangePartitioner("a", bounds=[])) == "RangePartitioner('a', 0 bounds)"


def test_the_command_line_shows_it_in_few_words():
    text = partitioner_text(RangePartitioner("a", ("b", "descending"), bounds=[]).describe())
    assert text == "ranges of a, b descending"


def test_equal_bounds_have_equal_descriptions():
    masked = np.array([True, False])
    one = pa.record_batch({"a": pa.array([7, 9], mask=masked)})
    other = pa.record_batch({"a": pa.array([5, 9, 0], mask=np.array([True, False, True]))})
    first = RangePartitioner("a", bounds=one)
    second = RangePartitioner("a", bounds=other.slice(0, 2))
    assert first == second
    assert first.describe() == second.describe()
    assert first != RangePartitioner("a", bounds=[None, 8])
    assert first != RangePartitioner(("a", "ascending nulls last"), bounds=[8, None])
    assert first != "range"


def test_twenty_thousand_bounds_are_written_small():
    partitioner = RangePartitioner("a", bounds=pa.table({"a": np.arange(20_000) * 1_000}))
    assert len(json.dumps(partitioner.describe())) < 120_000


# Samples -----------------------------------------------------------------------------------------


def test_a_table_is_sampled():
    table = pa.table({"x": np.arange(100_000)[::-1], "y": np.zeros(100_000)})
    partitioner = RangePartitioner.sampled(table, "x", 50)
    rows = np.bincount(assigned(partitioner, table, 50), minlength=50)
    assert partitioner.bounds.num_rows == 49
    assert rows.min() > 1_700
    assert rows.max() < 2_300
    assert partitioner == RangePartitioner.sampled(table, "x", 50)
    assert partitioner == RangePartitioner.sampled(table.combine_chunks().to_batches()[0], "x", 50)


def test_a_dataset_is_sampled_alike(tmp_path):
    table = pa.table({"x": np.random.default_rng(0).permutation(50_000), "s": ["a"] * 50_000})
    few = {"max_rows_per_file": 9_000, "max_rows_per_group": 9_000}
    ds.write_dataset(table, tmp_path, format="parquet", **few)
    dataset = ds.dataset(tmp_path)
    keys = [("x", "descending")]
    assert RangePartitioner.sampled(dataset, keys, 9) == RangePartitioner.sampled(
        dataset.to_table(), keys, 9
    )


@pytest.mark.parametrize("encoded", ["view", "runs", "dictionary"])
def test_encoded_keys_are_sampled(encoded):
    plain = pa.array([f"{i // 3:07d}" for i in range(90_000)])
    column = {
        "view": lambda: plain.cast(pa.string_view()),
        "runs": lambda: pc.run_end_encode(plain),
        "dictionary": plain.dictionary_encode,
    }[encoded]()
    table = pa.table({"k": column, "other": pa.nulls(90_000)})
    expected = sample_columns(pa.table({"k": plain}), ["k"], 500)
    assert sample_columns(table, ["k"], 500).equals(expected)


def test_sampling_nothing():
    empty = TABLE.slice(0, 0)
    assert RangePartitioner.sampled(empty, ["a", "b"], 9).bounds.num_rows == 0
    assert sample_bounds(empty, "b", 9).schema == pa.schema([("b", pa.string())])


def test_keys_and_sources_of_samples_are_checked():
    with pytest.raises(SchemaError, match="range keys: column 'q' is not there"):
        RangePartitioner.sampled(TABLE, "q", 3)
    with pytest.raises(OptionError, match="key column 'q' is not there; columns are a, b"):
        sample_bounds(TABLE, "q", 3)
    with pytest.raises(OptionError, match=f"2 weights of {TABLE.num_rows} rows of a sample"):
        sample_bounds(TABLE, "a", 3, np.ones(2))
    with pytest.raises(OptionError, match="source is list: only a pyarrow Table"):
        sample_columns([1], ["a"], 3)


def test_positions_are_spread_and_few():
    assert sample_positions(5, 10).tolist() == [0, 1, 2, 3, 4]
    positions = sample_positions(1_000_003, 1_000)
    assert len(positions) == 1_000
    assert (np.diff(positions) > 0).all()
    assert np.diff(positions).max() < 2_100
    assert sample_size(5) == 10_000
    assert sample_size(500) == 50_000
    assert sample_size(1_000_000) == MAX_ROWS
