"""Groups of subpartitions for tasks: whole, in order, balanced; and their memory."""

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format import OptionError, ReadOptions, write_shuffle
from arrow_format.operators.inputs import open_shuffles
from arrow_format.operators.tasks import balanced_groups


@given(
    st.lists(st.integers(1, 1 << 40), min_size=1, max_size=60), st.integers(1, 1 << 42), st.data()
)
def test_every_subpartition_is_in_one_group(weights, most, data):
    numbers = st.lists(st.integers(0, len(weights) - 1), min_size=1, unique=True).map(sorted)
    wanted = data.draw(numbers)
    array = np.array(weights, np.int64)
    groups = balanced_groups(array, most, np.array(wanted))
    found = [[number for first, end in group for number in range(first, end)] for group in groups]
    assert [number for group in found for number in group] == wanted
    assert all(found)
    for group in found:
        # Half of the first and half of the last may stand over.
        ends = (weights[group[0]] + weights[group[-1]]) / 2
        assert (
            sum(weights[number] for number in group) <= (most + ends) * (1 + 1e-9)
            or len(group) == 1
        )
    assert len(groups) <= -(-sum(weights[number] for number in wanted) // most)


def test_equal_subpartitions_make_equal_groups():
    groups = balanced_groups(np.full(1_000, 10), 1_300, np.arange(1_000))
    assert [end - first for ((first, end),) in groups] == [125] * 8


def test_ranges_of_a_group_are_as_long_as_they_can_be():
    wanted = np.array([0, 1, 5, 6, 9])
    assert balanced_groups(np.ones(10, np.int64), 100, wanted) == (((0, 2), (5, 7), (9, 10)),)


def test_shuffles_of_a_task_share_its_memory(tmp_path):
    for name in "ab":
        write_shuffle(pa.table({"k": [1]}), tmp_path / name, num_subpartitions=2, keys="k")
    paths = [tmp_path / "a", tmp_path / "b"]
    options = ReadOptions(memory_bytes=400 << 20)
    opened = open_shuffles(paths, None, options)
    assert [shuffle.options for shuffle in opened] == [options.shared_by(2)] * 2
    assert sum(shuffle.options.working_set_bytes for shuffle in opened) <= options.working_set_bytes
    with pytest.raises(OptionError, match=r"15 shuffles that one task reads need .* 272 MiB"):
        open_shuffles([tmp_path / "a"] * 15, None, None)
    assert pickle.loads(pickle.dumps(opened[0])).options == opened[0].options
    assert open_shuffles(paths[0], None, None)[0].options == ReadOptions()


@pytest.mark.parametrize("shuffles", [5, [5], None])
def test_what_is_no_path(shuffles):
    with pytest.raises(OptionError, match=r"shuffle .*: expected the path or URI"):
        open_shuffles(shuffles, None, None)
