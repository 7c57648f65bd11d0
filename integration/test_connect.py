"""One program on a classic session and through Spark Connect: the same rows, the same errors."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pytest
from pyspark.sql import functions as F

import arrow_shuffle
from arrow_format import MergePolicy, RangePartitioner
from arrow_format.options import MERGE_BY
from arrow_shuffle import open_shuffle
from integration.programs.datasets import NUM_FLIGHTS, flights
from integration.programs.other_sessions import connect_session, printed_by
from integration.programs.ways import WAYS
from tests.support.spark_session import spark_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

N = 8

Found = dict[str, Any]

pytestmark = [pytest.mark.spark, pytest.mark.together]


def program(spark: SparkSession, directory: Path) -> Found:
    """Write in every way and read in every way; what was found, as JSON."""
    df = spark.range(0, 5_000, 1, 2).selectExpr(
        "id % 700 AS k",
        "cast(id AS decimal(20, 3)) AS d",
        "timestamp_seconds(id * 86400) AS t",
        "if(id % 5 = 0, NULL, concat('é ', id)) AS s",
        "map('x', array(named_struct('y', id))) AS m",
    )
    found: Found = {"schema": df.schema.json()}
    for name, write in WAYS.items():
        path = directory / name.replace(".", "-")
        write(df, path, ["k", "s"], N)
        found[f"written by {name}"] = digest(
            open_shuffle(path).to_spark(spark, with_subpartition=True)
        )
        shuffle = open_shuffle(path)
        found[f"stored by {name}"] = [shuffle.num_rows, shuffle.subpartition_rows.to_pylist()]

    path = directory / "mapInArrow"
    source = spark.read.format("arrow_shuffle")
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW shuffle USING arrow_shuffle "
        f"OPTIONS (path '{path}', withSubpartition 'true')"
    )
    spark.sql("CREATE TABLE connect_t (k BIGINT) USING arrow_shuffle")
    spark.sql(
        f"INSERT INTO connect_t WITH (path '{directory}/table', keys 'k', numSubpartitions '3') "
        "SELECT k FROM shuffle"
    )
    ways_of_reading: dict[str, Callable[[], DataFrame]] = {
        "columns": lambda: open_shuffle(path).select("s", "k").to_spark(spark),
        "one": lambda: open_shuffle(path).select(subpartitions=3).to_spark(spark),
        "apart": lambda: (
            open_shuffle(path)
            .select(subpartitions=range(2, 6))
            .to_spark(spark, coalesce=False, with_subpartition=True)
        ),
        "load": lambda: source.load(str(path)),
        "schema": lambda: (
            spark.read.format("arrow_shuffle").schema("d decimal(20,3)").load(str(path))
        ),
        "options": lambda: (
            spark.read.format("arrow_shuffle")
            .options(subpartitions="1,4-6", coalesce="false")
            .load(str(path))
        ),
        "view": lambda: spark.sql("SELECT * FROM shuffle WHERE _subpartition > 4"),
        "table": lambda: spark.sql(f"SELECT * FROM connect_t WITH (path '{directory}/table')"),
    }
    for name, read in ways_of_reading.items():
        found[name] = digest(read())

    alike = [directory / name for name in ("Alike", "alike")]
    for path_alike, num_rows in zip(alike, (10, 5), strict=True):
        rows = spark.range(num_rows)
        arrow_shuffle.write_shuffle(rows, path_alike, keys="id", num_subpartitions=2)
    frames = [open_shuffle(path_alike).to_spark(spark) for path_alike in alike]
    found["alike"] = [frames[0].unionAll(frames[1]).count(), *(df.count() for df in frames)]
    replaced = open_shuffle(alike[0]).to_spark(spark)
    shutil.rmtree(alike[0])
    arrow_shuffle.write_shuffle(spark.range(7), alike[0], keys="id", num_subpartitions=2)
    found["replaced"] = "version 1 is another one than when" in said(replaced.collect)
    found["again"] = open_shuffle(alike[0]).to_spark(spark).count()

    keys = ["k", ("t", "descending")]
    ranges = directory / "ranges"
    arrow_shuffle.write_shuffle(
        df, ranges, partitioner=RangePartitioner(keys=keys), num_subpartitions=N, sort_by=keys
    )
    in_order = open_shuffle(ranges).select("k", "t").to_spark(spark)
    found["in order"] = [str(row) for row in in_order.collect()]
    found["ranges"] = open_shuffle(ranges).partitioner.describe()
    found["mapped"] = digest(
        open_shuffle(path)
        .select("s", "t", "d", "k", "m")
        .map_subpartitions(lambda i, rows: rows, df.schema)
        .to_spark(spark)
    )
    rows = open_shuffle(path).map_subpartitions(number_of_rows, "n bigint").to_spark(spark)
    found["numbers"] = [row.n for row in rows.collect()]
    found["joined"] = digest(
        open_shuffle(path).select("d").join(open_shuffle(path).select("t")).to_spark(spark)
    )
    found["aggregated"] = digest(
        open_shuffle(path).aggregate(["k", "s"], [("d", "max"), ([], "count_all")]).to_spark(spark)
    )
    grouped = (
        open_shuffle(path).map_groups(latest, "k bigint, at timestamp, n long").to_spark(spark)
    )
    found["grouped"] = digest(grouped)
    kept = (
        open_shuffle(path)
        .select("d")
        .join(open_shuffle(path).select("t"))
        .write(directory / "kept", spark=spark)
    )
    found["kept"] = [kept.num_rows, digest(open_shuffle(directory / "kept").to_spark(spark))]
    appended = open_shuffle(directory / "kept").append(df.select("t", "s", "d", "k"))
    found["appended"] = [appended.version, appended.num_rows, appended.num_subpartitions]
    merged = directory / "merged"
    for mode in ("errorifexists", "append"):
        arrow_shuffle.write_shuffle(
            df, merged, keys="s", num_subpartitions=N, sort_by=["t"], mode=mode
        )
    found["before merges"] = digest(open_shuffle(merged).to_spark(spark, with_subpartition=True))
    for by in MERGE_BY:
        report = open_shuffle(merged).merge(
            by=by, policy=MergePolicy(rewrite="always"), spark=spark
        )
        rows = open_shuffle(merged).to_spark(spark, with_subpartition=True)
        found[f"merged by {by}"] = [report.version, *report.num_map_outputs, digest(rows)]
    sums = directory / "sums"
    arrow_shuffle.write_shuffle(
        df.select("k", "d"), sums, keys="k", num_subpartitions=N, combine={"d": "sum"}
    )
    completed = open_shuffle(sums).aggregate(["k"], [("d", "sum")]).to_spark(spark)
    found["combined"] = [open_shuffle(sums).num_rows, digest(completed)]
    found["summed"] = digest(df.groupBy("k").agg(F.sum("d").alias("d_sum")))
    spark.sql("DROP TABLE connect_t")

    lane = arrow_shuffle.write_shuffle(
        pyarrow.dataset.dataset(flights()),
        directory / "lane",
        keys="dest",
        num_subpartitions=N,
        spark=spark,
    )
    rows = open_shuffle(directory / "lane").to_spark(spark, with_subpartition=True)
    found["lane"] = [
        lane.num_map_outputs,
        rows.drop("_subpartition").schema.json(),
        digest(rows),
    ]

    stream = spark.readStream.format("arrow_shuffle").option("subpartitions", "2-6")
    query = (
        stream.load(str(path))
        .writeStream.format("arrow_shuffle")
        .options(keys="s", numSubpartitions=3, checkpointLocation=str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "streamed"))
    )
    query.awaitTermination(120)
    found["streamed"] = digest(open_shuffle(directory / "streamed", 1).to_spark(spark))

    append = arrow_shuffle.foreach_batch(
        str(directory / "batches"), keys="s", num_subpartitions=3, application="batches"
    )
    for number in range(2):  # the second query writes its batch again
        checkpoint = directory / f"checkpoint-{number}"
        writer = stream.load(str(path)).writeStream.foreachBatch(append)
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        in_time(writer.start).awaitTermination(120)
    batches = open_shuffle(directory / "batches").to_spark(spark)
    found["batches"] = [open_shuffle(directory / "batches").version, digest(batches)]
    query = (
        stream.load(str(path))
        .writeStream.format("arrow_shuffle")
        .options(keys="s", numSubpartitions=3, checkpointLocation=str(directory / "checkpoint-2"))
        .option("flush.maxInterval", "1h")
        .trigger(availableNow=True)
        .start(str(directory / "flushed"))
    )
    flushed = arrow_shuffle.flush_when_done(query, directory / "flushed").result(120)
    assert flushed is not None
    rows = open_shuffle(directory / "flushed").to_spark(spark)
    found["flushed"] = [flushed.num_rows, digest(rows)]
    keys_of_stream = open_shuffle(directory / "streamed", 1).to_spark(spark).select("s")
    found["keys of stream"] = keys_of_stream.distinct().count()

    receipt = arrow_shuffle.write_shuffle(
        df, path, keys=["k", "s"], num_subpartitions=N, mode="append"
    )
    found["receipt"] = [receipt.version, receipt.num_rows, receipt.num_map_outputs]
    found["errors"] = [
        said(lambda: arrow_shuffle.write_shuffle(df, path, keys="k", num_subpartitions=N)),
        said(lambda: arrow_shuffle.write_shuffle(df, path / "x", keys="no", num_subpartitions=N)),
        said(lambda: open_shuffle(path).select(subpartitions=N).to_spark(spark)),
        said(lambda: open_shuffle(directory / "nowhere").to_spark(spark)),
    ]
    return found


def in_time(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query; again where a busy machine takes more than the 10 s that a worker is given."""
    for _ in range(5):
        try:
            return start()
        except Exception as error:
            if "waiting for the Python worker to connect back" not in str(error):
                raise
    return start()


