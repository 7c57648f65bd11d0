"""Runs operations on shuffles without Spark: in threads of this process, or in a pool of processes.

A pool gets each task by pickle, and its results come back through files of a scratch directory,
whatever their size; of tasks that write a shuffle only the statuses come back.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Generator
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from threading import Event
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import pyarrow as pa

from arrow_format.arrays.batch_stream import BatchReader
from arrow_format.concurrency import available_cores
from arrow_format.errors import ClosedError, OptionError, ShuffleError
from arrow_format.filters.spark_rules import SparkSettings
from arrow_format.filters.spark_text import arrow_zone
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.jobs.run import run_job
from arrow_format.operators.description import RunSettings, spark_fields
from arrow_format.operators.in_order import InOrder, Step
from arrow_format.options import MIN_SHARE_BYTES, READING_BYTES, ReadOptions, WriteOptions
from arrow_format.storage.scratch import ScratchDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.model import MapStatus
    from arrow_format.operators.description import Description
    from arrow_format.operators.into import Into, PlacedRows
    from arrow_format.operators.task_plan import GroupResults, OfPieces, TaskPlan
    from arrow_format.read.rows import Rows
    from arrow_format.storage.protocol import Storage

T = TypeVar("T")

Numbered: TypeAlias = "tuple[int, pa.RecordBatch]"
"""A batch with the number of the task that made it."""

TARGET_PARTITION_BYTES = 16 << 20
"""Bytes on disk that a task reads, where the user does not say: results of a task wait for those
before, and are bounded."""

STEP_BYTES = 4 << 20
"""Raw bytes of results from which on a task stops until there is space for more."""


def memory_of_task(given: ReadOptions | None, num_inputs: int) -> ReadOptions:
    """Return the memory of a task that reads several inputs: as given, else what is enough."""
    if given is not None:
        return given
    least = READING_BYTES + num_inputs * MIN_SHARE_BYTES
    return ReadOptions(memory_bytes=max(ReadOptions().memory_bytes, least))


@dataclass(frozen=True)
class Capacity:
    """What runs tasks, and within how much memory."""

    executor: Executor | None
    """Of the user; threads of our own when None."""
    number: int
    """How many tasks run."""
    reading: ReadOptions
    """Of the shuffles of all workers together."""

    @staticmethod
    def of(
        executor: object,
        reading: ReadOptions | None,
        num_shuffles: int,
        *,
        least_bytes: int = MIN_SHARE_BYTES,
    ) -> Capacity:
        """Return as many workers as there are and the memory is enough for; raises OptionError.

        There are no more than have ``least_bytes`` each for every shuffle that they read. Workers,
        and the results that wait for the consumer, have equal shares of the memory, which is that
        of one read for each of them where the user does not say.
        """
        if executor is None:
            number = available_cores()
        elif isinstance(executor, ThreadPoolExecutor | ProcessPoolExecutor):
            number = vars(executor)["_max_workers"]  # public for no executor
        else:
            msg = (
                f"executor is {type(executor).__name__}: expected a ThreadPoolExecutor or "
                "ProcessPoolExecutor of concurrent.futures, or None for threads on all cores"
            )
            raise OptionError(msg)
        if reading is None:
            each = memory_of_task(None, num_shuffles).memory_bytes
            return Capacity(executor, number, ReadOptions(memory_bytes=each * (number + 1)))
        spare_bytes = reading.memory_bytes - READING_BYTES
        shares = spare_bytes // (MIN_SHARE_BYTES * num_shuffles)
        if shares < 2:
            needed = READING_BYTES + 2 * MIN_SHARE_BYTES * num_shuffles
            msg = (
                f"memory_bytes={reading.memory_bytes!r}: a worker that reads {num_shuffles} "
                f"shuffles, and its results, need {needed} bytes, {needed >> 20} MiB; set "
                "memory_bytes to that or more, or read fewer of them together"
            )
            raise OptionError(msg)
        most = max(spare_bytes // (least_bytes * num_shuffles) - 1, 1)
        return Capacity(executor, min(number, most), reading)

    @property
    def share(self) -> ReadOptions:
        """Options of the shuffles that one worker reads."""
        return self.reading.shared_by(self.number + 1)

    @property
    def waiting_bytes(self) -> int:
        """Most bytes of results that wait."""
        return (self.reading.memory_bytes - READING_BYTES) // (self.number + 1)


def read_here(
    description: Description,
    *,
    executor: Executor | None = None,
    time_zone: str | None = None,
    target_partition_bytes: int | None = None,
) -> BatchReader:
    """Return a reader of the rows of a description, in the order of tasks; nothing runs before.

    Raises OptionError and SchemaError where it does not fit the shuffles.
    """
    workers, plan = _bound(description, executor, time_zone, merges_pieces=True)
    results = plan.in_groups(target_partition_bytes=_target(target_partition_bytes))
    is_pool = isinstance(workers.executor, ProcessPoolExecutor)
    tasks = (_ProcessBatches if is_pool else _ThreadBatches)(workers, plan, results)
    # What waits, and what was made of pieces and is not a result yet, share the memory of results.
    waiting_bytes = workers.waiting_bytes // (1 if results.of_pieces is None else 2)
    batches: InOrder[Numbered] = InOrder(
        tasks,
        len(results.groups),
        max_tasks=workers.number,
        max_bytes=waiting_bytes,
        step_bytes=tasks.step_bytes,
    )
    return BatchReader(plan.schema, _MergedPieces(batches, results, waiting_bytes))


def write_here(
    description: Description,
    into: Into,
    *,
    executor: Executor | None = None,
    time_zone: str | None = None,
    target_partition_bytes: int | None = None,
) -> ShuffleReceipt:
    """Write the rows of a description as a shuffle, and commit it; raises as :func:`read_here`."""
    workers, plan = _bound(description, executor, time_zone)
    results = plan.in_groups(target_partition_bytes=_target(target_partition_bytes))
    # The workers share the memory of writing, as they do that of reading, and the cores.
    writing = WriteOptions() if into.options is None else into.options
    shared = replace(
        writing,
        sort_buffer_bytes=max(writing.sort_buffer_bytes // workers.number, 1 << 10),
        threads=writing.threads or 1,
    )
    begin = partial(_begin_known, spark_fields(plan))
    job, rows = replace(into, options=shared).begin(plan, results, plan.schema, begin)
    if isinstance(workers.executor, ProcessPoolExecutor):
        _pickled((job, rows))  # refused before anything is written
    number = len(results.groups)

    def run(job: ShuffleJob) -> list[MapStatus]:
        outputs = _MapOutputs(workers, plan, job, rows)
        return list(InOrder(outputs, number, max_tasks=workers.number, max_bytes=0, step_bytes=0))

    return run_job(job, into.mode, run, num_map_outputs=number, **into.commits)


def _begin_known(known: Mapping[str, Mapping[str, Any]], *given: Any, **how: Any) -> ShuffleJob:  # noqa: ANN401
    """Begin a job whose columns are what Spark knows of them, as where its tasks write them."""
    # A combined column has the type of its results, which Arrow says.
    fields = [field for name, field in known.items() if name not in (how["combine"] or ())]
    text = json.dumps({"type": "struct", "fields": fields}) if fields else None
    return begin_job(*given, spark_schema=text, **how)


def planned_here(
    description: Description,
    time_zone: str | None = None,
    target_partition_bytes: int | None = None,
) -> tuple[TaskPlan, GroupResults]:
    """Return what tasks of this process do, and the groups that each of them works on."""
    _, plan = _bound(description, None, time_zone, merges_pieces=True)
    return plan, plan.in_groups(target_partition_bytes=_target(target_partition_bytes))


def _bound(
    description: Description,
    executor: Executor | None,
    time_zone: str | None,
    *,
    merges_pieces: bool = False,
) -> tuple[Capacity, TaskPlan]:
    """Return what runs the tasks of a description, and what they do.

    Raises OptionError for a time zone that is not known, whether or not something asks for it.
    """
    reading = next(description.shuffles).given_options
    workers = Capacity.of(
        executor,
        reading,
        description.num_inputs,
        least_bytes=max(description.most_bytes, MIN_SHARE_BYTES),
    )
    if time_zone is not None:
        time_zone = arrow_zone(time_zone)
    at = RunSettings(
        time_zone,
        SparkSettings(time_zone),
        memory=workers.share.shared_by(description.num_inputs),
        num_tasks=lambda: workers.number,
        merges_pieces=merges_pieces,
    )
    description.check_runs()
    return workers, description.bind(at)


def _target(target_partition_bytes: int | None) -> int:
    return TARGET_PARTITION_BYTES if target_partition_bytes is None else target_partition_bytes


def _pickled(work: object) -> bytes:
    """Return work as processes of a pool get it; raises OptionError for what cannot be sent."""
    try:
        return pickle.dumps(work)
    except Exception as error:
        msg = (
            f"the function cannot be sent to the processes of the executor ({error}): define it, "
            "and what it uses, at the top level of a module; or use threads"
        )
        raise OptionError(msg) from error


def _unpickled(sent: bytes) -> Any:  # noqa: ANN401
    """Return work in a process, within a call: an error there would end the process otherwise.

    Its shuffles are opened by it, and may have expired. Raises OptionError where the function
    cannot be imported.
    """
    try:
        return pickle.loads(sent)
    except (ImportError, AttributeError) as error:
        msg = (
            f"a process of the executor cannot import the function ({error}): define it, and what "
            "it uses, in a module that processes find; or use threads"
        )
        raise OptionError(msg) from error


class _Pool:
    """Submits steps to the executor of the user, or to threads of our own."""

    def __init__(self, workers: Capacity, plan: TaskPlan) -> None:
        self.workers = workers
        self.stopped = Event()
        self._paths = plan.paths
        self._own: Executor | None = None

    def submit(self, call: Callable[..., T], *given: object) -> Future[T]:
        """Submit a step; raises ClosedError where the executor was shut down."""
        executor = self.workers.executor or self._own
        if executor is None:
            number = self.workers.number
            executor = self._own = ThreadPoolExecutor(number, thread_name_prefix="arrow-shuffle")
        try:
            return executor.submit(call, *given)
        except BrokenExecutor as error:
            raise self._died() from error
        except RuntimeError as error:
            raise _shut_down(str(error)) from error

    def result(self, future: Future[T]) -> T:
        """Return what a step returned, or raise what it raised."""
        try:
            return future.result()
        except BrokenExecutor as error:
            raise self._died() from error
        except CancelledError as error:
            raise _shut_down("a task of the executor was cancelled") from error

    def _died(self) -> ShuffleError:
        return ShuffleError(
            f"a process of the executor died while it worked on subpartitions of {self._paths}: it "
            "was killed, perhaps for lack of memory, or it could not start (what it said itself is "
            "on stderr). Try again with a new executor"
        )

    def stop(self, *, wait: bool) -> None:
        """End the threads, as :class:`~arrow_format.operators.in_order.Tasks` has it."""
        self.stopped.set()
        if self._own is not None:
            self._own.shutdown(wait=wait, cancel_futures=True)


def _shut_down(found: str) -> ClosedError:
    return ClosedError(f"{found}: keep the executor open until all results are read")


class _MergedPieces:
    """Batches of tasks in their order; of the pieces of a subpartition, the results they make.

    To merge what pieces keep of a subpartition takes at most ``max_bytes``, about. Where that
    is not enough, as for many groups, its results are made again by one task, in passes.
    """

    def __init__(self, numbered: InOrder[Numbered], results: GroupResults, max_bytes: int) -> None:
        self._numbered = numbered
        self._results = results
        self._max_bytes = max_bytes
        self._following: Numbered | None = None
        self._made: Iterator[pa.RecordBatch] = iter(())

    def __iter__(self) -> _MergedPieces:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            return self._next()
        except StopIteration:
            raise
        except BaseException:
            self.close()
            raise

    def _next(self) -> pa.RecordBatch:
        of_pieces, groups = self._results.of_pieces, self._results.groups
        while (made := next(self._made, None)) is None:
            number, batch = self._following or next(self._numbered)
            self._following = None
            if of_pieces is None or groups[number].piece is None:
                return batch
            self._made = self._of_pieces(of_pieces, number, batch)
        return made

    def _of_pieces(
        self, of_pieces: OfPieces, first: int, batch: pa.RecordBatch
    ) -> Iterator[pa.RecordBatch]:
        size, limit = of_pieces.num_bytes, self._max_bytes // 2  # what is read, and what is made
        kept, num_bytes = [batch], size(batch)
        ranges = self._results.groups[first].ranges
        for number, following in self._numbered:
            if self._results.groups[number].ranges != ranges:
                self._following = number, following
                break
            if kept:
                kept.append(following)
                num_bytes += size(following)
            if num_bytes > limit:
                kept = [*of_pieces.merged(kept)]
                num_bytes = sum(map(size, kept))
                if 2 * num_bytes > limit:  # each that follows would be merged with all of them
                    kept, num_bytes = [], 0
        if kept:
            return iter(of_pieces.finished(of_pieces.merged(kept)))
        return self._results.of_whole(first)

    def close(self) -> None:
        """Stop all tasks."""
        if isinstance(self._made, Generator):
            self._made.close()
        self._numbered.close()


class _ThreadBatches(_Pool):
    """Tasks in threads, whose batches stay where they are."""

    def __init__(self, workers: Capacity, plan: TaskPlan, results: GroupResults) -> None:
        super().__init__(workers, plan)
        self._results = results
        self.step_bytes = min(STEP_BYTES, workers.waiting_bytes // (2 * workers.number))

    def start(self, number: int) -> Future[Step[Numbered]]:
        """Begin to read a group."""
        batches = self._results.batches(number)
        return self.submit(_Part(number, batches, self.stopped, self.step_bytes))

    def go_on(self, rest: _Part) -> Future[Step[Numbered]]:
        """Read on."""
        return self.submit(rest)

    def taken(self, _number: int, future: Future[Step[Numbered]]) -> Step[Numbered]:
        """Return what was read."""
        return self.result(future)


class _Part:
    """The results of a group, made a bounded part at a time."""

    def __init__(
        self,
        number: int,
        batches: Generator[pa.RecordBatch],
        stopped: Event,
        step_bytes: int,
    ) -> None:
        self._number = number
        self._batches = batches
        self._stopped = stopped
        self._step_bytes = step_bytes

    def __call__(self) -> Step[Numbered]:
        made: list[tuple[Numbered, int]] = []
        num_bytes = 0
        for batch in self._batches:
            made.append(((self._number, batch), batch.nbytes))
            num_bytes += batch.nbytes
            if self._stopped.is_set():
                self.close()
            elif num_bytes >= self._step_bytes:
                return Step(made, self)
        return Step(made)

    def close(self) -> None:
        """Stop reading."""
        self._batches.close()


class _ProcessBatches(_Pool):
    """Tasks in processes, whose batches come through files."""

    step_bytes = 0
    """A process makes all results of a group, on disk."""

    def __init__(self, workers: Capacity, plan: TaskPlan, results: GroupResults) -> None:
        super().__init__(workers, plan)
        self._sent = _pickled(results)
        self._schema_of = results.schema_of
        self._scratch: ScratchDirectory | None = None

    def start(self, number: int) -> Future[list[int]]:
        """Let a process write the results of a group."""
        if self._scratch is None:
            self._scratch = ScratchDirectory()
        storage = self._scratch.storage.without_new_directories()
        return self.submit(_write_batches, self._sent, number, storage)

    def go_on(self, rest: object) -> NoReturn:
        """Never called: a task has one step."""
        raise AssertionError(rest)

    def taken(self, number: int, future: Future[list[int]]) -> Step[Numbered]:
        """Map the results into memory; the file goes with the last of them."""
        sizes = self.result(future)
        if not sizes or self._scratch is None:
            return Step([])
        reader = self._scratch.storage.open_reader(str(number), mapped=True)
        self._scratch.storage.delete(str(number))
        offsets = accumulate(sizes, initial=0)
        buffers = reader.get_ranges(list(zip(offsets, sizes, strict=False)))
        schema = self._schema_of(number)
        batches = [pa.ipc.read_record_batch(each, schema) for each in buffers]
        return Step(
            [((number, one), each.size) for one, each in zip(batches, buffers, strict=True)]
        )

    def stop(self, *, wait: bool) -> None:
        """Remove the files, by which processes know that no reader waits."""
        super().stop(wait=wait)
        if self._scratch is not None:
            self._scratch.remove()


def _write_batches(sent: bytes, number: int, storage: Storage) -> list[int]:
    """Write the results of a group, in a process, as messages of Arrow; return their sizes."""
    sizes: list[int] = []
    with _sendable_errors(), ExitStack() as stack:
        results: GroupResults = _unpickled(sent)
        writer = None
        for batch in stack.enter_context(closing(results.batches(number))):
            if storage.stat("") is None:
                return []
            if writer is None:
                writer = storage.open_writer(str(number), sync=False)
                stack.callback(writer.abort)
            message = batch.serialize()
            writer.writev([message])
            sizes.append(message.size)
        if writer is not None:
            writer.close()
    return sizes


class _MapOutputs(_Pool):
    """Map tasks, which write what they make."""

    def __init__(
        self, workers: Capacity, plan: TaskPlan, job: ShuffleJob, rows: PlacedRows
    ) -> None:
        super().__init__(workers, plan)
        self._work = job, rows
        is_pool = isinstance(workers.executor, ProcessPoolExecutor)
        self._sent = _pickled(self._work) if is_pool else None

    def start(self, number: int) -> Future[MapStatus]:
        """Write a map output."""
        if self._sent is not None:
            return self.submit(_write_sent, self._sent, number)
        return self.submit(_write_output, *self._work, number, self.stopped)

    def go_on(self, rest: object) -> NoReturn:
        """Never called: a task has one step."""
        raise AssertionError(rest)

    def taken(self, _number: int, future: Future[MapStatus]) -> Step[MapStatus]:
        """Return the status of a map output."""
        return Step([(self.result(future), 0)])


def _write_sent(sent: bytes, number: int) -> MapStatus:
    with _sendable_errors():
        job, rows = _unpickled(sent)
        return _write_output(job, rows, number)


def _write_output(
    job: ShuffleJob, rows: PlacedRows, number: int, stopped: Event | None = None
) -> MapStatus:
    def until_stopped() -> Generator[pa.RecordBatch | Rows]:
        with closing(rows(number)) as batches:
            for batch in batches:
                if stopped is not None and stopped.is_set():
                    msg = "another task failed"
                    raise ClosedError(msg)
                yield batch

    with closing(until_stopped()) as batches:
        return run_map_task(job, number, 0, batches)


@contextmanager
def _sendable_errors() -> Iterator[None]:
    """Raise errors that another process can unpickle; others as RuntimeError with their text."""
    try:
        yield
    except Exception as error:
        try:
            pickle.dumps(error)
            copy.copy(error)  # made as unpickling makes it
        except Exception:
            made = RuntimeError(f"{type(error).__qualname__}: {error}")
            for note in getattr(error, "__notes__", ()):
                made.add_note(note)
            raise made from error
        raise
