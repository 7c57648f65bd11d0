"""Aggregations against a plain Python model; results over parts against results over all."""

import datetime as dt
import math
import pickle
import re
from collections import Counter, defaultdict
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from arrow_format import (
    ArithmeticOverflowError,
    BroadcastPartitioner,
    ColumnPartitioner,
    HashPartitioner,
    OptionError,
    RangePartitioner,
    RoundRobinPartitioner,
    SchemaError,
)
from arrow_format.model import MapOutput, PartitionedFile
from arrow_format.operators import aggregation_plan
from arrow_format.operators.aggregate import aggregate_in_passes, aggregate_range
from arrow_format.operators.aggregate_functions import ALL_FUNCTIONS
from arrow_format.operators.aggregation_plan import plan_aggregation
from arrow_format.read.shuffle import Shuffle
from tests.support.guarantees import guarantee
from tests.support.known_shuffle import KnownShuffle
from tests.support.small_shuffles import shuffle_of
from tests.support.spark_order_model import as_key


def aggregated(batches, plan, **sizes):
    """All results in one table; `batches` are read once for every pass."""
    batches = list(batches)
    num_rows = sum(batch.num_rows for batch in batches)
    tables = aggregate_in_passes(lambda: batches, plan, num_rows=num_rows, **sizes)
    return pa.concat_tables([plan.schema.empty_table(), *tables])


SCHEMA = pa.schema(
    {"k": pa.float64(), "s": pa.string(), "v": pa.int32(), "d": pa.decimal128(12, 2),
     "b": pa.bool_(), "l": pa.list_(pa.int8())}
)  # fmt: skip
BY_K = KnownShuffle(HashPartitioner("k"), SCHEMA)

rows = st.lists(
    st.tuples(
        st.none() | st.sampled_from([0.0, -0.0, math.nan, -math.nan, 2.5]),
        st.none() | st.sampled_from(["", "a", "b"]),
        st.none() | st.integers(-5, 5),
    ),
    max_size=40,
)


@given(rows, st.integers(1, 40), st.integers(1, 2_000))
def test_blocks_aggregate_as_the_model_says(actual, batch_rows, block_bytes):
    asked = [("v", "sum"), ("v", "count"), ([], "count_all"), ("v", "min"), ("s", "max")]
    plan = plan_aggregation(BY_K, ["k", "s"], asked)
    columns = [[row[i] for row in actual] for i in range(3)]
    whole = pa.record_batch(
        [pa.array(c, SCHEMA.field(n).type) for n, c in zip("ksv", columns, strict=True)],
        names=list("ksv"),
    )
    batches = [whole.slice(at, batch_rows) for at in range(0, len(actual), batch_rows)]

    result = aggregated(batches, plan, block_bytes=block_bytes)

    assert result.schema.types == plan.schema.types
    groups = defaultdict(list)
    for k, s, v in actual:
        groups[as_key(k), s].append(v)
    expected = {}
    for key, values in groups.items():
        present = [v for v in values if v is not None]
        total = (sum(present), len(present), len(values), min(present)) if present else (
            None, 0, len(values), None)  # fmt: skip
        expected[key] = [*total, key[1]]
    given_ = {(as_key(r["k"]), r["s"]): list(r.values())[2:] for r in result.to_pylist()}
    assert given_ == expected
    assert result.num_rows == len(expected)
    for k in result["k"].to_pylist():  # as Spark gives them
        assert k != 0 or math.copysign(1, k) == 1


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_keys_of_every_width_are_one_nan_and_one_zero(bits):
    dtype = np.dtype(f"f{bits // 8}")
    numbers = np.array([0.0, -0.0, math.nan, -math.nan, math.nan, 1.0, 1.0], dtype)
    numbers.view(f"u{bits // 8}")[4] += 1  # NaN with other bits
    keys = pa.array(numbers, mask=np.arange(7) == 6)
    table = pa.table({"k": keys, "v": range(7)})
    shuffle = KnownShuffle(RangePartitioner("k", bounds=[]), table.schema)
    plan = plan_aggregation(shuffle, "k", {"list": ("v", "list")})
    actual = aggregated(table.to_batches(), plan, block_bytes=1 << 20)
    assert actual["list"].to_pylist() == [[0, 1], [2, 3, 4], [5], [6]]
    assert repr(actual["k"].to_pylist()) == "[0.0, nan, 1.0, None]"
    plan = plan_aggregation(shuffle, "k", {"v": "count"})
    parts = aggregated(table.to_batches(max_chunksize=1), plan, block_bytes=1 << 10)
    counts = zip(map(repr, parts["k"].to_pylist()), parts["v_count"].to_pylist(), strict=True)
    assert dict(counts) == {"0.0": 2, "nan": 3, "1.0": 1, "None": 1}


