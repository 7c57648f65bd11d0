"""Checkpoints: they change how a log is read, and never what is read; damage in one is noticed."""

import itertools
import os
import time
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from arrow_format import collect_garbage
from arrow_format.errors import CorruptShuffleError, FormatVersionError, ShuffleError
from arrow_format.format.batch_frame import encode_table
from arrow_format.log import commit_log
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.delta import Delta, decoded
from arrow_format.log.entry import (
    LogEntry,
    Range,
    check_sections,
    decode_entry,
    encode_entry,
    jobs_of,
    join,
    with_range,
)
from arrow_format.log.job_ends import NO_JOBS, decode_removed, encode_removed, end_in
from arrow_format.log.names import (
    CHECKPOINT_INTERVAL,
    checkpoints_after,
    entry_path,
    expired_path,
    link_of,
    range_path,
)
from arrow_format.log.outputs import MapOutputs
from arrow_format.log.reader import LogReader
from arrow_format.log.state import LastCommit, LogState
from arrow_format.log.totals import encode_totals
from arrow_format.log.transactions import find_transaction
from arrow_format.model import MapOutput, Position, Transaction
from arrow_format.read.shuffle import open_shuffle
from arrow_format.storage.open import ObjectNotFoundError, PosixStorage
from tests.support.exhaustive import examples
from tests.support.guarantees import guarantee
from tests.support.hostile import forged_frame
from tests.support.log_entries import commit, fence
from tests.support.logs import log_of
from tests.support.recording_storage import RecordingStorage
from tests.support.small_log import small_segments
from tests.support.small_shuffles import collect, numbered, write_tasks

N = 5


@pytest.fixture
def path(tmp_path):
    """Three appends, a fence, and another append."""
    for start in range(0, 30, 10):
        write_tasks(tmp_path, [[numbered(range(N), start)]], N, mode="append")
    fence(log_of(tmp_path), "lost")
    write_tasks(tmp_path, [[numbered(range(N), 40)]], N, mode="append")
    return tmp_path


def state_of(path, version):
    shuffle = open_shuffle(path, version)
    return (
        shuffle.version,
        shuffle.read(with_subpartition=True).read_all().to_pylist(),
        shuffle.subpartition_rows.to_pylist(),
        shuffle.subpartition_bytes.to_pylist(),
        shuffle.num_bytes,
        shuffle.schema,
    )


def put_checkpoint(path, number):
    log = log_of(path)
    log.put_checkpoint(log.view().last, number)
    return path / range_path(number)


def test_what_entries_are_removed_for_is_durable_though_they_are_not(path):
    storage = RecordingStorage(str(path))
    log = CommitLog(storage)
    log.put_checkpoint(commit(log), 2)
    log.put_base(log.view(), 3)
    with small_segments(4, 2):
        log.put_removed(0)
    assert storage.durable == [range_path(2), range_path(3), expired_path(0)]


@pytest.mark.slow
@guarantee("checkpoints")
@pytest.mark.parametrize("numbers", [(1,), (2,), (3,), (4,), (2, 4), (5,), (1, 2, 3, 4, 5)])
def test_versions_are_the_same_with_checkpoints_as_without(path, numbers):
    before = {version: state_of(path, version) for version in (1, 2, 3, 5, None)}
    jobs = {one.job_id: one.position.version for one in open_shuffle(path).map_outputs}
    for number in numbers:
        put_checkpoint(path, number)
    assert {version: state_of(path, version) for version in before} == before
    for job, version in jobs.items():
        end = log_of(path).find_job(job)
        assert (end.version, end.fenced) == (version, False)
    assert log_of(path).find_job("lost").fenced
    assert log_of(path).find_job("lost", after=4) is None
    assert open_shuffle(path).verify().ok


