"""Shuffles of a few lines, and the ways to run what is asked of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import arrow_shuffle
from tests.support.small_shuffles import FAST, N

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


def written(
    path: Path, rows: pa.Table, keys: str | list[str] | None = None, *, n: int = N, **how: Any
) -> arrow_shuffle.Shuffle:
    """Write rows as a shuffle, and open it."""
    how = {"options": FAST, **how}
    arrow_shuffle.write_shuffle(rows, path, keys=keys, num_subpartitions=n, **how)
    return arrow_shuffle.open_shuffle(path)


def made(
    asked: arrow_shuffle.Operation, into: Path | None = None, *, spark: Any = None, **how: Any
) -> pa.Table:
    """Return the rows of an operation: read, or written and read back; in tasks of a session."""
    if into is not None:
        asked.write(into, spark=spark, **{"options": FAST, **how})
        return arrow_shuffle.open_shuffle(into).to_table()
    if spark is not None:
        return asked.to_spark(spark, **how).toArrow()
    return asked.read(**how).read_all()
