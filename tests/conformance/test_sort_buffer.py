"""CONFORMANCE, group "Sort buffer", in that order."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.errors import ClosedError
from arrow_format.write.sort_buffer import (
    COPY_BATCHES,
    COPY_BYTES,
    MAX_ITEMS,
    ROW_OVERHEAD_BYTES,
    SortBuffer,
)
from tests.support.small_shuffles import SCHEMA, numbered

N = 7


def ids_of(batch):
    return batch["p"].to_numpy()


def append(buffer, ids, start=0):
    batch = numbered(ids, start)
    return buffer.append(batch, ids_of(batch))


def taken(buffer, first=0):
    buffer.finish()
    return buffer.take_region(first)


@given(
    st.lists(st.lists(st.integers(0, N - 1), max_size=120), max_size=12),
    st.sampled_from([1_000, 4_000, 100_000]),
    st.integers(0, N - 1),
)
def test_random_batches_up_to_several_buffers(batches, capacity, first):
    """A batch is taken as long as it fits, and as a whole; one that does not changes no row."""
    buffer = SortBuffer(SCHEMA, capacity, N)
    kept, start = [], 0
    for ids in batches:
        before = buffer.num_rows, buffer.num_bytes
        if append(buffer, ids, start):
            kept += [(s, v) for v, s in enumerate(ids, start)]
            assert buffer.num_bytes <= capacity
        else:
            # What its rows do not need may have been freed to make room.
            assert buffer.num_rows == before[0]
            assert buffer.num_bytes <= before[1]
            wanted = numbered(ids, start).nbytes + len(ids) * ROW_OVERHEAD_BYTES
            assert buffer.num_bytes + wanted > capacity
        start += len(ids)
    assert buffer.num_rows == len(kept)
    assert buffer.has_remaining == bool(kept)
    region = taken(buffer, first)
    assert not buffer.has_remaining
    expected = sorted(kept, key=lambda row: ((row[0] - first) % N, row[1]))
    assert list(zip(*region.batch.to_pydict().values(), strict=True)) == [
        (s, v, f"row {v}" * (v % 3)) for s, v in expected
    ]
    assert region.batch.schema.equals(SCHEMA)
    assert region.clustering.row_offsets[-1] == len(kept)


def test_batches_without_rows_are_accepted_and_invisible():
    buffer = SortBuffer(SCHEMA, 1_000, N)
    assert append(buffer, [])
    assert not buffer.has_remaining
    assert buffer.num_bytes == 0
    region = taken(buffer)
    assert region.batch.equals(numbered([]))
    assert region.clustering.row_offsets.tolist() == [0]


def test_append_after_finish_or_release():
    finished, released = (SortBuffer(SCHEMA, 1_000, N) for _ in range(2))
    finished.finish()
    released.release()
    assert (finished.is_finished, finished.is_released, released.is_released) == (True, False, True)
    for buffer in (finished, released):
        with pytest.raises(ClosedError, match="no row can be appended"):
            append(buffer, [1])


def test_read_before_finish_and_after_release():
    buffer = SortBuffer(SCHEMA, 1_000, N)
    append(buffer, [1])
    with pytest.raises(ClosedError, match="between finish and release"):
        buffer.take_region()
    buffer.finish()
    buffer.release()
    with pytest.raises(ClosedError, match="between finish and release"):
        buffer.take_region()


@pytest.mark.parametrize("read", [False, True])
def test_release_gives_every_byte_back(read):
    # Warm up what Arrow keeps for itself.
    SortBuffer(SCHEMA, 1 << 30, N).append(numbered([1] * 10), np.ones(10, np.int32))
    before = pa.total_allocated_bytes()
    buffer = SortBuffer(SCHEMA, 1 << 30, N)
    for start in range(0, 200_000, 20_000):
        assert append(buffer, [3, 1] * 10_000, start)
    assert pa.total_allocated_bytes() > before + (1 << 20)
    buffer.finish()
    if read:
        buffer.take_region()
    buffer.release()
    buffer.release()
    assert pa.total_allocated_bytes() == before
    assert buffer.num_bytes == buffer.num_rows == 0


def test_shared_buffers_are_counted_once():
    column = pa.array(np.arange(10_000))
    batch = pa.record_batch([column, column], names=["a", "b"])
    ids = np.zeros(10_000, np.int32)
    buffer = SortBuffer(batch.schema, 1 << 30, N)
    buffer.append(batch, ids)
    assert buffer.num_bytes == 80_000 + 10_000 * ROW_OVERHEAD_BYTES
    buffer.append(batch, ids)
    assert buffer.num_bytes == 80_000 + 20_000 * ROW_OVERHEAD_BYTES


def test_a_slice_is_charged_what_it_pins():
    batch = pa.record_batch([pa.array(np.arange(100_000))], names=["a"])
    buffer = SortBuffer(batch.schema, 1 << 30, N)
    buffer.append(batch.slice(500, 10), np.zeros(10, np.int32))
    assert buffer.num_bytes == 800_000 + 10 * ROW_OVERHEAD_BYTES


def test_what_slices_pin_is_let_go_before_the_buffer_counts_as_full():
    parent = pa.record_batch([pa.array(np.arange(100_000))], names=["a"])
    buffer = SortBuffer(parent.schema, 900_000, N)
    for start in range(0, 1_000, 10):
        # Each slice of its own parent, so that what is pinned adds up.
        batch = pa.record_batch([pa.array(np.arange(100_000))], names=["a"]).slice(start, 10)
        assert buffer.append(batch, np.zeros(10, np.int32))
    assert buffer.num_rows == 1_000
    assert taken(buffer).batch["a"].to_pylist() == list(range(1_000))


def test_waiting_batches_are_copied_out_in_time():
    big = pa.record_batch([pa.array(np.arange(COPY_BYTES // 8))], names=["a"])
    buffer = SortBuffer(big.schema, 1 << 30, N)
    before = pa.total_allocated_bytes()
    buffer.append(big, np.zeros(big.num_rows, np.int32))
    assert pa.total_allocated_bytes() >= before + COPY_BYTES, "copied at once"

    many = SortBuffer(SCHEMA, 1 << 30, N)
    for start in range(COPY_BATCHES):
        pinned = many.num_bytes
        append(many, [1], start)
    assert many.num_bytes < pinned, "sixty-four tiny batches were joined"


def test_items_are_counted_where_bytes_are_few():
    """Thirty-two-bit offsets end at 2**31 items, which nulls reach in no bytes at all."""

    def nulls(num_rows, items):
        offsets = np.arange(0, num_rows * items + 1, items, dtype=np.int32)
        column = pa.ListArray.from_arrays(pa.array(offsets), pa.nulls(num_rows * items))
        return pa.record_batch([column], names=["l"])

    batch = nulls(3, MAX_ITEMS // 6)
    ids = np.zeros(3, np.int32)
    buffer = SortBuffer(batch.schema, 1 << 30, N)
    assert buffer.append(batch, ids)
    assert buffer.append(batch, ids)
    assert not buffer.append(batch, ids)
    assert buffer.num_rows == 6
    assert taken(buffer).batch.num_rows == 6
    # Two rows of more are for their caller to part; a single one is taken.
    empty = SortBuffer(batch.schema, 1 << 30, N)
    assert not empty.append(nulls(2, MAX_ITEMS // 2 + 1), ids[:2])
    assert empty.append(nulls(1, MAX_ITEMS + 1), ids[:1])
    assert not empty.append(nulls(1, 1), ids[:1])


def test_rows_that_were_put_in_and_appended_come_out_in_the_order_of_arrival():
    buffer = SortBuffer(SCHEMA, 100_000, N)
    first = numbered([1, 2])
    buffer.put(first, subpartition=3)
    assert buffer.num_bytes == first.get_total_buffer_size() + 2 * ROW_OVERHEAD_BYTES
    with pytest.raises(ClosedError, match="empty"):
        buffer.put(first)
    append(buffer, [0, 0], 2)
    columns = buffer.take_columns()
    assert [[len(piece) for piece in pieces] for pieces in columns] == [[2, 2]] * len(columns)
    rows = pa.chunked_array(columns[0]).to_pylist()
    assert rows == [*first.column(0).to_pylist(), *numbered([0, 0], 2).column(0).to_pylist()]
    assert (buffer.num_rows, buffer.num_bytes) == (0, 0)


def test_what_was_put_in_is_clustered_with_the_rest():
    buffer = SortBuffer(SCHEMA, 100_000, N)
    buffer.put(numbered([1, 2]), subpartition=3)
    append(buffer, [4, 0], 2)
    region = taken(buffer)
    assert region.clustering.ranks.tolist() == [0, 3, 4]
    assert region.clustering.row_offsets.tolist() == [0, 1, 3, 4]


def test_rows_may_be_put_in_that_are_more_than_fits():
    buffer = SortBuffer(SCHEMA, 100, N)
    rows = numbered([1] * 50)
    assert not buffer.append(rows, ids_of(rows))
    buffer.put(rows)
    assert buffer.num_bytes > 100
    assert not append(buffer, [1])