@pytest.mark.slow
@guarantee("checkpoints")
@settings(max_examples=examples(10, 50), deadline=None)
@given(
    count=st.integers(1, 30),
    lost=st.sets(st.integers(1, 8)),
    steps=st.lists(
        st.sampled_from(["append", "append", "overwrite", "fence"]), min_size=30, max_size=30
    ),
    floor=st.integers(0, 30),
    based=st.booleans(),
)
def test_pieces_cover_the_log_whichever_checkpoints_there_are(
    tmp_path_factory, count, lost, steps, floor, based
):
    """Exactly what is after a number up to another, or a little before, and each once."""
    path = tmp_path_factory.mktemp("log")
    with small_segments():
        log = log_of(path)
        for step in steps[:count]:
            commit(log, step if step != "fence" else "fence",
                   **({"gives_up": ("j",)} if step == "fence" else {}))  # fmt: skip
        for number in lost:
            (path / range_path(4 * number)).unlink(missing_ok=True)
        if based:
            collect_garbage_of_no_files(path)
        fresh = log_of(path)
        view = fresh.view()
        for number in range(max(view.oldest, floor + 1), view.newest + 1):
            pieces = fresh.pieces(view, number, floor=floor)
            assert pieces[0].span.after <= floor
            assert pieces[0].version > floor
            assert pieces[-1].version == number
            for piece, following in itertools.pairwise(pieces):
                span = following.span
                assert (piece.version, piece.commit_id) == (span.after, span.parent)
        model: list[int] = []
        for number, step in enumerate(steps[:count], 1):
            if step != "fence":
                model = ([] if step == "overwrite" else model) + [number]
            if number >= view.oldest and number <= view.newest and step != "fence":
                snapshot = log_of(path).snapshot(number)
                assert snapshot.map_outputs.versions.tolist() == model


@pytest.mark.slow
@guarantee("checkpoints")
def test_few_files_hold_a_long_log(tmp_path):
    with small_segments(segment=32, interval=4):
        log = log_of(tmp_path)
        for _ in range(122):
            commit(log)
        storage = RecordingStorage(str(tmp_path))
        snapshot = CommitLog(storage).snapshot()
        assert (snapshot.version, snapshot.num_rows) == (122, 122)
        entries = [name for name in storage.others if name.endswith(".entry")]
        checkpoints = [name for name in storage.others if name.endswith(".range")]
        assert len(entries) <= 3
        assert len(checkpoints) == (120).bit_count()


def test_a_commit_puts_a_checkpoint_now_and_then(tmp_path):
    log = log_of(tmp_path)
    for number in range(2 * CHECKPOINT_INTERVAL + 1):
        fence(log, f"job{number}")
    found = sorted(name.stem for name in tmp_path.glob("commit_log/*/*.range"))
    assert [int(one) for one in found] == [CHECKPOINT_INTERVAL, 2 * CHECKPOINT_INTERVAL]
    assert log_of(tmp_path).snapshot() is None, "nothing but fences is no shuffle"
    storage = RecordingStorage(str(tmp_path))
    assert CommitLog(storage).find_job("job3").version == 4
    assert len(storage.others) == 3, "entry, checkpoint, and whether its segment is there still"


@pytest.mark.parametrize("newest", [CHECKPOINT_INTERVAL, CHECKPOINT_INTERVAL + 3])
def test_the_newest_checkpoint_is_used_at_its_number_too(tmp_path, newest):
    log = log_of(tmp_path)
    for _ in range(newest):
        commit(log)
    storage = RecordingStorage(str(tmp_path))
    assert CommitLog(storage).snapshot().num_rows == newest
    is_at_one = newest == CHECKPOINT_INTERVAL
    assert len(storage.others) == newest - CHECKPOINT_INTERVAL + (3 if is_at_one else 2)


@guarantee("checkpoints")
def test_a_checkpoint_that_its_writer_could_not_put_is_put_by_a_later_one(tmp_path, monkeypatch):
    log = log_of(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "_put_piece", lambda *_: PosixStorage("/").open_reader("x"))
        for _ in range(CHECKPOINT_INTERVAL + 3):
            commit(log)
    file = tmp_path / range_path(CHECKPOINT_INTERVAL)
    for _ in range(4):
        commit(log)
    assert not file.exists()
    commit(log)
    assert file.exists()
    assert log_of(tmp_path).snapshot().num_rows == CHECKPOINT_INTERVAL + 8


@guarantee("checkpoints")
def test_every_flip_and_cut_of_a_checkpoint_is_noticed(path):
    before = state_of(path, None)
    file = put_checkpoint(path, 4)
    whole = file.read_bytes()
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        with pytest.raises(CorruptShuffleError):
            decode_entry(bytes(flipped))
        if position % 64 == 0:
            file.write_bytes(flipped)
            with pytest.raises(CorruptShuffleError, match=r"0004\.range: "):
                log_of(path).snapshot()
    for length in range(0, len(whole), 7):
        with pytest.raises(CorruptShuffleError):
            decode_entry(whole[:length])
    file.write_bytes(whole + b"x")
    with pytest.raises(CorruptShuffleError, match=r"0004\.range: .*1 bytes after"):
        open_shuffle(path)
    file.unlink()
    assert state_of(path, None) == before