WHOLE_GROUPS = {
    "approximate_median", "array_agg", "collect_list", "collect_set", "count_distinct", "distinct",
    "first_last", "kurtosis", "list", "min_max", "skew", "skewness", "std", "stddev", "stddev_pop",
    "stddev_samp", "tdigest", "var_pop", "var_samp", "variance",
}  # fmt: skip
BOOLEANS = {"all", "any", "bool_and", "bool_or", "count_if", "every", "some"}


@pytest.mark.slow
@pytest.mark.parametrize("function", [f for f in ALL_FUNCTIONS if f != "pivot_wider"])
def test_parts_make_the_whole(function):
    rng = np.random.default_rng(3)
    values = pa.array(rng.integers(0, 3, 500), mask=rng.random(500) < 0.3)
    column = values.cast(pa.bool_()) if function in BOOLEANS else values
    table = pa.table({"k": rng.integers(0, 40, 500), "v": column})
    shuffle = KnownShuffle(HashPartitioner("k"), table.schema)
    asked = [([], function)] if function == "count_all" else [("v", function)]
    plan = plan_aggregation(shuffle, "k", asked)
    assert plan.can_merge == (function not in WHOLE_GROUPS)
    batches = table.to_batches(max_chunksize=20)
    in_parts = aggregated(batches, plan, block_bytes=2_000)
    at_once = aggregated(batches, plan, block_bytes=1 << 20)
    assert in_parts.schema.equals(plan.schema)
    assert in_parts.sort_by("k").equals(at_once.sort_by("k"))


NUMBERED = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats() | st.sampled_from([0.0, -0.0, math.nan, -math.nan, 0.1, 0.2]),
    pa.decimal128(7, 2): st.integers(-(10**7) + 1, 10**7 - 1).map(lambda i: Decimal(i).scaleb(-2)),
    pa.decimal128(38, 0): st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
    pa.string(): st.text("aé\x00", max_size=3) | st.text("b", min_size=31, max_size=34),
    pa.binary(2): st.binary(min_size=2, max_size=2),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.integers(-(2**40), 2**40),
    pa.duration("us"): st.integers(-(2**62), 2**62),
    pa.null(): st.none(),
    pa.month_day_nano_interval(): st.none(),
}
"""Types of keys and of columns, with values."""

OF_NUMBERS = ["sum", "avg", "min", "max", "count", "first", "last", "bool_and", "any", "count_if"]


@st.composite
def grouped_rows(draw):
    """A table of one or two keys and two columns, in chunks, some of them empty."""
    num_rows = draw(st.integers(1, 40))
    columns = {}
    for name in draw(st.sampled_from([["k", "v", "w"], ["k", "l", "v", "w"]])):
        type_ = draw(st.sampled_from(list(NUMBERED)))
        pool = draw(st.lists(st.none() | NUMBERED[type_], min_size=1, max_size=12))
        values = draw(st.lists(st.sampled_from(pool), min_size=num_rows, max_size=num_rows))
        columns[name] = pa.array(values, type_)
    table = pa.table(columns)
    cuts = sorted(draw(st.lists(st.integers(0, num_rows), max_size=3)))
    edges = [0, *cuts, num_rows]
    parts = [table.slice(a, b - a) for a, b in pairwise(edges)]
    return pa.concat_tables([part for part in parts if part.num_rows])


