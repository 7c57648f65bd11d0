"""A late writer puts an entry at a number that garbage collection has freed: no reader believes it.

A writer looks at the log and is slow. Others commit under the number that it is about to take, and
a collection removes their entry. A reader whose listing of the log is older than that finds what
the writer puts in its place, until the writer takes it back.
"""

import os
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from arrow_format import (
    collect_garbage,
    consume,
    merge_shuffle,
    open_shuffle,
    open_shuffle_changes,
)
from arrow_format.errors import CorruptShuffleError, ShuffleNotFoundError
from arrow_format.log.changes import changes_of, check_commit_id, newest_entry
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.record import encode_record
from arrow_format.log.snapshot import VersionSpan
from arrow_format.storage.open import PosixStorage
from tests.support.guarantees import guarantee
from tests.support.interrupted_storage import instead_of_first_entry
from tests.support.small_shuffles import FAST, numbered, write_tasks
from tests.unit.streaming.test_consumption import rows, write

DAYS = 86_400


def entry_file(path, number):
    return path / f"commit_log/{number:020d}.json"


def age(path, numbers):
    """Let entries look two days old: they were superseded longer ago than the retention."""
    when = time.time() - 2 * DAYS
    for number in numbers:
        os.utime(entry_file(path, number), (when, when))


@contextmanager
def before_reading(number, act):
    """Let something happen once, before an entry is read by anyone in this process."""
    real = PosixStorage.read
    name = f"commit_log/{number:020d}.json"
    done = []

    def read(storage, path, **how):
        if path == name and not done:
            done.append(path)
            act()
        return real(storage, path, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PosixStorage, "read", read)
        yield done


class TestReaders:
    """Each listed the log before a collection, and reads an entry after a late put."""

    @guarantee("freed numbers")
    def test_who_reads_what_is_new_gets_no_row_of_a_late_append(self, tmp_path):
        for value in (1, 2):
            write(tmp_path, value, result_type="PIPELINED")
        outcome = []

        def late(put, _):
            write(tmp_path, 3)
            consumption = consume(tmp_path, consumer="a")
            write(tmp_path, 4)

            def collected():
                consumption.commit()  # up to version 3
                assert collect_garbage(tmp_path).oldest_version == 4
                put()

            with before_reading(3, collected) as done:
                try:
                    outcome.append(rows(open_shuffle_changes(tmp_path, 2)))
                except ShuffleNotFoundError as error:
                    outcome.append(error)
            assert done

        with instead_of_first_entry(late) as puts:
            receipt = write(tmp_path, 777)
        assert puts == [f"commit_log/{3:020d}.json"]
        assert receipt.version == 6
        (found,) = outcome
        # Not [4, 777]: version 3 was consumed and is gone, and 777 is committed later.
        assert isinstance(found, ShuffleNotFoundError), found
        assert rows(open_shuffle_changes(tmp_path, 5)) == [777]

    def late_merge(self, path, read, *, ascending=True):
        """Return what ``read`` gives in between, where a merge of two of five versions is late.

        A store removes entries in no order: those before the late one may be there still.
        """
        for value in (1, 2):
            write(path, value)
        outcome = []

        def late(put, _):
            for value in (3, 4, 5):
                write(path, value)
            age(path, range(1, 5))

            def collected():
                before = {
                    one: one.read_bytes() for one in (entry_file(path, 1), entry_file(path, 2))
                }
                assert collect_garbage(path).oldest_version == 4
                for one, data in before.items() if not ascending else ():
                    one.write_bytes(data)
                put()

            with before_reading(3, collected) as done:
                outcome.append(read())
            assert done

        with instead_of_first_entry(late) as puts:
            merge_shuffle(path, options=FAST)
        assert puts == [f"commit_log/{3:020d}.json"]
        assert not entry_file(path, 3).exists()
        assert rows(open_shuffle(path)) == [1, 2, 3, 4, 5]
        return outcome[0]

    @guarantee("freed numbers")
    def test_who_opens_a_version_gets_no_late_merge(self, tmp_path):
        assert self.late_merge(tmp_path, lambda: rows(open_shuffle(tmp_path))) == [1, 2, 3, 4, 5]

    def test_who_reads_a_span_gets_no_late_merge(self, tmp_path):
        def read():
            log = CommitLog(PosixStorage(str(tmp_path)))
            with pytest.raises(ShuffleNotFoundError, match="expired"):
                changes_of(log, VersionSpan(0, 2, 5))
            return True

        assert self.late_merge(tmp_path, read)

    @guarantee("freed numbers")
    def test_no_checkpoint_is_made_of_a_late_entry(self, tmp_path):
        log = CommitLog(PosixStorage(str(tmp_path)))
        self.late_merge(tmp_path, lambda: log.put_checkpoint(5, sync=False), ascending=False)
        whole = CommitLog(PosixStorage(str(tmp_path))).checkpoint(5).entry
        assert whole.num_rows == 5

    def test_how_jobs_ended_is_not_told_by_a_late_entry(self, tmp_path):
        jobs = []

        def read():
            log = CommitLog(PosixStorage(str(tmp_path)))
            found = log.read(lambda index: log.all_ends(index, index.newest))
            jobs.append(open_shuffle(tmp_path, 5).map_outputs[2].job_id)
            return found

        ends = self.late_merge(tmp_path, read, ascending=False)
        assert ends[jobs[0]].version == 3

    def test_a_collection_with_an_old_listing_removes_nothing_that_is_live(self, tmp_path):
        self.late_merge(tmp_path, lambda: collect_garbage(tmp_path), ascending=False)
        assert open_shuffle(tmp_path).verify().ok

    def test_an_error_that_comes_of_a_late_entry_is_not_raised(self, tmp_path):
        """An overwrite is of another shuffle, so that its version does not go on from it."""
        for value in (1, 2):
            write(tmp_path, value)
        found = []

        def late(put, _):
            for value in (3, 4, 5):
                write(tmp_path, value)
            age(tmp_path, range(1, 5))

            def collected():
                collect_garbage(tmp_path)
                put()

            with before_reading(3, collected) as done:
                found.append(rows(open_shuffle(tmp_path)))
            assert done

        with instead_of_first_entry(late):
            write(tmp_path, 777, mode="overwrite")
        assert found == [[1, 2, 3, 4, 5]]
        assert rows(open_shuffle(tmp_path)) == [777]


