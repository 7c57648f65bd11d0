"""Result types on the main path: writers, batch and stream consumers, applications that die."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

import arrow_shuffle
from arrow_format import ResultPartitionType, WriteOptions, collect_garbage, release_shuffle
from arrow_format.errors import (
    BackPressureTimeoutError,
    OptionError,
    RequestTimeoutError,
    ResultReleasedError,
    ShuffleNotFoundError,
)
from arrow_format.storage.open import open_storage
from arrow_shuffle import open_shuffle
from connector.spark_version import ADMISSION_CONTROL
from tests.support import spark_versions
from tests.support.consumers import ConsumerRegistry
from tests.support.exhaustive import exhaustive
from tests.support.guarantees import guarantee
from tests.support.spark_session import QUICK_START

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[1]
N = 4


def write_by_function(df, path, **options):
    arrow_shuffle.write_shuffle(
        df,
        path,
        num_subpartitions=N,
        keys="k",
        mode="append",
        options=WriteOptions(sync=False, **options),
    )


def write_by_hook(df, path, **options):
    task = arrow_shuffle.ShuffleMapTask(
        path,
        schema=df.schema,
        num_subpartitions=N,
        keys="k",
        options=WriteOptions(sync=False, **options),
    )
    statuses = df.mapInArrow(task, task.status_schema).collect()
    arrow_shuffle.commit_shuffle(task, statuses, mode="append")


def camel(name):
    first, *rest = name.split("_")
    return first + "".join(map(str.title, rest))


def write_by_data_source(df, path, **options):
    writer = df.write.format("arrow_shuffle").option("keys", "k").option("numSubpartitions", N)
    for name, value in options.items():
        text = f"{value}s" if name == "back_pressure_timeout" else value
        writer = writer.option(camel(name), text)
    writer.mode("append").save(str(path))


def numbers(spark, start, end):
    return spark.range(start, end, 1, 2).withColumnRenamed("id", "k")


def values(df):
    return sorted(row.k for row in df.select("k").collect())


def data_files(path):
    return list(path.glob("map_outputs/*/*"))


@pytest.mark.parametrize(
    ("write", "kinds"),
    [
        (write_by_data_source, list(ResultPartitionType)),
        (write_by_function, [ResultPartitionType.BLOCKING]),
        (write_by_hook, [ResultPartitionType.PIPELINED]),
    ],
)
def test_every_writer_makes_results_and_consumers_keep_to_their_type(spark, tmp_path, write, kinds):
    for kind in kinds:
        path = tmp_path / kind.name
        write(numbers(spark, 0, 10), path, result_type=kind.name)
        write(numbers(spark, 10, 15), path)
        assert open_shuffle(path).result.type is kind
        with arrow_shuffle.consume(path, consumer="a") as consumption:
            assert values(consumption.shuffle.to_spark(spark)) == list(range(15))
        if kind is ResultPartitionType.BLOCKING:
            with pytest.raises(Exception, match=r"(?s)ResultReleasedError.*consumed by a"):
                spark.read.format("arrow_shuffle").load(str(path)).collect()
            assert not data_files(path)
        elif kind.is_pipelined:
            with pytest.raises(RequestTimeoutError):
                arrow_shuffle.consume(path, consumer="a")
            write(numbers(spark, 15, 20), path)
            with arrow_shuffle.consume(path, consumer="a") as consumption:
                assert values(consumption.shuffle.select("k").to_spark(spark)) == list(
                    range(15, 20)
                )
        else:
            with arrow_shuffle.consume(path, consumer="a") as consumption:
                assert values(consumption.shuffle.to_spark(spark)) == list(range(15))


def test_a_consumption_that_fails_is_repeated(spark, tmp_path):
    path = tmp_path / "s"
    write_by_function(numbers(spark, 0, 5), path, result_type="PIPELINED")
    with pytest.raises(KeyError), arrow_shuffle.consume(path, consumer="a") as one:
        raise KeyError(values(one.shuffle.to_spark(spark)))
    with arrow_shuffle.consume(path, consumer="a") as again:
        assert values(again.shuffle.to_spark(spark)) == [0, 1, 2, 3, 4]


def test_nothing_new_is_an_empty_result_where_that_is_allowed(spark, tmp_path):
    path = tmp_path / "s"
    write_by_function(numbers(spark, 0, 5), path, result_type="PIPELINED")
    for expected in ([0, 1, 2, 3, 4], [], []):
        with arrow_shuffle.consume(path, consumer="a", allow_empty=True) as consumption:
            assert values(consumption.shuffle.to_spark(spark)) == expected
            assert consumption.shuffle.to_spark(spark, coalesce=False).columns == ["k"]
    with pytest.raises(RequestTimeoutError):
        arrow_shuffle.consume(path, consumer="a")


@pytest.mark.parametrize("wait", ["0s", "300ms"])
def test_a_consumer_at_a_mistyped_path_leaves_nothing(spark, tmp_path, wait):
    path = tmp_path / "mistyped"
    with pytest.raises(ShuffleNotFoundError):
        arrow_shuffle.consume(path, consumer="a", request_timeout=wait)
    rows = spark.readStream.format("arrow_shuffle").schema("k bigint").option("consumer", "a")
    sink = rows.option("requestTimeout", wait).load(str(path)).writeStream.format("noop")
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(Exception, match="holds no committed shuffle"):
        query.awaitTermination(60)
    deadline = time.monotonic() + 10  # the source is stopped behind the query
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not path.exists()


@guarantee("back pressure")
@pytest.mark.parametrize("write", [write_by_hook, write_by_data_source])
def test_a_bounded_result_holds_its_producer_back(spark, tmp_path, write):
    path = tmp_path / "s"
    bounds = {"result_type": "PIPELINED_BOUNDED", "max_unconsumed_versions": 1}
    ConsumerRegistry(open_storage(path)).register("slow", 0)
    write(numbers(spark, 0, 5), path, **bounds)
    with pytest.raises(Exception, match="waited 1 s for consumer 'slow'") as found:
        write(numbers(spark, 5, 9), path, **bounds, back_pressure_timeout=1)
    assert isinstance(found.value, BackPressureTimeoutError) or "BackPressureTimeoutError" in str(
        found.value
    )
    # Data and index of two map tasks. What the hook wrote stays for another try of the commit.
    if write is not write_by_hook:
        assert len(data_files(path)) == 4

    def consume_late():
        time.sleep(2)
        with arrow_shuffle.consume(path, consumer="slow") as consumption:
            seen.extend(values(consumption.shuffle.to_spark(spark)))

    seen, began = [], time.monotonic()
    consumer = threading.Thread(target=consume_late)
    consumer.start()
    write(numbers(spark, 5, 9), path, **bounds, back_pressure_timeout=60)
    assert time.monotonic() - began > 2
    consumer.join(60)
    assert seen == [0, 1, 2, 3, 4]
    with arrow_shuffle.consume(path, consumer="slow") as consumption:
        assert values(consumption.shuffle.to_spark(spark)) == [5, 6, 7, 8]


def test_a_read_may_ask_before_the_producer_is_there(spark, tmp_path):
    path = tmp_path / "s"
    source = spark.read.format("arrow_shuffle").option("requestTimeout", "60s")
    found = []
    asking = threading.Thread(target=lambda: found.append(values(source.load(str(path)))))
    asking.start()
    time.sleep(1.5)
    write_by_function(numbers(spark, 0, 3), path)
    asking.join(60)
    assert found == [[0, 1, 2]]
    with pytest.raises(
        Exception, match=r"(?s)RequestTimeoutError.*no committed shuffle after 0\.2 s"
    ):
        source.option("requestTimeout", "200ms").load(str(tmp_path / "never"))


@exhaustive(but="name, value, expected")
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("resultType", "EPHEMERAL", "one of BLOCKING_PERSISTENT, BLOCKING, PIPELINED, PIPELINED"),
        ("maxUnconsumedVersions", "3", "option maxUnconsumedVersions='3': only a result of type"),
        ("backPressureTimeout", "soon", "option backPressureTimeout='soon'"),
    ],
)
def test_bad_options_of_writes_are_named(spark, tmp_path, name, value, expected):
    writer = numbers(spark, 0, 3).write.format("arrow_shuffle").mode("append")
    writer = writer.option("keys", "k").option("numSubpartitions", N).option(name, value)
    with pytest.raises(Exception, match=expected):
        writer.save(str(tmp_path / "s"))
    assert not (tmp_path / "s").exists()


@exhaustive(but="name, value, expected")
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("consumer", "a b", "consumer='a b': expected 1 to 100 letters"),
        ("consumer", "a", "a batch read cannot know when its rows have been consumed"),
        ("requestTimeout", "-1", "option requestTimeout='-1'"),
    ],
)
def test_bad_options_of_reads_are_named(spark, tmp_path, name, value, expected):
    path = tmp_path / "s"
    write_by_function(numbers(spark, 0, 3), path)
    with pytest.raises(Exception, match=expected):
        spark.read.format("arrow_shuffle").option(name, value).load(str(path)).collect()


def test_an_append_of_another_type_is_refused(spark, tmp_path):
    path = tmp_path / "s"
    write_by_function(numbers(spark, 0, 3), path, result_type="PIPELINED")
    with pytest.raises(OptionError, match="the existing result is PIPELINED"):
        write_by_function(numbers(spark, 3, 5), path, result_type="BLOCKING")
    with pytest.raises(Exception, match="the existing result is PIPELINED"):
        write_by_data_source(numbers(spark, 3, 5), path, result_type="BLOCKING")
    assert values(open_shuffle(path).to_spark(spark)) == [0, 1, 2]


def test_a_released_result_may_be_written_anew(spark, tmp_path):
    path = tmp_path / "s"
    write_by_data_source(numbers(spark, 0, 3), path)
    assert release_shuffle(path)
    with pytest.raises(ResultReleasedError, match="released by name"):
        open_shuffle(path).to_spark(spark)
    other = spark.range(4).select(F.col("id").alias("k"), F.lit("x").alias("s"))
    write_by_data_source(other, path)
    assert values(open_shuffle(path).to_spark(spark)) == [0, 1, 2, 3]


APPLICATION = """
import sys, time
from pyspark.sql import SparkSession
import arrow_shuffle
from arrow_format import WriteOptions
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.sql.artifact.isolation.enabled", "false")
    .config("spark.driver.extraJavaOptions", sys.argv[2]).getOrCreate()
)
df = spark.range(5).withColumnRenamed("id", "k")
arrow_shuffle.write_shuffle(df, sys.argv[1] + "/function", num_subpartitions=2, keys="k",
                        options=WriteOptions(result_type="BLOCKING"))
