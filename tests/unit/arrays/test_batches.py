"""Batches are joined and cut in their order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import arrow_format.arrays.batches as batching_module
from arrow_format.arrays.batches import copied, rebatched
from tests.support.tables import flags


def test_a_copy_keeps_nothing_else_alive():
    batch = pa.record_batch({"a": range(10_000), "s": [f"{i}" for i in range(10_000)]})
    part = batch.slice(10, 5)
    assert copied(part).equals(part)
    assert copied(part).get_total_buffer_size() < 200 < part.get_total_buffer_size()
    assert copied(part.select([])).num_rows == 5


@given(
    sizes=st.lists(st.integers(0, 30), max_size=20),
    min_rows=st.integers(1, 40),
    max_bytes=st.integers(1, 400),
)
def test_batches_are_joined_and_cut_in_their_order(sizes, min_rows, max_bytes):
    ends = np.cumsum([0, *sizes])
    whole = pa.record_batch({"v": np.arange(ends[-1])})
    batches = [whole.slice(s, e - s) for s, e in pairwise(ends)]
    found = list(rebatched(batches, min_rows=min_rows, max_bytes=max_bytes))
    assert [v for batch in found for v in batch.column("v").to_pylist()] == list(range(ends[-1]))
    assert all(batch.num_rows for batch in found)
    assert all(batch.nbytes < 2 * max_bytes or batch.num_rows == 1 for batch in found)


def test_small_batches_are_joined_until_there_are_rows_or_bytes_enough():
    ones = [pa.record_batch({"v": [i]}) for i in range(10)]
    found = rebatched(ones, min_rows=4, max_bytes=1 << 20)
    assert [batch.num_rows for batch in found] == [4, 4, 2]
    found = rebatched(ones, min_rows=100, max_bytes=24)
    assert [batch.num_rows for batch in found] == [3, 3, 3, 1]


def test_slices_count_with_their_rows_not_with_the_buffers_they_lie_in():
    large = pa.record_batch({"v": range(1_000)})
    found = rebatched([large.slice(i, 1) for i in range(100)], min_rows=1_000, max_bytes=8_000)
    assert [batch.num_rows for batch in found] == [100]


@given(st.lists(st.lists(st.integers(0, 12), max_size=4), max_size=8), st.integers(1, 9))
def test_batches_are_joined_while_their_lists_have_few_items(lengths, min_rows):
    batches = [flags(one) for one in lengths]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching_module, "MAX_ITEMS", 10)
        joined = list(rebatched(batches, min_rows=min_rows, max_bytes=1 << 20))
    counts = [sum(map(len, batch["l"].to_pylist())) for batch in joined]
    largest = max((sum(one) for one in lengths), default=0)
    assert all(count <= max(10, largest) for count in counts)
    rows = [row for batch in joined for row in batch["l"].to_pylist()]
    assert rows == [[True] * n for one in lengths for n in one]
