"""Statistics of columns: bounds and null counts of files, regions or chunks. Pure.

One value describes one column in any number of units, so that a filter is compared with all of
them at once. Bounds are in Spark's order: NaN is the largest value, -0.0 equals 0.0, texts and
binaries compare by unsigned bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from arrow_format.model import Int64Array

UNKNOWN = -1
"""Null count of a unit of which nothing is known."""


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """What is known of one column in each of several units; all arrays have one value per unit.

    A bound need not be a value of the column: long texts are cut. It is null where there is none:
    where all values are null, where nothing is known, and where no short bound exists.
    """

    minimum: pa.Array
    """No value that is not null is less, in Spark's order."""
    maximum: pa.Array
    """No value that is not null is greater, in Spark's order."""
    null_count: Int64Array
    """Number of nulls; :data:`UNKNOWN` where nothing is known of the unit."""
    num_rows: Int64Array
    """Rows of the unit."""
