"""When the rows of a deletion are gone: rollbacks, tags, merges, pending commits, restored logs."""

import shutil
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from arrow_format import (
    CommitConflictError,
    HashPartitioner,
    MergePolicy,
    OptionError,
    WriteOptions,
    collect_garbage,
    delete_rows,
    erasure_status,
    flush_pending,
    merge_shuffle,
    open_shuffle,
    rollback_shuffle,
    tag_shuffle,
    untag_shuffle,
    write_shuffle,
)
from arrow_format.jobs import delete_rows as deletion
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.jobs.target import open_target
from arrow_format.log.commit_log import CommitLog
from arrow_format.storage.open import open_storage
from tests.support.guarantees import guarantee
from tests.support.interrupted_storage import instead_of_first_entry
from tests.support.recording_storage import RecordingStorage
from tests.support.small_log import small_segments

PLAIN = WriteOptions(sync=False, codec="none", statistics=())
ALL = MergePolicy(rewrite="always")
NOW = timedelta(0)
SECRET = "SECRETSECRET"


def write(path, keys, names=None, mode="append", n=4, options=PLAIN, **how):
    table = pa.table({"k": keys, "name": names or [f"n{key}" for key in keys]})
    how = {"keys": "k", **how} if "partitioner" not in how else how
    return write_shuffle(table, path, num_subpartitions=n, mode=mode, options=options, **how)


def put_pending(path, keys, n=4, mode="append"):
    batch = pa.record_batch({"k": keys, "name": [f"n{key}" for key in keys]})
    job = begin_job(
        path, batch.schema, num_subpartitions=n, partitioner=HashPartitioner("k"), options=PLAIN
    )
    open_target(job, mode)
    job.make_directories()
    return commit_job(job, [run_map_task(job, 0, 0, [batch])], mode=mode, pending=True)


def collect(path, times=1, **how):
    for _ in range(times):
        collect_garbage(path, retention=NOW, **how)


def holds(path, needle=SECRET):
    return any(needle.encode() in f.read_bytes() for f in Path(path).rglob("*") if f.is_file())


def keys_of(path):
    return sorted(open_shuffle(path).read().read_all()["k"].to_pylist())


def log_of(path):
    return CommitLog(open_storage(path))


@pytest.fixture
def path(tmp_path):
    path = str(tmp_path / "x")
    write(path, [1, 2, 3, 4], ["a", SECRET, "c", "d"])
    write(path, [5, 6])
    return path


# Rollbacks ----------------------------------------------------------------------------------------


@guarantee("undone deletions")
@pytest.mark.parametrize("tagged", [False, True])
def test_a_rollback_to_before_a_deletion_is_refused(path, tagged):
    receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
    if tagged:
        tag_shuffle(path, "audit", 2)
        collect(path)
    with pytest.raises(CommitConflictError, match=r"version 3 is that of a deletion.* 2 may"):
        rollback_shuffle(path, "audit" if tagged else 2)
    assert log_of(path).view().state.version == 3
    # Also after other versions, an overwrite among them; to these it goes.
    later = write(path, [7]).version
    write(path, [8], mode="overwrite")
    merge_shuffle(path, policy=ALL)
    with pytest.raises(CommitConflictError, match="undo_deletions=True"):
        rollback_shuffle(path, "audit" if tagged else 1)
    rollback_shuffle(path, later)
    assert keys_of(path) == [1, 3, 4, 5, 6, 7]
    if tagged:
        untag_shuffle(path, "audit")
    collect(path)
    assert erasure_status(path, receipt).is_gone
    assert not holds(path)