@guarantee("remembered transactions")
def test_a_checkpoint_that_is_missing_hides_no_transaction(tmp_path):
    with small_segments(64):
        log = log_of(tmp_path)
        for batch in range(9):
            commit(log, transaction=Transaction(f"q{batch}", batch))
        for number in (4, 8):
            (tmp_path / range_path(number)).unlink()
        for batch in range(9):
            found = find_transaction(log_of(tmp_path), Transaction(f"q{batch}", batch))
            assert found.version == batch + 1
        assert log_of(tmp_path).snapshot().num_rows == 9


@pytest.mark.slow
def test_a_job_takes_few_bytes(tmp_path):
    """ADR 8 states the price of remembering: ids are random, and 16 bytes of each stay."""
    log = log_of(tmp_path)
    commit(log)
    commits = [commit(log) for _ in range(150)]
    sizes = []
    for count in (50, 150):
        whole = join(commits[:count], {})
        data = encode_entry(with_range(whole, Delta(jobs=decoded(whole.delta.jobs))))
        assert decoded(decode_entry(data).delta.jobs) == decoded(whole.delta.jobs)
        sizes.append(len(data))
    assert 16 * 100 < sizes[1] - sizes[0] < 30 * 100


def test_a_checkpoint_under_another_number_is_refused(path):
    file = put_checkpoint(path, 3)
    file.rename(file.with_name(f"{4:020d}.range"))
    with pytest.raises(CorruptShuffleError, match="is the range of number 3"):
        open_shuffle(path)


@pytest.mark.parametrize("number", [4, 5])
def test_a_checkpoint_of_another_log_is_refused(path, number):
    file = put_checkpoint(path, number)
    file.write_bytes(forged_frame(file.read_bytes(), {"commit_id": "another"}))
    with pytest.raises(CorruptShuffleError, match=r"does not continue|is of another log"):
        open_shuffle(path)


def test_a_checkpoint_that_cannot_be_put_does_not_fail_a_commit(path, monkeypatch):
    monkeypatch.setattr("arrow_format.log.names.CHECKPOINT_INTERVAL", 1)
    monkeypatch.setattr(CommitLog, "put_checkpoint", lambda *_: PosixStorage("/").open_reader("x"))
    assert write_tasks(path, [[numbered([1])]], N, mode="append").version == 6


def test_a_newer_checkpoint_is_refused_as_newer(path):
    file = put_checkpoint(path, 4)
    file.write_bytes(forged_frame(file.read_bytes(), {"format_version": 9}))
    with pytest.raises(FormatVersionError, match=r"4\.range: .* has format version 9"):
        open_shuffle(path)


@guarantee("readable log")
def test_a_checkpoint_that_no_reader_takes_is_not_put(path, monkeypatch):
    real = commit_log.join
    monkeypatch.setattr(
        commit_log, "join", lambda *parts: structs.replace(real(*parts), commit_id="no/name")
    )
    with pytest.raises(ShuffleError, match=r"4\.range: was not put.*at `\$.commit_id`"):
        put_checkpoint(path, 4)
    assert not list(path.glob("commit_log/*/*.range"))


OUTPUT = MapOutput("j", 0, 0, (), position=Position(9, 0, 9))
PIECE = LogEntry(
    version=8, operation="fence", commit_id="last", parent="p", committed_at_ms=0,
    state=LogState(applications={"q": LastCommit(7, 3)}), range=Range(4, "before"),
)  # fmt: skip
JOBS = {
    "job_id": ["j"], "number": [6], "fenced": [True], "num_outputs": [0], "num_rows": [0],
    "num_bytes": [0], "application": [None], "transaction": [None],
}  # fmt: skip


def jobs(**changes):
    return encode_table(pa.table({**JOBS, **changes}, NO_JOBS.schema))


@pytest.mark.parametrize(
    ("changes", "sections"),
    [
        ({"range": {"after": 8, "parent": "p"}}, {}),
        ({"range": {"after": 0, "parent": "p"}}, {}),
        ({"range": {"after": 4, "parent": None}}, {}),
        ({"range": {"after": 4, "parent": "a/b"}}, {}),
        ({"range": {"after": 4, "parent": "p", "clears": 1}}, {}),
        ({"range": {"after": 4, "parent": "p", "released": 9}}, {}),
        ({"range": {"after": 4}}, {}),
        ({"range": 4}, {}),
        ({"range": None}, {"jobs": jobs()}),
        ({"number": -1}, {}),
        ({"state": {"applications": {"a/b": {"version": 1, "number": 1}}}}, {}),
        ({}, {"jobs": b""}),
        ({}, {"jobs": jobs(number=[4])}),
        ({}, {"jobs": jobs(number=[9])}),
        ({}, {"jobs": jobs(job_id=["a/b"])}),
        ({}, {"added": encode_table(MapOutputs.of([OUTPUT]).table)}),
        ({}, {"totals": encode_totals((np.zeros(0, np.int64),) * 2)}),
    ],
)
def test_a_checkpoint_of_another_form_is_refused(changes, sections):
    data = encode_entry(PIECE)
    found = decode_entry(forged_frame(data, {}, {"jobs": jobs()}))
    ends = decoded(found.delta.jobs)
    assert (found.span.after, end_in(ends, "j").version, end_in(ends, "k")) == (4, 6, None)
    with pytest.raises(CorruptShuffleError, match="log entry is not of this format"):
        check_sections(decode_entry(forged_frame(data, changes, sections)))


