"""When the rows of a deletion are gone: rollbacks, tags, merges, pending commits, restored logs."""

import shutil
import struct
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from arrow_format import (
    CommitConflictError,
    HashPartitioner,
    MergePolicy,
    OptionError,
    RangePartitioner,
    ShuffleNotFoundError,
    WriteOptions,
    delete_rows,
    drop_columns,
    erasure_status,
    flush_pending,
    merge_shuffle,
    open_shuffle,
    repair_shuffle,
    rollback_shuffle,
    tag_shuffle,
    untag_shuffle,
)
from arrow_format.jobs import delete_rows as deletion
from arrow_format.jobs.commit import commit_job
from arrow_format.keys.partitioner import partitioner_from_description
from arrow_format.log.changes import has_commit
from arrow_format.log.entry import decode_entry
from arrow_format.log.names import entry_path, expired_path
from arrow_format.model import Transaction
from tests.simulation.traces import layers
from tests.support.customers import status_after
from tests.support.exhaustive import every
from tests.support.guarantees import guarantee
from tests.support.interrupted_storage import (
    CHANGES,
    before_call,
    before_first_entry,
    dies_after,
)
from tests.support.logs import log_of
from tests.support.recording_storage import RecordingStorage
from tests.support.small_log import SEGMENT, small_segments
from tests.support.small_shuffles import begin, begun_with, collect, sorted_values, write_rows

PLAIN = WriteOptions(sync=False, codec="none", statistics=())
ALL = MergePolicy(rewrite="always")
SECRET = "SECRETSECRET"


def write(path, keys, names=None, mode="append", n=4, options=PLAIN, **how):
    table = pa.table({"k": keys, "name": names or [f"n{key}" for key in keys]})
    by = None if "partitioner" in how else "k"
    return write_rows(path, table, by, n=n, mode=mode, options=options, **how)


def put_pending(path, keys, n=4, mode="append"):
    rows = pa.record_batch({"k": keys, "name": [f"n{key}" for key in keys]})
    job, statuses = begun_with(path, rows, mode=mode, n=n, options=PLAIN)
    return commit_job(job, statuses, mode=mode, pending=True)


def holds(path, needle=SECRET):
    files = (f.read_bytes() for f in Path(path).rglob("*") if f.is_file())
    return any(needle.encode() in layer for data in files for layer in layers(data))


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
    merge_shuffle(path, policy=ALL, by="map_output")
    with pytest.raises(CommitConflictError, match="undo_deletions=True"):
        rollback_shuffle(path, "audit" if tagged else 1)
    rollback_shuffle(path, later)
    assert sorted_values(path, column="k") == [1, 3, 4, 5, 6, 7]
    if tagged:
        untag_shuffle(path, "audit")
    assert status_after(path, receipt).is_gone
    assert not holds(path)


@pytest.mark.slow
@guarantee("undone deletions")
@pytest.mark.parametrize("tagged", [False, True])
@pytest.mark.parametrize("by", ["map_output", "subpartition"])
def test_an_undone_deletion_is_never_gone(path, tagged, by):
    receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
    if tagged:
        tag_shuffle(path, "audit", 2)
        collect(path)
    undone = rollback_shuffle(path, "audit" if tagged else 2, undo_deletions=True).version
    assert 2 in sorted_values(path, column="k")
    merge_shuffle(path, by=by, policy=ALL)
    if tagged:
        untag_shuffle(path, "audit")
    newest = log_of(path).view().state.version
    # Within the kept log the status follows the rows into the merged file.
    assert erasure_status(path, receipt).versions[-1] == (undone, newest)
    collect(path, 2)
    write(path, [9])
    status = status_after(path, receipt, 2)
    assert (status.is_gone, status.rolled_back, status.files) == (False, undone, ())
    assert f"version {undone} was rolled back to one before the deletion" in str(status)
    assert "keep that receipt in the place of this one" in str(status)
    assert holds(path)
    # The second receipt counts, and the first one stays what it was.
    again = delete_rows(path, {"k": [2]}, options=PLAIN)
    assert again.num_rows == 1
    assert status_after(path, again).is_gone
    assert not holds(path)
    assert not erasure_status(path, receipt).is_gone