(df.write.format("arrow_shuffle").option("keys", "k").option("numSubpartitions", 2)
   .option("resultType", "BLOCKING").mode("append").save(sys.argv[1] + "/source"))
print("ready", flush=True)
time.sleep(600)
"""


@guarantee("blocking results")
def test_results_of_a_dead_application_are_found_by_gc(tmp_path):
    # Nothing of the session of the other tests, which may have been told of a cluster or a server.
    own = ("SPARK_", "PYSPARK_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", APPLICATION, str(tmp_path), QUICK_START],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        start_new_session=True,
    ) as application:
        try:
            assert application.stdout.readline() == "ready\n"
            for name in ("function", "source"):
                collect_garbage(tmp_path / name)
                assert open_shuffle(tmp_path / name).num_rows == 5
        finally:
            os.killpg(application.pid, signal.SIGKILL)
    for name in ("function", "source"):
        path = tmp_path / name
        deadline = time.monotonic() + 20
        while data_files(path) and time.monotonic() < deadline:
            collect_garbage(path)
            time.sleep(0.2)
        with pytest.raises(ResultReleasedError, match="the application that made it has ended"):
            open_shuffle(path)
        assert not data_files(path)


# Streams


def follow(spark, path, target, checkpoint, consumer, **options):
    source = spark.readStream.format("arrow_shuffle").option("consumer", consumer)
    for name, value in options.items():
        source = source.option(name, value)
    query = (
        source.load(str(path))
        .writeStream.format("arrow_shuffle")
        .option("keys", "k")
        .option("numSubpartitions", N)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(target))
    )
    query.awaitTermination()


@guarantee("consumed once")
@spark_versions.ADMISSION_CONTROL
def test_a_stream_consumes_each_version_once_and_lets_them_go(spark, tmp_path):
    path = tmp_path / "s"
    for start in range(0, 30, 10):
        write_by_function(numbers(spark, start, start + 10), path, result_type="PIPELINED")
    follow(spark, path, tmp_path / "out", tmp_path / "c1", "a", maxVersionsPerTrigger=1)
    assert values(open_shuffle(tmp_path / "out").to_spark(spark)) == list(range(30))
    assert ConsumerRegistry(open_storage(path)).progress("a") == 3
    write_by_function(numbers(spark, 30, 40), path)
    # Another query of the same name goes on where the first has stopped.
    follow(spark, path, tmp_path / "rest", tmp_path / "c2", "a")
    assert values(open_shuffle(tmp_path / "rest").to_spark(spark)) == list(range(30, 40))
    follow(spark, path, tmp_path / "all", tmp_path / "c3", "b")
    assert values(open_shuffle(tmp_path / "all").to_spark(spark)) == list(range(40))


@pytest.mark.skipif(ADMISSION_CONTROL, reason="this PySpark tells that a batch has ended")
def test_a_stream_that_could_not_release_a_result_is_refused(spark, tmp_path):
    write_by_function(numbers(spark, 0, 10), tmp_path / "s", result_type="BLOCKING")
    with pytest.raises(StreamingQueryException, match=r"arrow_shuffle.consume, or use PySpark 4.2"):
        follow(spark, tmp_path / "s", tmp_path / "out", tmp_path / "c", "a")
    assert open_shuffle(tmp_path / "s").to_spark(spark).count() == 10


@spark_versions.ADMISSION_CONTROL
def test_a_blocking_result_goes_when_a_stream_has_consumed_it(spark, tmp_path):
    path = tmp_path / "s"
    write_by_function(numbers(spark, 0, 10), path, result_type="BLOCKING")
    follow(spark, path, tmp_path / "out", tmp_path / "c", "a")
    assert values(open_shuffle(tmp_path / "out").to_spark(spark)) == list(range(10))
    with pytest.raises(ResultReleasedError, match="consumed by a"):
        open_shuffle(path).to_spark(spark)


def test_a_second_query_of_the_name_is_refused_while_the_first_runs(spark, tmp_path):
    path = tmp_path / "s"
    write_by_function(numbers(spark, 0, 3), path, result_type="PIPELINED")
    first = (
        spark.readStream.format("arrow_shuffle")
        .option("consumer", "a")
        .load(str(path))
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "c1"))
        .start()
    )
    try:
        first.processAllAvailable()
        with pytest.raises(Exception, match=r"(?s)ConsumerError.*is held by process"):
            follow(spark, path, tmp_path / "out", tmp_path / "c2", "a")
        follow(spark, path, tmp_path / "out", tmp_path / "c3", "b")
    finally:
        first.stop()
    write_by_function(numbers(spark, 3, 5), path)
    follow(spark, path, tmp_path / "rest", tmp_path / "c4", "a", requestTimeout="30s")


def test_a_stream_asks_before_the_producer_is_there(spark, tmp_path):
    path = tmp_path / "s"
    out = tmp_path / "out"

    def produce_late():
        time.sleep(1)
        write_by_function(numbers(spark, 0, 3), path, result_type="PIPELINED")

    producer = threading.Thread(target=produce_late)
    producer.start()
    follow(spark, path, out, tmp_path / "c", "a", requestTimeout="60s")
    producer.join(60)
    assert values(open_shuffle(out).to_spark(spark)) == [0, 1, 2]


def test_a_stream_holds_back_a_stream(spark, tmp_path):
    path = tmp_path / "s"
    source = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
    producer = (
        source.withColumnRenamed("value", "k")
        .writeStream.format("arrow_shuffle")
        .option("keys", "k")
        .option("numSubpartitions", N)
        .option("resultType", "PIPELINED_BOUNDED")
        .option("maxUnconsumedVersions", 2)
        .option("checkpointLocation", str(tmp_path / "c1"))
        .trigger(processingTime="200 milliseconds")
        .start(str(path))
    )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(0.5)
            # The first batch of a stream may be under way.
            with contextlib.suppress(ShuffleNotFoundError):
                if open_shuffle(path).version == 2:
                    break
        time.sleep(1.5)
        assert open_shuffle(path).version == 2
        with arrow_shuffle.consume(path, consumer="a") as consumption:
            seen = values(consumption.shuffle.to_spark(spark))
        while open_shuffle(path).version == 2 and time.monotonic() < deadline:
            time.sleep(0.2)
        with arrow_shuffle.consume(path, consumer="a", request_timeout="30s") as consumption:
            seen += values(consumption.shuffle.to_spark(spark))
        assert seen == list(range(len(seen)))
    finally:
        producer.stop()