def bits(table):
    """Rows as bytes of floats and text of others, whatever their order."""

    def text(value):
        return value.hex() if isinstance(value, float) else repr(value)

    columns = [map(text, column.to_pylist()) for column in table.columns]
    return sorted(zip(*columns, strict=True))


@example(pa.table({"k": [1, 1], "v": pa.nulls(2), "w": pa.nulls(2)}), OF_NUMBERS)
@given(grouped_rows(), st.lists(st.sampled_from(OF_NUMBERS), max_size=4))
def test_groups_by_number_are_those_of_pyarrow_bit_for_bit(table, functions):
    keys = [name for name in "kl" if name in table.column_names]
    shuffle = KnownShuffle(HashPartitioner("k"), table.schema)
    steps = []
    for function in functions:
        for name in "vw":
            try:
                plan = plan_aggregation(shuffle, keys, [(name, function)])
            except SchemaError:  # it does not take the type
                continue
            steps += [
                (step, [table[name]])
                for aggregation in plan.aggregations
                for step in aggregation.method.steps
            ]
    columns = [table[key] for key in keys]
    expected = aggregation_plan._grouped_by_pyarrow(columns, steps)
    assert bits(aggregation_plan._grouped(columns, steps)) == bits(expected)
    assert aggregation_plan._grouped(columns, steps).schema.types == expected.schema.types


@pytest.mark.parametrize("type_", [pa.string(), pa.binary(2), pa.decimal128(38, 0)])
def test_ends_of_few_rows_of_each_group_are_found_in_pairs(type_):
    """By fours on average: one group has a thousand rows, many have one, some have nulls alone."""
    rng = np.random.default_rng(9)
    keys = np.append(np.repeat(0, 1_000), rng.integers(1, 2_000, 5_000))
    values = pa.array(rng.integers(10, 99, 6_000)).cast(pa.string())
    values = values.cast(pa.binary()).cast(type_) if pa.types.is_fixed_size_binary(type_) else (
        pa.array([Decimal(v.as_py()) * 10**36 for v in values], type_)
        if pa.types.is_decimal(type_) else values)  # fmt: skip
    values = pc.if_else(pa.array(rng.random(6_000) < 0.5), values, None)
    table = pa.table({"k": keys, "v": values})
    shuffle = KnownShuffle(HashPartitioner("k"), table.schema)
    plan = plan_aggregation(shuffle, "k", {"a": ("v", "min"), "z": ("v", "max")})
    expected = table.group_by("k").aggregate([("v", "min"), ("v", "max")])
    assert bits(plan.group(table)) == bits(expected)
    assert pc.any(pc.is_null(expected["v_min"])).as_py()


def test_functions_that_take_whole_groups():
    options = pc.CountOptions(mode="all")
    asked = {"all": ("v", "count", options), "mean": ("d", "mean"), "set": ("v", "distinct")}
    plan = plan_aggregation(BY_K, "k", asked)
    assert not plan.can_merge
    assert plan.schema.names == ["k", "all", "mean", "set"]
    money = pa.array([Decimal(1), Decimal(3), None], pa.decimal128(12, 2))
    numbers = pa.array([1, 2, None], pa.int32())
    table = pa.table({"k": [1.0, 1.0, 2.0], "v": numbers, "d": money})
    actual = aggregated(table.to_batches(max_chunksize=1), plan, block_bytes=1)
    assert actual.to_pylist() == [
        {"k": 1.0, "all": 2, "mean": Decimal(2), "set": [1, 2]},
        {"k": 2.0, "all": 1, "mean": None, "set": []},
    ]


