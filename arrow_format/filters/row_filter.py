"""What a reader needs to know of a filter; small because any question about rows can be one.

Apart from the filters so that those that read rows do not know how a filter came about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from arrow_format.format.statistics import ColumnStatistics
    from arrow_format.keys.key_set import KeySet
    from arrow_format.model import Int64Array


@runtime_checkable
class RowFilter(Protocol):
    """A question about rows, bound to a schema; immutable, picklable, with a readable ``str``."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that decide, in the order of the schema."""

    def mask(self, columns: Sequence[pa.Array], num_rows: int | None = None) -> NDArray[np.bool_]:
        """Return which rows match, given their :attr:`columns`; ``num_rows`` where it has none."""

    def may_match(
        self, statistics: Mapping[str, ColumnStatistics], num_rows: Int64Array
    ) -> NDArray[np.bool_]:
        """Return for each unit (file, region or chunk) whether a row of it can match.

        ``statistics`` are by column, those that are known; ``num_rows`` has the rows of each unit.
        """

    def must_match(
        self, statistics: Mapping[str, ColumnStatistics], num_rows: Int64Array
    ) -> NDArray[np.bool_]:
        """Return for each unit whether all rows of it surely match; see :meth:`may_match`."""

    def subpartitions(
        self, partitioner: object, schema: pa.Schema, num_subpartitions: int
    ) -> Int64Array | None:
        """Return the subpartitions, ascending, that rows that match can be in; None for all."""

    def keys(self, partitioner: object, schema: pa.Schema, num_subpartitions: int) -> KeySet | None:
        """Return keys of which each row that matches has one; None where it may have any."""

    def part_on(self, columns: Collection[str]) -> RowFilter | None:
        """Return what a row that matches fulfils by these columns alone; None for nothing.

        It is the whole question where :attr:`columns` are among them.
        """
