"""Transactions: whatever is repeated, by whom and when ever, each is one version of the log."""

from functools import partial

import pytest

from arrow_format import (
    merge_shuffle,
    open_shuffle,
    release_shuffle,
    rollback_shuffle,
)
from arrow_format.errors import CommitConflictError
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.target import open_target
from arrow_format.log.entry import decode_entry
from arrow_format.log.names import range_path
from arrow_format.log.state import LastCommit
from arrow_format.log.transactions import find_transaction
from arrow_format.model import Transaction
from tests.support.guarantees import guarantee
from tests.support.interrupted_storage import before_first_entry
from tests.support.logs import log_of
from tests.support.small_shuffles import FAST, begin, collect, files_below, run, values

QUERY = "6d1f6d6e-0c5f-4a36-9d0e-1b0a4c0f1c11"


def prepared(path, start=0, mode="append"):
    """A job with one map output, whose rows begin at ``start``."""
    job = begin(path)
    open_target(job, mode)
    return job, [run(job, 0, range(5), start=start)]


def commit(path, number, *, query=QUERY, start=0, mode="append"):
    job, statuses = prepared(path, start, mode)
    transaction = Transaction(query, number)
    return commit_job(job, statuses, mode=mode, transaction=transaction)


@guarantee("transactions")
def test_a_number_that_was_overtaken_is_refused_unless_it_is_there(tmp_path):
    """A backfill of the second day after the third is not dropped without a word."""
    for number in (0, 1, 5):
        assert commit(tmp_path, number).version == min(number + 1, 3)
    for mode in ("append", "overwrite"):
        with pytest.raises(CommitConflictError, match=r"number 4 .* is not in the log, and 5"):
            commit(tmp_path, 4, mode=mode)
        receipts = [commit(tmp_path, number, mode=mode) for number in (0, 1, 5)]
        assert [receipt.version for receipt in receipts] == [1, 2, 3]
        assert all(receipt.is_repetition for receipt in receipts)
    assert log_of(tmp_path).newest_version() == 3
    assert commit(tmp_path, 6).version == 4


def test_what_was_rolled_back_overwritten_or_released_is_not_committed_again(tmp_path):
    """Rows go; that they were committed stays known, and the receipt says so."""
    commit(tmp_path, 0)
    commit(tmp_path, 1, start=10)
    rollback_shuffle(tmp_path, 1)
    again = commit(tmp_path, 1, start=10)
    assert (again.version, again.is_repetition, values(tmp_path)) == (2, True, [0, 1, 2, 3, 4])
    assert commit(tmp_path, 2, mode="overwrite", start=20).version == 4
    assert commit(tmp_path, 0).is_repetition
    assert release_shuffle(tmp_path)
    assert commit(tmp_path, 2, mode="overwrite", start=20).is_repetition
    assert not commit(tmp_path, 3, start=30).is_repetition
    assert sorted(values(tmp_path)) == [30, 31, 32, 33, 34]


def test_applications_do_not_know_of_each_other(tmp_path):
    assert [commit(tmp_path, 3, query=one).version for one in ("a", "b", "a", "c")] == [1, 2, 1, 3]
    job, statuses = prepared(tmp_path)
    assert commit_job(job, statuses, mode="append").version == 4, "and a plain commit is none"


@guarantee("transactions")
def test_of_two_that_commit_the_same_at_once_one_wins(tmp_path):
    """The second comes between the look of the first and its put, on an empty path and later."""
    for number in (0, 1):
        transaction = Transaction(QUERY, number)
        slow, fast = prepared(tmp_path, 100 * number), prepared(tmp_path, 100 * number)
        commit_fast = partial(commit_job, *fast, mode="append", transaction=transaction)
        with before_first_entry(commit_fast) as puts:
            receipt = commit_job(*slow, mode="append", transaction=transaction)
        assert puts
        assert receipt.is_repetition
        assert receipt.version == number + 1
        assert sorted(values(tmp_path)) == [
            100 * batch + row for batch in range(number + 1) for row in range(5)
        ]
        log = tmp_path / "commit_log"
        assert len(list(log.glob("*/*.entry"))) == number + 1
        assert len(list((tmp_path / "map_outputs").iterdir())) == number + 1
    assert log_of(tmp_path).newest_version() == 2


@guarantee("remembered transactions")
@pytest.mark.parametrize("number", range(1, 6))
def test_checkpoints_know_what_was_committed(tmp_path, number):
    for batch in range(3):
        commit(tmp_path, batch)
    commit(tmp_path, 7, query="other")
    job, statuses = prepared(tmp_path)
    commit_job(job, statuses, mode="append")
    expected = {
        1: {QUERY: LastCommit(1, 0)},
        2: {QUERY: LastCommit(2, 1)},
        3: {QUERY: LastCommit(3, 2)},
        4: {QUERY: LastCommit(3, 2), "other": LastCommit(4, 7)},
    }
    newest = log_of(tmp_path).view().last
    for one in range(1, number + 1):
        log_of(tmp_path).put_checkpoint(newest, one)
        piece = decode_entry((tmp_path / range_path(one)).read_bytes())
        assert piece.state.applications == expected[min(one, 4)]
    assert commit(tmp_path, 2).version == 3
    assert commit(tmp_path, 7, query="other").version == 4
    assert find_transaction(log_of(tmp_path), Transaction(QUERY, 3)) is None


@guarantee("remembered transactions")
def test_what_was_committed_is_known_when_its_version_has_expired(tmp_path):
    commit(tmp_path, 4)
    for start in (0, 10):
        job, statuses = prepared(tmp_path, start, "overwrite")
        commit_job(job, statuses, mode="overwrite")
        collect(tmp_path)
    merge_shuffle(tmp_path, options=FAST, by="map_output")
    rows = values(tmp_path)
    there = files_below(tmp_path)
    again = commit(tmp_path, 4, start=50)
    assert (again.version, again.num_rows, again.is_repetition) == (1, 5, True)
    assert sum(again.subpartition_rows.to_pylist()) == 5
    assert (values(tmp_path), files_below(tmp_path)) == (rows, there)
    assert commit(tmp_path, 5).version == open_shuffle(tmp_path).version == 6


def test_a_merge_is_no_commit_of_the_transaction_it_merges(tmp_path):
    commit(tmp_path, 0)
    commit(tmp_path, 1)
    merged = merge_shuffle(tmp_path, options=FAST, by="map_output")
    assert log_of(tmp_path).entry(merged.version).transaction is None
    log_of(tmp_path).put_checkpoint(log_of(tmp_path).view().last, merged.version)
    assert commit(tmp_path, 1).version == 2
