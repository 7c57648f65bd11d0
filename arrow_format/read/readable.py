"""What readers for other libraries need of a shuffle, and how they push filters into it.

Apart from the shuffle, which offers these readers itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from arrow_format.errors import ShuffleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa
    import pyarrow.compute as pc

    from arrow_format.arrays.batch_stream import BatchReader


class Readable(Protocol):
    """Rows that can be read in part: see :class:`~arrow_format.read.shuffle.Shuffle`."""

    def schema_of(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the schema of these columns."""

    def where(self, filter: pc.Expression) -> Readable:
        """Return the rows for which Spark finds a filter true; raise if it cannot be evaluated."""

    def read(
        self, subpartitions: Iterable[int] | None = None, columns: Sequence[str] | None = None
    ) -> BatchReader:
        """Read rows by ascending subpartition."""


def restricted(rows: Readable, filters: Iterable[pc.Expression]) -> tuple[Readable, bool]:
    """Return the rows that match those filters that can be evaluated, and whether all could be."""
    accepted: pc.Expression | None = None
    all_accepted = True
    for condition in filters:
        try:
            rows.where(condition)
        except ShuffleError:
            all_accepted = False
        else:
            accepted = condition if accepted is None else accepted & condition
    return (rows if accepted is None else rows.where(accepted)), all_accepted