@pytest.mark.slow
def test_rows_that_come_back_and_go_by_versions(path):
    """What a merge or another deletion makes of files that hold the rows holds them too."""
    with small_segments(segment=32, interval=4):
        receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
        undone = rollback_shuffle(path, 2, undo_deletions=True).version
        for key in range(10, 20):
            write(path, [key])
        merged = merge_shuffle(path, policy=ALL, by="map_output").version
        other = delete_rows(path, {"k": [3]}, options=PLAIN)
        for key in range(30, 40):
            write(path, [key])
        last = log_of(path).view().state.version
        write(path, [60], mode="overwrite")
        for key in range(70, 80):
            write(path, [key])
        assert erasure_status(path, receipt).versions == ((1, 2), (undone, last))
        back = rollback_shuffle(path, other.version).version
        assert erasure_status(path, receipt).versions == (
            (1, 2), (undone, last), (back, back)
        )  # fmt: skip
        assert merged < other.version < last
        assert erasure_status(path, other).versions == ((1, other.version - 1),)
        assert erasure_status(path, other).rolled_back == 0


@pytest.mark.slow
def test_a_rollback_in_the_middle_of_a_checkpoint_is_not_passed_over(path):
    with small_segments(segment=64, interval=4):
        receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
        for key in range(70, 76):
            write(path, [key])
        undone = rollback_shuffle(path, 2, undo_deletions=True).version
        assert undone == 10  # the checkpoint at 12 begins at 8
        last = [write(path, [key]).version for key in range(10, 20)][-1]
        assert erasure_status(path, receipt).versions == ((1, 2), (undone, last))


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
    merge_shuffle(path, policy=ALL, by="map_output")
    collect(path)
    assert 2 in sorted_values(path, column="k")
    assert not erasure_status(path, receipt).is_gone


def test_a_rollback_while_rows_of_earlier_versions_are_searched_for(path):
    write(path, [1, 3], mode="overwrite")

    with before_first_entry(lambda: rollback_shuffle(path, 2)) as puts:
        receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
    assert puts
    assert receipt.unsearched_version == 4
    status = status_after(path, receipt)
    assert not status.is_gone
    assert "unsearched versions up to 4, appended while the deletion ran" in str(status)
    assert "unsearched" not in str(replace(status, unsearched_version=0))


def test_a_deletion_and_a_rollback_at_the_same_time(path):
    """Whichever is first, the rows are not there after a deletion, or the rollback was told."""
    receipts = []
    with (
        before_first_entry(lambda: receipts.append(delete_rows(path, {"k": [2]}, options=PLAIN))),
        pytest.raises(CommitConflictError, match="a deletion of rows"),
    ):
        rollback_shuffle(path, 1)
    assert 2 not in sorted_values(path, column="k")
    collect(path)
    assert erasure_status(path, receipts[0]).is_gone


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_drop_erases_nothing_and_the_status_says_so(path):
    receipt = delete_rows(path, {"k": [1]}, options=PLAIN)
    assert status_after(path, receipt).files_with_dropped_columns == 0
    drop_columns(path, "name")
    status = status_after(path, receipt)
    num_files = sum(len(output.files) for output in open_shuffle(path).map_outputs)
    assert status.files_with_dropped_columns == num_files > 0
    assert status.is_gone, "of the rows of the receipt, which the drop has nothing to do with"
    assert f"{num_files} files of the newest version have columns that were dropped" in str(status)
    merge_shuffle(path, policy=ALL, by="map_output")
    assert status_after(path, receipt).files_with_dropped_columns == 0
    assert "dropped" not in str(erasure_status(path, receipt))


