"""Slices of every stored type come out of every operator as they went in."""

import tempfile
from collections import Counter
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrow_format import HashPartitioner, merge_shuffle, open_shuffle
from arrow_format.arrays.stored_types import data_schema, normalise
from arrow_format.operators.aggregate import aggregate_range
from arrow_format.operators.aggregation_plan import plan_aggregation
from arrow_format.operators.join import join_range
from arrow_format.operators.join_plan import plan_join
from arrow_format.options import WriteOptions
from arrow_format.streaming.latest_in_memory import latest_in_passes
from arrow_format.streaming.latest_spilling import latest_per_key
from arrow_format.write.merge_policy import MergePolicy
from tests.property.test_merge import by_row
from tests.property.test_round_trip import read_with_ids
from tests.support.exhaustive import examples
from tests.support.small_shuffles import write_tasks
from tests.support.tables import frozen

GRID = pa.list_(pa.list_(pa.int32(), 1), 2)
"""PyArrow takes and filters slices of such a type wrongly."""

FLAT = [
    *(pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
    *(pa.decimal32(5, 1), pa.decimal64(15, 2), pa.decimal128(38, 10), pa.decimal256(60, 3)),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.duration("us")),
    *(pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.month_day_nano_interval()),
    *(pa.string(), pa.binary(), pa.binary(4)),
]
TYPES = [
    *FLAT,
    *(pa.list_(type_, 2) for type_ in FLAT),
    *(pa.list_(pa.list_(type_, 1), 2) for type_ in FLAT),
    *(wrap(type_) for type_ in (pa.int32(), pa.string(), GRID) for wrap in (
        pa.list_,
        lambda one: pa.list_(one, 2),
        lambda one: pa.map_(pa.int8(), one),
        lambda one: pa.struct([("a", one), ("b", pa.int8())]),
    )),
]  # fmt: skip


def column(type_, num_rows, nulls):
    """An array whose values differ from row to row; some are null where that is wanted."""
    numbers = pa.array(np.arange(num_rows) % 100)
    lengths = np.arange(num_rows) % 3
    offsets = pa.array(np.append(0, np.cumsum(lengths)), pa.int32())
    inside = int(lengths.sum())
    if pa.types.is_fixed_size_list(type_):
        values = column(type_.value_type, num_rows * type_.list_size, nulls)
        made = pa.FixedSizeListArray.from_arrays(values, type=type_)
    elif pa.types.is_map(type_):
        keys, items = column(type_.key_type, inside, False), column(type_.item_type, inside, nulls)
        made = pa.MapArray.from_arrays(offsets, keys, items)
    elif pa.types.is_list(type_):
        made = pa.ListArray.from_arrays(offsets, column(type_.value_type, inside, nulls))
    elif pa.types.is_struct(type_):
        parts = [column(field.type, num_rows, nulls) for field in type_]
        made = pa.StructArray.from_arrays(parts, fields=list(type_))
    elif pa.types.is_null(type_):
        made = pa.nulls(num_rows)
    elif pa.types.is_fixed_size_binary(type_):
        made = pa.array([b"%04d" % number for number in numbers.to_pylist()], type_)
    elif pa.types.is_decimal(type_):
        made = pa.array(numbers.to_pylist(), type_)
    elif pa.types.is_interval(type_):
        made = pa.array([(number, 0, -number) for number in numbers.to_pylist()], type_)
    elif pa.types.is_date(type_):
        made = numbers.cast(pa.int32()).cast(pa.date32()).cast(type_)
    elif pa.types.is_time32(type_):
        made = numbers.cast(pa.int32()).cast(type_)
    else:
        made = numbers.cast(pa.string() if pa.types.is_binary(type_) else type_).cast(type_)
    if not nulls or not num_rows:
        return made
    rows = np.arange(num_rows)
    return made.take(pa.array(rows, mask=rows % 5 == 3))


def listed():
    """Names of the columns of which PyArrow makes lists."""
    names = set()
    for i, type_ in enumerate(TYPES):
        table = pa.table({"k": [1, 1], f"c{i}": column(type_, 2, False)})
        with suppress(pa.ArrowNotImplementedError):
            table.group_by("k").aggregate([(f"c{i}", "list")])
            names.add(f"c{i}")
    return names