def number_of_rows(_: int, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"n": [sum(batch.num_rows for batch in reader)]})


def latest(key: tuple[Any, ...], frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"at": [frame["t"].max()], "n": [len(frame)], "k": [key[0]]})


def digest(df: DataFrame) -> list[Any]:
    """Columns, number of rows, and a sum over all values, made by Spark."""
    columns = ", ".join(f"`{name}`" for name in df.columns if name != "m")
    maps = ", m['x'][0].y" if "m" in df.columns else ""
    row = (
        df.selectExpr(f"xxhash64({columns}{maps}) AS h")
        .selectExpr("count(*)", "bit_xor(h)", "sum(cast(h AS decimal(30)))")
        .first()
    )
    assert row is not None
    return [df.columns, row[0], row[1], str(row[2])]


def said(act: Callable[[], object]) -> str:
    try:
        act()
    except Exception as error:  # whatever it is, its name is compared
        return f"{type(error).__name__}: {error}"
    return "nothing"


def compared(spark: SparkSession, written: Path) -> Found:
    """What a session without Connect finds in the shuffles written through it, and in their source.

    Parameters
    ----------
    written
        The directory that :func:`program` had.
    """
    df = spark.read.parquet(str(flights()))
    moved = df.repartition(N, "dest").withColumn("_subpartition", F.spark_partition_id())
    read = {}
    for name in WAYS:
        path = written / name.replace(".", "-")
        assert open_shuffle(path).verify().ok
        first = open_shuffle(path, 1).to_spark(spark, with_subpartition=True)
        read[f"written by {name}"] = digest(first)
    return {"flights": [df.schema.json(), digest(moved)], "read": read}