@guarantee("undone deletions")
def test_a_log_that_was_restored_to_before_the_deletion_does_not_know_its_receipt(path, tmp_path):
    shutil.copytree(path, tmp_path / "backup")
    receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "backup", path)
    for key in (7, 8):
        write(path, [key])
        merge_shuffle(path, policy=ALL, by="map_output")
        collect(path)
        with pytest.raises(OptionError, match="restored or repaired since, the rows may be back"):
            erasure_status(path, receipt)
    assert holds(path)


# What the question costs --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("undone", [False, True])
def test_the_question_reads_as_much_of_a_long_log_as_of_a_short_one(path, undone):
    receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
    if undone:
        rollback_shuffle(path, 2, undo_deletions=True)
    reads = []
    with small_segments(segment=32, interval=4):
        for start, end in ((10, 20), (20, 60)):
            for key in range(start, end):
                write(path, [key])
            storage = RecordingStorage(path)
            versions = erasure_status(storage, receipt).versions
            assert versions[0] == (1, 2)
            reads.append(len(storage.others))
    assert reads[1] < reads[0] + 20, reads


# Bounds and statistics in the log -----------------------------------------------------------------


def log_files(path):
    return [decode_entry(f.read_bytes()) for f in Path(path, "commit_log").rglob("*.*")]


def values_in_log(path):
    """All bounds of files and of ranges in all files of the log, decoded."""
    values = []
    for entry in log_files(path):
        values += [v for of in entry.map_outputs.bounds().values() for v in of.to_pylist()]
        for shape in filter(None, (entry.state.shape, entry.pending_shape)):
            if shape.partitioner["kind"] == "range":
                bounds = partitioner_from_description(shape.partitioner).bounds
                values += [str(v).encode() for row in bounds.to_pylist() for v in row.values()]
    return values


SALARY = 987654321.5


def with_salary(path, keys, names, salaries, mode="append", **how):
    table = pa.table({"k": keys, "name": names, "salary": salaries})
    options = WriteOptions(sync=False, codec="none", **how)
    write_rows(path, table, "k", n=4, mode=mode, options=options)


@pytest.mark.slow
@guarantee("erased bounds")
@pytest.mark.parametrize(
    ("statistics", "columns"),
    [(None, ("salary",)), (("name", "salary"), ("name", "salary")), ((), ())],
)
@pytest.mark.parametrize("merged", [False, True])
def test_bounds_of_other_columns_keep_the_receipt_open(tmp_path, statistics, columns, merged):
    path = str(tmp_path / "x")
    how = {} if statistics is None else {"statistics": statistics}
    with_salary(path, [1, 2, 3], ["mm", f"ZZ{SECRET}", "oo"], [1.0, SALARY, 3.0], **how)
    with_salary(path, [4, 5], ["zzz", "aa"], [1e300, -1.0], **how)  # bounds of a merged file
    if merged:
        merge_shuffle(path, policy=ALL, by="map_output")
    receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
    assert receipt.statistics_columns == columns
    status = status_after(path, receipt, 3)
    assert (status.is_gone, status.statistics_columns) == (not columns, columns)
    assert ("--compact-log" in str(status)) is bool(columns)
    secrets = {f"ZZ{SECRET}".encode(), struct.pack("<d", SALARY)}
    assert bool(secrets & {*values_in_log(path)}) is bool(columns)
    assert status_after(path, receipt, compact_log=True).is_gone
    assert not secrets & {*values_in_log(path)}
    assert not holds(path)
    assert not any(struct.pack("<d", SALARY) in f.read_bytes() for f in tmp_path.rglob("*.*"))
    # Of what is left there is nothing to find.
    nothing = delete_rows(path, {"k": [2]}, options=PLAIN)
    assert nothing.statistics_columns == ()
    assert sorted_values(path, column="k") == [1, 3, 4, 5]


