"""The batches of ranks: shares, orders, positions, versions; what is read and held for them."""

import inspect
import json
import logging
import pickle
import threading
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrow_format import ColumnPartitioner, OptionError, WriteOptions
from arrow_format.epochs import reader as epoch_reader
from arrow_format.epochs.batches import EpochBatches
from arrow_format.epochs.options import Epochs
from arrow_format.epochs.position import merge_states
from arrow_format.errors import SchemaError, ShuffleNotFoundError, StorageError
from arrow_format.log.consumers import ConsumerRegistry
from arrow_format.storage.local import PosixReader
from arrow_format.storage.object_store import ObjectStorage
from arrow_shuffle import Shuffle, open_shuffle, write_shuffle
from tests.support.broken_methods import break_method
from tests.support.memory import figures_of

NUM_ROWS = 20_011
SMALL = WriteOptions(sync=False, chunk_bytes=1 << 10, sort_buffer_bytes=64 << 10)


def rows(num_rows=NUM_ROWS, first=0):
    numbers = np.arange(first, first + num_rows)
    return pa.table({"k": numbers, "x": numbers / 2, "text": [f"{i}" * (i % 5) for i in numbers]})


@pytest.fixture(scope="module")
def shuffle(tmp_path_factory):
    path = tmp_path_factory.mktemp("epochs") / "s"
    write_shuffle(rows(), path, num_subpartitions=32, keys="k", options=SMALL)
    return open_shuffle(path)


def keys(batches):
    return [batch["k"].to_pylist() for batch in batches]


def all_of(batches):
    return [k for batch in keys(batches) for k in batch]


