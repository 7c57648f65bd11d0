"""Where a write runs, and how many subpartitions it makes where the session says it."""

import warnings

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import arrow_shuffle
import arrow_shuffle.write
from arrow_format import OptionError, SchemaError, WriteOptions, open_shuffle
from tests.support.small_shuffles import files_below
from tests.support.spark_session import spark_settings

pytestmark = pytest.mark.spark
FAST = WriteOptions(sync=False)
ROWS = pa.table({"k": list(range(500)), "s": [f"{i % 7}" for i in range(500)]})


@pytest.fixture
def files(tmp_path):
    pq.write_table(ROWS, tmp_path / "rows.parquet", row_group_size=50)
    return ds.dataset(tmp_path / "rows.parquet")


def write(source, path, **how):
    return arrow_shuffle.write_shuffle(source, path, **{"keys": "k", "options": FAST} | how)


@pytest.mark.parametrize("keys", [["k"], ["s", "k"]])
def test_a_frame_without_a_number_lies_where_repartition_puts_it(spark, tmp_path, keys):
    frame = spark.createDataFrame(ROWS.to_pandas())
    settings = {"spark.sql.shuffle.partitions": "13", "spark.sql.adaptive.enabled": "false"}
    with spark_settings(spark, settings):
        receipt = write(frame, tmp_path / "s", keys=keys)
        placed = frame.repartition(*[F.col(key) for key in keys])
        theirs = {
            row.k: row.i for row in placed.select("k", F.spark_partition_id().alias("i")).collect()
        }
    assert receipt.num_subpartitions == 13
    assert receipt.notes[0].startswith("13 subpartitions, as spark.sql.shuffle.partitions says; by")
    assert receipt.notes[0].endswith("num_subpartitions=1 would have been better")
    shuffle = open_shuffle(tmp_path / "s")
    ours = {k: i for i in range(13) for k in shuffle.subpartition(i).read_all()["k"].to_pylist()}
    assert ours == theirs


def test_a_frame_that_is_written_again_keeps_the_number(spark, tmp_path):
    frame = spark.range(100).withColumnRenamed("id", "k")
    with spark_settings(spark, {"spark.sql.shuffle.partitions": "3"}):
        write(frame, tmp_path / "s")
    with spark_settings(spark, {"spark.sql.shuffle.partitions": "8"}):
        for mode in ("append", "overwrite"):
            receipt = write(frame, tmp_path / "s", mode=mode)
            assert (receipt.num_subpartitions, receipt.notes) == (3, ())


def test_files_without_a_number_have_one_by_their_bytes(spark, tmp_path, files):
    receipt = write(files, tmp_path / "s", spark=spark, num_map_tasks=3)
    assert (receipt.num_map_outputs, receipt.num_subpartitions) == (3, 1)
    assert receipt.notes[0].startswith("1 subpartition, by ")


def test_files_are_written_here_unless_a_session_is_given(spark, tmp_path, files):
    here = write(files, tmp_path / "here")
    assert here.where == "in this process"
    assert str(here).startswith("in this process: shuffle ")
    assert "in this process" in here._repr_html_()
    assert here.num_map_outputs == 1
    for name, session in (("given", spark), ("active", True)):
        there = write(files, tmp_path / name, spark=session, num_map_tasks=2)
        assert (there.where, there.num_map_outputs) == ("", 2)
        assert str(there).startswith("shuffle ")
        kept = arrow_shuffle.open_shuffle(tmp_path / name)
        appended = kept.append(files, spark=session, num_map_tasks=2, options=FAST)
        assert (appended.where, appended.num_map_outputs) == ("", 2)
    tables = [open_shuffle(tmp_path / name).to_table() for name in ("here", "given", "active")]
    assert tables[1].schema == tables[2].schema == tables[0].schema
    assert tables[0].num_rows == 500
    here = arrow_shuffle.open_shuffle(tmp_path / "here")
    assert here.append(files).where == "in this process"


def test_rows_that_are_larger_than_memory_are_warned_of(spark, tmp_path, files, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write(files, tmp_path / "one")
    monkeypatch.setattr(arrow_shuffle.write, "_memory", lambda: 1000)
    with pytest.warns(UserWarning, match=r"written in this process, on .* 1\.0 kB .*spark=True"):
        write(files, tmp_path / "two")


def test_what_tasks_cannot_write_is_refused(spark, path, files):
    with pytest.raises(SchemaError, match=r"source is pyarrow Table: .*leave spark out"):
        write(ROWS, path, spark=spark)
    with pytest.raises(SchemaError, match="source is pyarrow InMemoryDataset: "):
        write(ds.dataset(ROWS), path, spark=True)
    for source in (files, spark.range(3).withColumnRenamed("id", "k")):
        with pytest.raises(OptionError, match="for_spark=False: only where this process writes"):
            write(source, path, spark=spark, for_spark=False)
    with pytest.raises(OptionError, match=r"columns: only for a pyarrow dataset; use df\.select"):
        write(spark.range(3).withColumnRenamed("id", "k"), path, columns=["k"])
    assert files_below(path) == []
