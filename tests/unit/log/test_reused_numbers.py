"""A late writer puts an entry at a number that garbage collection has freed: no reader believes it.

A writer looks at the log and is slow. Others commit under the number that it is about to take, and
collections remove that segment. A reader whose listing of the log is older than that finds what the
writer puts in its place, until the writer takes it back.
"""

from __future__ import annotations

import contextlib
import os
import time

import pytest

from arrow_format import collect_garbage, merge_shuffle, open_shuffle, open_shuffle_changes
from arrow_format.errors import ShuffleNotFoundError
from arrow_format.log.changes import changes_of
from arrow_format.log.names import entry_path, segment_path
from arrow_format.log.snapshot import VersionSpan
from arrow_format.storage.open import PosixStorage
from tests.support.guarantees import guarantee
from tests.support.interrupted_storage import instead_of_first_entry
from tests.support.logs import log_of
from tests.support.small_log import small_segments
from tests.support.small_shuffles import FAST, numbered, write_tasks


@pytest.fixture(autouse=True)
def segments():
    with small_segments(segment=4, interval=2):
        yield


def add(path, value, mode="append"):
    return write_tasks(path, [[numbered([0], value)]], 1, mode=mode).version


def rows(shuffle):
    return sorted(shuffle.read().read_all()["v"].to_pylist())


@contextlib.contextmanager
def before_reading(number, act):
    """Let something happen once, before an entry is read by anyone in this process."""
    real = PosixStorage.read
    name = entry_path(number)
    done = []

    def read(storage, path, **how):
        if path == name and not done:
            done.append(path)
            act()
        return real(storage, path, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PosixStorage, "read", read)
        yield done


def hide_checkpoints(path):
    """Let a reader need the entries: as if the writers of checkpoints had died."""
    for file in path.glob("commit_log/*/*.range"):
        file.unlink()


def remove_segments(path):
    """Collect twice what was superseded two days ago; a job that still runs is younger."""
    when = time.time() - 2 * 86_400
    for file in path.glob("commit_log/*/*.entry"):
        os.utime(file, (when, when))
    for _ in range(2):
        collect_garbage(path)
    assert not (path / entry_path(3)).exists()


def late(path, writer, read, *, before=3):
    """Return what ``read`` gives where a put of number 3 comes while it reads.

    The reader's listing is older than the removal; the late writer takes its entry back after.
    """
    for value in range(1, before):
        add(path, value)
    outcome = []

    def interfere(put, name):
        assert name == entry_path(3)
        for value in range(3, 11):
            add(path, value)
        hide_checkpoints(path)

        def removed():
            remove_segments(path)
            (path / segment_path(0)).mkdir(exist_ok=True)
            put()

        with before_reading(3, removed) as done:
            outcome.append(read())
        assert done
        assert (path / entry_path(3)).exists(), "it was there while the reader read"

    with instead_of_first_entry(interfere) as puts:
        writer()
    assert puts
    assert not (path / entry_path(3)).exists(), "its writer took it back"
    return outcome[0]


ALL = list(range(1, 11))


@pytest.mark.slow
@guarantee("freed numbers")
def test_opening_gives_no_row_of_a_late_append(tmp_path):
    writer = lambda: add(tmp_path, 777)  # noqa: E731
    assert late(tmp_path, writer, lambda: rows(open_shuffle(tmp_path))) == ALL
    assert rows(open_shuffle(tmp_path)) == [*ALL, 777]


@pytest.mark.slow
@guarantee("freed numbers")
def test_opening_gives_no_late_merge(tmp_path):
    writer = lambda: merge_shuffle(tmp_path, options=FAST, by="map_output")  # noqa: E731
    assert late(tmp_path, writer, lambda: rows(open_shuffle(tmp_path))) == ALL
    assert rows(open_shuffle(tmp_path)) == ALL


@pytest.mark.slow
def test_an_error_that_comes_of_a_late_overwrite_is_not_raised(tmp_path):
    writer = lambda: add(tmp_path, 777, "overwrite")  # noqa: E731
    assert late(tmp_path, writer, lambda: rows(open_shuffle(tmp_path))) == ALL
    assert rows(open_shuffle(tmp_path)) == [777]


@pytest.mark.slow
@guarantee("freed numbers")
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_what_is_new_has_no_row_of_a_late_writer(tmp_path, mode):
    """Not row 777, and not the rest without row 3: it says that what was asked for has expired."""

    def read():
        with pytest.raises(ShuffleNotFoundError, match="have expired"):
            rows(open_shuffle_changes(tmp_path, 2))
        return True

    assert late(tmp_path, lambda: add(tmp_path, 777, mode), read)


@pytest.mark.slow
def test_a_span_has_no_late_merge(tmp_path):
    def read():
        with pytest.raises(ShuffleNotFoundError, match="have expired"):
            changes_of(log_of(tmp_path), VersionSpan(0, 2, 10))
        return True

    assert late(tmp_path, lambda: merge_shuffle(tmp_path, options=FAST, by="map_output"), read)


@pytest.mark.slow
def test_how_jobs_ended_is_not_said_by_a_late_entry(tmp_path):
    def read():
        job_id = open_shuffle(tmp_path).map_outputs[2].job_id
        return log_of(tmp_path).find_job(job_id).version

    assert late(tmp_path, lambda: add(tmp_path, 777), read) == 3


@pytest.mark.slow
@guarantee("freed numbers")
def test_no_checkpoint_is_made_of_a_late_entry(tmp_path):
    def read():
        log = log_of(tmp_path)
        view = log.view()
        with pytest.raises(Exception, match="does not continue"):
            log.put_checkpoint(view.last, 8)
        return True

    assert late(tmp_path, lambda: add(tmp_path, 777), read)
    assert rows(open_shuffle(tmp_path)) == [*ALL, 777]


@pytest.mark.slow
def test_a_collection_with_an_old_listing_removes_nothing_that_is_live(tmp_path):
    read = lambda: collect_garbage(tmp_path)  # noqa: E731
    late(tmp_path, lambda: add(tmp_path, 777), read)
    assert open_shuffle(tmp_path).verify().ok
    assert rows(open_shuffle(tmp_path)) == [*ALL, 777]


@pytest.mark.slow
def test_what_a_dead_late_writer_left_is_never_an_answer_and_is_removed(tmp_path):
    for value in range(1, 11):
        add(tmp_path, value)
    stray = (tmp_path / entry_path(3)).read_bytes()
    remove_segments(tmp_path)
    (tmp_path / segment_path(0)).mkdir()
    (tmp_path / entry_path(3)).write_bytes(stray)
    log = log_of(tmp_path)
    for look in (log.entry, log.committed, log.snapshot):
        with pytest.raises(ShuffleNotFoundError, match="version 3 has expired"):
            look(3)
    assert rows(open_shuffle(tmp_path)) == ALL
    collect_garbage(tmp_path)
    assert not (tmp_path / entry_path(3)).exists()
