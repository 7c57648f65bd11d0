"""Files of many writers and settings: the lane reads what ``spark.read`` reads, or refuses it.

The same rows in the same subpartitions with the same schema, or an error that names file and
column.
"""

from __future__ import annotations

import datetime as dt
import decimal
import random
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

import arrow_shuffle
from arrow_format.errors import SchemaError
from arrow_format.ingest.scan import plan_scan
from arrow_shuffle import open_shuffle
from connector.spark_version import SPARK
from integration.programs.ways import FAST
from tests.support.exhaustive import exhaustive
from tests.support.spark_session import spark_settings
from tests.support.spark_versions import ORC_INSTANTS, ORC_TIMES, TIMES

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from pyspark.sql import SparkSession

N = 8
TIME = {"spark.sql.timeType.enabled": "true"}


def rows_of(path: Path) -> list[str]:
    """Rows with their subpartitions in one order, as text: a NaN equals another, -0.0 not 0.0."""
    rows = open_shuffle(path).read(with_subpartition=True).read_all()
    return [repr(row) for row in rows.sort_by("k").to_pylist()]


def assert_lane_is_spark_read(
    spark: SparkSession,
    files: Path,
    tmp_path: Path,
    *,
    refused: Collection[str] = (),
    keys: Collection[str] | None = None,
    kind: str = "parquet",
) -> None:
    """Compare all columns but those ``refused``, of each of which the message must tell.

    ``k`` is a column of numbers that are different in each row; all columns are keys unless
    ``keys`` says which.
    """
    dataset = ds.dataset(files, format=kind)
    df = getattr(spark.read, kind)(str(files))
    plain = [name for name in df.columns if name not in refused]
    arguments: dict[str, Any] = {
        "keys": [name for name in plain if keys is None or name in keys],
        "num_subpartitions": N,
        "options": FAST,
        "mode": "overwrite",
    }
    arrow_shuffle.write_shuffle(dataset, tmp_path / "lane", columns=plain, spark=spark, **arguments)
    arrow_shuffle.write_shuffle(df.select(plain), tmp_path / "frame", **arguments)
    ours, theirs = open_shuffle(tmp_path / "lane"), open_shuffle(tmp_path / "frame")
    assert ours.schema.equals(theirs.schema, check_metadata=True)
    assert open_shuffle(tmp_path / "lane").to_spark(spark).schema == df.select(plain).schema
    assert ours.num_rows > 0
    assert rows_of(tmp_path / "lane") == rows_of(tmp_path / "frame")
    for name in refused:
        with pytest.raises(SchemaError, match=rf"{files.name}\S*: column '{name}[.']"):
            read_in_this_process(dataset, ["k", name])


def read_in_this_process(dataset: ds.Dataset, columns: list[str]) -> None:
    scan = plan_scan(dataset, parallelism=1, columns=columns)
    for task in range(scan.num_tasks):
        list(scan.read(task))


# Calendars ---------------------------------------------------------------------------------------

ZONES = ["America/Los_Angeles", "Asia/Kolkata", "Africa/Monrovia", "Europe/Amsterdam"]

OLD = {
    "d": ["DATE'1582-10-04'", "DATE'0001-01-01'", "DATE'1500-03-01'"],
    "t": ["TIMESTAMP'1899-12-31 00:00:00'", "TIMESTAMP'1500-03-01 00:00:00'"],
}


def save_days(spark: SparkSession, path: Path, *, since_1900: bool) -> None:
    """One file with dates and timestamps of all kinds of columns, and timestamps of no zone."""
    ran = random.Random(7)
    day = dt.date(1900, 1, 2)
    moments = [f"'{day + dt.timedelta(hours=ran.randrange(1_500_000))} 0{i % 10}:07:09.123'"
               for i in range(300)]  # fmt: skip
    texts = ", ".join(f"({k}, DATE{m[:11]}', TIMESTAMP{m}, TIMESTAMP_NTZ{m})"
                      for k, m in enumerate(moments))  # fmt: skip
    texts += ", (1000, DATE'1582-10-15', TIMESTAMP'1900-01-03 00:00:00', NULL)"
    texts += ", (1001, NULL, NULL, TIMESTAMP_NTZ'1500-03-01 00:00:00')"
    if not since_1900:
        for number, (d, t) in enumerate(zip(OLD["d"], OLD["t"] * 2, strict=False)):
            texts += f", ({2_000 + number}, {d}, {t}, TIMESTAMP_NTZ'1500-03-01 00:00:00')"
    spark.sql(
        "SELECT k, d, t, n, ARRAY(d, NULL) AS ds, STRUCT(t AS t, k AS x) AS st, MAP(k, t) AS m "
        f"FROM VALUES {texts} AS rows(k, d, t, n)"
    ).coalesce(1).write.parquet(str(path))


