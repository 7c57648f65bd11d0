"""The log: versions without gaps, one winner each, damage never answered by an older version."""

import threading
import zlib
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import MergePolicy, merge_shuffle, open_shuffle, write_shuffle
from arrow_format.errors import (
    CommitConflictError,
    CorruptShuffleError,
    FormatVersionError,
    ShuffleNotFoundError,
    StorageError,
    UnsettledCommitError,
)
from arrow_format.jobs.decision import DECISION_NAME
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.consumers import ConsumerRegistry
from arrow_format.log.names import LogIndex, entry_path
from arrow_format.log.record import Fence, encode_record
from arrow_format.log.totals_file import encode_totals
from arrow_format.model import MapOutput, PartitionedFile
from arrow_format.storage.open import ObjectExistsError, PosixStorage
from arrow_format.streaming.lease import take_lease
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import entry_of, numbered, write_tasks

FILE = PartitionedFile("a", 1, 1, 8, 8, 8, 8)
ENTRY = replace(entry_of(FILE, 4), map_outputs=(MapOutput("the-job", 0, 1, (FILE,)),))


@pytest.fixture
def storage(tmp_path):
    return PosixStorage(str(tmp_path))


@pytest.fixture
def log(storage):
    return CommitLog(storage)


def commit(log, operation="append", **changes):
    def decide(newest):
        kind = operation if newest else "overwrite"
        job_id = changes.get("job_id", ENTRY.job_id)
        outputs = tuple(replace(output, job_id=job_id) for output in ENTRY.map_outputs)
        return replace(ENTRY, operation=kind, map_outputs=outputs, **changes)

    return log.append(decide, sync=False)


def path_of(storage, version):
    return storage._root / f"commit_log/{version:020d}.json"


def test_an_empty_log(log):
    assert log.newest_version() == 0
    assert log.snapshot() is None
    assert log.find_job("the-job") is None
    with pytest.raises(ShuffleNotFoundError, match="version 1 is not there; there are none"):
        log.snapshot(1)


def test_versions_count_up_and_an_overwrite_starts_anew(log):
    for operation in ("overwrite", "append", "append", "overwrite", "append"):
        commit(log, operation)
    found = {version: log.snapshot(version) for version in range(1, 6)}
    assert {v: [e.version for e in s.entries] for v, s in found.items()} == {
        1: [1], 2: [1, 2], 3: [1, 2, 3], 4: [4], 5: [4, 5],
    }  # fmt: skip
    assert log.snapshot().version == 5
    assert found[3].num_rows == 3
    assert found[3].num_bytes == 24
    assert len(found[3].map_outputs) == 3


@pytest.mark.parametrize("version", [0, 3, -1])
def test_a_version_that_is_not_there(log, version):
    commit(log)
    commit(log)
    with pytest.raises(
        ShuffleNotFoundError, match=f"version {version} .*there are versions 1 to 2"
    ):
        log.snapshot(version)


def test_jobs_are_found_newest_first(log):
    for job in ("a", "b", "a"):
        commit(log, job_id=job)
    assert log.find_job("a").version == 3
    assert log.find_job("b").version == 2
    assert log.find_job("c") is None


def test_committing_nothing(log):
    assert log.append(lambda _: None, sync=False) is None
    assert log.newest_version() == 0


def test_a_writer_that_was_slower_decides_again(log, storage):
    seen = []

    def decide(newest):
        seen.append(newest.version if newest else 0)
        if len(seen) == 1:
            commit(CommitLog(storage), commit_id="faster")
        return replace(ENTRY, operation="append" if newest else "overwrite", commit_id="slower")

    assert log.append(decide, sync=False).version == 2
    assert seen == [0, 1]
    assert [e.commit_id for e in log.snapshot().entries] == ["faster", "slower"]


class LostAnswers(PosixStorage):
    """The put succeeds, the answer is lost, and the retry finds the name taken."""

    def put_if_absent(self, path, data, *, sync):
        super().put_if_absent(path, data, sync=sync)
        raise ObjectExistsError(path)