OF_TWO = pa.schema({"k": pa.int64(), "i": pa.int64(), "d": pa.decimal128(38, 0), "f": pa.float64(),
                    "m": pa.decimal128(15, 2), "at": pa.timestamp("us", "UTC")})  # fmt: skip
BY_INT = KnownShuffle(HashPartitioner("k"), OF_TWO)


def column_of(name, values):
    """One group with these values in a column, in batches of a row each."""
    field = OF_TWO.field(name)
    schema = pa.schema([OF_TWO.field("k"), field])
    return [pa.record_batch([[1], pa.array([value], field.type)], schema) for value in values]


@guarantee("aggregations")
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
@pytest.mark.parametrize(
    ("name", "values", "functions"),
    [
        ("i", [2**62] * 2, ["sum"]),
        ("i", [-(2**63), -1], ["sum"]),
        ("d", [Decimal(9 * 10**37)] * 4, ["sum", "avg"]),
        ("d", [Decimal(-(10**38 - 1)), Decimal(-1)], ["sum"]),
        ("d", [Decimal(10**37)], ["mean"]),
    ],
)
def test_what_does_not_fit_is_named(name, values, functions, block_bytes):
    for function in functions:
        plan = plan_aggregation(BY_INT, "k", {"y": (name, function)})
        others = [pa.record_batch([[k], pa.nulls(1, b[1].type)], b.schema) for k in range(2, 9)
                  for b in column_of(name, [None])]  # fmt: skip
        with pytest.raises(ArithmeticOverflowError) as caught:
            aggregated([*others, *column_of(name, values)], plan, block_bytes=block_bytes)
        assert str(caught.value).startswith(f"{function}({name}) of the group k=1 is outside of")


@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
@pytest.mark.parametrize(
    ("name", "function", "values", "expected"),
    [
        ("i", "sum", [2**63 - 1, 1, -1], 2**63 - 1),
        ("i", "avg", [2**62, 2**62], 2.0**62),
        ("i", "product", [2**62, 4], 2.0**64),
        ("d", "sum", [Decimal(10**38 - 1), Decimal(1), Decimal(-2)], Decimal(10**38 - 2)),
        ("m", "mean", [Decimal("0.01"), Decimal("0.01"), Decimal("0.02")], Decimal("0.013333")),
        ("m", "avg", [Decimal("0.01")] * 2 + [Decimal("0.00")] * 4, Decimal("0.003333")),
        ("m", "avg", [Decimal("-0.01"), Decimal(0), Decimal(0)], Decimal("-0.003333")),
        ("m", "avg", [Decimal("-0.02"), Decimal(0), Decimal(0)], Decimal("-0.006667")),
        ("f", "max", [1.0, math.nan, 2.0], math.nan),
        ("f", "min", [1.0, -math.nan, 2.0], 1.0),
        ("f", "min", [math.nan], math.nan),
        ("f", "max", [-1.0, -math.inf, None], -1.0),
        ("f", "stddev", [1.0, 2.0, 4.0, 3.0], math.sqrt(5 / 3)),
        ("f", "variance", [0.1] * 3, 0.0),
        ("f", "variance", [5.0], None),
        ("f", "var_pop", [5.0], 0.0),
        ("f", "kurtosis", [0.1] * 3, None),
        ("f", "skewness", [math.inf] * 2, math.nan),
        ("i", "first", [None, 5, 6], None),
        ("i", "last", [5, 6, None], None),
        ("m", "any_value", [Decimal(5), None], Decimal(5)),
        ("i", "collect_list", [None, 5, None, 5], [5, 5]),
        ("f", "collect_set", [0.0, -0.0, None], [0.0]),
        ("f", "count_distinct", [0.0, -0.0, math.nan, -math.nan, None], 2),
    ],
)
def test_results_are_sparks(name, function, values, expected, block_bytes):
    plan = plan_aggregation(BY_INT, "k", {"y": (name, function)})
    (row,) = aggregated(column_of(name, values), plan, block_bytes=block_bytes).to_pylist()
    if isinstance(expected, float):
        assert row["y"] == pytest.approx(expected, nan_ok=True)
    else:
        assert row["y"] == expected