class TestBelowTheMarker:
    """What is found below the marker is never an answer, late or not removed yet."""

    @pytest.fixture
    def path(self, tmp_path):
        for start in range(4):
            write_tasks(tmp_path, [[numbered([0], start)]], 1, mode="append")
        record = CommitLog(PosixStorage(str(tmp_path))).record(2)
        CommitLog(PosixStorage(str(tmp_path))).put_oldest(4, sync=False)
        for number in (1, 2, 3):
            entry_file(tmp_path, number).unlink()
        entry_file(tmp_path, 3).write_bytes(encode_record(replace(record, version=3)))
        return tmp_path

    @pytest.fixture
    def log(self, path):
        return CommitLog(PosixStorage(str(path)))

    def test_an_entry(self, log):
        with pytest.raises(ShuffleNotFoundError, match="version 3 has expired"):
            log.entry(3)
        with pytest.raises(ShuffleNotFoundError, match="version 3 has expired"):
            log.committed(3)

    def test_the_commit_id_of_a_version(self, log, path):
        number = open_shuffle(path).version
        assert number == 4
        before = log.checkpoint(3).entry.commit_id
        log.read(lambda index: check_commit_id(log, index, 3, before))
        with pytest.raises(CorruptShuffleError, match="version 3 differs from"):
            log.read(lambda index: check_commit_id(log, index, 3, "another"))

    def test_where_a_listing_shows_the_marker_and_not_the_checkpoint(self, path, log, monkeypatch):
        """It was put before the marker, while the directory was read."""
        listed = PosixStorage.list
        hidden = [".checkpoint"]

        def names(storage, directory):
            found = listed(storage, directory)
            if directory == "commit_log" and hidden:
                suffix = hidden.pop()
                return [name for name in found if not name.endswith(suffix)]
            return found

        monkeypatch.setattr(PosixStorage, "list", names)
        # The late entry alone would do as the beginning of the version.
        late = replace(log.record(3), operation="replace", content=2)
        entry_file(path, 3).write_bytes(encode_record(late))
        assert CommitLog(PosixStorage(str(path))).snapshot().num_rows == 4


class CountedListings(PosixStorage):
    listings = 0

    def list(self, path):
        self.listings += path == "commit_log"
        return super().list(path)


def test_what_was_made_sure_of_is_not_listed_for_again(tmp_path):
    write(tmp_path, 1)
    storage = CountedListings(str(tmp_path))
    log = CommitLog(storage)
    for expected in (2, 3, 4):
        assert log.read(lambda index: newest_entry(log, index)).version == 1
        assert storage.listings == expected, "two for an entry that is read, and then one"


def test_a_read_within_a_read_is_made_sure_of_with_the_outer_one(tmp_path):
    storage = PosixStorage(str(tmp_path))
    for value in (1, 2, 3):
        write(tmp_path, value)
    log = CommitLog(storage)
    looks = []

    def look(index):
        looks.append(index.oldest)
        numbers = log.read(lambda index: range(index.oldest, index.newest + 1))
        found = log.read(lambda _: [log.record(number).version for number in numbers])
        if len(looks) == 1:
            CommitLog(storage).put_oldest(3, sync=False)
        return found

    assert log.read(look) == [3]
    assert looks == [1, 3]
