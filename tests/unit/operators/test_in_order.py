"""Results in the order of tasks, whichever ends first; in bounded space; and what stops them."""

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrow_format.operators.in_order import InOrder, Step


class Scripted:
    """Tasks whose steps make results of given sizes, or fail; they take a moment in threads."""

    def __init__(self, threads, script):
        self.threads = threads
        self.script = script
        self.waiting = self.most_waiting = 0
        self.begun = []
        self.running = set()
        self.most_running = 0
        self.stopped = []

    def start(self, number):
        self.begun.append(number)
        self.running.add(number)
        self.most_running = max(self.most_running, len(self.running))
        return self.go_on(Rest(number, 0))

    def go_on(self, rest):
        return self.threads.submit(self.step, rest)

    def step(self, rest):
        sizes = self.script[rest.number][rest.step]
        time.sleep(0.0005 * (rest.number % 3))
        if isinstance(sizes, Exception):
            raise sizes
        results = [((rest.number, rest.step, i), size) for i, size in enumerate(sizes)]
        is_last = rest.step + 1 == len(self.script[rest.number])
        return Step(results, None if is_last else Rest(rest.number, rest.step + 1))

    def taken(self, number, future):
        step = future.result()
        if step.rest is None:
            self.running.remove(number)
        self.waiting += sum(size for _, size in step.results)
        self.most_waiting = max(self.most_waiting, self.waiting)
        return step

    def stop(self, *, wait):
        self.stopped.append(wait)


@dataclass
class Rest:
    number: int
    step: int

    def close(self):
        """Nothing is held."""


STEPS = st.lists(st.lists(st.integers(0, 5), max_size=2), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def threads():
    with ThreadPoolExecutor(3) as threads:
        yield threads


@settings(deadline=None)
@given(script=st.lists(STEPS, max_size=8), max_tasks=st.integers(1, 4), space=st.integers(0, 40))
def test_every_result_comes_once_and_in_order(threads, script, max_tasks, space):
    tasks = Scripted(threads, script)
    results = InOrder(tasks, len(script), max_tasks=max_tasks, max_bytes=space, step_bytes=10)
    seen = []
    for number, step, i in results:
        tasks.waiting -= script[number][step][i]
        seen.append((number, step, i))
    assert seen == [
        (number, step, i)
        for number, steps in enumerate(script)
        for step, sizes in enumerate(steps)
        for i in range(len(sizes))
    ]
    # The first task goes on where there is no space.
    assert tasks.most_waiting <= space + 10
    assert tasks.most_running <= max_tasks
    assert tasks.begun == list(range(len(script)))
    assert tasks.stopped
    assert next(results, None) is None


def test_an_error_comes_after_the_results_before_it(threads):
    tasks = Scripted(threads, [[[1], [1]], [[1], ValueError("mine")], [[1]], [[1]], [[1]]])
    results = InOrder(tasks, 5, max_tasks=2, max_bytes=100, step_bytes=1)
    assert [next(results) for _ in range(3)] == [(0, 0, 0), (0, 1, 0), (1, 0, 0)]
    with pytest.raises(ValueError, match="mine"):
        next(results)
    assert tasks.stopped[-1] is True
    assert next(results, None) is None


class InThreads:
    """Tasks that wait for an event, in threads."""

    def __init__(self, threads, go):
        self.threads, self.go = threads, go
        self.ended = []
        self.stopped = threading.Event()

    def start(self, number):
        return self.threads.submit(self.run, number)

    def run(self, number):
        while not self.go.wait(0.01) and not self.stopped.is_set():
            pass
        self.ended.append(number)
        return Step([(number, 1)])

    def taken(self, number, future):
        return future.result()

    def stop(self, *, wait):
        self.stopped.set()


@pytest.mark.parametrize("dropped", [False, True])
def test_what_runs_ends_when_nobody_reads(dropped):
    go = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        tasks = InThreads(threads, go)
        results = InOrder(tasks, 10, max_tasks=3, max_bytes=100, step_bytes=1)
        go.set()
        assert next(results) == 0
        go.clear()
        next(results)
        if dropped:
            del results
            gc.collect()
            tasks.stopped.wait(5)
        else:
            results.close()
            results.close()
        assert tasks.stopped.is_set()
    assert len(tasks.ended) < 8
