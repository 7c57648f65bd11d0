"""Result types: who consumes what, how often, who waits for whom, and when a result goes."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from arrow_format import (
    MergePolicy,
    ResultPartitionType,
    WriteOptions,
    collect_garbage,
    consume,
    forget_consumer,
    list_consumers,
    merge_shuffle,
    open_shuffle,
    process_identity,
    release_shuffle,
    write_shuffle,
)
from arrow_format.errors import (
    BackPressureTimeoutError,
    ClosedError,
    ConsumerError,
    CorruptShuffleError,
    OptionError,
    RequestTimeoutError,
    ResultFailedError,
    ResultReleasedError,
    ShuffleNotFoundError,
    StorageError,
)
from arrow_format.jobs.back_pressure import Unconsumed, fits_bounds
from arrow_format.jobs.cleanup import abort_after
from arrow_format.jobs.job import begin_job
from arrow_format.jobs.target import open_target
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.log.consumers import ConsumerRegistry, consumer_directory, progress_path
from arrow_format.log.framing import to_lines
from arrow_format.log.result import ResultDescription
from arrow_format.process_identity import ProcessIdentity, this_process
from arrow_format.storage.open import ObjectExistsError, PosixStorage, open_storage
from arrow_format.streaming import consumption
from arrow_format.streaming.consumption import Consumer
from arrow_format.streaming.lease import await_holder, take_lease
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import files_below

ROOT = Path(__file__).parents[3]
N = 3
TYPES = list(ResultPartitionType)
PIPELINED = [result_type for result_type in TYPES if result_type.is_pipelined]
BLOCKING = [result_type for result_type in TYPES if result_type.is_blocking]


def write(path, *values, mode="append", **options):
    return write_shuffle(
        pa.table({"k": list(values)}),
        path,
        num_subpartitions=N,
        keys="k",
        mode=mode,
        options=WriteOptions(sync=False, **options),
    )


def begin_write(path):
    """The job of a producer that is at work."""
    job = begin_job(
        path, pa.schema([("k", pa.int64())]), num_subpartitions=N, partitioner=HashPartitioner("k")
    )
    open_target(job, "append")
    return job


def take(path, consumer, **options):
    """What one consumption delivers, sorted."""
    with consume(path, consumer=consumer, **options) as consumption:
        return rows(consumption.shuffle)


def rows(shuffle):
    return sorted(shuffle.read().read_all()["k"].to_pylist())


def leases(directory):
    return [file for file in files_below(directory) if "lease-" in file]


@contextmanager
def child(program, *arguments):
    """A process that runs ``program`` and has said that it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("kind", "properties"),
    [
        ("BLOCKING_PERSISTENT", (True, True, False, True, False)),
        ("BLOCKING", (True, False, False, True, True)),
        ("PIPELINED", (False, False, False, False, True)),
        ("PIPELINED_BOUNDED", (False, False, True, False, True)),
    ],
)
def test_the_properties_of_each_type(kind, properties):
    result_type = ResultPartitionType[kind]
    assert properties == (
        result_type.is_blocking,
        result_type.is_persistent,
        result_type.is_bounded,
        result_type.is_reconsumable,
        result_type.is_released_by_consumers,
    )
    assert result_type.is_pipelined is not result_type.is_blocking
    assert result_type.has_back_pressure is result_type.is_bounded


@pytest.mark.parametrize("kind", TYPES)
def test_the_type_is_in_the_log_and_an_append_keeps_it(tmp_path, kind):
    write(tmp_path / "s", 1, result_type=kind.name.lower())
    write(tmp_path / "s", 2)
    assert open_shuffle(tmp_path / "s").result.type is kind


def test_who_says_nothing_gets_a_persistent_one(tmp_path):
    write(tmp_path / "s", 1)
    assert open_shuffle(tmp_path / "s").result == ResultDescription()
    log = (tmp_path / "s" / "commit_log" / f"{1:020d}.json").read_bytes()
    assert b'"result"' not in log


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"result_type": "EPHEMERAL"}, "result_type='EPHEMERAL': expected one of BLOCKING_PERS"),
        ({"result_type": 3}, "result_type=3"),
        ({"max_unconsumed_bytes": 5}, "only a result of type PIPELINED_BOUNDED has bounds"),
        (
            {"result_type": "PIPELINED", "max_unconsumed_versions": 5},
            "only a result of type PIPELINED_BOUNDED has bounds, and result_type is PIPELINED",
        ),
        ({"result_type": "PIPELINED_BOUNDED", "max_unconsumed_versions": 0}, "from 1 to"),
        ({"back_pressure_timeout": -1}, "back_pressure_timeout=-1"),
        (
            {"result_type": "BLOCKING", "back_pressure_timeout": 600.0},
            "back_pressure_timeout=600.0: only a result of type PIPELINED_BOUNDED waits for its",
        ),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(OptionError, match=message):
        WriteOptions(**options)


