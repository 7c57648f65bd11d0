"""Which map outputs a collection keeps: each once, by work that is linear in what is pending."""

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import tag_shuffle
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import run_map_task
from arrow_format.jobs.live_outputs import live_outputs
from arrow_format.jobs.rollback import rollback_shuffle
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.outputs import MapOutputs
from arrow_format.model import Transaction
from arrow_format.storage.open import open_storage
from tests.support.small_shuffles import begin

SCHEMA = pa.schema({"k": pa.int64()})


def commit(path, number, num_tasks=1, *, pending=False):
    job = begin(path, SCHEMA, 2, HashPartitioner("k"))
    rows = pa.record_batch({"k": np.arange(2)}, schema=SCHEMA)
    statuses = [run_map_task(job, task, 0, [rows]) for task in range(num_tasks)]
    transaction = Transaction("query", number) if pending else None
    commit_job(job, statuses, mode="append", transaction=transaction, pending=pending)
    return [f"{job.job_id}/{task}" for task in range(num_tasks)]


def kept(path, oldest):
    log = CommitLog(open_storage(str(path)))
    return log.read(lambda view: live_outputs(log, view, oldest))


def test_each_is_there_once_however_many_name_it(tmp_path):
    first = commit(tmp_path, 0, 3)
    tag_shuffle(tmp_path, "first", 1)
    second = commit(tmp_path, 1, 2)
    tag_shuffle(tmp_path, "second", 3)
    rollback_shuffle(tmp_path, 1)
    waiting = commit(tmp_path, 2, pending=True)
    names = kept(tmp_path, 3).keys.to_pylist()
    assert len(names) == len(set(names))
    assert set(names) == {*first, *second, *waiting}


@pytest.mark.slow
@pytest.mark.parametrize("num_pending", [10, 40])
def test_the_work_follows_what_is_pending_and_not_its_square(tmp_path, monkeypatch, num_pending):
    commit(tmp_path, 0, 50)
    for number in range(num_pending):
        commit(tmp_path, 1 + number, pending=True)
    joined = []
    real = MapOutputs.concat

    def concat(parts):
        joined.extend(map(len, parts))
        return real(parts)

    monkeypatch.setattr(MapOutputs, "concat", staticmethod(concat))
    assert len(kept(tmp_path, 1)) == 50 + num_pending
    assert sum(joined) <= 2 * (50 + num_pending)
