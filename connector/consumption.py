"""Consumption of a result in Spark, under a name: what is new as a DataFrame, and that it was read.

.. code-block:: python

    with consume(spark, path, consumer="report", request_timeout="10min") as consumption:
        consumption.read().groupBy("page").count().write.parquet(target)

What was read counts as consumed when the block ends without an exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrow_format.streaming.consumption import Consumption, request_result
from connector.options.text import parse_duration
from connector.read import frame_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from arrow_format.options import ReadOptions
    from arrow_format.read.shuffle import Shuffle
    from arrow_format.storage.open import Place
    from arrow_format.streaming.consumption import Consumer


class SparkConsumption(Consumption):
    """What one consumer has before it, for Spark to read; made by :func:`consume`."""

    def __init__(self, spark: SparkSession, consumer: Consumer, shuffle: Shuffle) -> None:
        super().__init__(consumer, shuffle)
        self._spark = spark

    def read(self, **arguments: Any) -> DataFrame:  # noqa: ANN401
        """Return the rows to consume as a DataFrame.

        Parameters
        ----------
        arguments
            ``columns``, ``subpartitions``, ``coalesce``, ``target_partition_bytes``,
            ``split_skewed`` and ``with_subpartition`` as for :func:`~connector.read_shuffle`.
        """
        return frame_of(self._spark, self.shuffle, **arguments)


def consume(
    spark: SparkSession,
    path: Place,
    *,
    consumer: str,
    request_timeout: str | float = 0.0,
    allow_empty: bool = False,
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
    allow_empty
        What comes of a pipelined result of which nothing is new by then: a shuffle without rows
        when True, RequestTimeoutError when False.
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
        *request_result(
            path,
            consumer=consumer,
            request_timeout=seconds,
            allow_empty=allow_empty,
            options=options,
            storage_options=storage_options,
        ),
    )
