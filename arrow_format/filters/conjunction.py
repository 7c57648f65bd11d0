"""Two filters of one read: the rows that both keep. Pure.

Apart from the conditions because keys are no condition, and either may be asked for first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from arrow_format.filters.row_filter import RowFilter
    from arrow_format.format.statistics import ColumnStatistics
    from arrow_format.keys.key_set import KeySet
    from arrow_format.model import Int64Array


@dataclass(frozen=True, slots=True)
class Both:
    """Rows that match two filters; used as a ``Filter`` is."""

    first: RowFilter
    second: RowFilter

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of both."""
        return tuple(dict.fromkeys((*self.first.columns, *self.second.columns)))

    def mask(self, columns: Sequence[pa.Array], num_rows: int | None = None) -> NDArray[np.bool_]:
        """Return which rows match; ``columns`` as :attr:`columns` names them."""
        by_name = dict(zip(self.columns, columns, strict=True))
        count = len(columns[0]) if num_rows is None else num_rows
        first, second = (
            part.mask([by_name[name] for name in part.columns], count)
            for part in (self.first, self.second)
        )
        return first & second

    def may_match(
        self, statistics: Mapping[str, ColumnStatistics], num_rows: Int64Array
    ) -> NDArray[np.bool_]:
        """Return for each unit of rows whether one may match; as of a ``Filter``."""
        first, second = (part.may_match(statistics, num_rows) for part in (self.first, self.second))
        return first & second

    def must_match(
        self, statistics: Mapping[str, ColumnStatistics], num_rows: Int64Array
    ) -> NDArray[np.bool_]:
        """Return for each unit whether all rows of it surely match; as of a ``Filter``."""
        first, second = (
            part.must_match(statistics, num_rows) for part in (self.first, self.second)
        )
        return first & second

    def subpartitions(
        self, partitioner: object, schema: pa.Schema, num_subpartitions: int
    ) -> Int64Array | None:
        """Return the subpartitions, ascending, that rows that match can be in; None for all."""
        first, second = (
            part.subpartitions(partitioner, schema, num_subpartitions)
            for part in (self.first, self.second)
        )
        if first is None or second is None:
            return second if first is None else first
        return np.intersect1d(first, second, assume_unique=True)

    def keys(self, partitioner: object, schema: pa.Schema, num_subpartitions: int) -> KeySet | None:
        """Return keys of which each row that matches has one; None where it may have any."""
        first = self.first.keys(partitioner, schema, num_subpartitions)
        if first is not None:
            return first
        return self.second.keys(partitioner, schema, num_subpartitions)

    def part_on(self, columns: Collection[str]) -> RowFilter | None:
        """Return what a row that matches fulfils by these columns alone; None for nothing."""
        first, second = (part.part_on(columns) for part in (self.first, self.second))
        if first is None or second is None:
            return second if first is None else first
        return Both(first, second)

    def __str__(self) -> str:
        return f"({self.first}) AND ({self.second})"