@exhaustive("mode", least=3)
@pytest.mark.parametrize(
    ("zone", "mode"), [(ZONES[0], "CORRECTED"), *((zone, "LEGACY") for zone in ZONES)]
)
def test_calendars_of_spark(spark: SparkSession, tmp_path: Path, zone: str, mode: str):
    types = ["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"]
    # Without rebasing nothing is refused, and the file with old rows has those of today as well.
    refused_in: dict[str, list[str]] = {"old": []}
    if mode == "LEGACY":
        refused_in = {"today": [], "old": ["d", "t", "ds", "st", "m"]}
    # All types in the first zone, one in each of the others.
    for type_ in types if zone == ZONES[0] else types[ZONES.index(zone) % 3 :][:1]:
        wanted = {
            "spark.sql.session.timeZone": zone,
            "spark.sql.parquet.outputTimestampType": type_,
            "spark.sql.parquet.datetimeRebaseModeInWrite": mode,
            "spark.sql.parquet.int96RebaseModeInWrite": mode,
        }
        with spark_settings(spark, wanted):
            for name, refused in refused_in.items():
                files = tmp_path / f"{type_}-{name}"
                save_days(spark, files, since_1900=name == "today")
                assert_lane_is_spark_read(
                    spark, files, tmp_path, refused=refused, keys=["k", "d", "t", "n"]
                )


@exhaustive()
@pytest.mark.parametrize("int96", [True, False])
@pytest.mark.parametrize("version", ["2.4.8", "3.0.3", "3.1.0", None])
def test_calendars_by_the_version_of_spark(
    spark: SparkSession, tmp_path: Path, version: str | None, int96: bool
):
    def save(name: str, day: int, second: int) -> Path:
        type_ = pa.timestamp("us") if int96 else pa.timestamp("us", "UTC")
        rows = {
            "k": range(3),
            "d": pa.array([day, 0, None], pa.date32()),
            "t": pa.array([second * 10**6, 0, None], type_),
        }
        footer = version and {"org.apache.spark.version": version}
        table = pa.table(rows).replace_schema_metadata(footer)
        pq.write_table(table, tmp_path / name, use_deprecated_int96_timestamps=int96)
        return tmp_path / name

    # Dates and timestamps that are the same in either calendar, and the ones before them.
    first = save("today.parquet", -141_427, -2_208_988_800)
    assert_lane_is_spark_read(spark, first, tmp_path)
    before = save("old.parquet", -150_000, -150_000 * 86_400)
    old_dates, old_int96 = version == "2.4.8", version in ("2.4.8", "3.0.3")
    refused = ["d"] * old_dates + ["t"] * (old_int96 if int96 else old_dates)
    assert_lane_is_spark_read(spark, before, tmp_path, refused=refused)
    # Those are the values that Spark moves.
    read = spark.read.parquet(str(before)).where("k = 0")
    (found,) = read.selectExpr("unix_date(d) AS d", "unix_seconds(t) DIV 86400 AS t").collect()
    assert [name for name in "dt" if found[name] != -150_000] == refused


# Types -------------------------------------------------------------------------------------------

