"""Statistics of columns, straight from their values: what filters are compared with in tests."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from arrow_format.format.statistics import UNKNOWN, ColumnStatistics

if TYPE_CHECKING:
    from collections.abc import Sequence


TEXT_BYTES = 2
"""Longer texts are cut to these."""


def in_spark_order(value: Any) -> Any:
    """Return what Python compares as Spark compares the value."""
    if isinstance(value, int | float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value.encode() if isinstance(value, str) else value


def statistics_of(columns: Sequence[pa.Array], *, known: bool = True) -> ColumnStatistics:
    """Return the statistics of one column in units; ``known`` False leaves out the null counts."""
    type_ = columns[0].type
    lows, highs, nulls = [], [], []
    for column in columns:
        values = sorted((v for v in column.to_pylist() if v is not None), key=in_spark_order)
        lows.append(_cut_down(values[0]) if values else None)
        highs.append(_cut_up(values[-1]) if values else None)
        nulls.append(len(column) - len(values) if known else UNKNOWN)
    return ColumnStatistics(
        pa.array(lows, type_),
        pa.array(highs, type_),
        np.array(nulls, np.int64),
        np.array([len(column) for column in columns], np.int64),
    )


def _cut_down(value: Any) -> Any:
    return value[:TEXT_BYTES] if isinstance(value, str | bytes) else value


def _cut_up(value: Any) -> Any:
    """Of a longer text, none of the same length but the next: here, no bound at all."""
    return None if isinstance(value, str | bytes) and len(value) > TEXT_BYTES else value
