"""Whether batches of an epoch are mixed is known from the sizes of subpartitions and chunks."""

import re
import warnings

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import (
    BroadcastPartitioner,
    ColumnPartitioner,
    HashPartitioner,
    RangePartitioner,
    RoundRobinPartitioner,
    WriteOptions,
    open_shuffle,
)
from arrow_format.epochs.batches import EpochBatches
from arrow_format.epochs.mixing import advised_subpartitions, distance
from arrow_format.epochs.options import Epochs
from tests.support.small_shuffles import write_rows

EPOCHS = Epochs(1024)
BY_KEY = HashPartitioner("k")
MANY = 40_000_000
CHUNK, ROW_BYTES = 5_000, 128


def dealt(num_keys, rows_of_each, n, seed=0):
    """Rows of each subpartition where keys are hashed."""
    numbers = np.random.default_rng(seed).integers(0, n, num_keys)
    return np.bincount(numbers, minlength=n) * rows_of_each


@pytest.mark.parametrize(
    ("rows", "partitioner", "least", "most"),
    [
        (dealt(MANY, 1, 256), BY_KEY, 1, 1.01),
        (dealt(MANY // 50, 50, 256), BY_KEY, 1, 1.05),
        (np.full(256, MANY // 256), RoundRobinPartitioner(), 1, 1.01),
        (np.full(1, MANY), BY_KEY, 1, 1.01),
        (np.full(256, MANY // 256), BroadcastPartitioner(), 1, 1),
        # All of them in memory.
        (dealt(4, 10_000, 256), BY_KEY, 1, 1),
        # Chunks of 100 labels: some 420 in memory, 4 of each.
        (dealt(100, MANY // 100, 256), BY_KEY, 1.01, 1.2),
        (np.full(1000, MANY // 1000), RangePartitioner("k", bounds=list(range(999))), 1.3, 3),
        (np.full(1000, MANY // 1000), ColumnPartitioner("k"), 1.3, 3),
    ],
)
def test_what_is_known_of_the_distance(rows, partitioner, least, most):
    assert least <= distance(rows, partitioner, CHUNK, ROW_BYTES, EPOCHS) <= most


def test_larger_chunks_and_less_memory_mix_worse():
    rows = dealt(100, MANY // 100, 256)
    found = [distance(rows, BY_KEY, chunk, ROW_BYTES, EPOCHS) for chunk in (1e3, 1e4, 1e5)]
    assert found == sorted(found)
    assert found[-1] > 3
    small = Epochs(1024, memory_bytes=32 << 20)
    assert distance(rows, BY_KEY, CHUNK, ROW_BYTES, small) > 2
    assert distance(rows, BY_KEY, CHUNK, ROW_BYTES, Epochs(1024, seed=None)) == 1


def labels(num_rows=400_000):
    return pa.table({"k": np.repeat(np.arange(50), num_rows // 50), "x": np.arange(num_rows)})


def from_shares(batches):
    """How far the shares of labels in a batch are from even, as a multiple of a random batch's."""
    counts = np.array([np.bincount(batch["k"], minlength=50) for batch in batches][:-1])
    size = int(counts[0].sum())
    drawn = np.random.default_rng(0).multinomial(size, [1 / 50] * 50, len(counts))
    return np.abs(counts - size / 50).mean() / np.abs(drawn - size / 50).mean()


def test_the_advice_is_not_warned_of_and_mixes(tmp_path):
    """The figure of the warning is what is found, and what it says to do helps."""
    options = WriteOptions(sync=False, sort_buffer_bytes=2 << 20, chunk_bytes=16 << 10)
    write_rows(tmp_path / "s", labels(), "k", n=64, options=options)
    shuffle = open_shuffle(tmp_path / "s")
    epochs = Epochs(1_000, memory_bytes=1 << 20)
    with pytest.warns(UserWarning, match="batches of an epoch are not mixed well") as caught:
        badly = EpochBatches(shuffle, None, epochs)
    message = str(caught[0].message)
    told = float(re.search(r"about ([0-9.]+) times as far", message)[1])
    assert told / 1.5 < from_shares(badly) < told * 1.5
    n = int(re.search(r"num_subpartitions=(\d+)\)", message)[1])
    assert f"open_shuffle('{tmp_path}/s').epochs(batch_size=1000), NEW_PATH" in message
    options = WriteOptions(sync=False, sort_buffer_bytes=2 << 20, chunk_bytes=4 << 10)
    write_rows(tmp_path / "t", badly, n=n, partitioner=RoundRobinPartitioner(), options=options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        well = EpochBatches(open_shuffle(tmp_path / "t"), None, epochs)
    assert from_shares(well) < 2 < told / 2


def test_few_rows_that_a_filter_keeps_are_mixed_in_all_the_memory(tmp_path):
    rows = pa.table({"k": np.arange(400_000) // 20, "x": np.random.default_rng(0).random(400_000)})
    options = WriteOptions(sync=False, chunk_bytes=4 << 10)
    write_rows(tmp_path / "s", rows, "k", n=32, options=options)
    some = open_shuffle(tmp_path / "s").where("x < 0.02")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert EpochBatches(some, None, Epochs(500, memory_bytes=1 << 20)).num_rows < 10_000


def test_advised_numbers_are_powers_of_two():
    assert advised_subpartitions(100, 5) == 16
    assert advised_subpartitions(10_000_000, 4_000) == 64
    assert advised_subpartitions(10**12, 1) == 1 << 19
