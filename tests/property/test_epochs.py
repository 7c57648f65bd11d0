"""Every row of an epoch comes once, whoever reads it and whenever it is stopped."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrow_format.epochs.batches import EpochBatches
from arrow_format.epochs.options import Epochs
from arrow_format.epochs.position import merge_states
from arrow_shuffle import (
    BroadcastPartitioner,
    RangePartitioner,
    RoundRobinPartitioner,
    WriteOptions,
    open_shuffle,
    write_shuffle,
)
from tests.support.guarantees import guarantee

OPTIONS = WriteOptions(sync=False, chunk_bytes=256, sort_buffer_bytes=16 << 10)
SMALL = WriteOptions(sync=False)


def table(num_rows, first=0):
    numbers = np.arange(first, first + num_rows)
    return pa.table({"id": numbers, "label": numbers // 50, "text": [f"{i}" for i in numbers]})


@pytest.fixture(scope="module")
def shuffles(tmp_path_factory):
    """Shuffles kept by several things, with some chunks and with many, changed in several ways."""
    base = tmp_path_factory.mktemp("epochs")
    kept = {}
    for name, options, n, more in [
        ("few chunks", SMALL, 7, {"keys": "id"}),
        ("many chunks", OPTIONS, 13, {"keys": "id"}),
        ("by label", OPTIONS, 16, {"keys": "label"}),
        ("in turn", OPTIONS, 5, {"partitioner": RoundRobinPartitioner()}),
        ("one subpartition", OPTIONS, 1, {"keys": "id"}),
    ]:
        path = base / name.replace(" ", "-")
        write_shuffle(table(1_003), path, num_subpartitions=n, options=options, **more)
        kept[name] = open_shuffle(path)
    path = base / "changed"
    write_shuffle(table(700), path, num_subpartitions=11, keys="id", unique="id", options=OPTIONS)
    changed = open_shuffle(path)
    changed.append(table(300, 700), options=OPTIONS)
    changed.upsert(table(100, 650), options=OPTIONS)
    changed.delete({"id": [*range(0, 300, 7)]})
    kept["changed"] = open_shuffle(path)
    changed.merge()
    kept["merged"] = open_shuffle(path)
    kept["before the merge"] = open_shuffle(path, kept["changed"].version)
    changed.newest().rescale(22)
    changed.append(table(50, 2_000), options=OPTIONS)
    kept["rescaled"] = open_shuffle(path)
    changed.newest().rename_columns({"text": "words"})
    changed.newest().rename_columns({"words": "text"})
    changed.newest().delete({"id": [2_001, 5]}, erase=True)
    kept["erased"] = open_shuffle(path)
    changed.newest().rollback(kept["rescaled"].version, undo_deletions=True)
    kept["rolled back"] = open_shuffle(path)
    path = base / "revised"
    write_shuffle(table(600), path, num_subpartitions=6, keys="id", options=OPTIONS)
    open_shuffle(path).append(table(400, 300), options=OPTIONS)
    kept["latest"] = open_shuffle(path).latest_by("label")
    kept["latest, filtered"] = kept["latest"].where("label >= 8")
    kept["broadcast"] = written(base / "broadcast", partitioner=BroadcastPartitioner(), n=4)
    bounds = [100, 400, 401]
    kept["ranges"] = written(base / "r", partitioner=RangePartitioner("id", bounds=bounds), n=4)
    kept["sorted"] = written(base / "sorted", keys="label", sort_by=["id"], n=9)
    plain = WriteOptions(sync=False, codec="none", sort_buffer_bytes=16 << 10)
    kept["plain"] = written(base / "plain", keys="id", options=plain, n=9)
    kept["filtered"] = kept["many chunks"].where("text >= '3' AND label < 15")
    kept["empty"] = kept["many chunks"].where("id < 0")
    assert set(kept) == set(NAMES)
    return kept


def written(path, *, n, options=OPTIONS, **more):
    write_shuffle(table(503), path, num_subpartitions=n, options=options, **more)
    return open_shuffle(path)


NAMES = [
    "few chunks", "many chunks", "by label", "in turn", "one subpartition", "changed", "merged",
    "before the merge", "rescaled", "erased", "rolled back", "latest", "latest, filtered",
    "broadcast", "ranges", "sorted", "plain", "filtered", "empty",
]  # fmt: skip

epochs = st.builds(
    Epochs,
    st.integers(1, 300),
    st.one_of(st.none(), st.integers(0, 9)),
    st.sampled_from([1 << 20, 384 << 20]),
    st.sampled_from([1, 5, 64, 256]),
)
ways = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 3), st.lists(st.integers(0, 9), min_size=1)),
    max_size=4,
)


def rows_of(batch):
    return list(zip(*(batch[name].to_pylist() for name in ("id", "text")), strict=True))


class Rank:
    """What a loop with workers on one rank does: workers read ahead, and it takes some batches."""

    def __init__(self, rows, options, rank, world_size, workers, state):
        self.epochs = EpochBatches(rows, None, options, rank=rank, world_size=world_size)
        if state is not None:
            self.epochs.load_state_dict(json.loads(json.dumps(state)))
        self._taken = self.epochs.begin(workers)
        position = self.epochs.position
        streams = [self.epochs.shared(position, worker, workers) for worker in range(workers)]
        self._ahead = [(stream, [*self._take(stream, 2)]) for stream in streams]
        self._streams = [stream for stream, _ in self._ahead]

    @staticmethod
    def _take(stream, count):
        return [item for _, item in zip(range(count), stream, strict=False)]

    def batches(self):
        for stream, ahead in self._ahead:
            for reader, batch in [*ahead]:
                self._taken[reader] += 1
                yield batch
            for reader, batch in stream:
                self._taken[reader] += 1
                yield batch

    def close(self):
        for stream in self._streams:
            stream.close()


@guarantee("epochs")
@settings(max_examples=80)
@given(name=st.sampled_from(NAMES), options=epochs, ways=ways)
def test_each_row_comes_once_whoever_reads_it(shuffles, name, options, ways):
    rows = shuffles[name]
    expected = sorted(rows_of(rows.read().read_all()))
    taken, state = [], None
    for world_size, workers, stops in [*ways, (2, 1, [])]:
        states = []
        for rank in range(world_size):
            one = Rank(rows, options, rank, world_size, workers, state)
            most = stops[rank % len(stops)] if stops else None
            stream = one.batches()
            for count, batch in enumerate(stream):
                taken += rows_of(batch)
                if most is not None and count + 1 >= most:
                    break
            stream.close()
            one.close()
            states.append(one.epochs.state_dict())
        state = merge_states(states)
    assert sorted(taken) == expected
    assert sum(state["taken"]) == len(expected)
