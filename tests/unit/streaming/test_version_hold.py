"""A version that a living reader holds is kept, of each type of result; dead readers keep none."""

import gc
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from arrow_format import (
    DeletionReceipt,
    collect_garbage,
    delete_rows,
    drop_shuffle,
    erasure_status,
    list_consumers,
    merge_shuffle,
    open_shuffle,
    release_shuffle,
    tag_shuffle,
    untag_shuffle,
)
from arrow_format.errors import (
    ClosedError,
    ConsumerError,
    OptionError,
    ResultReleasedError,
    ShuffleNotFoundError,
    StorageError,
)
from arrow_format.jobs.reader_holds import SILENCE_MS, reader_holds
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.consumers import NO_RECORD, ConsumerRegistry
from arrow_format.storage.open import open_storage
from arrow_format.streaming import version_hold
from arrow_format.streaming.consumption import forget_consumer
from arrow_format.streaming.version_hold import VersionHold
from arrow_shuffle import consume
from tests.support.guarantees import guarantee
from tests.support.results import ELSEWHERE, ROOT, TYPES, child, rows, take, write
from tests.support.small_shuffles import collect, make_old
from tests.support.waiting import wait_until


@pytest.fixture
def storage(path):
    """A shuffle of one version."""
    write(path, 1)
    return open_storage(path)


def names(path):
    """Names below the consumers of a shuffle."""
    return sorted(each.name for each in (path / "consumers").glob("*"))


def put_hold(storage, version, holder=ELSEWHERE, name="reader-0123456789ab"):
    """Register a reader of another machine, say."""
    taken = NO_RECORD.taken_by(holder).consumed(version - 1)
    ConsumerRegistry(storage).put(name, taken)
    return name


# What is kept ---------------------------------------------------------------------------------


@guarantee("held versions")
@pytest.mark.parametrize("kind", TYPES)
def test_a_held_version_is_kept_of_each_type_of_result_until_it_is_closed(path, kind):
    write(path, 1, result_type=kind.name)
    held = open_shuffle(path)
    with VersionHold.take(open_storage(path), 1) as hold:
        for value in (2, 3):
            write(path, value, mode="overwrite")
        merge_shuffle(path, by="map_output")
        report = collect(path, 2)
        assert report.oldest_version == 1
        assert f"kept by   reader {hold.name}, process {os.getpid()} on " in str(report)
        assert ": versions from 1, until it ends or moves on" in str(report)
        assert rows(held) == rows(open_shuffle(path, 1)) == [1]
        assert rows(open_shuffle(path, 2)) == [2]
    assert names(path) == []
    assert collect(path).expired_versions
    with pytest.raises(ShuffleNotFoundError, match="version 1 has expired"):
        open_shuffle(path, 1)
    with pytest.raises(ShuffleNotFoundError, match="version 1 has expired"):
        rows(held)


def test_versions_before_a_held_one_expire_and_it_moves_on(path):
    for value in (1, 2, 3):
        write(path, value, mode="overwrite")
    with VersionHold.take(open_storage(path), 2) as hold:
        assert collect(path).oldest_version == 2
        assert rows(open_shuffle(path, 2)) == [2]
        newest = write(path, 4).version
        hold.move(newest)
        assert hold.version == newest
        assert collect(path).oldest_version == newest
        hold.move(2)
        assert hold.version == newest, "records only grow"
        write(path, 5)
        assert collect(path).oldest_version == newest
        assert rows(open_shuffle(path, newest)) == [3, 4]


def test_a_collection_that_compacts_the_log_keeps_what_a_held_version_needs(path, small_log):
    for value in range(20):
        write(path, value)
    with VersionHold.take(open_storage(path), 18):
        write(path, 20, mode="overwrite")
        collect(path, 2, compact_log=True)
        assert rows(open_shuffle(path, 18)) == list(range(18))


def test_a_pipelined_version_that_was_consumed_and_released_stays_while_it_is_held(path):
    """The consumer goes on as if there was no reader, and so does its release."""
    write(path, 1, result_type="PIPELINED")
    held = open_shuffle(path)
    with VersionHold.take(open_storage(path), 1):
        assert take(path, "a") == [1]
        write(path, 2)
        assert take(path, "a") == [2]
        write(path, 3)
        collect(path)
        assert rows(open_shuffle(path)) == [3]
        assert rows(held) == [1]
    assert take(path, "a") == [3]
    collect(path)
    with pytest.raises(ShuffleNotFoundError):
        rows(held)


