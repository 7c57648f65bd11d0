"""Edge cases of writing and reading through Spark: the very small, the very wide, the cut short."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import arrow_shuffle
from arrow_format import PartitionedFileReader, WriteOptions
from arrow_format.storage.open import open_storage
from arrow_shuffle import open_shuffle
from connector.source.reader import ShuffleSourceReader
from integration.programs.ways import (
    FAST,
    WAYS,
    Way,
    assert_same_rows,
    by_data_source,
    by_function,
    by_sql,
)
from tests.support.exhaustive import exhaustive
from tests.support.spark_session import spark_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pyspark.sql import Column, DataFrame, SparkSession


def settings(spark: SparkSession, **values: object) -> AbstractContextManager[None]:
    """Change ``spark.sql.*`` settings inside the block; ``__`` stands for a dot."""
    names = {f"spark.sql.{name.replace('__', '.')}": str(value) for name, value in values.items()}
    return spark_settings(spark, names)


def batch_sizes(df: DataFrame) -> list[int]:
    """Rows of each batch that a map task gets."""

    def measure(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"n": [batch.num_rows]})

    return [row.n for row in df.mapInArrow(measure, "n long").collect()]


def rows(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, df.collect()))


# Sizes and values --------------------------------------------------------------------------------


def many_columns(spark: SparkSession) -> DataFrame:
    kinds = ("id + {}", "concat('{} ', id)", "if(id % 3 = 0, NULL, {} / (id + 1))", "id % 2 = {}")
    columns = [f"{kinds[i % 4].format(i)} AS c{i}" for i in range(299)]
    return spark.range(2_000).selectExpr("id AS k", *columns)


EDGES: dict[str, tuple[Callable[[SparkSession], DataFrame], list[str], int]] = {
    "one subpartition": (lambda spark: spark.range(1_000).toDF("k"), ["k"], 1),
    "twenty subpartitions to a row": (lambda spark: spark.range(1_000).toDF("k"), ["k"], 20_000),
    "no rows": (lambda spark: spark.range(0).selectExpr("id AS k", "'' AS s"), ["k"], 7),
    "no partitions": (lambda spark: spark.range(9).toDF("k").filter("false"), ["k"], 7),
    "nothing but null keys": (
        lambda spark: spark.range(1_000).selectExpr(
            "cast(NULL AS string) AS k", "cast(NULL AS decimal(20, 3)) AS l", "id AS v"
        ),
        ["k", "l"],
        7,
    ),
    "empty strings": (
        lambda spark: spark.range(1_000).selectExpr(
            "if(id % 2 = 0, '', NULL) AS k", "'' AS s", "cast('' AS binary) AS b", "id AS v"
        ),
        ["k", "b"],
        7,
    ),
    "300 columns": (many_columns, ["k", "c1", "c2"], 7),
    "more partitions than rows": (lambda spark: spark.range(0, 3, 1, 8).toDF("k"), ["k"], 7),
}


@exhaustive(but="write")
@pytest.mark.parametrize("write", [by_function, by_data_source])
@pytest.mark.parametrize("edge", EDGES)
def test_rows_are_where_spark_puts_them(spark: SparkSession, tmp_path: Path, edge: str, write: Way):
    frame, keys, n = EDGES[edge]
    df = frame(spark)
    path = tmp_path / "shuffle"

    write(df, path, keys, n)

    back = open_shuffle(path).to_spark(spark, with_subpartition=True)
    if n > 1_000:
        # What repartition does, without a task for each subpartition.
        there: Column = F.pmod(F.hash(*keys), F.lit(n))
        moved = df.withColumn("_subpartition", there)
    else:
        moved = df.repartition(n, *keys).withColumn("_subpartition", F.spark_partition_id())
    assert open_shuffle(path).to_spark(spark).schema == df.schema
    assert_same_rows(back.toArrow(), moved.toArrow())
    assert open_shuffle(path).num_subpartitions == n


@exhaustive()
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("partitions", [0, 3])
def test_no_rows_are_a_version_all_the_same(
    spark: SparkSession, tmp_path: Path, partitions: int, way: str
):
    path = tmp_path / "shuffle"
    df = spark.range(0, 0, 1, 3).toDF("k")
    df = df if partitions else df.filter("false")

    WAYS[way](df, path, ["k"], 5)

    shuffle = open_shuffle(path)
    assert (shuffle.version, shuffle.num_rows, shuffle.num_subpartitions) == (1, 0, 5)
    assert shuffle.read().read_all().num_rows == 0
    assert open_shuffle(path).to_spark(spark).collect() == []
    WAYS[way](spark.range(2).toDF("k"), path, ["k"], 5)
    assert rows(open_shuffle(path).to_spark(spark)) == [(0,), (1,)]


@exhaustive(but="way")
@pytest.mark.parametrize("way", WAYS)
def test_one_row_a_batch(spark: SparkSession, tmp_path: Path, way: str):
    df = spark.range(0, 300, 1, 1).selectExpr("id AS k", "concat('row ', id) AS s")
    path = tmp_path / "shuffle"

    with settings(spark, execution__arrow__maxRecordsPerBatch=1):
        if way == "mapInArrow":
            assert batch_sizes(df) == [1] * 300
        WAYS[way](df, path, ["k"], 7)
        back = rows(open_shuffle(path).to_spark(spark))

    assert back == [(i, f"row {i}") for i in range(300)]


@pytest.mark.parametrize("write", [by_function, by_data_source])
def test_one_batch_of_two_million_rows(spark: SparkSession, tmp_path: Path, write: Way):
    many = 2_000_000
    df = spark.range(0, many, 1, 1).toDF("k")
    path = tmp_path / "shuffle"

    with settings(
        spark,
        execution__arrow__maxRecordsPerBatch=many,
        execution__arrow__maxBytesPerBatch=1 << 30,
    ):
        if write is by_function:
            assert batch_sizes(df) == [many]
        write(df, path, ["k"], 7)
        back = open_shuffle(path).to_spark(spark, with_subpartition=True)
        found = back.selectExpr(
            "count(*)", "sum(k)", "bit_xor(k)", "count_if(_subpartition != pmod(hash(k), 7))"
        ).first()

    expected = df.selectExpr("count(*)", "sum(k)", "bit_xor(k)", "0").first()
    assert found == expected


# Regions, batches, Spark partitions --------------------------------------------------------------


def num_regions(path: Path) -> list[int]:
    """Regions of each map output."""
    storage = open_storage(path)
    return [
        sum(len(PartitionedFileReader(storage, file).regions) for file in output.files)
        for output in open_shuffle(path).map_outputs
    ]


def test_hundreds_of_regions_read_back_like_one(spark: SparkSession, tmp_path: Path):
    df = spark.range(0, 40_000, 1, 2).selectExpr(
        "id % 977 AS k", "id AS v", "repeat('x', cast(id % 50 AS int)) AS s", "array(id) AS a"
    )
    read = {}
    for name, size in [("many", 1 << 14), ("one", 128 << 20)]:
        options = WriteOptions(sort_buffer_bytes=size, sync=False)
        path = tmp_path / name
        arrow_shuffle.write_shuffle(
            df, path, keys="k", num_subpartitions=20, options=options
        )  # fmt: skip
        regions = num_regions(path)
        assert all(n == 1 if name == "one" else n >= 200 for n in regions), regions
        # Even the order within a subpartition is that of arrival, however it was flushed.
        read[name] = open_shuffle(path).read(with_subpartition=True).read_all()
        back = open_shuffle(path).to_spark(spark, coalesce=False).toArrow()
        assert back.equals(read[name].select(back.column_names).cast(back.schema))
    assert read["many"].equals(read["one"])


def test_sort_buffer_option_of_the_data_source(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "shuffle"
    writer = spark.range(0, 20_000, 1, 1).write.format("arrow_shuffle").mode("append")
    writer.options(keys="id", numSubpartitions=3, sortBufferBytes="16k").save(str(path))

    assert min(num_regions(path)) >= 20
    assert open_shuffle(path).to_spark(spark).agg(F.sum("id")).first() == (199_990_000,)


@pytest.fixture(scope="module")
def scattered(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200,000 rows in 40 subpartitions, in chunks and regions of a few rows each."""
    path = tmp_path_factory.mktemp("scattered") / "shuffle"
    options = WriteOptions(sort_buffer_bytes=1 << 20, chunk_bytes=1 << 10, sync=False)
    df = spark.range(0, 200_000, 1, 2).selectExpr("id AS k", "id * 3 AS v", "id % 7 AS a")
    arrow_shuffle.write_shuffle(df, path, keys="k", num_subpartitions=40, options=options)
    return path