def test_what_remains_of_a_segment_comes_back(tmp_path):
    log = log_of(tmp_path)
    entries = [commit(log, job_id="a"), fence(log, "b", "c")]
    data = encode_removed([one.commit_id for one in entries], list(map(jobs_of, entries)))
    found = decode_removed(data)
    assert found.commit_ids == {entry.commit_id for entry in entries}
    assert found.jobs["job_id"].to_pylist() == ["a", "b", "c"]
    for changes in ({"commit_ids": "abc"}, {"commit_ids": None}, {"commit_ids": ["../a"]}):
        with pytest.raises(CorruptShuffleError, match="is not of this format"):
            decode_removed(forged_frame(data, changes))


def test_what_is_joined_comes_back_with_the_last_entry(tmp_path):
    log = log_of(tmp_path)
    first, second = commit(log), commit(log)
    whole = decode_entry(encode_entry(join([first, second], {})))
    alone = structs.replace(whole, range=None, content=second.content)
    assert structs.replace(alone, state=second.state) == second
    assert whole.state == structs.replace(second.state, jobs={})
    assert list(whole.delta.added) == [*first.map_outputs, *second.map_outputs]
    assert decoded(whole.delta.jobs).to_pylist() == [
        *jobs_of(first).to_pylist(),
        *jobs_of(second).to_pylist(),
    ]


class TestBases:
    """What is everything up to a number, after collections have removed segments before it."""

    @pytest.mark.slow
    @guarantee("checkpoints")
    def test_a_log_whose_beginning_is_gone_reads_as_before(self, tmp_path):
        with small_segments():
            log = log_of(tmp_path)
            for batch in range(30):
                commit(log, job_id=f"j{batch}", transaction=Transaction("q", batch))
            fence(log, "lost")
            before = log_of(tmp_path).snapshot()
            for _ in range(2):
                collect_garbage_of_no_files(tmp_path)
            view = log_of(tmp_path).view()
            assert view.state.base >= 24
            assert not (tmp_path / "commit_log" / f"{0:018d}").exists()
            assert (tmp_path / range_path(view.state.base)).exists()
            after = log_of(tmp_path).snapshot()
            assert list(after.map_outputs) == list(before.map_outputs)
            assert after.totals[0].tolist() == before.totals[0].tolist()
            for batch in range(30):
                end = log_of(tmp_path).find_job(f"j{batch}")
                assert (end.version, end.fenced) == (batch + 1, False)
            for batch in (29, 25, 3, 0):
                found = find_transaction(log_of(tmp_path), Transaction("q", batch))
                assert (found.version, found.num_rows, found.num_outputs) == (batch + 1, 1, 1)
                assert (found.entry is None) == (batch < 24), "of removed segments lists remain"
            assert find_transaction(log_of(tmp_path), Transaction("q", 30)) is None
            for _ in range(20):
                commit(log_of(tmp_path))
            assert log_of(tmp_path).snapshot().num_rows == 50
            assert find_transaction(log_of(tmp_path), Transaction("q", 3)).version == 4

    @pytest.mark.slow
    def test_a_checkpoint_of_all_is_used_after_a_base(self, tmp_path):
        with small_segments():
            log = log_of(tmp_path)
            for _ in range(14):
                commit(log)
            collect_garbage_of_no_files(tmp_path)
            assert 0 < log_of(tmp_path).view().state.base < 16
            while log_of(tmp_path).newest_version() < 33:
                commit(log_of(tmp_path))
            storage = RecordingStorage(str(tmp_path))
            CommitLog(storage).snapshot()
            assert link_of(32) == 0
            assert len(storage.others) <= 3

    @pytest.mark.slow
    def test_a_job_whose_rows_and_entry_are_gone_is_known_from_the_list(self, tmp_path):
        with small_segments():
            log = log_of(tmp_path)
            commit(log, job_id="gone")
            fence(log, "lost")
            for _ in range(3):  # a base forgets what a list has that was put before
                for _ in range(20):
                    commit(log, "overwrite")
                collect_garbage_of_no_files(tmp_path)
            view = log_of(tmp_path).view()
            ended = log_of(tmp_path).ended_jobs(view)["job_id"].to_pylist()
            assert not {"gone", "lost"} & set(ended)
            assert log_of(tmp_path).find_job("gone").version == 1
            assert log_of(tmp_path).find_job("lost").fenced
            assert log_of(tmp_path).find_job("lost", after=2) is None


