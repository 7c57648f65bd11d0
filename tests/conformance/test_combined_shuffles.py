"""CONFORMANCE, group "Round trip": combined shuffles complete to what all of their rows give."""

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format import (
    ArithmeticOverflowError,
    BroadcastPartitioner,
    ColumnPartitioner,
    OptionError,
    RangePartitioner,
    RoundRobinPartitioner,
    SchemaError,
    WriteOptions,
    append_shuffle,
    delete_rows,
    merge_shuffle,
    open_shuffle,
    write_shuffle,
)
from arrow_format.operators.aggregate import aggregate_range
from arrow_format.operators.aggregation_plan import plan_aggregation, refuse_partial_filter
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import FAST, write_rows

TINY = WriteOptions(sync=False, sort_buffer_bytes=4 << 10)
"""Regions of fifty rows."""
SMALL = WriteOptions(sync=False, sort_buffer_bytes=64 << 10)
"""Regions of 700 rows."""


def aggregated(shuffle, keys, aggregations):
    plan = plan_aggregation(shuffle, keys, aggregations)
    return pa.Table.from_batches(aggregate_range(shuffle, plan), plan.schema)


def by_key(table, keys):
    rows = [tuple(map(repr, row.values())) for row in table.to_pylist()]
    assert len({row[: len(keys)] for row in rows}) == len(rows)
    return sorted(rows)


KEYS = {
    "k": (pa.int64(), st.integers(0, 3) | st.just(2**62)),
    "f": (pa.float64(), st.sampled_from([0.0, -0.0, math.nan, -math.nan, 1.5])),
    "s": (pa.string(), st.sampled_from(["", "a", "é"])),
    "d": (pa.date32(), st.sampled_from([dt.date(2024, 1, 1), dt.date(1969, 1, 1)])),
}
FLOATS = st.integers(-800, 800).map(lambda n: n / 8) | st.sampled_from(
    [-0.0, math.nan, math.inf, -math.inf]
)
LARGE = [2**63 - 1, -(2**63), 2**62]
CENTS = st.integers(-999, 999) | st.sampled_from([10**38 - 1, -(10**38) + 1])
VALUES = {
    "i8": (pa.int8(), st.integers(-128, 127)),
    "i64": (pa.int64(), st.integers(-9, 9) | st.sampled_from(LARGE)),
    "f32": (pa.float32(), FLOATS),
    "f64": (pa.float64(), FLOATS),
    "p12": (pa.decimal128(12, 2), st.integers(-999, 10**12 - 1).map(lambda n: Decimal(n) / 100)),
    "p38": (pa.decimal128(38, 0), CENTS.map(Decimal)),
    "took": (pa.duration("us"), st.integers(-9, 9).map(lambda n: dt.timedelta(microseconds=n))),
}
ORDERED = {
    "b": (pa.bool_(), st.booleans()),
    "t": (pa.string(), st.text(max_size=2)),
    "x": (pa.binary(), st.binary(max_size=2)),
    "at": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
}
COLUMNS = KEYS | VALUES | ORDERED


@st.composite
def combinations(draw):
    """Rows of some columns, and how they are combined."""
    keys = draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=2, unique=True))
    names = draw(st.lists(st.sampled_from(sorted(VALUES | ORDERED)), min_size=1, unique=True))
    combine = {
        name: draw(st.sampled_from(["min", "max"] if name in ORDERED else ["sum", "min", "max"]))
        for name in names
    }
    fields = [*keys, *names]
    row = st.tuples(*(st.none() | COLUMNS[name][1] for name in fields))
    rows = draw(st.lists(row, max_size=60))
    columns = {
        name: pa.array([row[i] for row in rows], COLUMNS[name][0]) for i, name in enumerate(fields)
    }
    return keys, combine, pa.table(columns)