def test_a_hold_does_not_outlast_a_release_by_name(path):
    write(path, 1)
    with VersionHold.take(open_storage(path), 1):
        release_shuffle(path)
        assert not list(path.glob("map_outputs/*/*.data"))
        with pytest.raises(ResultReleasedError):
            VersionHold.take(open_storage(path), 1)
        write(path, 2, mode="overwrite")
        assert rows(open_shuffle(path)) == [2]


def test_what_only_a_tag_keeps_can_be_held_and_holds_nothing_else(path):
    write(path, 1)
    tag_shuffle(path, "kept", 1)
    for value in (2, 3):
        write(path, value, mode="overwrite")
    collect(path)
    number = CommitLog(open_storage(path)).newest_version()
    with VersionHold.take(open_storage(path), 1):
        assert CommitLog(open_storage(path)).newest_version() == number
        write(path, 4, mode="overwrite")
        collect(path)
        with pytest.raises(ShuffleNotFoundError):
            open_shuffle(path, number)
        assert rows(open_shuffle(path, 1)) == [1]
        for value in (5, 6):
            write(path, value, mode="overwrite")
        with VersionHold.take(open_storage(path), 1) as moves:
            newest = open_shuffle(path).version
            moves.move(newest)
            write(path, 7, mode="overwrite")
            collect(path)
            assert rows(open_shuffle(path, newest)) == [6]
        collect(path)
        with VersionHold.take(open_storage(path), 1) as moves:
            with pytest.raises(ShuffleNotFoundError, match="has expired"):
                moves.move(newest)
            assert len(names(path)) == 1, "the first one"
        untag_shuffle(path, "kept")
        collect(path)
        with pytest.raises(ShuffleNotFoundError):
            open_shuffle(path, 1)


# What takes it --------------------------------------------------------------------------------


def test_what_is_not_there_or_has_expired_is_not_held(path):
    for value in (1, 2):
        write(path, value, mode="overwrite")
    collect(path)
    storage = open_storage(path)
    with pytest.raises(ShuffleNotFoundError, match="version 1 has expired"):
        VersionHold.take(storage, 1)
    with pytest.raises(ShuffleNotFoundError, match="version 9 is not there"):
        VersionHold.take(storage, 9)
    for version in (0, "1"):
        with pytest.raises(OptionError):
            VersionHold.take(storage, version)
    assert names(path) == []


@guarantee("held versions")
@pytest.mark.parametrize("when", ["before the hold", "after the hold"])
def test_a_collection_that_is_about_to_let_the_version_expire_looks_again(path, monkeypatch, when):
    """It has looked for holds, and its entry comes after the reader has taken its own."""
    for value in (1, 2):
        write(path, value, mode="overwrite")
    taken, real = [], CommitLog.append

    def append(log, decide, **how):
        monkeypatch.setattr(CommitLog, "append", real)
        if when == "before the hold":
            entry = real(log, decide, **how)
            with pytest.raises(ShuffleNotFoundError, match="version 1 has expired"):
                VersionHold.take(open_storage(path), 1)
            return entry
        taken.append(VersionHold.take(open_storage(path), 1))
        return real(log, decide, **how)

    monkeypatch.setattr(CommitLog, "append", append)
    collect(path)
    if when == "after the hold":
        assert rows(open_shuffle(path, 1)) == [1]
        taken[0].close()
    assert names(path) == []


def test_the_newest_version_is_held_without_an_entry_of_the_log(path):
    write(path, 1)
    write(path, 2)
    log = CommitLog(open_storage(path))
    with VersionHold.take(open_storage(path), 2):
        assert log.newest_version() == log.view().newest == 2
    with VersionHold.take(open_storage(path), 1):
        assert (log.view().state.version, log.view().newest) == (2, 3)
    write(path, 3)
    assert rows(open_shuffle(path)) == [1, 2, 3]