@guarantee("retried put")
def test_a_retried_put_that_won_is_recognised(storage):
    log = CommitLog(LostAnswers(storage.root))
    assert commit(log, commit_id="mine").version == 1
    assert log.newest_version() == 1


class AlwaysSlower(PosixStorage):
    def put_if_absent(self, path, data, *, sync):
        super().put_if_absent(
            path, encode_record(replace(ENTRY, version=int(path[-25:-5]))), sync=sync
        )
        super().put_if_absent(path, data, sync=sync)


def test_a_writer_that_is_always_slower_gives_up(storage, monkeypatch):
    monkeypatch.setattr("arrow_format.log.commit_log.time.sleep", lambda _: None)
    log = CommitLog(AlwaysSlower(storage.root))
    with pytest.raises(CommitConflictError, match="50 versions while this one tried"):
        commit(log, commit_id="mine")


@guarantee("racing writers")
def test_racing_threads_lose_no_commit(storage):
    def work(name):
        for i in range(8):
            commit(CommitLog(storage), commit_id=f"{name}{i}")

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    snapshot = CommitLog(storage).snapshot()
    ids = [entry.commit_id for entry in snapshot.entries]
    assert sorted(ids) == sorted(f"{name}{i}" for name in "abc" for i in range(8))
    for name in "abc":
        own = [one for one in ids if one[0] == name]
        assert own == sorted(own)


@guarantee("no fallback")
def test_a_damaged_newest_entry_is_an_error_and_no_fallback(log, storage):
    commit(log)
    commit(log)
    newest = path_of(storage, 2)
    whole = newest.read_bytes()
    for damage in (b"", whole[:-1], whole[:50], whole.replace(b"append", b"appenf")):
        newest.write_bytes(damage)
        with pytest.raises(CorruptShuffleError, match=f"{newest}: log entry"):
            log.snapshot()
    assert log.snapshot(1).version == 1, "an older version that is asked for is whole"


@guarantee("no fallback")
def test_a_gap_is_an_error(log, storage):
    for _ in range(3):
        commit(log)
    path_of(storage, 2).unlink()
    for version in (None, 1, 3):
        with pytest.raises(CorruptShuffleError, match="has version 3 but not 2; an entry was del"):
            log.snapshot(version)
    path_of(storage, 1).unlink()
    with pytest.raises(CorruptShuffleError, match="has version 3 but not 1"):
        log.snapshot()


def test_a_listing_that_missed_an_entry_is_no_gap(log, storage, monkeypatch):
    # As when two entries are put while the directory is read: the later may be seen alone.
    for _ in range(3):
        commit(log)
    real = PosixStorage.list
    monkeypatch.setattr(
        PosixStorage, "list", lambda self, path: [n for n in real(self, path) if "2." not in n]
    )
    assert log.newest_version() == 3
    assert len(log.snapshot().entries) == 3
    path_of(storage, 2).unlink()
    with pytest.raises(CorruptShuffleError, match="has version 3 but not 2"):
        log.newest_version()


def test_an_entry_under_another_number_is_refused(log, storage):
    commit(log)
    path_of(storage, 2).write_bytes(path_of(storage, 1).read_bytes())
    with pytest.raises(CorruptShuffleError, match=f"{2:020d}.json: is the entry of version 1"):
        log.snapshot()


def test_a_log_that_begins_with_an_append_is_refused(log, storage):
    path_of(storage, 1).parent.mkdir()
    path_of(storage, 1).write_bytes(encode_record(replace(ENTRY, version=1, operation="append")))
    with pytest.raises(CorruptShuffleError, match="does not begin with a whole version"):
        log.snapshot()


def test_a_newer_format_version_names_its_file(log, storage):
    path_of(storage, 1).parent.mkdir()
    path_of(storage, 1).write_bytes(encode_record(replace(ENTRY, format_version=2)))
    with pytest.raises(FormatVersionError, match=f"{path_of(storage, 1)}: .*format version 2"):
        log.snapshot()


def test_other_names_in_the_log_are_no_entries(log, storage):
    commit(log)
    for name in (".tmp-x", "2.json", "totals-x.arrow", f"{2:020d}.json.bak"):
        (storage._root / "commit_log" / name).write_bytes(b"")
    assert log.newest_version() == 1


