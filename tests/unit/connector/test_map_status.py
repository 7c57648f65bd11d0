"""Map statuses as rows: what the driver gets of many map tasks."""

from dataclasses import replace

import numpy as np
import pytest

from arrow_format.errors import ShuffleError
from arrow_format.jobs.commit import commit_job
from connector import map_status
from connector.map_status import status_to_row, statuses_from_rows
from tests.support.memory import figures_of
from tests.support.small_shuffles import N, begin, run, values


def test_totals_of_all_tasks_stay_within_what_the_driver_takes(path, monkeypatch):
    job = begin(path)
    statuses = [run(job, task, [task % N], start=task) for task in range(5)]
    row = status_to_row(statuses[0])
    monkeypatch.setattr(map_status, "MAX_ALL_TOTALS_BYTES", 3 * len(row["totals"]) + 50)
    rows = [status_to_row(status) for status in statuses]
    sent = [row["totals"] is not None for row in rows]
    assert sent == [True, True, True, False, False]
    receipt = commit_job(job, statuses_from_rows(rows), expected_map_outputs=5)
    assert receipt.subpartition_rows.to_pylist() == [
        sum(task % N == p for task in range(5)) for p in range(N)
    ]
    assert values(path) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("task", [0, 7])
def test_totals_above_the_bound_of_one_task_are_not_sent(path, task, monkeypatch):
    status = run(begin(path), task, [1])
    bound = len(status_to_row(status)["totals"])
    monkeypatch.setattr(map_status, "MAX_TOTALS_BYTES", bound)
    assert status_to_row(status)["totals"] is not None
    monkeypatch.setattr(map_status, "MAX_TOTALS_BYTES", bound - 1)
    assert status_to_row(status)["totals"] is None
    (back,) = statuses_from_rows([status_to_row(status)])
    assert replace(back.output, position=None) == replace(status.output, position=None)
    assert back.subpartition_rows is None


def test_statuses_are_decoded_in_blocks(path, monkeypatch):
    """Some with totals and some without, in blocks that end anywhere."""
    job = begin(path)
    statuses = [run(job, task, [task % N], start=task) for task in range(9)]
    rows = [status_to_row(one) for one in statuses]
    for task in (0, 4, 8):
        rows[task]["totals"] = None
    for rows_of_block, bytes_of_block in [(1, 1), (2, 1 << 20), (4, 16 * N * 2), (100, 1 << 20)]:
        monkeypatch.setattr(map_status, "DECODED_TOGETHER", rows_of_block)
        monkeypatch.setattr(map_status, "DECODED_BYTES", bytes_of_block)
        found = list(statuses_from_rows(iter(rows)))
        assert [replace(one.output, position=None) for one in statuses] == [
            one.output for one in found
        ]
        for task, (one, back) in enumerate(zip(statuses, found, strict=True)):
            if task in (0, 4, 8):
                assert back.subpartition_rows is None
                assert back.subpartition_bytes is None
            else:
                assert one.subpartition_rows.tolist() == back.subpartition_rows.tolist()
                assert one.subpartition_bytes.tolist() == back.subpartition_bytes.tolist()


@pytest.mark.parametrize(
    "changes",
    [
        {"map_output": b""},
        {"map_output": b"x" * 100},
        {"map_output": None},
        {"totals": b"x" * 100},
        {"totals": "own"},
        {"map_output": "cut"},
        {"map_output": "doubled"},
    ],
)
def test_rows_that_are_no_statuses(path, changes):
    job = begin(path)
    rows = [status_to_row(run(job, task, [1])) for task in range(3)]
    own = rows[1]["map_output"]
    made = {"own": own, "cut": own[:-9], "doubled": own + own}
    rows[1] |= {name: made.get(value, value) for name, value in changes.items()}
    with pytest.raises(ShuffleError, match="not a map status of ShuffleMapTask"):
        list(statuses_from_rows(rows))
    del rows[0]["map_output"]
    with pytest.raises(ShuffleError, match="KeyError: 'map_output'"):
        list(statuses_from_rows(rows))


DRIVER = """
import sys
import connector
import arrow_shuffle
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
task = NumberedMapTask([job], lambda number: [numbered([number, number + 1])])
before = forget_peak()
receipt = write_and_commit(task, spark.range(0, tasks, 1, tasks), "errorifexists")
assert receipt.num_rows == 2 * tasks
print(resident_bytes() - before)
before = forget_peak()
few = MergePolicy(rewrite="never", max_index_bytes=8_000)
shuffle = arrow_shuffle.open_shuffle(path)
report = shuffle.merge(spark=spark, by="map_output", policy=few, options=FAST)
assert tasks // 10 < report.num_map_outputs[1] < tasks
print(resident_bytes() - before)
"""


@pytest.mark.slow
def test_neither_a_write_nor_a_merge_keeps_totals_of_single_tasks(tmp_path):
    n, tasks = 100_000, 200
    of_write, of_merge = figures_of(DRIVER, tmp_path / "s", n, tasks)
    all_totals = tasks * n * 2 * np.dtype(np.int64).itemsize
    assert all_totals == 320_000_000
    assert of_write < 128 << 20
    assert of_merge < 128 << 20