@pytest.mark.slow
@guarantee("erased bounds")
def test_a_bound_that_only_the_base_has_keeps_the_receipt_open(tmp_path):
    path = str(tmp_path / "x")
    with_salary(path, [1, 2, 3], ["mm", "nn", "oo"], [1.0, SALARY, 2.0])
    with_salary(path, [5, 6], ["zzz", "aa"], [0.5, 2e9])
    # The entries of both files become blank.
    assert collect(path, compact_log=True).expired_versions == (1,)
    merge_shuffle(path, policy=ALL, by="map_output")  # whose bounds are others
    collect(path)
    receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
    collect(path)
    assert struct.pack("<d", SALARY) in values_in_log(path)
    assert "salary" in receipt.statistics_columns
    assert not erasure_status(path, receipt).is_gone
    assert status_after(path, receipt, compact_log=True).is_gone
    assert struct.pack("<d", SALARY) not in values_in_log(path)


@pytest.mark.slow
@guarantee("erased bounds")
def test_a_deleted_key_that_was_a_bound_of_a_small_file(tmp_path):
    path = str(tmp_path / "x")
    options = WriteOptions(sync=False, codec="none", statistics=("k",))
    write(path, ["pp", "SECRETKEY", "qq"], options=options)
    write(path, ["AA", "zz"], options=options)
    merge_shuffle(path, policy=ALL, by="map_output")
    other = delete_rows(path, {"k": ["ppp"]}, options=PLAIN)
    receipt = delete_rows(path, {"k": ["SECRETKEY"]}, options=PLAIN)
    # Bounds that are no key that was given are not of its rows; a cut one may be.
    assert (other.statistics_columns, receipt.statistics_columns) == ((), ("k",))
    assert delete_rows(path, {"k": ["none"]}).statistics_columns == ()
    assert not status_after(path, receipt, 3).is_gone
    assert holds(path, "SECRETKEY")
    assert status_after(path, receipt, compact_log=True).is_gone
    assert not holds(path, "SECRETKEY")
    long = "a" * 16 + "SECRET"
    write(path, [long, "b"], options=options)
    write(path, ["c"], options=options)
    assert delete_rows(path, {"k": [long]}, options=PLAIN).statistics_columns == ("k",)


@guarantee("erased bounds")
def test_rows_of_the_key_that_were_overwritten_left_bounds_too(tmp_path):
    path = str(tmp_path / "x")
    with_salary(path, [1, 2], ["a", "b"], [1.0, SALARY])
    with_salary(path, [1], ["a"], [1.0], mode="overwrite", statistics=())
    collect(path)
    receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
    assert (receipt.num_rows, receipt.files, receipt.statistics_columns) == (0, (), ("salary",))
    assert not erasure_status(path, receipt).is_gone
    assert status_after(path, receipt, compact_log=True).is_gone
    assert struct.pack("<d", SALARY) not in values_in_log(path)


@pytest.mark.slow
@guarantee("erased bounds")
@pytest.mark.parametrize("back", [False, True])
def test_range_bounds_keep_the_receipt_open_until_no_entry_has_them(tmp_path, back):
    path = str(tmp_path / "x")
    by = RangePartitioner("k", bounds=["SECRETKEY", "aaa", "mmm"])
    write(path, ["SECRETKEY", "b"], partitioner=by)
    write(path, ["c"], partitioner=by)
    receipt = delete_rows(path, {"k": ["SECRETKEY"]}, options=PLAIN)
    assert receipt.bound_columns == ("k",)
    assert status_after(path, receipt, compact_log=True).bound_columns == ("k",)
    write(path, ["d", "e"], mode="overwrite", partitioner=RangePartitioner("k", bounds=["d"]), n=2)
    if back:
        rollback_shuffle(path, receipt.version)
    assert not status_after(path, receipt, 3).is_gone
    status = status_after(path, receipt, compact_log=True)
    assert (status.is_gone, b"SECRETKEY" in values_in_log(path)) == (not back, back)
    if back:  # overwritten with the same bounds they are there still
        write(path, ["f"], mode="overwrite", partitioner=by)
        assert not status_after(path, receipt, compact_log=True).is_gone
        write(path, ["f"], mode="overwrite")
        assert status_after(path, receipt, compact_log=True).is_gone


