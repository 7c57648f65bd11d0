"""Stores on which commits are not safe, and credentials that may not do everything."""

import time
from dataclasses import replace
from functools import cache

import pyarrow as pa
import pytest

import arrow_format
from arrow_format import (
    HashPartitioner,
    MergePolicy,
    StorageError,
    UnsettledCommitError,
    collect_garbage,
    delete_rows,
    flush_pending,
    list_tags,
    merge_shuffle,
    open_shuffle,
    release_shuffle,
    rollback_shuffle,
    tag_shuffle,
    untag_shuffle,
)
from arrow_format.jobs import garbage, gc_files, gc_plan
from arrow_format.jobs.job import run_map_task
from arrow_format.log.consumers import KEPT_RECORDS, NO_RECORD, ConsumerRegistry
from arrow_format.storage import object_store
from arrow_format.storage.object_store import ObjectStorage
from arrow_format.storage.open import open_storage
from arrow_format.storage.protocol import DeniedError
from arrow_format.storage.put_probe import PROBE_DIRECTORY, ROUNDS
from arrow_shuffle import consume
from tests.support.exhaustive import exhaustive
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import begin, collect, write_rows

ALL = MergePolicy(rewrite="always")


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    monkeypatch.setattr(object_store, "_CHECKED", set())


def write(path, s3, first=0, *, mode="append", batches=None):
    table = pa.table({"k": range(first, first + 10), "v": range(first, first + 10)})
    return write_rows(path, batches or table, "k", n=4, mode=mode, **given(s3))


def given(s3):
    return {"storage_options": s3.options}


def unfinished(path, s3):
    """A job that has written a row, and will not commit."""
    job = begin(
        open_storage(path, s3.options), pa.schema({"k": pa.int64()}), 4, HashPartitioner("k")
    )
    run_map_task(job, 0, 0, [pa.record_batch({"k": [1]})])


@cache
def prepared(s3):
    """Return a bucket with three versions, of which one is tagged."""
    source = s3.new_bucket()
    path = f"s3://{source}/a"
    for first in (0, 10, 20):
        write(path, s3, first)
    tag_shuffle(path, "kept", 1, **given(s3))
    object_store._CHECKED.clear()
    return source


def copied(s3, kind):
    """Return a path with what is prepared, in a bucket of a kind."""
    target = copy(s3, prepared(s3), kind)
    return f"s3://{target}/a", target


def copy(s3, source, kind):
    """Copy a bucket to one of a kind, and return that."""
    client, target = s3.client(), s3.new_bucket(kind)
    for key in s3.keys(source):
        body = client.get_object(Bucket=source, Key=key)["Body"].read()
        client.put_object(Bucket=target, Key=key, Body=body)
    return target


# Refused before a row -----------------------------------------------------------------------------


@guarantee("atomic conditions")
@exhaustive("mode", "kind")
@pytest.mark.parametrize("mode", ["errorifexists", "append", "overwrite"])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("careless", "ignores the condition of a put"),
        ("racy", "does not keep the condition of a put"),
        ("readonly", "403.*cannot put an object there"),
    ],
)
def test_a_write_is_refused_before_a_row_and_leaves_nothing(s3, kind, said, mode):
    bucket = s3.new_bucket(kind)
    is_asked = False

    def rows():
        nonlocal is_asked
        is_asked = True
        yield pa.record_batch({"k": [1], "v": [1]})

    schema = pa.schema({"k": pa.int64(), "v": pa.int64()})
    batches = pa.RecordBatchReader.from_batches(schema, rows())
    with pytest.raises(StorageError, match=said) as error:
        write(f"s3://{bucket}/a", s3, mode=mode, batches=batches)
    assert not isinstance(error.value, UnsettledCommitError)
    assert "not known" not in str(error.value)
    assert not is_asked
    assert s3.keys(bucket) == []


