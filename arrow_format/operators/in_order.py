"""Results of numbered tasks in the order of the numbers, while several tasks run.

A task runs in steps, each of which ends by itself: nothing waits for the consumer but results. So
readers may share an executor, and one whose results are not taken keeps no worker.
"""

from __future__ import annotations

import contextlib
from collections import deque
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future

T = TypeVar("T")


class Rest(Protocol):
    """The steps of a task that have not run."""

    def close(self) -> None:
        """Give them up, and free what the task holds; none of them is running."""


@dataclass(slots=True)
class Step(Generic[T]):
    """What one step of a task made."""

    results: Iterable[tuple[T, int]]
    """Each with its bytes."""
    rest: Rest | None = None
    """The steps after it; None after the last."""


class Tasks(Protocol[T]):
    """Starts tasks, in whatever executes them."""

    def start(self, number: int) -> Future[Any]:
        """Begin a task: run its first step."""

    def go_on(self, rest: Any) -> Future[Any]:  # noqa: ANN401
        """Run the next step of a task."""

    def taken(self, number: int, future: Future[Any]) -> Step[T]:
        """Return what a step made that has ended; raises what it raised."""

    def stop(self, *, wait: bool) -> None:
        """Let steps that run end early; with ``wait`` they have ended already. Free the rest."""


@dataclass(slots=True)
class _Task(Generic[T]):
    number: int
    future: Future[Any] | None
    rest: Rest | None = None
    results: deque[tuple[T, int]] = field(default_factory=deque)


class InOrder(Generic[T]):
    """Iterator of the results of tasks.

    At most ``max_tasks`` have begun and not ended. Results that wait have at most ``max_bytes``, if
    no step makes more than ``step_bytes``; the task whose results are next goes on in any case.

    An error of a task is raised where its results would be. All tasks stop after it, at the end, on
    an interrupt, and when this is closed or dropped. Only a drop does not wait for running steps.
    """

    def __init__(
        self, tasks: Tasks[T], num_tasks: int, *, max_tasks: int, max_bytes: int, step_bytes: int
    ) -> None:
        self._tasks = tasks
        self._num_tasks = num_tasks
        self._max_tasks = max_tasks
        self._max_bytes = max_bytes
        self._step_bytes = step_bytes
        self._next = 0
        self._waiting_bytes = 0
        self._in_order: deque[_Task[T]] = deque()
        self._unfinished: list[_Task[T]] = []
        """Of those in order, the ones that run or have steps to run."""
        self._has_failed = False
        self._is_closed = False

    def __iter__(self) -> InOrder[T]:
        return self

    def __next__(self) -> T:
        if self._is_closed:
            raise StopIteration
        try:
            while True:
                self._take()
                self._start()
                if not self._in_order:
                    break
                first = self._in_order[0]
                if first.results:
                    result, num_bytes = first.results.popleft()
                    self._waiting_bytes -= num_bytes
                    return result
                if first.future is None and first.rest is None:
                    self._in_order.popleft()
                    continue
                wait(self._running(), return_when=FIRST_COMPLETED)
        except BaseException:
            self.close()
            raise
        self.close()
        raise StopIteration

    def _running(self) -> list[Future[Any]]:
        """Return the futures of steps that run, and that of the task that is waited for."""
        return [
            task.future
            for task in self._unfinished
            if task.future is not None and (self._is_next(task) or not _has_failed(task.future))
        ]

    def _take(self) -> None:
        """Take what steps have made since."""
        for task in self._unfinished:
            future = task.future
            if future is None or not future.done():
                continue
            if _has_failed(future) and not self._is_next(task):
                self._has_failed = True
                continue
            step = self._tasks.taken(task.number, future)
            task.future, task.rest = None, step.rest
            for result, num_bytes in step.results:
                task.results.append((result, num_bytes))
                self._waiting_bytes += num_bytes
        self._unfinished = [task for task in self._unfinished if task.future or task.rest]

    def _start(self) -> None:
        """Run further steps, those of the first tasks first, and begin tasks."""
        for task in self._unfinished:
            may_go_on = task.rest is not None and (self._is_next(task) or self._has_space())
            if may_go_on and task.future is None:
                task.future, task.rest = self._tasks.go_on(task.rest), None
        while (
            self._next < self._num_tasks
            and len(self._unfinished) < self._max_tasks
            and (not self._in_order or self._has_space())
            and not self._has_failed
        ):
            task = _Task[T](self._next, self._tasks.start(self._next))
            self._next += 1
            self._in_order.append(task)
            self._unfinished.append(task)

    def _is_next(self, task: _Task[T]) -> bool:
        """Whether the consumer waits for this task."""
        return task is self._in_order[0] and not task.results

    def _has_space(self) -> bool:
        running = sum(task.future is not None for task in self._unfinished)
        return self._waiting_bytes + (running + 1) * self._step_bytes <= self._max_bytes

    def close(self) -> None:
        """Stop all tasks, and wait for the steps that run."""
        self._stop(wait_for_running=True)

    def __del__(self) -> None:
        # Without waiting: any thread may collect garbage, also one that runs a step.
        self._stop(wait_for_running=False)

    def _stop(self, *, wait_for_running: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        unfinished, self._unfinished = self._unfinished, []
        self._in_order.clear()
        self._tasks.stop(wait=False)
        running = [task.future for task in unfinished if task.future and not task.future.cancel()]
        with contextlib.ExitStack() as stack:
            stack.callback(self._tasks.stop, wait=wait_for_running)
            for task in unfinished:
                if task.rest is not None:
                    stack.callback(task.rest.close)
            if wait_for_running:
                wait(running)


def _has_failed(future: Future[Any]) -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)