TYPES = {
    "k": "id",
    "bool": "id % 2 = 0",
    "i8": "CAST(id AS TINYINT)",
    "i16": "CAST(id AS SMALLINT)",
    "i32": "CAST(id AS INT)",
    "f": "CAST(id / 3 AS FLOAT)",
    "f64": "IF(id = 3, DOUBLE('NaN'), IF(id = 4, -0.0D, id / 3))",
    "dec": "CAST(id / 3 AS DECIMAL(9, 2))",
    "wide": "CAST(id / 3 AS DECIMAL(38, 10))",
    "s": "IF(id % 5 = 0, NULL, CONCAT('é ', id))",
    "b": "CAST(CONCAT('b', id) AS BINARY)",
    "a": "ARRAY(id, NULL)",
    "st": "STRUCT(id AS X, ARRAY(STRUCT(id AS y)) AS z)",
    "m": "MAP(CAST(id AS STRING), CAST(id AS INT))",
    "d": "DATE_FROM_UNIX_DATE(CAST(id AS INT) * 100)",
    "t": "TIMESTAMP_SECONDS(id * 100000)",
    "n": "CAST(TIMESTAMP_SECONDS(id * 100000) AS TIMESTAMP_NTZ)",
}
OWN = {
    "dts": "MAKE_DT_INTERVAL(CAST(id AS INT))",
    "hours": "CAST(MAKE_DT_INTERVAL(CAST(id AS INT)) AS INTERVAL HOUR)",
    "ym": "MAKE_YM_INTERVAL(CAST(id AS INT))",
    "lists": "ARRAY(MAKE_YM_INTERVAL(CAST(id AS INT)))",
}
PARQUET_OWN = OWN | {
    "v": "PARSE_JSON(CONCAT('{\"a\": ', id, '}'))",
    "col": "CAST(id AS STRING) COLLATE UTF8_LCASE",
    "cols": "MAP(1, STRUCT(ARRAY(CAST(id AS STRING) COLLATE UNICODE) AS x))",
}
if SPARK >= (4, 2):  # 4.1 has it switched off
    PARQUET_OWN["g"] = "ST_GEOMFROMWKB(X'0101000000000000000000F03F0000000000000040')"
KEYS = set(TYPES) - {"m"}


def selected(spark: SparkSession, columns: dict[str, str]) -> Any:
    return spark.range(40).selectExpr(*(f"{text} AS {name}" for name, text in columns.items()))


@pytest.mark.parametrize("legacy", ["true", "false"])
def test_parquet_of_spark(spark: SparkSession, tmp_path: Path, legacy: str):
    files = tmp_path / "files"
    with spark_settings(spark, {"spark.sql.parquet.writeLegacyFormat": legacy}):
        columns = TYPES if legacy == "true" else TYPES | PARQUET_OWN
        df = selected(spark, columns)
        df.withMetadata("s", {"comment": "of s"}).repartition(2).write.parquet(str(files))
    refused = set(columns) - set(TYPES)
    assert_lane_is_spark_read(spark, files, tmp_path, keys=KEYS, refused=refused)
    lane = open_shuffle(tmp_path / "lane").to_spark(spark)
    assert lane.schema["s"].metadata == {"comment": "of s"}


def test_user_defined_types(spark: SparkSession, tmp_path: Path):
    from pyspark.testing.objects import ExamplePoint, ExamplePointUDT

    rows = [(k, ExamplePoint(1.0, float(k))) for k in range(3)]
    df = spark.createDataFrame(rows, ["k", "p"])
    assert isinstance(df.schema["p"].dataType, ExamplePointUDT)
    df.write.parquet(str(tmp_path / "files"))
    assert_lane_is_spark_read(spark, tmp_path / "files", tmp_path, refused=["p"])


def test_orc_of_spark(spark: SparkSession, tmp_path: Path):
    files = tmp_path / "files"
    selected(spark, TYPES | OWN).repartition(2).write.orc(str(files))
    refused = {"t", "n", *OWN}
    keys = KEYS - refused
    assert_lane_is_spark_read(spark, files, tmp_path, keys=keys, refused=refused, kind="orc")
    old = spark.sql("SELECT 1L AS k, DATE'1500-03-01' AS d").coalesce(1)
    old.write.orc(str(tmp_path / "old"))
    assert_lane_is_spark_read(spark, tmp_path / "old", tmp_path, refused=["d"], kind="orc")


