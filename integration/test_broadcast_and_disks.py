"""Rows for everyone, and map outputs over several directories, through Spark."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import arrow_shuffle
from arrow_format import BROADCAST, BroadcastPartitioner, HashPartitioner, WriteOptions
from arrow_shuffle import open_shuffle
from connector.source.reader import ShuffleSourceReader
from integration.programs.ways import FAST, assert_same_rows
from tests.support.exhaustive import exhaustive
from tests.support.small_shuffles import root_numbers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

N = 12


@pytest.fixture(scope="module")
def rates(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(
        [(f"C{i}", i / 7) for i in range(50)], "currency string, rate double"
    )


def by_option(df: DataFrame, path: Path) -> None:
    writer = df.write.format("arrow_shuffle").mode("append").option("partitioner", "broadcast")
    writer.option("numSubpartitions", N).save(str(path))


def by_argument(df: DataFrame, path: Path) -> None:
    arrow_shuffle.write_shuffle(
        df, path, partitioner=BroadcastPartitioner(), num_subpartitions=N, options=FAST
    )


@exhaustive()
@pytest.mark.parametrize("write", [by_option, by_argument])
@pytest.mark.parametrize("coalesce", [True, False])
def test_every_subpartition_has_every_row(
    rates: DataFrame, tmp_path: Path, write: Callable[[DataFrame, Path], None], coalesce: bool
) -> None:
    write(rates, tmp_path / "s")
    df = open_shuffle(tmp_path / "s").to_spark(
        rates.sparkSession, coalesce=coalesce, with_subpartition=True
    )
    assert df.count() == 50 * N
    copies = df.groupBy("_subpartition").agg(F.countDistinct("currency")).collect()
    assert sorted(map(tuple, copies)) == [(i, 50) for i in range(N)]
    some = open_shuffle(tmp_path / "s").select(subpartitions=[3]).to_spark(rates.sparkSession)
    assert_same_rows(some.toArrow(), rates.toArrow())


def test_a_large_broadcast_is_spread_over_spark_partitions(
    spark: SparkSession, tmp_path: Path
) -> None:
    # Each subpartition reads all of it, so few of them make a Spark partition of the target size.
    by_argument(spark.range(200_000).select(F.xxhash64("id").alias("h")), tmp_path / "s")
    size = open_shuffle(tmp_path / "s").num_bytes
    options = {"path": str(tmp_path / "s"), "targetPartitionBytes": str(size * 2)}
    schema = spark.read.format("arrow_shuffle").load(str(tmp_path / "s")).schema
    assert len(ShuffleSourceReader(options, schema).partitions()) == N // 2


@dataclass(frozen=True)
class SkewedJoin:
    """Sends rows of the large keys to everyone, and hashes the others."""

    key: str
    large: tuple[int, ...]

    def describe(self) -> dict[str, Any]:
        return {"kind": "skewed_join", "key": self.key, "large": list(self.large)}

    def check(self, schema: pa.Schema) -> None:
        HashPartitioner(self.key).check(schema)

    def bind(self, schema: pa.Schema, num_subpartitions: int, map_task: int) -> Any:
        hashed = HashPartitioner(self.key).bind(schema, num_subpartitions, map_task)
        large = np.array(self.large)
        return lambda batch: np.where(
            np.isin(batch[self.key].to_numpy(), large), BROADCAST, hashed(batch)
        )


def test_large_keys_to_everyone_others_by_hash(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(5_000).select((F.col("id") % 100).alias("k"), "id").repartition(3)
    receipt = arrow_shuffle.write_shuffle(
        df, tmp_path / "s", partitioner=SkewedJoin("k", (7, 8)), num_subpartitions=N, options=FAST
    )
    assert receipt.num_rows == 5_000
    assert sum(receipt.subpartition_rows.to_pylist()) == 4_900 + 100 * N
    found = open_shuffle(tmp_path / "s").to_spark(spark, coalesce=False, with_subpartition=True)
    of_seven = Counter(row._subpartition for row in found.where("k = 7").collect())
    assert of_seven == dict.fromkeys(range(N), 50)
    places = df.where("k NOT IN (7, 8)").repartition(N, "k").select(F.spark_partition_id(), "id")
    ours = found.where("k NOT IN (7, 8)").select("_subpartition", "id")
    assert sorted(map(tuple, ours.collect())) == sorted(map(tuple, places.collect()))


def test_map_outputs_take_turns_over_directories(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(6_000).repartition(6)
    dirs = [tmp_path / "d1", tmp_path / "d2"]
    receipt = arrow_shuffle.write_shuffle(
        df, tmp_path / "s", keys="id", num_subpartitions=N,
        options=WriteOptions(local_dirs=tuple(map(str, dirs))),
    )  # fmt: skip
    assert receipt.num_map_outputs == 6
    writer = (
        df.write.format("arrow_shuffle").mode("append").option("localDirs", f"{dirs[0]},{dirs[1]}")
    )
    writer.save(str(tmp_path / "s"))
    shuffle = open_shuffle(tmp_path / "s")
    files = [file for output in shuffle.map_outputs for file in output.files]
    assert Counter(root_numbers(files, *dirs)) == {0: 4, 1: 4, 2: 4}
    assert_same_rows(open_shuffle(tmp_path / "s").to_spark(spark).toArrow(), df.union(df).toArrow())
    assert shuffle.verify().ok


def test_a_failed_job_leaves_nothing_in_any_directory(spark: SparkSession, tmp_path: Path) -> None:
    fails = (
        spark.range(1_000).repartition(3).selectExpr("IF(id < 900, id, raise_error('no')) AS id")
    )
    with pytest.raises(PySparkException, match="no"):
        arrow_shuffle.write_shuffle(
            fails, tmp_path / "s", keys="id", num_subpartitions=N,
            options=WriteOptions(local_dirs=(str(tmp_path / "d1"),)),
        )  # fmt: skip
    # But for who they are, which other first jobs may have taken up.
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {f"{1:020}.json", "arrow-shuffle-directory.json"}