def through_connect(directory: Path, scratch: Path) -> Found:
    """Run the program through Spark Connect."""
    with connect_session(scratch) as spark:
        assert type(spark).__module__ == "pyspark.sql.connect.session"
        return program(spark, directory)


def without_connect(directory: Path, scratch: Path, written: Path) -> Found:
    """Run the program in a classic session, which looks at what was written through Connect too."""
    with spark_session(scratch) as spark:
        return program(spark, directory) | compared(spark, written)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the shuffles are that are written through Connect."""
    return tmp_path_factory.mktemp("shuffles")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, written: Path) -> Found:
    """What the program found through Connect."""
    return printed_by(
        "integration.test_connect", "connect", written, tmp_path_factory.mktemp("connect")
    )


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where those are that are written without."""
    return tmp_path_factory.mktemp("shuffles")


@pytest.fixture(scope="module")
def classic(
    tmp_path_factory: pytest.TempPathFactory, other: Path, written: Path, found: Found
) -> Found:
    """What it found without."""
    assert found, "they are written"
    scratch = tmp_path_factory.mktemp("classic")
    return printed_by("integration.test_connect", "classic", other, scratch, written)


def test_the_same_program_finds_the_same(found: Found, classic: Found, written: Path, other: Path):
    # Their paths differ, and only those.
    errors = [text.replace(str(other), str(written)) for text in classic["errors"]]
    expected = {name: classic[name] for name in found} | {"errors": errors}
    assert found == expected


