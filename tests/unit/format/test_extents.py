"""Extents against the subpartition of each row."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.format.extents import GONE, Extents

IDS = st.lists(st.integers(0, 3), max_size=30).map(lambda ids: np.array(ids, np.int32))


@given(IDS)
def test_they_are_the_longest_and_have_each_row(ids):
    extents = Extents.of_rows(ids)
    assert extents.each.tolist() == ids.tolist()
    assert (extents.sizes > 0).all()
    assert (extents.ids[1:] != extents.ids[:-1]).all()


@given(IDS, st.data())
def test_those_left_have_the_rows_at_some_positions(ids, data):
    rows = data.draw(
        st.lists(st.sampled_from(range(len(ids))), unique=True) if len(ids) else st.just([])
    )
    rows = np.array(sorted(rows), np.int64)
    left = Extents.of_rows(ids).left(rows)
    assert left.each.tolist() == ids[rows].tolist()
    assert (left.sizes > 0).all()


@given(IDS, st.data())
def test_those_marked_have_all_rows_but_others_than_the_ones_left_are_gone(ids, data):
    is_left = np.array([data.draw(st.booleans()) for _ in ids], np.bool_)
    marked = Extents.of_rows(ids).marked(is_left)
    assert marked.each.tolist() == np.where(is_left, ids, GONE).tolist()
    assert (marked.sizes > 0).all()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1))
def test_those_without_rows_go(pairs):
    ids, sizes = (np.array(each) for each in zip(*pairs, strict=True))
    extents = Extents.of(ids.astype(np.int32), np.append(3, 3 + sizes.cumsum()))
    assert (extents.sizes > 0).all()
    assert extents.each.tolist() == np.repeat(ids, sizes).tolist()


@given(st.lists(IDS, min_size=1))
def test_joined_they_come_one_behind_the_other(parts):
    joined = Extents.joined([Extents.of_rows(ids) for ids in parts])
    assert joined.each.tolist() == np.concatenate(parts).tolist()


@given(st.integers(0, 9), st.integers(0, 5))
def test_rows_of_one_subpartition_are_one_extent_and_no_rows_none(subpartition, num_rows):
    extents = Extents.all_of(subpartition, num_rows)
    assert extents.each.tolist() == num_rows * [subpartition]
    assert len(extents.sizes) == min(num_rows, 1)
