"""Checkpoints: they change how a log is read, and never what is read; damage in one is noticed."""

import uuid
from dataclasses import replace

import pytest

from arrow_format.errors import (
    CommitConflictError,
    CorruptShuffleError,
    FormatVersionError,
    ShuffleNotFoundError,
)
from arrow_format.log.checkpoint import (
    HEADER_BYTES,
    Checkpoint,
    body_bytes,
    decode_checkpoint,
    encode_checkpoint,
)
from arrow_format.log.commit_log import CHECKPOINT_INTERVAL, CommitLog
from arrow_format.log.names import LogIndex
from arrow_format.log.record import Fence, JobEnd
from arrow_format.read.shuffle import open_shuffle
from arrow_format.storage.open import PosixStorage
from tests.support.guarantees import guarantee
from tests.support.recording_storage import RecordingStorage
from tests.support.small_shuffles import numbered, values, write_tasks
from tests.unit.log.test_commit_log import ENTRY, commit

N = 5


@pytest.fixture
def path(tmp_path):
    """Three appends, a fence, and another append."""
    for start in range(0, 30, 10):
        write_tasks(tmp_path, [[numbered(range(N), start)]], N, mode="append")
    fence(CommitLog(PosixStorage(str(tmp_path))), "lost")
    write_tasks(tmp_path, [[numbered(range(N), 40)]], N, mode="append")
    return tmp_path


def fence(log, *jobs):
    return log.append(lambda _: Fence(0, "the-fence", 5, jobs), sync=False)


def decode(data, end):
    body_bytes(data[:HEADER_BYTES])
    return decode_checkpoint(data[:HEADER_BYTES], data[HEADER_BYTES:end], len(data))


def log_of(path):
    return CommitLog(PosixStorage(str(path)))


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


@pytest.mark.parametrize("numbers", [(1,), (2,), (3,), (4,), (2, 4), (5,), (1, 2, 3, 4, 5)])
def test_versions_are_the_same_with_checkpoints_as_without(path, numbers):
    before = {version: state_of(path, version) for version in (1, 2, 3, 5, None)}
    jobs = {entry.job_id: entry.version for entry in open_shuffle(path).entries}
    for number in numbers:
        log_of(path).put_checkpoint(number, sync=False)
    assert {version: state_of(path, version) for version in before} == before
    for job, version in jobs.items():
        assert log_of(path).find_job(job) == JobEnd(version, fenced=False)
    assert log_of(path).find_job("lost") == JobEnd(4, fenced=True)
    assert log_of(path).find_job("lost", after=4) is None
    assert open_shuffle(path).verify().ok


def test_entries_before_a_checkpoint_are_not_read(path):
    log_of(path).put_checkpoint(4, sync=False)
    storage = RecordingStorage(str(path))
    log = CommitLog(storage)
    log.totals(log.snapshot())
    entries = [name for name in storage.others if name.endswith(".json")]
    assert entries == [f"commit_log/{5:020d}.json"]
    assert len(storage.others) == 4, "and the checkpoint, and the totals of both"


def test_a_commit_puts_a_checkpoint_now_and_then(tmp_path):
    log = CommitLog(PosixStorage(str(tmp_path)))
    (tmp_path / "commit_log").mkdir()
    for number in range(2 * CHECKPOINT_INTERVAL + 1):
        fence(log, f"job{number}")
    found = sorted(name.stem for name in tmp_path.glob("commit_log/*.checkpoint"))
    assert [int(one) for one in found] == [CHECKPOINT_INTERVAL, 2 * CHECKPOINT_INTERVAL]
    assert log_of(tmp_path).snapshot() is None, "nothing but fences is no shuffle"
    storage = RecordingStorage(str(tmp_path))
    assert CommitLog(storage).find_job("job3") == JobEnd(4, fenced=True)
    assert len(storage.others) == 2


@guarantee("checkpoints")
def test_a_long_log_is_opened_with_few_operations(tmp_path):
    log = CommitLog(PosixStorage(str(tmp_path)))
    write_tasks(tmp_path, [[numbered(range(N))]], N)
    first = log.entry(1)
    count = 2 * CHECKPOINT_INTERVAL + 30
    for number in range(2, count + 1):
        (output,) = first.map_outputs
        files = tuple(replace(file, path=f"{file.path}-{number}") for file in output.files)
        appended = replace(
            first,
            operation="append",
            job_id=f"j{number}",
            commit_id=f"c{number}",
            map_outputs=(replace(output, job_id=f"j{number}", files=files),),
        )
        log.append(lambda _, appended=appended: appended, sync=False)
    storage = RecordingStorage(str(tmp_path))
    shorter = CommitLog(storage)
    snapshot = shorter.snapshot()
    rows, _ = shorter.totals(snapshot)
    assert snapshot.version == count
    assert snapshot.num_rows == rows.sum() == N * count
    assert len(storage.others) < CHECKPOINT_INTERVAL


