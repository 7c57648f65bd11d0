"""How units are spread over map tasks: each once, in order, by bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.ingest.tasks import (
    TASK_BYTES,
    ScanUnit,
    choose_num_tasks,
    join_adjacent,
    most_unit_bytes,
    spread,
)

SIZES = st.lists(st.integers(0, 1 << 50) | st.integers(0, 100), max_size=60)


def units_of(sizes):
    return [ScanUnit(number, size) for number, size in enumerate(sizes)]


@given(SIZES, st.integers(1, 80))
def test_every_unit_once_in_order_and_balanced(sizes, num_tasks):
    units = units_of(sizes)
    runs = spread(units, num_tasks)
    assert [unit for run in runs for unit in run] == units
    assert all(runs)
    assert len(runs) <= num_tasks
    counted = [max(1, size) for size in sizes]
    for run in runs:
        num_bytes = sum(max(1, unit.num_bytes) for unit in run)
        assert num_bytes * num_tasks <= sum(counted) + max(counted) * num_tasks


@given(SIZES, st.integers(1, 80))
def test_units_below_the_limit_give_no_task_more_than_half_again(sizes, num_tasks):
    total = sum(sizes)
    limit = most_unit_bytes(total, num_tasks)
    small = units_of([size for size in sizes if 0 < size <= limit])
    share = sum(unit.num_bytes for unit in small) / num_tasks
    for run in spread(small, num_tasks):
        assert sum(unit.num_bytes for unit in run) <= share + limit
    assert limit == max(1, total // num_tasks // 2)


@given(st.integers(1, 50), st.integers(1, 50))
def test_equal_units_are_dealt_evenly(num_units, num_tasks):
    counts = [len(run) for run in spread(units_of([7] * num_units), num_tasks)]
    assert len(counts) == min(num_units, num_tasks)
    assert max(counts) - min(counts) <= 1


@given(st.integers(0, 1 << 50), st.integers(1, 500))
def test_tasks_are_small_enough_and_keep_all_cores_busy_to_the_end(total, parallelism):
    count = choose_num_tasks(total, parallelism)
    assert count % parallelism == 0
    assert total <= count * TASK_BYTES
    if count > parallelism:
        assert total > (count - parallelism) * TASK_BYTES


def test_adjacent_units_of_a_file_are_one():
    run = (
        ScanUnit(0, 5, 2, 3),
        ScanUnit(0, 6, 3, 4),
        ScanUnit(0, 1, 5, 6),  # row group 4 was left out
        ScanUnit(1, 9),
        ScanUnit(2, 4, 0, 1),
        ScanUnit(2, 4, 1, 2),
    )
    assert join_adjacent(run) == (
        ScanUnit(0, 11, 2, 4),
        ScanUnit(0, 1, 5, 6),
        ScanUnit(1, 9),
        ScanUnit(2, 8, 0, 2),
    )
    assert join_adjacent(()) == ()


@pytest.mark.parametrize("num_tasks", [1, 3])
def test_nothing_to_scan(num_tasks):
    assert spread([], num_tasks) == []
