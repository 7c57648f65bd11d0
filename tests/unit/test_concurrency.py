"""Concurrent calls and read-ahead: results and errors in order, no threads left."""

import threading
import time

import pytest

from arrow_format.concurrency import ReadAhead, run_concurrently
from arrow_format.errors import CorruptShuffleError


def test_results_in_order_and_no_thread_left():
    before = threading.active_count()
    together = threading.Barrier(3, timeout=30)
    assert run_concurrently([lambda n=n: (together.wait(), n)[1] for n in range(6)], 3) == list(
        range(6)
    )
    assert threading.active_count() == before
    assert run_concurrently([], 3) == []


def test_one_at_a_time_stays_in_its_thread():
    names = run_concurrently([lambda: threading.current_thread().name] * 3, 1)
    assert names == [threading.current_thread().name] * 3


def test_the_first_error_in_order_is_raised_and_what_has_not_begun_is_not_run():
    before = threading.active_count()
    done = []

    def fail(number):
        done.append(number)
        if number % 2:
            raise ValueError(number)

    with pytest.raises(ValueError, match="1"):
        run_concurrently([lambda n=n: fail(n) for n in range(4)], 4)
    assert {0, 1} <= set(done)
    assert threading.active_count() == before
    done.clear()

    def slow(number):
        done.append(number)
        time.sleep(0.01)
        raise ValueError(number)

    with pytest.raises(ValueError, match="0"):
        run_concurrently([lambda n=n: slow(n) for n in range(1_000)], 4)
    assert len(done) < 100, "a store that is down is not asked for every file"


def test_without_threads_calls_run_one_by_one(monkeypatch):
    def refuse(_):
        msg = "can't start new thread"
        raise RuntimeError(msg)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert run_concurrently([lambda n=n: n for n in range(4)], 4) == [0, 1, 2, 3]


class Objects:
    """Numbered objects that remember who read them; some are damaged."""

    def __init__(self, damaged=()):
        self.damaged = damaged
        self.kept = {}
        self.reads = []
        self.by = set()

    def read(self, number):
        if number not in self.kept:
            self.reads.append(number)
            self.by.add(threading.get_ident())
            if number in self.damaged:
                msg = f"{number} is damaged"
                raise CorruptShuffleError(msg)
            self.kept[number] = number
        return self.kept[number]


def walk(objects, newest, end, *, max_requests=8, **how):
    """Walk down to `end`, and return how many numbers were read when each one's turn came."""
    ahead = ReadAhead(objects.read, max_requests, **how)
    num_kept = []
    for number in range(newest, end - 1, -1):
        ahead.come_to(number)
        num_kept.append(len(objects.kept))
        objects.read(number)
    return num_kept


def test_the_newest_comes_alone_and_then_more_and_more():
    objects = Objects()
    num_kept = walk(objects, 100, 1)
    assert sorted(objects.reads) == list(range(1, 101)), "each once"
    assert num_kept[:3] == [0, 9, 9]
    assert sorted({*num_kept}) == [0, 9, 25, 57, 100]


def test_a_walk_that_ends_early_has_read_little_in_vain():
    objects = Objects()
    walk(objects, 100, 100)
    assert objects.reads == [100]
    walk(objects, 99, 97)
    assert len(objects.reads) <= 10


def test_nothing_is_read_ahead_where_one_at_a_time_is_best():
    objects = Objects()
    assert walk(objects, 30, 1, max_requests=1) == list(range(30))
    assert objects.reads == list(range(30, 0, -1))
    assert objects.by == {threading.get_ident()}


@pytest.mark.parametrize(("how", "lowest"), [({"stops": {70, 20}}, 71), ({"floor": 80}, 81)])
def test_nothing_is_read_beyond_where_the_walk_may_end(how, lowest):
    objects = Objects()
    walk(objects, 100, lowest, **how)
    assert sorted(objects.reads) == list(range(lowest, 101))


def test_a_walk_that_passes_a_stop_goes_on():
    objects = Objects()
    walk(objects, 100, 1, stops={70, 20})
    assert sorted(objects.reads) == list(range(1, 101))


def test_a_wide_first_batch_has_the_whole_walk():
    objects = Objects()
    assert walk(objects, 40, 1, width=40)[0] == 40


def test_damage_counts_when_its_turn_comes():
    objects = Objects(damaged={95, 60})
    walk(objects, 100, 96)
    assert 94 in objects.kept, "read ahead, past the damage"
    with pytest.raises(CorruptShuffleError, match="95 is damaged"):
        walk(objects, 95, 1)
