"""The examples in the help of ``arrow_shuffle`` that need a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.examples import Example, examples, run

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

OF_SPARK = [example for example in examples() if example.needs_spark]


@pytest.mark.spark
@pytest.mark.parametrize("example", OF_SPARK, ids=[example.name for example in OF_SPARK])
def test_an_example_runs_in_spark(spark: SparkSession, tmp_path: Path, example: Example) -> None:
    df = spark.range(20).selectExpr("id % 5 AS k", "id AS v")
    df.write.parquet((tmp_path / "files").as_posix())
    stream = spark.readStream.schema(df.schema).parquet((tmp_path / "files").as_posix())
    run(example, tmp_path, spark=spark, df=df, stream=stream)
