"""Deterministic samples of key columns: reads tables and datasets, while bounds are pure.

Source: Spark's ``RangePartitioner.sketch``, which takes 100 rows per range too
(``spark.sql.execution.rangeExchange.sampleSizePerPartition``).
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import no_rows, to_arrow
from arrow_format.arrays.conversion import can_be_taken
from arrow_format.arrays.expansion import stored_batches
from arrow_format.arrays.selection import take
from arrow_format.arrays.stored_types import data_schema, normalise
from arrow_format.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow.dataset as ds
    from numpy.typing import NDArray

ROWS_PER_RANGE = 100
"""Rows of the sample per range: bounds are typically off by a tenth of a range."""

MIN_ROWS = 10_000
"""Rows of a sample at least; few ranges become more even at little cost."""

MAX_ROWS = 1 << 20
"""Rows of a sample at most."""

SEED = 42


def sample_size(num_ranges: int) -> int:
    """Return the rows a sample for so many ranges should have."""
    return min(max(ROWS_PER_RANGE * num_ranges, MIN_ROWS), MAX_ROWS)


def sample_positions(num_rows: int, size: int) -> NDArray[np.int64]:
    """Return a random row of each of ``size`` equal extents, ascending; all rows if fewer.

    The same arguments give the same rows.
    """
    if num_rows <= size:
        return np.arange(num_rows, dtype=np.int64)
    edges = np.arange(size + 1, dtype=np.int64) * num_rows // size
    return np.random.default_rng(SEED).integers(edges[:-1], edges[1:])


def check_sampled(source: object) -> None:
    """Raise OptionError unless rows can be sampled from ``source``."""
    if not hasattr(source, "scanner") and not isinstance(source, pa.Table | pa.RecordBatch):
        msg = (
            f"source is {type(source).__name__}: only a pyarrow Table, RecordBatch or Dataset can "
            "be sampled; of a Spark DataFrame use arrow_shuffle.sample_range_partitioner"
        )
        raise OptionError(msg)


def sample_columns(
    source: pa.Table | pa.RecordBatch | ds.Dataset, names: Sequence[str], size: int
) -> pa.RecordBatch:
    """Return ``size`` rows (all if fewer) of existing columns, in their stored types.

    They are spread over the whole source. The rows of a dataset are counted, then its columns are
    scanned once, batch by batch.
    """
    check_sampled(source)
    batches: Iterable[pa.RecordBatch]
    if hasattr(source, "scanner"):
        num_rows = source.count_rows()
        batches = source.scanner(columns=list(names)).to_batches()
    else:
        table = source if isinstance(source, pa.Table) else pa.Table.from_batches([source])
        num_rows = table.num_rows
        batches = table.select(names).to_batches()
    schema = data_schema(pa.schema([source.schema.field(name) for name in names]))
    positions = sample_positions(num_rows, size)
    taken = [pa.RecordBatch.from_arrays([no_rows(f.type) for f in schema], schema=schema)]
    if not all(can_be_taken(source.schema.field(name).type) for name in names):
        # Then every row must be expanded before any can be taken.
        batches = chain.from_iterable(stored_batches(batch, schema) for batch in batches)
    start = done = 0
    for batch in batches:
        start, first = start + batch.num_rows, start
        upto = int(np.searchsorted(positions, start))
        rows = to_arrow(positions[done:upto] - first)
        done = upto
        taken.append(normalise(take(batch, rows), schema))
    return pa.concat_batches(taken)
