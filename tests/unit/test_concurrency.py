"""Concurrent calls: results and errors in order, no threads left."""

import itertools
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
    map_ahead,
    read_ahead,
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
    assert [*read_ahead(iter(range(9)), int, 4)] == [*range(9)]


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
def test_what_is_computed_ahead_is_whole_where_too_few_threads_start():
    def slow(number):
        time.sleep(0.001)
        return number

    found = map_ahead(slow, iter(range(300)), 4, size_of=lambda _: 1, max_size=40)
    assert [*found] == [*range(300)]


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
    together = threading.Barrier(3, timeout=30)
    numbers = [*workers.map(lambda n: (together.wait(), n)[1], range(6))]
    assert numbers == [*range(6)]


def test_workers_begin_few_items_before_they_are_wanted(workers):
    begun = []
    results = workers.map(begun.append, range(100))
    next(results)
    time.sleep(0.05)
    assert len(begun) <= 4


def test_a_call_of_workers_may_use_their_map(workers):
    def inner():
        return [*workers.map(str, range(50))]

    assert workers.begin(inner).result() == [*map(str, range(50))]


def test_one_worker_makes_the_calls_that_are_begun_and_maps_nothing():
    workers, here = Workers(1), threading.current_thread()
    there = workers.begin(threading.current_thread).result()
    assert there is not here
    assert {*workers.map(lambda _: threading.current_thread(), range(3))} == {here}
    workers.close()
    assert not there.is_alive()


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


def reading():
    return [t for t in threading.enumerate() if t.name == "arrow-shuffle-read-ahead"]


def test_items_are_read_ahead_in_order_by_a_thread_that_ends():
    names = set()

    def items():
        for n in range(100):
            names.add(threading.current_thread().name)
            yield n

    assert [*read_ahead(items(), lambda _: 1, 3)] == [*range(100)]
    assert names == {"arrow-shuffle-read-ahead"}
    assert not reading()


def test_no_more_is_read_ahead_than_was_allowed():
    taken = []
    ahead = read_ahead((taken.append(n) or n for n in range(100)), lambda _: 10, 25)
    assert not reading()
    next(ahead)
    time.sleep(0.05)
    assert 2 <= len(taken) <= 4, "of 10 bytes each: 25, one more, and the one that was yielded"
    ahead.close()
    assert not reading()
    assert len(taken) <= 5


def test_an_error_of_what_is_read_ahead_comes_after_the_items_before_it():
    closed = []

    def items():
        try:
            yield 1
            yield 2
            raise OSError("gone")
        finally:
            closed.append(threading.current_thread().name)

    ahead = read_ahead(items(), int, 100)
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(OSError, match="gone"):
        next(ahead)
    assert closed == ["arrow-shuffle-read-ahead"]
    assert not reading()


def ahead(function, items, threads, *, max_size=None):
    """With a run for each item, unless a size is given."""
    max_size = max_size or 2 * threads
    return map_ahead(function, items, threads, size_of=lambda _: 1, max_size=max_size)


def no_thread_left():
    deadline = time.monotonic() + 10
    while any("arrow-shuffle-decode" in t.name for t in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return True


def outcome(results):
    """What an iterator yields, then its error."""
    found = []
    try:
        found.extend(results)  # keeps what came before an error
    except ValueError as error:
        found.append(str(error))
    return found


@given(
    st.integers(0, 30), st.integers(0, 30), st.integers(0, 30),
    st.integers(1, 4), st.integers(1, 40),
)  # fmt: skip
def test_any_number_of_threads_gives_what_one_gives(count, bad_item, bad_call, threads, max_size):
    def items():
        for number in range(count):
            if number == bad_item:
                raise ValueError("item")
            yield number

    def call(number):
        if number == bad_call:
            raise ValueError("call")
        return -number

    expected = outcome(map(call, items()))
    assert outcome(ahead(call, items(), threads, max_size=max_size)) == expected
    assert no_thread_left()


def test_threads_compute_at_the_same_time():
    together = threading.Barrier(3, timeout=30)
    names = set(ahead(lambda _: (together.wait(), threading.get_ident())[1], range(9), 3))
    assert len(names) == 3
    assert threading.get_ident() in names


def test_a_single_item_starts_no_thread():
    (running,) = ahead(lambda _: threading.active_count(), [0], 4)
    assert running == threading.active_count()


@pytest.mark.parametrize("max_size", [1, 5, 24, 100])
def test_what_waits_is_bounded(max_size):
    pulled = []
    results = ahead(
        abs, map(lambda n: pulled.append(n) or n, itertools.count()), 4, max_size=max_size
    )
    run = -(-max_size // 8)
    for number in range(200):
        assert next(results) == number
        assert len(pulled) <= number + max_size - 1 + run
    results.close()
    assert no_thread_left()


def test_threads_take_runs_of_items():
    calls = []
    list(ahead(lambda n: calls.append((threading.get_ident(), n)), range(400), 2, max_size=80))
    for start in range(0, 400, 20):
        (run,) = {thread for thread, n in calls if start <= n < start + 20}
        assert [n for thread, n in calls if thread == run and start <= n < start + 20] == [
            *range(start, start + 20)
        ]


@pytest.mark.parametrize("stop", ["close", "drop", "interrupt"])
def test_an_iteration_that_stops_early_leaves_no_thread(stop):
    def call(number):
        if stop == "interrupt" and threading.current_thread() is threading.main_thread() and number:
            raise KeyboardInterrupt
        return number

    results = ahead(call, itertools.count(), 3)
    assert next(results) == 0
    if stop == "close":
        results.close()
    elif stop == "interrupt":
        with pytest.raises(KeyboardInterrupt):
            list(results)
    del results
    assert no_thread_left()


@pytest.mark.usefixtures("_no_thread_starts")
def test_where_no_thread_can_be_started_the_consumer_computes_everything():
    assert list(ahead(lambda n: (n, threading.get_ident()), range(9), 4)) == [
        (n, threading.get_ident()) for n in range(9)
    ]