@ORC_INSTANTS
def test_orc_of_pyarrow(spark: SparkSession, tmp_path: Path):
    moments = [dt.datetime(2024, 1, 2, 3, 4, 5), None]
    rows = pa.table(
        {
            "k": [1, 2],
            "s": ["a", None],
            "l": [[1.5, None], None],
            "st": [{"a": b"x"}, None],
            "d": pa.array([dt.date(1582, 10, 15), dt.date(2024, 1, 1)]),
            "old": pa.array([dt.date(1582, 10, 14), None]),
            "t": pa.array(moments, pa.timestamp("ns")),
            "z": pa.array(moments, pa.timestamp("ns", "UTC")),
        }
    )
    orc.write_table(rows, tmp_path / "x.orc")
    assert_lane_is_spark_read(
        spark, tmp_path / "x.orc", tmp_path, refused=["old", "t", "z"], kind="orc"
    )


@TIMES
def test_time(spark: SparkSession, tmp_path: Path):
    with spark_settings(spark, TIME):
        df = spark.sql(
            "SELECT id AS k, CAST('01:02:03.456789' AS TIME(3)) AS ms, ARRAY(TIME'04:05:06') AS a, "
            "STRUCT(CAST('01:02:03' AS TIME(0)) AS s) AS st FROM RANGE(3)"
        )
        df.write.parquet(str(tmp_path / "files"))
        assert_lane_is_spark_read(spark, tmp_path / "files", tmp_path)
        rows = {
            "k": [1, 2],
            "us": pa.array([1, None], pa.time64("us")),
        }
        if SPARK >= (4, 3):
            rows["ns"] = pa.array([1_001, None], pa.time64("ns"))
        pq.write_table(pa.table(rows), tmp_path / "x.parquet")
        assert_lane_is_spark_read(spark, tmp_path / "x.parquet", tmp_path)


@ORC_TIMES
def test_time_of_orc(spark: SparkSession, tmp_path: Path):
    with spark_settings(spark, TIME):
        df = spark.sql("SELECT id AS k, TIME'04:05:06' AS t, ARRAY(TIME'04:05') AS a FROM RANGE(3)")
        df.write.orc(str(tmp_path / "orc"))
        assert_lane_is_spark_read(spark, tmp_path / "orc", tmp_path, refused=["t", "a"], kind="orc")


# Other writers -----------------------------------------------------------------------------------

MOMENTS = [dt.datetime(2024, 1, 2, 3, 4, 5, 678901), dt.datetime(1500, 3, 1), None]
DAYS = [dt.date(2024, 1, 2), dt.date(1500, 3, 1), None]


def test_parquet_of_pyarrow(spark: SparkSession, tmp_path: Path):
    rows = pa.table(
        {
            "k": [1, 2, 3],
            "u8": pa.array([1, 255, None], pa.uint8()),
            "u16": pa.array([1, 65_535, None], pa.uint16()),
            "u32": pa.array([1, 2**32 - 1, None], pa.uint32()),
            "u64": pa.array([1, 2**64 - 1, None], pa.uint64()),
            "lu": pa.array([[2**64 - 1], [], None], pa.list_(pa.uint64())),
            "zone": pa.array(MOMENTS, pa.timestamp("us", "Asia/Tokyo")),
            "none": pa.array(MOMENTS, pa.timestamp("us")),
            "ms": pa.array([1, 2, None], pa.timestamp("ms", "UTC")),
            "s": pa.array([1, 2, None], pa.timestamp("s")),
            "d": pa.array(DAYS, pa.date32()),
            "d64": pa.array(DAYS, pa.date64()),
            "dec": pa.array([decimal.Decimal("1.5"), None, None], pa.decimal32(5, 2)),
            "wide": pa.array([decimal.Decimal("1.5"), None, None], pa.decimal256(30, 2)),
            "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
            "fl": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)),
            "dict": pa.array(["a", None, "a"]).dictionary_encode(),
            "json": pa.array(['{"a": 1}', None, "1"], pa.json_(pa.string())),
            "large": pa.array([b"a", None, b"b"], pa.large_binary()),
        }
    )
    pq.write_table(rows, tmp_path / "x.parquet")
    assert_lane_is_spark_read(spark, tmp_path / "x.parquet", tmp_path)