@pytest.fixture
def _arrow_threads() -> Iterator[None]:
    """What a task sets for its own process."""
    before = pa.cpu_count()
    yield
    pa.set_cpu_count(before)


@pytest.mark.usefixtures("_arrow_threads")
@pytest.mark.parametrize("target", ["64m", "300k"])
def test_batches_for_the_jvm_have_ten_thousand_rows_where_there_are_as_many(
    spark: SparkSession, scattered: Path, target: str
):
    schema = spark.read.format("arrow_shuffle").load(str(scattered)).schema
    reader = ShuffleSourceReader({"path": str(scattered), "targetPartitionBytes": target}, schema)

    partitions = reader.partitions()

    assert len(partitions) > (1 if target == "300k" else 0)
    for partition in partitions:
        *full, last = [batch.num_rows for batch in reader.read(partition)]
        assert all(n >= 10_000 for n in full)
        assert full or last < 20_000 or target == "64m"


def extents(df: DataFrame) -> list[tuple[int, int]]:
    """First and last subpartition of each Spark partition that has rows, in its order."""
    where = df.groupBy(F.spark_partition_id().alias("p"))
    found = where.agg(F.min("_subpartition"), F.max("_subpartition")).orderBy("p").collect()
    return [(row[1], row[2]) for row in found]


