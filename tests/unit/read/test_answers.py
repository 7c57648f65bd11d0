"""Counts and extremes: which of them need no rows, and that they are those of the rows."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from arrow_format import (
    BroadcastPartitioner,
    ColumnPartitioner,
    RangePartitioner,
    WriteOptions,
    append_shuffle,
    delete_rows,
    merge_shuffle,
)
from arrow_format.errors import SchemaError
from arrow_format.format import index_file
from arrow_format.format.codecs import ChunkDecoder
from arrow_shuffle import open_shuffle
from tests.support.guarantees import guarantee
from tests.support.operations import written
from tests.support.small_shuffles import write_rows

OPTIONS = WriteOptions(sync=False, chunk_bytes=4096, statistics="all")
N = 4


def days(day, count=1000):
    """Rows of one day; ``v`` ascends within it, ``s`` are texts that statistics cut."""
    values = np.arange(count) + 10_000 * day
    return pa.table(
        {
            "k": pa.array(values % 97),
            "day": pa.array(np.full(count, day)),
            "v": pa.array(values),
            "s": pa.array([f"a text of more than {v}" for v in values]),
        }
    )


@pytest.fixture
def shuffle(tmp_path):
    for day in range(3):
        write_rows(tmp_path, days(day), "k", n=N, mode="append", options=OPTIONS)
    return open_shuffle(tmp_path)


@pytest.fixture
def decoded(monkeypatch):
    """The rows of the chunks that are decoded from here on."""
    found = []
    real = ChunkDecoder.open_chunks

    def open_chunks(self, chunks):
        found.extend(chunk.places.num_rows for chunk in chunks)
        return real(self, chunks)

    monkeypatch.setattr(ChunkDecoder, "open_chunks", open_chunks)
    return found


@guarantee("counts")
@pytest.mark.parametrize(
    ("condition", "count"),
    [
        (None, 3000), ("TRUE", 3000), ("FALSE", 0), ("day = 1", 1000), ("day >= 1", 2000),
        ("day IN (0, 2)", 2000), ("day IS NOT NULL AND v < 10000", 1000), ("day IS NULL", 0),
    ],
)  # fmt: skip
def test_what_the_log_says_is_not_read(shuffle, decoded, condition, count):
    """A count of all rows, or of files all of whose rows match, opens neither index nor data"""
    for path in shuffle.storage.files("map_outputs", depth=3):
        shuffle.storage.delete(path)
    assert shuffle.count_rows(filter=condition) == count
    least, greatest = shuffle.min_max(["v"], filter=condition)["v"]
    assert (least.as_py() is None) == (count == 0)
    if condition == "day >= 1":
        assert (least.as_py(), greatest.as_py()) == (10_000, 20_999)
    assert not decoded


def test_only_chunks_of_which_statistics_do_not_decide_are_decoded(tmp_path, decoded):
    rows = days(0, 20_000)
    partitioner = RangePartitioner("v")
    shuffle = written(tmp_path, rows, n=64, partitioner=partitioner, options=OPTIONS)
    assert shuffle.count_rows(filter="v < 7777") == 7777
    assert 0 < sum(decoded) < 2000
    decoded.clear()
    found = shuffle.min_max(["v", "day"], filter="v BETWEEN 100 AND 7777")
    assert [[end.as_py() for end in ends] for ends in found.values()] == [[100, 7777], [0, 0]]
    assert 0 < sum(decoded) < 3000


def test_texts_are_read_since_their_bounds_are_cut(shuffle, decoded):
    least, greatest = shuffle.min_max(["s"], filter="day = 1")["s"]
    expected = pc.min_max(days(1)["s"])
    assert (least, greatest) == (expected["min"], expected["max"])
    assert sum(decoded) == 1000, "of one file"


def test_each_subpartition_counts_a_broadcast_row_of_chunks_that_statistics_decide(
    tmp_path, decoded
):
    write_rows(tmp_path, days(0, 100_000), n=N, partitioner=BroadcastPartitioner(), options=OPTIONS)
    assert open_shuffle(tmp_path).count_rows(filter="v < 77777") == 77_777 * N
    assert 0 < sum(decoded) < 50_000


def test_each_subpartition_counts_a_broadcast_row(tmp_path):
    shuffle = written(
        tmp_path, days(0, 50), n=N, partitioner=BroadcastPartitioner(), options=OPTIONS
    )
    assert shuffle.count_rows() == shuffle.read().read_all().num_rows == 50 * N
    assert shuffle.count_rows(filter="v < 7") == 7 * N
    assert shuffle.count_rows(filter="v >= 0") == 50 * N


@pytest.mark.slow
def test_after_deletions_and_merges_extremes_are_those_of_rows_that_are_left(shuffle):
    path = shuffle.path
    delete_rows(path, {"k": [0, 10, 96, *range(20, 40)]}, options=OPTIONS)
    for _ in range(2):
        left = open_shuffle(path)
        rows = left.read().read_all()
        assert left.count_rows() == rows.num_rows
        for name, (least, greatest) in left.min_max(["k", "day", "v", "s"]).items():
            expected = pc.min_max(rows[name])
            assert (least, greatest) == (expected["min"], expected["max"]), name
        assert left.verify().ok
        merge_shuffle(path, options=OPTIONS, by="map_output")


def test_a_column_that_earlier_files_lack_or_have_narrower(tmp_path):
    narrow = pa.table({"k": pa.array([1, 2, 3]), "x": pa.array([5, -7, 9], pa.int16())})
    write_rows(tmp_path, narrow, "k", n=N, options=OPTIONS)
    options = WriteOptions(sync=False, statistics="all", schema_evolution=True)
    wide = pa.table({"k": [4], "x": [70_000], "new": [1.5]})
    append_shuffle(wide, tmp_path, options=options)
    shuffle = open_shuffle(tmp_path)
    found = shuffle.min_max(["x", "new"])
    assert [[end.as_py() for end in ends] for ends in found.values()] == [[-7, 70_000], [1.5, 1.5]]
    assert shuffle.count_rows(filter="new IS NULL") == 3
    assert shuffle.count_rows(filter="x < 10") == 3


def test_no_rows_have_no_extremes(tmp_path):
    shuffle = written(tmp_path, days(0, 0), "k", n=N, options=OPTIONS)
    assert shuffle.count_rows() == shuffle.count_rows(filter="v > 1") == 0
    assert [end.as_py() for end in shuffle.min_max(["v"])["v"]] == [None, None]


def test_columns_without_an_order_are_refused(tmp_path):
    rows = pa.table({"k": [1], "x": [[1]]})
    write_rows(tmp_path, rows, "k", n=N, options=OPTIONS)
    with pytest.raises(SchemaError, match="'x' is list"):
        open_shuffle(tmp_path).min_max(["x"])
    with pytest.raises(SchemaError, match="y"):
        open_shuffle(tmp_path).min_max(["y"])


@guarantee("counts")
def test_a_dataset_counts_without_reading_what_the_log_says(shuffle, decoded):
    dataset = shuffle.to_dataset()
    assert dataset.count_rows() == 3000
    assert dataset.count_rows(filter=ds.field("day") == 1) == 1000
    assert dataset.filter(ds.field("day") >= 1).count_rows() == 2000
    assert not decoded
    assert dataset.count_rows(filter=pc.starts_with(ds.field("s"), "a text of more than 1")) > 0
    assert decoded, "what only PyArrow evaluates"


def test_a_key_whose_subpartition_no_block_of_a_file_has(tmp_path, monkeypatch):
    monkeypatch.setattr(index_file, "BLOCK_BYTES", 1)
    rows = pa.table({"p": pa.array([0, 2] * 10, pa.int32()), "v": range(20)})
    shuffle = written(tmp_path, rows, n=3, partitioner=ColumnPartitioner("p"), options=OPTIONS)
    for condition in ("p = 1", "p = 1 AND v > 3"):
        assert shuffle.count_rows(filter=condition) == 0
        (ends,) = shuffle.min_max(["v"], filter=condition).values()
        assert [end.as_py() for end in ends] == [None, None]
    assert shuffle.count_rows(filter="p = 2") == 10
