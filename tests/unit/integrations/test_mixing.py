"""Whether batches of an epoch are mixed is known from the sizes of subpartitions."""

import re
import warnings

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import (
    ColumnPartitioner,
    HashPartitioner,
    RangePartitioner,
    RoundRobinPartitioner,
    open_shuffle,
)
from arrow_format.integrations.epoch_reader import EpochReader
from arrow_format.integrations.epochs import Epochs
from arrow_format.integrations.mixing import advised_subpartitions, fault_of
from tests.support.small_shuffles import write_rows

EPOCHS = Epochs(batch_size=1024)
BY_KEY = HashPartitioner("k")


def dealt(num_keys, rows_of_each, n, seed=0):
    """Rows of each subpartition where keys are hashed."""
    numbers = np.random.default_rng(seed).integers(0, n, num_keys)
    return np.bincount(numbers, minlength=n) * rows_of_each


@pytest.mark.parametrize(
    ("rows", "partitioner"),
    [
        (dealt(1_000_000, 1, 256), BY_KEY),
        (dealt(20_000, 50, 256), BY_KEY),
        (dealt(10_000_000, 1, 200), BY_KEY),
        (np.full(256, 4_000), RoundRobinPartitioner()),
        (np.full(1, 60_000), BY_KEY),
        # All of them in one window.
        (dealt(4, 10_000, 256), BY_KEY),
    ],
)
def test_what_is_mixed_is_not_warned_of(rows, partitioner):
    assert fault_of(rows, partitioner, EPOCHS) is None


@pytest.mark.parametrize("seed", range(20))
def test_few_keys_in_a_batch(seed):
    """FIELD F2: 100 classes of 10,000 rows each, of which a batch had 7.5 when it was counted."""
    fault = fault_of(dealt(100, 10_000, 256, seed), BY_KEY, EPOCHS)
    found, at_random = map(int, re.findall(r"about (\d+)", fault))
    assert 4 <= found <= 11
    assert 60 <= at_random <= 170


def test_a_key_with_half_of_the_rows():
    rows = dealt(1_000_000, 1, 256)
    rows[7] += 1_000_000
    assert "has about 1 different keys" in fault_of(rows, BY_KEY, EPOCHS)


@pytest.mark.parametrize(
    "partitioner", [RangePartitioner("k", bounds=list(range(63))), ColumnPartitioner("k")]
)
def test_ranges_keep_neighbours_together(partitioner):
    assert "of a random order about 64" in fault_of(np.full(64, 100_000), partitioner, EPOCHS)


def test_subpartitions_larger_than_the_window():
    rows = dealt(10_000_000, 1, 16)
    assert "65,536 rows are shuffled at a time, 10% of a subpartition" in fault_of(
        rows, BY_KEY, EPOCHS
    )
    assert fault_of(rows, BY_KEY, Epochs(batch_size=1024, shuffle_rows=1 << 20)) is None


def test_without_a_seed_nothing_is_shuffled():
    rows = dealt(100, 10_000, 256)
    assert fault_of(rows, BY_KEY, Epochs(batch_size=1024, seed=None)) is None


def test_the_advice_is_not_warned_of_and_mixes(tmp_path):
    """What the warning says to do, done."""
    labels = np.repeat(np.arange(50), 1_000)
    table = pa.table({"k": labels, "x": np.arange(50_000)})
    write_rows(tmp_path / "s", table, "k", n=64)
    epochs = Epochs(batch_size=100, shuffle_rows=2_000)
    shuffle = open_shuffle(tmp_path / "s")
    with pytest.warns(UserWarning, match="num_subpartitions=512") as caught:
        few = classes_of_batches(EpochReader(shuffle, ["k"], epochs))
    assert f"{tmp_path}/s" in str(caught[0].message)
    assert advised_subpartitions(50_000, epochs) == 512
    write_rows(tmp_path / "t", shuffle.read(), n=512, partitioner=RoundRobinPartitioner())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        many = classes_of_batches(EpochReader(open_shuffle(tmp_path / "t"), ["k"], epochs))
    assert few < 6
    assert many > 35  # of a random order 43


def classes_of_batches(reader):
    """How many labels a batch of an epoch has, on average."""
    batches = list(reader.batches(1, 0, 1, 0))
    return np.mean([len(batch["k"].unique()) for batch in batches])