@pytest.mark.parametrize("kind", ["readonly", "careless"])
def test_a_store_that_takes_no_puts_holds_nothing(s3, kind):
    storage = open_storage(f"s3://{s3.new_bucket(kind)}/a", s3.options)
    with pytest.raises(StorageError, match=r"version 1 cannot be held for a reader \(s3://"):
        VersionHold.take(storage, 1)


@guarantee("append-only credentials")
def test_credentials_that_may_not_delete_leave_a_record_that_the_hold_has_ended(s3):
    source, target, client = s3.new_bucket(), s3.new_bucket("appendonly"), s3.client()
    write(open_storage(f"s3://{source}/a", s3.options), 1)
    for key in s3.keys(source):
        body = client.get_object(Bucket=source, Key=key)["Body"].read()
        client.put_object(Bucket=target, Key=key, Body=body)
    storage = open_storage(f"s3://{target}/a", s3.options)
    with VersionHold.take(storage, 1):
        assert [hold.is_living for hold in reader_holds(storage)] == [True]
    assert [hold.is_living for hold in reader_holds(storage)] == [False]
    write(storage, 2, mode="overwrite")
    with pytest.raises(StorageError, match="may not be removed with these credentials"):
        collect(storage)
    with pytest.raises(ShuffleNotFoundError, match="version 1 has expired"):
        open_shuffle(storage, 1)


@guarantee("held versions")
def test_a_version_in_a_store_is_held_and_collected_after(s3):
    bucket = s3.new_bucket()
    storage = open_storage(f"s3://{bucket}/a", s3.options)
    write(storage, 1)
    with VersionHold.take(storage, 1), s3.requests(bucket) as requests:
        write(storage, 2, mode="overwrite")
        del requests[:]
        collect(storage)
        assert not [each for each in requests if each.method == "HEAD"], "none asks for its age"
        assert rows(open_shuffle(storage, 1)) == [1]
    assert not [key for key in s3.keys(bucket) if "/consumers/" in key]
    put_hold(storage, 1)
    collect(storage)
    assert rows(open_shuffle(storage, 1)) == [1], "of another machine, a moment ago"
    ConsumerRegistry(storage).remove("reader-0123456789ab")
    assert collect(storage).expired_versions == (1,)


