"""Tables of Delta and Iceberg, read by map tasks of Spark: the rows that their libraries read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, write_deltalake

import arrow_shuffle
from arrow_format import OptionError, RangePartitioner
from arrow_shuffle import open_shuffle
from integration.programs.ways import FAST
from tests.support.lake_tables import delete_by_vector, delete_positions, iceberg_table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ROWS = pa.table({"k": range(1000), "text": [f"row {i}" for i in range(1000)]})


def write(source: object, path: Path, spark: SparkSession, **options: Any):
    if "partitioner" not in options:
        options["keys"] = "k"
    return arrow_shuffle.write_shuffle(
        source, path, num_subpartitions=8, options=FAST, spark=spark, **options
    )


def keys_of(path: Path) -> list[int]:
    return sorted(arrow_shuffle.open_shuffle(path).to_table()["k"].to_pylist())


def test_a_delta_table(spark: SparkSession, tmp_path: Path):
    write_deltalake(tmp_path / "delta", ROWS)
    DeltaTable(tmp_path / "delta").delete("k >= 900")
    table = DeltaTable(tmp_path / "delta")
    receipt = write(table, tmp_path / "s", spark, filter=ds.field("k") >= 100, columns=["k"])
    assert receipt.num_rows == 800
    assert keys_of(tmp_path / "s") == list(range(100, 900))
    by_dataset = write(table.to_pyarrow_dataset(), tmp_path / "d", spark)
    assert by_dataset.num_rows == 900
    frame = open_shuffle(tmp_path / "d").to_spark(spark)
    assert frame.schema.simpleString() == "struct<k:bigint,text:string>"


def test_a_delta_table_with_deletion_vectors(spark: SparkSession, tmp_path: Path):
    write_deltalake(tmp_path / "delta", ROWS)
    delete_by_vector(tmp_path / "delta", range(10))
    table = DeltaTable(tmp_path / "delta")
    with pytest.raises(OptionError, match="deletionVectors"):
        write(table, tmp_path / "s", spark)
    assert not (tmp_path / "s").exists()


def test_an_iceberg_table(spark: SparkSession, tmp_path: Path):
    table = iceberg_table(tmp_path, ROWS)
    (task,) = table.scan().plan_files()
    delete_positions(table, task.file.file_path, range(10))
    table.append(ROWS.slice(0, 5))
    receipt = write(table, tmp_path / "s", spark, num_map_tasks=2)
    assert (receipt.num_rows, receipt.num_map_outputs) == (995, 2)
    assert keys_of(tmp_path / "s") == [*range(5), *range(10, 1000)]
    frame = open_shuffle(tmp_path / "s").to_spark(spark)
    assert frame.schema.simpleString() == "struct<k:bigint,text:string>"


def test_ranges_of_a_scan(spark: SparkSession, tmp_path: Path):
    scan = iceberg_table(tmp_path, ROWS).scan("k < 500", selected_fields=("k",))
    write(scan, tmp_path / "s", spark, partitioner=RangePartitioner(keys=["k"]))
    shuffle = arrow_shuffle.open_shuffle(tmp_path / "s")
    assert shuffle.to_table()["k"].to_pylist() != []
    assert keys_of(tmp_path / "s") == list(range(500))
    assert max(shuffle.subpartition_rows.to_pylist()) < 100


def test_a_filter_is_icebergs(spark: SparkSession, tmp_path: Path):
    table = iceberg_table(tmp_path, ROWS)
    with pytest.raises(OptionError, match=r"table\.scan\(row_filter="):
        write(table, tmp_path / "s", spark, filter=ds.field("k") < 3)