@guarantee("combined rows")
@given(combinations(), st.sampled_from([FAST, TINY]), st.integers(1, 30))
def test_a_combined_shuffle_completes_to_what_its_rows_give(tmp_path_factory, made, options, rows):
    keys, combine, table = made
    directory = tmp_path_factory.mktemp("combined")
    shuffles = []
    for path, functions in (("plain", None), ("combined", combine)):
        for start in range(0, table.num_rows + 1, max(table.num_rows // 2 + 1, 1)):
            batches = table.slice(start, table.num_rows // 2 + 1).to_batches(rows)
            write_shuffle(
                pa.RecordBatchReader.from_batches(table.schema, batches), directory / path,
                keys=keys, num_subpartitions=3, options=options, combine=functions, mode="append",
            )  # fmt: skip
        shuffles.append(open_shuffle(directory / path))
    plain, whole = shuffles
    assert whole.combine == combine
    assert whole.num_rows <= plain.num_rows
    try:
        expected = aggregated(plain, keys, combine)
    except ArithmeticOverflowError:
        with pytest.raises(ArithmeticOverflowError):
            aggregated(whole, keys, combine)
        return
    found = aggregated(whole, keys, combine)
    assert found.schema == expected.schema
    assert by_key(found, keys) == by_key(expected, keys)


def rows_of(keys, **columns):
    return pa.table({"k": np.asarray(keys)} | columns)


def test_the_stored_types_are_those_of_spark_sums(tmp_path):
    table = rows_of(
        [1, 1],
        i=pa.array([1, 2], pa.int32()),
        f=pa.array([0.5, 1.0], pa.float32()),
        p=pa.array([Decimal("1.00"), Decimal("2.00")], pa.decimal128(12, 2)),
        m=pa.array([1, 2], pa.int16()),
        n=pa.array([1, 2], pa.uint64()),
    )
    combine = {"i": "sum", "f": "sum", "p": "sum", "m": "max", "n": "sum"}
    receipt = write_shuffle(table, tmp_path, keys="k", num_subpartitions=2, combine=combine)
    assert (receipt.num_rows, receipt.counters["combined_rows"]) == (1, 1)
    shuffle = open_shuffle(tmp_path)
    types = [pa.int64(), pa.int64(), pa.float64(), pa.decimal128(22, 2), pa.int16()]
    assert shuffle.schema.types == [*types, pa.decimal128(30, 0)]
    row = {"k": 1, "i": 3, "f": 1.5, "p": Decimal("3.00"), "m": 2, "n": Decimal(3)}
    assert shuffle.to_table().to_pylist() == [row]
    assert "sum of i" in shuffle._repr_html_()


def test_a_task_combines_in_many_full_buffers(tmp_path):
    keys = np.tile(np.arange(30), 1000)
    table = rows_of(keys, n=np.ones(len(keys), np.int64))
    receipt = write_rows(
        tmp_path, table.to_batches(50), "k", n=2, options=SMALL, combine={"n": "sum"}
    )
    assert receipt.num_rows == 30, "one row per key, in one region"
    assert open_shuffle(tmp_path).to_table()["n"].to_pylist() == [1000] * 30


def test_more_keys_than_fit_are_combined_per_region(tmp_path):
    keys = np.repeat(np.arange(3000), 10)
    table = rows_of(keys, n=np.ones(len(keys), np.int64))
    receipt = write_rows(
        tmp_path, table.to_batches(50), "k", n=2, options=SMALL, combine={"n": "sum"}
    )
    assert receipt.counters["num_regions"] > 5
    assert 3000 <= receipt.num_rows < 3000 * 1.1
    shuffle = open_shuffle(tmp_path)
    found = aggregated(shuffle, "k", {"n": "sum"})
    assert found["n_sum"].to_pylist() == [10] * 3000


@pytest.mark.parametrize("type_", [pa.int8(), pa.int64()])
def test_one_large_batch_is_combined_as_many_small_ones(tmp_path, type_):
    keys = np.tile(np.arange(1000), 1000)
    table = rows_of(keys, n=pa.array(np.ones(len(keys), np.int8)).cast(type_))
    receipt = write_shuffle(
        table, tmp_path, keys="k", num_subpartitions=2, combine={"n": "sum"},
        options=WriteOptions(sync=False, sort_buffer_bytes=8 << 20),
    )  # fmt: skip
    assert receipt.num_rows == 1000, "one row per key, in one region"


def test_sums_that_fit_only_together_stay_exact(tmp_path):
    most = 2**63 - 1
    table = rows_of([1, 1, 2, 2], n=[most, most, 2, 3])
    write_shuffle(table, tmp_path, keys="k", num_subpartitions=1, combine={"n": "sum"})
    assert open_shuffle(tmp_path).num_rows == 4
    append_shuffle(rows_of([1, 1, 1], n=[-most, most, -most]), tmp_path)
    assert open_shuffle(tmp_path).num_rows == 5
    assert by_key(aggregated(open_shuffle(tmp_path), "k", {"n": "sum"}), "k") == [
        ("1", str(most)), ("2", "5")
    ]  # fmt: skip


def test_a_second_attempt_writes_the_same(tmp_path):
    random = np.random.default_rng(1)
    table = rows_of(random.integers(0, 2000, 50_000), n=np.arange(50_000))
    written = []
    for path in ("a", "b"):
        write_shuffle(
            table, tmp_path / path, keys="k", num_subpartitions=20, combine={"n": "sum"},
            options=WriteOptions(sync=False, sort_buffer_bytes=100 << 10),
        )  # fmt: skip
        (data,) = (tmp_path / path).rglob("*.data")
        written.append(data.read_bytes())
    assert written[0] == written[1]


def test_sorted_rows_are_combined_too(tmp_path):
    table = rows_of([3, 1, 3, 1, 2], n=[1, 1, 1, 1, 9])
    write_shuffle(
        table, tmp_path, num_subpartitions=1, sort_by=[("n", "descending")], combine={"n": "sum"},
        partitioner=RangePartitioner(keys="k", bounds=[]),
    )  # fmt: skip
    rows = open_shuffle(tmp_path).to_table().to_pylist()
    assert [row["n"] for row in rows] == [9, 2, 2]


# Appends, merges, deletions -----------------------------------------------------------------------


def written(path, **more):
    table = rows_of([1, 1, 2], n=pa.array([1, 1, 1], pa.int32()), p=[5, 7, 9])
    combine = {"n": "sum", "p": "max"}
    write_shuffle(table, path, keys="k", num_subpartitions=2, combine=combine, **more)
    return table


def test_append_shuffle_combines_as_what_is_there(tmp_path):
    table = written(tmp_path)
    receipt = append_shuffle(table, tmp_path)
    assert receipt.num_rows == 2
    shuffle = open_shuffle(tmp_path)
    assert shuffle.combine == {"n": "sum", "p": "max"}
    found = aggregated(shuffle, "k", {"n": "sum", "p": "max"})
    assert by_key(found, "k") == [("1", "4", "7"), ("2", "2", "9")]
    append_shuffle(shuffle.to_table(), tmp_path)
    found = aggregated(open_shuffle(tmp_path), "k", {"n": "sum"})
    assert by_key(found, "k") == [("1", "8"), ("2", "4")]


@pytest.mark.parametrize("names", [["k", "n"], ["k"]])
def test_appended_rows_may_lack_combined_columns(tmp_path, names):
    table = written(tmp_path)
    append_shuffle(table.select(names), tmp_path)
    shuffle = open_shuffle(tmp_path)
    assert shuffle.combine == {"n": "sum", "p": "max"}
    found = aggregated(shuffle, "k", {"n": "sum", "p": "max"})
    times = len(names)
    assert by_key(found, "k") == [("1", str(2 * times), "7"), ("2", str(times), "9")]


@pytest.mark.parametrize("names", [["k", "x"], ["k", "n", "x"]])
def test_appended_rows_bring_no_columns_that_are_not_combined(tmp_path, names):
    table = written(tmp_path).append_column("x", [[1, 2, 3]])
    with pytest.raises((OptionError, SchemaError), match=r"combine=.*'n': 'sum'"):
        append_shuffle(table.select(names), tmp_path)
    assert open_shuffle(tmp_path).version == 1


@pytest.mark.parametrize("combine", [None, {"n": "sum", "p": "min"}])
def test_appends_that_combine_otherwise_are_refused(tmp_path, combine):
    table = written(tmp_path)
    table = table.set_column(1, "n", table["n"].cast(pa.int64()))
    with pytest.raises(SchemaError, match=r"combine=.*'max'.*cannot append.*open_shuffle"):
        write_rows(tmp_path, table, "k", n=2, combine=combine, mode="append")


def test_rows_are_not_combined_into_a_shuffle_that_is_not(tmp_path):
    table = rows_of([1, 1], n=[1, 1])
    write_shuffle(table, tmp_path, keys="k", num_subpartitions=2)
    with pytest.raises(SchemaError, match="cannot append rows with combine="):
        write_rows(tmp_path, table, "k", n=2, combine={"n": "sum"}, mode="append")


def test_merges_and_deletions_stay_combined(tmp_path):
    table = written(tmp_path)
    append_shuffle(table, tmp_path)
    merge_shuffle(tmp_path, by="map_output")
    delete_rows(tmp_path, {"k": [2]})
    shuffle = open_shuffle(tmp_path)
    assert shuffle.combine == {"n": "sum", "p": "max"}
    assert by_key(aggregated(shuffle, "k", {"n": "sum", "p": "max"}), "k") == [("1", "4", "7")]


# Refusals -----------------------------------------------------------------------------------------


@guarantee("combined rows")
@pytest.mark.parametrize(
    "asked",
    [
        {"*": "count"}, {"n": "count"}, {"n": "avg"}, {"n": "min"}, {"p": "sum"}, {"k": "sum"},
        {"k": "count"}, [("p", "first")], [("n", "collect_list")], [([], "count_all")],
    ],
)  # fmt: skip
def test_aggregations_of_partial_results_are_refused(tmp_path, asked):
    written(tmp_path)
    with pytest.raises(OptionError, match=r"written with combine=.*is complete"):
        plan_aggregation(open_shuffle(tmp_path), "k", asked)


def test_options_that_count_the_rows_of_a_key_are_refused(tmp_path):
    table = pa.table({"k": [True, True, True], "n": [1, 2, 3]})
    write_shuffle(table, tmp_path, keys="k", num_subpartitions=2, combine={"n": "sum"})
    two = pc.ScalarAggregateOptions(min_count=2)
    with pytest.raises(OptionError, match=r"written with combine=.*is complete"):
        plan_aggregation(open_shuffle(tmp_path), "k", [("k", "any", two)])


@pytest.mark.parametrize("function", ["min", "max"])
def test_ends_of_decimals_that_spark_lacks(tmp_path, function):
    values = pa.array([Decimal(10**50), Decimal(-1), None], pa.decimal256(60, 2))
    table = rows_of([1, 1, 1], p=values)
    write_rows(tmp_path, table, "k", n=2, combine={"p": function}, for_spark=False)
    found = aggregated(open_shuffle(tmp_path), "k", {"p": function})
    assert found.schema.field(1).type == values.type
    (end,) = found[f"p_{function}"].to_pylist()
    assert end == (Decimal(-1) if function == "min" else Decimal(10**50))


def test_aggregations_of_keys_alone_are_right(tmp_path):
    written(tmp_path)
    found = aggregated(open_shuffle(tmp_path), "k", {"x": ("k", "max"), "y": ("k", "first")})
    assert by_key(found, "k") == [("1", "1", "1"), ("2", "2", "2")]


def test_partial_results_are_neither_keys_nor_filters(tmp_path):
    written(tmp_path)
    shuffle = open_shuffle(tmp_path)
    with pytest.raises(OptionError, match=r"by=.*'n' has partial results"):
        plan_aggregation(shuffle, ["k", "n"], {"p": "max"})
    with pytest.raises(OptionError, match=r"filter n > 1.*'n' has partial results"):
        refuse_partial_filter(shuffle.where("n > 1"))
    refuse_partial_filter(shuffle.where("k > 1"))


@pytest.mark.parametrize(
    ("combine", "error", "message"),
    [
        ({"n": "avg"}, OptionError, "expected columns with one of the functions sum, min, max"),
        ("n", OptionError, "expected columns with one of the functions"),
        ({"n": "sum"}, OptionError, "column 'l', 't' is neither a key nor combined"),
        ({"n": "sum", "t": "min", "k": "max", "l": "max"}, SchemaError, "'l' has type list"),
        ({"n": "sum", "t": "sum"}, SchemaError, "'t' has type string, and sum takes numbers"),
        ({"k": "sum", "n": "sum"}, OptionError, "column 'k' decides the subpartition"),
        ({"m": "sum"}, SchemaError, "column 'm' is not there"),
    ],
)
def test_combinations_that_do_not_fit_are_refused(tmp_path, combine, error, message):
    table = rows_of([1], n=[1], l=[[1]], t=["a"])
    with pytest.raises(error, match=message):
        write_shuffle(table, tmp_path / "x", keys="k", num_subpartitions=2, combine=combine)
    assert not (tmp_path / "x").exists()


def test_what_could_not_be_completed_is_not_combined(tmp_path):
    table = pa.table({"k": pa.array([{"a": 1}] * 2), "n": [1, 2]})
    with pytest.raises(SchemaError, match=r"key 'k' is struct<a: int64>.*store its fields"):
        write_shuffle(table, tmp_path / "x", keys="k", num_subpartitions=2, combine={"n": "sum"})
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "partitioner", [RoundRobinPartitioner(), BroadcastPartitioner(), ColumnPartitioner("k")]
)
def test_rows_without_keys_are_not_combined(tmp_path, partitioner):
    with pytest.raises(OptionError, match="rows are combined that have equal keys"):
        write_rows(
            tmp_path, rows_of([1], n=[1]), n=2, partitioner=partitioner, combine={"n": "sum"}
        )
