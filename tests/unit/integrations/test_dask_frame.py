"""A shuffle as a frame of Dask."""

import decimal

import dask
import pandas as pd
import pyarrow as pa
import pytest
from pandas.testing import assert_frame_equal

from arrow_format import CorruptShuffleError, OptionError
from arrow_format.integrations import dask_frame
from arrow_shuffle import open_shuffle
from tests.support.operations import written
from tests.support.small_shuffles import write_rows

TABLE = pa.table(
    {
        "k": range(1000),
        "number": pa.array([None if i % 7 == 0 else i for i in range(1000)], pa.int32()),
        "text": [None if i % 5 == 0 else f"text {i}" for i in range(1000)],
        "price": pa.array([decimal.Decimal(i) / 4 for i in range(1000)], pa.decimal128(10, 2)),
        "list": [[i, i] for i in range(1000)],
    }
)


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def shuffle(tmp_path):
    return written(tmp_path / "s", TABLE, "k", n=16)


def as_pandas(table):
    return table.to_pandas(types_mapper=pd.ArrowDtype)


@pytest.mark.slow
def test_a_frame_has_all_rows_in_types_of_arrow(shuffle):
    frame = shuffle.to_dask()
    found = frame.compute()
    assert_frame_equal(found, as_pandas(shuffle.to_table()))
    assert dict(frame.dtypes) == dict(found.dtypes)


@pytest.mark.slow
def test_each_subpartition_is_a_partition(shuffle):
    frame = shuffle.to_dask(partition_bytes=None)
    assert frame.npartitions == 16
    assert not frame.known_divisions
    for i in range(16):
        assert_frame_equal(
            frame.partitions[i].compute(), as_pandas(shuffle.subpartition(i).read_all())
        )


def test_partitions_are_adjacent_subpartitions(shuffle):
    frame = shuffle.to_dask([1, 2, 3, 9], ["k"], partition_bytes=600)
    assert 1 < frame.npartitions <= 4
    assert_frame_equal(
        frame.compute().reset_index(drop=True), as_pandas(shuffle.to_table([1, 2, 3, 9], ["k"]))
    )


@pytest.fixture
def columns_read(monkeypatch):
    seen = []
    read = dask_frame.read_partition

    def recorded(subpartitions, rows, columns):
        seen.append(tuple(columns))
        return read(subpartitions, rows, columns)

    monkeypatch.setattr(dask_frame, "read_partition", recorded)
    return seen


def test_a_query_reads_its_columns(shuffle, columns_read):
    frame = shuffle.to_dask()
    assert frame[frame.k < 10].number.sum().compute() == sum(i for i in range(10) if i % 7)
    assert frame.k.sum().compute() == 499_500
    assert [set(columns) for columns in columns_read] == [{"k", "number"}, {"k"}]


def test_a_filter_leaves_rows_in_the_shuffle(shuffle):
    frame = shuffle.to_dask(columns=["k"], filter="k IN (3, 5)")
    assert sorted(frame.compute().k) == [3, 5]
    assert shuffle.to_dask(filter="k = 3")._name != shuffle.to_dask(filter="k = 4")._name
    none = shuffle.to_dask(filter="k = -1")
    assert (none.npartitions, len(none), list(none.columns)) == (1, 0, TABLE.column_names)


def test_a_later_version_is_another_frame(shuffle):
    before = shuffle.to_dask()
    write_rows(shuffle.path, TABLE, "k", n=16, mode="append")
    after = open_shuffle(shuffle.path).to_dask()
    assert before._name != after._name
    assert (len(before), len(after)) == (1000, 2000)


def test_equal_keys_are_in_one_partition(shuffle):
    frame = shuffle.to_dask(columns=["k"], partition_bytes=500)
    rows = frame.map_partitions(lambda part: part.groupby("k").k.count().rename("n"))
    assert (rows.compute() == 1).all()


def test_bad_arguments(shuffle):
    with pytest.raises(OptionError, match="max_bytes='1MB'"):
        shuffle.to_dask(partition_bytes="1MB")
    with pytest.raises(OptionError, match="out of range"):
        shuffle.to_dask([16])


def test_damage_is_said(shuffle, tmp_path):
    (file,) = (tmp_path / "s").rglob("*.data")
    file.write_bytes(file.read_bytes()[:-4000] + b"?" * 4000)
    with pytest.raises(CorruptShuffleError):
        shuffle.to_dask().compute()