@guarantee("erased bounds")
@pytest.mark.parametrize(
    "later",
    [HashPartitioner("k"), RangePartitioner("k", bounds=["b", "d", "x"]), HashPartitioner("name")],
    ids=["hash", "other bounds", "another key"],
)
@pytest.mark.parametrize("rows", [["SECRETKEY", "b"], []], ids=["rows", "no rows"])
def test_range_bounds_of_an_earlier_shape_keep_the_receipt_open(tmp_path, later, rows):
    """Overwritten with other bounds before the deletion, as one is told to."""
    path = str(tmp_path / "x")
    by = RangePartitioner("k", bounds=["SECRETKEY", "aaa", "mmm"])
    write(path, pa.array(rows, pa.string()), mode="overwrite", partitioner=by)
    write(path, ["SECRETKEY", "c"], mode="overwrite", partitioner=later)
    others, keys = (
        ({"name": ["nnone"]}, {"name": ["nSECRETKEY"]})
        if later.keys == ("name",)
        else ({"k": ["none"]}, {"k": ["SECRETKEY"]})
    )
    # Whose values of other columns the bounds were is not known.
    assert delete_rows(path, others).statistics_columns == (("k",) if "name" in keys else ())
    receipt = delete_rows(path, keys, options=PLAIN)
    assert (receipt.bound_columns, receipt.statistics_columns) == ((), ("k",))
    assert not status_after(path, receipt, 3).is_gone
    assert b"SECRETKEY" in values_in_log(path)
    assert status_after(path, receipt, compact_log=True).is_gone
    assert b"SECRETKEY" not in values_in_log(path)


@guarantee("erased bounds")
def test_range_bounds_of_an_empty_version_in_between_keep_the_receipt_open(tmp_path):
    """Of its job there are no map outputs that the newest version could lack."""
    path = str(tmp_path / "x")
    by = RangePartitioner("k", bounds=["SECRETKEY"])
    write(path, ["a"])
    schema = pa.schema([("k", pa.string()), ("name", pa.string())])
    commit_job(begin(path, schema, 2, by, PLAIN), [], mode="overwrite")
    write(path, ["SECRETKEY", "b"], mode="overwrite")
    receipt = delete_rows(path, {"k": ["SECRETKEY"]}, options=PLAIN)
    assert receipt.statistics_columns == ("k",)
    collect(path, compact_log=True)
    assert b"SECRETKEY" not in values_in_log(path)


@guarantee("erased bounds")
def test_range_bounds_of_entries_that_were_put_back_keep_the_receipt_open(tmp_path):
    """Though of those that are looked at none has them: only the ends of a segment are."""
    path = str(tmp_path / "x")
    by = RangePartitioner("k", bounds=["SECRETKEY", "aaa", "mmm"])
    write(path, ["SECRETKEY", "b"], partitioner=by)
    write(path, ["c"], partitioner=by)
    receipt = delete_rows(path, {"k": ["SECRETKEY"]}, options=PLAIN)
    for keys in (["d"], ["e"], ["f"]):
        write(path, keys, mode="overwrite" if keys == ["d"] else "append")
    copies = {number: Path(path, entry_path(number)).read_bytes() for number in range(2, 6)}
    assert status_after(path, receipt, compact_log=True).is_gone
    for number, content in copies.items():
        Path(path, entry_path(number)).write_bytes(content)
    assert erasure_status(path, receipt).bound_columns == ("k",)
    assert status_after(path, receipt, compact_log=True).is_gone


