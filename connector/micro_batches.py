"""Writes the micro-batches of ``foreachBatch``, each once."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from arrow_format.errors import OptionError
from arrow_format.model import Transaction
from arrow_format.options import check_choice
from arrow_format.storage.open import open_storage
from connector.write import write_shuffle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Literal

    from pyspark.sql import DataFrame, SparkSession

    from arrow_format.keys.partitioner import Partitioner
    from arrow_format.options import WriteOptions
    from arrow_format.storage.open import Place

QUERY_ID = "sql.streaming.queryId"
"""Spark's local property of a streaming query's thread, and of its tasks."""

_MODES = ("append", "upsert", "overwrite")
_LOGGER = logging.getLogger("arrow_shuffle")


def foreach_batch(
    path: Place,
    *,
    keys: str | Sequence[str] | None = None,
    num_subpartitions: int | None = None,
    partitioner: Partitioner | None = None,
    sort_by: Sequence[str | tuple[str, str]] | None = (),
    combine: Mapping[str, str] | None = None,
    unique: str | Sequence[str] | None = None,
    sequence_by: str | None = None,
    row_kind: str | None = None,
    mode: Literal["append", "upsert", "overwrite"] = "append",
    options: WriteOptions | None = None,
    application: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that writes each micro-batch once.

    .. code-block:: python

        write = arrow_shuffle.foreach_batch("/data/events", keys="k", num_subpartitions=8)
        writer = stream.writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", "/data/checkpoints/events")
        writer.trigger(availableNow=True).start().awaitTermination()

    Spark runs a micro-batch again whenever it does not know that it was complete. The function
    writes with the query's id and the batch's number as the transaction, so that a batch that is
    in the shuffle is not written again, wherever the query was killed. So a batch can be written
    once to a path: a second write of it is taken for a repetition, which the logger
    ``arrow_shuffle`` warns of. Give each an ``application``.

    Parameters
    ----------
    path, keys, num_subpartitions, partitioner, sort_by, combine
        As for ``arrow_shuffle.write_shuffle``.
    unique, sequence_by, row_kind, options, storage_options
        The same.
    mode
        ``append``; ``upsert``, whose rows replace those of the same ``unique``; or ``overwrite``,
        for output mode complete.
    application
        The application of the transaction in the place of the query's id: 1 to 100 of
        ``A-Z a-z 0-9 _ -``. Required in Spark Connect, whose ``foreachBatch`` does not get the
        query's id. Batches are numbered from 0 with each checkpoint, so a query with a new
        checkpoint needs a new application: its first batches would count as written.

    Returns
    -------
    Callable
        Takes the DataFrame of a micro-batch and its number. It raises what
        ``arrow_shuffle.write_shuffle`` raises, and OptionError where no application is given and
        the query's id is not known: in Spark Connect, and outside of ``foreachBatch``.

    Raises
    ------
    OptionError
        The mode or the application is none.
    """
    check_choice("mode", mode, _MODES)
    open_storage(path, storage_options)  # refused here, not at the first batch
    if application is not None:
        Transaction(application, 0)
    how = {
        "num_subpartitions": num_subpartitions,
        "keys": keys,
        "partitioner": partitioner,
        "sort_by": sort_by,
        "combine": combine,
        "unique": unique,
        "sequence_by": sequence_by,
        "row_kind": row_kind,
        "mode": mode,
        "options": options,
        "storage_options": storage_options,
    }
    return partial(_write, path, application, how)


def _write(
    path: Place, application: str | None, how: Mapping[str, Any], batch: DataFrame, number: int
) -> None:
    if application is None:
        application = _query_of(batch.sparkSession)
    receipt = write_shuffle(batch, path, **how, transaction=(application, number))
    if receipt.is_repetition:
        _LOGGER.warning(
            "%s: batch %d of %s is in the shuffle, and its rows were not written again. A batch "
            "writes once to a path: of several writes each needs an application of its own",
            receipt.path, number, application,
        )  # fmt: skip


def _query_of(spark: SparkSession) -> str:
    """Return the id of the query whose micro-batch this thread runs; raises OptionError."""
    # A session of Connect has no context, and a thread outside of foreachBatch no such property.
    is_connect = hasattr(spark, "session_id")
    query = None if is_connect else spark.sparkContext.getLocalProperty(QUERY_ID)
    if query is None:
        msg = (
            "application: the id of the streaming query is not known here, as in Spark Connect and "
            "outside of foreachBatch. Give foreach_batch(..., application='a name of the query'), "
            "and another one whenever the query gets a new checkpoint"
        )
        raise OptionError(msg)
    return str(query)