@pytest.mark.parametrize("digit", ["\u0663", "\uff13", "\U0001d7db"])
def test_names_with_digits_of_other_scripts_are_no_names(log, storage, digit):
    """What another program put there must not make the log lack an entry, or hide a consumer."""
    commit(log)
    for suffix in ("json", "checkpoint", "oldest"):
        (storage._root / "commit_log" / f"{'0' * 19}{digit}.{suffix}").write_bytes(b"")
    assert log.index() == LogIndex(frozenset({1}), frozenset(), frozenset())
    registry = ConsumerRegistry(storage)
    assert registry.register("a", 1) == 1
    (storage._root / "consumers/a" / f"progress-{'0' * 19}{digit}").write_bytes(b"")
    assert registry.all_progress() == {"a": 1}
    (storage._root / "consumers/a" / f"lease-{'0' * 19}{digit}-free").write_bytes(b"")
    take_lease(storage, "consumers/a").release()
    assert (storage._root / f"consumers/a/lease-{1:020d}-free").exists()


class AnswersLate(PosixStorage):
    """Carries a put of an entry out only when the one who asked has given up."""

    puts_may_come_late = True

    def __init__(self, root, is_down):
        super().__init__(root)
        self.is_down = is_down
        self.waiting = []

    def put_if_absent(self, path, data, *, sync):
        if path.endswith(".json") and (self.is_down or not self.waiting):
            if not self.waiting:
                self.waiting.append((path, data))
            msg = "no answer"
            raise StorageError(msg)
        super().put_if_absent(path, data, sync=sync)


@guarantee("unanswered put")
@pytest.mark.parametrize("is_down", [False, True])
def test_a_put_that_is_carried_out_late_leaves_no_version_without_files(tmp_path, is_down):
    path = str(tmp_path / "s")
    table = pa.table({"k": [1, 2, 3]})
    write = partial(write_shuffle, table, keys="k", num_subpartitions=2, mode="append")
    write(path)
    late = AnswersLate(path, is_down)
    with pytest.raises(UnsettledCommitError if is_down else StorageError):
        write(late)
    ((name, data),) = late.waiting
    if is_down:
        PosixStorage(path).put_if_absent(name, data, sync=False)
    else:
        with pytest.raises(ObjectExistsError):
            PosixStorage(path).put_if_absent(name, data, sync=False)
    assert open_shuffle(path).read().read_all().num_rows == (6 if is_down else 3)
    write(path)
    assert open_shuffle(path).read().read_all().num_rows == (9 if is_down else 6)


class Interrupted(AnswersLate):
    """A store whose user gives up waiting for the first answers."""

    def __init__(self, root, is_down, interrupts=1):
        super().__init__(root, is_down)
        self.interrupts = interrupts

    def put_if_absent(self, path, data, *, sync):
        try:
            super().put_if_absent(path, data, sync=sync)
        except StorageError as error:
            if self.interrupts == 0:
                raise
            self.interrupts -= 1
            raise KeyboardInterrupt from error


def append_row(place):
    rows = pa.table({"k": [1]})
    write_shuffle(rows, place, keys="k", num_subpartitions=2, mode="append")


def merge(place):
    merge_shuffle(place, policy=MergePolicy(rewrite="always"))


