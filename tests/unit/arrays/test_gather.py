"""Gathering equals Arrow's ``take`` for every type, and for texts of one length."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import arrow_format.arrays.gather as gathering
from arrow_format.arrays.gather import gather
from arrow_format.arrays.stored_types import data_schema, normalise
from tests.support.tables import tables


@pytest.mark.slow
@pytest.mark.parametrize("slice_items", [gathering.SLICE_ITEMS, 2])
@given(st.data())
def test_any_column_in_any_order(slice_items, data):
    table = data.draw(tables())
    schema = data_schema(table.schema)
    for batch in table.to_batches():
        for column in normalise(batch, schema).columns:
            places = st.integers(0, max(len(column) - 1, 0))
            order = data.draw(st.lists(places, max_size=50)) if len(column) else []
            indices = pa.array(order, pa.uint32())
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(gathering, "SLICE_ITEMS", slice_items)
                found = pa.concat_arrays(gather(column, indices))
            found.validate(full=True)
            assert repr(found.to_pylist()) == repr([column[i].as_py() for i in order])


@given(
    st.integers(0, 9).flatmap(
        lambda n: st.lists(st.binary(min_size=n, max_size=n), min_size=1, max_size=40)
    ),
    st.integers(0, 5),
    st.sampled_from([pa.binary(), pa.string()]),
    st.randoms(),
)
def test_texts_of_one_length(values, skipped, type_, random):
    if type_ == pa.string():
        values = [value.hex() for value in values]
    column = pa.array([values[0]] * skipped + values, type_).slice(skipped)
    order = list(range(len(values)))
    random.shuffle(order)
    (found,) = gather(column, pa.array(order, pa.uint32()))
    found.validate(full=True)
    assert found.equals(pa.array([values[i] for i in order], type_))


@pytest.mark.parametrize("values", [["ab", "c", "def"], ["ab", None, "cd"], ["a", "", "bc", "d"]])
def test_lengths_that_only_seem_equal(values):
    column = pa.array(values)
    order = np.arange(len(values))[::-1].astype(np.uint32)
    assert gather(column, pa.array(order))[0].to_pylist() == values[::-1]


def test_lists_are_taken_a_few_at_a_time():
    lengths = [1, 3, gathering.SLICE_ITEMS + 1, gathering.SLICE_ITEMS - 1, 0, 1]
    offsets = pa.array(np.append(0, np.cumsum(lengths)), pa.int32())
    column = pa.ListArray.from_arrays(offsets, pa.nulls(sum(lengths)))
    order = [5, 2, 1, 0, 3, 4]
    pieces = gather(column, pa.array(order, pa.uint32()))
    assert [len(piece) for piece in pieces] == [1, 1, 2, 2]
    found = pc.list_value_length(pa.concat_arrays(pieces)).to_pylist()
    assert found == [lengths[i] for i in order]