@pytest.mark.parametrize(("skips", "ends"), [(True, (5, 7)), (False, (None, None))])
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_first_and_last_may_skip_nulls(skips, ends, block_bytes):
    options = pc.ScalarAggregateOptions(skip_nulls=skips)
    asked = {"a": ("i", "first", options), "z": ("i", "last", options)}
    plan = plan_aggregation(BY_INT, "k", asked)
    assert plan.can_merge
    batches = column_of("i", [None, 5, 6, None, 7, None])
    (row,) = aggregated(batches, plan, block_bytes=block_bytes).to_pylist()
    assert (row["a"], row["z"]) == ends


NESTED = {
    pa.list_(pa.int8()): [[1], None, []],
    pa.struct({"a": pa.int8()}): [{"a": None}, None, {"a": 2}],
    pa.map_(pa.string(), pa.int8()): [[("x", 1)], None, []],
    pa.null(): [None, None, None],
    pa.duration("us"): [None, dt.timedelta(1), None],
}


@pytest.mark.parametrize("type_", NESTED)
def test_values_of_rows_may_have_any_type(type_):
    table = pa.table({"k": [1, 1, 2], "v": pa.array(NESTED[type_], type_)})
    shuffle = KnownShuffle(HashPartitioner("k"), table.schema)
    asked = {f: ("v", f) for f in ("first", "last", "collect_list", "count")}
    actual = aggregated(table.to_batches(max_chunksize=1), plan_aggregation(shuffle, "k", asked),
                       block_bytes=1)  # fmt: skip
    first, second, last = table["v"].to_pylist()
    expected = [
        {"k": k, "first": rows[0], "last": rows[-1], "count": len([*filter(present, rows)]),
         "collect_list": [*filter(present, rows)]}
        for k, rows in [(1, [first, second]), (2, [last])]
    ]  # fmt: skip
    assert sorted(actual.to_pylist(), key=lambda row: row["k"]) == expected


def present(value):
    return value is not None


def test_distinct_values_of_nothing():
    """PyArrow counts nulls without a type as a value, and crashes when it is to list them."""
    shuffle = KnownShuffle(HashPartitioner("k"), pa.schema({"k": pa.int64(), "v": pa.null()}))
    plan = plan_aggregation(shuffle, "k", {"n": ("v", "count_distinct"), "s": ("v", "collect_set")})
    rows = pa.record_batch([[1, 1], pa.nulls(2)], shuffle.schema)
    assert aggregated([rows], plan, block_bytes=1).to_pylist() == [{"k": 1, "n": 0, "s": []}]
    with pytest.raises(SchemaError, match="distinct takes columns that have a type, not null"):
        plan_aggregation(shuffle, "k", [("v", "distinct")])


def test_a_mapping_of_columns_to_functions():
    plan = plan_aggregation(BY_INT, "k", {"i": "sum", "*": "count", "most": ("m", "max")})
    assert plan.schema.names == ["k", "i_sum", "count", "most"]
    assert [str(aggregation) for aggregation in plan.aggregations] == [
        "sum(i)",
        "count_all()",
        "max(m)",
    ]


@pytest.mark.parametrize(
    ("function", "options"),
    [("count", pc.CountOptions(mode="all")), ("sum", pc.ScalarAggregateOptions(min_count=9)),
     ("stddev", pc.VarianceOptions(ddof=1)), ("tdigest", pc.TDigestOptions(0.3))],
)  # fmt: skip
def test_options_go_to_tasks(function, options):
    plan = plan_aggregation(BY_K, "k", [("v", function, options), ("v", "min")])
    unpickled = pickle.loads(pickle.dumps(plan))
    assert unpickled.aggregations == plan.aggregations
    assert unpickled.aggregations[0].options == options
    assert (unpickled.schema, unpickled.keys) == (plan.schema, plan.keys)


