"""Runs actors call by call, and remembers what each does after which answers.

What an actor does next depends on nothing but the answers that it got. So its runs form a tree: a
:class:`Node` for each sequence of answers, with the call that follows or how the actor ended. Where
a node is known, an exploration goes on without running anything. Where it is not, the actor runs in
a thread: it is given the answers that lead there, and hands over its next call.
"""

from __future__ import annotations

import _thread
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from tests.simulation.files import Answer, Call, Files, carry_out
from tests.simulation.process import START_MS, Killed, Process, running
from tests.simulation.storage import new_storage, open_directory

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrow_format.storage.open import Storage

MOST_PAUSED = 16
"""Threads of one program that wait where an exploration may come back to."""

STACK_BYTES = 512 << 10


class NotRepeatableError(AssertionError):
    """A program does not do the same after the same answers."""


class Node:
    """A program after a sequence of answers."""

    __slots__ = ("answer", "call", "children", "error", "events", "number", "parent", "result")

    def __init__(self, number: int, parent: Node | None, answer: Answer | None) -> None:
        self.number = number
        self.parent = parent
        self.answer = answer
        """The answer that led here from the parent."""
        self.call: Call | None = None
        """What it calls next; None where it has ended."""
        self.events: tuple[tuple[Any, ...], ...] = ()
        self.result: Any = None
        self.error: BaseException | None = None
        self.children: dict[Answer, Node] = {}

    @property
    def has_ended(self) -> bool:
        return self.call is None

    def history(self) -> list[tuple[Call, Answer]]:
        """Return the calls and answers that lead here."""
        steps: list[tuple[Call, Answer]] = []
        node: Node = self
        while node.parent is not None and node.answer is not None:
            assert node.parent.call is not None
            steps.append((node.parent.call, node.answer))
            node = node.parent
        return steps[::-1]


class _Run:
    """A program that runs in a thread, until its next call."""

    def __init__(self, program: Program, history: list[tuple[Call, Answer]]) -> None:
        self._program = program
        self._history = history
        self._position = 0
        self._answer: Answer | None = None
        self._is_killed = False
        self._to_run, self._to_caller = _thread.allocate_lock(), _thread.allocate_lock()
        self._to_run.acquire()
        self._to_caller.acquire()
        self.call: Call | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.problem: str | None = None
        self.process = Process(program.name, program.skew_ms, self._perform, open_directory)
        _workers.run(self._run)
        self._to_caller.acquire()

    def _run(self) -> None:
        try:
            with running(self.process):
                program = self._program
                self.result = program.act(new_storage(program.is_store, program.max_requests))
        except BaseException as error:
            error.__traceback__ = None if isinstance(error, Killed) else error.__traceback__
            self.error = error
        self.call = None
        self._to_caller.release()

    def _perform(self, call: Call) -> Answer:
        if self._is_killed:
            raise Killed
        if self._position < len(self._history):
            expected, answer = self._history[self._position]
            self._position += 1
            if call != expected:
                self.problem = f"{self._program.name}: calls {call}, and called {expected} before"
                self._is_killed = True
                raise Killed
            return answer
        self.call = call
        self._to_caller.release()
        self._to_run.acquire()
        if self._is_killed:
            raise Killed
        assert self._answer is not None
        return self._answer

    def resume(self, answer: Answer) -> None:
        """Answer the call, and run until the next one or the end."""
        self._answer = answer
        self._to_run.release()
        self._to_caller.acquire()

    def kill(self) -> None:
        """End the thread; its calls are not carried out any more."""
        self._is_killed = True
        if self.call is not None:
            self._to_run.release()
            self._to_caller.acquire()


class _Workers:
    """Threads that are used again: to start one takes longer than most runs have left."""

    def __init__(self) -> None:
        self._idle: list[_Worker] = []

    def run(self, act: Callable[[], None]) -> None:
        worker = self._idle.pop() if self._idle else _Worker(self._idle)
        worker.act = act
        worker.wakes.release()


class _Worker:
    def __init__(self, idle: list[_Worker]) -> None:
        self._idle = idle
        self.act: Callable[[], None] | None = None
        self.wakes = _thread.allocate_lock()
        self.wakes.acquire()
        threading.Thread(target=self._work, daemon=True, name="simulated actor").start()

    def _work(self) -> None:
        while True:
            self.wakes.acquire()
            act, self.act = self.act, None
            assert act is not None
            act()
            del act
            self._idle.append(self)


_workers = _Workers()


class Program:
    """An actor: what it does with a storage, and all that is known of its runs.

    Parameters
    ----------
    name
        Of the actor; its random numbers follow from it.
    act
        What it does. It must depend on nothing but the storage's answers and its
        :class:`~tests.simulation.process.Process`.
    is_store
        Whether its storage is an object store.
    skew_ms
        How far its clock is ahead of the storage's.
    max_requests
        Concurrent requests to an object store; they are carried out one after the other.
    """

    def __init__(
        self,
        name: str,
        act: Callable[[Storage], Any],
        *,
        is_store: bool = False,
        skew_ms: int = 0,
        max_requests: int = 1,
    ) -> None:
        self.name = name
        self.act = act
        self.is_store = is_store
        self.skew_ms = skew_ms
        self.max_requests = max_requests
        self.num_nodes = 0
        self.num_runs = 0
        """How often the code ran."""
        self._paused: OrderedDict[int, _Run] = OrderedDict()
        self._root: Node | None = None

    @property
    def root(self) -> Node:
        """The program before its first answer."""
        if self._root is None:
            self.num_runs += 1
            self._root = self._reached(None, None, _Run(self, []))
        return self._root

    def after(self, node: Node, answer: Answer) -> Node:
        """Return the program after another answer."""
        child = node.children.get(answer)
        if child is None:
            run = self._paused.pop(node.number, None)
            if run is None:
                self.num_runs += 1
                run = _Run(self, node.history())
                if run.call != node.call and run.problem is None:
                    msg = f"{self.name}: calls {run.call}, and called {node.call} before"
                    run.kill()
                    raise NotRepeatableError(msg)
            run.resume(answer)
            child = node.children[answer] = self._reached(node, answer, run)
        return child

    def _reached(self, parent: Node | None, answer: Answer | None, run: _Run) -> Node:
        self.num_nodes += 1
        node = Node(self.num_nodes, parent, answer)
        node.call, node.result, node.error = run.call, run.result, run.error
        node.events = tuple(run.process.events)
        if isinstance(node.error, Killed):
            raise NotRepeatableError(str(run.problem)) from node.error
        if isinstance(node.error, AssertionError):
            raise node.error
        if node.call is not None:
            self._paused[node.number] = run
            if len(self._paused) > MOST_PAUSED:
                self._paused.popitem(last=False)[1].kill()
        return node

    def close(self) -> None:
        """End all threads."""
        while self._paused:
            self._paused.popitem()[1].kill()

    def run_alone(self, files: Files, now_ms: int = START_MS) -> tuple[Files, Node]:
        """Run to the end while no other actor runs."""
        node = self.root
        while node.call is not None:
            files, answer = carry_out(files, node.call, now_ms, not self.is_store)
            node = self.after(node, answer)
        return files, node
