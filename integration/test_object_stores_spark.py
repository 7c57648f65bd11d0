"""Shuffles in an object store through Spark, which tells nobody the secret.

Also run as a program, in a session that logs its events: it prints all that Spark and we tell.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq

import arrow_shuffle
from arrow_format import write_shuffle
from arrow_shuffle import open_shuffle
from integration.programs.ways import assert_same_rows
from tests.support.guarantees import guarantee
from tests.support.s3_server import KEY_ID, SECRET
from tests.support.spark_session import spark_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from tests.support.s3_server import S3Server

PROJECT = Path(__file__).resolve().parents[1]
N = 5
ROWS = 5_000


def count_rows(
    subpartition: int, reader: pa.RecordBatchReader, other: pa.RecordBatchReader
) -> Iterator[pa.RecordBatch]:
    num_rows = reader.read_all().num_rows
    assert other.read_all().num_rows == num_rows, subpartition
    yield pa.record_batch({"n": [num_rows]})


def show(frame: Any) -> None:
    """Print all that Spark tells of a DataFrame."""
    frame.explain(mode="extended")
    frame.explain(mode="formatted")
    print(frame, frame._jdf.queryExecution())


def show_error(call: Callable[[], Any], expected: str) -> None:
    try:
        call()
    except Exception:
        told = traceback.format_exc()
        assert expected in told, told
        print(told)
    else:
        msg = f"nothing was raised; expected {expected}"
        raise AssertionError(msg)


def main(directory: Path, bucket: str, given: dict[str, str]) -> None:
    """Write and read in every way, with success and without, and print what is told."""
    with spark_session(directory) as spark:
        df = spark.range(ROWS).selectExpr("id % 17 k", "id v")
        by_functions(spark, df, f"s3://{bucket}/functions", given)
        by_data_source(spark, df, f"s3://{bucket}/source", given)
        by_streams(spark, f"s3://{bucket}/source", directory, given)


def by_functions(spark: SparkSession, df: Any, path: str, given: dict[str, str]) -> None:
    arguments = {"keys": "k", "num_subpartitions": N, "storage_options": given}
    receipt = arrow_shuffle.write_shuffle(df, path, **arguments)
    print(receipt, repr(receipt))
    read = open_shuffle(path, storage_options=given).to_spark(spark)
    assert sorted(row.v for row in read.collect()) == list(range(ROWS))
    show(read)
    task = arrow_shuffle.ShuffleMapTask(path, schema=df.schema, **arguments)
    print(task, task.job)
    show(df.mapInArrow(task, task.status_schema))
    counts = (
        open_shuffle(path, storage_options=given)
        .map_subpartitions(count_rows, "n long", others=open_shuffle(path, storage_options=given))
        .to_spark(spark)
    )
    assert sum(row.n for row in counts.collect()) == ROWS
    show(counts)
    wrong = given | {"aws_access_key_id": "AKIDOFSOMEBODYELSE"}
    show_error(lambda: open_shuffle(path, storage_options=wrong).to_spark(spark), "403")
    gone = open_shuffle(path, storage_options=given).to_spark(spark)
    _remove_data(path, given)
    show_error(gone.collect, "ObjectNotFoundError")


def by_data_source(spark: SparkSession, df: Any, path: str, given: dict[str, str]) -> None:
    options = {f"storage.{name}": value for name, value in given.items()}
    writer = df.write.format("arrow_shuffle").options(keys="k", numSubpartitions=N, **options)
    writer.mode("append").save(path)
    read = spark.read.format("arrow_shuffle").options(**options).load(path)
    assert sorted(row.v for row in read.collect()) == list(range(ROWS))
    show(read)
    read.createOrReplaceTempView("read_of_it")
    listed = ", ".join(f"'{name}' '{value}'" for name, value in options.items())
    spark.sql(
        f"CREATE TEMPORARY VIEW it USING arrow_shuffle OPTIONS (path '{path}', {listed})"
    ).collect()
    assert spark.table("it").count() == ROWS
    print(spark.sql("EXPLAIN EXTENDED SELECT * FROM it").collect())
    print(spark.sql("DESCRIBE EXTENDED it").collect())
    wrong = options | {"storage.aws_access_key_id": "AKIDOFSOMEBODYELSE"}
    show_error(
        lambda: spark.read.format("arrow_shuffle").options(**wrong).load(path), "StorageError"
    )


def by_streams(spark: SparkSession, path: str, directory: Path, given: dict[str, str]) -> None:
    options = {f"storage.{name}": value for name, value in given.items()}

    def run(source: dict[str, str], sink: dict[str, str], checkpoint: str) -> Any:
        rows = spark.readStream.format("arrow_shuffle").options(**source).load(path)
        show(rows)
        writer = rows.writeStream.format("arrow_shuffle").options(keys="v", numSubpartitions=2)
        writer = writer.options(checkpointLocation=str(directory / checkpoint), **sink)
        query = writer.trigger(availableNow=True).start(f"{path}-streamed")
        query.awaitTermination(120)
        query.explain(extended=True)
        return query

    query = run(options, options, "one")
    assert [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]] == [ROWS]
    print(query.recentProgress, query.status)
    read = open_shuffle(f"{path}-streamed", storage_options=given).to_spark(spark)
    assert sorted(row.v for row in read.collect()) == list(range(ROWS))
    wrong = options | {"storage.aws_access_key_id": "AKIDOFSOMEBODYELSE"}
    show_error(lambda: run(options, wrong, "two"), "StorageError")


def _remove_data(path: str, given: dict[str, str]) -> None:
    from arrow_format.storage.open import open_storage

    storage = open_storage(path, given)
    for job in storage.list("map_outputs"):
        for name in storage.list(f"map_outputs/{job}"):
            if name.endswith(".data"):
                storage.delete(f"map_outputs/{job}/{name}")


@guarantee("no credentials anywhere")
def test_spark_writes_and_reads_and_tells_nobody_the_secret(s3: S3Server, tmp_path: Path):
    events = tmp_path / "events"
    events.mkdir()
    logged = (
        f"--conf spark.eventLog.enabled=true --conf spark.eventLog.dir={events.as_uri()} "
        "--conf spark.eventLog.compress=false pyspark-shell"
    )
    bucket = s3.new_bucket()
    done = subprocess.run(
        [sys.executable, "-m", "integration.test_object_stores_spark", str(tmp_path), bucket],
        input=json.dumps(s3.options),
        env=os.environ | {"PYSPARK_SUBMIT_ARGS": logged},
        capture_output=True,
        text=True,
        check=False,
        cwd=PROJECT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    log = "".join(file.read_text() for file in events.rglob("*") if file.is_file())
    for told in (done.stdout, log):
        assert f"arrow_shuffle s3://{bucket}/functions version 1" in told, "so it tells something"
    for told in (done.stdout, done.stderr, log):
        assert SECRET not in told
        assert SECRET.replace("/", "%2F").replace("+", "%2B") not in told


def by_environment(directory: Path, bucket: str, environment: dict[str, str]) -> None:
    """Write and read without any option: tasks find credentials in their executor's environment."""
    settings = {f"spark.executorEnv.{name}": value for name, value in environment.items()}
    path = f"s3://{bucket}/functions"
    with spark_session(directory, settings=settings) as spark:
        # Only now, so that neither the JVM nor what it starts inherits them: the driver's own.
        os.environ.update(environment)
        df = spark.range(ROWS).selectExpr("id % 17 k", "id v")
        seen = df.mapInArrow(environment_of_task, "key string, pid long").distinct().collect()
        assert {row.key for row in seen} == {KEY_ID}
        assert os.getpid() not in {row.pid for row in seen}, "tasks are processes of their own"
        arrow_shuffle.write_shuffle(df, path, keys="k", num_subpartitions=N)
        counts = (
            open_shuffle(path)
            .map_subpartitions(count_rows, "n long", others=open_shuffle(path))
            .to_spark(spark)
        )
        assert sum(row.n for row in counts.collect()) == ROWS
    print("tasks used their environment")