def test_an_append_of_another_type_is_refused(tmp_path):
    write(tmp_path / "s", 1, result_type="PIPELINED")
    with pytest.raises(
        OptionError, match=r"s: result_type=BLOCKING: the existing result is PIPELINED"
    ):
        write(tmp_path / "s", 2, result_type="BLOCKING")
    assert rows(open_shuffle(tmp_path / "s")) == [1]
    write(tmp_path / "s", 2, mode="overwrite", result_type="BLOCKING")
    assert rows(open_shuffle(tmp_path / "s")) == [2]


@pytest.mark.parametrize("name", ["", "a b", "../x", "a/b", "x" * 101, None, 3])
def test_a_bad_name_of_a_consumer_is_refused(tmp_path, name):
    with pytest.raises(OptionError, match="expected 1 to 100 letters"):
        consume(tmp_path / "s", consumer=name)
    assert files_below(tmp_path) == []


# Consumption


@guarantee("consumed once")
@pytest.mark.parametrize("kind", PIPELINED)
def test_a_pipelined_version_is_consumed_once_by_each_name(tmp_path, kind):
    path = tmp_path / "s"
    write(path, 1, result_type=kind)
    write(path, 2)
    assert take(path, "a") == [1, 2]
    write(path, 3)
    write(path, 4)
    assert take(path, "a") == [3, 4]
    assert take(path, "b") == [1, 2, 3, 4]
    with pytest.raises(RequestTimeoutError, match="nothing new and this does not wait"):
        take(path, "a")


@pytest.mark.parametrize("kind", PIPELINED)
def test_nothing_new_is_an_empty_result_where_that_is_allowed(tmp_path, kind):
    path = tmp_path / "s"
    with pytest.raises(ShuffleNotFoundError):
        consume(path, consumer="a", allow_empty=True)
    write(path, 1, result_type=kind)
    assert take(path, "a", allow_empty=True) == [1]
    for timeout in (0.0, 0.01):
        with consume(path, consumer="a", request_timeout=timeout, allow_empty=True) as consumption:
            shuffle = consumption.shuffle
            assert (shuffle.version, shuffle.num_rows) == (1, 0)
            assert shuffle.subpartition_rows.to_pylist() == [0] * shuffle.num_subpartitions
            assert shuffle.schema.names == ["k"]
            assert rows(shuffle) == []
            assert shuffle.verify().ok
    write(path, 2)
    assert take(path, "a", allow_empty=True) == [2]
    merge_shuffle(path, policy=MergePolicy(rewrite="always"))
    assert take(path, "a", allow_empty=True) == []
    write(path, 3)
    assert take(path, "a", allow_empty=True) == [3]
    assert take(path, "b", allow_empty=True) == [1, 2, 3]


@guarantee("consumed once")
@pytest.mark.parametrize("kind", PIPELINED)
def test_what_was_not_committed_comes_again(tmp_path, kind):
    path = tmp_path / "s"
    write(path, 1, result_type=kind)
    with (
        pytest.raises(KeyError),
        consume(path, consumer="a") as consumption,
    ):
        raise KeyError(rows(consumption.shuffle))
    with consume(path, consumer="a") as consumption:
        consumption.close()
    assert take(path, "a") == [1]


def test_a_blocking_persistent_result_is_consumed_any_number_of_times(tmp_path):
    path = tmp_path / "s"
    write(path, 1)
    write(path, 2)
    assert [take(path, name) for name in ("a", "a", "b")] == [[1, 2]] * 3
    collect_garbage(path, retention=timedelta(0))
    assert take(path, "a") == [1, 2]


def test_a_pinned_consumption_is_not_changed_by_what_comes(tmp_path):
    path = tmp_path / "s"
    write(path, 1, result_type="PIPELINED")
    with consume(path, consumer="a") as consumption:
        write(path, 2)
        assert rows(consumption.shuffle) == [1]
        assert consumption.shuffle.version == 1
    assert take(path, "a") == [2]


def test_a_consumption_travels_as_what_it_is(tmp_path):
    path = tmp_path / "s"
    write(path, 1, result_type="PIPELINED")
    take(path, "a")
    write(path, 2)
    with consume(path, consumer="a") as consumption:
        assert rows(pickle.loads(pickle.dumps(consumption.shuffle))) == [2]


def test_a_merge_hides_nothing_and_brings_nothing(tmp_path):
    path = tmp_path / "s"
    write(path, 1, result_type="PIPELINED")
    take(path, "a")
    write(path, 2)
    merge_shuffle(path)
    collect_garbage(path, retention=timedelta(0))
    assert take(path, "a") == [2]
    merge_shuffle(path)
    with pytest.raises(RequestTimeoutError):
        take(path, "a")


def test_versions_that_overwrite_are_consumed_like_others(tmp_path):
    path = tmp_path / "s"
    write(path, 1, result_type="PIPELINED")
    take(path, "a")
    write(path, 2)
    write(path, 3, mode="overwrite", result_type="PIPELINED")
    assert take(path, "a") == [2, 3]
    assert take(path, "b") == [1, 2, 3]


def test_a_consumption_ends_once(tmp_path):
    write(tmp_path / "s", 1, result_type="PIPELINED")
    consumption = consume(tmp_path / "s", consumer="a")
    consumption.commit()
    with pytest.raises(ClosedError, match="consumption by 'a' has ended"):
        consumption.commit()


