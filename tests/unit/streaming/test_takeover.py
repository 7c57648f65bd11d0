"""Every interleaving of processes that take a name from each other: each row is consumed once.

Each call of the storage is a step. A process that lost the name may stop between any two steps and
go on when others have taken the name, recorded progress, given it back and removed old records.
"""

import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arrow_format.errors import ConsumerError, StorageError
from arrow_format.log import consumers
from arrow_format.process_identity import this_process
from arrow_format.storage.open import ObjectExistsError, ObjectNotFoundError, open_storage
from arrow_format.streaming import lease as lease_module
from arrow_format.streaming.lease import Lease, take_lease
from tests.support.consumers import ConsumerRegistry
from tests.support.exhaustive import part, times
from tests.support.guarantees import guarantee

ELSEWHERE = replace(this_process(), host="another", boot="another boot")
"""Of every process here: all take each other for dead without waiting."""


class SteppedStorage:
    """Files in memory; each call waits for the turn of the thread that makes it."""

    root = "memory"

    def __init__(self, *, torn):
        self.files = {}
        self.step = lambda: None
        self.torn = torn
        """Whether a listing shows only what existed from its beginning to its end."""
        self.lost = set()
        """Which puts, of all, are carried out and answer with an error."""
        self.num_puts = 0

    def put_if_absent(self, path, data, *, sync):
        assert sync
        self.step()
        if path in self.files:
            raise ObjectExistsError(path)
        self.files[path] = data
        self.num_puts += 1
        if self.num_puts in self.lost:
            msg = "the answer got lost"
            raise StorageError(msg)

    def read(self, path):
        self.step()
        if path not in self.files:
            raise ObjectNotFoundError(path)
        return self.files[path]

    def list(self, path):
        before = set(self.files)
        if self.torn:
            self.step()
            before &= set(self.files)
        self.step()
        names = before & set(self.files) if self.torn else self.files
        return sorted(name.rpartition("/")[2] for name in names if name.startswith(path + "/"))

    def delete(self, path):
        self.step()
        self.files.pop(path, None)

    def prune(self, path, *, and_root):
        pass


class World:
    """Processes of one consumer, what they have consumed, and whose turn it is."""

    def __init__(self, *, torn=False):
        self.storage = SteppedStorage(torn=torn)
        self.rows = []
        """Rows that a process consumed, and whose commit did not fail."""
        self.unknown = []
        """Rows of whose commit the answer got lost."""
        self.errors = []

    def progress(self):
        return ConsumerRegistry(self.storage).progress("a") or 0

    def take(self):
        return take_lease(self.storage, "a", seconds=0)

    def consume(self, lease, count=1, *, beats=0):
        """Consume the next rows, ``count`` times, with records between; then give the name back."""
        if lease.record.version is None:
            lease.put(lambda record: record.consumed(0))
        for _ in range(count):
            last = lease.record.version or 0
            rows = [last + 1, last + 2, last + 3]
            try:
                lease.put(lambda record, to=rows[-1]: record.consumed(to))
            except StorageError:
                self.unknown += rows
            else:
                self.rows += rows
            for _ in range(beats):
                lease.put()
        lease.end()

    def work(self, count=1, *, beats=0):
        """Take the name as another process and consume."""
        self.consume(self.take(), count, beats=beats)

    def watch(self):
        """Read progress as a release does."""
        seen = [self.progress() for _ in range(3)]
        assert seen == sorted(seen), "went back"

    def run(self, programs, turns):
        """Run programs step by step; ``turns`` are (program, number of steps), then all end."""
        ready = [threading.Semaphore(0) for _ in programs]
        go = [threading.Semaphore(0) for _ in programs]
        ended = [False for _ in programs]
        own = threading.local()

        def step():
            ready[own.place].release()
            go[own.place].acquire()

        def act(place, program):
            own.place = place
            go[place].acquire()
            try:
                program()
            except (ConsumerError, StorageError):
                pass  # it lost the name, or gives up
            except BaseException as error:
                self.errors.append(error)
            ended[place] = True
            ready[place].release()

        threads = [
            threading.Thread(target=act, args=each, daemon=True) for each in enumerate(programs)
        ]
        self.storage.step = step
        for thread in threads:
            thread.start()
        used = [0 for _ in programs]
        for place, steps in (*turns, *((place, None) for place in range(len(programs)))):
            while not ended[place] and (steps is None or steps > 0):
                go[place].release()
                ready[place].acquire()
                used[place] += 1
                steps = None if steps is None else steps - 1
        for thread in threads:
            thread.join()
        self.storage.step = lambda: None
        return used

    def check(self):
        """Each row was consumed once, whatever was taken over."""
        assert self.errors == []
        self.storage.torn = False
        self.storage.lost = set()
        progress = self.progress()
        assert len(self.rows) == len(set(self.rows)), "consumed twice"
        left = set(range(1, progress + 1)) - set(self.rows)
        assert left <= set(self.unknown), "skipped"
        assert max(self.rows, default=0) <= progress, "went back"
        registry = ConsumerRegistry(self.storage)
        for _ in range(consumers.KEPT_RECORDS + 1):  # nothing that was left over stays
            registry.advance("a", progress)
        assert len(self.storage.files) == consumers.KEPT_RECORDS
        assert registry.progress("a") == progress