def test_large_unsigned_keys_stay_what_they_are():
    schema = pa.schema({"u": pa.uint64(), "v": pa.int64()})
    plan = plan_aggregation(
        KnownShuffle(HashPartitioner("u"), schema), "u", [("v", "sum"), ("u", "count")]
    )
    rows = pa.record_batch([[2**64 - 1, 2**64 - 1, 3], [1, 2, 3]], schema=schema)
    actual = aggregated([rows], plan, block_bytes=1 << 20)
    assert actual.schema.types == [pa.uint64(), pa.int64(), pa.int64()]
    assert actual["u"].to_pylist() == [2**64 - 1, 3]
    plan = plan_aggregation(KnownShuffle(HashPartitioner("v"), schema), "v", [("u", "max")])
    with pytest.raises(ArithmeticOverflowError, match=r"max\(u\) of the group v=1 is outside"):
        aggregated([rows], plan, block_bytes=1 << 20)


def test_memory_grows_with_groups_and_not_with_rows():
    shuffle = KnownShuffle(HashPartitioner("k"), pa.schema({"k": pa.int64(), "v": pa.int64()}))
    plan = plan_aggregation(shuffle, "k", [("v", "sum"), ([], "count_all")])
    before, most = pa.total_allocated_bytes(), 0

    def batches():
        nonlocal most
        for number in range(200):
            ids = np.arange(10_000) % 50
            yield pa.record_batch({"k": ids, "v": np.full(10_000, number)})
            most = max(most, pa.total_allocated_bytes() - before)

    (actual,) = aggregate_in_passes(batches, plan, block_bytes=1 << 20, num_rows=2_000_000)
    assert actual.num_rows == 50
    assert actual["v_sum"].to_pylist() == [200 * sum(range(200))] * 50
    assert most < 8 << 20  # of 32 MB of rows


@pytest.mark.parametrize("functions", [["sum", "max"], ["list", "first", "last"]])
def test_passes_make_the_whole_and_keep_the_order(functions):
    """Of too many groups; few passes, of which none is for nothing."""
    rng = np.random.default_rng(5)
    table = pa.table({"k": rng.integers(0, 3_000, 20_000), "v": rng.permutation(20_000)})
    asked = [("v", function) for function in functions]
    plan = plan_aggregation(KnownShuffle(HashPartitioner("k"), table.schema), "k", asked)
    assert plan.can_merge == ("sum" in functions)
    num_reads = 0

    def read():
        nonlocal num_reads
        num_reads += 1
        return table.to_batches(max_chunksize=500)

    parts = list(aggregate_in_passes(read, plan, block_bytes=300_000, num_rows=20_000))
    expected = table.group_by("k", use_threads=False).aggregate(asked)
    actual = pa.concat_tables(parts).select(expected.schema.names)
    assert actual.sort_by("k").equals(expected.sort_by("k"))
    assert 2 <= len(parts) <= num_reads <= 20