LISTED = listed()
N = st.integers(1, 3)
OPTIONS = st.builds(
    WriteOptions,
    sync=st.just(False),
    codec=st.sampled_from(["zstd", "none"]),
    # Readers get slices of what is in a chunk; small buffers and chunks make several.
    sort_buffer_bytes=st.sampled_from([1 << 16, 1 << 20]),
    chunk_bytes=st.sampled_from([10_000, 256 << 10]),
)
PASSES = st.sampled_from([1, 10_000, None])
"""Bytes that a join or an aggregation holds: few make it pass over its rows again and again."""

FEW = settings(max_examples=examples(6, 60))
"""Each example has every type."""


@st.composite
def sliced(draw):
    """A column of each type, a key `k` of few values and the row's number `v`, in slices."""
    num_rows = draw(st.integers(0, 40))
    nulls = draw(st.booleans())
    columns = {f"c{i}": column(type_, num_rows, nulls) for i, type_ in enumerate(TYPES)}
    columns |= {"v": np.arange(num_rows), "k": pa.array(np.arange(num_rows) % 5, pa.int32())}
    whole = pa.record_batch(columns)
    cuts = sorted(draw(st.lists(st.integers(0, num_rows), max_size=3)))
    edges = zip([0, *cuts], [*cuts, num_rows], strict=True)
    batches = [whole.slice(start, end - start) for start, end in edges]
    return pa.Table.from_batches(batches)