def environment_of_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        key = os.environ.get("AWS_ACCESS_KEY_ID", "none")
        yield pa.record_batch({"key": [key], "pid": [os.getpid()]})


@guarantee("executor credentials")
def test_tasks_take_credentials_from_their_own_environment(s3: S3Server, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "integration.test_object_stores_spark", str(tmp_path),
         s3.new_bucket(), "by environment"],
        input=json.dumps(s3.environment),
        env={name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        capture_output=True,
        text=True,
        check=False,
        cwd=PROJECT,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "tasks used their environment" in done.stdout
    # Spark hides what it takes for a secret where it tells its settings.
    assert SECRET not in done.stdout + done.stderr


def test_a_dataset_in_the_store_becomes_a_shuffle_in_the_store(spark: SparkSession, s3: S3Server):
    bucket = s3.new_bucket()
    files = pyarrow.fs.S3FileSystem(
        access_key=KEY_ID,
        secret_key=SECRET,
        endpoint_override=s3.url,
        scheme="http",
        region="us-east-1",
    )
    for part in range(3):
        numbers = range(part * 1_000, (part + 1) * 1_000)
        table = pa.table({"k": [i % 17 for i in numbers], "v": list(numbers)})
        with files.open_output_stream(f"{bucket}/table/part-{part}.parquet") as sink:
            pq.write_table(table, sink)
    dataset = ds.dataset(f"{bucket}/table", filesystem=files)
    path = f"s3://{bucket}/shuffle"
    arrow_shuffle.write_shuffle(
        dataset, path, keys="k", num_subpartitions=N, spark=spark, storage_options=s3.options
    )
    found = open_shuffle(path, storage_options=s3.options).to_spark(spark).toArrow()
    assert_same_rows(found, dataset.to_table())


@guarantee("idle streams")
def test_an_idle_stream_asks_the_store_seldom_and_stops_soon(
    spark: SparkSession, s3: S3Server, tmp_path: Path
):
    bucket = s3.new_bucket()
    path = f"s3://{bucket}/shuffle"
    write_shuffle(
        pa.table({"v": [1, 2, 3]}), path, num_subpartitions=N, keys="v", storage_options=s3.options
    )
    rows = spark.readStream.format("arrow_shuffle").options(
        **{f"storage.{name}": value for name, value in s3.options.items()}
    )
    query = (
        rows.load(path)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    with s3.requests(bucket) as requests:
        time.sleep(3)
    started = time.monotonic()
    query.stop()
    assert time.monotonic() - started < 5
    asked = [one for one in requests if "commit_log" in one.path]
    assert 2 <= len(asked) <= 12, "whether the next entry and the segment are there, each second"
    assert not [one for one in asked if "list-type=2" in one.path]


if __name__ == "__main__":
    run = by_environment if sys.argv[3:] == ["by environment"] else main
    run(Path(sys.argv[1]), sys.argv[2], json.load(sys.stdin))
