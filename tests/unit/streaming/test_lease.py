"""One process at a time works as a consumer, whatever clocks and listings show."""

import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import msgspec
import pytest

from arrow_format import forget_consumer, process_identity
from arrow_format.errors import (
    ConsumerError,
    StorageError,
)
from arrow_format.log.consumers import record_path
from arrow_format.process_identity import ProcessIdentity, this_process
from arrow_format.storage.open import ObjectExistsError, PosixStorage, open_storage
from arrow_format.streaming import consumption
from arrow_format.streaming.consumption import Consumer
from arrow_format.streaming.lease import take_lease
from arrow_shuffle import consume
from tests.support.consumers import ConsumerRegistry
from tests.support.guarantees import guarantee
from tests.support.results import (
    ELSEWHERE,
    child,
    elsewhere,
    numbers,
    take,
    write,
)
from tests.support.small_shuffles import files_below
from tests.support.waiting import wait_until

# One process of a name at a time


@guarantee("one process per name")
def test_a_second_consumer_of_the_name_is_refused_while_the_first_lives(path):
    write(path, 1, result_type="PIPELINED")
    with consume(path, consumer="a"):
        with pytest.raises(ConsumerError, match=rf"held by process {os.getpid()} on"):
            consume(path, consumer="a")
        assert take(path, "b") == [1]
        with pytest.raises(ConsumerError, match=rf"held by process {os.getpid()} on"):
            forget_consumer(path, "a")