@guarantee("undone deletions")
@pytest.mark.parametrize("tagged", [False, True])
@pytest.mark.parametrize("by", ["map_output", "subpartition"])
def test_an_undone_deletion_is_never_gone(path, tagged, by):
    receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
    if tagged:
        tag_shuffle(path, "audit", 2)
        collect(path)
    undone = rollback_shuffle(path, "audit" if tagged else 2, undo_deletions=True).version
    assert 2 in keys_of(path)
    merge_shuffle(path, by=by, policy=ALL)
    if tagged:
        untag_shuffle(path, "audit")
    newest = log_of(path).view().state.version
    # Within the kept log the status follows the rows into the merged file.
    assert erasure_status(path, receipt).versions[-1] == (undone, newest)
    collect(path, 2)
    write(path, [9])
    collect(path, 2)
    status = erasure_status(path, receipt)
    assert (status.is_gone, status.rolled_back, status.files) == (False, undone, ())
    assert f"version {undone} was rolled back to one before the deletion" in str(status)
    assert "keep that receipt in the place of this one" in str(status)
    assert holds(path)
    # The second receipt counts, and the first one stays what it was.
    again = delete_rows(path, {"k": [2]}, options=PLAIN)
    assert again.num_rows == 1
    collect(path)
    assert erasure_status(path, again).is_gone
    assert not holds(path)
    assert not erasure_status(path, receipt).is_gone


def test_rows_that_come_back_and_go_by_versions(path):
    """What a merge or another deletion makes of files that hold the rows holds them too."""
    with small_segments(segment=64, interval=4):
        receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
        undone = rollback_shuffle(path, 2, undo_deletions=True).version
        for key in range(10, 30):
            write(path, [key])
        merged = merge_shuffle(path, policy=ALL).version
        other = delete_rows(path, {"k": [3]}, options=PLAIN)
        for key in range(30, 50):
            write(path, [key])
        last = log_of(path).view().state.version
        write(path, [60], mode="overwrite")
        for key in range(70, 90):
            write(path, [key])
        assert erasure_status(path, receipt).versions == ((1, 2), (undone, last))
        back = rollback_shuffle(path, other.version).version
        assert erasure_status(path, receipt).versions == (
            (1, 2), (undone, last), (back, back)
        )  # fmt: skip
        assert merged < other.version < last
        assert erasure_status(path, other).versions == ((1, other.version - 1),)
        assert erasure_status(path, other).rolled_back == 0


@guarantee("undone deletions")
def test_rows_that_only_earlier_versions_have_do_not_come_back_either(path):
    write(path, [1, 3], mode="overwrite")
    receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
    assert (receipt.num_rows, receipt.version) == (0, 3)
    number = log_of(path).newest_version()
    assert log_of(path).record(number).operation == "erase"
    delete_rows(path, {"k": [2]}, options=PLAIN)
    assert log_of(path).newest_version() == number  # it says so already
    with pytest.raises(CommitConflictError, match="version 3 is that of a deletion"):
        rollback_shuffle(path, 2)
    rollback_shuffle(path, 2, undo_deletions=True)
    merge_shuffle(path, policy=ALL)
    collect(path)
    assert 2 in keys_of(path)
    assert not erasure_status(path, receipt).is_gone


def test_a_rollback_while_rows_of_earlier_versions_are_searched_for(path):
    write(path, [1, 3], mode="overwrite")

    def first(put, _):
        rollback_shuffle(path, 2)
        put()

    with instead_of_first_entry(first) as puts:
        receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
    assert puts
    assert receipt.unsearched_version == 4
    collect(path)
    assert not erasure_status(path, receipt).is_gone


def test_a_deletion_and_a_rollback_at_the_same_time(path):
    """Whichever is first, the rows are not there after a deletion, or the rollback was told."""
    receipts = []
    with (
        instead_of_first_entry(
            lambda put, _: (receipts.append(delete_rows(path, {"k": [2]}, options=PLAIN)), put())
        ),
        pytest.raises(CommitConflictError, match="a deletion of rows"),
    ):
        rollback_shuffle(path, 1)
    assert 2 not in keys_of(path)
    collect(path)
    assert erasure_status(path, receipts[0]).is_gone


def test_only_receipts_of_what_was_undone_are_not_gone(path):
    before = delete_rows(path, {"k": [6]}, options=PLAIN)
    write(path, [7])
    undone = delete_rows(path, {"k": [2]}, options=PLAIN)
    rollback_shuffle(path, 4, undo_deletions=True)
    after = delete_rows(path, {"k": [3]}, options=PLAIN)
    collect(path)
    gone = [erasure_status(path, each).is_gone for each in (before, undone, after)]
    assert gone == [True, False, True]