@guarantee("erased bounds")
def test_tags_and_what_a_repair_moved_aside_have_bounds_too(tmp_path):
    path = str(tmp_path / "x")
    with_salary(path, [1, 2], ["a", "b"], [1.0, SALARY])
    tag_shuffle(path, "old")
    receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
    assert status_after(path, receipt, compact_log=True).statistics_columns == ("salary",)
    untag_shuffle(path, "old")
    assert erasure_status(path, receipt).statistics_columns == ("salary",)  # its file is there
    assert status_after(path, receipt, compact_log=True).is_gone
    aside = tmp_path / "x/commit_log/damaged/1.entry"
    aside.parent.mkdir()
    aside.write_bytes(b"")
    assert erasure_status(path, receipt).statistics_columns == ("salary",)


@pytest.mark.slow
def test_segments_that_are_removed_take_the_bounds_with_them(tmp_path):
    """Without being asked to, later."""
    path = str(tmp_path / "x")
    with small_segments(segment=8, interval=4):
        with_salary(path, [1, 2], ["a", "b"], [1.0, SALARY])
        receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
        for key in range(10, 20):
            with_salary(path, [key], ["c"], [2.0])
        assert not status_after(path, receipt).is_gone
        assert status_after(path, receipt).is_gone
        assert struct.pack("<d", SALARY) not in values_in_log(path)


@pytest.mark.slow
def test_segments_that_wait_for_their_removal_are_searched_for_bounds(tmp_path):
    path, other = str(tmp_path / "x"), str(tmp_path / "other")
    with small_segments(segment=8, interval=4, delay_ms=600_000):
        for each, statistics in ((path, ("salary",)), (other, ())):
            how = {"statistics": statistics}
            with_salary(each, [1, 2], ["a", "b"], [1.0, SALARY], **how)
            for key in range(10, 20):
                with_salary(each, [key], ["c"], [2.0], **how)
            merge_shuffle(each, policy=ALL, by="map_output")
            collect(each, 2)
            assert log_of(each).segments_before(log_of(each).view())
            assert delete_rows(each, {"k": [2]}, options=PLAIN).statistics_columns == statistics


# Logs that are compacted --------------------------------------------------------------------------


@pytest.mark.slow
def test_who_reads_or_writes_while_the_log_is_compacted(path, tmp_path):
    """At any moment of both a reader gets the newest rows, and a writer adds its own."""
    for key in range(7, 20):
        write(path, [key])
    copy, expected = str(tmp_path / "copy"), sorted_values(path, column="k")
    calls = ("read", "list", "put_if_absent", "stat")
    for number in every(8):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(path, copy)
        with before_call(number, lambda: collect(copy, compact_log=True), calls) as came:
            assert sorted_values(copy, column="k") == expected
            try:
                write(copy, [99])
            except CommitConflictError as error:  # it has retention 0
                assert "given up by garbage collection" in str(error)  # noqa: PT017
                write(copy, [99])
        assert sorted_values(copy, column="k") == [*expected, 99]
        collect(copy, compact_log=True)
        assert sorted_values(copy, column="k") == [*expected, 99]
        assert repair_shuffle(copy).is_sound
        if not came:
            break
    assert number > 10


@pytest.mark.slow
def test_a_compaction_that_dies_goes_on_with_the_next(path, tmp_path):
    receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
    copy = str(tmp_path / "copy")
    for calls in count():
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(path, copy)
        died = dies_after(
            calls, lambda: collect(copy, compact_log=True), (*CHANGES, "replace", "delete_all")
        )
        assert sorted_values(copy, column="k") == [1, 3, 4, 5, 6]
        write(copy, [7])
        collect(copy, compact_log=True)
        assert sorted_values(copy, column="k") == [1, 3, 4, 5, 6, 7]
        assert {entry.operation for entry in log_files(copy) if entry.version < 4} == {"blank"}
        assert erasure_status(copy, receipt).is_gone
        if not died:
            break
    assert calls > 5


