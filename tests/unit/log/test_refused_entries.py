"""What readers would refuse is not put into the log: it could never be opened again."""

import math
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import OptionError, WriteOptions, collect_garbage, open_shuffle
from arrow_format.errors import ShuffleError
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import run_map_task
from arrow_format.keys.partitioner import ColumnPartitioner
from arrow_format.model import MAX_INTEGER, Transaction
from arrow_format.options import ResultPartitionType
from arrow_format.storage.open import PosixStorage
from tests.support.consumers import ConsumerRegistry
from tests.support.guarantees import guarantee
from tests.support.own_partitioner import OwnPartitioner
from tests.support.small_shuffles import (
    N,
    begin,
    numbered,
    run,
    values,
    write_rows,
    write_tasks,
)


class DescribedLater(ColumnPartitioner):
    """Its description is well at the beginning, and not when it is committed."""

    asked = 0

    def describe(self):
        object.__setattr__(self, "asked", self.asked + 1)
        return {"kind": "mine", "half": 0.5 if self.asked == 1 else math.nan}


NESTED: list = []
for _ in range(100_000):
    NESTED = [NESTED]

DESCRIPTIONS = [
    {"kind": "mine", "x": math.nan},
    {"kind": "mine", "x": [math.inf]},
    {"kind": 5},
    {"kind": ["hash"]},
    {"kind": None},
    {"no": "kind"},
    {"kind": "mine", 1: "a", "1": "b"},
    {"kind": "mine", "x": NESTED},
    {"kind": "mine", "x": object()},
    ["kind"],
    "kind",
    None,
]


def is_usable(path):
    """Whether it can be opened, appended to, collected and overwritten."""
    before = values(path)
    write_tasks(path, [[numbered([0], 1000)]], N, mode="append")
    assert sorted(values(path)) == sorted([*before, 1000])
    collect_garbage(path)
    write_tasks(path, [[numbered([1], 7)]], N, mode="overwrite")
    return values(path) == [7]


@pytest.fixture
def path(tmp_path):
    write_tasks(tmp_path, [[numbered([0, 1])]], N)
    return tmp_path


@guarantee("readable log")
@pytest.mark.parametrize("description", DESCRIPTIONS, ids=range(len(DESCRIPTIONS)))
def test_a_description_that_no_reader_takes(path, description):
    partitioner = OwnPartitioner(lambda batch, n: batch["p"].to_numpy(), description)
    with pytest.raises(OptionError, match=r"partitioner .*describe\(\) must return"):
        write_rows(path, [numbered([0])], partitioner=partitioner, mode="overwrite")
    assert is_usable(path)


@guarantee("readable log")
def test_a_description_that_changes_is_found_at_the_commit(path):
    job = begin(path, partitioner=DescribedLater("p"))
    statuses = [run(job, 0, [1])]
    with pytest.raises(ShuffleError, match=r"was not put, since it is no JSON"):
        commit_job(job, statuses, mode="overwrite")
    assert [one.name for one in (path / "commit_log").glob("*/*.entry")] == [f"{1:020d}.entry"]
    assert is_usable(path)


@pytest.mark.parametrize("place", ["/data/a://b", "/data/\0", "/data/\ud800", "data", 5, ""])
def test_local_directories_that_no_reader_takes(place):
    with pytest.raises(OptionError, match=r"local_dirs=.*expected a tuple of different absolute"):
        WriteOptions(local_dirs=(place,))


@pytest.mark.parametrize(
    ("application_id", "number", "name"),
    [
        ("my query", 3, "application_id"),
        ("", 3, "application_id"),
        ("a" * 101, 3, "application_id"),
        (5, 3, "application_id"),
        ("query", -1, "number"),
        ("query", "7", "number"),
        ("query", True, "number"),
        ("query", 1 << 62, "number"),
    ],
)
def test_transactions_that_no_reader_takes(application_id, number, name):
    with pytest.raises(OptionError, match=f"{name}="):
        Transaction(application_id, number)