def test_coalesced_spark_partitions_are_adjacent_and_bounded(spark: SparkSession, scattered: Path):
    def read(**options: Any) -> DataFrame:
        return open_shuffle(scattered).to_spark(spark, with_subpartition=True, **options)

    sizes = open_shuffle(scattered).subpartition_bytes.to_numpy()
    target = int(sizes.sum()) // 5

    assert read().rdd.getNumPartitions() == 1
    assert read(coalesce=False).rdd.getNumPartitions() == 40
    assert extents(read(coalesce=False)) == [(i, i) for i in range(40)]
    some = read(target_partition_bytes=target)
    found = extents(some)
    assert 5 <= some.rdd.getNumPartitions() == len(found) <= 7
    assert found[0][0] == 0
    assert found[-1][1] == 39
    assert all(a[1] + 1 == b[0] for a, b in pairwise(found))
    assert all(sizes[first : last + 1].sum() <= target for first, last in found)


# Interrupted, repeated, overtaken ----------------------------------------------------------------


def open_files_below(path: Path) -> list[str]:
    """Files below ``path`` that this process or one it started has open."""
    found = []
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = str(handle.readlink())
        except OSError:  # gone, or not ours to see
            continue
        if target.startswith(f"{path}/"):
            found.append(target)
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
def test_limit_stops_early_and_leaves_no_file_open(spark: SparkSession, scattered: Path):
    with next(scattered.rglob("*.data")).open("rb"):
        assert len(open_files_below(scattered)) == 1

    back = open_shuffle(scattered).to_spark(spark)
    assert back.limit(5).count() == 5
    assert len(back.take(3)) == 3
    assert len(open_shuffle(scattered).to_spark(spark, coalesce=False).limit(7).collect()) == 7
    iterator = back.toLocalIterator()
    assert next(iterator) is not None
    del iterator

    assert open_files_below(scattered) == []


def test_a_dataframe_used_again_with_another_filter(spark: SparkSession, scattered: Path):
    df = spark.read.format("arrow_shuffle").load(str(scattered))

    # Python's setting for pushing filters down gave wrong rows for the second use of a frame.
    with settings(spark, python__filterPushdown__enabled="true"):
        assert df.filter("a = 1").count() == 28_572
        assert df.count() == 200_000
        assert df.filter("a = 6 AND k < 70").count() == 10
    assert df.filter("a = 1").count() == 28_572