CHANGES = {
    "append": lambda path, s3: write(path, s3),
    "overwrite": lambda path, s3: write(path, s3, mode="overwrite"),
    "delete": lambda path, s3: delete_rows(path, {"k": [1]}, **given(s3)),
    "merge": lambda path, s3: merge_shuffle(path, policy=ALL, **given(s3), by="map_output"),
    "merge by subpartition": lambda path, s3: merge_shuffle(
        path, by="subpartition", policy=ALL, **given(s3)
    ),
    "rollback": lambda path, s3: rollback_shuffle(path, 1, **given(s3)),
    "tag": lambda path, s3: tag_shuffle(path, "t", **given(s3)),
    "untag": lambda path, s3: untag_shuffle(path, "kept", **given(s3)),
    "release": lambda path, s3: release_shuffle(path, **given(s3)),
    "collection": lambda path, s3: collect(path, **given(s3)),
    "consume": lambda path, s3: consume(path, consumer="a", **given(s3)).__enter__(),
}
"""What needs the condition."""


@guarantee("atomic conditions")
@pytest.mark.parametrize("name", CHANGES)
def test_whatever_needs_the_condition_is_refused_plainly_and_changes_nothing(s3, name):
    path, bucket = copied(s3, "careless")
    before = s3.keys(bucket)
    with (
        pytest.raises(StorageError, match="ignores the condition of a put") as error,
        s3.requests(bucket) as requests,
    ):
        CHANGES[name](path, s3)
    assert not isinstance(error.value, UnsettledCommitError)
    assert "not known" not in str(error.value)
    assert s3.keys(bucket) == before
    assert not [one for one in requests if one.method == "PUT" and "probes" not in one.path]


def test_what_needs_no_condition_works(s3):
    path, _ = copied(s3, "careless")
    shuffle = open_shuffle(path, **given(s3))
    assert shuffle.num_rows == 30
    assert shuffle.verify().ok
    assert len(list_tags(path, **given(s3))) == 1
    assert flush_pending(path, **given(s3)) is None
    collect_garbage(path, **given(s3))
    collect(path, dry_run=True, **given(s3))


@guarantee("atomic conditions")
def test_what_a_job_left_on_such_a_store_stays(s3):
    """It may commit yet, by a way to the store that keeps the condition: no fence is there."""
    path, bucket = copied(s3, "careless")
    unfinished(path, s3)
    before = s3.keys(bucket)
    with pytest.raises(StorageError, match="ignores the condition"):
        collect(path, **given(s3))
    assert s3.keys(bucket) == before


# Credentials that may only add --------------------------------------------------------------------


@guarantee("append-only credentials")
def test_what_adds_and_takes_nothing_away_needs_no_deletion(s3):
    path, _ = copied(s3, "appendonly")
    options = given(s3)
    assert write(path, s3, 30).version == 5
    assert delete_rows(path, {"k": [1, 2]}, **options).num_rows == 2
    merge_shuffle(path, policy=ALL, by="map_output", **options)
    assert tag_shuffle(path, "new", **options).name == "new"
    assert untag_shuffle(path, "kept", **options)
    with consume(path, consumer="a", **options) as consumption:
        assert consumption.shuffle.num_rows == 38
    rollback_shuffle(path, 5, **options, undo_deletions=True)
    assert open_shuffle(path, **options).num_rows == 40


def test_a_consumer_that_may_not_delete_asks_for_one_deletion_each_time(s3):
    path, bucket = copied(s3, "appendonly")
    registry = ConsumerRegistry(open_storage(path, s3.options))
    record = replace(NO_RECORD, token="mine").consumed(1)
    for _ in range(2 * KEPT_RECORDS):
        with s3.requests(bucket) as requests:
            record = registry.put("a", record.next())
        assert sum("?delete" in one.path or one.method == "DELETE" for one in requests) <= 1