AS_NOBODY = """
import os, sys
from arrow_format import StorageError, open_shuffle
from arrow_format.storage.open import open_storage
from arrow_format.streaming.version_hold import VersionHold
open_shuffle(sys.argv[1]).read().read_all()
os.setgid(65534)
os.setuid(65534)
try:
    VersionHold.take(open_storage(sys.argv[1]), 1)
except StorageError as error:
    assert type(error) is StorageError, repr(error)
    print(error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_user_who_may_not_write_holds_nothing(path, storage):
    for above in (path, *list(path.parents)[:4]):
        above.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(path)],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout.startswith(f"{path}: version 1 cannot be held for a reader (")
    assert "permission denied" in done.stdout
    assert names(path) == []


def test_a_put_without_an_answer_leaves_nothing(path, storage, monkeypatch):
    real = ConsumerRegistry.put

    def put(registry, name, record):
        real(registry, name, record)
        raise StorageError("no answer")

    monkeypatch.setattr(ConsumerRegistry, "put", put)
    with pytest.raises(StorageError, match=r"version 1 cannot be held .*\(no answer\)"):
        VersionHold.take(storage, 1)
    assert names(path) == []


# Who is alive ---------------------------------------------------------------------------------

HOLDING = """
import sys, time
from arrow_format.storage.open import open_storage
from arrow_format.streaming.version_hold import VersionHold
hold = VersionHold.take(open_storage(sys.argv[1]), 1)
print("ready", flush=True)
time.sleep(600)
"""


@guarantee("held versions")
def test_a_killed_reader_keeps_nothing_and_its_registration_is_removed(path):
    write(path, 1)
    with child(HOLDING, path) as process:
        write(path, 2, mode="overwrite")
        process.send_signal(signal.SIGSTOP)
        make_old(path / "consumers", timedelta(days=1))
        collect(path)
        assert rows(open_shuffle(path, 1)) == [1], "a stopped process lives"
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert len(names(path)) == 1
        report = collect_garbage(path, retention=timedelta(0), dry_run=True)
        assert any("/consumers/reader-" in file.path for file in report.files)
        assert len(names(path)) == 1
        assert collect(path).expired_versions == (1,)
    assert names(path) == []


@guarantee("held versions")
def test_a_reader_on_another_machine_lives_until_it_was_silent_for_an_hour(path, storage):
    put_hold(storage, 1)
    write(path, 2, mode="overwrite")
    make_old(path / "consumers", timedelta(minutes=59))
    collect(path)
    assert rows(open_shuffle(path, 1)) == [1]
    make_old(path / "consumers", timedelta(milliseconds=SILENCE_MS + 1000))
    collect(path)
    with pytest.raises(ShuffleNotFoundError):
        open_shuffle(path, 1)
    assert names(path) == []


def test_its_own_clock_does_not_matter(path, storage, monkeypatch):
    far = NO_RECORD.taken_by(ELSEWHERE).consumed(0)
    for at_ms, name in ((0, "reader-00000000000a"), (1 << 50, "reader-00000000000b")):
        ConsumerRegistry(storage).put(name, replace(far, at_ms=at_ms))
    assert [hold.is_living for hold in reader_holds(storage)] == [True, True]
    make_old(path / "consumers", timedelta(hours=2))
    assert [hold.is_living for hold in reader_holds(storage)] == [False, False]


def test_a_reader_that_was_taken_for_dead_takes_the_next_version_again(path, storage):
    hold = VersionHold.take(storage, 1)
    first = hold.name
    ConsumerRegistry(storage).remove(first)  # as a collection on another machine does
    newest = write(path, 2, mode="overwrite").version
    hold.move(newest)
    assert hold.name != first
    assert names(path) == [hold.name]
    hold.close()
    assert names(path) == []
    hold = VersionHold.take(storage, newest)
    ConsumerRegistry(storage).remove(hold.name)
    with pytest.raises(ShuffleNotFoundError, match="version 9 is not there"):
        hold.move(9)
    assert names(path) == []
    with pytest.raises(ClosedError):
        hold.move(10)


def test_what_a_reader_that_begins_has_not_finished_is_left_alone(path, storage):
    (path / "consumers" / "reader-0123456789ab").mkdir(parents=True)
    unfinished = path / "consumers" / "reader-0123456789ab" / ".tmp-x"
    unfinished.touch()
    (path / "consumers" / "reader-0123456789ac").mkdir()
    collect_garbage(path)
    assert names(path) == ["reader-0123456789ab"]
    assert unfinished.exists()


def test_records_are_put_while_it_is_held(path, storage, monkeypatch):
    monkeypatch.setattr(version_hold, "LEASE_SECONDS", 0.04)
    with VersionHold.take(storage, 1) as hold:
        registry = ConsumerRegistry(storage)
        wait_until(lambda: registry.newest(hold.name).number > 12)
        assert registry.newest(hold.name).version == 0
        assert len(list((path / "consumers" / hold.name).iterdir())) <= 11


# Its end --------------------------------------------------------------------------------------


def test_it_is_closed_once_and_takes_nothing_after(path, storage):
    hold = VersionHold.take(storage, 1)
    hold.close()
    hold.close()
    assert names(path) == []
    with pytest.raises(ClosedError, match="is closed"):
        hold.move(2)


def test_it_is_closed_when_nothing_references_it_or_the_interpreter_ends(path, storage):
    hold = VersionHold.take(storage, 1)
    assert len(names(path)) == 1
    del hold
    gc.collect()
    assert names(path) == []
    ended = HOLDING.replace("time.sleep(600)", "sys.exit()")
    subprocess.run([sys.executable, "-c", ended, str(path)], check=True, cwd=ROOT)
    assert names(path) == []


def test_the_thread_of_its_records_may_be_the_one_that_ends_it(path, storage, monkeypatch):
    """As where a garbage collection of Python's runs there."""
    monkeypatch.setattr(version_hold, "LEASE_SECONDS", 0.04)
    hold, done = VersionHold.take(storage, 1), threading.Event()
    lease, put = hold._lease, hold._lease.put

    def closes(*change):
        if lease.runs_here() and not done.is_set():
            done.set()
            hold.close()
        return put(*change)

    lease.put = closes
    assert done.wait(10)
    wait_until(lambda: names(path) == [])


