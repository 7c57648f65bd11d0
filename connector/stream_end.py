"""Flushes what a streaming query has pending when it ends.

Apart from the sink, which Spark does not call after the last batch.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from arrow_format.options import WriteOptions, check_write_options
from arrow_format.storage.open import open_storage
from arrow_format.streaming.flush_pending import flush_pending

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.streaming.query import StreamingQuery

    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.storage.open import Place, Storage

_LOGGER = logging.getLogger("arrow_shuffle")


def flush_when_done(
    query: StreamingQuery,
    path: Place,
    *,
    options: WriteOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Future[ShuffleReceipt | None]:
    """Flush what a query with a flush interval has pending when it ends.

    .. code-block:: python

        options = {"keys": "k", "numSubpartitions": 8, "flush.maxInterval": "2min"}
        writer = stream.writeStream.format("arrow_shuffle").options(**options)
        writer = writer.option("checkpointLocation", "/data/checkpoints/counts")
        query = writer.trigger(availableNow=True).start("/data/counts")
        flushed = arrow_shuffle.flush_when_done(query, "/data/counts")
        print(flushed.result())

    Spark calls no sink after its last batch, so a query with ``availableNow`` ends with rows
    that no reader sees. A thread of this process waits for the end, on a classic session or
    Connect, and flushes; the process does not end before it has. A query that fails is not flushed:
    it does so when it is started again, once that is due.

    Parameters
    ----------
    query
        The query, running or ended.
    path
        Directory or URI of the shuffle that it writes.
    options
        How to write; defaults when None.
    storage_options
        As for :func:`~arrow_shuffle.open_shuffle`.

    Returns
    -------
    Future
        Of the receipt of the version, or None where nothing is pending. Its ``result()`` raises the
        query's exception, or that of the flush, which is logged too.

    Raises
    ------
    OptionError
        An option is malformed.
    """
    options = check_write_options(options)
    storage = open_storage(path, storage_options)
    flushed: Future[ShuffleReceipt | None] = Future()
    threading.Thread(
        target=_flush_after, args=(query, storage, options, flushed), name="arrow-shuffle-flush"
    ).start()
    return flushed


def _flush_after(
    query: StreamingQuery,
    storage: Storage,
    options: WriteOptions,
    flushed: Future[ShuffleReceipt | None],
) -> None:
    try:
        query.awaitTermination()
    except BaseException as error:
        flushed.set_exception(error)
        return
    try:
        flushed.set_result(flush_pending(storage, options=options))
    except BaseException as error:
        _LOGGER.exception("what the query has pending in %s was not flushed", storage.root)
        flushed.set_exception(error)