def test_a_reader_finishes_on_its_version(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "shuffle"
    by_function(spark.range(100).toDF("k"), path, ["k"], 8)
    started = open_shuffle(path).to_spark(spark, coalesce=False)
    planned = open_shuffle(path).to_spark(spark)
    iterator = started.toLocalIterator()
    first = next(iterator)

    new = spark.range(1_000, 1_010).toDF("k")
    arrow_shuffle.write_shuffle(new, path, keys="k", num_subpartitions=3, mode="overwrite")

    assert sorted(row.k for row in [first, *iterator]) == list(range(100))
    assert rows(planned) == [(i,) for i in range(100)]
    assert rows(open_shuffle(path, 1).to_spark(spark)) == [(i,) for i in range(100)]
    now = open_shuffle(path).to_spark(spark)
    assert rows(now) == [(i,) for i in range(1_000, 1_010)]
    # A shuffle may be replaced by what is read from it.
    arrow_shuffle.write_shuffle(
        now.selectExpr("k + 1 AS k"), path, keys="k", num_subpartitions=4, mode="overwrite"
    )
    assert rows(open_shuffle(path).to_spark(spark)) == [(i,) for i in range(1_001, 1_011)]
    assert rows(now) == [(i,) for i in range(1_000, 1_010)]


def test_modes(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "shuffle"

    def write(start: int, mode: str) -> arrow_shuffle.ShuffleReceipt:
        df = spark.range(start, start + 3).toDF("k")
        return arrow_shuffle.write_shuffle(
            df, path, keys="k", num_subpartitions=4, mode=mode, options=FAST
        )

    assert write(0, "ignore").version == 1
    assert write(10, "append").num_rows == 3
    ignored = write(20, "ignore")
    assert (ignored.version, ignored.num_rows) == (2, 3)
    assert rows(open_shuffle(path).to_spark(spark)) == [(i,) for i in (0, 1, 2, 10, 11, 12)]
    assert write(30, "overwrite").version == 3
    df = spark.range(40, 43).toDF("k")
    # How the shuffle is partitioned need not be said again.
    df.write.format("arrow_shuffle").mode("append").save(str(path))
    assert rows(open_shuffle(path).to_spark(spark)) == [(i,) for i in (30, 31, 32, 40, 41, 42)]
    df.write.format("arrow_shuffle").mode("overwrite").save(str(path))
    assert rows(open_shuffle(path).to_spark(spark)) == [(40,), (41,), (42,)]


# Spark's settings --------------------------------------------------------------------------------


@exhaustive(but="way")
@pytest.mark.parametrize("way", WAYS)
def test_large_variable_types(spark: SparkSession, tmp_path: Path, way: str):
    path = tmp_path / "shuffle"
    df = spark.range(9).selectExpr(
        "concat('k', id) AS k",
        "cast(concat(id) AS binary) AS b",
        "map('x', array(concat(id))) AS m",
    )

    with settings(spark, execution__arrow__useLargeVarTypes="true"):
        WAYS[way](df, path, ["k"], 3)
        found = open_shuffle(path).to_spark(spark).orderBy("k").collect()

    assert open_shuffle(path).schema.field("k").type == pa.string()
    assert found == df.orderBy("k").collect()
    assert open_shuffle(path).to_spark(spark).orderBy("k").collect() == found


def test_the_time_zone_may_change_between_write_and_read(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "shuffle"
    df = spark.range(-3, 3).selectExpr(
        "timestamp_micros(id * 7200000000 + 1) AS k", "timestamp_ntz '2024-03-10 02:30' AS n", "id"
    )
    n = 100
    moved = df.repartition(n, "k").select("id", F.spark_partition_id()).collect()
    by_sql(df, path, ["k"], n)

    with settings(spark, session__timeZone="Asia/Kathmandu"):
        back = open_shuffle(path).to_spark(spark, with_subpartition=True)
        found = back.selectExpr("id", "unix_micros(k)", "cast(n AS string)", "_subpartition")
        by_data_source(back.drop("_subpartition"), tmp_path / "again", ["k"], n)
        assert sorted(map(tuple, found.collect())) == sorted(
            (row[0], row[0] * 7_200_000_000 + 1, "2024-03-10 02:30:00", row[1]) for row in moved
        )
    one, other = (open_shuffle(p).read().read_all() for p in (path, tmp_path / "again"))
    assert one.schema.field("k").type == pa.timestamp("us", "UTC")
    assert one.equals(other)


def test_compression_that_stalls_spark_is_warned_of(spark: SparkSession, tmp_path: Path):
    with (
        settings(spark, execution__arrow__compression__codec="lz4"),
        pytest.warns(UserWarning, match=r"compression\.codec is lz4.*set it to none or zstd"),
    ):
        by_function(spark.range(10).toDF("k"), tmp_path / "shuffle", ["k"], 2)
    with settings(spark, execution__arrow__compression__codec="zstd"):
        by_function(spark.range(10).toDF("k"), tmp_path / "other", ["k"], 2)

    for name in ("shuffle", "other"):
        assert rows(open_shuffle(tmp_path / name).to_spark(spark)) == [(i,) for i in range(10)]
