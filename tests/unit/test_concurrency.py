"""Concurrent calls: results and errors in order, no threads left."""

import os
import threading
import time
from concurrent.futures import CancelledError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.concurrency import (
    Workers,
    available_cores,
    poll_until,
    run_concurrently,
)


@pytest.fixture
def _no_thread_starts(monkeypatch):
    def refuse(_):
        msg = "can't start new thread"
        raise RuntimeError(msg)

    monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.fixture
def workers():
    before = threading.active_count()
    several = Workers(3)
    yield several
    several.close()
    assert threading.active_count() == before


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


@pytest.mark.usefixtures("_no_thread_starts")
def test_without_threads_calls_run_one_by_one():
    assert run_concurrently([lambda n=n: n for n in range(4)], 4) == [0, 1, 2, 3]
    workers = Workers(3)
    assert [*workers.map(str, range(9))] == [*map(str, range(9))]
    assert workers.begin(dict) is None
    assert [*workers.ahead(iter(range(9)), int, 4)] == [*range(9)]


@pytest.fixture
def _two_threads_start(monkeypatch):
    start, left = threading.Thread.start, [2]

    def refuse(thread):
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.mark.usefixtures("_two_threads_start")
def test_where_too_few_threads_start_there_are_none():
    before = threading.active_count()
    workers = Workers(3)
    assert workers.begin(dict) is None
    assert threading.active_count() == before
    assert [*workers.map(str, range(9))] == [*map(str, range(9))]


def test_available_cores_are_those_that_the_process_is_bound_to():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert available_cores() == len(before)


def test_workers_work_together_and_answer_in_order(workers):
    together = threading.Barrier(4, timeout=30)
    numbers = [*workers.map(lambda n: (together.wait(), n)[1], range(4))]
    assert numbers == [*range(4)]


def test_workers_begin_few_items_before_they_are_wanted(workers):
    begun = []
    results = workers.map(begun.append, range(100))
    next(results)
    time.sleep(0.05)
    assert len(begun) <= 4


def test_a_call_of_workers_may_use_all_that_they_do(workers):
    def inner():
        return [*workers.map(str, workers.ahead(range(50), int, 30))]

    assert workers.result(workers.begin(inner)) == [*map(str, range(50))]


def test_one_worker_and_the_calling_thread_share_the_work():
    workers, here = Workers(1), threading.current_thread()
    together = threading.Barrier(2, timeout=30)

    def meet(_):
        together.wait()  # both are here
        return threading.current_thread()

    first, second = workers.map(meet, range(2))
    assert here in (first, second)
    assert first is not second
    # While a thread waits, it makes the calls of another that waits too.
    outer = workers.begin(lambda: [*workers.map(meet, range(2))])
    assert {*workers.result(outer)} == {first, second}
    workers.close()
    assert [each for each in (first, second) if each.is_alive()] == [here]


def test_a_thread_that_maps_makes_no_whole_call_meanwhile(workers):
    """The items after would wait for it, and it for what it has no part in."""
    hold = threading.Event()
    held = [workers.begin(hold.wait) for _ in range(3)]
    made = []

    def item(number):
        time.sleep(0.001)
        return number

    waiting = workers.begin(lambda: made.append(threading.current_thread()))
    assert [*workers.map(item, range(20))] == [*range(20)]
    assert made == [], "all threads but this one were held"
    hold.set()
    workers.result(waiting)
    assert [workers.result(each) for each in held] == [True] * 3


def test_what_waits_for_an_interrupted_call_ends_when_it_is_closed():
    workers, is_making, go_on = Workers(1), threading.Event(), threading.Event()

    def item(_):
        is_making.set()
        return go_on.wait(30)

    outer = workers.begin(lambda: [*workers.map(item, range(2))])
    assert is_making.wait(30)
    # An interrupt came to a thread that had taken the second item and not begun to make it.
    poll_until(lambda: workers._items or None, 30)
    workers._items.clear()
    go_on.set()
    time.sleep(0.01)
    assert not outer.done()
    workers.close()
    assert isinstance(outer.exception(), CancelledError)


def test_without_workers_the_calling_thread_does_all():
    workers = Workers(0)
    assert workers.begin(dict) is None
    assert {*workers.map(lambda _: threading.current_thread(), range(3))} == {
        threading.current_thread()
    }


def test_errors_of_workers_are_raised_in_order(workers):
    results = workers.map(lambda n: 1 // (n - 2), range(5))
    assert [next(results), next(results)] == [-1, -1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_closed_workers_begin_nothing_more(workers):
    results = workers.map(str, range(100))
    next(results)
    workers.close()
    workers.close()
    with pytest.raises(CancelledError):
        next(results)
    with pytest.raises(CancelledError):
        workers.begin(dict)


def test_items_are_taken_ahead_in_order_by_any_thread(workers):
    taking = []

    def items():
        for n in range(100):
            taking.append(threading.current_thread())
            yield n

    ahead = workers.ahead(items(), lambda _: 1, 3)
    assert next(ahead) == 0
    poll_until(lambda: len(taking) > 2 or None, 30)  # this thread takes none meanwhile
    assert [*ahead] == [*range(1, 100)]
    assert {*taking} - {threading.current_thread()}


def test_no_more_is_taken_ahead_than_was_allowed(workers):
    taken = []
    ahead = workers.ahead((taken.append(n) or n for n in range(100)), lambda _: 10, 25)
    time.sleep(0.01)
    assert taken == []
    next(ahead)
    time.sleep(0.05)
    assert 2 <= len(taken) <= 4, "of 10 bytes each: 25, one more, and the one that was yielded"
    workers.close()
    assert len(taken) <= 4
    with pytest.raises(CancelledError):
        list(ahead)


def test_an_error_of_what_is_taken_ahead_comes_after_the_items_before_it(workers):
    def items():
        yield 1
        yield 2
        raise OSError("gone")

    ahead = workers.ahead(items(), int, 100)
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(OSError, match="gone"):
        next(ahead)


@given(st.integers(0, 3), st.integers(0, 40), st.integers(1, 60), st.booleans())
def test_any_number_of_threads_takes_the_same_items(num_threads, count, max_bytes, is_nested):
    workers = Workers(num_threads)
    try:
        ahead = workers.ahead(iter(range(count)), int, max_bytes)
        found = workers.map(str, ahead) if is_nested else map(str, ahead)
        assert [*found] == [*map(str, range(count))]
    finally:
        workers.close()