def test_what_was_found_is_right(found: Found):
    columns = ["k", "d", "t", "s", "m"]
    first, *others = [found[f"written by {name}"] for name in WAYS]
    assert first[:2] == [[*columns, "_subpartition"], 5_000]
    assert all(other == first for other in others)
    stored = [found[f"stored by {name}"] for name in WAYS]
    assert all(other == stored[0] for other in stored)
    assert found["load"][:2] == [columns, 5_000]
    assert found["columns"][:2] == [["s", "k"], 5_000]
    rows = stored[0][1]
    assert found["one"][1] == rows[3]
    assert found["apart"][1] == sum(rows[2:6])
    assert found["options"][1] == rows[1] + sum(rows[4:7])
    assert found["view"][1] == sum(rows[5:])
    assert found["table"][:2] == [["k"], 5_000]
    assert found["alike"] == [15, 10, 5]
    assert found["replaced"] is True
    assert found["again"] == 7
    assert found["receipt"] == [2, 5_000, 2]
    assert found["mapped"] == found["load"]
    assert found["numbers"] == rows
    assert found["joined"][:2] == [["k", "s", "d", "t"], 4_000]  # text tells them all apart
    assert found["batches"] == [1, found["streamed"]]
    # The last row of each key, since a sink with an interval is of an idempotent operator.
    latest_rows = found["keys of stream"]
    assert [found["flushed"][0], *found["flushed"][1][:2]] == [latest_rows, columns, latest_rows]
    before = found["before merges"]
    assert before[1] == 10_000
    assert found["merged by map_output"] == [3, 4, 1, before]
    assert found["merged by subpartition"] == [3, 1, 1, before]
    assert found["combined"] == [1_400, found["summed"]]
    assert found["aggregated"][0] == ["k", "s", "d_max", "count_all"]
    kinds = [text.partition(":")[0] for text in found["errors"]]
    assert kinds == ["ShuffleExistsError", "SchemaError", "OptionError", "ShuffleNotFoundError"]


def test_a_dataset_through_connect_is_what_spark_reads(found: Found, classic: Found):
    num_map_outputs, *lane = found["lane"]
    assert num_map_outputs == 2
    assert lane == classic["flights"]
    assert lane[1][1] == NUM_FLIGHTS


def test_shuffles_written_through_connect_are_read_without_it(found: Found, classic: Found):
    assert classic["read"] == {name: found[name] for name in classic["read"]}
    assert len(classic["read"]) == len(WAYS)


if __name__ == "__main__":
    way = {"connect": through_connect, "classic": without_connect}[sys.argv[1]]
    print(json.dumps(way(*map(Path, sys.argv[2:]))))
