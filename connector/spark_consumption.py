"""Consumption of a result in Spark, under a name: what is new as a DataFrame, and that it was read.

.. code-block:: python

    with consume(spark, path, consumer="report", request_timeout="10min") as consumption:
        consumption.read().groupBy("page").count().write.parquet(target)

What was read counts as consumed when the block ends without an exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import arrow_format.consumption as engine
from connector.duration import parse_duration
from connector.read import frame_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession

    from arrow_format.dataset import Shuffle
    from arrow_format.options import ReadOptions
    from arrow_format.storage import Place


class SparkConsumption:
    """What one consumer has before it, for Spark to read; made by :func:`consume`."""

    def __init__(self, spark: SparkSession, consumption: engine.Consumption) -> None:
        self._spark = spark
        self._consumption = consumption

    @property
    def consumer(self) -> str:
        """Name of the consumer."""
        return self._consumption.consumer

    @property
    def shuffle(self) -> Shuffle:
        """The rows to consume, pinned, for reading without Spark."""
        return self._consumption.shuffle

    def read(self, **arguments: Any) -> DataFrame:  # noqa: ANN401
        """Return the rows to consume as a DataFrame.

        Parameters
        ----------
        arguments
            ``columns``, ``subpartitions``, ``coalesce``, ``target_partition_bytes``,
            ``split_skewed`` and ``with_subpartition`` as for :func:`~connector.read_shuffle`.
        """
        return frame_of(self._spark, self.shuffle, **arguments)

    def commit(self) -> None:
        """Record durably that the rows are consumed, and end.

        Raises
        ------
        ConsumerError
            Another process has taken the name over; nothing was recorded.
        ClosedError
            It has ended before.
        """
        self._consumption.commit()

    def close(self) -> None:
        """End without recording anything, unless it has ended: the same rows come the next time."""
        self._consumption.close()

    def __enter__(self) -> SparkConsumption:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._consumption.__exit__(kind, error, traceback)


def consume(
    spark: SparkSession,
    path: Place,
    *,
    consumer: str,
    request_timeout: str | float = 0.0,
    options: ReadOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> SparkConsumption:
    """Ask for a result under a name, before it is there if need be.

    Parameters
    ----------
    spark
        Session, classic or Connect.
    path
        Directory or URI of the shuffle.
    consumer
        Name of the consumer, under which its progress is kept: 1 to 100 letters, digits, ``_`` and
        ``-``. One process has it at a time.
    request_timeout
        How long to wait for the result, for more of a pipelined one, or for the name: seconds, or
        text such as ``10min``.
    options, storage_options
        As for :func:`~connector.read_shuffle`.

    Returns
    -------
    SparkConsumption
        A context manager; what was read counts as consumed when it ends without an exception.

    Raises
    ------
    ConsumerError, ResultReleasedError, ResultFailedError, RequestTimeoutError, OptionError
        As :func:`arrow_format.consume`.
    """
    seconds = (
        parse_duration(request_timeout, "request_timeout").total_seconds()
        if isinstance(request_timeout, str)
        else request_timeout
    )
    return SparkConsumption(
        spark,
        engine.consume(
            path,
            consumer=consumer,
            request_timeout=seconds,
            options=options,
            storage_options=storage_options,
        ),
    )
