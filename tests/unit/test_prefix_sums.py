"""Sums that are held for some positions only, against sums that are all held."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.format.regions import PrefixSums


@given(
    length=st.integers(0, 600) | st.sampled_from([255, 256, 257, 512, 513]),
    most=st.sampled_from([0, 1, 5, 255, 256, 70_000, (1 << 32) - 1]),
    seed=st.integers(0, 9),
)
def test_sums_and_positions_are_those_of_all_sums(length, most, seed):
    values = np.random.default_rng(seed).integers(0, most, length, endpoint=True)
    sums = PrefixSums.of(values)
    expected = np.cumsum([0, *values])
    assert len(sums) == length
    assert sums.total == expected[-1]
    assert [sums.before(i) for i in range(length + 1)] == expected.tolist()
    assert np.array_equal(sums.between(length // 3, length), expected[length // 3 :])
    places = np.arange(0, length + 1, 1 + seed * 40)
    assert sums.before_each(places).tolist() == expected[places].tolist()
    if values.min(initial=1):
        totals = np.concatenate([expected[places] - 1, expected[places], expected[places] + 1])
        reaching = np.searchsorted(expected[1:], totals)
        assert sums.reaching(totals).tolist() == reaching.tolist()
    for total in {*expected[::40].tolist(), *(expected[1::50] - 1).tolist(), sums.total + 1}:
        if total >= 0:
            assert sums.position(total) == np.searchsorted(expected, total, "right") - 1


@pytest.mark.parametrize(("most", "width"), [(0, 1), (255, 1), (256, 2), (1 << 16, 4)])
def test_numbers_take_the_fewest_bytes(most, width):
    assert PrefixSums.of(np.array([1, most, 0])).values.itemsize == width
