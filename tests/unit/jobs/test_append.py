"""Appends that name rows and path only: what they take from the shuffle that is there."""

import pyarrow as pa
import pytest

import arrow_shuffle
from arrow_format import (
    CommitConflictError,
    OptionError,
    RangePartitioner,
    RoundRobinPartitioner,
    SchemaError,
    ShuffleNotFoundError,
    WriteOptions,
    append_shuffle,
    open_shuffle,
)
from arrow_format.log.names import entry_path
from arrow_format.read.partitioned_file import PartitionedFileReader
from tests.support.own_partitioner import OwnPartitioner
from tests.support.recording_storage import RecordingStorage
from tests.support.small_shuffles import FAST, files_below, write_rows

ROWS = pa.table({"k": [3, 1, 2], "v": [0.5, 1.5, 2.5]})
MORE = pa.table({"k": [2, 0], "v": [9.0, 8.0]})


@pytest.mark.parametrize(
    "how",
    [
        {"keys": ["v", "k"], "sort_by": [("k", "descending")]},
        {"partitioner": RangePartitioner("k", bounds=[0, 2])},
        {"partitioner": RoundRobinPartitioner()},
    ],
)
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_rows_are_stored_like_those_that_are_there(tmp_path, how, codec):
    path, other = tmp_path / "s", tmp_path / "other"
    options = WriteOptions(sync=False, codec=codec)
    for place in (path, other):
        write_rows(place, ROWS, n=4, options=options, **how)
    assert append_shuffle(MORE, path, options=FAST).version == 2
    write_rows(other, MORE, n=4, options=options, mode="append", **how)
    shuffle, expected = open_shuffle(path), open_shuffle(other)
    found = shuffle.read(with_subpartition=True).read_all()
    assert found.equals(expected.read(with_subpartition=True).read_all())
    assert shuffle.partitioner == expected.partitioner
    assert shuffle.sort_by == expected.sort_by
    for output in shuffle.map_outputs:
        assert PartitionedFileReader(shuffle.storage, *output.files).codec == codec


def test_of_the_shuffle_one_entry_is_read_and_no_index(tmp_path):
    for _ in range(3):
        write_rows(tmp_path, ROWS, "k", mode="append")
    storage = RecordingStorage(str(tmp_path))
    append_shuffle(MORE, storage, options=FAST)
    assert [path for path in storage.others if "/expired/" not in path] == [entry_path(3)]


def test_columns_by_name_and_new_ones(tmp_path):
    write_rows(tmp_path / "s", ROWS, "k")
    schema = pa.schema([pa.field("new", pa.string(), nullable=False), ("k", pa.int64())])
    append_shuffle(pa.table([["x"], [7]], schema=schema), tmp_path / "s", options=FAST)
    rows = open_shuffle(tmp_path / "s").to_table()
    assert rows.schema.names == ["k", "v", "new"]
    assert rows.schema.field("new").nullable
    assert rows.sort_by("k").to_pylist()[-1] == {"k": 7, "v": None, "new": "x"}
    with pytest.raises(SchemaError, match="'k' is int64 there, string here"):
        append_shuffle(pa.table({"k": ["x"]}), tmp_path / "s", options=FAST)


def test_after_a_version_without_files_and_before_another(tmp_path):
    write_rows(tmp_path / "s", ROWS[:0], "k")
    append_shuffle(MORE, tmp_path / "s", options=FAST, expected_version=1)
    assert open_shuffle(tmp_path / "s").num_rows == 2
    with pytest.raises(CommitConflictError):
        append_shuffle(MORE, tmp_path / "s", options=FAST, expected_version=1)


def test_what_cannot_be_appended_to(tmp_path):
    with pytest.raises(ShuffleNotFoundError):
        append_shuffle(ROWS, tmp_path / "s")
    assert not (tmp_path / "s").exists()
    own = OwnPartitioner(lambda batch, n: batch["k"].to_numpy() % n)
    write_rows(tmp_path / "s", ROWS, partitioner=own)
    before = files_below(tmp_path / "s")
    with pytest.raises(OptionError, match=r"\{'kind': 'own'\}, a partitioner of your own"):
        append_shuffle(ROWS, tmp_path / "s", options=FAST)
    write_rows(tmp_path / "t", ROWS, "k")
    with pytest.raises(OptionError, match="options is str"):
        append_shuffle(ROWS, tmp_path / "t", options="fast")
    assert files_below(tmp_path / "s") == before


def test_the_package_for_users_appends_rows_in_memory_here(tmp_path):
    write_rows(tmp_path / "s", ROWS, "k")
    shuffle = arrow_shuffle.open_shuffle(tmp_path / "s")
    receipt = shuffle.append(MORE.to_pandas(), options=FAST)
    assert (receipt.version, receipt.num_rows) == (2, 2)
    with pytest.raises(OptionError, match=r"^columns: only for a pyarrow dataset"):
        shuffle.append(MORE, columns=["k"])