@guarantee("progress")
def test_progress_is_durable_and_verified(tmp_path):
    path = tmp_path / "s"
    write(path, 1, result_type="PIPELINED")
    take(path, "a")
    registry = ConsumerRegistry(open_storage(path))
    assert registry.all_progress() == {"a": 1}
    file = path / progress_path("a", 1)
    data = bytearray(file.read_bytes())
    data[5] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptShuffleError, match=r"progress-0+1: .*how far consumer a has come"):
        take(path, "a")


@guarantee("progress")
def test_progress_never_goes_back(tmp_path):
    registry = ConsumerRegistry(open_storage(tmp_path))
    for version in (3, 7, 5):
        registry.advance("a", version)
        assert registry.register("a", 0) == max(3, registry.progress("a"))
    assert registry.progress("a") == 7
    names = sorted(file.name for file in (tmp_path / consumer_directory("a")).iterdir())
    assert names == [Path(progress_path("a", version)).name for version in (5, 7)]


# Requests


def test_a_consumer_may_ask_before_the_producer_is_there(tmp_path):
    path = tmp_path / "not" / "there"
    taken = []
    asking = threading.Thread(target=lambda: taken.append(take(path, "a", request_timeout=30)))
    asking.start()
    while not (path / consumer_directory("a")).exists():
        time.sleep(0.01)
    write(path, 1, 2, result_type="PIPELINED")
    asking.join()
    assert taken == [[1, 2]]


def test_a_producer_with_mode_errorifexists_is_not_stopped_by_who_waits(tmp_path):
    path = tmp_path / "s"
    ConsumerRegistry(open_storage(path)).register("waiting", 0)
    with pytest.raises(RequestTimeoutError, match=r"no committed shuffle after 0\.0\d+ s"):
        take(path, "a", request_timeout=0.05)
    write(path, 1, mode="errorifexists")
    assert take(path, "a") == [1]


@pytest.mark.parametrize(
    "timeout",
    [
        -1,
        -0.5,
        float("nan"),
        True,
        "1",
        None,
        10**400,
        -(10**400),
        pytest.param(1 << 50_000, id="x"),
    ],
)
def test_a_bad_timeout_is_refused(tmp_path, timeout):
    with pytest.raises(OptionError, match=r"^request_timeout.*: expected seconds, 0 or more"):
        consume(tmp_path / "s", consumer="a", request_timeout=timeout)
    assert files_below(tmp_path) == []
    if timeout is not None:
        with pytest.raises(OptionError, match=r"^back_pressure_timeout.*: expected seconds, 0 or"):
            WriteOptions(back_pressure_timeout=timeout)


@guarantee("requests")
@pytest.mark.parametrize("timeout", [0, 0.05])
def test_a_request_for_what_never_was_there_leaves_nothing(tmp_path, timeout):
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "table.parquet").write_bytes(b"somebody's")
    for name in ("mistyped", "empty", "other"):
        with pytest.raises(ShuffleNotFoundError):
            take(tmp_path / name, "a", request_timeout=timeout)
    assert files_below(tmp_path) == ["empty", "other", "other/table.parquet"]


def test_who_has_let_go_of_a_name_takes_it_from_nobody(tmp_path):
    storage = open_storage(tmp_path / "s")
    first = Consumer(storage, "a")
    first.register(0)
    first.close()
    second = Consumer(storage, "a")
    second.register(0)
    first.close()
    assert ConsumerRegistry(storage).names() == ["a"]
    second.close()


def test_a_request_for_a_file_says_so(tmp_path):
    (tmp_path / "file").write_text("somebody's")
    for timeout in (0.0, 0.1):
        with pytest.raises(ShuffleNotFoundError, match="is a file, not the directory"):
            take(tmp_path / "file", "a", request_timeout=timeout)


def test_a_request_that_does_not_wait_makes_no_directory_on_the_way(tmp_path):
    with pytest.raises(ShuffleNotFoundError, match="mistyped: is not there"):
        take(tmp_path / "not" / "mistyped", "a")
    assert files_below(tmp_path) == []


@guarantee("requests")
def test_a_request_in_vain_takes_nothing_from_others(tmp_path):
    storage = open_storage(tmp_path / "s")
    registry = ConsumerRegistry(storage)

    def ask():
        with pytest.raises(RequestTimeoutError):
            take(tmp_path / "s", "a", request_timeout=0.05)

    take_lease(storage, consumer_directory("b")).release()
    registry.register("b", 0)
    ask()
    assert registry.all_progress() == {"b": 0}, "another name"
    registry.register("a", 0)
    ask()
    assert registry.all_progress() == {"a": 0, "b": 0}, "this name was known before"

    taken = Consumer(storage, "c")
    taken.register(0)
    elsewhere(storage, "c", term=2)
    ConsumerRegistry(storage).advance("c", 0)
    taken.close()
    assert registry.progress("c") == 0, "another process has taken it over"