def test_a_compacted_log_knows_its_jobs_transactions_and_commits(path):
    once = Transaction("app", 1)
    write(path, [8], transaction=once)
    rows = pa.record_batch({"k": [9], "name": ["n"]})
    job, statuses = begun_with(path, rows, n=4, options=PLAIN)
    version = commit_job(job, statuses, mode="append").version
    commit_id = log_of(path).record(version).commit_id
    write(path, [10])
    collect(path, compact_log=True)
    log = log_of(path)
    assert {log.named(n).operation for n in range(1, version + 1)} == {"blank"}
    assert log.find_job(job.job_id).version == version
    assert has_commit(log, log.view(), version, commit_id)
    assert write(path, [8], transaction=once).is_repetition
    assert sorted_values(path, column="k") == [1, 2, 3, 4, 5, 6, 8, 9, 10]
    with pytest.raises(ShuffleNotFoundError, match="has expired"):
        open_shuffle(path, version)


def test_what_is_pending_or_tagged_is_kept_when_the_log_is_compacted(path):
    number = put_pending(path, [7]).version
    tag_shuffle(path, "old", 1)
    write(path, [8])
    collect(path, 2, compact_log=True)
    assert sorted_values(path, "old", "k") == [1, 2, 3, 4]
    assert log_of(path).view().state.base == number
    flush_pending(path, options=PLAIN)
    assert sorted_values(path, column="k") == [1, 2, 3, 4, 5, 6, 7, 8]
    collect(path, compact_log=True)
    assert sorted_values(path, column="k") == [1, 2, 3, 4, 5, 6, 7, 8]


def test_compact_log_is_a_flag_and_a_dry_run_changes_nothing(path):
    with pytest.raises(OptionError, match="compact_log=1: expected True or False"):
        collect(path, compact_log=1)
    before = {f: f.read_bytes() for f in Path(path).rglob("*") if f.is_file()}
    collect(path, compact_log=True, dry_run=True)
    assert before == {f: f.read_bytes() for f in Path(path).rglob("*") if f.is_file()}


def test_a_log_in_a_store_is_compacted(s3):
    path = f"s3://{s3.new_bucket('compact')}/x"
    how = {"storage_options": s3.options}
    table = pa.table({"k": [1, 2], "salary": [1.0, SALARY]})
    for _ in range(2):
        write_rows(path, table, "k", n=2, mode="append", **how)
    receipt = delete_rows(path, {"k": [2]}, **how)
    collect(path, **how)
    assert erasure_status(path, receipt, **how).statistics_columns == ("salary",)
    collect(path, compact_log=True, **how)
    assert erasure_status(path, receipt, **how).is_gone
    assert open_shuffle(path, **how).read().read_all()["k"].to_pylist() == [1, 1]


# Pending commits ----------------------------------------------------------------------------------


def while_rewriting(monkeypatch, act):
    """Do something when a deletion has searched, before it writes its first file."""
    real = deletion.replace_outputs

    def replace_outputs(*arguments):
        act()
        return real(*arguments)

    monkeypatch.setattr(deletion, "replace_outputs", replace_outputs)


@pytest.mark.slow
@guarantee("undone deletions")
def test_a_pending_commit_that_comes_while_files_are_written_is_in_the_receipt(path, monkeypatch):
    put_pending(path, [1])
    while_rewriting(monkeypatch, lambda: [put_pending(path, keys) for keys in ([9], [2, 8])])
    receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
    assert (receipt.version, receipt.pending, receipt.unsearched_version) == (6, (5,), 0)
    assert len(receipt.files) == 2
    flush_pending(path, options=PLAIN)
    collect(path)
    assert 2 in sorted_values(path, column="k")
    status = erasure_status(path, receipt)
    assert (status.is_gone, status.flushed) == (False, (5,))


def test_a_pending_commit_that_is_flushed_meanwhile_was_not_searched(path, monkeypatch):
    while_rewriting(monkeypatch, lambda: (put_pending(path, [2]), flush_pending(path)))
    receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
    assert (receipt.pending, receipt.unsearched_version) == ((), 4)
    assert not status_after(path, receipt).is_gone


