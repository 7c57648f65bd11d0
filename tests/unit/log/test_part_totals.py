"""Totals of a part of a version come from its entries; a checkpoint has those of a whole one."""

import os
import time
from contextlib import contextmanager

import numpy as np
import pytest

from arrow_format import collect_garbage, open_shuffle
from arrow_format.errors import CorruptShuffleError, ShuffleNotFoundError
from arrow_format.jobs.commit import commit_job
from arrow_format.log.changes import changes_of
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.consumers import ConsumerRegistry
from arrow_format.log.pending import pending_outputs
from arrow_format.log.record import PENDING
from arrow_format.log.release import release_versions
from arrow_format.log.snapshot import Snapshot, VersionSpan
from arrow_format.read.shuffle import Shuffle
from arrow_format.storage.open import ObjectNotFoundError, PosixStorage
from connector.cli.inspection import inspect_shuffle
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import N, begin, numbered, run, write_tasks
from tests.unit.streaming.test_consumption import rows, write

DAYS = 86_400


def log_of(path):
    return CommitLog(PosixStorage(str(path)))


def age(path, numbers):
    """Let entries look two days old: they were superseded longer ago than the retention."""
    when = time.time() - 2 * DAYS
    for number in numbers:
        os.utime(path / f"commit_log/{number:020d}.json", (when, when))


@contextmanager
def before_totals(act):
    """Let something happen once, before totals are read by anyone in this process."""
    done = []

    def before(real):
        def call(storage, path, *arguments, **how):
            if path.startswith("commit_log/totals-") and not done:
                done.append(path)
                act()
            return real(storage, path, *arguments, **how)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("read", "get_ranges"):
            patch.setattr(PosixStorage, name, before(getattr(PosixStorage, name)))
        yield done


def appended(path, count, age_of=()):
    """Versions of one row each, of which some look old."""
    for value in range(1, count + 1):
        write_tasks(path, [[numbered([value % N], value)]], N, mode="append")
    age(path, age_of)


@guarantee("partial totals")
def test_a_release_whose_totals_go_meanwhile_leaves_the_newest_version_whole(tmp_path):
    """A collection that had begun before the release lets some of what is left expire."""
    consumers = ConsumerRegistry(PosixStorage(str(tmp_path)))
    for value in range(1, 11):
        write(tmp_path, value, result_type="PIPELINED")
    age(tmp_path, range(1, 11))
    for name, version in (("a", 10), ("b", 9)):
        consumers.advance(name, 7)
        consumers.advance(name, version)

    def collected():
        # It looked for what may be released while both consumers were at 5: there was nothing.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("arrow_format.jobs.garbage.find_consumed", lambda _: None)
            assert collect_garbage(tmp_path).oldest_version == 10

    with before_totals(collected) as done:
        release = release_versions(
            PosixStorage(str(tmp_path)), by="a test", through=7, consumed=7, sync=False
        )
    assert done
    # A checkpoint has what came up to version 7 together with what came after it.
    assert release is None
    assert rows(open_shuffle(tmp_path)) == list(range(1, 11))
    assert sum(open_shuffle(tmp_path).subpartition_rows.to_pylist()) == 10
    write(tmp_path, 11)
    assert sum(open_shuffle(tmp_path).subpartition_rows.to_pylist()) == 11


def test_verify_of_a_version_whose_first_entries_go_meanwhile(tmp_path):
    appended(tmp_path, 4, age_of=range(1, 5))
    shuffle = open_shuffle(tmp_path)
    assert len(shuffle.entries) == 4
    with before_totals(lambda: collect_garbage(tmp_path)) as done:
        report = shuffle.verify(raise_on_damage=False)
    assert done
    assert not list(tmp_path.glob(f"commit_log/{1:020d}.json"))
    assert report.problems == ()
    assert shuffle.verify().ok


def test_verify_names_totals_that_are_gone(tmp_path):
    appended(tmp_path, 3)
    shuffle = open_shuffle(tmp_path)
    lost = shuffle.entries[1].totals.path
    (tmp_path / lost).unlink()
    with pytest.raises(CorruptShuffleError, match=lost):
        shuffle.verify()
    (problem,) = shuffle.verify(raise_on_damage=False).problems
    assert lost in str(problem)


def test_verify_counts_rows_of_a_version_whose_first_entries_are_gone(tmp_path):
    """As many rows in all, of other subpartitions."""
    appended(tmp_path, 4, age_of=range(1, 5))
    shuffle = open_shuffle(tmp_path)
    collect_garbage(tmp_path)
    rows, sizes = CommitLog.totals(log_of(tmp_path), Snapshot(shuffle.entries))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommitLog, "totals", lambda *_: (np.roll(rows, 1), sizes))
        (problem,) = shuffle.verify(raise_on_damage=False).problems
    assert "differ from its indexes" in str(problem)


def test_the_receipt_of_an_append_is_of_it_alone(tmp_path):
    """Its job is committed again while its version expires."""
    appended(tmp_path, 2)
    job = begin(tmp_path)
    status = run(job, 0, [1, 1])
    first = commit_job(job, [status], mode="append")
    assert (first.num_rows, sum(first.subpartition_rows.to_pylist())) == (2, 2)
    appended(tmp_path, 2, age_of=range(1, 6))
    with (
        before_totals(lambda: collect_garbage(tmp_path)) as done,
        pytest.raises(ShuffleNotFoundError, match="version 3 has expired"),
    ):
        commit_job(job, [status], mode="append")
    assert done


@guarantee("partial totals")
def test_a_part_of_a_version_is_none(tmp_path):
    appended(tmp_path, 4)
    log = log_of(tmp_path)
    first, second, third, last = log.snapshot().entries
    log.put_checkpoint(4, sync=False)
    (tmp_path / third.totals.path).unlink()
    for part in ((third,), (second, third), (third, last)):
        with pytest.raises(ObjectNotFoundError, match=third.totals.path):
            log.totals(Snapshot(part))
    assert Snapshot((first, second)).is_version
    assert not Snapshot((second,)).is_version
    assert not Snapshot((first, second), VersionSpan(2, 2, 2)).is_version


def test_what_is_pending_is_no_version(tmp_path):
    job = begin(tmp_path)
    commit_job(job, [run(job, 0, [1])], mode="append", pending=True)
    log = log_of(tmp_path)
    entries = log.read(lambda index: pending_outputs(log, index)).entries
    assert entries[0].operation != PENDING or not Snapshot(entries).is_version
    (tmp_path / entries[0].totals.path).unlink()
    shuffle = Shuffle(PosixStorage(str(tmp_path)), Snapshot(entries))
    with pytest.raises(ObjectNotFoundError, match=entries[0].totals.path):
        assert shuffle.subpartition_rows


def test_the_facts_of_a_span_are_of_it_alone(tmp_path):
    appended(tmp_path, 4, age_of=range(1, 5))
    log = log_of(tmp_path)
    shuffle = Shuffle(PosixStorage(str(tmp_path)), changes_of(log, VersionSpan(0, 2, 4)))
    assert inspect_shuffle(shuffle).subpartition_rows.sum() == 2
    collect_garbage(tmp_path)
    with pytest.raises(ShuffleNotFoundError, match="expired"):
        inspect_shuffle(Shuffle(shuffle.storage, Snapshot(shuffle.entries, shuffle.span)))