@guarantee("unanswered put")
@pytest.mark.parametrize("commit", [append_row, merge])
@pytest.mark.parametrize(
    ("is_down", "interrupts"), [(False, 1), (True, 1), (True, 2)], ids=["up", "down", "twice"]
)
def test_what_is_interrupted_removes_nothing_that_its_put_may_still_publish(
    tmp_path, commit, is_down, interrupts
):
    path = str(tmp_path / "s")
    append_row(path)
    append_row(path)
    num_files = len(list((tmp_path / "s" / "map_outputs").rglob("*.data")))
    late = Interrupted(path, is_down, interrupts)
    with pytest.raises(KeyboardInterrupt) as interrupt:
        commit(late)
    notes = "".join(getattr(interrupt.value, "__notes__", []))
    assert ("it is not known whether" in notes) == (is_down and interrupts == 1)
    assert open_shuffle(path).read().read_all().num_rows == 2
    files = list((tmp_path / "s" / "map_outputs").rglob("*.data"))
    assert len(files) == num_files + is_down

    ((name, data),) = late.waiting
    if is_down:
        PosixStorage(path).put_if_absent(name, data, sync=False)
    else:
        with pytest.raises(ObjectExistsError):
            PosixStorage(path).put_if_absent(name, data, sync=False)
    num_rows = 3 if is_down and commit is append_row else 2
    assert open_shuffle(path).verify().num_rows == num_rows
    append_row(path)
    merge(path)
    assert open_shuffle(path).verify().num_rows == num_rows + 1


class LosesTheDecision(PosixStorage):
    """A store that carries out a decision, whose answer is lost or not waited for."""

    def __init__(self, root, error):
        super().__init__(root)
        self.error = error

    def put_if_absent(self, path, data, *, sync):
        super().put_if_absent(path, data, sync=sync)
        if path.endswith(f"/{DECISION_NAME}") and self.error is not None:
            error, self.error = self.error, None
            raise error


@pytest.mark.parametrize("commit", [append_row, merge])
@pytest.mark.parametrize("error", [StorageError("the answer is lost"), KeyboardInterrupt()])
def test_a_decision_whose_answer_is_lost_is_taken_back(tmp_path, commit, error):
    path = str(tmp_path / "s")
    append_row(path)
    append_row(path)
    before = sorted((tmp_path / "s").rglob("*"))
    with pytest.raises(type(error)):
        commit(LosesTheDecision(path, error))
    assert sorted((tmp_path / "s").rglob("*")) == before
    commit(path)
    assert open_shuffle(path).verify().ok


@pytest.mark.parametrize("where", [0, 1, 3])
def test_a_merge_takes_bytes_as_another_writer_shares_them_out(tmp_path, where):
    """Only their sum is said: a merge may save more of a subpartition than was counted for it."""
    table = pa.table({"k": range(1000), "v": range(1000)})
    for _ in range(3):
        write_shuffle(table, tmp_path, keys="k", num_subpartitions=4, mode="append")
    log = CommitLog(PosixStorage(str(tmp_path)))
    for version in (1, 2, 3):
        entry = log.entry(version)
        rows, sizes = log.totals_of(entry)
        shared = np.zeros_like(sizes)
        shared[where] = sizes.sum()
        totals = encode_totals(rows, shared)
        (tmp_path / entry.totals.path).write_bytes(totals)
        described = replace(entry.totals, length=len(totals), crc32=zlib.crc32(totals))
        (tmp_path / entry_path(version)).write_bytes(
            encode_record(replace(entry, totals=described))
        )
    merge(tmp_path)
    merged = open_shuffle(tmp_path)
    assert merged.verify().ok
    assert len(merged.map_outputs) == 1
    assert merged.subpartition_bytes.to_numpy().min() >= 0
    assert sum(merged.subpartition_bytes.to_pylist()) == merged.map_outputs[0].num_bytes


def test_a_version_that_is_not_there_is_told_without_fences(tmp_path):
    write_tasks(tmp_path, [[numbered(range(3))]], 3)
    log = CommitLog(PosixStorage(str(tmp_path)))
    log.append(lambda _: Fence(0, "c", 1, ("j",)), sync=False)
    with pytest.raises(
        ShuffleNotFoundError, match=r"version 9 is not there; there are versions 1 to 1$"
    ):
        open_shuffle(tmp_path, 9)


def test_lost_totals_are_named_with_what_to_do(tmp_path):
    write_tasks(tmp_path, [[numbered(range(3))]], 3)
    (totals,) = (tmp_path / "commit_log").glob("totals-*")
    totals.unlink()
    shuffle = open_shuffle(tmp_path)
    with pytest.raises(CorruptShuffleError, match=r"totals-.*of version 1\. Restore it"):
        _ = shuffle.subpartition_rows