FORKING = """
import os, sys
from arrow_format.errors import ClosedError
from arrow_format.storage.open import open_storage
from arrow_format.streaming.version_hold import VersionHold
hold = VersionHold.take(open_storage(sys.argv[1]), 1)
for ends in (sys.exit, os._exit):
    if os.fork() == 0:
        hold.close()
        try:
            hold.move(2)
        except ClosedError as error:
            assert "is of process" in str(error)
            del hold
            ends(0)
        ends(1)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    assert len(os.listdir(sys.argv[1] + "/consumers")) == 1
    assert len(os.listdir(sys.argv[1] + "/consumers/" + hold.name)) == 1
"""


def test_a_forked_child_ends_nothing(path, storage):
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKING, str(path)], check=True, cwd=ROOT)
    assert names(path) == []


# It is no consumer ----------------------------------------------------------------------------


def test_nothing_is_released_or_kept_from_it_by_a_hold(path):
    write(path, 1, result_type="BLOCKING")
    with VersionHold.take(open_storage(path), 1):
        write(path, 2)
        collect(path)
        assert rows(open_shuffle(path)) == [1, 2], "no consumer has consumed it"
        assert list_consumers(path) == ()
        assert take(path, "a") == [1, 2]
        with pytest.raises(ResultReleasedError, match="consumed by a"):
            open_shuffle(path)


def test_no_producer_waits_for_a_hold_or_goes_on_by_it(path):
    bounds = {
        "result_type": "PIPELINED_BOUNDED",
        "max_unconsumed_versions": 1,
        "back_pressure_timeout": 0.05,
    }
    write(path, 1, **bounds)
    with VersionHold.take(open_storage(path), 1):
        assert take(path, "a") == [1]
        write(path, 2, **bounds)
        assert take(path, "a") == [2]
        write(path, 3, **bounds)


def test_a_consumer_has_no_such_name_and_may_have_a_similar_one(path, storage):
    with pytest.raises(OptionError, match="is of a reader that holds a version"):
        consume(path, consumer="reader-0123456789ab")
    for name in ("reader-a", "reader-0123456789abc", "reader-0123456789AB"):
        assert take(path, name) == [1]
    assert len(list_consumers(path)) == 3


def test_it_is_forgotten_by_name_once_its_process_is_gone(path, storage):
    with VersionHold.take(storage, 1) as hold, pytest.raises(ConsumerError, match="is held by"):
        forget_consumer(path, hold.name)
    with child(HOLDING, path) as process:
        (name,) = names(path)
        process.kill()
        process.wait()
        assert forget_consumer(path, name)
    collect(path)
    assert names(path) == []


def test_a_shuffle_with_a_reader_is_dropped_by_force_alone(path, storage):
    with VersionHold.take(storage, 1) as hold:
        with pytest.raises(ConsumerError, match=rf"{hold.name}, process .* reads version 1"):
            drop_shuffle(path)
        assert drop_shuffle(path, force=True).consumers == ()
    assert not path.exists()
    write(path, 1)
    put_hold(open_storage(path), 1)
    make_old(path / "consumers", timedelta(hours=2))
    assert drop_shuffle(path).is_complete, "a dead reader does not matter"
    assert not path.exists()


# Erasure --------------------------------------------------------------------------------------


@guarantee("erased bytes")
def test_the_status_of_an_erasure_names_the_reader_that_keeps_the_rows(path):
    write(path, 1, 2)
    with VersionHold.take(open_storage(path), 1) as hold:
        receipt = delete_rows(path, {"k": [2]})
        collect(path)
        looked_at = erasure_status(path, receipt)
        assert not looked_at.is_gone
        assert looked_at.versions == ((1, 1),)
        assert looked_at.files
        (named,) = looked_at.readers.items()
        assert named == (f"{hold.name}, process {os.getpid()} on {os.uname().nodename}", 1)
        assert f"readers    '{named[0]}' (version 1) keep the versions" in str(looked_at)
        assert DeletionReceipt.from_json(looked_at.to_json()) == looked_at
        assert "readers" not in receipt.in_log()
        hold.move(receipt.version)
        assert erasure_status(path, receipt).readers == {}, "collect garbage, and it is gone"
        collect(path)
        looked_at = erasure_status(path, receipt)
        assert looked_at.is_gone, str(looked_at)
        assert looked_at.readers == {}
