"""Groups of subpartitions for tasks: whole, in order, balanced; and their memory."""

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import arrow_shuffle
from arrow_format.errors import OptionError
from arrow_format.operators.task_plan import balanced_groups
from arrow_shuffle import ReadOptions
from tests.support.operations import written
from tests.support.session_in_process import SessionInProcess


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


def test_what_a_task_reads_shares_its_memory(tmp_path):
    options = ReadOptions(memory_bytes=400 << 20)
    written(tmp_path / "s", pa.table({"k": [1]}), "k")
    rows = arrow_shuffle.open_shuffle(tmp_path / "s", options=options)
    frame = rows.join(rows.select("k")).to_spark(SessionInProcess())
    opened = pickle.loads(pickle.dumps(frame.task)).results.work.work.args[:2]
    assert [each.options for each in opened] == [options.shared_by(2)] * 2
    assert sum(each.options.working_set_bytes for each in opened) <= options.working_set_bytes
    few = arrow_shuffle.open_shuffle(tmp_path / "s", options=ReadOptions())
    many = few.map_subpartitions(print, "k bigint", others=[few] * 14)
    with pytest.raises(OptionError, match=r"15 shuffles that one task reads need .* 272 MiB"):
        many.to_spark(SessionInProcess())


@pytest.mark.parametrize("other", [5, [5], None, "s"])
def test_what_are_no_rows(tmp_path, other):
    rows = written(tmp_path / "s", pa.table({"k": [1]}), "k")
    with pytest.raises(OptionError, match=r"others? is \w+: expected a shuffle that is open, or"):
        rows.map_subpartitions(print, "k bigint", others=other)
    with pytest.raises(OptionError, match=r"other is \w+: expected a shuffle that is open, or"):
        rows.join(other)