def test_a_pending_commit_that_comes_when_only_earlier_versions_have_the_rows(path):
    write(path, [1, 3], mode="overwrite")
    with before_first_entry(lambda: put_pending(path, [2])):
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
    assert not status_after(path, receipt).is_gone
    if not damaged:
        flush_pending(path, options=PLAIN)
        collect(path)
        assert 2 in sorted_values(path, column="k")
        assert not erasure_status(path, receipt).is_gone


@guarantee("erased bounds")
@pytest.mark.parametrize("restored", ["all", "one"])
def test_a_copy_of_the_log_over_a_compacted_one_opens_the_receipt_again(tmp_path, restored):
    path = str(tmp_path / "x")
    options = WriteOptions(sync=False, codec="none", statistics=("k",))
    write(path, ["pp", "SECRETKEY", "qq"], options=options)
    write(path, ["AA"], options=options)
    shutil.copytree(f"{path}/commit_log", tmp_path / "copy")
    receipt = delete_rows(path, {"k": ["SECRETKEY"]}, options=PLAIN)
    assert status_after(path, receipt, compact_log=True).is_gone
    if restored == "all":
        shutil.copytree(tmp_path / "copy", f"{path}/commit_log", dirs_exist_ok=True)
    else:
        shutil.copy(tmp_path / "copy" / entry_file(1), f"{path}/commit_log/{entry_file(1)}")
    assert not erasure_status(path, receipt).is_gone
    assert b"SECRETKEY" in values_in_log(path)
    assert status_after(path, receipt, compact_log=True).is_gone
    assert b"SECRETKEY" not in values_in_log(path)


def entry_file(number):
    return entry_path(number).removeprefix("commit_log/")


@pytest.mark.slow
@guarantee("erased bounds")
@pytest.mark.parametrize("blank", ["all before", "some before"])
def test_a_segment_that_is_being_removed_is_compacted_and_asked_about(tmp_path, blank):
    """For some minutes after its list was put, all of its entries are there."""
    path, others = str(tmp_path / "x"), RangePartitioner("k", bounds=["d"])
    with small_segments(delay_ms=600_000):
        write(path, ["SECRETKEY"], partitioner=RangePartitioner("k", bounds=["SECRETKEY"]), n=2)
        receipt = delete_rows(path, {"k": ["SECRETKEY"]}, options=PLAIN)
        write(path, ["d", "e"], mode="overwrite", partitioner=others, n=2)
        collect(path, compact_log=True)
        for value in range(2 * SEGMENT):
            write(path, [f"x{value}"], partitioner=others, n=2)
        for _ in range(2):
            collect(path, compact_log=blank == "all before")
            assert (tmp_path / "x" / expired_path(0)).exists()
            assert (tmp_path / "x" / entry_path(1)).exists()
            assert erasure_status(path, receipt).is_gone


@pytest.mark.slow
@guarantee("erased bounds")
def test_bounds_that_are_given_again_are_found_by_another_deletion(tmp_path):
    """A receipt has no keys: what is written after the compaction is not looked through for it."""
    path = str(tmp_path / "x")
    by = RangePartitioner("k", bounds=["SECRETKEY", "m"])
    write(path, ["SECRETKEY", "b"], partitioner=by, n=3)
    receipt = delete_rows(path, {"k": ["SECRETKEY"]}, options=PLAIN)
    write(path, ["d"], mode="overwrite", partitioner=RangePartitioner("k", bounds=["d", "m"]), n=3)
    assert status_after(path, receipt, compact_log=True).is_gone
    write(path, ["d"], mode="overwrite", partitioner=by, n=3)
    assert status_after(path, receipt, compact_log=True).is_gone
    again = delete_rows(path, {"k": ["SECRETKEY"]}, options=PLAIN)
    assert (again.num_rows, again.bound_columns) == (0, ("k",))
    assert status_after(path, again, compact_log=True).bound_columns == ("k",)
    write(path, ["d"], mode="overwrite", partitioner=RangePartitioner("k", bounds=["d", "m"]), n=3)
    assert status_after(path, again, compact_log=True).is_gone
    assert b"SECRETKEY" not in values_in_log(path)