@pytest.mark.parametrize("memory_bytes", [1 << 20, 384 << 20])
@pytest.mark.parametrize("num_ranks", [1, 3, 16])
def test_an_epoch_has_each_row_once(shuffle, num_ranks, memory_bytes):
    epochs = Epochs(64, memory_bytes=memory_bytes)
    each = [
        EpochBatches(shuffle, ["k"], epochs, rank=rank, world_size=num_ranks)
        for rank in range(num_ranks)
    ]
    found = [all_of(one) for one in each]
    assert sorted(k for of in found for k in of) == list(range(NUM_ROWS))
    assert max(map(len, found)) - min(map(len, found)) < 0.05 * NUM_ROWS
    assert [len(one) for one in each] == [-(-len(of) // 64) for of in found]


def test_seed_and_epoch_decide_the_order(shuffle):
    def order(seed, epoch):
        batches = EpochBatches(shuffle, ["k"], Epochs(100, seed))
        batches.set_epoch(epoch)
        return tuple(all_of(batches))

    assert order(3, 1) == order(3, 1)
    assert len({order(seed, epoch) for seed in (0, 1) for epoch in (0, 1)}) == 4
    assert list(order(None, 0)) == list(order(None, 1)) == shuffle.to_table()["k"].to_pylist()


@pytest.mark.parametrize("ids", [[], [0, 1], [0, 1, 2, 3, 7], [5]])
def test_an_order_of_reading_with_empty_subpartitions(tmp_path, ids):
    table = pa.table({"k": pa.array(ids, pa.int64())})
    by_id = ColumnPartitioner("k")
    write_shuffle(table, tmp_path / "s", partitioner=by_id, num_subpartitions=8, options=SMALL)
    few = open_shuffle(tmp_path / "s")
    for lanes in (1, 2, 3, 7, 8):
        assert all_of(EpochBatches(few, ["k"], Epochs(2, None, lanes=lanes))) == ids


@pytest.mark.parametrize("memory_bytes", [1 << 20, 384 << 20])
@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.parametrize("stop", [0, 1, 17, 150, 201])
def test_as_many_readers_go_on_with_what_would_have_come(shuffle, memory_bytes, seed, stop):
    made = [EpochBatches(shuffle, ["k"], Epochs(100, seed, memory_bytes)) for _ in range(2)]
    for each in made:
        each.set_epoch(5)
    whole = keys(made[0])
    stream = iter(made[1])
    for _ in range(stop):
        next(stream)
    stream.close()
    again = EpochBatches(shuffle, ["k"], Epochs(100, seed, memory_bytes))
    again.load_state_dict(json.loads(json.dumps(made[1].state_dict())))
    assert (again.epoch, len(again)) == (5, len(whole) - stop)
    assert keys(again) == whole[stop:]
    assert keys(again) == whole[stop:], "until the next epoch is set, the position holds"
    again.set_epoch(6)
    assert len(again) == len(whole)


@pytest.mark.parametrize("flag", ["drop_last", "pad"])
@pytest.mark.parametrize("num_ranks", [1, 3, 7])
def test_ranks_get_equally_many_whole_batches(shuffle, flag, num_ranks):
    epochs = Epochs(64, memory_bytes=1 << 20, **{flag: True})
    each = [
        EpochBatches(shuffle, ["k"], epochs, rank=rank, world_size=num_ranks)
        for rank in range(num_ranks)
    ]
    found = [keys(one) for one in each]
    assert {len(batch) for batches in found for batch in batches} == {64}
    (count,) = {len(batches) for batches in found}
    assert [len(one) for one in each] == [count] * num_ranks
    seen = [k for batches in found for batch in batches for k in batch]
    if flag == "drop_last":
        assert NUM_ROWS * 0.95 < len(set(seen)) == len(seen) <= NUM_ROWS
    else:
        assert set(seen) == set(range(NUM_ROWS))
        assert len(seen) < NUM_ROWS * 1.05


def test_more_readers_than_rows(tmp_path):
    write_shuffle(rows(3), tmp_path / "s", keys="k", num_subpartitions=4, options=SMALL)
    few = open_shuffle(tmp_path / "s")
    each = [EpochBatches(few, None, Epochs(2), rank=i, world_size=5) for i in range(5)]
    assert sorted(k for one in each for k in all_of(one)) == [0, 1, 2]
    padded = [EpochBatches(few, None, Epochs(2, pad=True), rank=i, world_size=5) for i in range(5)]
    assert [len(all_of(one)) for one in padded] == [2] * 5


def test_sixteen_readers_read_the_bytes_of_one(tmp_path, monkeypatch):
    """OPERATORS 4, case b; indexes, which each reader needs, included."""
    numbers = np.random.default_rng(0).integers(0, 1 << 60, 1_000_000)
    options = WriteOptions(sync=False, chunk_bytes=16 << 10, sort_buffer_bytes=8 << 20)
    many = pa.table({"k": numbers, "x": numbers[::-1].astype(float)})
    write_shuffle(many, tmp_path / "s", num_subpartitions=64, keys="k", options=options)
    plain, read, num_rows = PosixReader.get_ranges, [], 0

    def counted(reader, ranges):
        read.append(sum(length for _, length in ranges))
        return plain(reader, ranges)

    monkeypatch.setattr(PosixReader, "get_ranges", counted)
    for rank in range(16):
        epochs = Epochs(64, memory_bytes=1 << 20)
        shuffle = open_shuffle(tmp_path / "s")
        one = EpochBatches(shuffle, None, epochs, rank=rank, world_size=16)
        assert len(one.reader.chunks.num_rows) > 256, "fewer are cut, and so read by several"
        num_rows += sum(batch.num_rows for batch in one)
    assert num_rows == len(numbers)
    assert shuffle.num_bytes < sum(read) < 1.1 * shuffle.num_bytes


def test_a_batch_that_is_too_late_leaves_no_thread(shuffle):
    before = set(threading.enumerate())
    stream = iter(EpochBatches(shuffle, None, Epochs(10, memory_bytes=1 << 20)))
    next(stream)
    assert set(threading.enumerate()) - before
    stream.close()
    assert set(threading.enumerate()) == before


def test_no_more_is_in_memory_than_was_allowed(tmp_path):
    """Of rows of 12 times the memory, with what is read, mixed and handed over."""
    random = np.random.default_rng(0)
    columns = {f"x{i}": random.normal(size=800_000) for i in range(15)}
    options = WriteOptions(sync=False, chunk_bytes=64 << 10, sort_buffer_bytes=32 << 20)
    many = pa.table({"k": range(800_000), **columns})
    write_shuffle(many, tmp_path / "s", num_subpartitions=64, keys="k", options=options)
    num_bytes = many.nbytes
    del many, columns
    memory_bytes = num_bytes // 12
    program = """
from arrow_format.epochs.options import Epochs
from arrow_format.epochs.batches import EpochBatches
from arrow_format.read.shuffle import open_shuffle
epochs = Epochs(1_000, memory_bytes=int(sys.argv[2]))
batches = EpochBatches(open_shuffle(sys.argv[1]), None, epochs)
print(sum(batch.num_rows for batch in batches), pa.default_memory_pool().max_memory())
"""
    num_rows, peak = figures_of(program, tmp_path / "s", memory_bytes)
    assert num_rows == 800_000
    assert 0.5 * memory_bytes < peak < 1.05 * memory_bytes


def test_an_object_store_is_asked_ahead_of_the_loop(s3, no_metadata, monkeypatch):
    """Several calls are under way at a time, each for several chunks, and the version is held."""
    bucket = s3.new_bucket()
    options = WriteOptions(chunk_bytes=16 << 10, sort_buffer_bytes=8 << 20)
    random = np.random.default_rng(0).integers(0, 1 << 60, (2, 300_000))
    many = pa.table({"k": np.arange(300_000), "x": random[0], "y": random[1]})
    path, how = f"s3://{bucket}/s", {"storage_options": s3.options}
    write_shuffle(many, path, num_subpartitions=64, keys="k", options=options, **how)
    epochs = EpochBatches(
        open_shuffle(path, **how), None, Epochs(1_000, memory_bytes=2 << 20, lanes=16)
    )
    plain, under_way, most, num_ranges = ObjectStorage.get_ranges, [], [], []

    def slow(storage, name, ranges):
        under_way.append(name)
        most.append(len(under_way))
        num_ranges.append(len(ranges))
        time.sleep(0.01)
        try:
            return plain(storage, name, ranges)
        finally:
            under_way.remove(name)

    monkeypatch.setattr(ObjectStorage, "get_ranges", slow)
    stream = iter(epochs)
    found = [next(stream)]
    assert [key for key in s3.keys(bucket) if "/consumers/reader-" in key]
    found += stream
    assert sorted(k for batch in found for k in batch["k"].to_pylist()) == list(range(300_000))
    assert max(most) > 1
    assert max(num_ranges) > 1
    epochs.close()
    assert not [key for key in s3.keys(bucket) if "/consumers/" in key]


def test_a_loop_that_goes_on_reads_its_own_epoch_beside_another(tmp_path, monkeypatch):
    """Threads of both read blocks by the lanes of their own epochs, which are dealt once each."""
    write_shuffle(rows(100_000), tmp_path / "s", num_subpartitions=32, keys="k", options=SMALL)
    shuffle = open_shuffle(tmp_path / "s")
    dealt = []
    plain = epoch_reader.deal
    monkeypatch.setattr(
        epoch_reader, "deal", lambda *given: dealt.append(given[-1]) or plain(*given)
    )
    batches = EpochBatches(shuffle, None, Epochs(500, memory_bytes=1 << 20, lanes=16))
    first = iter(batches)
    old = keys([next(first)])
    batches.set_epoch(1)
    second = iter(batches)
    new = keys([next(second)])
    assert dealt == [0, 1]
    for left, right in zip(first, second, strict=True):  # blocks are read all the while
        old += keys([left])
        new += keys([right])
    assert dealt == [0, 1]
    alone = EpochBatches(shuffle, None, Epochs(500, memory_bytes=1 << 20, lanes=16))
    assert keys(alone) == old
    alone.set_epoch(1)
    assert keys(alone) == new


def test_an_error_of_the_storage_reaches_the_loop(shuffle, monkeypatch):
    epochs = EpochBatches(shuffle, None, Epochs(10, memory_bytes=1 << 20))
    break_method(monkeypatch, PosixReader, "get_ranges", OSError("the disk is gone"))
    with pytest.raises(OSError, match="the disk is gone"):
        list(epochs)


def test_a_pickled_one_reads_the_same(shuffle):
    batches = EpochBatches(shuffle.where("k >= 100 AND k < 900"), ["k"], Epochs(7))
    copy = pickle.loads(pickle.dumps(batches))
    found = keys(batches)
    assert keys(copy) == found
    assert sorted(k for batch in found for k in batch) == list(range(100, 900))
    assert batches.num_rows == copy.num_rows == 800


# Positions ----------------------------------------------------------------------------------------


def test_a_state_of_some_ranks_is_refused(shuffle):
    def made(rank, world_size, **more):
        options = {"batch_size": 10, **more}
        return EpochBatches(shuffle, ["k"], Epochs(**options), rank=rank, world_size=world_size)

    states = [made(rank, 3).state_dict() for rank in range(3)]
    with pytest.raises(OptionError, match=r"of ranks \[1\] of 3, and this is rank 0 of 2: give me"):
        made(0, 2).load_state_dict(states[1])
    with pytest.raises(OptionError, match=r"of ranks \[1\] of 3, and this is rank 0 of 3"):
        made(0, 3).load_state_dict(states[1])
    made(1, 3).load_state_dict(states[1])
    made(0, 2).load_state_dict(merge_states(states))
    for name, value in {"batch_size": 11, "seed": 1, "lanes": 255, "memory_bytes": 1 << 24}.items():
        with pytest.raises(OptionError, match=f"the state is of {name}"):
            made(1, 3, **{name: value}).load_state_dict(states[1])
    with pytest.raises(
        OptionError, match=r"drop_last=True: of 300 readers .* give lanes=300 or mo"
    ):
        len(made(0, 300, drop_last=True))
    for bad in (
        {},
        {"epoch": 1},
        {**states[1], "of": 3},
        {**states[1], "version": "x"},
        {**states[1], "ranks": 1},
        {**states[1], "taken": [0]},
    ):
        with pytest.raises(OptionError, match=r"is not one of state_dict\(\)"):
            made(1, 3).load_state_dict(bad)


@pytest.mark.parametrize("as_saved", [True, False])
@pytest.mark.parametrize("stop", [3, 414, 420, None])
def test_ranks_that_pad_go_on_with_equally_many_batches(shuffle, stop, as_saved):
    """Also where one of them has no rows of its own left."""

    def made():
        epochs = Epochs(16, pad=True)
        return [EpochBatches(shuffle, ["k"], epochs, rank=i, world_size=3) for i in range(3)]

    before = made()
    count = len(before[0])
    of_rows = [len(EpochBatches(shuffle, None, Epochs(16), rank=i, world_size=3)) for i in range(3)]
    assert min(of_rows) < 414 < 420 < count, "some rank has no rows left"
    whole = [keys(one) for one in made()]
    for one in before:
        for _ in zip(range(count if stop is None else stop), one, strict=False):
            pass
    states = [one.state_dict() for one in before]
    after = made()
    for one, state in zip(after, states, strict=True):
        one.load_state_dict(state if as_saved else merge_states(states))
    left = 0 if stop is None else count - stop
    assert [len(one) for one in after] == [left] * 3
    assert [keys(one) for one in after] == [batches[count - left :] for batches in whole]


def test_the_state_of_one_rank_is_for_as_many_workers(shuffle):
    def made():
        return EpochBatches(shuffle, ["k"], Epochs(16), rank=0, world_size=2)

    saved = made()
    saved.begin(2)[0] += 1
    again = made()
    again.load_state_dict(saved.state_dict())
    assert again.num_batches(2) == saved.num_batches(2) - 1
    begun = made()
    begun.load_state_dict(made().state_dict())  # no reader had begun
    assert begun.num_batches(3) == made().num_batches(3)
    with pytest.raises(OptionError, match=r"4 readers in all .* 6 now: give merge_states"):
        again.begin(3)


def test_the_iteration_that_began_last_is_counted(shuffle):
    batches = EpochBatches(shuffle, ["k"], Epochs(16))
    before, after = iter(batches), iter(batches)
    taken = keys([next(before), next(before)])
    assert keys([next(after)]) == taken[:1]
    next(before)
    assert sum(batches.state_dict()["taken"]) == 16
    batches.set_epoch(1)
    next(before)
    next(after)
    assert sum(batches.state_dict()["taken"]) == 0
    before.close()
    after.close()


# Versions -----------------------------------------------------------------------------------------


@pytest.fixture
def grows(tmp_path):
    write_shuffle(rows(1_000), tmp_path / "s", num_subpartitions=8, keys="k", options=SMALL)
    return open_shuffle(tmp_path / "s")


def test_each_epoch_reads_the_newest_version(grows):
    batches = EpochBatches(grows, ["k"], Epochs(100))
    grows.append(rows(500, 1_000), options=SMALL)
    batches.set_epoch(0)
    assert (batches.version, batches.num_rows) == (2, 1_500)
    stream = iter(batches)
    next(stream)
    grows.delete({"k": [3, 1_200]})
    batches.set_epoch(0)  # has begun
    assert batches.version == 2
    assert sum(batch.num_rows for batch in stream) == 1_400
    batches.set_epoch(1)
    assert (batches.version, sorted(all_of(batches))) == (
        3, [k for k in range(1_500) if k not in (3, 1_200)]
    )  # fmt: skip


def test_a_version_that_was_asked_for_stays(grows):
    grows.tag("trained", 1)
    grows.append(rows(500, 1_000), options=SMALL)
    for named in (open_shuffle(grows.path, 1), open_shuffle(grows.path, "trained")):
        batches = EpochBatches(
            pickle.loads(pickle.dumps(named)).where("k > 10"), ["k"], Epochs(100)
        )
        batches.set_epoch(1)
        assert (batches.version, batches.num_rows) == (1, 989)


def test_a_filter_holds_in_later_versions(grows):
    batches = EpochBatches(grows.where("k >= 990"), ["k"], Epochs(100))
    grows.append(rows(500, 1_000), options=SMALL)
    batches.set_epoch(1)
    assert sorted(all_of(batches)) == list(range(990, 1_500))


def test_ranks_stay_together(grows):
    each = [EpochBatches(grows, ["k"], Epochs(9), rank=i, world_size=2) for i in range(2)]
    grows.append(rows(500, 1_000), options=SMALL)
    for one in each:
        one.set_epoch(1)
    assert {one.version for one in each} == {1}
    for one in each:
        one.set_epoch(2, version=2)
    assert sorted(k for one in each for k in all_of(one)) == list(range(1_500))
    with pytest.raises(ShuffleNotFoundError):
        each[0].set_epoch(3, version=9)


def test_a_position_of_an_earlier_version_goes_on_there(grows):
    batches = EpochBatches(grows, ["k"], Epochs(100))
    stream = iter(batches)
    taken = keys([next(stream), next(stream)])
    stream.close()
    state = batches.state_dict()
    grows.append(rows(500, 1_000), options=SMALL)
    grows.delete({"k": [taken[0][0], 999]})
    again = EpochBatches(open_shuffle(grows.path), ["k"], Epochs(100))
    again.load_state_dict(state)
    assert again.version == 1
    left = all_of(again)
    assert sorted([*taken[0], *taken[1], *left]) == list(range(1_000))
    again.set_epoch(1)
    assert (again.version, again.num_rows) == (3, 1_498)


def test_a_position_in_other_rows_of_a_version_is_refused(grows):
    grows.append(rows(500, 1_000), options=SMALL)
    grows.append(rows(300, 1_500), options=SMALL)
    newest = grows.newest()
    state = EpochBatches(newest, ["k"], Epochs(100)).state_dict()
    added = EpochBatches(newest.added(since=1), ["k"], Epochs(100))
    with pytest.raises(OptionError, match=r"other rows of version 3: .* same added\(since=...\)"):
        added.load_state_dict(state)
    before = EpochBatches(open_shuffle(grows.path, 2).added(since=1), ["k"], Epochs(100))
    with pytest.raises(OptionError, match=r"open_shuffle\(..., 2\).added\(since=1\)"):
        added.load_state_dict(before.state_dict())
    with pytest.raises(OptionError, match="added after version 1, up to 3, so that they are of"):
        added.set_epoch(1, version=2)
    added.set_epoch(1)
    assert sorted(all_of(added)) == list(range(1_000, 1_800))
    first, second = (
        EpochBatches(newest.where(pc.field("k").isin([*range(20), last])), ["k"], Epochs(100))
        for last in (20, 700)
    )
    assert str(newest.where(pc.field("k").isin(range(20))).filter).count(",") < 20, "it is cut"
    with pytest.raises(OptionError, match="other rows of version 3: give the same filter"):
        second.load_state_dict(first.state_dict())
    assert sorted(all_of(second)) == [*range(20), 700]


def test_a_version_with_other_columns(grows):
    """Of another type they are delivered as they are; without one of them the epoch stays."""
    batches = EpochBatches(grows, ["k", "x"], Epochs(100))
    write_shuffle(
        pa.table({"k": [1, 2], "x": ["a", "b"]}), grows.path, keys="k", num_subpartitions=8,
        mode="overwrite", options=SMALL,
    )  # fmt: skip
    batches.set_epoch(1)
    assert [batch.schema for batch in batches] == [batches.schema]
    assert batches.schema.field("x").type == pa.string()
    state = batches.state_dict()
    open_shuffle(grows.path).drop_columns(["x"])
    with pytest.raises(SchemaError, match="column 'x' is not there"):
        batches.set_epoch(2)
    assert batches.state_dict() == state
    assert (batches.epoch, batches.version, sorted(all_of(batches))) == (1, 2, [1, 2])


def test_a_position_before_there_was_a_column_more(grows):
    """Of all columns, as there were: until its epoch has ended, and on."""
    batches = EpochBatches(grows, None, Epochs(100))
    state = batches.state_dict()
    grows.append(rows(10, 1_000).append_column("more", pa.array(range(10))), options=SMALL)
    batches.set_epoch(0)
    later = batches.state_dict()
    for before, version in ((state, 1), (later, 2)):
        again = EpochBatches(open_shuffle(grows.path), None, Epochs(100))
        assert "more" in again.schema.names
        again.load_state_dict(json.loads(json.dumps(before)))
        assert (again.version, again.schema.names) == (version, ["k", "x", "text"])
        assert next(iter(again)).schema.names == ["k", "x", "text"]


def test_a_position_of_a_version_that_has_expired(grows):
    batches = EpochBatches(grows, ["k"], Epochs(100))
    stream = iter(batches)
    next(stream)
    stream.close()
    state = batches.state_dict()
    batches.close()
    grows.delete({"k": [3]}, erase=True)
    grows.collect_garbage(retention=timedelta(0))
    again = EpochBatches(open_shuffle(grows.path), ["k"], Epochs(100))
    with pytest.raises(ShuffleNotFoundError, match=r"begin the next one: set_epoch\(epoch \+ 1\)"):
        again.load_state_dict(state)


def test_the_version_of_an_epoch_does_not_expire_while_it_is_read(grows):
    """Nor is a row that was erased in a later batch, once the epoch has ended."""
    batches = EpochBatches(grows, ["k"], Epochs(100, memory_bytes=1 << 20))
    stream = iter(batches)
    first = keys([next(stream)])[0]
    grows.delete({"k": [5]}, erase=True)
    newest = grows.newest()
    newest.collect_garbage(retention=timedelta(0))
    assert sorted([*first, *all_of(stream)]) == list(range(1_000))
    batches.set_epoch(1)
    assert sorted(all_of(batches)) == [k for k in range(1_000) if k != 5]
    newest.collect_garbage(retention=timedelta(0))
    with pytest.raises(ShuffleNotFoundError):
        open_shuffle(grows.path, 1)
    batches.close()
    holds = Path(grows.path) / "consumers"
    assert not holds.exists() or not list(holds.iterdir())


def test_without_a_hold_a_version_expires(grows):
    batches = EpochBatches(grows, ["k"], Epochs(100, memory_bytes=1 << 20), hold=False)
    grows.delete({"k": [5]}, erase=True)
    grows.newest().collect_garbage(retention=timedelta(0))
    with pytest.raises(ShuffleNotFoundError):
        list(batches)


def test_where_nothing_may_be_written_an_epoch_is_read_all_the_same(grows, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    break_method(monkeypatch, ConsumerRegistry, "put", StorageError("read-only file system"))
    assert len(all_of(EpochBatches(grows, ["k"], Epochs(100)))) == 1_000
    assert "reads a version that may expire" in caplog.text
    assert "read-only file system" in caplog.text


def test_methods_have_the_defaults_of_the_options():
    options = Epochs(batch_size=1)
    for method in (Shuffle.to_torch, Shuffle.epochs):
        taken = inspect.signature(method).parameters
        for name in ("seed", "memory_bytes", "lanes", "drop_last", "pad"):
            assert taken[name].default == getattr(options, name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 1, "seed": -1}, "seed=-1"),
        ({"batch_size": 1, "memory_bytes": 5}, "memory_bytes=5"),
        ({"batch_size": 1, "lanes": 0}, "lanes=0"),
        ({"batch_size": 1, "drop_last": 1}, "drop_last=1: expected True or False"),
        ({"batch_size": 1, "drop_last": True, "pad": True}, "or none for each row once"),
        ({"batch_size": 1, "rank": 2, "world_size": 2}, "rank=2"),
    ],
)
def test_bad_options(shuffle, options, message):
    with pytest.raises(OptionError, match=message):
        shuffle.epochs(**options)