def test_parquet_of_polars(spark: SparkSession, tmp_path: Path):
    rows = pl.DataFrame(
        {
            "k": [1, 2, 3],
            "cat": pl.Series(["a", None, "b"], dtype=pl.Categorical),
            "enum": pl.Series(["a", None, "b"], dtype=pl.Enum(["a", "b"])),
            "u32": pl.Series([1, None, 2**32 - 1], dtype=pl.UInt32),
            "u64": pl.Series([1, None, 2**64 - 1], dtype=pl.UInt64),
            "t": pl.Series(MOMENTS, dtype=pl.Datetime("us")),
            "z": pl.Series(MOMENTS, dtype=pl.Datetime("ms", "UTC")),
            "d": DAYS,
            "dec": pl.Series([decimal.Decimal("1.5"), None, decimal.Decimal(2)]),
            "bytes": [b"a", None, b""],
            "l": [[1, None], None, []],
            "st": [{"a": 1, "b": ["x"]}, {"a": None, "b": None}, None],
            "arr": pl.Series([[1, 2], None, [3, 4]], dtype=pl.Array(pl.Int16, 2)),
        }
    )
    rows.write_parquet(tmp_path / "x.parquet")
    assert_lane_is_spark_read(spark, tmp_path / "x.parquet", tmp_path)


DUCKDB = {
    "k": "i::BIGINT",
    "huge": "i::HUGEINT",
    "u8": "i::UTINYINT",
    "u64": "18446744073709551615::UBIGINT",
    "t": "TIMESTAMP '1500-03-01 00:00:00'",
    "s": "'2024-01-02 03:04:05'::TIMESTAMP_S",
    "ms": "'2024-01-02 03:04:05.6'::TIMESTAMP_MS",
    "z": "'1850-01-02 03:04:05.6+00'::TIMESTAMPTZ",
    "d": "DATE '1500-03-01'",
    "enum": "'a'::ENUM('a', 'b')",
    "json": "'{\"a\": 1}'::JSON",
    "bit": "'101'::BIT",
    "arr": "[1, 2]::INT[2]",
    "st": "{'a': 1, 'B': ['x']}",
    "dec": "1.5::DECIMAL(38, 3)",
    "blob": "'ab'::BLOB",
}


def test_parquet_of_duckdb(spark: SparkSession, tmp_path: Path):
    def save(columns: dict[str, str], file: Path) -> None:
        texts = ", ".join(f"{text} AS {name}" for name, text in columns.items())
        with duckdb.connect() as connection:
            connection.execute(f"COPY (SELECT {texts} FROM range(3) r(i)) TO '{file}'")

    save(DUCKDB | {"m": "MAP {'a': 1}"}, tmp_path / "x.parquet")
    assert_lane_is_spark_read(spark, tmp_path / "x.parquet", tmp_path, keys=DUCKDB)
    try:
        variants = {"v": "i::VARIANT", "vs": "[i::VARIANT]"}
        save({"k": "i::BIGINT", **variants}, tmp_path / "v.parquet")
    except duckdb.Error:
        return  # before it had the type
    assert_lane_is_spark_read(spark, tmp_path / "v.parquet", tmp_path, refused=variants)


def test_files_whose_columns_differ_in_case(spark: SparkSession, tmp_path: Path):
    (tmp_path / "files").mkdir()
    for file, name in (("a", "Val"), ("b", "val")):
        pq.write_table(pa.table({"k": [1], name: [5]}), tmp_path / "files" / f"{file}.parquet")
    read = spark.read.parquet(str(tmp_path / "files"))
    assert [row[1] for row in read.collect()] == [5, 5]
    with pytest.raises(Exception, match=r"b\.parquet: has a column 'val' where"):
        arrow_shuffle.write_shuffle(
            ds.dataset(tmp_path / "files"),
            tmp_path / "s",
            keys="k",
            num_subpartitions=N,
            spark=spark,
        )
    assert not (tmp_path / "s").exists()