def collect_garbage_of_no_files(path):
    """Collect, where the files of map outputs are nowhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("arrow_format.jobs.garbage.check_files", lambda *_: None)
        collect(path)


@pytest.mark.slow
def test_a_checkpoint_that_comes_after_a_base_within_it_is_not_used(tmp_path, monkeypatch):
    """Its writer was slow; meanwhile a collection has put a base, and what is before that goes."""
    late = []
    with small_segments(4, 2):
        for start in range(20):
            write_tasks(tmp_path, [[numbered([0], start)]], N, mode="append")
        long_ago = time.time() - 10_000
        for number in range(1, 21):
            os.utime(tmp_path / entry_path(number), (long_ago, long_ago))
        for start in range(20, 23):
            write_tasks(tmp_path, [[numbered([0], start)]], N, mode="append")
        with monkeypatch.context() as patch:
            patch.setattr(CommitLog, "put_checkpoint", lambda _, *put: late.append(put))
            assert write_tasks(tmp_path, [[numbered([0], 23)]], N, mode="append").version == 24
        hour = timedelta(hours=1)
        collect_garbage(tmp_path, retention=hour)
        ((newest, number),) = late
        assert (newest.version, number) == (24, 24)
        assert log_of(tmp_path).view().state.base == 20 > link_of(24)
        log_of(tmp_path).put_checkpoint(newest, number)
        for _ in range(3):
            collect_garbage(tmp_path, retention=hour)
        assert not (tmp_path / entry_path(17)).exists()
        write_tasks(tmp_path, [[numbered([0], 24)]], N, mode="append")
        assert sorted(open_shuffle(tmp_path).read().read_all()["v"].to_pylist()) == [*range(25)]


def test_a_base_that_is_another_than_was_put_removes_nothing(path):
    """As of a storage that answers before it has what it was given."""

    class Mistaken(PosixStorage):
        def put_if_absent(self, path, data, *, sync):
            if path.endswith(".range"):
                entry = decode_entry(data)
                totals = [total + 1 for total in decoded(entry.content.totals)]
                data = encode_entry(
                    structs.replace(entry, content=replace(entry.content, totals=totals))
                )
            super().put_if_absent(path, data, sync=sync)

    log = CommitLog(Mistaken(str(path)))
    with pytest.raises(CorruptShuffleError, match="differs from what was put; remove it"):
        log.put_base(log.view(), 3)


def test_the_list_of_a_segment_that_lacks_an_entry_is_not_put(path):
    log = log_of(path)
    with small_segments(4, 2):
        (path / entry_path(2)).rename(path / "kept")
        with pytest.raises(ObjectNotFoundError, match="an entry was deleted"):
            log.put_removed(0)
        assert not (path / expired_path(0)).exists()
        (path / "kept").rename(path / entry_path(2))
        log.put_removed(0)
        listed = (path / expired_path(0)).read_bytes()
        # Another collection has gone on meanwhile.
        (path / entry_path(2)).unlink()
        log.put_removed(0)
        assert (path / expired_path(0)).read_bytes() == listed


def test_entries_that_are_read_together_are_noted_before_the_first_is_read(path):
    """Threads overwrite what others note, so that the lowest could be lost."""

    class Noting(PosixStorage):
        def read(self, path, **how):
            lowest.append(reader._lowest)
            return super().read(path, **how)

    lowest = []
    reader = LogReader(Noting(str(path)))
    assert [*reader.records([5, 3, 1])] == [5, 3, 1]
    assert lowest == [1, 1, 1]


@given(after=st.integers(0, 5_000), more=st.integers(0, 5_000))
@example(after=0, more=300)
def test_each_checkpoint_that_may_begin_after_a_number_is_looked_for(after, more):
    last = after + more
    found = [*checkpoints_after(after, last)]
    assert found == sorted(found, reverse=True)
    assert all(after < number <= last for number in found)
    aligned = range(
        -(-(after + 1) // CHECKPOINT_INTERVAL) * CHECKPOINT_INTERVAL, last + 1, CHECKPOINT_INTERVAL
    )
    assert {number for number in aligned if link_of(number) == after} <= {*found}
