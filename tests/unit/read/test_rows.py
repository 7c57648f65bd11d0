"""Runs of rows: put in order as a stable sort would, and joined into batches worth handing on."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.format.extents import GONE, Extents
from arrow_format.read.rows import SLICE_ROWS, HeldRuns, InChunks, Rows, in_subpartition_order
from tests.support.tables import flags, stored_rows, tables

N = 7
WAYS = pytest.mark.parametrize("slice_rows", [0, SLICE_ROWS], ids=["slices", "gathered"])


def ids_of_a_run(draw, num_rows):
    """Subpartitions of a run: ascending from a rotation on, all the same, or any."""
    ids = draw(st.lists(st.integers(0, N - 1), min_size=num_rows, max_size=num_rows))
    shape = draw(st.sampled_from(["rotated", "same", "any"]))
    if shape == "rotated":
        first = draw(st.integers(0, N - 1))
        ids.sort(key=lambda one: (one - first) % N)
    elif shape == "same":
        ids = ids[:1] * num_rows
    return np.array(ids, np.int32)


@st.composite
def runs_of_rows(draw):
    """All rows as one batch, and cut into runs: some empty, some of one row."""
    table = draw(tables())
    rows = stored_rows(table)
    if draw(st.integers(0, 9)) == 0:
        rows = rows.select([])
    cuts = sorted(draw(st.lists(st.integers(0, rows.num_rows), max_size=8)))
    runs = [
        Rows(rows.slice(start, end - start), where(draw, ids_of_a_run(draw, end - start)))
        for start, end in pairwise([0, *cuts, rows.num_rows])
    ]
    return rows, runs


def where(draw, ids):
    """Subpartitions as they are given, or found of the rows of all adjacent runs: some are gone."""
    if draw(st.booleans()):
        return ids
    gone = draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
    return InChunks(np.where(gone, GONE, ids).astype(np.int32), extents_of_rows)


def extents_of_rows(ids):
    """Return the extents of rows in chunks of one row each."""
    return Extents.of_rows(np.array(ids, np.int32))


@pytest.mark.slow
@WAYS
@given(made=runs_of_rows())
def test_order_is_that_of_a_stable_sort(slice_rows, made):
    rows, runs = made
    ids = np.concatenate([replace(run).subpartitions for run in runs])
    order = sorted(np.flatnonzero(ids != GONE).tolist(), key=lambda row: ids[row])
    found = list(in_subpartition_order(runs, slice_rows=slice_rows))
    assert runs == []
    if not order and not found:
        assert len(ids) == np.count_nonzero(ids == GONE) > 0
        return
    assert np.concatenate([one.subpartitions for one in found]).tolist() == ids[order].tolist()
    assert all(one.subpartitions.dtype == np.int32 for one in found)
    assert [len(one.subpartitions) for one in found] == [one.batch.num_rows for one in found]
    batch = pa.concat_batches([one.batch for one in found])
    batch.validate(full=True)
    assert batch.schema.equals(rows.schema)
    values = rows.to_pylist()  # NaN is no equal of itself; by repr it is
    assert repr(batch.to_pylist()) == repr([values[row] for row in order])


@WAYS
def test_a_broadcast_batch_that_is_many_runs(slice_rows):
    batch = pa.record_batch({"a": [1, 2], "s": ["x", None]})
    runs = [Rows(batch, np.full(2, one, np.int32)) for _ in range(2) for one in range(3)]
    (found,) = in_subpartition_order(runs, slice_rows=slice_rows)
    assert found.subpartitions.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert found.batch.column("a").to_pylist() == [1, 2] * 6
    assert found.batch.column("s").to_pylist() == ["x", None] * 6


def test_no_runs_are_no_rows():
    assert list(in_subpartition_order([])) == []


def test_runs_in_order_are_joined_and_one_is_left_as_it_is():
    batch = pa.record_batch({"a": [1, 2, 3]})
    run = Rows(batch, np.array([0, 0, 2], np.int32))
    (found,) = in_subpartition_order([run])
    assert found.batch is batch
    (found,) = in_subpartition_order([run, Rows(batch, np.array([2, 3, 3], np.int32))])
    assert found.batch.column("a").to_pylist() == [1, 2, 3, 1, 2, 3]


@WAYS
def test_the_rows_that_are_put_in_order_do_not_keep_the_runs_alive(slice_rows):
    large = pa.record_batch({"s": [f"{i:08}" for i in range(10_000)]})
    ids = np.array([1] * 5 + [0] * 5, np.int32)
    (found,) = in_subpartition_order([Rows(large.slice(0, 10), ids)], slice_rows=slice_rows)
    assert found.batch.get_total_buffer_size() < 1_000


def test_runs_are_held_while_their_lists_have_few_items(monkeypatch):
    monkeypatch.setattr("arrow_format.read.rows.MAX_ITEMS", 10)
    held = HeldRuns(1 << 20)
    assert held.add(Rows(flags([20]), np.zeros(1, np.int32))), "one run is not joined"
    assert not held.add(Rows(flags([]), np.zeros(0, np.int32)))
    held = HeldRuns(1 << 20)
    assert held.add(Rows(flags([3, 4]), np.zeros(2, np.int32)))
    assert held.add(Rows(flags([3]), np.zeros(1, np.int32)))
    assert not held.add(Rows(flags([1]), np.zeros(1, np.int32)))


def test_runs_are_held_up_to_so_many_bytes():
    batch = pa.record_batch({"a": pa.array(range(100), pa.int64())})
    ids = np.zeros(100, np.int32)
    held = HeldRuns(2 * 16 * 100)
    assert held.add(Rows(batch, ids))
    assert held.add(Rows(batch, ids))
    assert not held.add(Rows(batch, ids))
    tenth = Rows(batch.slice(0, 10), ids[:10])
    held = HeldRuns(10 * 16 * 10)
    assert all(held.add(tenth) for _ in range(10)), "a slice counts what it shows"
    assert not held.add(tenth)


def test_runs_without_rows_are_put_in_order_too():
    none = pa.record_batch({"i": pa.array([], pa.int64())})
    runs = [Rows(none, Extents.all_of(subpartition, 0)) for subpartition in (0, 1, 0, 1)]
    (found,) = in_subpartition_order(runs)
    assert (found.batch.num_rows, len(found.subpartitions)) == (0, 0)