@guarantee("checkpoints")
def test_every_flip_and_cut_of_a_checkpoint_is_noticed(path):
    before = state_of(path, None)
    log_of(path).put_checkpoint(4, sync=False)
    (file,) = path.glob("commit_log/*.checkpoint")
    whole = file.read_bytes()
    end = HEADER_BYTES + body_bytes(whole[:HEADER_BYTES])
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        if position % 16 == 0:
            file.write_bytes(flipped)
            with pytest.raises(CorruptShuffleError, match=r"checkpoint|totals"):
                log_of(path).totals(log_of(path).snapshot())
        if position < end:
            with pytest.raises(CorruptShuffleError):
                decode(bytes(flipped), end)
    for length in range(0, len(whole), 7):
        file.write_bytes(whole[:length])
        with pytest.raises(CorruptShuffleError, match=r"00004.checkpoint: .*delete it, and they"):
            open_shuffle(path)
    file.write_bytes(whole + b"x")
    with pytest.raises(CorruptShuffleError, match="expected"):
        open_shuffle(path)
    file.unlink()
    assert state_of(path, None) == before


def test_a_job_takes_few_bytes_for_ever():
    """ADR 8 states the price of remembering: ids are random, and 16 bytes of each stay."""
    jobs = {uuid.uuid4().hex: JobEnd(number, fenced=False) for number in range(1, 2_001)}
    data = encode_checkpoint(Checkpoint(2_000, None, jobs), None)
    assert 16 * len(jobs) < len(data) < 24 * len(jobs)
    body = data[HEADER_BYTES:]
    assert decode_checkpoint(data[:HEADER_BYTES], body, len(data)).jobs == jobs


def test_a_checkpoint_under_another_number_is_refused(path):
    log_of(path).put_checkpoint(3, sync=False)
    (file,) = path.glob("commit_log/*.checkpoint")
    file.rename(file.with_name(f"{4:020d}.checkpoint"))
    with pytest.raises(CorruptShuffleError, match="is the checkpoint of version 3"):
        open_shuffle(path)


def test_a_damaged_checkpoint_does_not_fail_a_commit_that_is_out(path, monkeypatch):
    monkeypatch.setattr("arrow_format.log.commit_log.CHECKPOINT_INTERVAL", 1)
    monkeypatch.setattr(CommitLog, "_put_checkpoint", lambda *_: PosixStorage("/").open_reader("x"))
    assert write_tasks(path, [[numbered([1])]], N, mode="append").version == 6


def test_a_newer_checkpoint_is_refused_as_newer(monkeypatch):
    monkeypatch.setattr("arrow_format.log.checkpoint.FORMAT_VERSION", 9)
    data = encode_checkpoint(Checkpoint(3, None, {}), None)
    with pytest.raises(FormatVersionError, match="checkpoint has format version 9"):
        decode_checkpoint(data[:24], data[24:], len(data))


def test_a_fence_is_no_version(path):
    with pytest.raises(ShuffleNotFoundError, match="version 4 is not there; garbage collection"):
        open_shuffle(path, 4)
    assert open_shuffle(path).version == 5
    assert values(path)[3:4] == [40], "rows of a subpartition by version"


def test_a_fenced_job_commits_at_no_point(tmp_path):
    """Whether the fence stands before the commit looks, or comes between its look and its put."""
    log = CommitLog(PosixStorage(str(tmp_path)))
    commit(log)
    fence(log, "slow")
    with pytest.raises(CommitConflictError, match=r"job slow was given up .*fence 2"):
        log.append(lambda _: replace(ENTRY, job_id="slow"), sync=False, job_id="slow")

    def decide(_):
        if log_of(tmp_path).find_job("late") is None:
            fence(log_of(tmp_path), "late")
        return replace(ENTRY, job_id="late", commit_id="late", operation="append", map_outputs=())

    with pytest.raises(CommitConflictError, match=r"job late was given up .*fence 3"):
        log.append(decide, sync=False, job_id="late")
    assert log_of(tmp_path).newest_version() == 3


def test_the_names_in_a_log():
    names = [f"{number:020d}.json" for number in (3, 5)]
    index = LogIndex.of([*names, f"{2:020d}.checkpoint", f"{3:020d}.oldest", "totals-x.arrow"])
    assert (index.oldest, index.newest, index.missing()) == (3, 5, [4])
    assert LogIndex.of([f"{10**19:020d}.json"]).missing() == list(range(1, 101))
    assert LogIndex.of([]).missing() == []
    assert LogIndex.of(names).oldest == 1
