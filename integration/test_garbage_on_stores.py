"""Garbage collection in an object store: what goes, what stays, and that no object is left over.

The same promises as on a disk (``tests/unit/jobs/test_garbage.py``), against servers that speak the
protocols of S3 and, where azurite is there, of Azure.
"""

from __future__ import annotations

import random
import signal
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from arrow_format import (
    CommitConflictError,
    CorruptShuffleError,
    MergePolicy,
    ShuffleNotFoundError,
    StorageError,
    WriteOptions,
    merge_shuffle,
)
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.jobs.target import open_target
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.storage.object_store import ObjectStorage
from tests.support.exhaustive import exhaustive
from tests.support.guarantees import guarantee
from tests.support.stored_shuffle import N, StoredShuffle

if TYPE_CHECKING:
    from arrow_format.jobs.gc_files import GcReport
    from tests.support.s3_server import S3Server


pytestmark = exhaustive(but="place")


@pytest.fixture(params=["s3", "azure", "gs", "seaweedfs"])
def place(request) -> StoredShuffle:
    return StoredShuffle.at(request.getfixturevalue(request.param))


# Versions -----------------------------------------------------------------------------------------


@guarantee("store collections")
def test_what_was_superseded_goes_and_the_newest_stays(place):
    for start in (0, 100, 200):
        place.write(start, mode="overwrite")
    pinned = place.open(2)
    place.write(300)
    merge_shuffle(place.path, by="map_output", policy=MergePolicy(rewrite="always"), **place.given)
    before = place.files()
    report = place.collect()
    assert report.expired_versions == (1, 2, 3, 4)
    assert (report.oldest_version, report.newest_version) == (5, 5)
    assert place.values() == [*range(200, 210), *range(300, 310)]
    place.check_no_orphan()
    gone = {path: size for path, size in before.items() if path not in place.files()}
    assert {file.path: file.num_bytes for file in report.files} == {
        f"{place.path}/{path}": size for path, size in gone.items()
    }
    for use in (lambda: place.open(2), lambda: pinned.read().read_all()):
        with pytest.raises(ShuffleNotFoundError, match="version 2 has expired and was removed"):
            use()
    assert place.collect().num_files == 0
    assert place.write(400) == 7, "the expiry took a number"
    assert place.collect().expired_versions == (5,)
    assert place.values() == [*range(200, 210), *range(300, 310), *range(400, 410)]
    place.check_no_orphan()


def test_within_the_retention_everything_stays(place):
    for start in (0, 100):
        place.write(start, mode="overwrite")
    job, statuses = place.start_job()
    before = place.files()
    report = place.collect(timedelta(minutes=5))
    assert (report.num_files, report.expired_versions, report.fenced_jobs) == (0, (), ())
    assert report.running_jobs == (job.job_id,)
    assert place.files() == before
    assert commit_job(job, statuses, mode="append").version == 3


@guarantee("store collections")
def test_a_dry_run_changes_nothing_and_says_what_would(place):
    for start in (0, 100):
        place.write(start, mode="overwrite")
    place.start_job()
    before = place.files()
    said = place.collect(dry_run=True)
    assert place.files() == before
    done = place.collect()
    assert sorted(file.path for file in said.files) == sorted(file.path for file in done.files)
    assert (said.expired_versions, said.fenced_jobs) == (done.expired_versions, done.fenced_jobs)
    assert said.num_bytes == done.num_bytes > 0
    place.check_no_orphan()


@guarantee("store collections")
@pytest.mark.parametrize("fault", ["gone", "cut"])
def test_nothing_goes_while_the_newest_lacks_an_object(place, fault):
    for start in (0, 100):
        place.write(start, mode="overwrite")
    (output,) = place.open().map_outputs
    lost = output.files[0].data_path
    content = place.storage.read(lost)
    place.storage.delete(lost)
    if fault == "cut":
        place.storage.put_if_absent(lost, content[:-1], sync=True)
    before = place.files()
    for dry_run in (True, False):
        with pytest.raises(CorruptShuffleError, match=r"map task 0.*nothing was removed"):
            place.collect(dry_run=dry_run)
    assert place.files() == before
    assert place.values(1) == list(range(10))
    place.write(200, mode="overwrite")
    assert place.collect().expired_versions == (1, 2)
    place.check_no_orphan()


# Jobs ---------------------------------------------------------------------------------------------


@guarantee("store collections")
def test_a_job_that_was_given_up_fails_at_its_commit(place):
    place.write(0)
    job, statuses = place.start_job()
    report = place.collect()
    assert report.fenced_jobs == (job.job_id,)
    assert place.storage.files(job.directory) == {}
    with pytest.raises(CommitConflictError, match=f"job {job.job_id} was .*given up by garbage"):
        commit_job(job, statuses, mode="append")
    assert place.collect().fenced_jobs == ()
    assert place.write(50) == 3, "the fence took a number"
    assert place.values() == [*range(10), *range(50, 60)]
    place.check_no_orphan()


