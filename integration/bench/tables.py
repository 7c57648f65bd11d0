"""The tables that the engine is measured on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from integration.bench import lineitem, narrow

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class BenchTable:
    """A table as an Arrow IPC stream in batches of 10,000 rows."""

    key: str
    """The column whose hash decides the subpartition."""
    stream: Callable[[float], Path]
    """Makes the stream at a scale, or finds the one made before."""


TABLES = {
    "lineitem": BenchTable(lineitem.KEY, lineitem.ipc_stream),
    "narrow": BenchTable(narrow.KEY, narrow.narrow_stream),
}
"""TPC-H ``lineitem`` (16 columns, 1,013 MB at scale 1); int64, int32, float64, text (430 MB)."""
