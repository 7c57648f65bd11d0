"""Whole shuffles in an object store: written, read, committed by several, lost in part.

The store is a server that speaks S3 on the loopback interface, with conditions and credentials
checked. What is told to anyone is searched for the secret.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import arrow_format
from arrow_format import CorruptShuffleError, ShuffleNotFoundError, WriteOptions
from arrow_format.jobs.cleanup import abort_job
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.jobs.merge import merge_shuffle
from arrow_format.jobs.target import open_target
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.log.names import entry_path
from arrow_format.storage.open import open_storage
from arrow_format.write.merge_policy import MergePolicy
from tests.support.exhaustive import exhaustive
from tests.support.guarantees import guarantee
from tests.support.s3_server import SECRET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.s3_server import S3Server

PROJECT = Path(__file__).resolve().parents[1]
N = 5


def rows(count: int = 1_000, start: int = 0) -> pa.Table:
    numbers = range(start, start + count)
    return pa.table({"k": [i % 17 for i in numbers], "v": list(numbers)})


def write(table: pa.Table, path: str, **arguments: Any):
    return arrow_format.write_shuffle(table, path, keys="k", num_subpartitions=N, **arguments)


def values(path: str, **arguments: Any) -> list[int]:
    return sorted(arrow_format.open_shuffle(path, **arguments).read().read_all()["v"].to_pylist())


@pytest.fixture(params=["s3", "azure", "gs", "seaweedfs"])
def place(request) -> tuple[str, dict[str, str]]:
    """A path for a shuffle, and the options to reach it with."""
    server = request.getfixturevalue(request.param)
    return f"{server.scheme}://{server.new_bucket()}/some/shuffle", server.options


# The engine ---------------------------------------------------------------------------------------


@exhaustive()
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_written_appended_merged_overwritten_and_read(place, codec):
    path, given = place
    stored = {"storage_options": given}
    options = WriteOptions(codec=codec, sort_buffer_bytes=2 << 20)
    receipt = write(rows(100_000), path, options=options, **stored)
    assert receipt.path == path
    assert receipt.num_rows == 100_000
    write(rows(500, 100_000), path, mode="append", options=options, **stored)
    assert values(path, **stored) == list(range(100_500))
    report = merge_shuffle(path, by="map_output", policy=MergePolicy(rewrite="always"), **stored)
    assert report.num_map_outputs == (2, 1)
    shuffle = arrow_format.open_shuffle(path, **stored)
    assert shuffle.verify().num_rows == 100_500
    assert shuffle.subpartition(3).read_all().num_rows == shuffle.subpartition_rows[3].as_py()
    write(rows(10), path, mode="overwrite", **stored)
    assert values(path, **stored) == list(range(10))
    assert values(path, version=2, **stored) == list(range(100_500))
    assert sorted(shuffle.read().read_all()["v"].to_pylist()) == list(range(100_500)), "pinned"
    with pytest.raises(arrow_format.ShuffleExistsError, match=f"{path}: there is a shuffle"):
        write(rows(10), path, **stored)
    assert write(rows(10), path, mode="ignore", **stored).version == 4


def test_nothing_there_and_local_directories(place, tmp_path):
    path, given = place
    with pytest.raises(ShuffleNotFoundError, match=f"{path}: is not there"):
        arrow_format.open_shuffle(path, storage_options=given)
    with pytest.raises(arrow_format.OptionError, match="go to the object store; leave it out"):
        write(
            rows(), path, options=WriteOptions(local_dirs=(str(tmp_path),)), storage_options=given
        )
    open_storage(path, given).put_if_absent("readme", b"", sync=False)
    with pytest.raises(
        arrow_format.ShuffleExistsError, match="holds 'readme' and is not a shuffle"
    ):
        write(rows(), path, storage_options=given)


def test_a_write_that_fails_leaves_nothing(s3):
    bucket = s3.new_bucket()

    def broken() -> Iterator[pa.RecordBatch]:
        yield from rows(50_000).to_batches()
        msg = "the rows end badly"
        raise RuntimeError(msg)

    options = WriteOptions(sort_buffer_bytes=1 << 20)
    with pytest.raises(RuntimeError, match="end badly"):
        write(broken(), f"s3://{bucket}/a", options=options, storage_options=s3.options)
    assert s3.keys(bucket) == []
    assert s3.uploads(bucket) == []


def test_a_task_that_outlives_the_abort_leaves_files_that_no_version_names(s3):
    bucket = s3.new_bucket()
    storage = open_storage(f"s3://{bucket}/a", s3.options)
    job = begin_job(storage, rows().schema, num_subpartitions=N, partitioner=HashPartitioner("k"))
    open_target(job, "append")
    run_map_task(job, 0, 0, rows().to_batches())
    abort_job(job)
    fence = [f"a/{entry_path(1)}"]
    assert s3.keys(bucket) == fence, "of a commit that may be under way"
    run_map_task(job, 1, 0, rows().to_batches())
    assert len(storage.list(job.directory)) == 2, "what gc finds below the job's name"
    assert storage.list("map_outputs") == [job.job_id]
    abort_job(job)
    assert s3.keys(bucket) == fence


KILLED = """
import sys, time, json, pyarrow as pa
import arrow_format
def batches():
    for _ in range(24):
        yield pa.record_batch({"k": list(range(50_000)), "v": list(range(50_000))})
    print("half way", flush=True)
    time.sleep(60)
