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
import connector
from connector.map_task import NumberedMapTask, write_and_commit
from arrow_format import ColumnPartitioner, MergePolicy
from arrow_format.jobs.job import begin_job
from tests.support.memory import forget_peak, resident_bytes
from tests.support.session_in_process import SessionInProcess
from tests.support.small_shuffles import FAST, SCHEMA, numbered

path, n, tasks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
spark = SessionInProcess()
job = begin_job(
    path, SCHEMA, num_subpartitions=n, partitioner=ColumnPartitioner("p"), options=FAST
)
task = NumberedMapTask(job, lambda number: [numbered([number, number + 1])])
before = forget_peak()
receipt = write_and_commit(task, spark.range(0, tasks, 1, tasks), "errorifexists")
assert receipt.num_rows == 2 * tasks
print(resident_bytes() - before)
before = forget_peak()
few = MergePolicy(rewrite="never", max_index_bytes=20_000)
report = connector.merge_shuffle(spark, path, by="map_output", policy=few, options=FAST)
assert tasks // 10 < report.num_map_outputs[1] < tasks
print(resident_bytes() - before)
"""


def test_neither_a_write_nor_a_merge_keeps_totals_of_single_tasks(tmp_path):
    n, tasks = 100_000, 400
    of_write, of_merge = figures_of(DRIVER, tmp_path / "s", n, tasks)
    all_totals = tasks * n * 2 * np.dtype(np.int64).itemsize
    assert all_totals == 640_000_000
    assert of_write < 128 << 20
    assert of_merge < 128 << 20
