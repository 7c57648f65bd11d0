"""A shuffle as a lazy frame of Polars, which asks it for less: an IO plugin.

Apart from the other ways at hand because it imports Polars, which is optional.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from polars.io.plugins import register_io_source

from arrow_format.filters.from_polars import filters_of
from arrow_format.integrations.pushdown import restricted, small_at_first

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from arrow_format.read.shuffle import Shuffle


def lazy_frame(
    rows: Shuffle, subpartitions: Iterable[int] | None, *, ordered: bool = False
) -> pl.LazyFrame:
    """Return a frame that reads rows when it is collected, batch by batch.

    Columns, the rows that a predicate keeps, and the number of the first rows reach the shuffle.
    Polars evaluates every predicate itself, so that it decides which rows match.
    """
    stored = rows.schema_of()

    def frames(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        del batch_size  # a hint, near to the rows of our batches
        tests: list[pl.Expr] = []
        matching = rows
        if predicate is not None:
            tests, filters = filters_of(predicate, stored)
            # The first rows are counted before they are filtered.
            if n_rows is None:
                matching, _ = restricted(rows, filters)
        with matching.read(subpartitions, with_columns, ordered=ordered) as reader:
            for batch in small_at_first(reader):
                frame = _frame(batch)
                if n_rows is not None:
                    frame = frame.head(n_rows)
                    n_rows -= frame.height
                yield frame.filter(*tests)
                if n_rows == 0:
                    return

    # Pinned to a version, so Polars may read it once where a query names it twice.
    return register_io_source(frames, schema=_frame(stored.empty_table()).schema, is_pure=True)


def _frame(rows: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    return frame