arrow_format.write_shuffle(batches(), sys.argv[1], keys="k", num_subpartitions=5,
    options=arrow_format.WriteOptions(codec="none", sort_buffer_bytes=4 << 20))
"""


@guarantee("killed upload")
def test_a_writer_that_is_killed_leaves_nothing_visible(s3):
    bucket = s3.new_bucket()
    path = f"s3://{bucket}/a"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, path],
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
        env=os.environ | s3.environment,
    )
    assert process.stdout.readline() == "half way\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert s3.keys(bucket) == []
    assert len(s3.uploads(bucket)) == 1, "hidden, for the bucket's lifecycle rule to clear"
    write(rows(), path, storage_options=s3.options)
    assert values(path, storage_options=s3.options) == list(range(1_000))


# Commits ------------------------------------------------------------------------------------------

APPENDS = """
import json, sys, pyarrow as pa
import arrow_format
writer, path, options = int(sys.argv[1]), sys.argv[2], json.load(sys.stdin)
for turn in range(4):
    first = (writer * 4 + turn) * 10
    table = pa.table({"k": list(range(10)), "v": list(range(first, first + 10))})
    receipt = arrow_format.write_shuffle(table, path, keys="k", num_subpartitions=5, mode="append",
                                         storage_options=options)
    print(receipt.version)
"""


@guarantee("store commits")
def test_many_that_commit_at_once_win_a_version_each(place):
    path, given = place
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", APPENDS, str(writer), path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=PROJECT,
        )
        for writer in range(3)
    ]
    for writer in writers:
        writer.stdin.write(json.dumps(given))
        writer.stdin.close()
        writer.stdin = None
    versions = [int(line) for writer in writers for line in writer.communicate()[0].split()]
    assert [writer.returncode for writer in writers] == [0] * 3
    assert sorted(versions) == list(range(1, 13))
    assert values(path, storage_options=given) == list(range(120))


@guarantee("store commits")
def test_a_commit_whose_answers_get_lost_went_through(s3):
    path = f"s3://{s3.new_bucket('forgetful')}/a"
    assert write(rows(), path, storage_options=s3.options).version == 1
    write(rows(10, 1_000), path, mode="append", storage_options=s3.options)
    assert values(path, storage_options=s3.options) == list(range(1_010))


# Faults under a reader ----------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["cut", "gone", "changed"])
def test_an_object_that_is_lost_under_a_reader(s3, fault):
    bucket = s3.new_bucket()
    path = f"s3://{bucket}/a"
    write(rows(20_000), path, storage_options=s3.options)
    shuffle = arrow_format.open_shuffle(path, storage_options=s3.options)
    assert shuffle.subpartition(0).read_all().num_rows
    (key,) = (key for key in s3.keys(bucket) if key.endswith(".data"))
    whole = s3.client().get_object(Bucket=bucket, Key=key)["Body"].read()
    if fault == "gone":
        s3.client().delete_object(Bucket=bucket, Key=key)
    else:
        body = whole[:-1000] if fault == "cut" else whole[:9] + bytes([whole[9] ^ 1]) + whole[10:]
        s3.client().put_object(Bucket=bucket, Key=key, Body=body)
    expected = {"cut": "bytes, expected at least", "gone": "not there", "changed": "CRC-32"}[fault]
    with pytest.raises(CorruptShuffleError, match=expected) as error:
        shuffle.read().read_all()
    assert f"s3://{bucket}/a/map_outputs" in str(error.value)
    assert "map task 0" in str(error.value)
    report = shuffle.verify(raise_on_damage=False)
    assert len(report.problems) == 1


# Memory -------------------------------------------------------------------------------------------

STREAM = """
import json, sys
import numpy as np, pyarrow as pa
from arrow_format import WriteOptions, open_shuffle, write_shuffle
from tests.support.memory import resident_bytes

path, codec, options = sys.argv[1], sys.argv[2], json.load(sys.stdin)
pa.set_cpu_count(1)
BUFFER = 64 << 20

random = np.random.default_rng(1)
made = [
    pa.record_batch({"k": random.integers(0, 1 << 40, 200_000), "v": random.random(200_000)})
    for _ in range(4)
]

def write(count, path):
    batches = (made[i % 4] for i in range(count))
    write_shuffle(batches, path, keys="k", num_subpartitions=200, storage_options=options,
                  options=WriteOptions(sort_buffer_bytes=BUFFER, codec=codec))

write(1, path + "-small")
base = resident_bytes(peak=False)
write(100, path)
taken = resident_bytes() - base
bound = 1.25 * BUFFER + (64 << 20) + made[0].nbytes
print(f"{taken >> 20} MiB of {int(bound) >> 20}")
assert taken <= bound
assert open_shuffle(path, storage_options=options).num_bytes > 250 << 20
"""


@guarantee("upload memory")
@exhaustive(but="codec")
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_uploads_stay_inside_the_memory_bound(s3, codec):
    done = subprocess.run(
        [sys.executable, "-c", STREAM, f"s3://{s3.new_bucket()}/a", codec],
        input=json.dumps(s3.options),
        capture_output=True,
        text=True,
        check=False,
        cwd=PROJECT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MiB of" in done.stdout


# Credentials of the environment -------------------------------------------------------------------


def test_credentials_of_the_environment(s3: S3Server, monkeypatch):
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    path = f"s3://{s3.new_bucket()}/a"
    write(rows(100), path)
    assert values(path) == list(range(100))
    done = subprocess.run(
        [Path(sys.executable).parent / "arrow-shuffle", "verify", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout + done.stderr
