"""Rows that another writer put elsewhere than it says: 100,000, in random shapes of keys and n.

`verify` accepts none of them, and none in a file without mark survives a deletion of its key or is
missed by a lookup of it.
"""

import tempfile
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import (
    CorruptShuffleError,
    HashPartitioner,
    RangePartitioner,
    WriteOptions,
    delete_rows,
    open_shuffle,
)
from arrow_format.arrays.selection import keep, take
from tests.support.foreign_writer import append_misplaced
from tests.support.guarantees import guarantee

PARTS = 20
ROWS_OF_PART = 5_000
"""Misplaced ones; 20 parts have 100,000."""

DECIMAL = pa.decimal128(22, 2)
COLUMNS = {
    "i32": lambda rng, rows: pa.array(rng.integers(-(2**31), 2**31, rows), pa.int32()),
    "i64": lambda rng, rows: pa.array(rng.integers(0, 50, rows)),
    "text": lambda rng, rows: pa.array([f"t{number}" for number in rng.integers(0, 9_999, rows)]),
    "bytes": lambda rng, rows: pa.array(
        [None if number % 9 == 0 else bytes([number % 251]) for number in range(rows)]
    ),
    "double": lambda rng, rows: pa.array(
        rng.choice([0.0, -0.0, 1.5, float("nan"), 1e300], rows) * rng.integers(1, 99, rows)
    ),
    "day": lambda rng, rows: pa.array(rng.integers(0, 9_999, rows), pa.int32()).cast(pa.date32()),
    "decimal": lambda rng, rows: pa.array(rng.integers(0, 10**9, rows)).cast(DECIMAL),
    "flag": lambda rng, rows: pa.array(rng.integers(0, 2, rows) == 1),
}


def drawn(number):
    """Return a partitioner, n, and rows of which the partitioner gives no two the same place."""
    random, rng = Random(number), np.random.default_rng(number)
    names = random.sample(list(COLUMNS), random.randint(1, 3))
    n = random.choice([2, 3, 8, 64, 1_000, 65_537])
    share = random.choice([0.01, 0.5, 1.0])
    rows = ROWS_OF_PART if share == 1 else int(ROWS_OF_PART / share) + 1_000
    rows = min(rows, 30_000)
    arrays = [COLUMNS[name](rng, rows) for name in names]
    table = pa.table([*arrays, np.arange(rows)], [*names, "row"])
    if random.random() < 0.6:
        return HashPartitioner(names), n, table, share
    orders = [(name, random.choice(["ascending", "descending"])) for name in names]
    if n > 1_000:
        n = 1_000
    sampled = RangePartitioner.sampled(table, orders, n)
    return sampled, n, table, share


@guarantee("verified placement", "marked placement")
@pytest.mark.parametrize("number", range(PARTS))
def test_no_misplaced_row_is_accepted_missed_or_left(number):
    partitioner, n, table, share = drawn(number)
    rng = np.random.default_rng(1_000 + number)
    wrong = np.zeros(len(table), np.bool_)

    def elsewhere(ids, batch):
        rows = batch["row"].to_numpy()
        chosen = rng.random(len(ids)) < share if share < 1 else np.ones(len(ids), np.bool_)
        by = rng.integers(1, n, len(ids))
        wrong[rows[chosen]] = True
        return np.where(chosen, (ids + by) % n, ids)

    options = WriteOptions(
        sync=False, chunk_bytes=int(rng.choice([2_000, 65_536])), sort_buffer_bytes=1 << 20
    )
    with tempfile.TemporaryDirectory() as path:
        append_misplaced(path, table, partitioner, elsewhere, num_subpartitions=n, options=options)
        shuffle = open_shuffle(path)
        assert wrong.sum() > 200
        with pytest.raises(CorruptShuffleError, match="belongs to subpartition"):
            shuffle.verify()
        names = [key if isinstance(key, str) else key[0] for key in partitioner.keys]
        (batch,) = table.combine_chunks().to_batches()
        misplaced = keep(batch, pa.array(wrong))
        few = misplaced.slice(0, 40)
        found = shuffle.lookup(pa.Table.from_batches([few.select(names)])).read_all()
        assert set(few["row"].to_pylist()) <= set(found["row"].to_pylist())
        keys = pa.Table.from_batches([misplaced.select(names)])
        delete_rows(path, keys, options=options)
        left = open_shuffle(path).read(columns=["row"]).read_all()["row"].to_numpy()
        assert not wrong[left].any()


@guarantee("verified placement")
@pytest.mark.parametrize("number", range(PARTS))
def test_one_misplaced_row_among_many_is_found(number):
    partitioner, n, table, _ = drawn(number)
    row = Random(number).randrange(len(table))

    def one(ids, batch):
        at = np.flatnonzero(batch["row"].to_numpy() == row)
        ids[at] = (ids[at] + 1) % n
        return ids

    with tempfile.TemporaryDirectory() as path:
        append_misplaced(path, table, partitioner, one, num_subpartitions=n)
        with pytest.raises(CorruptShuffleError, match="belongs to subpartition"):
            open_shuffle(path).verify()
        key = take(
            table.select([k if isinstance(k, str) else k[0] for k in partitioner.keys]),
            pa.array([row]),
        )
        delete_rows(path, key, options=WriteOptions(sync=False))
        assert row not in open_shuffle(path).read().read_all()["row"].to_pylist()
