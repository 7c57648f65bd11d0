"""Groups of subpartitions for tasks: whole, in order, balanced."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from connector.subpartition_tasks import balanced_groups


@given(
    st.lists(st.integers(1, 1 << 40), min_size=1, max_size=60), st.integers(1, 1 << 42), st.data()
)
def test_every_subpartition_is_in_one_group(weights, most, data):
    numbers = st.lists(st.integers(0, len(weights) - 1), min_size=1, unique=True).map(sorted)
    wanted = data.draw(numbers)
    array = np.array(weights, np.int64)
    groups = balanced_groups(array, most, np.array(wanted))
    found = [[one for first, end in group for one in range(first, end)] for group in groups]
    assert [one for group in found for one in group] == wanted
    assert all(found)
    for group in found:
        # Half of the first and half of the last may stand over.
        ends = (weights[group[0]] + weights[group[-1]]) / 2
        assert sum(weights[one] for one in group) <= (most + ends) * (1 + 1e-9) or len(group) == 1
    assert len(groups) <= -(-sum(weights[one] for one in wanted) // most)


def test_equal_subpartitions_make_equal_groups():
    groups = balanced_groups(np.full(1_000, 10), 1_300, np.arange(1_000))
    assert [end - first for ((first, end),) in groups] == [125] * 8


def test_ranges_of_a_group_are_as_long_as_they_can_be():
    wanted = np.array([0, 1, 5, 6, 9])
    assert balanced_groups(np.ones(10, np.int64), 100, wanted) == (((0, 2), (5, 7), (9, 10)),)
