"""Which subpartitions a merge compares, and that each chunk is decoded once for them."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from arrow_format import (
    CorruptShuffleError,
    MergePolicy,
    WriteOptions,
    merge_shuffle,
    open_shuffle,
    write_shuffle,
)
from arrow_format.model import INDEX_SUFFIX
from arrow_format.read.chunk_reader import ChunkReader
from arrow_format.write import merge_check
from arrow_format.write.merge_check import NUM_COMPARED, ROWS_COMPARED, chosen, have_ends
from arrow_format.write.region_joiner import RegionJoiner
from tests.support.indexes import decode_index
from tests.support.small_shuffles import write_rows

FAST = WriteOptions(sync=False)


@pytest.mark.parametrize("num_regions", [0, 1, 8, 100, 300, 10_000])
@pytest.mark.parametrize("num_candidates", [0, 1, 3, 15, 16, 17, 200])
def test_as_many_are_chosen_from_few_places_of_many_regions(num_candidates, num_regions):
    candidates = np.arange(num_candidates) * 3 + 1
    some = chosen(candidates, NUM_COMPARED, num_regions)
    assert some == sorted(set(some))
    assert set(some) <= set(candidates.tolist())
    assert min(num_candidates, 1) <= len(some) <= NUM_COMPARED
    num_places = 1 + np.count_nonzero(np.diff(some) > 3)
    if num_candidates == 200:
        assert num_places == min(max(512 // max(num_regions, 1), 1), NUM_COMPARED)


@pytest.fixture
def decoded(monkeypatch):
    """The data file of each chunk that is decoded from here on."""
    paths = []
    real = ChunkReader.to_decode

    def to_decode(self, *of, **how):
        paths.append(self.path)
        return real(self, *of, **how)

    monkeypatch.setattr(ChunkReader, "to_decode", to_decode)
    return paths


def write_appends(path, sort_by=()):
    for start in range(0, 2_000, 100):
        table = pa.table({"k": np.arange(start, start + 100), "v": np.arange(100) % 7})
        write_rows(path, table, "k", n=40, mode="append", sort_by=sort_by)


@pytest.mark.slow
@pytest.mark.parametrize("sort_by", [(), ("v",)])
def test_each_chunk_of_an_input_is_decoded_once_and_once_more_to_compare(
    tmp_path, decoded, sort_by
):
    write_appends(tmp_path, sort_by)
    before = open_shuffle(tmp_path)
    indexes = [path.read_bytes() for path in tmp_path.rglob(f"*{INDEX_SUFFIX}")]
    num_chunks = sum(len(region.chunks) for each in indexes for region in decode_index(each)[1])
    merge_shuffle(tmp_path, policy=MergePolicy(rewrite="always"), options=FAST, by="map_output")
    inputs = {file.data_path for output in before.map_outputs for file in output.files}
    assert num_chunks < sum(path in inputs for path in decoded) <= 2 * num_chunks


@given(arrays(np.int64, array_shapes(min_dims=2, max_dims=2), elements=st.integers(0, 300)))
def test_files_are_read_again_of_which_a_row_is_compared(rows):
    """And no others: of each subpartition the first and the last 256 rows are."""
    compared = set()
    for of_files in rows.T:
        file = np.repeat(np.arange(len(rows)), of_files)
        compared |= {*file[:ROWS_COMPARED].tolist(), *file[-ROWS_COMPARED:].tolist()}
    assert set(np.flatnonzero(have_ends(rows)).tolist()) == compared


def append_in_order(path, num_files=8, num_rows=200):
    for start in range(0, num_files * num_rows, num_rows):
        table = pa.table({"k": np.arange(start, start + num_rows)})
        write_shuffle(table, path, num_subpartitions=1, keys="k", mode="append", options=FAST)


def test_files_between_those_with_the_first_and_last_rows_are_read_once(tmp_path, decoded):
    append_in_order(tmp_path)
    outputs = open_shuffle(tmp_path).map_outputs
    inputs = [file.data_path for output in outputs for file in output.files]
    merge_shuffle(tmp_path, policy=MergePolicy(rewrite="always"), options=FAST, by="map_output")
    assert [decoded.count(path) for path in inputs] == [2, 2, 1, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("row", [0, 255, 1_600 - 256, 1_599])
def test_a_mistake_in_any_row_that_is_compared_is_found(tmp_path, monkeypatch, row):
    append_in_order(tmp_path)
    real = RegionJoiner.parts

    def parts(self):
        for batch, clustering in real(self):
            values = batch["k"].to_numpy().copy()
            values[row] = -7
            yield pa.record_batch([values], schema=batch.schema), clustering

    monkeypatch.setattr(RegionJoiner, "parts", parts)
    with pytest.raises(CorruptShuffleError, match=r"rows of subpartition 0 differ"):
        merge_shuffle(tmp_path, policy=MergePolicy(rewrite="always"), options=FAST, by="map_output")


def test_the_largest_are_left_out_where_all_are_too_large(tmp_path, monkeypatch):
    """So that others are compared, within the memory."""
    texts = ["x" * 10_000 if k % 40 == 0 else "y" for k in range(400)]
    for start in (0, 200):
        part = slice(start, start + 200)
        table = pa.table({"k": np.arange(400)[part], "s": texts[part]})
        write_shuffle(table, tmp_path, num_subpartitions=5, keys="k", mode="append", options=FAST)
    compared = []
    real = merge_check.compare

    def compare(merged, expected, written):
        compared.append(set(expected))
        real(merged, expected, written)

    monkeypatch.setattr(merge_check, "compare", compare)
    monkeypatch.setattr(merge_check, "MAX_COMPARED_BYTES", 30_000)
    merge_shuffle(tmp_path, policy=MergePolicy(rewrite="always"), options=FAST, by="map_output")
    assert 0 < len(compared[0]) < 5