def test_a_request_while_the_producer_is_at_work_stays_known(tmp_path):
    job = begin_write(tmp_path / "s")
    with pytest.raises(RequestTimeoutError):
        take(tmp_path / "s", "a", request_timeout=0.05)
    assert ConsumerRegistry(job.storage).all_progress() == {"a": 0}


def test_waiting_costs_next_to_no_processor_time(tmp_path):
    before = time.process_time()
    with pytest.raises(RequestTimeoutError):
        take(tmp_path / "s", "a", request_timeout=2)
    assert time.process_time() - before < 0.5


@guarantee("absent results")
def test_each_absence_has_its_own_error(tmp_path):
    path = tmp_path / "s"
    with pytest.raises(ShuffleNotFoundError) as unknown:
        take(path, "a")
    assert type(unknown.value) is ShuffleNotFoundError

    ConsumerRegistry(open_storage(path)).register("a", 0)
    job = begin_write(path)
    abort_after(job, RuntimeError("the producer failed"))
    with pytest.raises(ResultFailedError, match=rf"producer .* failed \(job {job.job_id}"):
        take(path, "a")
    with pytest.raises(ResultFailedError):
        take(path, "a", request_timeout=0.05)

    write(path, 1, result_type="BLOCKING")
    assert take(path, "a") == [1]
    with pytest.raises(ResultReleasedError, match=r"released \(consumed by a\); version 2 was"):
        take(path, "a")
    with pytest.raises(ResultReleasedError):
        open_shuffle(path)


def test_a_failure_while_a_consumer_waits_ends_its_waiting(tmp_path):
    path = tmp_path / "s"
    errors = []

    def ask():
        try:
            take(path, "a", request_timeout=60)
        except ResultFailedError as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    while not (path / consumer_directory("a")).exists():
        time.sleep(0.01)
    job = begin_write(path)
    time.sleep(0.1)
    abort_after(job, RuntimeError("the producer failed"))
    asking.join(20)
    assert len(errors) == 1


def test_a_failed_write_that_nobody_waits_for_leaves_nothing(tmp_path):
    job = begin_write(tmp_path / "s")
    abort_after(job, RuntimeError("the producer failed"))
    assert not (tmp_path / "s").exists()


# One process of a name at a time


@guarantee("one process per name")
def test_a_second_consumer_of_the_name_is_refused_while_the_first_lives(tmp_path):
    path = tmp_path / "s"
    write(path, 1, result_type="PIPELINED")
    with consume(path, consumer="a"):
        with pytest.raises(ConsumerError, match=rf"held by process {os.getpid()} on"):
            consume(path, consumer="a")
        assert take(path, "b") == [1]
        with pytest.raises(ConsumerError, match="is at work"):
            forget_consumer(path, "a")


HOLDING = """
import sys, time
from arrow_format import consume
consumption = consume(sys.argv[1], consumer="a")
print("ready", flush=True)
time.sleep(600)
"""


@guarantee("one process per name")
def test_a_killed_consumer_loses_its_name_at_once(tmp_path):
    path = tmp_path / "s"
    write(path, 1, result_type="PIPELINED")
    with child(HOLDING, path) as process:
        with pytest.raises(ConsumerError, match=rf"held by process {process.pid} on"):
            consume(path, consumer="a")
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert take(path, "a") == [1]


def test_a_stopped_process_still_holds_the_name(tmp_path):
    path = tmp_path / "s"
    write(path, 1, result_type="PIPELINED")
    with child(HOLDING, path) as process:
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(ConsumerError):
            consume(path, consumer="a")


def elsewhere(storage, name="a", *, term=1, beat=0):
    """A lease that a process of another machine took just now."""
    identity = replace(this_process(), host="another", boot="another boot")
    path = f"{consumer_directory(name)}/lease-{term:020d}-{beat:020d}"
    storage.put_if_absent(path, to_lines({"format_version": 1, **identity.to_json()}), sync=False)


class Beating(PosixStorage):
    """Where a process of another machine shows itself before each listing; its clock is wrong."""

    def __init__(self, root, age):
        super().__init__(str(root))
        self.age, self.beat = age, 0

    def list(self, path):
        if path.startswith("consumers/"):
            elsewhere(self, beat=self.beat + 1)
            self.delete(f"{path}/lease-{1:020d}-{self.beat:020d}")
            self.beat += 1
            age(self, path, self.age)
        return super().list(path)


def age(storage, directory, seconds):
    """Let files look that old."""
    for path in (storage._root / directory).iterdir():
        os.utime(path, (time.time() - seconds,) * 2)


AGES = pytest.mark.parametrize("seconds", [0, 86_400, -86_400], ids=["right", "behind", "ahead"])


@guarantee("one process per name")
@AGES
@pytest.mark.parametrize("timeout", [0, 0.1])
def test_a_process_elsewhere_that_shows_itself_keeps_the_name_whatever_the_clocks_say(
    tmp_path, seconds, timeout
):
    storage = Beating(tmp_path, seconds)
    ConsumerRegistry(storage).register("a", 0)
    with pytest.raises(ConsumerError, match=r"held by process .* on another"):
        take_lease(storage, consumer_directory("a"), timeout=timeout)
    with pytest.raises(ConsumerError, match=r"is at work, process .* on another"):
        forget_consumer(storage, "a")
    assert ConsumerRegistry(storage).progress("a") == 0
    assert all(lease.startswith(f"consumers/a/lease-{1:020d}-") for lease in leases(tmp_path))