def test_a_transaction_of_numpy_is_one(path):
    transaction = Transaction("query", np.int64(3))
    write_tasks(path, [[numbered([1])]], N, mode="append", transaction=transaction)
    assert open_shuffle(path).snapshot.newest.transaction == Transaction("query", 3)


@pytest.mark.parametrize("name", ["map_task", "attempt"])
@pytest.mark.parametrize("value", [-1, 1 << 62, 1.5, "0", None])
def test_attempts_that_no_reader_takes(path, name, value):
    job = begin(path)
    numbers = {"map_task": 0, "attempt": 0, name: value}
    with pytest.raises(OptionError, match=f"{name}="):
        run_map_task(job, batches=[numbered([1])], **numbers)


@guarantee("readable log")
@pytest.mark.parametrize(
    "changes",
    [
        {"counters": {"rows": -1}},
        {"counters": {"rows": 1.5}},
        {"counters": {"rows": "1"}},
        {"counters": {"rows": 1 << 62}},
        {"counters": None},
        {"attempt": -1, "files": ()},
        {"attempt": 1 << 62, "files": ()},
    ],
)
def test_map_statuses_that_no_reader_takes(path, changes):
    job = begin(path)
    status = run(job, 0, [1])
    if "counters" in changes:
        bad = replace(status, **changes)
    else:
        bad = replace(status, output=replace(status.output, **changes))
    with pytest.raises(ShuffleError, match=r"map task 0.*nothing was committed"):
        commit_job(job, [bad], mode="append")
    assert len(list((path / "commit_log").glob("*/*.entry"))) == 1
    assert commit_job(job, [status], mode="append").version == 2
    assert is_usable(path)


def test_a_clock_before_1970_is_one_of_1970(path, monkeypatch):
    job = begin(path / "new")
    status = run(job, 0, [1])
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: -1_000_000_000)
        commit_job(job, [status], mode="append")
    assert open_shuffle(path / "new").snapshot.newest.committed_at_ms == 0
    assert is_usable(path / "new")


def test_bounds_of_numpy_are_numbers(tmp_path):
    options = WriteOptions(
        sync=False,
        result_type=ResultPartitionType.PIPELINED_BOUNDED,
        max_unconsumed_versions=np.int64(4),
        max_unconsumed_bytes=np.int64(1 << 30),
    )
    write_rows(tmp_path / "s", pa.table({"k": [1, 2, 3]}), "k", options=options)
    assert open_shuffle(tmp_path / "s").result.max_unconsumed_versions == 4


def test_totals_that_do_not_add_up_are_not_put(path):
    job = begin(path)
    status = run(job, 0, [1, 1])
    rows = np.zeros(N, np.int64)
    rows[:2] = 3, -1
    bad = replace(status, subpartition_rows=rows)
    with pytest.raises(ShuffleError, match=r"was not put.*below 0"):
        commit_job(job, [bad], mode="append")
    assert is_usable(path)


@pytest.mark.parametrize("version", [-1, 1 << 62, 1.5, "3", None])
def test_progress_that_no_reader_takes(path, version):
    consumers = ConsumerRegistry(PosixStorage(str(path)))
    with pytest.raises(OptionError, match="version="):
        consumers.advance("a", version)
    assert consumers.all_progress() == {}


@pytest.mark.parametrize("name", ["", "a/b", "a b", None])
def test_progress_of_what_is_no_name(path, name):
    with pytest.raises(OptionError, match="consumer="):
        ConsumerRegistry(PosixStorage(str(path))).advance(name, 1)


def test_counters_that_add_up_to_more_than_the_log_takes(path):
    job = begin(path / "new")
    statuses = [replace(run(job, task, [1]), counters={"rows": MAX_INTEGER}) for task in range(2)]
    receipt = commit_job(job, statuses, mode="append")
    assert receipt.counters["rows"] == MAX_INTEGER
    assert is_usable(path / "new")