@pytest.mark.parametrize(
    ("repeats", "most_reads"),
    [(1, 10), (2, 7), (1_000, 1)],
)
def test_rows_are_read_once_to_see_how_many_groups_there_are_and_once_for_each_part(
    repeats, most_reads
):
    """40,000 rows of 116 bytes, of which 800 KB fit: nine parts of groups of 132 bytes."""
    rng = np.random.default_rng(6)
    table = pa.table({"k": rng.permutation(40_000) // repeats, "v": np.arange(40_000)})
    shuffle = KnownShuffle(HashPartitioner("k"), table.schema)
    rows_read = 0

    def read():
        nonlocal rows_read
        for batch in table.to_batches(max_chunksize=1_000):
            rows_read += batch.num_rows
            yield batch

    plan = plan_aggregation(shuffle, "k", [("v", "sum"), ("v", "count")])
    parts = list(aggregate_in_passes(read, plan, block_bytes=800_000, num_rows=40_000))
    assert sum(part.num_rows for part in parts) == 40_000 // repeats
    assert rows_read <= most_reads * 40_000


def test_small_subpartitions_of_distinct_keys_are_read_once(tmp_path, monkeypatch):
    table = pa.table({"k": np.arange(60_000), "v": np.arange(60_000)})
    shuffle = shuffle_of(tmp_path / "s", table, "k", n=100)
    read = Counter()

    def reader(first, end, *rest, **how):
        read.update(range(first, end))
        return Shuffle.reader(shuffle, first, end, *rest, **how)

    monkeypatch.setattr(shuffle, "reader", reader)
    for function in ("sum", "list"):
        read.clear()
        plan = plan_aggregation(shuffle, "k", [("v", function)])
        rows = sum(b.num_rows for b in aggregate_range(shuffle, plan, group_bytes=1 << 20))
        assert rows == 60_000
        assert set(read.values()) == {1}


@pytest.mark.parametrize("group_bytes", [1_000, 48 << 20])
@pytest.mark.parametrize("sort_by", [(), ("v",)])
def test_ranges_aggregate_as_the_table(tmp_path, group_bytes, sort_by):
    rng = np.random.default_rng(8)
    table = pa.table({"k": rng.integers(0, 300, 3_000), "v": rng.permutation(3_000)})
    shuffle = shuffle_of(tmp_path / "s", table, "k", n=40, sort_by=sort_by)
    plan = plan_aggregation(shuffle, "k", [("v", "sum"), ("v", "first"), ("v", "last")])
    actual = pa.Table.from_batches(aggregate_range(shuffle, plan, group_bytes=group_bytes))
    ordered = table.sort_by("v") if sort_by else table
    asked = [("v", "sum"), ("v", "first"), ("v", "last")]
    expected = ordered.group_by("k", use_threads=False).aggregate(asked)
    assert actual.sort_by("k").equals(expected.sort_by("k"))
    some = pa.Table.from_batches(aggregate_range(shuffle, plan, [3, 9, 10]))
    keys = pc.unique(shuffle.read([3, 9, 10], ["k"]).read_all()["k"])
    assert sorted(some["k"].to_pylist()) == sorted(keys.to_pylist())


def test_keys_alone_are_the_distinct_ones(tmp_path):
    table = pa.table({"k": [1, 1, None]})
    shuffle = shuffle_of(tmp_path / "s", table, "k", n=2)
    actual = pa.Table.from_batches(aggregate_range(shuffle, plan_aggregation(shuffle, "k", [])))
    assert sorted(actual["k"].to_pylist(), key=str) == [1, None]


def test_sums_of_booleans_are_signed():
    plan = plan_aggregation(BY_K, "k", [("b", "sum")])
    assert plan.schema.field("b_sum").type == pa.int64()


@pytest.mark.parametrize(
    ("keys", "aggregations", "error", "message"),
    [
        ("s", [], OptionError, r"by=\['s'\] lack the partition key\(s\) k of /s"),
        (["k", "x"], [], SchemaError, "column 'x' is not there"),
        (["k", "k"], [], OptionError, "a column is named twice"),
        (["k", "l"], [], SchemaError, "cannot be grouped by a nested column"),
        ("k", [("x", "sum")], SchemaError, "column 'x' is not there"),
        (
            "k",
            [("s", "sum")],
            SchemaError,
            r"sum\(s\): sum takes numbers and durations, not str",
        ),
        ("k", [("l", "max")], SchemaError, r"max\(l\): max takes columns that are not nested"),
        ("k", [("v", "any")], SchemaError, r"any\(v\): any takes booleans, not int32; cast it"),
        ("k", [("s", "tdigest")], SchemaError, r"aggregation tdigest\(s\): .*no kernel"),
        ("k", [(["v", "s"], "sum")], SchemaError, "'sum' takes one column, not 2"),
        ("k", [("v", "nope")], OptionError, r"no function 'nope'; expected one of all, any, any_v"),
        ("k", [("v", "avg", pc.CountOptions())], OptionError, "'avg' takes no options; some func"),
        (
            "k",
            [("v", "sum", pc.CountOptions())],
            OptionError,
            "'sum' takes .*ScalarAggregate",
        ),
        ("k", [("v", "list", pc.CountOptions())], OptionError, "'list' takes no options"),
        (
            "k",
            [("v", "first", pc.ScalarAggregateOptions(min_count=2))],
            OptionError,
            "no other options than ScalarAggr",
        ),
        ("k", ["v"], OptionError, "aggregation 'v': expected"),
        ("k", "v", OptionError, "aggregations='v': expected a list"),
        ("k", 5, OptionError, "aggregations=5: expected a list"),
        ("k", [("v", "sum", "opt")], OptionError, "options is str; expected options of pyarrow"),
        (
            "k",
            [("v", "sum"), ("v", "sum")],
            SchemaError,
            "columns of the result with the same name",
        ),
        ("k", {"k": ("v", "sum")}, SchemaError, "columns of the result with the same name: 'k'"),
    ],
)
def test_plans_that_do_not_work(keys, aggregations, error, message):
    with pytest.raises(error, match=message):
        plan_aggregation(BY_K, keys, aggregations)


NOT_TAKEN = {
    "sum": "sld", "avg": "sl", "mean": "sl", "product": "slb", "stddev": "slb", "std": "slb",
    "stddev_pop": "slb", "variance": "slb", "var_pop": "slb", "kurtosis": "slb",
    "skewness": "slb", "count_if": "svl", "count_distinct": "l", "collect_set": "l", "min": "l",
    "max": "l", "bool_and": "sv", "bool_or": "sv", "any": "sv", "every": "sv",
}  # fmt: skip
"""Columns of SCHEMA by functions that do not take their types; d is a date here."""


@pytest.mark.parametrize("function", NOT_TAKEN)
def test_functions_refuse_types_that_they_do_not_take(function):
    schema = SCHEMA.set(3, pa.field("d", pa.date32()))
    for name in NOT_TAKEN[function]:
        type_ = schema.field(name).type
        with pytest.raises(SchemaError, match=rf" takes .*, not {re.escape(str(type_))}; cast it"):
            plan_aggregation(KnownShuffle(HashPartitioner("k"), schema), "k", [(name, function)])


@pytest.mark.parametrize(
    ("partitioner", "keys", "message"),
    [
        (BroadcastPartitioner(), "k", "is broadcast"),
        (RoundRobinPartitioner(), "k", "written in turn"),
        (RangePartitioner("s", ("v", "descending"), bounds=[]), ["s", "k"], r"key\(s\) v of"),
        (ColumnPartitioner("v"), "k", r"key\(s\) v of"),
    ],
)
def test_groups_that_may_lie_in_several_subpartitions(partitioner, keys, message):
    with pytest.raises(OptionError, match=message):
        plan_aggregation(KnownShuffle(partitioner, SCHEMA), keys, [])
    mine = KnownShuffle({"kind": "mine"}, SCHEMA)
    assert plan_aggregation(mine, "k", []).keys == ("k",)


def test_rows_that_a_partitioner_broadcasts_would_count_several_times():
    mine = KnownShuffle({"kind": "mine"}, SCHEMA)
    file = PartitionedFile("p", 0, 1, 1, 1, 1, 1, 1, num_broadcast_rows=1)
    mine.map_outputs = (MapOutput("j", 0, 0, (file,)),)
    with pytest.raises(OptionError, match="rows of the shuffle are broadcast and every subpart"):
        plan_aggregation(mine, "k", [])
