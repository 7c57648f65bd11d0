"""Shuffles read together: dealers of their rows, and ranges that fit into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from arrow_format.co_partitioning import is_broadcast
from arrow_format.each_subpartition import RowsInOrder, SameRows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from arrow_format.dataset import Shuffle
    from arrow_format.each_subpartition import Dealer
    from arrow_format.model import Int64Array


def dealer_of(
    shuffle: Shuffle, subpartitions: Sequence[int], columns: Sequence[str] | None
) -> Dealer:
    """Dealer of the rows of a shuffle.

    A broadcast shuffle is read once and not once for each subpartition, and may have another
    number of subpartitions.

    Parameters
    ----------
    shuffle
        What to read.
    subpartitions
        Ascending without repetition.
    columns
        Columns to deliver, in that order; all when None.

    Raises
    ------
    SchemaError
        A column is not there.
    """
    schema = shuffle.reader(0, 0, columns).schema
    if not is_broadcast(shuffle):
        return RowsInOrder(schema, shuffle.rows(subpartitions, columns))

    def read() -> Iterator[pa.RecordBatch]:
        for run in shuffle.rows([0], columns):
            yield run.batch

    return SameRows(schema, read)


def raw_bytes(shuffle: Shuffle) -> Int64Array:
    """Raw bytes that each subpartition reads, estimated from its rows and stored bytes; shape (n,).

    The larger of the two estimates: rows may be larger than the average, or compress better.
    """
    raw = sum(output.raw_bytes for output in shuffle.map_outputs)
    by_rows = shuffle.subpartition_rows.to_numpy() * (raw / max(shuffle.num_rows, 1))
    by_bytes = shuffle.subpartition_bytes.to_numpy() * (raw / max(shuffle.num_bytes, 1))
    estimate: Int64Array = np.ceil(np.maximum(by_rows, by_bytes)).astype(np.int64)
    return estimate
