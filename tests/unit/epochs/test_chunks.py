"""The chunks of a version: rows and bytes of those that are delivered."""

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import BroadcastPartitioner, WriteOptions
from arrow_format.epochs.chunks import VersionChunks
from arrow_shuffle import open_shuffle, write_shuffle

OPTIONS = WriteOptions(sync=False, chunk_bytes=1 << 10)
TABLE = pa.table({"k": np.arange(10_000), "x": np.arange(10_000) % 2})


@pytest.fixture
def shuffle(tmp_path):
    write_shuffle(TABLE, tmp_path / "s", num_subpartitions=8, keys="k", options=OPTIONS)
    return open_shuffle(tmp_path / "s")


def sizes(rows, columns=("k", "x")):
    chunks = VersionChunks(rows, columns)
    return int(chunks.num_rows.sum()), int(chunks.num_bytes.sum()), chunks.raw_bytes


def test_bytes_are_those_of_the_rows_that_are_delivered(shuffle):
    num_rows, num_bytes, raw_bytes = sizes(shuffle)
    assert num_rows == 10_000
    assert num_bytes == pytest.approx(160_000, rel=0.1)
    assert raw_bytes == pytest.approx(num_bytes, rel=0.01)
    assert sizes(shuffle, ["k"])[1] == pytest.approx(80_000, rel=0.3)
    shuffle.delete({"k": [*range(0, 10_000, 2)]})
    for fewer in (shuffle.where("x = 1"), shuffle.newest()):
        num_rows, num_bytes, _ = sizes(fewer)
        assert num_rows == 5_000
        assert num_bytes == pytest.approx(80_000, rel=0.1)
    assert sizes(shuffle.where("x = 1"))[2] == raw_bytes


def test_a_broadcast_row_takes_memory_for_each_subpartition(tmp_path):
    write_shuffle(
        TABLE, tmp_path / "s", num_subpartitions=8, partitioner=BroadcastPartitioner(),
        options=OPTIONS,
    )  # fmt: skip
    num_rows, num_bytes, raw_bytes = sizes(open_shuffle(tmp_path / "s"))
    assert num_rows == 80_000
    assert num_bytes == pytest.approx(8 * raw_bytes, rel=0.01)
