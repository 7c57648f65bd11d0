"""Results that stay in their subpartitions: which may, and that no row is put elsewhere."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format import (
    BroadcastPartitioner,
    ColumnPartitioner,
    HashPartitioner,
    OptionError,
    RangePartitioner,
    RoundRobinPartitioner,
    SchemaError,
)
from arrow_format.operators.join_plan import plan_join
from arrow_format.operators.placement import Placement, plan_placement
from tests.support.small_shuffles import shuffle_of

N = 7
SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.string())])
RANGES = RangePartitioner("k", bounds=[-5, 0, 5])
PARTITIONERS = [HashPartitioner("k", "t"), RANGES, ColumnPartitioner("k")]


def batch_of(keys):
    return pa.record_batch([keys, [str(key) for key in keys]], schema=SCHEMA)


def written(tmp_path, name="s", partitioner=PARTITIONERS[0], n=N, table=None):
    table = pa.Table.from_batches([batch_of(range(5))]) if table is None else table
    return shuffle_of(tmp_path / name, table, n=n, partitioner=partitioner)


@given(st.lists(st.integers(0, N - 1), min_size=1, max_size=40), st.data())
@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_rows_that_stay_have_their_subpartitions_and_others_are_named(partitioner, keys, data):
    batch = batch_of(keys)
    ids = np.asarray(partitioner.bind(SCHEMA, N, 0)(batch))
    placement = Placement(partitioner, N, stays=True)
    first = data.draw(st.integers(0, N - 1))
    end = data.draw(st.integers(first + 1, N))
    numbers = data.draw(st.sampled_from([range(first, end), list(range(first, end))]))
    elsewhere = np.flatnonzero((ids < first) | (ids >= end))
    results = [(numbers, batch)]
    if not len(elsewhere):
        (rows,) = placement.rows(results, SCHEMA, "/s")
        assert rows.batch is batch
        assert rows.subpartitions.tolist() == ids.tolist()
        return
    row = int(elsewhere[0])
    with pytest.raises(SchemaError) as caught:
        list(placement.rows(results, SCHEMA, "/s"))
    message = str(caught.value)
    assert f"k={keys[row]}" in message
    assert f"belongs to subpartition {ids[row]} of {N}" in message
    came_from = (
        f"subpartitions {first} to {end - 1}" if end > first + 1 else f"subpartition {first}"
    )
    assert f"came from {came_from} of /s" in message


def test_what_is_placed_anew_is_left_to_the_partitioner():
    placement = Placement(PARTITIONERS[0], N, stays=False)
    batch = batch_of([1, 2])
    assert list(placement.rows([([0], batch)], SCHEMA, "/s")) == [batch]


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_the_partitioner_of_the_input_goes_by_the_names_of_the_result(tmp_path, partitioner):
    source = written(tmp_path, partitioner=partitioner)
    names = {"k": "key", "t": "text"}
    schema = pa.schema([("text", pa.string()), ("v", pa.int8()), ("key", pa.int64())])
    placement = plan_placement(source, schema, names.get)
    assert placement.stays
    assert placement.num_subpartitions == N
    there = {
        (row["k"], row["_subpartition"])
        for row in source.read(with_subpartition=True).read_all().to_pylist()
    }
    rows = pa.record_batch([["0", "3"], [0, 0], [0, 3]], schema=schema)
    ids = placement.partitioner.bind(schema, N, 0)(rows)
    assert set(zip([0, 3], ids.tolist(), strict=True)) <= there


def test_rows_stay_only_for_the_same_keys_in_the_same_order_and_the_same_n(tmp_path):
    source = written(tmp_path)
    cases = [
        ({}, True),
        ({"keys": ["k", "t"]}, True),
        ({"keys": ["k", "t"], "num_subpartitions": N}, True),
        ({"keys": ["t", "k"]}, False),
        ({"keys": "k"}, False),
        ({"num_subpartitions": N + 1}, False),
        ({"keys": ["k", "t"], "num_subpartitions": N + 1}, False),
    ]
    for how, stays in cases:
        placement = plan_placement(source, SCHEMA, **how)
        assert placement.stays is stays, how
        assert placement.num_subpartitions == how.get("num_subpartitions", N)
        assert placement.partitioner == HashPartitioner(how.get("keys", ["k", "t"]))
    other = pa.schema([("k", pa.int32()), ("t", pa.string())])
    assert not plan_placement(source, other, keys=["k", "t"]).stays


@pytest.mark.parametrize(
    ("partitioner", "schema", "message"),
    [
        (PARTITIONERS[0], pa.schema([("k", pa.int64())]), "the result lacks 't', by which /"),
        (RANGES, pa.schema([("k", pa.int32())]), "'k' of the result is int32, 'k' of /"),
        (RoundRobinPartitioner(), SCHEMA, r"\(roundrobin\) does not say by which columns"),
        (BroadcastPartitioner(), SCHEMA, r"\(broadcast\) does not say by which columns"),
    ],
)
def test_results_that_cannot_stay_need_keys(tmp_path, partitioner, schema, message):
    source = written(tmp_path, partitioner=partitioner)
    with pytest.raises(OptionError, match=rf"^keys=None: .*{message}.*; give keys="):
        plan_placement(source, schema)
    assert not plan_placement(source, schema, keys="k").stays


@pytest.mark.parametrize(
    ("how", "of_right", "expected"),
    [
        ("inner", False, ("k", "a", None)),
        ("inner", True, ("k", "b", None)),
        ("left", False, ("k", "a", None)),
        ("left", True, (None, None, None)),
        ("right", True, ("k", "b", None)),
        ("full", False, ("k", None, None)),
        ("semi", False, ("k", "a", None)),
    ],
)
def test_columns_that_every_joined_row_has_as_one_side_had_them(tmp_path, how, of_right, expected):
    sides = []
    for key in "ab":
        table = pa.table({"k": [1], key: [1], f"{key}{key}": [1]})
        sides.append(written(tmp_path, key, HashPartitioner("k", key), table=table))
    plan = plan_join(*sides, on=["k", ("a", "b")], how=how, left_columns=["a"], right_columns=["b"])
    own = "b" if of_right else "a"
    found = tuple(plan.name_of(name, of_right=of_right) for name in ("k", own, own * 2))
    assert found == expected
    if how == "inner":  # its equal stands for a key that is left out
        plan = plan_join(*sides, on=["k", ("a", "b")], left_columns=[], right_columns=["b"])
        assert plan.name_of("a", of_right=False) == "b"
