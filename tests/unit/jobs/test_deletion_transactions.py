"""Deletions that are transactions: repeated, they delete nothing and return the first receipt."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec import structs

from arrow_format import (
    CommitConflictError,
    CorruptShuffleError,
    DeletionReceipt,
    MergePolicy,
    OptionError,
    WriteOptions,
    delete_rows,
    erasure_status,
    merge_shuffle,
    open_shuffle,
)
from arrow_format.jobs import bounds_of_keys
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.entry import decode_entry, encode_entry
from arrow_format.log.names import entry_path
from arrow_format.model import DATA_SUFFIX
from tests.support.guarantees import guarantee
from tests.support.interrupted_storage import before_first_entry
from tests.support.logs import log_of
from tests.support.small_log import small_segments
from tests.support.small_shuffles import collect, sorted_values, write_rows

PLAIN = WriteOptions(sync=False, codec="none")
APP = "forget"


def append(path, keys, **how):
    table = pa.table({"k": keys})
    return write_rows(path, table, "k", n=4, options=PLAIN, **{"mode": "append", **how})


def delete(path, keys, number=1, **how):
    return delete_rows(path, {"k": keys}, transaction=(APP, number), options=PLAIN, **how)


def files_of(path):
    return {file for file in Path(path).rglob("*") if file.is_file()}


@pytest.fixture
def path(tmp_path):
    where = str(tmp_path / "shuffle")
    append(where, [1, 2, 3])
    append(where, [2, 4])
    return where


def again(receipt):
    return replace(receipt, is_repetition=True)


@guarantee("deletion transactions")
def test_a_repeated_deletion_deletes_nothing_and_returns_the_first_receipt(path):
    receipt = delete(path, [2, 3])
    assert (receipt.num_rows, receipt.version, receipt.is_repetition) == (3, 3, False)
    append(path, [2, 5])
    there = files_of(path)
    assert delete(path, [2, 3]) == again(receipt)
    assert delete(path, [5]) == again(receipt), "the number decides, not the keys"
    assert files_of(path) == there
    assert sorted_values(path, column="k") == [1, 2, 4, 5]
    assert str(delete(path, [2])).splitlines()[0].endswith("nothing was deleted. The first time:")
    assert DeletionReceipt.from_json(again(receipt).to_json()) == again(receipt)


@guarantee("deletion transactions")
@pytest.mark.parametrize("keys", [[7], []])
def test_a_deletion_that_finds_nothing_is_committed_too(path, keys):
    receipt = delete(path, pa.array(keys, pa.int64()))
    assert (receipt.num_rows, receipt.version, receipt.files) == (0, 2, ())
    assert erasure_status(path, receipt).is_gone
    assert log_of(path).view().state.deleted == 0
    append(path, [7])
    assert delete(path, [7]) == again(receipt)
    assert sorted_values(path, column="k") == [1, 2, 2, 3, 4, 7]


def test_without_a_transaction_nothing_is_committed_where_nothing_is_found(path):
    assert delete_rows(path, {"k": [7]}, options=PLAIN).version == 2
    assert log_of(path).view().newest == 2


@guarantee("deletion transactions")
def test_rows_that_only_earlier_versions_have_are_asked_for_once(path):
    append(path, [1], mode="overwrite")
    receipt = delete(path, [2])
    assert (receipt.num_rows, len(receipt.files), receipt.version) == (0, 2, 3)
    assert log_of(path).view().state.deleted == 3
    assert delete(path, [2]) == again(receipt)
    assert log_of(path).view().newest == 4


@pytest.mark.parametrize("keys", [[2], [7]])
def test_a_number_that_was_overtaken_is_refused(path, keys):
    delete(path, keys, 1)
    delete(path, keys, 5)
    there = files_of(path)
    with pytest.raises(CommitConflictError, match="number 3 of application 'forget' is not in the"):
        delete(path, keys, 3)
    assert files_of(path) == there
    assert delete(path, keys, 1).is_repetition
    assert delete(path, keys, 5).is_repetition


@guarantee("deletion transactions")
@pytest.mark.parametrize("keys", [[2], [7]])
@pytest.mark.parametrize("is_later", [False, True])
def test_a_number_of_a_write_is_none_of_a_deletion(path, keys, is_later):
    append(path, [6], transaction=(APP, 1))
    delete(path, keys, 2)
    if is_later:
        append(path, [8], transaction=(APP, 3))
    there = files_of(path)
    with pytest.raises(CommitConflictError, match=r"as number 1 .* rows were written \(entry 3 of"):
        delete(path, keys, 1)
    with pytest.raises(CommitConflictError, match=r"as number 2 .* rows were deleted \(entry 4 of"):
        append(path, [9], transaction=(APP, 2))
    assert files_of(path) == there


@pytest.mark.slow
@guarantee("deletion transactions")
@pytest.mark.parametrize("keys", [[2], [7]])
@pytest.mark.parametrize("compact_log", [False, True])
def test_the_receipt_outlives_its_entry(tmp_path, keys, compact_log):
    path = str(tmp_path / "shuffle")
    with small_segments():
        append(path, [1, 2, 3])
        receipt = delete(path, keys)
        for number in range(30):
            append(path, [10 + number])
        merge_shuffle(path, policy=MergePolicy(rewrite="always"), options=PLAIN, by="map_output")
        collect(path, 3, compact_log=compact_log)
        log = log_of(path)
        assert log.removed(0) is not None
        assert delete(path, [10]) == again(receipt)
        assert 10 in sorted_values(path, column="k")
        assert erasure_status(path, delete(path, [10])).is_gone


def test_a_blank_entry_has_the_receipt(path):
    receipt = delete(path, [2])
    append(path, [9])
    collect(path, compact_log=True)
    assert log_of(path).named(3).operation == "blank"
    assert delete(path, [2]) == again(receipt)


def test_a_checkpoint_has_no_receipt(tmp_path):
    path = str(tmp_path / "shuffle")
    with small_segments():
        for number in range(7):
            append(path, [number])
        receipt = delete(path, [2])
        log = log_of(path)
        assert log.checkpoint(8).transaction is not None
        assert log.checkpoint(8).receipt is None
        assert delete(path, [2]) == again(receipt)


@guarantee("deletion transactions")
@pytest.mark.parametrize("keys", [[2], [7]])
def test_of_two_that_delete_at_once_one_wins(path, keys):
    first = []

    def another_wins():
        first.append(delete(path, keys))
        append(path, [2, 8])

    with before_first_entry(another_wins):
        receipt = delete(path, keys)
    assert receipt == again(first[0])
    assert sorted_values(path, column="k") == sorted(
        [1, 2, 2, 3, 4, 2, 8] if keys == [7] else [1, 3, 4, 2, 8]
    )
    newest = open_shuffle(path).version
    versions = [n for n in range(1, newest + 1) if log_of(path).named(n).is_version]
    outputs = [output for n in versions for output in open_shuffle(path, n).map_outputs]
    named = {file.path + DATA_SUFFIX for output in outputs for file in output.files}
    there = {file.relative_to(path).as_posix() for file in files_of(path)}
    assert {name for name in there if name.endswith(DATA_SUFFIX)} == named


@guarantee("deletion transactions")
def test_an_append_that_comes_first_is_in_the_receipt_that_the_log_has(path):
    with before_first_entry(lambda: append(path, [2, 8])):
        receipt = delete(path, [2])
    assert (receipt.version, receipt.unsearched_version, receipt.num_rows) == (4, 3, 2)
    assert log_of(path).record(4).commit_id == receipt.commit_id
    assert delete(path, [2]) == again(receipt)


@pytest.mark.parametrize("key", [2, 9])
def test_bounds_that_are_lost_while_it_commits_are_in_the_receipt(tmp_path, key):
    """The log is searched for bounds of the past before the commit; another deletion adds one."""
    path, options = str(tmp_path / "shuffle"), WriteOptions(sync=False, statistics="all")
    for keys, names in (([1, 2, 3], ["a", "b", "c"]), ([4, 5, 6], ["d", "e", "f"])):
        rows = pa.table({"k": keys, "name": names})
        write_rows(path, rows, "k", n=1, mode="append", options=options)

    with before_first_entry(lambda: delete_rows(path, {"k": [4]}, options=options)):
        receipt = delete_rows(path, {"k": [key]}, transaction=(APP, 1), options=options)
    assert receipt.statistics_columns == ("name",)
    assert delete_rows(path, {"k": [key]}, transaction=(APP, 1)) == again(receipt)


@pytest.mark.slow
@pytest.mark.parametrize("deletes", [False, True])
def test_a_deletion_that_others_overtake_again_and_again(path, monkeypatch, deletes):
    """Each try looks at what came since the last; what it cannot keep up with, it leaves open."""
    append(path, list(range(100, 130)))
    put, num_left, compared, read = CommitLog._put, 20, [], []
    lost_among, records = bounds_of_keys.lost_among, CommitLog.records

    def overtaken(self, *arguments, **how):
        nonlocal num_left
        if self.root == path and not (put_by_another or num_left == 0):
            num_left -= 1
            put_by_another.append(True)
            if deletes:
                delete_rows(path, {"k": [100 + num_left]}, options=PLAIN)
            else:
                append(path, [200 + num_left])
            put_by_another.clear()
        return put(self, *arguments, **how)

    def count_compared(*arguments):
        if not put_by_another:
            compared.append(len(arguments[0]))
        return lost_among(*arguments)

    def count_read(self, numbers, **how):
        if not put_by_another:
            read.extend(numbers)
        return records(self, numbers, **how)

    def count_composed(self, view, version=None):
        if not put_by_another:
            composed.append(view.newest)
        return snapshot_of(self, view, version)

    put_by_another, composed, snapshot_of = [], [], CommitLog.snapshot_of
    monkeypatch.setattr(CommitLog, "_put", overtaken)
    monkeypatch.setattr(bounds_of_keys, "lost_among", count_compared)
    monkeypatch.setattr(CommitLog, "records", count_read)
    monkeypatch.setattr(CommitLog, "snapshot_of", count_composed)
    receipt = delete(path, [2])
    assert (receipt.num_rows, receipt.version, num_left) == (2, 24, 0)
    assert len(composed) == (3 + 20 if deletes else 3), "to open, to look back, by the first try"
    came = {100 + n for n in range(30)} ^ ({100 + n for n in range(20)} if deletes else set())
    came |= set() if deletes else {200 + n for n in range(20)}
    assert sorted_values(path, column="k") == sorted({1, 3, 4} | came)
    assert receipt.unsearched_version == (0 if deletes else 23)
    assert len(compared) == (bounds_of_keys.MOST_COMPARED if deletes else 0)
    assert receipt.statistics_columns == (("k",) if deletes else ())
    assert not [number for number in read if number > 3], "each try knows the entry that won"
    assert delete(path, [2]) == again(receipt)


def test_a_path_that_moved_is_named_as_it_is_now(path, tmp_path):
    receipt = delete(path, [2])
    moved = str(tmp_path / "moved")
    Path(path).rename(moved)
    assert delete(moved, [2]) == replace(again(receipt), path=moved)


@pytest.mark.parametrize("transaction", [("app",), ("", 1), ("app", -1), "app"])
def test_what_is_no_transaction(path, transaction):
    with pytest.raises(OptionError):
        delete_rows(path, {"k": [2]}, transaction=transaction, options=PLAIN)


def test_a_receipt_in_an_entry_that_is_none_is_named(path):
    delete(path, [2])
    file = Path(path) / entry_path(3)
    entry = decode_entry(file.read_bytes())
    entry.receipt["num_rows"] = "many"
    file.chmod(0o600)
    file.write_bytes(encode_entry(entry))
    with pytest.raises(CorruptShuffleError, match=r"the receipt in a log entry .*num_rows"):
        delete(path, [2])


def test_an_entry_of_no_deletion_has_no_receipt(path):
    delete(path, [2])
    append(path, [6], transaction=("other", 1))
    entries = [log_of(path).record(number) for number in (3, 4)]
    wrong = [
        structs.replace(entries[0], transaction=None),
        structs.replace(entries[1], receipt=entries[0].receipt),
    ]
    for entry in wrong:
        with pytest.raises(CorruptShuffleError, match="has a receipt, and deletes in no"):
            decode_entry(encode_entry(entry))