DIES = """
import json, sys, time, pyarrow as pa
from arrow_format import WriteOptions
from arrow_format.storage import object_store as storage_upload
from arrow_format.jobs.commit import commit_job
from arrow_format.log.commit_log import CommitLog
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.storage.object_store import ObjectStorage
from arrow_format.storage.open import open_storage
from arrow_format.jobs.target import open_target

path, where, options = sys.argv[1], sys.argv[2], json.loads(sys.stdin.readline())
storage_upload.SIGN_INTERVAL_S = float(sys.argv[3])
schema = pa.schema({"k": pa.int64(), "v": pa.int64()})
job = begin_job(open_storage(path, options), schema, num_subpartitions=5,
                partitioner=HashPartitioner("k"),
                options=WriteOptions(codec="none", sort_buffer_bytes=4 << 20))
open_target(job, "append")

def stop(*_arguments, **_how):
    print(job.job_id, flush=True)
    time.sleep(600)

def batches(count):
    for _ in range(count):
        yield pa.record_batch([list(range(50_000))] * 2, schema=schema)
    if where == "amid a write":
        if sys.argv[3] != "300":
            for _ in range(6):
                time.sleep(0.1)
                yield pa.record_batch([list(range(50_000))] * 2, schema=schema)
        stop()

statuses = [run_map_task(job, 0, 0, [pa.record_batch([[1], [2]], schema=schema)])]
statuses.append(run_map_task(job, 1, 0, batches(24)))
if where == "before the commit":
    CommitLog.append = stop
if where == "before the entry":
    put = ObjectStorage.put_if_absent
    def put_if_absent(storage, path, data, *, sync):
        stop() if path.endswith(".entry") else put(storage, path, data, sync=sync)
    ObjectStorage.put_if_absent = put_if_absent
if where == "after the commit":
    from arrow_format.jobs import commit
    commit.remove_losers = stop
commit_job(job, statuses, mode="append")
"""


def killed(place: StoredShuffle, where: str, sign_interval_s: str = "300") -> str:
    """Kill a process that writes there, and return its job."""
    with place.start(DIES, where, sign_interval_s) as process:
        assert process.stdout is not None
        job_id = process.stdout.readline().strip()
        process.send_signal(signal.SIGKILL)
    return job_id


@guarantee("store collections")
@pytest.mark.parametrize(
    ("where", "num_left"),
    [
        ("amid a write", 2),
        ("before the commit", 4),
        ("before the entry", 4),
        ("after the commit", 4),
    ],
)
def test_what_a_process_that_was_killed_left_goes(place, where, num_left):
    place.write(0)
    job_id = killed(place, where)
    left = [path for path in place.files() if job_id in path]
    assert len(left) == num_left
    assert place.collect(timedelta(minutes=5)).fenced_jobs == ()
    report = place.collect()
    if where == "after the commit":
        assert place.open().num_rows == 10 + 1 + 24 * 50_000
    else:
        assert report.fenced_jobs == (job_id,)
        assert not [path for path in place.files() if job_id in path]
        assert place.values() == list(range(10))
    place.check_no_orphan()
    assert place.write(100) >= 3


# Uploads that take long ---------------------------------------------------------------------------


@guarantee("upload signs")
def test_a_job_whose_only_task_uploads_is_seen_alive(s3: S3Server, monkeypatch):
    """Without its sign the job would be given up, since nothing of the upload is to be seen."""
    place = StoredShuffle(f"s3://{s3.new_bucket()}/a", s3.options)
    place.write(0)
    collected: list[GcReport] = []
    signs: list[str] = []

    def batches(schema):
        for turn in range(16):
            if turn == 15:
                collected.append(place.collect(timedelta(seconds=2.5)))
                signs.extend(path for path in place.files() if path.endswith(".writing"))
            yield pa.record_batch([list(range(50_000))] * 2, schema=schema)
            time.sleep(0.25)

    def write() -> None:
        schema = pa.schema({"k": pa.int64(), "v": pa.int64()})
        job = begin_job(
            place.storage, schema, num_subpartitions=N, partitioner=HashPartitioner("k"),
            options=WriteOptions(codec="none", sort_buffer_bytes=1 << 20),
        )  # fmt: skip
        open_target(job, "append")
        # The first task has ended: else a collection would know of no job at all.
        statuses = [run_map_task(job, 0, 0, [pa.record_batch([[1], [2]], schema=schema)])]
        statuses.append(run_map_task(job, 1, 0, batches(schema)))
        commit_job(job, statuses, mode="append")

    monkeypatch.setattr("arrow_format.storage.object_store.SIGN_INTERVAL_S", 0.5)
    write()
    (report,) = collected
    assert len(signs) == 1
    assert report.fenced_jobs == ()
    assert len(report.running_jobs) == 1
    assert place.open().num_rows == 10 + 1 + 16 * 50_000
    place.collect()
    place.check_no_orphan()
    monkeypatch.setattr("arrow_format.storage.object_store.SIGN_INTERVAL_S", 3600)
    with pytest.raises(CommitConflictError, match="given up"):
        write()
    place.collect()
    place.check_no_orphan()


