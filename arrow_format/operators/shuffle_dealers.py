"""Dealers of the rows of shuffles that are read together: in order, or the same for all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format.keys.co_partitioning import is_broadcast
from arrow_format.operators.subpartition_readers import RowsInOrder, SameRows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from arrow_format.operators.subpartition_readers import Dealer
    from arrow_format.read.shuffle import Shuffle


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

    return SameRows(schema, read, shuffle.options.kept_bytes)