def written(table, directory, n, options, *, partitioner=None, sort_by=(), num_tasks=1):
    """A shuffle of a table."""
    size = -(-table.num_rows // num_tasks)
    parts = [table.slice(i * size, size).to_batches() for i in range(num_tasks)]
    partitioner = partitioner or HashPartitioner("k")
    write_tasks(
        directory, parts, n, schema=table.schema, partitioner=partitioner, options=options,
        sort_by=sort_by,
    )  # fmt: skip
    return open_shuffle(directory)


def rows_by_number(table):
    """Each row of a table, by `v`."""
    return {row["v"]: frozen(row) for row in table.to_pylist()}


def check(batch):
    batch.validate(full=True)
    return batch.to_pylist()


@FEW
@given(sliced(), N, OPTIONS, st.sampled_from(["ascending", "descending"]))
def test_sorted_read(table, n, options, order):
    rows = rows_by_number(table)
    with tempfile.TemporaryDirectory() as directory:
        shuffle = written(table, directory, n, options, sort_by=[("v", order)])
        for what in ({}, *({"subpartitions": [one]} for one in range(n))):
            found = read_with_ids(shuffle, **what)
            assert [frozen(row) for _, row in found] == [rows[row["v"]] for _, row in found]
            numbers = [(s, row["v"]) for s, row in found]
            down = order == "descending"
            assert numbers == sorted(numbers, key=lambda one: (one[0], -one[1] if down else one[1]))
            wanted = what.get("subpartitions", range(n))
            assert len(found) == sum(shuffle.subpartition_rows[s].as_py() for s in wanted)
        alone = [
            row["v"] for s in range(n) for row in shuffle.subpartition(s).read_all().to_pylist()
        ]
        assert sorted(alone) == sorted(rows)


@FEW
@given(sliced(), N, OPTIONS, st.sampled_from(["inner", "full", "semi", "anti"]), PASSES, st.data())
def test_join(table, n, options, how, group_bytes, data):
    rows = rows_by_number(table)
    names = {one: one if one == "v" else f"other {one}" for one in table.column_names}
    whole = table.combine_chunks()
    other = pa.concat_tables([whole.slice(0, 0), *(whole.slice(v, 1) for v in rows if v % 3)])
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        by_number = HashPartitioner("v")
        left = written(table, one, n, options, partitioner=by_number)
        right = written(
            other.rename_columns([names[c] for c in other.column_names]),
            two, n, options, partitioner=by_number,
        )  # fmt: skip
        if data.draw(st.booleans()):
            left, right = right, left
        plan = plan_join(left, right, on=["v"], how=how)
        subpartitions = data.draw(st.none() | st.integers(0, n - 1).map(lambda s: [s]))
        found = [
            row
            for batch in join_range(left, right, plan, subpartitions, group_bytes=group_bytes)
            for row in check(batch)
        ]
    for row in found:
        original = dict(rows[row["v"]])
        for name, value in row.items():
            if value is not None or how == "inner":
                assert frozen(value) == original[name.removeprefix("other ")]
    if subpartitions is None:
        matched, alone = {v for v in rows if v % 3}, {v for v in rows if not v % 3}
        all_left = matched if "other c0" in left.schema.names else {*rows}
        expected = {
            "inner": matched,
            "semi": matched,
            "anti": all_left - matched,
            "full": matched | alone,
        }
        assert Counter(row["v"] for row in found) == Counter(expected[how])


@FEW
@given(sliced(), N, OPTIONS, PASSES)
def test_latest_row_of_each_key(table, n, options, capacity_bytes):
    rows = rows_by_number(table)
    expected = Counter({v % 5: v for v in sorted(rows)}.values())

    def check_latest(batches):
        found = [row for batch in batches for row in check(batch)]
        assert Counter(row["v"] for row in found) == expected
        assert [frozen(row) for row in found] == [rows[row["v"]] for row in found]

    check_latest(latest_per_key(table.to_batches(), "k"))
    with tempfile.TemporaryDirectory() as directory:
        shuffle = written(table, directory, n, options)
        latest = latest_in_passes(
            lambda: (run.batch for s in range(n) for run in shuffle.reader(s, s + 1)),
            shuffle.schema,
            ["k"],
            capacity_bytes=capacity_bytes or 1 << 20,
            num_rows=table.num_rows,
        )
        check_latest(latest)


@FEW
@given(sliced(), N, OPTIONS, PASSES)
def test_aggregation(table, n, options, group_bytes):
    rows = rows_by_number(table)
    names = ["v", *(name for name in table.column_names if name in LISTED)]
    found = []
    with tempfile.TemporaryDirectory() as directory:
        shuffle = written(table, directory, n, options)
        counted = [(name, "count") for name in table.column_names if name not in {*names, "k"}]
        plan = plan_aggregation(shuffle, "k", [*((name, "list") for name in names), *counted])
        subpartitions = [[s] for s in range(n)] if group_bytes else [None]
        for some in subpartitions:
            for batch in aggregate_range(shuffle, plan, some, group_bytes=group_bytes):
                found += check(batch)
    for row in found:
        numbers = row["v_list"]
        assert {v % 5 for v in numbers} == {row["k"]}
        for name in names:
            expected = [dict(rows[v])[name] for v in numbers]
            assert [frozen(value) for value in row[f"{name}_list"]] == expected
        for name, _ in counted:
            present = [v for v in numbers if dict(rows[v])[name] is not None]
            assert row[f"{name}_count"] == len(present)
    assert sorted(v for row in found for v in row["v_list"]) == sorted(rows)


@FEW
@given(sliced(), N, OPTIONS, st.sampled_from([2, 3]))
def test_rows_that_a_partitioner_sends_to_all(table, n, options, everyone):
    rows = rows_by_number(table)
    with tempfile.TemporaryDirectory() as directory:
        shuffle = written(table, directory, n, options, partitioner=by_row(everyone))
        found = read_with_ids(shuffle)
        assert [frozen(row) for _, row in found] == [rows[row["v"]] for _, row in found]
        copies = Counter(row["v"] for _, row in found)
        assert copies == Counter({v: 1 if v % everyone else n for v in rows})


@FEW
@given(sliced(), N, OPTIONS, st.sampled_from([(), [("v", "descending")]]))
def test_merge(table, n, options, sort_by):
    rows = rows_by_number(table)
    with tempfile.TemporaryDirectory() as directory:
        before = written(table, directory, n, options, sort_by=sort_by, num_tasks=2)
        expected = read_with_ids(before)
        policy = MergePolicy(rewrite="always", min_regions=2)
        merge_shuffle(directory, policy=policy, options=options, by="map_output")
        found = read_with_ids(open_shuffle(directory))
    assert [frozen(row) for _, row in found] == [rows[row["v"]] for _, row in found]
    assert [(s, row["v"]) for s, row in found] == [(s, row["v"]) for s, row in expected]


@pytest.mark.parametrize(
    "column",
    [
        pa.ListViewArray.from_arrays(
            pa.array([6, 4, 2], pa.int32()),
            pa.array([2, 1, 3], pa.int32()),
            pa.array([[[i], [-i]] for i in range(12)], GRID),
        ),
        pa.DictionaryArray.from_arrays(
            pa.array([3, 0, 2], pa.int8()), pa.array([[[i], [-i]] for i in range(9)], GRID).slice(4)
        ),
        pa.RunEndEncodedArray.from_arrays(
            pa.array([1, 3, 4], pa.int32()),
            pa.array([[[i], [-i]] for i in range(9)], GRID).slice(4, 3),
        ),
    ],
)
def test_what_is_made_plain(column):
    batch = pa.record_batch({"c": column})
    plain = normalise(batch, data_schema(batch.schema))["c"]
    plain.validate(full=True)
    assert plain.to_pylist() == column.to_pylist()
