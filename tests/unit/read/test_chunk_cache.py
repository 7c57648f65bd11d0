"""Rows of groups are the same whatever is kept of the chunks between them, and decoded once."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format import WriteOptions, open_shuffle
from arrow_format.read.chunk_cache import ChunkCache, pinned_bytes
from arrow_format.read.chunk_reader import ChunkReader
from tests.support.small_shuffles import write_tasks

N = 23


@pytest.fixture(scope="module", params=["none", "zstd"])
def shuffle(request, tmp_path_factory):
    """Chunks of several subpartitions, in regions that begin at different ones."""
    random = np.random.default_rng(4)
    path = str(tmp_path_factory.mktemp("kept") / "x")
    batch = pa.record_batch(
        {
            "p": random.integers(0, N, 3_000).astype(np.int32),
            "row": np.arange(3_000),
            "text": [f"text {i}" for i in range(3_000)],
        }
    )
    options = WriteOptions(
        sync=False, codec=request.param, sort_buffer_bytes=80 << 10, chunk_bytes=7 << 10
    )
    batches = [batch.slice(start, 100) for start in range(0, 3_000, 100)]
    write_tasks(path, [batches[task::3] for task in range(3)], N, options=options)
    shuffle = open_shuffle(path)
    assert sum(file.num_regions for output in shuffle.map_outputs for file in output.files) > 3
    return shuffle


def _rows(reader):
    """Rows with their subpartitions, in their order."""
    return [
        row
        for rows in reader
        for row in zip(rows.batch.to_pylist(), rows.subpartitions.tolist(), strict=True)
    ]


def _num_chunks(shuffle):
    return sum(len([*chunks]) for _, chunks in shuffle.reader(0, N).planned())


@pytest.fixture
def decodes(monkeypatch):
    """How often each chunk is decoded."""
    counts = Counter()
    to_decode = ChunkReader.to_decode

    def counted(self, chunk, stored, **how):
        counts[self.order, chunk.offset] += 1
        return to_decode(self, chunk, stored, **how)

    monkeypatch.setattr(ChunkReader, "to_decode", counted)
    return counts


@pytest.mark.slow
@given(
    cuts=st.sets(st.integers(1, N - 1)),
    skipped=st.sets(st.integers(0, N)),
    max_bytes=st.sampled_from([0, 10_000, 1 << 30]),
)
def test_rows_are_the_same(shuffle, cuts, skipped, max_bytes):
    edges = [0, *sorted(cuts), N]
    groups = [group for i, group in enumerate(pairwise(edges)) if i not in skipped]
    kept = ChunkCache(max_bytes, N)
    for first, end in groups:
        reader = shuffle._reader.reader(first, end, kept=kept)
        assert _rows(reader) == _rows(shuffle.reader(first, end))


def test_a_chunk_is_decoded_once(shuffle, decodes):
    kept = ChunkCache(1 << 30, N)
    for first in range(N):
        list(shuffle._reader.reader(first, first + 1, kept=kept))
    assert len(decodes) == _num_chunks(shuffle)
    assert set(decodes.values()) == {1}
    assert kept.take() == {}


def test_a_read_of_all_decodes_a_chunk_once(shuffle, decodes, monkeypatch):
    groups = [(first, first + 1) for first in range(N)]
    monkeypatch.setattr(shuffle._reader, "groups", lambda *_: groups)
    table = shuffle.read().read_all()
    assert table.num_rows == 3_000
    assert max(decodes.values()) == 1


def test_what_is_kept_is_bounded(shuffle, decodes):
    kept = ChunkCache(0, N)
    for first in range(N):
        list(shuffle._reader.reader(first, first + 1, kept=kept))
        assert kept.take() == {}
    assert max(decodes.values()) > 1
    limit = 4_000
    kept = ChunkCache(limit, N)
    list(shuffle._reader.reader(0, N // 2, kept=kept))
    left = kept.take().values()
    assert left
    assert sum(one.pinned_bytes for one in left) <= limit
    assert all(one.pinned_bytes >= one.batch.get_total_buffer_size() // 2 for one in left)


def test_a_kept_chunk_pins_no_more_than_twice_its_rows(shuffle):
    kept = ChunkCache(1 << 30, N)
    pa_bytes = pa.total_allocated_bytes()
    list(shuffle._reader.reader(0, N // 2, kept=kept))
    left = kept.take().values()
    pinned = sum(one.pinned_bytes for one in left)
    assert pa.total_allocated_bytes() - pa_bytes <= pinned + 4_096


def test_a_view_behind_a_column_of_its_own_pins_what_was_read_too():
    read = pa.py_buffer(bytes(4096))
    stored = read.slice(1024, 1024)
    own = pa.array([7] * 8)
    view = pa.Array.from_buffers(pa.int64(), 8, [None, stored.slice(0, 64)])
    batch = pa.record_batch({"own": own, "view": view})
    assert pinned_bytes(batch, stored, is_plain=True) == 4096
    assert pinned_bytes(batch.select(["own"]), stored, is_plain=True) == own.nbytes
