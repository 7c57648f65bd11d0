"""One reader per subpartition, dealt from runs of rows: against the rows of a dictionary."""

import gc
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format import (
    BroadcastPartitioner,
    ClosedError,
    CorruptShuffleError,
    HashPartitioner,
    WriteOptions,
)
from arrow_format.operators.subpartition_readers import (
    RowsInOrder,
    SameRows,
    each_subpartition,
    row_source,
)
from arrow_format.read.rows import Rows
from tests.support.own_partitioner import OwnPartitioner
from tests.support.small_shuffles import flip, shuffle_of

SCHEMA = pa.schema({"row": pa.int64()})


def runs_of(ids, cuts):
    """Rows 0, 1, ... of the subpartitions `ids`, in runs cut at `cuts`."""
    edges = [0, *sorted({cut for cut in cuts if cut < len(ids)}), len(ids)]
    for first, end in pairwise(edges):
        batch = pa.record_batch([pa.array(range(first, end), pa.int64())], schema=SCHEMA)
        yield Rows(batch, np.array(ids[first:end], np.int32))


cases = st.tuples(
    st.lists(st.integers(0, 9), max_size=30).map(sorted),
    st.lists(st.integers(1, 30), max_size=4),
    st.integers(0, 3),
)


@given(st.lists(cases, min_size=1, max_size=3), st.lists(st.sampled_from(["all", "one", "none"])))
def test_every_reader_has_the_rows_of_its_subpartition(shuffles, habits):
    """Also after readers that were left unread or half read."""
    sources = [RowsInOrder(SCHEMA, runs_of(ids, cuts)) for ids, cuts, _ in shuffles]
    seen = []
    for subpartition, readers in each_subpartition(range(10), sources):
        seen.append(subpartition)
        for number, (reader, (ids, _, offset)) in enumerate(zip(readers, shuffles, strict=True)):
            assert reader.schema == SCHEMA
            turn = subpartition + number + offset
            habit = habits[turn % len(habits)] if habits else "all"
            expected = [row for row, id_ in enumerate(ids) if id_ == subpartition]
            if habit == "all":
                assert [row for b in reader for row in b["row"].to_pylist()] == expected
            elif habit == "one" and expected:
                first = reader.read_next_batch()["row"].to_pylist()
                assert first
                assert first == expected[: len(first)]
    assert seen == list(range(10))


def test_a_reader_kept_beyond_its_turn_gives_no_rows():
    sources = [RowsInOrder(SCHEMA, runs_of([0, 0, 1, 2], [1]))]
    turns = each_subpartition(range(3), sources)
    _, (unread,) = next(turns)
    _, (half_read,) = next(turns)
    half_read.read_next_batch()
    next(turns)
    with pytest.raises(ClosedError, match="subpartition 0 was read after its turn"):
        unread.read_next_batch()
    with pytest.raises(ClosedError, match="subpartition 1 was read after its turn"):
        half_read.read_next_batch()
    last = next(each_subpartition([1], [RowsInOrder(SCHEMA, runs_of([1, 1], [1]))]))[1][0]
    gc.collect()  # the generator of turns is gone, and with it the turn
    with pytest.raises(ClosedError):
        last.read_all()


def test_a_huge_subpartition_is_never_held_whole():
    alive = []

    def runs():
        for number in range(50):
            batch = pa.record_batch([pa.array(np.full(1000, number))], schema=SCHEMA)
            yield Rows(batch, np.full(1000, 7, np.int32))

    before = pa.total_allocated_bytes()
    for subpartition, (reader,) in each_subpartition(range(9), [RowsInOrder(SCHEMA, runs())]):
        num_rows = 0
        for batch in reader:
            num_rows += batch.num_rows
            alive.append(pa.total_allocated_bytes() - before)
        assert num_rows == (50_000 if subpartition == 7 else 0)
    assert max(alive) <= 0 + 3 * 8_000 + 4096


def test_stopping_early_closes_every_shuffle():
    closed = []

    def runs(name):
        try:
            yield from runs_of([0, 1, 2], [1, 2])
        finally:
            closed.append(name)

    turns = each_subpartition(range(3), [RowsInOrder(SCHEMA, runs(name)) for name in "ab"])
    for reader in next(turns)[1]:
        reader.read_next_batch()
    turns.close()
    assert sorted(closed) == ["a", "b"]


