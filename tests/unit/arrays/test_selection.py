"""Rows by number and by mask, of arrays that begin behind the first value of their memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.arrays.selection import keep, take, take_runs, without_slices

GRID = pa.list_(pa.list_(pa.int32(), 1), 2)
GRIDS = pa.array([[[i], [-i]] for i in range(60)], GRID)
OFFSETS = pa.array([0, 2, 2, 5, 9], pa.int32())

SLICES = {
    "a slice": GRIDS.slice(2, 4),
    "slices inside": pa.FixedSizeListArray.from_arrays(GRIDS.values.slice(4, 8), 2),
    "inside a struct": pa.StructArray.from_arrays([GRIDS.slice(2, 4)], ["a"]),
    "inside a list": pa.ListArray.from_arrays(OFFSETS, GRIDS.slice(2, 9)),
    "inside a map": pa.MapArray.from_arrays(OFFSETS, pa.array(range(9)), GRIDS.slice(2, 9)),
    "structs inside a list": pa.ListArray.from_arrays(
        OFFSETS, pa.StructArray.from_arrays([GRIDS.slice(2, 9)], ["a"])
    ),
    "three deep": pa.FixedSizeListArray.from_arrays(GRIDS.slice(2, 8), 2),
}


@pytest.mark.parametrize("array", SLICES.values(), ids=SLICES)
def test_a_slice_gives_its_own_rows(array):
    rows = array.to_pylist()
    batch = pa.record_batch({"a": array, "b": range(4)})
    for values in (array, batch, pa.Table.from_batches([batch])):
        taken = take(values, pa.array([3, 0, None]))
        kept = keep(values, pa.array([False, True, True, False]))
        assert type(taken) is type(kept) is type(values)
        if values is not array:
            assert taken.schema == kept.schema == values.schema
            taken, kept = (one.to_pylist() for one in (taken["a"], kept["a"]))
        else:
            taken, kept = taken.to_pylist(), kept.to_pylist()
        assert taken == [rows[3], rows[0], None]
        assert kept == rows[1:3]


@st.composite
def arrays(draw, num_rows, depth=3):
    """Fixed-size lists, lists, maps and structs in each other, each of them a slice."""
    skipped = draw(st.sampled_from([0, 1, 3]))
    total = skipped + num_rows + draw(st.sampled_from([0, 2]))
    kind = draw(st.sampled_from(["fixed", "fixed", "list", "map", "struct"])) if depth else "flat"
    if kind == "flat":
        type_ = draw(st.sampled_from([pa.int32(), pa.bool_(), pa.string(), pa.decimal128(19)]))
        array = pa.array(range(total)).cast(type_)
    elif kind == "fixed":
        size = draw(st.sampled_from([1, 2]))
        array = pa.FixedSizeListArray.from_arrays(draw(arrays(total * size, depth - 1)), size)
    elif kind == "struct":
        array = pa.StructArray.from_arrays([draw(arrays(total, depth - 1))], ["a"])
    else:
        offsets = pa.array([(i * 3 + 1) // 2 for i in range(total + 1)], pa.int32())
        inside = offsets[-1].as_py()
        values = draw(arrays(inside, depth - 1))
        array = (
            pa.ListArray.from_arrays(offsets, values)
            if kind == "list"
            else pa.MapArray.from_arrays(offsets, pa.array(range(inside)), values)
        )
    return array.slice(skipped, num_rows)


@given(arrays(5), st.lists(st.integers(0, 4)), st.lists(st.booleans(), min_size=5, max_size=5))
def test_any_slice_of_any_nesting(array, indices, mask):
    rows = array.to_pylist()
    taken = take(array, pa.array(indices, pa.int32()), boundscheck=False)
    assert taken.to_pylist() == [rows[i] for i in indices]
    kept = keep(array, pa.array(mask))
    assert kept.to_pylist() == [row for row, is_kept in zip(rows, mask, strict=True) if is_kept]
    again = without_slices(array)
    assert without_slices(again) is again, "one copy is enough"


def test_what_arrow_takes_rightly_is_not_copied():
    batch = pa.record_batch({"a": range(9), "b": pa.array([[i, i] for i in range(9)])}).slice(2)
    assert without_slices(batch) is batch
    whole = pa.record_batch({"g": GRIDS, "a": range(60)})
    assert without_slices(whole)["g"].buffers()[-1].address == GRIDS.buffers()[-1].address


def test_an_index_that_leads_out_is_seen():
    with pytest.raises(pa.ArrowIndexError):
        take(pa.array([1, 2]), pa.array([2]))


@pytest.mark.parametrize("columns", [["i", "grid", "s"], []])
@pytest.mark.parametrize("run_rows", [2, 20, 100, 600, 1300])
def test_runs_of_rows_are_what_is_taken_of_them(run_rows, columns):
    rows = np.array([i for i in range(1300) if i % run_rows != 1])
    texts = [None if i % 7 == 0 else str(i) for i in range(1300)]
    batch = pa.record_batch(
        {"i": pa.array(range(1300)), "grid": GRIDS.take(pa.array([3] * 1300)), "s": texts}
    ).select(columns)
    found = take_runs(batch, rows)
    assert found.num_rows == len(rows)
    assert found == take(batch, pa.array(rows))