@guarantee("upload signs")
def test_the_sign_of_a_writer_that_was_killed_goes_with_its_job(s3: S3Server):
    place = StoredShuffle(f"s3://{s3.new_bucket()}/a", s3.options)
    place.write(0)
    job_id = killed(place, "amid a write", "0.1")
    assert [path for path in place.files() if path.endswith(".shuffle.data.writing")]
    assert place.collect().fenced_jobs == (job_id,)
    place.check_no_orphan()


# Others at the same time --------------------------------------------------------------------------

APPENDS = """
import json, sys, pyarrow as pa
import arrow_format
path, writer, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.stdin.readline())
done = given_up = 0
while done < 8:
    first = (writer * 8 + done) * 10
    table = pa.table({"k": list(range(10)), "v": list(range(first, first + 10))})
    try:
        arrow_format.write_shuffle(table, path, keys="k", num_subpartitions=5, mode="append",
                                   storage_options=options)
    except arrow_format.CommitConflictError:
        given_up += 1
        assert given_up < 200
    else:
        done += 1
"""


@guarantee("store collections beside appends")
def test_appends_while_collections_run(place):
    """Without a retention a job is given up or committed, whichever came first; never halfway."""
    place.write(10_000)
    writers = [place.start(APPENDS, writer) for writer in range(2)]
    expired = rows = 0
    while any(writer.poll() is None for writer in writers):
        expired += len(place.collect().expired_versions)
        now = place.open().verify()
        assert now.ok
        assert now.num_rows >= rows
        rows = now.num_rows
        time.sleep(random.uniform(0, 0.2))
    answers = [writer.communicate() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], answers
    assert expired > 0
    assert place.values() == [*range(160), *range(10_000, 10_010)]
    place.collect()
    place.check_no_orphan()


@guarantee("store collections beside appends")
def test_a_collection_that_dies_anywhere_is_finished_by_the_next(s3: S3Server, monkeypatch):
    """Also in the midst of a request that removes several objects."""
    made = StoredShuffle(f"s3://{s3.new_bucket()}/a", s3.options)
    for start in (0, 100):
        made.write(start, mode="overwrite")
    made.write(200)
    made.start_job()
    kept = {path: made.storage.read(path) for path in made.files()}
    rows = [*range(100, 110), *range(200, 210)]
    ends = []
    step, done = 0, False
    while not done:
        bucket = s3.new_bucket()
        place = StoredShuffle(f"s3://{bucket}/a", s3.options)
        for path, content in kept.items():
            s3.client().put_object(Bucket=bucket, Key=f"a/{path}", Body=content)
        with monkeypatch.context() as patch:
            done = not dies(place, step, patch)
        assert place.values() == rows
        place.collect()
        assert place.values() == rows
        place.check_no_orphan()
        ends.append(sorted(place.files()))
        step += 1
    assert step >= 6, "two puts, three removals, and none"
    assert all(one == ends[-1] for one in ends), "a fence takes no second number"


def dies(place: StoredShuffle, step: int, patch: pytest.MonkeyPatch) -> bool:
    """Collect, and die at a change of the store; False when it did not come so far."""
    left = [step]

    def put_if_absent(storage, path, content, *, sync, real=ObjectStorage.put_if_absent):
        if left[0] == 0:
            msg = "died"
            raise StorageError(msg)
        left[0] -= 1
        real(storage, path, content, sync=sync)

    def delete_all(storage, paths, real=ObjectStorage.delete_all):
        if left[0] == 0:
            real(storage, paths[: len(paths) // 2])
            msg = "died"
            raise StorageError(msg)
        left[0] -= 1
        real(storage, paths)

    patch.setattr(ObjectStorage, "put_if_absent", put_if_absent)
    patch.setattr(ObjectStorage, "delete_all", delete_all)
    try:
        place.collect()
    except StorageError:
        return True
    return False


# A commit that ended with an error ----------------------------------------------------------------


def test_a_commit_that_went_through_and_failed_after_it_says_that_it_stays(place, monkeypatch):
    job, statuses = place.start_job()
    real = ObjectStorage.put_if_absent
    puts: list[str] = []

    def put(storage, path, content, *, sync):
        real(storage, path, content, sync=sync)
        if path.endswith(".entry") and not puts:
            puts.append(path)
            msg = "the answer got lost"
            raise StorageError(msg)

    monkeypatch.setattr(ObjectStorage, "put_if_absent", put)
    with pytest.raises(StorageError, match=r"committed as version 1, .*Do not write") as error:
        commit_job(job, statuses)
    assert "durably, but the commit ended" in str(error.value)
    assert "power" not in str(error.value)
    assert place.values() == list(range(1_000, 1_010))
