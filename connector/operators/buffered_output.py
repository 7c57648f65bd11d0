"""A stage for ``df.mapInArrow`` that emits the latest row of each key, once per interval.

Source: FLIP-365, with Spark in place of Flink's runtime.
"""

from __future__ import annotations

import os
import time
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext

from arrow_format.arrays.batches import BATCH_BYTES, BATCH_ROWS, rebatched
from arrow_format.errors import OptionError
from arrow_format.keys.partitioner import key_names
from arrow_format.options import LATEST_ROWS_BYTES
from arrow_format.streaming.flush_buffer import FlushBuffer
from arrow_format.streaming.options import (
    INTERVAL,
    FlushOptions,
    OperatorAttributes,
    is_output_buffered,
)
from connector.pickling import ChecksOnArrival
from connector.plain_errors import plain_errors
from connector.task_process import begin_task

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from datetime import timedelta

    from arrow_format.streaming.elements import Element


class BufferedOutput(ChecksOnArrival):
    """Callable for ``df.mapInArrow`` that buffers rows, and yields one row per key and flush.

    .. code-block:: python

        stage = arrow_shuffle.BufferedOutput(keys=["k"], max_interval="2min")
        df.repartition("k").mapInArrow(stage, df.schema).show()

    The schema to declare is that of the input. The last row to arrive is kept: Spark's shuffle
    promises no order between the tasks that it reads from, so where rows of a key come from
    several, sort them within the Spark partition before the stage.

    A flush is due when a batch arrives and ``max_interval`` has passed since the last flush, or the
    task began; at the end of the input; and when memory is full, with ``memory_buffer_only``.
    ``mapInArrow`` blocks while it waits for input, so a flush that falls due meanwhile is made when
    the next batch arrives.

    Each task has its own buffer, which ends with the task. So there is one row per key and *Spark
    partition*, unless all rows of a key are in one, as after ``repartition(key)`` or a ``groupBy``;
    and in a stream, at least one per micro-batch.

    Parameters
    ----------
    keys
        Key columns, of types that can be hash keys. Without keys the latest row of all is kept,
        where ``parallelism`` is 1.
    max_interval
        Longest time between two flushes, ``"2min"`` or a timedelta; without it rows are passed on
        as they arrive.
    memory_buffer_only
        Flush when memory is full, instead of spilling to the executor's local directories.
    max_buffered_bytes
        Memory of the buffer of a task, in bytes, besides the largest batch.
    timestamp
        Column of event times. Spark passes no watermarks to ``mapInArrow``, so it is only checked.
    attributes
        Of the preceding operator: rows are buffered only if its output is idempotent, which is the
        default here.
    parallelism
        Number of Spark partitions, which tasks do not know; needed only without keys.
    clock
        Monotonic time in seconds.

    Raises
    ------
    OptionError
        A value is bad; the message names it.
    """

    def __init__(
        self,
        keys: str | Sequence[str] | None = None,
        max_interval: str | timedelta | None = None,
        *,
        memory_buffer_only: bool = False,
        max_buffered_bytes: int = LATEST_ROWS_BYTES,
        timestamp: str | None = None,
        attributes: OperatorAttributes | None = None,
        parallelism: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if attributes is None:
            attributes = OperatorAttributes(is_output_idempotent=True)
        names = key_names(keys)
        options = FlushOptions(
            max_interval=(
                INTERVAL.of_text("max_interval", max_interval)
                if isinstance(max_interval, str)
                else max_interval
            ),
            memory_buffer_only=memory_buffer_only,
            max_buffered_bytes=max_buffered_bytes,
        )
        self._parallelism = parallelism
        self._is_buffered = is_output_buffered(
            attributes,
            max_interval=options.max_interval,
            is_keyed=bool(names),
            parallelism=parallelism,
        )
        self._new_buffer = partial(
            FlushBuffer, options, keys=names, timestamp=timestamp, clock=clock
        )
        self._new_buffer()  # checks the other arguments here, and not in every task

    @property
    def is_buffered(self) -> bool:
        """Whether rows are buffered, and not passed on as they arrive."""
        return self._is_buffered

    @plain_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take the rows of one Spark partition, and yield those to pass on.

        Raises
        ------
        SchemaError
            A key or the event time does not exist, or its type cannot be one.
        OptionError
            There are more Spark partitions than ``parallelism`` says.
        StorageError, OutOfDiskError
            Rows could not be spilled.
        """
        begin_task()
        if not self._is_buffered:
            yield from batches
            return
        context = TaskContext.get()
        number = 0 if context is None else context.partitionId()
        if self._parallelism is not None and number >= self._parallelism:
            msg = (
                f"parallelism={self._parallelism}, but this is Spark partition {number} (from 0): "
                f"coalesce({self._parallelism}) before the stage, or give it keys"
            )
            raise OptionError(msg)
        buffer = self._new_buffer(directory=_local_directory(number))
        try:
            for batch in batches:
                yield from _for_spark(buffer.collect(batch))
                del batch
            yield from _for_spark(buffer.close())
        finally:
            buffer.release()


def _local_directory(number: int) -> str | None:
    """Return a directory that Spark deletes with the executor, round-robin; None without any."""
    directories = [path for path in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if path]
    return directories[number % len(directories)] if directories else None


def _for_spark(elements: Generator[Element]) -> Iterator[pa.RecordBatch]:
    """Yield the batches among the elements, small ones joined."""
    with closing(elements):
        rows = (element for element in elements if isinstance(element, pa.RecordBatch))
        yield from rebatched(rows, min_rows=BATCH_ROWS, max_bytes=BATCH_BYTES)
