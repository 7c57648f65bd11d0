"""A sample of the key columns of a table or a dataset: the same rows whenever it is taken.

Source: Spark's ``RangePartitioner.sketch``; 100 rows per range is what it takes too
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
"""Rows of the sample per range: bounds are then off by a tenth of a range, typically."""

MIN_ROWS = 10_000
"""... but not fewer rows than this, which cost nothing: few ranges become more even."""

MAX_ROWS = 1 << 20
"""Rows of a sample at most."""

SEED = 42


def sample_size(num_ranges: int) -> int:
    """Return how many rows a sample for so many ranges should have."""
    return min(max(ROWS_PER_RANGE * num_ranges, MIN_ROWS), MAX_ROWS)


def sample_positions(num_rows: int, size: int) -> NDArray[np.int64]:
    """One row at random from each of ``size`` equal stretches; all rows when there are fewer.

    Returns
    -------
    NDArray[np.int64]
        Ascending and all different, the same for the same arguments.
    """
    if num_rows <= size:
        return np.arange(num_rows, dtype=np.int64)
    edges = np.arange(size + 1, dtype=np.int64) * num_rows // size
    return np.random.default_rng(SEED).integers(edges[:-1], edges[1:])


def check_sampled(source: object) -> None:
    """Check that rows can be taken of what they are to be taken of; raises OptionError."""
    if not hasattr(source, "scanner") and not isinstance(source, pa.Table | pa.RecordBatch):
        msg = (
            f"source is {type(source).__name__}: only a pyarrow Table, RecordBatch or Dataset can "
            "be sampled; of a Spark DataFrame use connector.sample_range_partitioner"
        )
        raise OptionError(msg)


def sample_columns(
    source: pa.Table | pa.RecordBatch | ds.Dataset, names: Sequence[str], size: int
) -> pa.RecordBatch:
    """Take some rows of some columns, spread over the whole source.

    Parameters
    ----------
    source
        A table, or a dataset, of which these columns are scanned once, batch by batch, after its
        rows were counted.
    names
        Columns, all of which are there.
    size
        Rows wanted.

    Returns
    -------
    pyarrow.RecordBatch
        ``size`` rows, or all if there are fewer, in the types they are stored in.

    Raises
    ------
    OptionError
        The source is none of these.
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
        # Then every row must become plain before any can be taken.
        batches = chain.from_iterable(stored_batches(batch, schema) for batch in batches)
    start = done = 0
    for batch in batches:
        start, first = start + batch.num_rows, start
        upto = int(np.searchsorted(positions, start))
        rows = to_arrow(positions[done:upto] - first)
        done = upto
        taken.append(normalise(take(batch, rows), schema))
    return pa.concat_batches(taken)
