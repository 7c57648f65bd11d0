"""Rows dealt to readers of an epoch: each once, in the order of a seed, and resumable."""

import inspect
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format import OptionError
from arrow_format.integrations.epoch_reader import EpochReader
from arrow_format.integrations.epochs import Epochs, slices, taken_of_each
from arrow_shuffle import Shuffle
from tests.support.operations import written

NUM_ROWS = 997

numbers_of_rows = st.integers(0, 200)
readers = st.integers(1, 9)


@given(numbers_of_rows, readers, st.integers(1, 30))
def test_extents_are_adjacent_even_and_all(num_rows, num_readers, batch_size):
    epochs = Epochs(batch_size)
    extents = [epochs.extent(num_rows, reader, num_readers) for reader in range(num_readers)]
    starts, stops = zip(*extents, strict=True)
    assert (starts[0], stops[-1]) == (0, num_rows)
    assert stops[:-1] == starts[1:]
    sizes = {stop - start for start, stop in extents}
    assert max(sizes) - min(sizes) <= 1


@given(numbers_of_rows, readers, st.integers(1, 30))
def test_without_last_batches_all_readers_have_equally_many(num_rows, num_readers, batch_size):
    epochs = Epochs(batch_size, drop_last=True)
    extents = [epochs.extent(num_rows, reader, num_readers) for reader in range(num_readers)]
    (size,) = {stop - start for start, stop in extents}
    assert size % batch_size == 0
    assert num_rows - size * num_readers < num_readers * (batch_size + 1)
    for (_, stop), (start, _) in pairwise(extents):
        assert stop <= start
    assert extents[-1][1] <= num_rows


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.data())
def test_slices_are_the_rows_of_an_extent(shard_rows, data):
    rows = np.array(shard_rows, np.int64)
    order = np.array(data.draw(st.permutations(range(len(rows)))))
    total = int(rows.sum())
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    everything = [(shard, row) for shard in order.tolist() for row in range(rows[shard])]
    found = [
        (shard, row)
        for shard, first, end in slices(rows, order, start, stop)
        for row in range(first, end)
    ]
    assert found == everything[start:stop]


@given(st.integers(0, 6), st.lists(st.booleans(), min_size=1, max_size=5), st.data())
def test_batches_taken_in_turns(fewest, has_more, data):
    num_batches = [fewest + more for more in has_more]
    queue = [
        reader
        for turn in range(fewest + 1)
        for reader, count in enumerate(num_batches)
        if turn < count
    ]
    taken = data.draw(st.integers(0, len(queue)))
    of_each, turn = taken_of_each(taken, num_batches)
    n = len(num_batches)
    assert of_each == [queue[:taken].count(reader) for reader in range(n)]
    left = [own - done for own, done in zip(num_batches, of_each, strict=True)]
    # A loader that asks the reader of this turn first, then the next, takes what would have come.
    again = [
        reader
        for i in range(max(left) + 1)
        for reader in ((turn + j) % n for j in range(n))
        if i < left[reader]
    ]
    assert again == queue[taken:]


def test_more_batches_than_an_epoch_has():
    with pytest.raises(OptionError, match="7 batches were taken, and an epoch has 6"):
        taken_of_each(7, [3, 3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 1, "seed": -1}, "seed=-1"),
        ({"batch_size": 1, "shuffle_rows": 0}, "shuffle_rows=0"),
        ({"batch_size": 1, "drop_last": 1}, "drop_last=1: expected True or False"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(OptionError, match=message):
        Epochs(**options)


def test_a_dataset_has_the_defaults_of_its_epochs():
    taken = inspect.signature(Shuffle.to_torch).parameters
    options = Epochs(batch_size=1)
    for name in ("seed", "shuffle_rows", "drop_last"):
        assert taken[name].default == getattr(options, name)


@pytest.fixture(scope="module")
def shuffle(tmp_path_factory):
    path = tmp_path_factory.mktemp("epochs") / "s"
    table = pa.table({"k": range(NUM_ROWS), "text": [f"{i}" * (i % 5) for i in range(NUM_ROWS)]})
    return written(path, table, "k", n=13)


# These windows hold less than a subpartition.
few_rows = pytest.mark.filterwarnings("ignore:.*batches of an epoch are not mixed well")


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr("arrow_format.integrations.epoch_reader.SHARD_BYTES", 2_000)


def keys(batches):
    return [batch["k"].to_pylist() for batch in batches]


@few_rows
@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("num_readers", [1, 3, 8])
def test_an_epoch_has_each_row_once(shuffle, num_readers):
    reader = EpochReader(shuffle, ["k"], Epochs(16, shuffle_rows=64))
    batches = [b for i in range(num_readers) for b in keys(reader.batches(4, i, num_readers, 0))]
    assert sorted(k for batch in batches for k in batch) == list(range(NUM_ROWS))
    assert max(map(len, batches)) == 16


@pytest.mark.usefixtures("small_shards")
def test_seed_and_epoch_decide_the_order(shuffle):
    def order(seed, epoch):
        reader = EpochReader(shuffle, ["k"], Epochs(NUM_ROWS, seed=seed, shuffle_rows=100))
        (batch,) = keys(reader.batches(epoch, 0, 1, 0))
        return tuple(batch)

    assert order(3, 1) == order(3, 1)
    assert len({order(seed, epoch) for seed in (0, 1) for epoch in (0, 1)}) == 4
    assert list(order(None, 0)) == list(order(None, 1)) == shuffle.to_table()["k"].to_pylist()


@few_rows
@pytest.mark.usefixtures("small_shards")
@given(skip=st.integers(0, 40), reader=st.integers(0, 2))
def test_skipped_batches_change_none_after_them(shuffle, skip, reader):
    epochs = EpochReader(shuffle, ["k"], Epochs(10, shuffle_rows=40))
    whole = keys(epochs.batches(2, reader, 3, 0))
    assert keys(epochs.batches(2, reader, 3, skip)) == whole[skip:]


def test_a_filter_is_counted_once(shuffle):
    reader = EpochReader(shuffle.where("k BETWEEN 100 AND 249 OR k = 700"), ["k"], Epochs(7))
    found = [k for batch in keys(reader.batches(0, 0, 1, 0)) for k in batch]
    assert reader.num_rows == len(found) == 151
    assert sorted(found) == [*range(100, 250), 700]
