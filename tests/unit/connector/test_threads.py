"""Tasks of Spark have one thread each, unless the user says how many."""

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql.types import LongType, StructType

from arrow_format import WriteOptions
from arrow_format.ingest.scan import plan_scan
from arrow_format.keys.partitioner import HashPartitioner
from connector.map_task import ShuffleMapTask
from connector.source.stream_writer import ShuffleStreamWriter
from connector.source.writer import ShuffleSourceWriter
from connector.write import begin_scan_job

SCHEMA = StructType().add("k", LongType())


def of_frame(path, threads):
    options = None if threads is None else WriteOptions(threads=threads)
    return ShuffleMapTask(path, schema=SCHEMA, num_subpartitions=2, keys="k", options=options).job


def of_dataset(path, threads, **columns):
    ds.write_dataset(pa.table({"k": [1], **columns}), path / "source", format="feather")
    scan = plan_scan(ds.dataset(path / "source", format="feather"), parallelism=1)
    return begin_scan_job(
        path / "x", scan.schema, num_subpartitions=2, partitioner=HashPartitioner("k"),
        options=WriteOptions(threads=threads),
    )  # fmt: skip


def of_columns_that_spark_lacks(path, threads):
    return of_dataset(path, threads, h=pa.array([None], pa.month_day_nano_interval()))


def given(path, threads):
    options = {"path": str(path), "keys": "k", "numSubpartitions": "2"}
    return options if threads is None else {**options, "threads": str(threads)}


def of_source(path, threads):
    return ShuffleSourceWriter(given(path, threads), SCHEMA, overwrite=False)._job


def of_stream(path, threads):
    return ShuffleStreamWriter(given(path, threads), SCHEMA, overwrite=False)._job


@pytest.mark.parametrize(
    "job_of", [of_frame, of_dataset, of_columns_that_spark_lacks, of_source, of_stream]
)
@pytest.mark.parametrize(("threads", "expected"), [(None, 1), (1, 1), (3, 3)])
def test_threads_of_tasks(tmp_path, job_of, threads, expected):
    assert job_of(tmp_path, threads).options.threads == expected