HOLDING = """
import sys, time
from arrow_shuffle import consume
consumption = consume(sys.argv[1], consumer="a")
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@guarantee("one process per name")
def test_a_killed_consumer_loses_its_name_at_once(path):
    write(path, 1, result_type="PIPELINED")
    with child(HOLDING, path) as process:
        with pytest.raises(ConsumerError, match=rf"held by process {process.pid} on"):
            consume(path, consumer="a")
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert take(path, "a") == [1]


@pytest.mark.slow
def test_a_stopped_process_still_holds_the_name(path):
    write(path, 1, result_type="PIPELINED")
    with child(HOLDING, path) as process:
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(ConsumerError):
            consume(path, consumer="a")


class Beating(PosixStorage):
    """Where the holder on another machine puts its next record before each listing."""

    def __init__(self, root, age):
        super().__init__(str(root))
        self.age, self.is_beating = age, False

    def list(self, path):
        if path == "consumers/a" and not self.is_beating:
            self.is_beating = True
            registry = ConsumerRegistry(self)
            registry.put("a", aged(registry.newest("a").next(), self.age))
            self.is_beating = False
        return super().list(path)


def aged(record, seconds):
    """A record as a process whose clock differs by so many seconds puts it."""
    return replace(record, at_ms=record.at_ms - 1000 * seconds)


AGES = pytest.mark.parametrize("seconds", [0, 86_400, -86_400], ids=["right", "behind", "ahead"])


@guarantee("one process per name")
@AGES
@pytest.mark.parametrize("timeout", [0, 0.1])
def test_a_process_elsewhere_that_shows_itself_keeps_the_name_whatever_the_clocks_say(
    tmp_path, seconds, timeout
):
    ConsumerRegistry(open_storage(tmp_path)).register("a", 0)
    elsewhere(open_storage(tmp_path))
    storage = Beating(tmp_path, seconds)
    with pytest.raises(ConsumerError, match=r"held by process .* on another"):
        take_lease(storage, "a", timeout=timeout)
    with pytest.raises(ConsumerError, match=r"held by process .* on another"):
        forget_consumer(storage, "a")
    newest = ConsumerRegistry(open_storage(tmp_path)).newest("a")
    assert (newest.version, newest.holder) == (0, ELSEWHERE)
    assert newest.token not in dict(newest.taken), "it was never taken over"
    assert len(newest.taken) == 1, "who registered it gave it back"


@guarantee("one process per name")
@AGES
@pytest.mark.parametrize("timeout", [0, 10])
def test_a_process_elsewhere_counts_as_dead_once_it_was_silent_for_long(tmp_path, seconds, timeout):
    registry = ConsumerRegistry(open_storage(tmp_path))
    registry.put("a", aged(registry.newest("a").taken_by(ELSEWHERE), seconds))
    lease = take_lease(registry.storage, "a", seconds=0.2, timeout=timeout)
    lease.put()
    lease.end()


@AGES
def test_a_consumer_elsewhere_that_is_silent_for_long_can_be_forgotten(
    tmp_path, seconds, monkeypatch
):
    monkeypatch.setattr(consumption, "take_lease", partial(take_lease, seconds=0.2))
    registry = ConsumerRegistry(open_storage(tmp_path))
    registry.register("a", 0)
    registry.put("a", aged(registry.newest("a").taken_by(ELSEWHERE), seconds))
    assert forget_consumer(registry.storage, "a")
    assert registry.records() == {}
    assert len(numbers(tmp_path)) == 1, "which says so to the other, should it wake up"


def test_a_living_holder_shows_itself_again_and_again(tmp_path):
    lease = take_lease(open_storage(tmp_path), "a", seconds=0.2)
    wait_until(lambda: numbers(tmp_path)[-1] >= 3)
    lease.put()
    lease.end()
    assert not lease._thread.is_alive()


@guarantee("one process per name")
def test_who_was_taken_over_learns_of_it_and_records_nothing(path):
    write(path, 1, result_type="PIPELINED")
    storage = open_storage(path)
    sleeper = Consumer(storage, "a")
    sleeper.register(0)
    elsewhere(storage)  # as a process on another machine does that takes this one for dead
    with pytest.raises(ConsumerError, match="was taken over by"):
        sleeper.commit(1)
    assert ConsumerRegistry(storage).progress("a") == 0
    sleeper.close()


def test_the_numbers_of_a_name_only_grow(tmp_path):
    storage = open_storage(tmp_path)
    for _ in range(3):
        take_lease(storage, "a").end()
    ConsumerRegistry(storage).register("a", 3)
    assert forget_consumer(storage, "a")
    assert not forget_consumer(storage, "a")
    assert numbers(tmp_path) == [10]
    take_lease(storage, "a").end()
    assert numbers(tmp_path) == [10, 11, 12]


@guarantee("one process per name")
def test_many_that_want_one_name_get_it_one_after_the_other(tmp_path):
    storage = open_storage(tmp_path)
    held, most = [], []

    def use(_):
        lease = take_lease(storage, "a", timeout=60)
        held.append(1)
        most.append(len(held))
        time.sleep(0.01)
        held.pop()
        lease.end()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(use, range(8)))
    assert most == [1] * 8


def test_a_process_number_that_is_used_again_is_another_process():
    me = this_process()
    assert me.is_alive() is True
    assert replace(me, started=me.started + 1).is_alive() is False
    assert replace(me, boot="before the restart").is_alive() is None
    assert msgspec.json.decode(msgspec.json.encode(me), type=ProcessIdentity) == me


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
            return names or [f"{1:020d}.json"] if path == "consumers/a" else names

    ConsumerRegistry(open_storage(tmp_path)).register("a", 1)
    registry = ConsumerRegistry(Fleeting(str(tmp_path)))
    for ask in (lambda: registry.progress("a"), registry.records, registry.all_progress):
        with pytest.raises(StorageError, match=r"consumers/a: .* 10 times .*; try again"):
            ask()


def test_a_holder_is_seen_also_while_it_shows_itself(tmp_path):
    storage = open_storage(tmp_path)
    elsewhere(storage)

    def beat():
        registry = ConsumerRegistry(storage)
        registry.put("a", registry.newest("a").next())

    with pytest.raises(ConsumerError, match="held by"):
        take_lease(Torn(tmp_path, beat), "a")
    assert ConsumerRegistry(storage).newest("a").holder == ELSEWHERE
    assert numbers(tmp_path) == [1, 2]


def test_a_holder_goes_on_after_answers_that_got_lost(tmp_path):
    """What it recorded is not taken back, and what it records next counts."""

    class Forgetful(PosixStorage):
        loses = False

        def put_if_absent(self, path, data, *, sync):
            super().put_if_absent(path, data, sync=sync)
            if self.loses:
                raise StorageError("the answer got lost")

    storage = Forgetful(str(tmp_path))
    lease = take_lease(storage, "a", seconds=0.1)
    storage.loses = True
    with pytest.raises(StorageError, match="lost"):
        lease.put(lambda record: record.consumed(7))
    storage.loses = False
    wait_until(lambda: lease.record.number >= 5)
    lease.end()
    newest = ConsumerRegistry(storage).newest("a")
    assert (newest.version, newest.holder, newest.taken) == (7, None, ())


def test_a_holder_whose_shuffle_was_deleted_loses_the_name_and_leaves_nothing(tmp_path):
    """Its next record would be the only one; a process that takes the name begins at the first."""
    path = tmp_path / "s"
    lease = take_lease(open_storage(path), "a")
    shutil.rmtree(path)
    for _ in range(2):
        with pytest.raises(ConsumerError, match="'a' was taken over"):
            lease.put(lambda record: record.consumed(7))
    lease.end()
    assert files_below(tmp_path) == []


def test_a_request_in_vain_that_is_closed_twice_leaves_nothing(tmp_path):
    consumer = Consumer(open_storage(tmp_path / "s"), "a")
    consumer.register(0)
    for _ in range(2):
        consumer.close()
        assert files_below(tmp_path) == []


@guarantee("progress")
def test_a_commit_costs_one_listing_whatever_was_put_before(tmp_path):
    calls = []

    class Counting(PosixStorage):
        def list(self, path):
            calls.append(f"list {path}")
            return super().list(path)

        def read(self, path, *, num_bytes=None):
            calls.append(f"read {path}")
            return super().read(path, num_bytes=num_bytes)

    lease = take_lease(Counting(str(tmp_path)), "a")
    for version in range(30):
        calls.clear()
        lease.put(lambda record, to=version: record.consumed(to))
        assert calls == ["list consumers/a"]
    calls.clear()
    assert ConsumerRegistry(Counting(str(tmp_path))).all_progress() == {"a": 29}
    record = f"read {record_path('a', 31)}"
    assert calls == ["list consumers", "list consumers/a", record, "list consumers/a"]
    lease.end()


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
            first.append(take_lease(Store(str(tmp_path)), "a"))
            super().put_if_absent(path, data, sync=sync)

    first = []
    with pytest.raises(ConsumerError, match="is held by"):
        take_lease(Slow(str(tmp_path)), "a")
    first[0].end()


def test_a_name_that_could_not_be_given_back_is_free_all_the_same(tmp_path, monkeypatch):
    storage = open_storage(tmp_path)
    lease = take_lease(storage, "a")

    def fail(*_, **__):
        raise StorageError("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(PosixStorage, "put_if_absent", fail)
        lease.end()
    take_lease(storage, "a").end()


def test_a_lease_is_renewed_after_a_store_did_not_answer(tmp_path):
    """It cannot be told from here whether the name is still held; the next answer says so."""

    class Silent(PosixStorage):
        fails = 0

        def put_if_absent(self, path, data, *, sync):
            if self.fails:
                self.fails -= 1
                raise StorageError("no answer")
            super().put_if_absent(path, data, sync=sync)

    storage = Silent(str(tmp_path))
    lease = take_lease(storage, "a", seconds=0.1)
    storage.fails = 3
    wait_until(lambda: not storage.fails and lease.record.number >= 5)
    lease.end()
