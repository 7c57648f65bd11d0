"""Deletion of the rows of given keys, and when their last byte is gone."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import (
    BroadcastPartitioner,
    ColumnPartitioner,
    CommitConflictError,
    CorruptShuffleError,
    DeletionReceipt,
    OptionError,
    RangePartitioner,
    ResultReleasedError,
    RoundRobinPartitioner,
    SchemaError,
    ShuffleNotFoundError,
    collect_garbage,
    delete_rows,
    erasure_status,
    flush_pending,
    merge_shuffle,
    open_shuffle,
    open_shuffle_changes,
    release_shuffle,
)
from arrow_format.jobs import delete_rows as module
from arrow_format.jobs.commit import commit_job
from arrow_format.keys.key_set import KeySet
from arrow_format.model import DATA_SUFFIX
from arrow_format.write.row_deleter import RowDeleter
from tests.support.customers import (
    TINY,
    N,
    append,
    append_tasks,
    contents,
    rows,
    status_after,
    without,
)
from tests.support.exhaustive import every
from tests.support.foreign_writer import check_but_for_broadcasts
from tests.support.guarantees import guarantee
from tests.support.held_bytes import held_bytes, raw_bytes
from tests.support.interrupted_storage import (
    before_first_entry,
    dies_after,
)
from tests.support.logs import log_of
from tests.support.own_partitioner import OwnPartitioner
from tests.support.small_shuffles import begun_with, collect, files_below, write_rows

NONE = replace(TINY, codec="none")


def put(path, table, keys="k", *, n=N, **how):
    """Append a table as one map output."""
    return write_rows(path, table, keys, n=n, mode="append", **{"options": TINY, **how})


def check_totals(path):
    """What the log says of each subpartition is what is read, and adds up to the files."""
    shuffle = open_shuffle(path)
    assert shuffle.subpartition_rows.to_pylist() == [len(table) for table in contents(path)]
    assert sum(shuffle.subpartition_bytes.to_pylist()) == shuffle.num_bytes
    check_but_for_broadcasts(shuffle)


# What is deleted ----------------------------------------------------------------------------------


@pytest.mark.slow
@guarantee("deleted rows")
@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("sort_by", [(), (("s", "descending"), ("v", "ascending"))])
def test_rows_of_the_keys_are_deleted_and_all_others_stay_as_they_were(tmp_path, codec, sort_by):
    options = replace(TINY, codec=codec)
    for start in (0, 400, 800):
        append_tasks(tmp_path, start, sort_by=sort_by, options=options)
    before = contents(tmp_path)
    counts = open_shuffle(tmp_path).subpartition_rows.to_numpy()
    receipt = delete_rows(tmp_path, {"k": [3, 17, 999, 3]}, options=options)
    assert contents(tmp_path) == without(before, {3, 17})
    assert contents(tmp_path, 3) == before
    check_totals(tmp_path)
    lost = counts - open_shuffle(tmp_path).subpartition_rows.to_numpy()
    assert receipt.subpartition_rows == {i: lost[i] for i in range(N) if lost[i]}
    assert (receipt.version, receipt.searched_version, receipt.num_keys) == (4, 3, 4)
    assert receipt.num_rows == 60
    entry = log_of(tmp_path).entry(4)
    assert (entry.operation, entry.adds_rows) == ("delete", False)
    assert {file.data_path.rpartition(".")[2] for o in entry.map_outputs for file in o.files} == {
        "data"
    }


def test_only_map_outputs_with_such_rows_are_rewritten(tmp_path):
    append(tmp_path, 0)
    (others,) = without([rows(400)], {3})
    put(tmp_path, others)
    before = open_shuffle(tmp_path).map_outputs
    receipt = delete_rows(tmp_path, {"k": [3]}, options=TINY)
    after = open_shuffle(tmp_path).map_outputs
    assert after[1] == before[1]
    assert after[0].position == before[0].position
    assert receipt.num_files == 1
    assert receipt.num_bytes == before[0].num_bytes
    assert receipt.written_bytes == after[0].num_bytes
    # A region without such rows is copied as it is stored.
    assert after[0].files[0].num_regions == before[0].files[0].num_regions


def test_a_file_and_a_map_output_of_which_no_row_is_left(tmp_path):
    for k in (1, 2):
        table = pa.table({"k": [k] * 20, "v": range(20)})
        put(tmp_path, table)
    delete_rows(tmp_path, {"k": [1]}, options=TINY)
    assert len(open_shuffle(tmp_path).map_outputs) == 1
    delete_rows(tmp_path, {"k": [2]}, options=TINY)
    assert (open_shuffle(tmp_path).num_rows, len(open_shuffle(tmp_path).map_outputs)) == (0, 0)
    check_totals(tmp_path)
    put(tmp_path, table)
    assert open_shuffle(tmp_path).num_rows == 20


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_broadcast_rows_are_deleted_in_every_subpartition(tmp_path, codec):
    append_tasks(tmp_path, 0, options=replace(TINY, codec=codec))
    before = contents(tmp_path)
    assert sum(len(table) for table in before) > 400
    receipt = delete_rows(tmp_path, {"k": [5, 10]}, options=TINY)
    assert contents(tmp_path) == without(before, {5, 10})
    assert len(receipt.subpartition_rows) == N
    check_totals(tmp_path)


@pytest.mark.slow
def test_map_outputs_in_several_files_and_directories(tmp_path, monkeypatch):
    monkeypatch.setattr("arrow_format.write.map_output.MAX_INDEX_BYTES", 1)
    disks = (str(tmp_path / "disk1"), str(tmp_path / "disk2"))
    options = replace(TINY, local_dirs=disks)
    append_tasks(tmp_path / "x", 0, options=options)
    files = [file for o in open_shuffle(tmp_path / "x").map_outputs for file in o.files]
    assert len(files) > 3
    assert len({file.root for file in files}) == 3
    before = contents(tmp_path / "x")
    receipt = delete_rows(tmp_path / "x", {"k": [3]}, options=options)
    assert contents(tmp_path / "x") == without(before, {3})
    check_totals(tmp_path / "x")
    assert not erasure_status(tmp_path / "x", receipt).is_gone
    status = status_after(tmp_path / "x", receipt, compact_log=True)
    assert status.is_gone, status
    assert b"customer 3!" not in held_bytes(tmp_path)
    assert contents(tmp_path / "x") == without(before, {3})


def test_a_directory_that_is_not_mounted_is_not_taken_for_removed(tmp_path):
    options = replace(TINY, local_dirs=(str(tmp_path / "disk1"),))
    append_tasks(tmp_path / "x", 0, options=options)
    receipt = delete_rows(tmp_path / "x", {"k": [3]}, options=TINY)
    collect(tmp_path / "x")
    (tmp_path / "disk1").rename(tmp_path / "elsewhere")
    status = erasure_status(tmp_path / "x", receipt)
    assert not status.is_gone
    assert len(status.unreachable) == 1
    (tmp_path / "elsewhere").rename(tmp_path / "disk1")
    assert erasure_status(tmp_path / "x", receipt).is_gone


@pytest.mark.parametrize(
    ("type_", "values", "key"),
    [
        (pa.float64(), [0.0, -0.0, float("nan"), None, 1.0], -0.0),
        (pa.float64(), [0.0, -0.0, float("nan"), None, 1.0], float("nan")),
        (pa.string(), ["a", None, "", "b", "a"], None),
        (pa.binary(), [b"\0", b"", b"\0\0", None, b"a"], b"\0"),
        (pa.decimal128(20, 2), [Decimal("1.50"), Decimal(2), None, Decimal(3), Decimal(4)],
         Decimal("1.5")),
        (pa.timestamp("us", "UTC"), [0, 1, None, 10**15, -5], datetime.fromtimestamp(10**9, UTC)),
        (pa.struct([("a", pa.int32()), ("b", pa.string())]),
         [{"a": 1, "b": "x"}, {"a": 1, "b": None}, None, {"a": None, "b": "x"}, {"a": 2, "b": "x"}],
         {"b": "x", "a": 1}),
        (pa.list_(pa.int64()), [[1], [], None, [1, 2], [None]], []),
    ],
)  # fmt: skip
def test_keys_are_equal_as_spark_groups_them(tmp_path, type_, values, key):
    column = pa.array(values * 3, type_)
    table = pa.table({"k": column, "v": range(len(column))})
    put(tmp_path, table, n=3, for_spark=False)
    grouped = [
        v
        for v, value in enumerate(column.to_pylist())
        if repr(value) == repr(pa.scalar(key, type_).as_py())
        or (isinstance(key, float) and value == key)
    ]
    receipt = delete_rows(tmp_path, {"k": [key]}, options=TINY)
    left = open_shuffle(tmp_path).read().read_all()["v"].to_pylist()
    assert sorted(left) == [v for v in range(len(column)) if v not in grouped]
    assert receipt.num_rows == len(grouped) >= 3


def test_keys_are_cast_to_the_stored_types(tmp_path):
    table = pa.table({"k": pa.array([1, 2, 3], pa.int32()), "d": pa.array(["a", "b", "c"])})
    put(tmp_path, table, ["k", "d"], n=3)
    keys = pa.table({"d": pa.array(["b"]).dictionary_encode(), "k": pa.array(["2"])})
    assert delete_rows(tmp_path, keys, options=TINY).num_rows == 1
    batch = pa.record_batch({"d": pa.array(["c"], pa.large_string()), "k": np.array([3.0])})
    assert delete_rows(tmp_path, batch, options=TINY).num_rows == 1
    assert open_shuffle(tmp_path).read().read_all()["k"].to_pylist() == [1]


def test_ranges_decide_the_subpartition_too_and_bounds_are_reported(tmp_path):
    partitioner = RangePartitioner("k", bounds=[5, 17, 30])
    append(tmp_path, 0, partitioner=partitioner)
    before = contents(tmp_path)
    receipt = delete_rows(tmp_path, {"k": [17, 18]}, options=TINY)
    assert contents(tmp_path) == without(before, {17, 18})
    assert receipt.bound_columns == ("k",)
    assert "bounds" in str(receipt)
    check_totals(tmp_path)
    again = delete_rows(tmp_path, {"k": [20]}, options=TINY)
    assert again.bound_columns == ()
    status = status_after(tmp_path, receipt)
    assert not status.is_gone
    assert status.bound_columns == ("k",)
    assert "bounds" in str(status)


def test_nothing_to_do_is_no_version(tmp_path):
    append(tmp_path, 0)
    for keys in ({"k": []}, {"k": [1_000]}, rows(0).select(["k"]).slice(0, 0)):
        receipt = delete_rows(tmp_path, keys)
        assert (receipt.version, receipt.num_rows, receipt.files) == (1, 0, ())
        assert (receipt.num_files, receipt.num_bytes, receipt.written_bytes) == (0, 0, 0)
    assert open_shuffle(tmp_path).version == 1
    assert "no row" in str(receipt)


def test_progress_counts_stored_bytes(tmp_path):
    append(tmp_path, 0)
    counted = []
    delete_rows(tmp_path, {"k": [1]}, options=TINY, on_bytes=counted.append)
    data = open_shuffle(tmp_path, 1).map_outputs[0].num_bytes
    assert min(counted) > 0
    assert sum(counted) <= 2 * data


# Readers of changes -------------------------------------------------------------------------------


def test_a_deletion_adds_no_rows_for_who_follows_the_shuffle(tmp_path):
    append(tmp_path, 0)
    delete_rows(tmp_path, {"k": [1]}, options=TINY)
    append(tmp_path, 400)
    assert open_shuffle_changes(tmp_path, 1, 2).num_rows == 0
    added = open_shuffle_changes(tmp_path, 1).read().read_all()
    assert sorted(added["v"].to_pylist()) == list(range(400, 800))


# Bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "error", "says"),
    [
        ({"key": [1]}, SchemaError, "'k' is missing"),
        ({"k": [1], "v": [1]}, SchemaError, "'v' is not a key column"),
        ({"k": ["x"]}, SchemaError, "does not fit the stored type int64"),
        ({"k": [1.5]}, SchemaError, "does not fit"),
        ({"k": [1 << 70]}, SchemaError, "does not fit"),
        ({"k": pa.array([1.5])}, SchemaError, "does not fit"),
        ({"k": np.array([1.5])}, SchemaError, "does not fit"),
        ({"k": True}, SchemaError, "values are bool"),
        ([1, 2], OptionError, "key_values is list"),
        (None, OptionError, "key_values is NoneType"),
        (pa.table([[1], [1]], ["k", "k"]), SchemaError, "twice"),
    ],
)
def test_keys_that_do_not_fit(tmp_path, keys, error, says):
    append(tmp_path, 0)
    before = files_below(tmp_path)
    with pytest.raises(error, match=says):
        delete_rows(tmp_path, keys)
    assert files_below(tmp_path) == before


@pytest.mark.parametrize(
    "partitioner", [ColumnPartitioner("k"), RoundRobinPartitioner(), BroadcastPartitioner()]
)
def test_keys_that_do_not_decide_the_subpartition(tmp_path, partitioner):
    table = rows(0, num_keys=N)
    put(tmp_path, table, None, partitioner=partitioner)
    with pytest.raises(OptionError, match="no key says where its rows are"):
        delete_rows(tmp_path, {"k": [1]})
    assert open_shuffle(tmp_path).version == 1


def test_a_partitioner_of_the_user(tmp_path):
    own = OwnPartitioner(lambda batch, n: np.zeros(batch.num_rows, np.int32))
    append(tmp_path, 0, partitioner=own)
    with pytest.raises(OptionError, match="'own'"):
        delete_rows(tmp_path, {"k": [1]})


def test_other_arguments(tmp_path):
    with pytest.raises(ShuffleNotFoundError):
        delete_rows(tmp_path, {"k": [1]})
    append(tmp_path, 0)
    with pytest.raises(OptionError, match="options is dict"):
        delete_rows(tmp_path, {"k": [1]}, options={})
    with pytest.raises(OptionError, match="expected_version='1'"):
        delete_rows(tmp_path, {"k": [1]}, expected_version="1")
    with pytest.raises(OptionError, match="expected_version=True"):
        delete_rows(tmp_path, {"k": [1]}, expected_version=True)
    release_shuffle(tmp_path)
    with pytest.raises(ResultReleasedError):
        delete_rows(tmp_path, {"k": [1]})


def test_an_expected_version(tmp_path):
    append(tmp_path, 0)
    append(tmp_path, 400)
    before = files_below(tmp_path)
    for version, says in ((1, "followed by version 2"), (7, "not there")):
        with pytest.raises(CommitConflictError, match=says):
            delete_rows(tmp_path, {"k": [1]}, expected_version=version)
    assert files_below(tmp_path) == before
    merge_shuffle(tmp_path, by="map_output")  # changes no rows
    assert delete_rows(tmp_path, {"k": [1]}, expected_version=2, options=TINY).version == 4
    collect(tmp_path)
    with pytest.raises(CommitConflictError, match="has expired"):
        delete_rows(tmp_path, {"k": [2]}, expected_version=2)


def test_a_damaged_file(tmp_path):
    append(tmp_path, 0)
    (data,) = Path(tmp_path).rglob(f"*{DATA_SUFFIX}")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.chmod(0o600)
    data.write_bytes(content)
    before = files_below(tmp_path)
    with pytest.raises(CorruptShuffleError):
        delete_rows(tmp_path, {"k": list(range(40))})
    assert files_below(tmp_path) == before


# Other writers ------------------------------------------------------------------------------------


def test_rows_that_were_appended_meanwhile_stay_and_the_receipt_says_so(tmp_path):
    append(tmp_path, 0)
    before = contents(tmp_path)

    with before_first_entry(lambda: append(tmp_path, 400)) as puts:
        receipt = delete_rows(tmp_path, {"k": [3]}, options=TINY)
    assert puts
    assert (receipt.version, receipt.searched_version, receipt.unsearched_version) == (3, 1, 2)
    assert "delete again" in str(receipt)
    kept = sorted(v for t in contents(tmp_path) for v in t["v"].to_pylist())
    old = sorted(v for t in without(before, {3}) for v in t["v"].to_pylist())
    assert kept == old + list(range(400, 800))
    check_totals(tmp_path)
    assert not status_after(tmp_path, receipt).is_gone


def test_what_came_after_the_search_is_not_among_the_files_that_must_go(tmp_path, monkeypatch):
    append(tmp_path, 0)
    (searched,) = open_shuffle(tmp_path).map_outputs
    real = module.search

    def search(*arguments, **how):
        result = real(*arguments, **how)
        append(tmp_path, 400)
        collect(tmp_path)
        return result

    monkeypatch.setattr(module, "search", search)
    receipt = delete_rows(tmp_path, {"k": [3]}, options=TINY)
    assert [file.path for file in receipt.files] == [searched.files[0].path]
    assert (receipt.searched_version, receipt.unsearched_version) == (1, 2)


def test_an_expected_version_refuses_rows_that_were_appended_meanwhile(tmp_path):
    append(tmp_path, 0)

    with (
        before_first_entry(lambda: append(tmp_path, 400)),
        pytest.raises(CommitConflictError, match="followed by version 2"),
    ):
        delete_rows(tmp_path, {"k": [3]}, options=TINY, expected_version=1)
    assert open_shuffle(tmp_path).version == 2
    assert len(open_shuffle(tmp_path).map_outputs) == len(
        list((tmp_path / "map_outputs").iterdir())
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda path: merge_shuffle(path, by="map_output"),
        lambda path: delete_rows(path, {"k": [4]}, options=TINY),
        lambda path: append_tasks(path, 0) and merge_shuffle(path, by="map_output"),
    ],
    ids=["merge", "delete", "append and merge"],
)
def test_it_begins_again_where_another_writer_replaced_its_files(tmp_path, meanwhile):
    append(tmp_path, 0)
    append(tmp_path, 400)

    with before_first_entry(lambda: meanwhile(tmp_path)):
        receipt = delete_rows(tmp_path, {"k": [3]}, options=TINY)
    assert receipt.version == open_shuffle(tmp_path).version
    assert 3 not in open_shuffle(tmp_path).read().read_all()["k"].to_pylist()
    check_totals(tmp_path)
    # What the first attempt wrote is removed.
    before = files_below(tmp_path)
    assert not [r for r in collect_garbage(tmp_path, dry_run=True).files if "map_outputs" in r.path]
    assert files_below(tmp_path) == before


@pytest.mark.slow
def test_it_gives_up_after_some_attempts_and_changes_nothing(tmp_path, monkeypatch):
    append(tmp_path, 0)
    receipts, real = [], module.replace_outputs

    def overtaken(*arguments):
        receipts.append(append(tmp_path, len(receipts) * 10_000, mode="overwrite"))
        return real(*arguments)

    monkeypatch.setattr(module, "replace_outputs", overtaken)
    with pytest.raises(CommitConflictError, match="not part of the newest version"):
        delete_rows(tmp_path, {"k": [3]}, options=TINY)
    assert len(receipts) == module.ATTEMPTS
    assert open_shuffle(tmp_path).version == 1 + module.ATTEMPTS
    assert open_shuffle(tmp_path).num_rows == 400


@pytest.mark.slow
def test_a_deletion_that_dies_at_any_call_changes_nothing_or_is_whole(tmp_path):
    append_tasks(tmp_path, 0)
    append_tasks(tmp_path, 400)
    names = ("put_if_absent", "open_writer", "make_directory", "delete", "delete_all", "prune")
    outcomes = set()
    for calls in every(3):
        path = tmp_path
        version, before = open_shuffle(path).version, contents(path)
        key = calls % 40
        died = dies_after(calls, lambda: delete_rows(path, {"k": [key]}, options=TINY), names)  # noqa: B023
        after = open_shuffle(path)
        if after.version == version:
            assert contents(path) == before
        else:
            assert contents(path) == without(before, {key})
        outcomes.add((died, after.version > version))
        check_totals(path)
        collect(path)
        named = {
            name for o in open_shuffle(path).map_outputs for f in o.files
            for name in (f.data_path, f.index_path)
        }  # fmt: skip
        assert {f for f in files_below(path) if ".shuffle." in f} == named
        if not died:
            break
    assert {(True, False), (False, True)} <= outcomes


# Until the last byte is gone ----------------------------------------------------------------------

NEEDLE = 0x1122334455667788


def with_needle(start):
    table = rows(start)
    special = pa.table({"k": [NEEDLE] * 5, "v": range(5), "s": ["needle in a haystack"] * 5})
    return pa.concat_tables([table.slice(0, 200), special, table.slice(200)])


@pytest.mark.slow
@guarantee("erased bytes")
@pytest.mark.parametrize("sort_by", [(), ("v",)])
def test_after_collection_no_file_holds_the_value(tmp_path, sort_by):
    needles = [b"needle in a haystack", NEEDLE.to_bytes(8, "little")]
    # Of columns that have statistics, old entries of the log keep bounds.
    without = replace(NONE, statistics=())
    disk = tmp_path / "disk"
    for number, start in enumerate((0, 400, 800)):
        local = (str(disk),) if number == 1 else ()
        options = replace(without, local_dirs=local)
        put(tmp_path / "x", with_needle(start), sort_by=sort_by, options=options)
    merge_shuffle(tmp_path / "x", by="map_output")
    append(tmp_path / "x", 1200, options=without, sort_by=sort_by)
    put(tmp_path / "x", with_needle(1600), sort_by=sort_by, options=without)
    for needle in needles:
        assert needle in held_bytes(tmp_path)
        assert needle in raw_bytes(tmp_path)
    receipt = delete_rows(tmp_path / "x", {"k": [NEEDLE]}, options=without)
    assert receipt.num_rows == 20
    # Earlier versions, and files that a merge has replaced, hold the rows until they expire.
    status = erasure_status(tmp_path / "x", receipt)
    assert status.versions == ((1, receipt.version - 1),)
    assert len(receipt.files) == 5
    assert not status.is_gone
    collect_garbage(tmp_path / "x", retention=timedelta(hours=1))
    assert not erasure_status(tmp_path / "x", receipt).is_gone
    status = status_after(tmp_path / "x", receipt)
    assert status.is_gone, status
    for needle in needles:
        assert needle not in held_bytes(tmp_path)
        assert needle not in raw_bytes(tmp_path)
    assert open_shuffle(tmp_path / "x").num_rows == 5 * 400
    assert str(NEEDLE) not in receipt.to_json()


@pytest.mark.slow
@pytest.mark.parametrize("merges", [False, True])
def test_bounds_of_new_files_are_those_of_the_rows_that_are_left(tmp_path, merges):
    options = replace(NONE, statistics="all")
    for start in (0, 400):
        put(tmp_path, with_needle(start), options=options)
    if merges:
        merge_shuffle(tmp_path, by="map_output")
    assert str(NEEDLE).encode() in held_bytes(tmp_path)
    receipt = delete_rows(tmp_path, {"k": [NEEDLE]}, options=options)
    assert "k" in receipt.statistics_columns
    assert "may be of deleted rows" in str(receipt)
    assert status_after(tmp_path, receipt).statistics_columns == receipt.statistics_columns
    assert str(NEEDLE).encode() not in held_bytes(tmp_path)
    collect(tmp_path, compact_log=True)
    assert delete_rows(tmp_path, {"k": [NEEDLE]}).statistics_columns == ()
    shuffle = open_shuffle(tmp_path)
    assert shuffle.verify().ok
    largest = shuffle.map_outputs.file_statistics(["k"], shuffle.snapshot.newest.columns)[
        "k"
    ].maximum
    assert max(largest.to_pylist()) == max(shuffle.read().read_all()["k"].to_pylist())


def test_old_versions_that_were_overwritten_may_hold_the_rows_too(tmp_path):
    append(tmp_path, 0)
    append(tmp_path, 400, mode="overwrite")
    receipt = delete_rows(tmp_path, {"k": [1]}, options=TINY)
    assert len(receipt.files) == 2
    assert erasure_status(tmp_path, receipt).versions == ((1, 2),)
    nothing = delete_rows(tmp_path, {"k": [1]}, options=TINY)
    assert nothing.version == 3
    assert {file.path for file in nothing.files} == {file.path for file in receipt.files}
    assert not erasure_status(tmp_path, nothing).is_gone
    assert status_after(tmp_path, nothing, compact_log=True).is_gone
    assert erasure_status(tmp_path, receipt).is_gone


def test_a_file_that_was_not_removed_is_not_gone(tmp_path):
    append(tmp_path, 0)
    receipt = delete_rows(tmp_path, {"k": [1]}, options=TINY)
    (held,) = receipt.files
    stays = tmp_path / (held.path + DATA_SUFFIX)
    content = stays.read_bytes()
    assert status_after(tmp_path, receipt).is_gone
    stays.parent.mkdir(exist_ok=True)
    stays.write_bytes(content)
    status = erasure_status(tmp_path, receipt)
    assert status.files == (held,)
    assert not status.is_gone
    assert f"on disk    1 file (such as {tmp_path / held.path}) may hold" in str(status)
    stays.rename(stays.with_suffix(".index"))
    assert erasure_status(tmp_path, receipt).files == (held,)


def test_a_receipt_is_kept_as_json(tmp_path):
    append(tmp_path, 0, partitioner=RangePartitioner("k", bounds=[5]))
    receipt = delete_rows(tmp_path, {"k": [5]}, options=TINY)
    receipt = replace(receipt, tags={"audit": 1}, pending=(4, 5), unsearched_version=2)
    assert DeletionReceipt.from_json(receipt.to_json()) == receipt
    for word in ("audit", "flush", "appended", "bounds", "gc"):
        assert word in str(receipt)
    value = json.loads(receipt.to_json())
    bad = [
        "", "[]", "{}", json.dumps({**value, "version": "1"}),
        json.dumps({**value, "files": [{}]}), json.dumps({**value, "tags": []}),
        json.dumps({**value, "subpartition_rows": {"x": 1}}),
    ]  # fmt: skip
    for text in bad:
        with pytest.raises(OptionError, match="not a receipt"):
            DeletionReceipt.from_json(text)


def test_what_a_look_left_of_a_receipt_is_no_receipt(tmp_path):
    append(tmp_path, 0)
    receipt = delete_rows(tmp_path, {"k": [1]}, options=TINY)
    assert (receipt.is_gone, receipt.is_looked_at) == (False, False)
    looked_at = erasure_status(tmp_path, receipt)
    assert (looked_at.is_gone, looked_at.is_looked_at) == (False, True)
    collect(tmp_path)
    for again in (looked_at, DeletionReceipt.from_json(looked_at.to_json())):
        assert again == looked_at
        with pytest.raises(OptionError, match=r"give the one that delete\(\) returned"):
            erasure_status(tmp_path, again)
    gone = erasure_status(tmp_path, receipt)
    assert gone.is_gone
    assert gone.as_json()["is_gone"]
    assert replace(gone, versions=((1, 1), (3, 4))).is_gone is False
    assert "1, 3 to 4 may still hold" in str(replace(gone, versions=((1, 1), (3, 4))))
    assert receipt.in_log() == gone.in_log() | {"files": receipt.in_log()["files"]}


def test_a_receipt_of_another_shuffle(tmp_path):
    append(tmp_path / "a", 0)
    receipt = delete_rows(tmp_path / "a", {"k": [5]}, options=TINY)
    append(tmp_path / "b", 0)
    for _ in range(2):
        with pytest.raises(OptionError, match=r"this log does not have; its newest version"):
            erasure_status(tmp_path / "b", receipt)
        append(tmp_path / "b", 400)
    with pytest.raises(OptionError, match="receipt is dict"):
        erasure_status(tmp_path / "a", {})
    with pytest.raises(ShuffleNotFoundError):
        erasure_status(tmp_path / "c", receipt)


# Files of earlier schemas, pending commits, object stores -----------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_files_of_an_earlier_schema_are_written_as_the_newest_version_is(tmp_path, codec):
    options = replace(TINY, codec=codec)
    append_tasks(tmp_path, 0, options=options)
    wider = rows(400).append_column("w", pa.array(np.arange(400) / 4))
    put(tmp_path, wider, options=replace(options, schema_evolution=True))
    before = contents(tmp_path)
    assert before[0].schema.names == ["k", "v", "s", "w"]
    delete_rows(tmp_path, {"k": [3, 17]}, options=options)
    assert contents(tmp_path) == without(before, {3, 17})
    check_totals(tmp_path)


def one_row_more(found):
    found[np.flatnonzero(~found)[0]] = True


def none(found):
    found[:] = False


def another_row(found):
    found[np.flatnonzero(found)[0]] = False
    found[np.flatnonzero(~found)[-1]] = True


@guarantee("deleted rows")
@pytest.mark.parametrize(
    ("delete", "message"),
    [
        (one_row_more, "the number of rows differs from that of the rows to keep of"),
        (none, "the number of rows differs from that of the rows to keep of"),
        (another_row, "it has rows of deleted keys, as those of the rows to keep of"),
    ],
)
def test_a_new_file_that_has_other_rows_than_are_to_be_kept_is_refused(
    tmp_path, monkeypatch, delete, message
):
    append(tmp_path, 0)
    before, files = contents(tmp_path), files_below(tmp_path)
    kept, among = RowDeleter._kept, KeySet.among

    def wrongly(self, *of):
        found = among(self, *of)
        if found.any() and not found.all():
            delete(found)
        return found

    def kept_wrongly(self, *how):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(KeySet, "among", wrongly)
            return kept(self, *how)

    monkeypatch.setattr(RowDeleter, "_kept", kept_wrongly)
    with pytest.raises(CorruptShuffleError, match=message):
        delete_rows(tmp_path, {"k": [3]}, options=TINY)
    assert contents(tmp_path) == before
    assert files_below(tmp_path) == files


@pytest.mark.slow
def test_pending_commits_with_rows_of_the_keys_are_in_the_receipt(tmp_path):
    append(tmp_path, 0)
    job, statuses = begun_with(tmp_path, rows(400), n=N, options=TINY)
    commit_job(job, statuses, mode="append", pending=True)
    assert delete_rows(tmp_path, {"k": [1_000]}, options=TINY).pending == ()
    receipt = delete_rows(tmp_path, {"k": [3]}, options=TINY)
    assert receipt.pending == (2,)
    assert "arrow-shuffle flush" in str(receipt)
    status = status_after(tmp_path, receipt)
    assert (status.pending, status.versions, status.is_gone) == ((2,), (), False)
    assert len(status.files) == 1
    flush_pending(tmp_path, options=TINY)
    assert 3 in open_shuffle(tmp_path).read().read_all()["k"].to_pylist()
    status = erasure_status(tmp_path, receipt)
    assert (status.flushed, status.is_gone) == ((2,), False)
    assert "delete again" in str(status)
    again = delete_rows(tmp_path, {"k": [3]}, options=TINY)
    assert status_after(tmp_path, again, compact_log=True).is_gone
    assert b"customer 3!" not in held_bytes(tmp_path)


def test_in_an_object_store(s3):
    path = f"s3://{s3.new_bucket('erase')}/x"
    given = {"storage_options": s3.options}
    for start in (0, 400):
        append(path, start, options=NONE, **given)
    receipt = delete_rows(path, {"k": [3]}, options=TINY, **given)
    assert receipt.num_rows == 20
    left = open_shuffle(path, **given).read().read_all()
    assert sorted(left["v"].to_pylist()) == [v for v in range(800) if v % 40 != 3]
    assert erasure_status(path, receipt, **given).files == receipt.files
    collect(path, **given)
    assert erasure_status(path, receipt, **given).is_gone
