"""Gathering equals Arrow's ``take`` for every type, and for texts of one length."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.arrow_types import data_schema, normalise
from arrow_format.gather import gather
from tests.property.tables import tables


@given(st.data())
def test_any_column_in_any_order(data):
    table = data.draw(tables())
    schema = data_schema(table.schema)
    for batch in table.to_batches():
        for column in normalise(batch, schema).columns:
            places = st.integers(0, max(len(column) - 1, 0))
            order = data.draw(st.lists(places, max_size=50)) if len(column) else []
            indices = pa.array(order, pa.uint32())
            found = gather(column, indices)
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
    found = gather(column, pa.array(order, pa.uint32()))
    found.validate(full=True)
    assert found.equals(pa.array([values[i] for i in order], type_))


@pytest.mark.parametrize("values", [["ab", "c", "def"], ["ab", None, "cd"], ["a", "", "bc", "d"]])
def test_lengths_that_only_seem_equal(values):
    column = pa.array(values)
    order = np.arange(len(values))[::-1].astype(np.uint32)
    assert gather(column, pa.array(order)).to_pylist() == values[::-1]