@guarantee("one process per name")
@AGES
@pytest.mark.parametrize("timeout", [0, 10])
def test_a_process_elsewhere_counts_as_dead_once_it_was_silent_for_long(tmp_path, seconds, timeout):
    storage = open_storage(tmp_path)
    elsewhere(storage)
    age(storage, "consumers/a", seconds)
    lease = take_lease(storage, consumer_directory("a"), seconds=0.2, timeout=timeout)
    lease.check()
    lease.release()


@AGES
def test_a_consumer_elsewhere_that_is_silent_for_long_can_be_forgotten(
    tmp_path, seconds, monkeypatch
):
    monkeypatch.setattr(consumption, "await_holder", partial(await_holder, seconds=0.2))
    storage = open_storage(tmp_path)
    ConsumerRegistry(storage).register("a", 0)
    elsewhere(storage)
    age(storage, "consumers/a", seconds)
    assert forget_consumer(storage, "a")
    assert leases(tmp_path) == [f"consumers/a/lease-{2:020d}-free"]


def test_a_living_holder_shows_itself_again_and_again(tmp_path):
    lease = take_lease(open_storage(tmp_path), "consumers/a", seconds=0.2)
    (first,) = leases(tmp_path)
    deadline = time.monotonic() + 10
    while first in leases(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert first not in leases(tmp_path)
    lease.check()
    lease.release()
    assert "arrow-shuffle-lease" not in {thread.name for thread in threading.enumerate()}


@guarantee("one process per name")
def test_who_was_taken_over_learns_of_it_and_records_nothing(tmp_path):
    path = tmp_path / "s"
    write(path, 1, result_type="PIPELINED")
    storage = open_storage(path)
    sleeper = Consumer(storage, "a")
    sleeper.register(0)
    elsewhere(storage, term=2)  # as a process on another machine does that takes this one for dead
    with pytest.raises(ConsumerError, match="was taken over by"):
        sleeper.commit(1)
    assert ConsumerRegistry(storage).progress("a") == 0
    sleeper.close()


def test_the_terms_of_a_name_only_grow(tmp_path):
    storage = open_storage(tmp_path)
    for _ in range(3):
        take_lease(storage, "consumers/a").release()
    assert leases(tmp_path) == [f"consumers/a/lease-{3:020d}-free"]


@guarantee("one process per name")
def test_many_that_want_one_name_get_it_one_after_the_other(tmp_path):
    storage = open_storage(tmp_path)
    held, most = [], []

    def use():
        lease = take_lease(storage, "consumers/a", timeout=60)
        held.append(1)
        most.append(len(held))
        time.sleep(0.01)
        held.pop()
        lease.release()

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8


def test_a_process_number_that_is_used_again_is_another_process():
    me = this_process()
    assert me.is_alive() is True
    assert replace(me, started=me.started + 1).is_alive() is False
    assert replace(me, boot="before the restart").is_alive() is None
    assert ProcessIdentity.from_json(me.to_json()) == me


def test_a_process_that_is_hidden_from_this_user_is_not_taken_for_dead(tmp_path, monkeypatch):
    """A system may show each user only its own processes (hidepid)."""
    me = this_process()
    with child("import time; print('ready', flush=True); time.sleep(60)") as process:
        other = process_identity._identity(process.pid)
        monkeypatch.setattr(process_identity, "_PROC", tmp_path)
        assert replace(me, pid=process.pid).is_alive() is None
    assert other.is_alive() is False, "it has ended"


# Listings that are no snapshots


class Torn(PosixStorage):
    """Lets others act while a directory is listed, and returns what existed all the time."""

    def __init__(self, root, action):
        super().__init__(str(root))
        self.action = action

    def list(self, path):
        before = super().list(path)
        if path.startswith("consumers/") and self.action is not None:
            action, self.action = self.action, None
            action()
        after = super().list(path)
        return [name for name in before if name in after]


def test_a_consumer_is_known_also_while_it_records_progress(tmp_path):
    registry = ConsumerRegistry(open_storage(tmp_path))
    registry.register("a", 0)
    registry.advance("a", 1)
    torn = ConsumerRegistry(Torn(tmp_path, lambda: registry.advance("a", 2)))
    assert torn.all_progress() in ({"a": 1}, {"a": 2})
    assert registry.all_progress() == {"a": 2}


def test_progress_that_is_never_there_when_it_is_read_is_an_error(tmp_path):
    """To take the consumer for an unknown one would release what it has not consumed."""

    class Fleeting(PosixStorage):
        def read(self, path):
            self.delete(path)
            return super().read(path)

        def get_ranges(self, path, ranges):
            self.delete(path)
            return super().get_ranges(path, ranges)

        def list(self, path):
            names = super().list(path)
            return names or [f"progress-{1:020d}"] if path == "consumers/a" else names

    ConsumerRegistry(open_storage(tmp_path)).register("a", 1)
    registry = ConsumerRegistry(Fleeting(str(tmp_path)))
    for ask in (lambda: registry.progress("a"), registry.names, registry.all_progress):
        with pytest.raises(StorageError, match=r"consumers/a: .* 10 times .*; try again"):
            ask()


def test_a_holder_is_seen_also_while_it_shows_itself(tmp_path):
    storage = open_storage(tmp_path)
    take_lease(storage, "consumers/a").release()
    (tmp_path / f"consumers/a/lease-{1:020d}-free").unlink()
    elsewhere(storage, beat=4)

    def beat():
        (tmp_path / f"consumers/a/lease-{1:020d}-{4:020d}").unlink()
        elsewhere(storage, beat=5)

    with pytest.raises(ConsumerError, match="held by"):
        take_lease(Torn(tmp_path, beat), "consumers/a")
    assert leases(tmp_path) == [f"consumers/a/lease-{1:020d}-{5:020d}"]


def test_a_holder_goes_on_showing_itself_after_an_answer_that_got_lost(tmp_path):
    class Forgetful(PosixStorage):
        has_failed = False

        def put_if_absent(self, path, data, *, sync):
            super().put_if_absent(path, data, sync=sync)
            if path.endswith(f"-{1:020d}") and not self.has_failed:
                self.has_failed = True
                msg = "the answer got lost"
                raise StorageError(msg)

    lease = take_lease(Forgetful(str(tmp_path)), "consumers/a", seconds=0.1)
    deadline = time.monotonic() + 10
    third = f"consumers/a/lease-{1:020d}-{3:020d}"
    while not any(lease >= third for lease in leases(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.02)
    lease.release()
    assert leases(tmp_path) == [f"consumers/a/lease-{1:020d}-free"]
    assert lease._beat >= 3


def test_of_two_threads_one_gets_a_name_also_where_equal_bytes_count_as_put(tmp_path):
    """As in an object store, where they may be those of a put that was repeated."""

    class Store(PosixStorage):
        def put_if_absent(self, path, data, *, sync):
            try:
                super().put_if_absent(path, data, sync=sync)
            except ObjectExistsError:
                if self.read(path) != data:
                    raise

    class Slow(Store):
        def put_if_absent(self, path, data, *, sync):
            first.append(take_lease(Store(str(tmp_path)), "consumers/a"))
            super().put_if_absent(path, data, sync=sync)

    first = []
    with pytest.raises(ConsumerError, match="is held by"):
        take_lease(Slow(str(tmp_path)), "consumers/a")
    first[0].release()


def test_a_name_that_could_not_be_given_back_is_free_all_the_same(tmp_path, monkeypatch):
    storage = open_storage(tmp_path)
    lease = take_lease(storage, "consumers/a")

    def fail(*_, **__):
        msg = "the store does not answer"
        raise StorageError(msg)

    with monkeypatch.context() as patch:
        patch.setattr(PosixStorage, "put_if_absent", fail)
        lease.release()
    take_lease(storage, "consumers/a").release()


# Release


@guarantee("blocking results")
def test_a_blocking_result_goes_with_the_last_of_its_consumers(tmp_path):
    path = tmp_path / "s"
    storage = open_storage(path)
    ConsumerRegistry(storage).register("slow", 0)
    write(path, 1, 2, result_type="BLOCKING")
    assert take(path, "fast") == [1, 2]
    assert take(path, "fast") == [1, 2]
    assert rows(open_shuffle(path)) == [1, 2]
    assert take(path, "slow") == [1, 2]
    with pytest.raises(ResultReleasedError, match="consumed by fast, slow"):
        open_shuffle(path)
    assert not [name for name in files_below(path) if name.startswith("map_outputs")]


@guarantee("blocking results")
@pytest.mark.parametrize("expires", [False, True])
def test_a_blocking_result_that_was_merged_goes_all_the_same(tmp_path, expires):
    """Before its consumptions and between them; also where the versions that one saw expired."""
    path = tmp_path / "s"
    everything = MergePolicy(rewrite="always")

    for name in ("early", "late"):
        ConsumerRegistry(open_storage(path)).register(name, 0)
    for value in range(4):
        write(path, value, result_type="BLOCKING")
    merge_shuffle(path, policy=MergePolicy(rewrite="never"))
    assert take(path, "early") == [0, 1, 2, 3]
    for policy in (MergePolicy(rewrite="always", max_fan_in=2), everything):
        assert merge_shuffle(path, policy=policy).version is not None
    if expires:
        collect_garbage(path, retention=timedelta(0))
    assert rows(open_shuffle(path)) == [0, 1, 2, 3], "somebody has it still before them"
    states = {state.name: state.unconsumed_versions for state in list_consumers(path)}
    assert states["early"] == 0
    assert states["late"] > 0
    assert take(path, "late") == [0, 1, 2, 3]
    with pytest.raises(ResultReleasedError, match="consumed by early, late"):
        open_shuffle(path)
    assert not [name for name in files_below(path) if name.startswith("map_outputs")]


def test_a_blocking_result_that_is_merged_while_it_is_consumed_goes_all_the_same(tmp_path):
    path = tmp_path / "s"
    write(path, 1, result_type="BLOCKING")
    write(path, 2)
    with consume(path, consumer="a") as consumption:
        assert rows(consumption.shuffle) == [1, 2]
        merge_shuffle(path)
        collect_garbage(path, retention=timedelta(0))
    with pytest.raises(ResultReleasedError):
        open_shuffle(path)


def test_a_blocking_result_of_a_dead_application_is_found_by_gc(tmp_path):
    path = tmp_path / "s"
    program = """
import sys, time
import pyarrow as pa
from arrow_format import WriteOptions, write_shuffle
write_shuffle(pa.table({"k": [1]}), sys.argv[1], num_subpartitions=3, keys="k",
              options=WriteOptions(result_type="BLOCKING"))
print("ready", flush=True)
time.sleep(600)
"""
    with child(program, path) as process:
        assert collect_garbage(path).num_files == 0
        assert rows(open_shuffle(path)) == [1]
        process.send_signal(signal.SIGKILL)
        process.wait()
        collect_garbage(path)
        with pytest.raises(ResultReleasedError, match=rf"has ended: process {process.pid} on"):
            open_shuffle(path)
    assert not [name for name in files_below(path) if name.startswith("map_outputs")]


@guarantee("blocking results")
@pytest.mark.parametrize(
    "kind", [result_type for result_type in TYPES if result_type.name != "BLOCKING"]
)
def test_other_results_outlive_their_application(tmp_path, kind):
    program = """
import sys
import pyarrow as pa
from arrow_format import WriteOptions, write_shuffle
write_shuffle(pa.table({"k": [1]}), sys.argv[1], num_subpartitions=3, keys="k",
              options=WriteOptions(result_type=sys.argv[2]))
print("ready", flush=True)
"""
    with child(program, tmp_path / "s", kind.name) as process:
        process.wait()
    collect_garbage(tmp_path / "s", retention=timedelta(0))
    assert rows(open_shuffle(tmp_path / "s")) == [1]


@pytest.mark.parametrize("kind", TYPES)
def test_any_result_can_be_released_by_name_and_written_anew(tmp_path, kind):
    path = tmp_path / "s"
    write(path, 1, result_type=kind)
    write(path, 2)
    assert release_shuffle(path) is True
    assert release_shuffle(path) is False
    assert not [name for name in files_below(path) if name.startswith("map_outputs")]
    with pytest.raises(ResultReleasedError, match="released by name"):
        open_shuffle(path)
    write_shuffle(pa.table({"other": ["x"]}), path, num_subpartitions=7, keys="other")
    assert open_shuffle(path).read().read_all().to_pylist() == [{"other": "x"}]


@guarantee("held versions")
def test_gc_releases_what_all_have_consumed_and_keeps_what_is_before_the_slowest(tmp_path):
    path = tmp_path / "s"
    write(path, 1, result_type="PIPELINED")
    for value in range(2, 7):
        write(path, value)
    assert take(path, "fast") == [1, 2, 3, 4, 5, 6]
    slow = Consumer(open_storage(path), "slow")
    slow.register(0)
    slow.commit(2)
    slow.close()
    collect_garbage(path)
    assert rows(open_shuffle(path)) == [3, 4, 5, 6]
    write(path, 7)
    # However short the retention, what a consumer has before it stays, version by version.
    collect_garbage(path, retention=timedelta(0))
    assert take(path, "fast") == [7]
    with consume(path, consumer="slow") as consumption:
        assert rows(consumption.shuffle) == [3, 4, 5, 6, 7]
        assert len(consumption.shuffle.entries) == 5
    collect_garbage(path, retention=timedelta(0))
    collect_garbage(path, retention=timedelta(0))
    assert rows(open_shuffle(path)) == []
    assert not [name for name in files_below(path) if name.startswith("map_outputs")]
    write(path, 8)
    assert take(path, "slow") == [8]
    with pytest.raises(OptionError):
        write(path, 9, result_type="BLOCKING")


@guarantee("held versions")
@pytest.mark.parametrize("kind", TYPES)
def test_consumers_hold_versions_back_of_pipelined_results_alone(tmp_path, kind):
    write(tmp_path, 1, result_type=kind)
    write(tmp_path, 2)
    ConsumerRegistry(open_storage(tmp_path)).register("a", 0)
    report = collect_garbage(tmp_path, retention=timedelta(0))
    assert report.oldest_version == (1 if kind.is_pipelined else 2)
    release_shuffle(tmp_path)
    assert collect_garbage(tmp_path).oldest_version == 3, "although no consumer holds a version"


def test_consumers_themselves_remove_what_they_have_consumed(tmp_path):
    path = tmp_path / "s"
    write(path, 0, result_type="PIPELINED")
    assert take(path, "a") == [0]
    most = 0
    for value in range(1, 60):
        write(path, value)
        assert take(path, "a") == [value]
        most = max(most, sum(name.startswith("map_outputs") for name in files_below(path)))
    assert most < 2 * 3 * 10


def test_a_consumer_that_is_forgotten_begins_anew(tmp_path):
    path = tmp_path / "s"
    write(path, 1, result_type="PIPELINED")
    take(path, "a")
    assert forget_consumer(path, "a") is True
    assert forget_consumer(path, "a") is False
    assert take(path, "a") == [1]
    assert len(leases(path)) == 1, "the term outlives it"


def test_who_was_forgotten_while_it_slept_records_nothing(tmp_path):
    storage = open_storage(tmp_path)
    write(tmp_path, 1, result_type="PIPELINED")
    write(tmp_path, 2)
    sleeper = Consumer(storage, "a")
    sleeper.register(0)
    with pytest.MonkeyPatch.context() as patch:  # a machine that has not heard of it for long
        patch.setattr("arrow_format.streaming.lease.ProcessIdentity.is_alive", lambda _: False)
        assert forget_consumer(tmp_path, "a")
    with consume(tmp_path, consumer="a"):
        with pytest.raises(ConsumerError, match="was taken over by"):
            sleeper.commit(2)
        assert ConsumerRegistry(storage).progress("a") == 0
    assert ConsumerRegistry(storage).progress("a") == 2


# Back pressure


def test_who_overwrites_waits_for_consumers_that_get_every_version(tmp_path):
    bounded = {"result_type": "PIPELINED_BOUNDED", "max_unconsumed_versions": 2}
    for value in range(4):  # no consumer is registered
        write(tmp_path, value, mode="overwrite", back_pressure_timeout=0, **bounded)
    take(tmp_path, "a")
    for value in (5, 6):
        write(tmp_path, value, mode="overwrite", back_pressure_timeout=0, **bounded)
    with pytest.raises(BackPressureTimeoutError, match=r"consumer 'a'.* 2 versions of"):
        write(tmp_path, 7, mode="overwrite", back_pressure_timeout=0, **bounded)
    assert take(tmp_path, "a") == [5, 6]
    write(tmp_path, 7, mode="overwrite", back_pressure_timeout=0, **bounded)


@pytest.mark.parametrize(
    ("bounds", "unconsumed", "num_bytes", "expected"),
    [
        ((100, None), (0, 0), 1000, True),
        ((100, None), (1, 40), 60, True),
        ((100, None), (1, 40), 61, False),
        ((None, 2), (1, 10**9), 10**9, True),
        ((None, 2), (2, 0), 0, False),
        ((100, 5), (4, 99), 2, False),
        ((100, 5), (5, 1), 1, False),
    ],
)
def test_when_there_is_room(bounds, unconsumed, num_bytes, expected):
    result = ResultDescription(ResultPartitionType.PIPELINED_BOUNDED, *bounds)
    assert fits_bounds(result, Unconsumed("a", 0, *unconsumed), num_bytes) is expected


@guarantee("back pressure")
def test_the_producer_waits_for_the_slowest_consumer_and_names_it(tmp_path):
    path = tmp_path / "s"
    bounded = {"result_type": "PIPELINED_BOUNDED", "max_unconsumed_versions": 2}
    write(path, 1, **bounded)
    take(path, "fast")
    ConsumerRegistry(open_storage(path)).register("slow", 0)
    write(path, 2)
    before = files_below(path)
    began = time.process_time()
    with pytest.raises(
        BackPressureTimeoutError,
        match=r"waited 0.5 s for consumer 'slow', which has consumed up to version 0; 2 versions",
    ):
        write(path, 3, back_pressure_timeout=0.5)
    assert time.process_time() - began < 0.4
    assert files_below(path) == before

    done = []

    def produce():
        write(path, 3, back_pressure_timeout=60)
        done.append(time.monotonic())

    producer = threading.Thread(target=produce)
    producer.start()
    time.sleep(0.3)
    assert not done
    assert take(path, "slow") == [1, 2]
    producer.join(30)
    assert done
    assert take(path, "slow") == [3]
    assert take(path, "fast") == [2, 3]


def test_a_bounded_result_waits_for_its_first_consumer_too(tmp_path):
    path = tmp_path / "s"
    write(path, 1, result_type="PIPELINED_BOUNDED", max_unconsumed_bytes=1)
    with pytest.raises(BackPressureTimeoutError, match="any consumer: none is registered"):
        write(path, 2, back_pressure_timeout=0)
    assert take(path, "a") == [1]
    write(path, 2, back_pressure_timeout=0)


@guarantee("back pressure")
def test_two_producers_do_not_pass_the_bound_together(tmp_path):
    path = tmp_path / "s"
    write(path, 0, result_type="PIPELINED_BOUNDED", max_unconsumed_versions=3)
    failed = []

    def produce(value):
        try:
            write(path, value, back_pressure_timeout=0.3)
        except BackPressureTimeoutError as error:
            failed.append(error)

    threads = [threading.Thread(target=produce, args=(value,)) for value in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failed) == 4
    assert len(take(path, "a")) == 3
