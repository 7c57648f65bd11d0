"""Concurrent calls: results and errors in order, no threads left."""

import threading
import time

import pytest

from arrow_format.concurrency import run_concurrently


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