@pytest.mark.parametrize(("hold", "reads"), [(1 << 20, 1), (10, 3)])
def test_rows_for_all_are_kept_while_they_are_small(hold, reads):
    batch = pa.record_batch([pa.array(range(5))], schema=SCHEMA)
    begun = []

    def read():
        begun.append(1)
        yield from [batch, batch]

    for _, (reader,) in each_subpartition([0, 4, 9], [SameRows(SCHEMA, read, hold)]):
        assert reader.read_all().num_rows == 10
    assert len(begun) == reads


def test_rows_for_all_that_were_half_read_are_read_again():
    batch = pa.record_batch([pa.array(range(5))], schema=SCHEMA)
    source = SameRows(SCHEMA, lambda: iter([batch, batch]), 1 << 20)
    result = []
    for subpartition, (reader,) in each_subpartition(range(3), [source]):
        rows = reader.read_next_batch() if subpartition == 0 else reader.read_all()
        result.append(rows.num_rows)
    assert result == [5, 10, 10]


def test_rows_for_all_that_were_half_read_are_let_go_with_the_turn():
    batch = pa.record_batch([pa.array(range(5))], schema=SCHEMA)
    begun, closed, kept = [], [], []

    def read():
        begun.append(1)
        try:
            yield from [batch] * 5
        finally:
            closed.append(1)

    for _, (reader,) in each_subpartition(range(4), [SameRows(SCHEMA, read, 1 << 20)]):
        assert len(closed) == len(begun)
        assert reader.read_next_batch().num_rows == 5
        kept.append(reader)
    assert len(closed) == len(begun) == 4
    for number, reader in enumerate(kept):
        with pytest.raises(ClosedError, match=f"subpartition {number} was read after its turn"):
            reader.read_next_batch()


def test_rows_that_a_partitioner_broadcasts_are_dealt_to_all(tmp_path):
    some_to_all = OwnPartitioner(lambda batch, _: batch["to"].to_numpy())
    table = pa.table({"to": pa.array([-1, 0, 2, 2], pa.int32()), "row": range(4)})
    shuffle = shuffle_of(tmp_path / "s", table, n=3, partitioner=some_to_all)
    source = row_source(shuffle, range(3), ["row"])
    turns = each_subpartition(range(3), [source])
    result = [sorted(reader.read_all()["row"].to_pylist()) for _, (reader,) in turns]
    assert result == [[0, 1], [0], [0, 2, 3]]


@pytest.mark.parametrize("sort_by", [(), ("v",)])
def test_shuffles_are_dealt_as_they_are_read(tmp_path, sort_by):
    rng = np.random.default_rng(5)
    table = pa.table({"k": rng.integers(0, 400, 5_000), "v": rng.random(5_000)})
    few = pa.table({"x": [1, 2, 3]})
    shuffle = shuffle_of(tmp_path / "a", table, "k", n=300, sort_by=sort_by)
    broadcast = shuffle_of(tmp_path / "b", few, n=2, partitioner=BroadcastPartitioner())
    wanted = [*range(5, 90), 200]
    sources = [row_source(shuffle, wanted, ["v"]), row_source(broadcast, wanted, None)]

    num_empty = 0
    for subpartition, (reader, same) in each_subpartition(wanted, sources):
        result = reader.read_all()
        assert result.equals(shuffle.subpartition(subpartition, ["v"]).read_all())
        assert same.read_all().equals(few)
        num_empty += not result.num_rows
    assert num_empty > 5


def test_damage_is_found_where_it_is_read(tmp_path):
    table = pa.table({"k": range(1_000)})
    shuffle = shuffle_of(tmp_path / "s", table, "k", n=4)
    (file,) = tmp_path.rglob("*.data")
    flip(file)
    turns = each_subpartition(range(4), [row_source(shuffle, range(4), None)])
    with pytest.raises(CorruptShuffleError):
        [reader.read_all() for _, (reader,) in turns]


def test_weights_see_large_rows(tmp_path):
    texts = ["x"] * 1_000 + ["".join(map(chr, range(33, 120))) * 2_000] * 20
    table = pa.table({"k": [*range(1_000), *[7] * 20], "t": texts})
    shuffle = shuffle_of(
        tmp_path / "s",
        table,
        n=8,
        partitioner=HashPartitioner("k"),
        options=WriteOptions(sync=False, codec="none"),
    )
    sizes = [shuffle.subpartition(i).read_all().nbytes for i in range(8)]
    rows, raw_bytes = shuffle.weights()
    assert rows.tolist() == shuffle.subpartition_rows.to_pylist()
    assert int(np.argmax(raw_bytes)) == int(np.argmax(sizes))
    assert int(raw_bytes.max()) > 0.5 * max(sizes)
