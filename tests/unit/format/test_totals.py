"""Totals per subpartition: rows exact, bytes summing to the data file's length."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrow_format.format.totals import subpartition_totals
from arrow_format.options import WriteOptions
from arrow_format.storage.open import PosixStorage
from tests.support.small_shuffles import write_file

N = 9
FILES = st.lists(
    st.tuples(st.lists(st.integers(0, N - 1), min_size=1, max_size=60), st.integers(0, N - 1)),
    min_size=1,
    max_size=4,
)


@pytest.mark.slow
@settings(max_examples=30)
@given(FILES, st.sampled_from(["none", "zstd"]), st.sampled_from([1, 300, 1 << 20]))
def test_rows_are_exact_and_bytes_sum_to_the_file(tmp_path_factory, regions, codec, chunk_bytes):
    storage = PosixStorage(str(tmp_path_factory.mktemp("totals")))
    options = WriteOptions(sync=False, codec=codec, chunk_bytes=chunk_bytes)
    file, writer = write_file(storage, regions, N, options=options)
    rows, sizes = subpartition_totals(writer.regions, N, file.data_bytes)
    everything = [s for ids, _ in regions for s in ids]
    assert rows.tolist() == [everything.count(s) for s in range(N)]
    assert sizes.sum() == file.data_bytes
    assert (sizes >= 0).all()
    assert ((sizes > 0) <= (rows > 0)).all(), "no bytes without rows"


def test_bytes_are_prorated_by_the_rows_of_each_chunk(tmp_path):
    storage = PosixStorage(str(tmp_path))
    options = WriteOptions(sync=False, codec="none", chunk_bytes=1 << 20)
    file, writer = write_file(storage, [([0] * 100 + [4] * 300, 0)], N, options=options)
    _, sizes = subpartition_totals(writer.regions, N, file.data_bytes)
    assert abs(int(sizes[0]) * 3 - int(sizes[4])) <= 6


def test_a_file_without_rows():
    rows, sizes = subpartition_totals((), N, 8)
    assert rows.tolist() == sizes.tolist() == [0] * N