@guarantee("append-only credentials")
def test_a_collection_goes_on_without_leave_to_delete_and_the_next_finds_all(s3, monkeypatch):
    monkeypatch.setattr(gc_plan, "SWEPT_TOGETHER", 1)
    bucket = s3.new_bucket("appendonly")
    path, options = f"s3://{bucket}/a", given(s3)
    storage = open_storage(path, s3.options)
    for mode in ("append", "overwrite", "overwrite"):
        write(path, s3, mode=mode)
    (output,) = open_shuffle(path, **options).map_outputs
    late = f"map_outputs/{output.job_id}/late.data"
    storage.put_if_absent(late, b"late", sync=False)
    unfinished(path, s3)
    for expired in (2, 0):
        left = storage.files("map_outputs", depth=2)
        said = f"{expired} versions expired.* may not be removed with these .*403.*cannot delete"
        with pytest.raises(StorageError, match=said) as error:
            collect(path, **options)
        given_up = "1 unfinished job given up" if expired else "0 unfinished jobs given up"
        assert given_up in str(error.value)
        assert f"{len(left) - 2} files may not be removed" in str(error.value)
        assert storage.files("map_outputs", depth=2).keys() == left.keys()
    entries = [key for key in s3.keys(bucket) if key.endswith(".entry")]
    assert len(entries) == 3 + 2, "one gives the job up, one lets versions expire"
    other = copy(s3, bucket, "bucket")
    collect(f"s3://{other}/a", **options)
    assert {key for key in s3.keys(other) if "/map_outputs/" in key} == {
        f"a/{name}" for file in output.files for name in (file.data_path, file.index_path)
    }


@guarantee("append-only credentials")
def test_a_collection_removes_what_it_may(s3, monkeypatch):
    monkeypatch.setattr(gc_files, "FILES_PER_REQUEST", 1)
    bucket = s3.new_bucket()
    path, options = f"s3://{bucket}/a", given(s3)
    for mode in ("append", "overwrite", "overwrite"):
        write(path, s3, mode=mode)
    real, kept = ObjectStorage.delete_all, []

    def delete_all(storage, paths):
        kept.extend(paths[:1] if not kept else [])
        if paths[0] in kept:
            msg = "403 for a file on hold"
            raise DeniedError(msg)
        real(storage, paths)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStorage, "delete_all", delete_all)
        with pytest.raises(StorageError, match=r"3 files of .* removed.* 1 file may not be"):
            collect(path, **options)
    assert len([key for key in s3.keys(bucket) if "/map_outputs/" in key]) == 2 + 1
    assert collect(path, **options).num_files == 1


@guarantee("append-only credentials")
def test_what_takes_away_says_that_it_may_not(s3):
    path, _ = copied(s3, "appendonly")
    write(path, s3, mode="overwrite")
    options = given(s3)
    with pytest.raises(StorageError, match=r"403.*cannot delete.*Check the credentials"):
        collect(path, **options)
    with pytest.raises(StorageError, match=r"was released, but .*403.*cannot delete") as error:
        release_shuffle(path, **options)
    assert "as someone who may delete" in str(error.value)
    with pytest.raises(arrow_format.ResultReleasedError):
        open_shuffle(path, **options)


# Probes that were left ----------------------------------------------------------------------------


def test_what_is_left_of_asking_is_collected(s3, monkeypatch):
    bucket = s3.new_bucket("appendonly")
    options = given(s3)
    write(f"s3://{bucket}/a", s3)
    probes = [key for key in s3.keys(bucket) if f"a/{PROBE_DIRECTORY}/" in key]
    assert len(probes) == ROUNDS
    other = copy(s3, bucket, "bucket")
    path = f"s3://{other}/a"
    assert collect(path, **options).num_files == 0, "another may be asking"
    monkeypatch.setattr(garbage, "REMOVAL_DELAY_MS", 0)
    time.sleep(1)  # the store tells seconds
    assert collect_garbage(path, **options).num_files == 0
    assert collect(path, dry_run=True, **options).num_files == ROUNDS
    assert collect(path, **options).num_files == ROUNDS
    assert not [key for key in s3.keys(other) if PROBE_DIRECTORY in key]
    assert open_shuffle(path, **options).num_rows == 10
