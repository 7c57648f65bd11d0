"""Which subpartitions a merge compares, and that each chunk is decoded once for them."""

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import MergePolicy, WriteOptions, merge_shuffle, open_shuffle, write_shuffle
from arrow_format.model import INDEX_SUFFIX
from arrow_format.read.chunk_reader import ChunkReader
from arrow_format.write import merge_check
from arrow_format.write.merge_check import NUM_COMPARED, chosen
from tests.support.indexes import decode_index

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


def write_appends(path, sort_by=()):
    for start in range(0, 2_000, 100):
        table = pa.table({"k": np.arange(start, start + 100), "v": np.arange(100) % 7})
        write_shuffle(
            table, path, num_subpartitions=40, keys="k", mode="append", sort_by=sort_by,
            options=FAST,
        )  # fmt: skip


@pytest.mark.parametrize("sort_by", [(), ("v",)])
def test_each_chunk_of_an_input_is_decoded_once_and_once_more_to_compare(
    tmp_path, monkeypatch, sort_by
):
    write_appends(tmp_path, sort_by)
    before = open_shuffle(tmp_path)
    indexes = [path.read_bytes() for path in tmp_path.rglob(f"*{INDEX_SUFFIX}")]
    num_chunks = sum(len(region.chunks) for each in indexes for region in decode_index(each)[1])
    decoded = []
    real = ChunkReader.to_decode

    def to_decode(self, *of, **how):
        decoded.append(self.path)
        return real(self, *of, **how)

    monkeypatch.setattr(ChunkReader, "to_decode", to_decode)
    merge_shuffle(tmp_path, policy=MergePolicy(rewrite="always"), options=FAST)
    inputs = {file.data_path for output in before.map_outputs for file in output.files}
    assert num_chunks < sum(path in inputs for path in decoded) <= 2 * num_chunks


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
    merge_shuffle(tmp_path, policy=MergePolicy(rewrite="always"), options=FAST)
    assert 0 < len(compared[0]) < 5
