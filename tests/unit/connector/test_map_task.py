"""Map statuses as rows: what the driver gets of many map tasks."""

from dataclasses import replace

import numpy as np
import pytest

from arrow_format.jobs.commit import commit_job
from connector import map_task
from connector.map_task import status_from_row, status_to_row
from tests.support.memory import figures_of
from tests.support.small_shuffles import N, begin, run, values


def test_totals_of_all_tasks_stay_within_what_the_driver_takes(path, monkeypatch):
    job = begin(path)
    statuses = [run(job, task, [task % N], start=task) for task in range(5)]
    row = status_to_row(statuses[0])
    monkeypatch.setattr(map_task, "MAX_ALL_TOTALS_BYTES", 3 * len(row["totals"]) + 50)
    rows = [status_to_row(status) for status in statuses]
    sent = [row["totals"] is not None for row in rows]
    assert sent == [True, True, True, False, False]
    receipt = commit_job(job, map(status_from_row, rows), expected_map_outputs=5)
    assert receipt.subpartition_rows.to_pylist() == [
        sum(task % N == p for task in range(5)) for p in range(N)
    ]
    assert values(path) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("task", [0, 7])
def test_totals_above_the_bound_of_one_task_are_not_sent(path, task, monkeypatch):
    monkeypatch.setattr(map_task, "MAX_TOTALS_BYTES", 100)
    status = run(begin(path), task, [1])
    assert status_to_row(status)["totals"] is None
    back = status_from_row(status_to_row(status))
    assert replace(back.output, position=None) == replace(status.output, position=None)
    assert back.subpartition_rows is None


DRIVER = """
import sys
import numpy as np
from dataclasses import replace
from arrow_format import ColumnPartitioner
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job
from connector.map_task import status_from_row, status_to_row
from tests.support.memory import forget_peak, resident_bytes
from tests.support.small_shuffles import FAST, SCHEMA, run

path, n, tasks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
job = begin_job(
    path, SCHEMA, num_subpartitions=n, partitioner=ColumnPartitioner("p"), options=FAST
)
rows = [status_to_row(run(job, task, [task, task + 1])) for task in range(tasks)]
before = forget_peak()
receipt = commit_job(job, map(status_from_row, rows))
assert receipt.num_rows == 2 * tasks
print(resident_bytes() - before)
"""


def test_a_commit_keeps_no_totals_of_single_tasks(tmp_path):
    n, tasks = 100_000, 200
    (grown,) = figures_of(DRIVER, tmp_path / "s", n, tasks)
    all_totals = tasks * n * 2 * np.dtype(np.int64).itemsize
    assert all_totals == 320_000_000
    assert grown < 96 << 20