def test_undo_deletions_is_a_flag(path):
    with pytest.raises(OptionError, match="undo_deletions=1: expected True or False"):
        rollback_shuffle(path, 1, undo_deletions=1)


# Logs that were restored --------------------------------------------------------------------------


@guarantee("undone deletions")
def test_a_log_that_was_restored_to_before_the_deletion_does_not_know_its_receipt(path, tmp_path):
    shutil.copytree(path, tmp_path / "backup")
    receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "backup", path)
    for key in (7, 8):
        write(path, [key])
        merge_shuffle(path, policy=ALL)
        collect(path)
        with pytest.raises(OptionError, match="restored or repaired since, the rows may be back"):
            erasure_status(path, receipt)
    assert holds(path)


# What the question costs --------------------------------------------------------------------------


@pytest.mark.parametrize("undone", [False, True])
def test_the_question_reads_as_much_of_a_long_log_as_of_a_short_one(path, undone):
    receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
    if undone:
        rollback_shuffle(path, 2, undo_deletions=True)
    reads = []
    with small_segments(segment=64, interval=4):
        for start, end in ((10, 30), (30, 190)):
            for key in range(start, end):
                write(path, [key])
            storage = RecordingStorage(path)
            versions = erasure_status(storage, receipt).versions
            assert versions[0] == (1, 2)
            reads.append(len(storage.others))
    assert reads[1] < reads[0] + 40, reads


# Pending commits ----------------------------------------------------------------------------------


def while_rewriting(monkeypatch, act):
    """Do something when a deletion has searched, before it writes its first file."""
    real = deletion.replace_outputs

    def replace_outputs(*arguments):
        act()
        return real(*arguments)

    monkeypatch.setattr(deletion, "replace_outputs", replace_outputs)


@guarantee("undone deletions")
def test_a_pending_commit_that_comes_while_files_are_written_is_in_the_receipt(path, monkeypatch):
    put_pending(path, [1])
    while_rewriting(monkeypatch, lambda: [put_pending(path, keys) for keys in ([9], [2, 8])])
    receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
    assert (receipt.version, receipt.pending, receipt.unsearched_version) == (6, (5,), 0)
    assert len(receipt.files) == 2
    flush_pending(path, options=PLAIN)
    collect(path)
    assert 2 in keys_of(path)
    status = erasure_status(path, receipt)
    assert (status.is_gone, status.flushed) == (False, (5,))


def test_a_pending_commit_that_is_flushed_meanwhile_was_not_searched(path, monkeypatch):
    while_rewriting(monkeypatch, lambda: (put_pending(path, [2]), flush_pending(path)))
    receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
    assert (receipt.pending, receipt.unsearched_version) == ((), 4)
    collect(path)
    assert not erasure_status(path, receipt).is_gone


def test_a_pending_commit_that_comes_when_only_earlier_versions_have_the_rows(path):
    write(path, [1, 3], mode="overwrite")
    with instead_of_first_entry(lambda put, _: (put_pending(path, [2]), put())):
        receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
    assert (receipt.num_rows, receipt.pending) == (0, (4,))


@guarantee("undone deletions")
@pytest.mark.parametrize(("n", "damaged"), [(5, False), (5, True), (4, True)])
def test_a_pending_commit_that_cannot_be_searched_may_have_the_rows(path, n, damaged):
    """Its subpartitions are others, or its file is damaged; a flush would bring the rows back."""
    before = {f for f in Path(path).rglob("*.data")}
    put_pending(path, [2, 7], n=n, mode="overwrite")
    if damaged:
        (data,) = {f for f in Path(path).rglob("*.data")} - before
        data.chmod(0o600)
        data.write_bytes(bytes(len(data.read_bytes())))
    receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
    assert receipt.pending == (3,)
    collect(path)
    assert not erasure_status(path, receipt).is_gone
    if not damaged:
        flush_pending(path, options=PLAIN)
        collect(path)
        assert 2 in keys_of(path)
        assert not erasure_status(path, receipt).is_gone
