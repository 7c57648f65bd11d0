"""The log: numbers without gaps, one winner each, damage never answered by an older version."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from msgspec import structs

from arrow_format import (
    MergePolicy,
    merge_shuffle,
    open_shuffle,
    rollback_shuffle,
    write_shuffle,
)
from arrow_format.errors import (
    CommitConflictError,
    CorruptShuffleError,
    FormatVersionError,
    SchemaError,
    ShuffleNotFoundError,
    StorageError,
    UnsettledCommitError,
)
from arrow_format.log.commit_log import AlreadyCommittedError, CommitLog
from arrow_format.log.entry import decode_entry, encode_entry, jobs_of
from arrow_format.log.job_ends import encode_removed
from arrow_format.log.names import entry_path, expired_path, numbers_of, segment_of
from arrow_format.storage.open import ObjectExistsError, ObjectNotFoundError, PosixStorage
from arrow_format.storage.protocol import PutRefusedError
from arrow_format.streaming.lease import take_lease
from tests.support.consumers import ConsumerRegistry
from tests.support.exhaustive import times
from tests.support.guarantees import guarantee
from tests.support.hostile import forged_frame
from tests.support.log_entries import commit, fence, next_entry
from tests.support.logs import log_of
from tests.support.small_log import SEGMENT, small_segments
from tests.support.small_shuffles import numbered, write_tasks


@pytest.fixture
def storage(tmp_path):
    return PosixStorage(str(tmp_path))


@pytest.fixture
def log(storage):
    return CommitLog(storage)


def path_of(storage, number):
    return storage._root / entry_path(number)


def ids_in(log):
    return [entry.commit_id for entry in log.records(range(1, log.newest_version() + 1)).values()]


def test_each_commit_is_logged(tmp_path, caplog):
    caplog.set_level("INFO", "arrow_shuffle")
    for _ in range(2):
        write_tasks(tmp_path / "s", [[numbered([0, 1, 1])]], 2, mode="append")
    merge_shuffle(tmp_path / "s", policy=MergePolicy(rewrite="always"), by="map_output")
    found = [record.getMessage().rpartition(" rows in ")[0] for record in caplog.records]
    assert found == [
        f"{tmp_path}/s: overwrite is number 1 of the log: 3",
        f"{tmp_path}/s: append is number 2 of the log: 3",
        f"{tmp_path}/s: merge is number 3 of the log: 6",
    ]


def test_an_empty_log(log):
    assert log.newest_version() == 0
    assert log.snapshot() is None
    assert log.find_job("the-job") is None
    with pytest.raises(ShuffleNotFoundError, match="version 1 is not there; there are none"):
        log.snapshot(1)


def test_versions_count_up_and_an_overwrite_begins_again(log):
    for operation in ("overwrite", "append", "append", "overwrite", "append"):
        commit(log, operation)
    found = {version: log.snapshot(version) for version in range(1, 6)}
    assert {v: s.map_outputs.versions.tolist() for v, s in found.items()} == {
        1: [1], 2: [1, 2], 3: [1, 2, 3], 4: [4], 5: [4, 5],
    }  # fmt: skip
    assert log.snapshot().version == 5
    assert (found[3].num_rows, found[3].num_bytes) == (3, 24)
    assert [part.tolist() for part in found[3].totals] == [[3, 0, 0, 0], [24, 0, 0, 0]]


@pytest.mark.parametrize("version", [0, 3, -1])
def test_a_version_that_is_not_there(log, version):
    commit(log)
    commit(log)
    with pytest.raises(
        ShuffleNotFoundError, match=f"version {version} .*there are versions 1 to 2"
    ):
        log.snapshot(version)


def test_each_entry_names_the_one_before_and_is_no_earlier(log, monkeypatch):
    first = commit(log)
    assert first.parent is None
    monkeypatch.setattr("time.time_ns", lambda: 0)
    second = commit(log)
    assert (second.parent, second.committed_at_ms) == (first.commit_id, first.committed_at_ms)


def test_jobs_are_found_where_they_ended(log):
    for job in ("a", "b"):
        commit(log, job_id=job)
    fence(log, "c")
    assert log.find_job("a").version == 1
    assert log.find_job("b").version == 2
    assert log.find_job("b", after=2) is None
    assert log.find_job("c").fenced
    assert log.find_job("d") is None


def test_committing_nothing(log):
    assert log.append(lambda _: None, sync=False) is None
    assert log.newest_version() == 0


def test_a_writer_that_was_slower_decides_again(log, storage):
    seen = []

    def decide(view):
        seen.append(view.newest)
        if len(seen) == 1:
            commit(CommitLog(storage), job_id="faster")
        return next_entry(view, job_id="slower")

    assert log.append(decide, sync=False).version == 2
    assert seen == [0, 1]
    assert [output.job_id for output in log.snapshot().map_outputs] == ["faster", "slower"]


def test_a_stale_view_costs_time_alone(log, storage):
    commit(log)
    stale = log.view()
    for _ in range(3):
        commit(CommitLog(storage))
    seen = []

    def decide(view):
        seen.append(view.newest)
        if view.newest < 4:
            msg = "of what was there a moment ago"
            raise SchemaError(msg)
        return next_entry(view)

    assert log.append(decide, sync=False, view=stale).version == 5
    assert seen == [1, 4]
    with pytest.raises(SchemaError, match="a moment ago"):
        log.append(lambda _: decide(stale), sync=False, view=log.view())


def test_a_job_is_committed_once(log, storage):
    commit(log, job_id="a")
    commit(log)
    for view in (None, log.view()):
        with pytest.raises(AlreadyCommittedError) as error:
            log.append(next_entry, sync=False, view=view, job_id="a")
        assert error.value.version == 1

    def decide(view):
        if view.newest == 2:
            commit(CommitLog(storage), job_id="b")
        return next_entry(view, job_id="b")

    with pytest.raises(AlreadyCommittedError):
        log.append(decide, sync=False, job_id="b", after=2)
    assert log.newest_version() == 3


def test_a_fenced_job_commits_at_no_point(log, tmp_path):
    """Whether the fence is there before the commit looks, or comes between its look and its put."""
    commit(log)
    stale = log.view()
    fence(log, "slow")
    for view in (None, stale):
        with pytest.raises(CommitConflictError, match=r"job slow was aborted, or given.*entry 2"):
            log.append(
                lambda view: next_entry(view, job_id="slow"), sync=False, view=view,
                job_id="slow", after=1,
            )  # fmt: skip

    def decide(view):
        if log_of(tmp_path).find_job("late") is None:
            fence(log_of(tmp_path), "late")
        return next_entry(view, job_id="late")

    with pytest.raises(CommitConflictError, match=r"job late was aborted, or given.*entry 3"):
        log.append(decide, sync=False, job_id="late")
    assert log_of(tmp_path).newest_version() == 3


def test_giving_up_says_who_was_first(log):
    commit(log, job_id="a")
    assert not log.give_up("a", after=0, sync=False)
    assert log.give_up("b", after=1, sync=False)
    assert log.give_up("b", after=1, sync=False), "already"
    assert log.newest_version() == 2


class LostAnswers(PosixStorage):
    """The put succeeds, the answer is lost, and the retry finds the name taken."""

    def put_if_absent(self, path, data, *, sync):
        super().put_if_absent(path, data, sync=sync)
        raise ObjectExistsError(path)


@guarantee("retried put")
def test_a_retried_put_that_won_is_recognised(storage):
    log = CommitLog(LostAnswers(storage.root))
    entry = commit(log)
    assert entry.version == 1
    assert log.record(1).commit_id == entry.commit_id
    assert log.newest_version() == 1


class AlwaysSlower(PosixStorage):
    def put_if_absent(self, path, data, *, sync):
        if path.endswith(".entry"):
            ours = decode_entry(data)
            other = encode_entry(structs.replace(ours, commit_id=f"other{ours.version}"))
            super().put_if_absent(path, other, sync=sync)
        super().put_if_absent(path, data, sync=sync)


def test_a_writer_that_is_always_slower_gives_up(storage, monkeypatch):
    monkeypatch.setattr("arrow_format.log.commit_log.time.sleep", lambda _: None)
    monkeypatch.setattr("arrow_format.log.commit_log._ATTEMPTS", 5)
    log = CommitLog(AlwaysSlower(storage.root))
    with pytest.raises(CommitConflictError, match="committed 5 times while this one tried"):
        commit(log)


@pytest.mark.slow
@guarantee("racing writers")
@pytest.mark.parametrize(("writers", "turns"), [(3, 5), (times(40, 128), 1)])
def test_racing_threads_lose_no_commit(storage, writers, turns):
    def work(name):
        for turn in range(turns):
            commit(CommitLog(storage), job_id=f"{name}-{turn}")

    with ThreadPoolExecutor(writers) as pool:
        assert [*pool.map(work, range(writers))] == [None] * writers
    found = [output.job_id for output in CommitLog(storage).snapshot().map_outputs]
    assert sorted(found) == sorted(f"{name}-{t}" for name in range(writers) for t in range(turns))
    for name in range(writers):
        own = [one for one in found if one.startswith(f"{name}-")]
        assert own == [f"{name}-{turn}" for turn in range(turns)]


@guarantee("no fallback")
def test_a_damaged_newest_entry_is_an_error_and_no_fallback(log, storage):
    commit(log)
    commit(log)
    newest = path_of(storage, 2)
    whole = newest.read_bytes()
    for damage in (b"", whole[:-1], whole[:50], whole.replace(b"append", b"appenf")):
        newest.write_bytes(damage)
        with pytest.raises(CorruptShuffleError, match=f"{newest}: .*log entry"):
            CommitLog(storage).snapshot()
        with pytest.raises(CorruptShuffleError, match=f"{newest}: .*log entry"):
            commit(CommitLog(storage))


@guarantee("no fallback")
@pytest.mark.parametrize("gone", [1, 2])
def test_a_gap_is_an_error(log, storage, gone):
    for _ in range(3):
        commit(log)
    path_of(storage, gone).unlink()
    for version in (None, 3):
        with pytest.raises(CorruptShuffleError, match=f"{gone:020d}.entry: is not there, and the"):
            CommitLog(storage).snapshot(version)


@guarantee("no fallback")
def test_entries_of_another_copy_are_refused(log, storage, tmp_path):
    """Each names the commit before it."""
    other = CommitLog(PosixStorage(str(tmp_path / "other")))
    for _ in range(3):
        commit(log)
        commit(other)
    path_of(storage, 2).write_bytes((tmp_path / "other" / entry_path(2)).read_bytes())
    with pytest.raises(CorruptShuffleError, match=rf"{entry_path(3)}: does not continue the entry"):
        CommitLog(storage).snapshot()


def test_a_listing_that_missed_an_entry_is_no_gap(log, storage, monkeypatch):
    # As when two entries are put while the directory is read: the later may be seen alone.
    for _ in range(3):
        commit(log)
    real = PosixStorage.list
    monkeypatch.setattr(
        PosixStorage, "list", lambda self, path: [n for n in real(self, path) if "2.e" not in n]
    )
    assert log.newest_version() == 3
    assert len(log.snapshot().map_outputs) == 3


def test_a_stale_listing_gives_an_older_version_to_a_reader_and_none_to_a_writer(
    log, storage, monkeypatch
):
    for _ in range(3):
        commit(log)
    real = PosixStorage.list
    stale = [True]

    def listed(self, path):
        names = real(self, path)
        if path.endswith("0" * 18) and stale:
            stale.pop()
            return [name for name in names if "3.entry" not in name]
        return names

    monkeypatch.setattr(PosixStorage, "list", listed)
    assert CommitLog(storage).snapshot().version == 2
    stale.append(True)
    assert commit(CommitLog(storage)).version == 4


def test_an_entry_under_another_number_is_refused(log, storage):
    commit(log)
    path_of(storage, 2).write_bytes(path_of(storage, 1).read_bytes())
    with pytest.raises(CorruptShuffleError, match=f"{2:020d}.entry: is the entry of number 1"):
        CommitLog(storage).snapshot()


def test_a_segment_without_entries_is_looked_past(log, storage):
    commit(log)
    (storage._root / "commit_log" / f"{7:018d}").mkdir()
    (storage._root / "commit_log" / f"{3:018d}").write_bytes(b"")
    assert log.newest_version() == 1


@pytest.mark.parametrize("changes", [{"format_version": 2}, {"state": {"readers": ["levitation"]}}])
def test_what_a_newer_release_wrote_names_its_file_and_stops_writers_too(log, storage, changes):
    commit(log)
    file = path_of(storage, 1)
    file.write_bytes(forged_frame(file.read_bytes(), changes))
    for act in (lambda one: one.snapshot(), commit, lambda one: one.find_job("a")):
        with pytest.raises(FormatVersionError, match=f"{file}: .*newer"):
            act(CommitLog(storage))
    assert not path_of(storage, 2).exists()


def test_digits_of_other_scripts_hide_no_consumer(log, storage):
    commit(log)
    registry = ConsumerRegistry(storage)
    assert registry.register("a", 1) == 1
    (storage._root / "consumers/a" / f"{'0' * 19}\u0663.json").write_bytes(b"")
    assert registry.all_progress() == {"a": 1}
    take_lease(storage, "a").end()


@pytest.mark.parametrize("operation", ["fence", "expire", "pending"])
def test_numbers_that_are_no_version(log, operation):
    commit(log)
    commit(log, operation)
    with pytest.raises(ShuffleNotFoundError, match=r"version 2 is not there; .*the version before"):
        log.snapshot(2)
    with pytest.raises(ShuffleNotFoundError, match=r"version 9 .*there are versions 1 to 1$"):
        log.snapshot(9)
    assert log.snapshot().version == 1
    assert commit(log).version == 3


class TestRemovedSegments:
    """A writer looks last whether its number was free because its segment had been removed."""

    def remove(self, storage, log, number):
        """Remove an entry as a collection does, which lists those of its segment up to it."""
        segment = segment_of(number)
        entries = [log.record(each) for each in numbers_of(segment) if each <= number]
        commit_ids = [entry.commit_id for entry in entries]
        removed = encode_removed(commit_ids, [jobs_of(entry) for entry in entries])
        storage.put_if_absent(expired_path(segment), removed, sync=False)
        path_of(storage, number).unlink()

    @pytest.mark.slow
    @guarantee("freed numbers")
    @pytest.mark.parametrize("number", [1, 2, SEGMENT, SEGMENT + 1])
    def test_a_put_at_a_freed_number_is_taken_back(self, log, storage, number):
        """Also at the first of a segment, whose list does not have the entry before it."""
        with small_segments():
            for _ in range(number - 1):
                commit(log)
            stale = log.view()
            other = CommitLog(storage)
            for _ in range(5 * SEGMENT):
                commit(other)
            self.remove(storage, log, number)
            entry = log.append(next_entry, sync=False, view=stale)
            assert entry.version == number + 5 * SEGMENT
            assert not path_of(storage, number).exists()

    @guarantee("freed numbers")
    def test_a_commit_that_expired_since_is_one(self, storage, monkeypatch):
        """The list names its commit: the writer was slow after its put, not before."""
        log = CommitLog(storage)
        commit(log)
        put = PosixStorage.put_if_absent

        def put_and_remove(self, path, data, *, sync):
            put(self, path, data, sync=sync)
            if path.endswith("2.entry"):
                entry = decode_entry(data)
                removed = encode_removed([entry.commit_id], [jobs_of(entry)])
                put(self, expired_path(0), removed, sync=sync)

        monkeypatch.setattr(PosixStorage, "put_if_absent", put_and_remove)
        assert commit(log).version == 2
        assert path_of(storage, 2).exists(), "it is for the collection to remove"

    def test_how_a_job_ended_is_known_from_the_list(self, log, storage):
        commit(log, job_id="a")
        commit(log, job_id="b")
        self.remove(storage, log, 2)
        assert log.removed(0).commit_ids
        assert log.removed(1) is None


class RefusesEntries(PosixStorage):
    """A store where credentials end at the commit: it refuses that, and all that comes after."""

    puts_may_come_late = True
    is_over = False

    def put_if_absent(self, path, data, *, sync):
        if path.endswith(".entry"):
            self.is_over = True
            msg = "403 Forbidden"
            raise PutRefusedError(msg)
        super().put_if_absent(path, data, sync=sync)

    def list(self, path):
        if self.is_over:
            msg = "403 for a listing"
            raise StorageError(msg)
        return super().list(path)


@guarantee("refused commit")
@pytest.mark.parametrize("what", ["append", "merge", "rollback"])
def test_a_commit_that_is_refused_says_that_nothing_was_committed(path, what):
    append_row(path)
    append_row(path)
    commit = {
        "append": append_row,
        "merge": merge,
        "rollback": lambda storage: rollback_shuffle(storage, 1),
    }[what]
    with pytest.raises(
        StorageError, match=r"refused the commit, so there is no new version \(403 Forbidden\)"
    ) as error:
        commit(RefusesEntries(path))
    assert not isinstance(error.value, UnsettledCommitError)
    assert open_shuffle(path).version == 2


def append_row(place):
    rows = pa.table({"k": [1]})
    write_shuffle(rows, place, keys="k", num_subpartitions=2, mode="append")


def merge(place):
    merge_shuffle(place, policy=MergePolicy(rewrite="always"), by="map_output")


class DoesNotSay(PosixStorage):
    """Does not answer whether a segment was removed, some times after an entry was put."""

    def __init__(self, root, times):
        super().__init__(root)
        self.times = times
        self.has_entry = False

    def put_if_absent(self, path, data, *, sync):
        super().put_if_absent(path, data, sync=sync)
        self.has_entry |= path.endswith(".entry")

    def read(self, path, *, num_bytes=None):
        if self.has_entry and path == expired_path(0) and self.times:
            self.times -= 1
            msg = "no answer"
            raise StorageError(msg)
        return super().read(path, num_bytes=num_bytes)


@guarantee("unanswered put")
@pytest.mark.parametrize(
    ("times", "error", "message"),
    [
        (2, None, ""),
        (3, StorageError, r"committed as version 3, and durably.*Do not write the rows again"),
        (99, UnsettledCommitError, r"it is not known whether job .* was put durably"),
    ],
)
def test_a_commit_whose_check_is_not_answered(tmp_path, monkeypatch, times, error, message):
    monkeypatch.setattr("arrow_format.log.commit_log.time.sleep", lambda _: None)
    path = str(tmp_path / "s")
    append_row(path)
    append_row(path)
    expected = contextlib.nullcontext() if error is None else pytest.raises(error, match=message)
    with expected:
        append_row(DoesNotSay(path, times))
    assert open_shuffle(path).version == 3
    assert open_shuffle(path).verify().num_rows == 3


@pytest.mark.parametrize("where", [0, 1, 3])
def test_a_merge_takes_bytes_as_another_writer_shares_them_out(tmp_path, where):
    """Only their sum is said: a merge may save more of a subpartition than was counted for it."""
    table = pa.table({"k": range(1000), "v": range(1000)})
    for _ in range(3):
        write_shuffle(table, tmp_path, keys="k", num_subpartitions=4, mode="append")
    log = log_of(tmp_path)
    for version in (1, 2, 3):
        entry = log.entry(version)
        rows, sizes = entry.totals
        shared = np.zeros_like(sizes)
        shared[where] = sizes.sum()
        (tmp_path / entry_path(version)).write_bytes(
            encode_entry(
                structs.replace(entry, content=replace(entry.content, totals=(rows, shared)))
            )
        )
    merge(tmp_path)
    merged = open_shuffle(tmp_path)
    assert merged.verify().ok
    assert len(merged.map_outputs) == 1
    assert merged.subpartition_bytes.to_numpy().min() >= 0
    assert sum(merged.subpartition_bytes.to_pylist()) == merged.map_outputs[0].num_bytes


def test_a_read_within_a_read_has_the_same_view(tmp_path):
    for start in range(3):
        write_tasks(tmp_path, [[numbered(range(3), start)]], 3, mode="append")
    log = log_of(tmp_path)

    def look(view):
        commit(log_of(tmp_path), "fence", gives_up=("j",))
        return view.newest, log.read(lambda inner: inner.newest)

    assert log.read(look) == (3, 3)
    assert log.newest_version() == 4


def test_a_log_that_loses_what_it_shows_is_an_error(log, storage, monkeypatch):
    commit(log)
    monkeypatch.setattr(PosixStorage, "list", lambda *_: [f"{0:018d}", f"{5:020d}.entry"])
    with pytest.raises(ObjectNotFoundError, match=r"5\.entry: is not there"):
        CommitLog(storage).view()


def test_an_entry_whose_temporary_file_was_collected_is_put_again(tmp_path):
    """Its writer stalled twice for longer than a collection believes that it is at work."""

    class Collected(PosixStorage):
        puts = 0

        def put_if_absent(self, path, data, *, sync):
            self.puts += 1
            if self.puts < 3:
                raise ObjectNotFoundError(path)
            super().put_if_absent(path, data, sync=sync)

    storage = Collected(str(tmp_path))
    assert commit(CommitLog(storage)).version == 1
    assert storage.puts == 3
