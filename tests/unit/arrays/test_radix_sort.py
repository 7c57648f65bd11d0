"""`sort_permutation` is a stable lexicographic sort, whatever the widths of the codes are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.arrays.radix_sort import sort_permutation

TYPES = [np.uint8, np.uint16, np.uint32, np.uint64]


@st.composite
def columns_of_codes(draw):
    num_rows = draw(st.integers(0, 50))
    columns = []
    for _ in range(draw(st.integers(1, 5))):
        dtype = draw(st.sampled_from(TYPES))
        most = int(np.iinfo(dtype).max)
        some = st.sampled_from([0, 1, most, most - 1, most // 2]) | st.integers(0, most)
        codes = draw(st.lists(some, min_size=num_rows, max_size=num_rows))
        columns.append(np.array(codes, dtype))
    return columns


@given(columns_of_codes())
def test_it_is_a_stable_lexicographic_sort(columns):
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    expected = sorted(range(len(rows)), key=rows.__getitem__)
    found = sort_permutation(columns)
    assert found.dtype == np.uint32
    assert found.tolist() == expected
    assert sort_permutation(columns[1:], columns[0]).tolist() == expected


@pytest.mark.parametrize("num_rows", [1, 2, 3, 100_000])
def test_full_words_need_several_digits(num_rows):
    random = np.random.default_rng(num_rows)
    wide = [random.integers(0, 1 << 63, num_rows, dtype=np.uint64) * 2 for _ in range(2)]
    wide[0] &= np.uint64(0xFFF0_0000_0000_0FFF)
    flag = random.integers(0, 2, num_rows).astype(np.uint8)
    expected = np.lexsort([wide[1], wide[0], flag])
    assert sort_permutation([flag, *wide]).tolist() == expected.tolist()


def test_the_primary_column_may_be_ids():
    ids = np.array([3, 0, 3, 2], np.int32)
    assert sort_permutation([np.array([9, 5, 1, 7], np.uint8)], ids).tolist() == [1, 3, 2, 0]
    assert sort_permutation([], ids).tolist() == [1, 3, 0, 2]


def test_columns_that_tell_nothing():
    assert sort_permutation([np.full(4, 7, np.uint64)]).tolist() == [0, 1, 2, 3]
    assert sort_permutation([np.broadcast_to(np.uint8(1), 3)]).tolist() == [0, 1, 2]
    assert sort_permutation([]).tolist() == []


def test_codes_are_left_alone():
    codes = np.array([5, 1, 5, 0], np.uint64)
    sort_permutation([codes])
    assert codes.tolist() == [5, 1, 5, 0]
