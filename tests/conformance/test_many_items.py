"""CONFORMANCE, group "Chunks and compression": lists with more values than an array counts.

In few bytes, so that no byte limit is reached before: every reader joins fewer rows.

The offsets of a list reach 2**31 - 1. Nulls take no bytes, and booleans a bit.
"""

from __future__ import annotations

import shutil

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import MergePolicy, merge_shuffle, open_shuffle
from arrow_format.operators.join import join_range
from arrow_format.operators.join_plan import plan_join
from arrow_format.streaming.latest_spilling import latest_per_key
from tests.support.memory_pool import counted_pool
from tests.support.small_shuffles import write_rows

ROWS, ITEMS = 2_200, 1_000_000
STEP = 50


def table_of(type_):
    """Batches of rows whose lists have 2.2e9 values together."""
    offsets = pa.array(np.arange(0, STEP * ITEMS + 1, ITEMS), pa.int32())
    values = pa.Array.from_buffers(type_, STEP * ITEMS, [None])
    lists = pa.ListArray.from_arrays(offsets, values)
    for start in range(0, ROWS, STEP):
        numbers = np.arange(start, start + STEP)
        columns = {"k": numbers % 7, "v": pa.array(numbers[::-1].copy()), "l": lists}
        yield pa.record_batch(columns)


@pytest.fixture(scope="module", params=[pa.null(), pa.struct([])], ids=str)
def path(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("items")
    for name, sort_by in (("plain", ()), ("sorted", "v")):
        write_rows(directory / name, table_of(request.param), "k", n=2, sort_by=sort_by)
    return directory


@pytest.fixture
def pool():
    with counted_pool() as pool:
        yield pool


def check(batches, num_rows, pool):
    numbers = []
    for batch in batches:
        lengths = np.diff(batch["l"].offsets.to_numpy())
        assert (lengths == ITEMS).all()
        numbers += batch["v"].to_pylist()
    assert len(set(numbers)) == len(numbers) == num_rows
    assert pool.max_memory() < 256 << 20
    return numbers


@pytest.mark.parametrize("name", ["plain", "sorted"])
def test_read(path, name, pool):
    check(open_shuffle(path / name).read(), ROWS, pool)


def test_one_sorted_subpartition(path, pool):
    shuffle = open_shuffle(path / "sorted")
    (largest,) = np.flatnonzero(shuffle.subpartition_rows.to_numpy() > ROWS / 2)
    num_rows = shuffle.subpartition_rows[int(largest)].as_py()
    numbers = check(shuffle.subpartition(int(largest)), num_rows, pool)
    assert numbers == sorted(numbers)


def test_join(path, pool):
    shuffle = open_shuffle(path / "plain")
    plan = plan_join(shuffle, shuffle, on=["k", "v"], right_columns=[])
    check(join_range(shuffle, shuffle, plan), ROWS, pool)


def test_latest_per_key(path, pool):
    check(latest_per_key(open_shuffle(path / "plain").read(), "k"), 7, pool)


@pytest.mark.parametrize("name", ["plain", "sorted"])
def test_merge(path, name, pool, tmp_path):
    shutil.copytree(path / name, tmp_path / "s")
    merge_shuffle(tmp_path / "s", policy=MergePolicy(rewrite="always"), by="map_output")
    merged = open_shuffle(tmp_path / "s")
    assert merged.version == 2
    check(merged.read(), ROWS, pool)
