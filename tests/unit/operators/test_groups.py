"""Groups of a shuffle: whole, each once, in order, within memory, however rows are stored."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arrow_format import (
    BroadcastPartitioner,
    OptionError,
    RangePartitioner,
    RoundRobinPartitioner,
    append_shuffle,
    open_shuffle,
    write_shuffle,
)
from arrow_format.arrays.buffers import to_numpy
from arrow_format.operators.groups import group_keys, grouped_blocks
from tests.support.exhaustive import examples
from tests.support.small_shuffles import FAST, write_rows
from tests.support.spark_order_model import as_key

NAN = float("nan")
KEYS = [None, NAN, 0.0, -0.0, 1.5, -7.0, 2.0**60]


def canonical(key):
    return tuple(map(as_key, key))


def groups_of(path, keys, **how):
    """The positions of each group's rows, in order; every group must come once."""
    found = {}
    shuffle = open_shuffle(path)
    for block in grouped_blocks(shuffle, keys, ["k", "t", "v"], **how):
        assert block.starts[0] == 0
        assert block.starts[-1] == block.batch.num_rows
        assert (np.diff(block.starts) > 0).all()
        for start, stop in zip(block.starts[:-1].tolist(), block.starts[1:].tolist(), strict=True):
            rows = block.batch.slice(start, stop - start).to_pylist()
            (key,) = {canonical([row[name] for name in keys]) for row in rows}
            assert key not in found
            found[key] = [row["v"] for row in rows]
    return found


@pytest.mark.slow
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(40, 200)
)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from(KEYS), st.sampled_from([None, "", "a", "b"])), max_size=60
    ),
    appended=st.integers(0, 60),
    keys=st.sampled_from([["k"], ["t"], ["k", "t"], ["t", "k"]]),
    sort_by=st.sampled_from([(), ("v",), ("t", "k", "v"), ("k", "t")]),
    group_bytes=st.sampled_from([None, 900, 3_000]),
)
def test_every_group_is_whole_and_in_the_order_of_the_shuffle(
    tmp_path_factory, rows, appended, keys, sort_by, group_bytes
):
    path = tmp_path_factory.mktemp("groups") / "s"
    table = pa.table(
        {
            "k": pa.array([k for k, _ in rows], pa.float64(), from_pandas=False),
            "t": pa.array([t for _, t in rows], pa.string()),
            "v": pa.array(range(len(rows)), pa.int64()),
        }
    )
    how = {"num_subpartitions": 4, "keys": keys, "sort_by": sort_by, "options": FAST}
    write_shuffle(table.slice(0, appended), path, **how)
    append_shuffle(table.slice(appended), path, options=FAST)
    expected = {}
    for row in open_shuffle(path).read().read_all().to_pylist():
        expected.setdefault(canonical([row[name] for name in keys]), []).append(row["v"])
    if group_bytes is None:
        assert groups_of(path, keys) == expected
        for order in ("ascending", "descending"):
            found = groups_of(path, keys, sort_by=(("v", order),))
            assert found == {
                key: sorted(values, reverse=order == "descending")
                for key, values in expected.items()
            }
    elif max(map(len, expected.values()), default=0) * 80 < group_bytes:
        assert groups_of(path, keys, group_bytes=group_bytes) == expected


def test_a_group_that_is_too_large_is_named_and_others_are_not_in_its_way(tmp_path):
    few = {"k": list(range(500)) * 2, "t": ["x" * 50] * 1_000, "v": range(1_000)}
    write_rows(tmp_path / "s", pa.table(few), "k", n=1)
    assert len(groups_of(tmp_path / "s", ["k"], group_bytes=8_000)) == 500
    many = pa.table({"k": [7] * 3_000, "t": ["x" * 50] * 3_000, "v": range(3_000)})
    append_shuffle(many, tmp_path / "s", options=FAST)
    with pytest.raises(OptionError, match=r"^the group k=7 is too large: .*ReadOptions\(memory"):
        groups_of(tmp_path / "s", ["k"], group_bytes=8_000)
    assert len(groups_of(tmp_path / "s", ["k"], group_bytes=1_000_000)) == 500


def test_a_group_of_many_small_rows_is_not_taken_for_large(tmp_path):
    """Half of all rows are its own, and few of the bytes."""
    ks, ts = [7] * 500 + list(range(100, 500)), [""] * 500 + ["x" * 500] * 400
    order = np.random.default_rng(0).permutation(900)
    table = pa.table({"k": ks, "t": ts, "v": range(900)}).take(order)
    write_rows(tmp_path / "s", table, "k", n=1)
    found = groups_of(tmp_path / "s", ["k"], group_bytes=50_000)
    assert {len(values) for key, values in found.items() if key != (7,)} == {1}
    assert (len(found), len(found[7,])) == (401, 500)


def test_shuffles_without_groups(tmp_path):
    table = pa.table({"k": [1]})
    for partitioner in (RoundRobinPartitioner(), BroadcastPartitioner()):
        path = tmp_path / type(partitioner).__name__
        write_rows(path, table, n=2, partitioner=partitioner)
        with pytest.raises(OptionError, match="whatever the values of rows are"):
            group_keys(open_shuffle(path))
    ranges = RangePartitioner("k", bounds=[1])
    write_rows(tmp_path / "s", table, n=2, partitioner=ranges)
    assert group_keys(open_shuffle(tmp_path / "s")) == ("k",)


def test_groups_of_few_keys_that_lie_apart_are_read_together(tmp_path):
    rows = pa.table({"k": np.arange(200), "v": np.arange(200)})
    write_rows(tmp_path / "s", rows, "k", n=64)
    shuffle = open_shuffle(tmp_path / "s")
    few = shuffle.where(shuffle.bound_keys({"k": [3, 40, 77, 120, 199]}))
    candidates = few.candidates()
    assert max(np.diff(candidates)) > 1
    (block,) = grouped_blocks(few, ["k"], ["k", "v"], candidates)
    assert sorted(block.batch["v"].to_pylist()) == [3, 40, 77, 120, 199]
    # One that is not asked for has rows of its own.
    (block, *others) = grouped_blocks(few, ["k"], ["k", "v"], [candidates[0], candidates[-1]])
    assert block.batch.num_rows + sum(each.batch.num_rows for each in others) < 5


def test_given_keys_that_have_most_rows_of_their_subpartitions_are_whole_groups(tmp_path):
    num_rows = 20_000
    keys = np.repeat(np.arange(40), 500)
    table = pa.table({"k": keys, "t": ["x" * 20] * num_rows, "v": np.arange(num_rows)})
    write_shuffle(table, tmp_path / "s", keys="k", num_subpartitions=64, options=FAST)
    whole = open_shuffle(tmp_path / "s")
    given = whole.where(whole.bound_keys({"k": np.arange(30)}))
    stored, left = (to_numpy(one.read_bytes).sum() for one in (whole, given))
    assert left < stored / 8, "each is taken to have few rows"
    found = [
        (block.batch["k"][start].as_py(), stop - start)
        for block in grouped_blocks(given, ["k"], ["k", "t", "v"], group_bytes=100_000)
        for start, stop in pairwise(block.starts.tolist())
    ]
    assert sorted(found) == [(key, 500) for key in range(30)]