@contextmanager
def elsewhere(kept):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease_module, "this_process", lambda: ELSEWHERE)
        patch.setattr(Lease, "_keep", lambda _: None)  # here a process says when it puts a record
        patch.setattr(consumers, "KEPT_RECORDS", kept)
        yield


def begun(torn=False):
    """A world where the first process has consumed, and holds the name."""
    world = World(torn=torn)
    first = world.take()
    for version in (0, 3):
        first.put(lambda record, to=version: record.consumed(to))
    world.rows += [1, 2, 3]
    return world, first


OTHERS = {
    "takes": lambda world: world.take(),
    "commits": lambda world: world.work(),
    "stays long": lambda world: world.consume(world.take(), 3, beats=2),
    "are many": lambda world: [world.work(2) for _ in range(3)],
    "take it from each other": lambda world: [
        world.take(),
        world.take().put(),
        *(world.work() for _ in range(3)),
    ],
}


def interleave(begin, others):
    """Let others come in at each call of the first process, and that one at each of theirs."""
    for before in part(range(12), 4):
        during, longest = 0, 1
        while during <= longest:
            world, act = begin()
            _, steps = world.run(
                [act, lambda world=world: others(world)], [(0, before), (1, during)]
            )
            world.check()
            during, longest = during + 1, max(longest, steps)


@pytest.mark.slow
@guarantee("progress")
@pytest.mark.parametrize(
    ("others", "torn"),
    [*((others, False) for others in OTHERS), ("commits", True), ("stays long", True)],
)
def test_a_commit_into_which_others_come_at_any_call(others, torn):
    def begin():
        world, first = begun(torn)
        return world, lambda: world.consume(first, 2)

    with elsewhere(kept=9 if torn else 2):
        interleave(begin, OTHERS[others])


@pytest.mark.slow
@guarantee("progress")
@pytest.mark.parametrize("others", ["takes", "commits", "stays long"])
def test_a_registration_into_which_others_come_at_any_call(others):
    def begin():
        world = World()
        return world, world.work

    with elsewhere(kept=2):
        interleave(begin, OTHERS[others])


@pytest.mark.slow
@guarantee("progress")
@settings(max_examples=times(60, 300), deadline=None)
@given(
    turns=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 7)), max_size=30),
    lost=st.sets(st.integers(1, 30), max_size=3),
)
@example(turns=[(3, 7), (4, 4)], lost={2})  # the reader reads a late record at a free number
def test_any_turns_of_four_processes_and_a_reader(turns, lost):
    with elsewhere(kept=3):
        world, first = begun()
        world.storage.lost = {number + world.storage.num_puts for number in lost}
        world.run(
            [
                lambda: world.consume(first, 3),
                lambda: world.work(2, beats=1),
                lambda: [world.work() for _ in range(3)],
                world.work,
                world.watch,
            ],
            turns,
        )
        world.check()


@guarantee("progress")
def test_a_commit_that_gives_the_name_back_counts_when_another_takes_it_meanwhile(
    tmp_path, monkeypatch
):
    storage = open_storage(tmp_path)
    lease = take_lease(storage, "a")
    lease.put(lambda record: record.consumed(0))
    listed, others = consumers.ConsumerRegistry._numbers, []

    def numbers(self, name):
        if not others:
            others.append(None)
            others[0] = take_lease(storage, name)
        return listed(self, name)

    monkeypatch.setattr(consumers.ConsumerRegistry, "_numbers", numbers)
    lease.put(lambda record: replace(record.consumed(7), holder=None))
    assert others[0].record.version == 7
    others[0].end()
    lease.end()
