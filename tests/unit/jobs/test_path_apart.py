"""A host that does not see the path that the driver sees: one directory, moved away."""

import pickle
import socket
from dataclasses import replace

import pyarrow as pa
import pytest

from arrow_format import (
    HashPartitioner,
    ShuffleNotFoundError,
    StorageError,
    open_shuffle,
)
from arrow_format.jobs.job import run_map_task
from arrow_format.jobs.target import open_target
from tests.support.small_shuffles import begin, write_rows

ROWS = pa.table({"k": range(10)})
REMEDY = "Use a directory that is mounted at the same path on every host, or an object store"


def test_a_task_that_does_not_see_the_job_says_so(tmp_path):
    job = begin(tmp_path / "s", ROWS.schema, 2, HashPartitioner("k"))
    open_target(job, "append")
    (tmp_path / "s").rename(tmp_path / "elsewhere")
    with pytest.raises(StorageError) as raised:
        run_map_task(replace(job, has_directory=True), 0, 0, ROWS.to_batches())
    assert f"{tmp_path}/s/{job.directory}: the driver made" in str(raised.value)
    assert f"it is not there on {socket.gethostname()}. {REMEDY}" in str(raised.value)


def test_a_read_that_does_not_see_the_shuffle_says_so(tmp_path):
    path = tmp_path / "s"
    write_rows(path, ROWS, "k", n=2)
    sent = pickle.dumps(open_shuffle(path))
    path.rename(tmp_path / "elsewhere")
    path.mkdir()
    with pytest.raises(ShuffleNotFoundError) as raised:
        pickle.loads(sent).read().read_all()
    where = f"{path}: version 1 is not there; there are none, on {socket.gethostname()}, and there"
    assert str(raised.value).startswith(where)
    assert REMEDY in str(raised.value)
