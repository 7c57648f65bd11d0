"""CONFORMANCE, group "Chunks and compression": what reading one subpartition of 20,000 costs."""

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import HashPartitioner, WriteOptions, merge_shuffle, open_shuffle
from arrow_format.log.commit_log import CommitLog
from arrow_format.read.shuffle import Shuffle
from tests.support.recording_storage import RecordingStorage
from tests.support.small_shuffles import write_tasks

N = 20_000
NUM_TASKS = 50
WANTED = 4_711


def write(path, rows_per_task):
    options = WriteOptions(sync=False, chunk_bytes=16 << 10, sort_buffer_bytes=128 << 20)
    random, tasks = np.random.default_rng(0), []
    for task in range(NUM_TASKS):
        k = np.arange(task * rows_per_task, (task + 1) * rows_per_task)
        tasks.append([pa.record_batch({"k": k, "v": random.integers(0, 1 << 60, len(k))})])
    write_tasks(path, tasks, N, partitioner=HashPartitioner(["k"]), options=options)


def opened(path):
    storage = RecordingStorage(str(path))
    return storage, Shuffle(storage, CommitLog(storage).snapshot())


@pytest.fixture(scope="module", params=[4_000, 40_000], ids=["small", "ten times as large"])
def path(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("points") / "s"
    write(path, request.param)
    return path


def test_one_subpartition_reads_one_or_two_chunks_of_each_map_output(path):
    storage, shuffle = opened(path)
    before = len(storage.others)
    rows = shuffle.subpartition(WANTED).read_all()
    assert rows.num_rows == shuffle.subpartition_rows[WANTED].as_py() > 0
    assert len(storage.others) - before <= NUM_TASKS + 1  # indexes, and once the totals
    assert len(storage.rounds) <= NUM_TASKS
    chunk_bytes = sum(length for _, length in storage.ranges)
    assert chunk_bytes <= NUM_TASKS * 2 * (16 << 10)
    assert storage.most_open <= 10


def test_the_reads_are_those_of_the_plan(path):
    storage, shuffle = opened(path)
    plan = shuffle.plan([WANTED, WANTED + 1, 12])
    assert storage.rounds == []
    shuffle.read([WANTED, WANTED + 1, 12]).read_all()
    found = sorted(
        (f"{shuffle.path}/{where}", offset, length)
        for where, ranges in storage.rounds
        for offset, length in ranges
    )
    expected = sorted(
        (file.path, *place)
        for group in plan.groups
        for file in group.files
        for read in file.reads
        for place in read.ranges
    )
    assert found == expected
    assert [(group.first, group.end) for group in plan.groups] == [(12, 13), (WANTED, WANTED + 2)]
    assert plan.num_bytes == sum(length for _, length in storage.ranges)


def test_indexes_are_read_once(path):
    storage, shuffle = opened(path)
    shuffle.subpartition(WANTED).read_all()
    seen = len(storage.others)
    for one in (WANTED, 7, 19_999):
        assert shuffle.subpartition(one).read_all().num_rows
    assert len(storage.others) == seen


def test_a_merge_makes_it_one_file(tmp_path):
    write(tmp_path / "s", 4_000)
    merge_shuffle(tmp_path / "s", by="map_output")
    storage, shuffle = opened(tmp_path / "s")
    expected = open_shuffle(tmp_path / "s", version=1).subpartition(WANTED).read_all()
    assert shuffle.subpartition(WANTED).read_all().equals(expected)
    assert len({where for where, _ in storage.rounds}) == 1
