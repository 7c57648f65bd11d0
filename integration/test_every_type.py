"""Every Spark type comes back as it was written, in four ways: see docs/guide/types.md."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    Row,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    VariantType,
    VariantVal,
)
from pyspark.testing.objects import PythonOnlyPoint, PythonOnlyUDT

import arrow_shuffle
from arrow_format import HashPartitioner
from arrow_format.errors import SchemaError
from arrow_format.jobs.write import write_shuffle
from arrow_format.keys.partitioner import RoundRobinPartitioner
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_shuffle import open_shuffle
from connector.spark_version import SPARK
from tests.support.exhaustive import exhaustive
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

NUM_SUBPARTITIONS = 3


POINT = bytes.fromhex("0101000000000000000000F03F0000000000000040")
PAIR = StructType(
    [
        StructField("x", IntegerType(), nullable=False, metadata={"unit": "m"}),
        StructField("y.z", StringType()),
        StructField("Y.z", StringType()),
    ]
)

HASHABLE: dict[str, tuple[DataType, list[Any]]] = {
    "boolean": (BooleanType(), [True, False]),
    "byte": (ByteType(), [-(2**7), 2**7 - 1, 0]),
    "short": (ShortType(), [-(2**15), 2**15 - 1, 0]),
    "int": (IntegerType(), [-(2**31), 2**31 - 1, 0]),
    "long": (LongType(), [-(2**63), 2**63 - 1, 0]),
    "float": (FloatType(), [0.0, -0.0, math.nan, math.inf, -math.inf, 1.5]),
    "double": (DoubleType(), [0.0, -0.0, math.nan, math.inf, 5e-324, 1.7976931348623157e308]),
    "decimal(18,2)": (DecimalType(18, 2), [Decimal("9999999999999999.99"), Decimal("-0.01")]),
    "decimal(38,0)": (DecimalType(38, 0), [Decimal(10**38 - 1), Decimal(1 - 10**38), Decimal(0)]),
    "string": (StringType(), ["", "a", "é\N{GRINNING FACE}", "nul \0 byte", "long " * 1000]),
    "binary": (BinaryType(), [b"", b"\0\xff", bytes(range(256))]),
    "date": (DateType(), [date.min, date(1969, 12, 31), date.max]),
    "timestamp": (
        TimestampType(),
        [
            datetime(1900, 1, 1, tzinfo=UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
            # The hour that New York has twice.
            datetime(2024, 11, 3, 5, 30, tzinfo=UTC),
            datetime(2024, 11, 3, 6, 30, tzinfo=UTC),
        ],
    ),
    "timestamp_ntz": (
        TimestampNTZType(),
        # An hour that New York skips, and the ends of Python's calendar.
        [datetime(2024, 3, 10, 2, 30), datetime.min, datetime.max],
    ),
    "day-time interval": (
        DayTimeIntervalType(),
        [timedelta(0), timedelta(microseconds=-1), timedelta(days=106751991)],
    ),
    "hour interval": (DayTimeIntervalType(1, 1), [timedelta(hours=-25)]),
    "array": (ArrayType(ArrayType(LongType(), containsNull=False)), [[], [[]], [[1], None]]),
    "struct": (PAIR, [(1, "a", None), (2, None, "b")]),
    "empty struct": (StructType([]), [()]),
    "user-defined": (PythonOnlyUDT(), [PythonOnlyPoint(1.0, 2.0), PythonOnlyPoint(-0.5, 0.0)]),
}
NOT_HASHABLE: dict[str, tuple[DataType, list[Any]]] = {
    "map": (MapType(StringType(), IntegerType(), valueContainsNull=False), [{}, {"a": 1, "b": 2}]),
    "map of nested": (
        MapType(PAIR, MapType(DateType(), ArrayType(PAIR))),
        [{Row(**{"x": 1, "y.z": "a", "Y.z": None}): {date(2024, 1, 1): [(1, "a", "b"), None]}}],
    ),
    "collated string": (StringType("UTF8_LCASE"), ["a", "A", ""]),
    "ICU string": (StringType("UNICODE_CI"), ["é", "É"]),
    "array of collated": (ArrayType(StringType("UNICODE_CI")), [["é", None]]),
    "variant": (
        VariantType(),
        [VariantVal.parseJson(text) for text in ('{"a": [1, null]}', "null", '"x"')],
    ),
}
if SPARK >= (4, 1):
    from pyspark.sql.types import Geography, GeographyType, Geometry, GeometryType, TimeType

    HASHABLE |= {
        "time(6)": (TimeType(6), [time.min, time(12, 34, 56, 123456), time.max]),
        "time(0)": (TimeType(0), [time.min, time(23, 59, 59)]),
    }
    NOT_HASHABLE |= {
        "geometry": (GeometryType(4326), [Geometry.fromWKB(POINT, 4326)]),
        "geometry(any)": (GeometryType("ANY"), [Geometry.fromWKB(POINT, 0)]),
        "geography": (GeographyType(4326), [Geography.fromWKB(POINT, 4326)]),
    }
SUPPORTED = {**HASHABLE, **NOT_HASHABLE}


def columns_of(name: str, type_: DataType) -> list[StructField]:
    """The type as a column that may and one that may not be null, and inside every other type."""
    element = StructType([StructField("z", type_, metadata={"deep": True})])
    inside = [StructField("x", type_, nullable=False), StructField("y", ArrayType(element))]
    return [
        StructField(f"required {name}", type_, nullable=False),
        StructField(f"optional {name}", type_, metadata={"comment": "é", "n": {"a": [1, 2]}}),
        StructField(f"listed {name}", ArrayType(type_)),
        StructField(f"tight {name}", ArrayType(type_, containsNull=False), nullable=False),
        StructField(f"mapped {name}", MapType(StringType(), type_)),
        StructField(f"nested {name}", StructType(inside)),
    ]


def cells_of(value: Any, turn: int) -> tuple[Any, ...]:
    """A value in all those columns, full or with nulls."""
    full = (value, value, [value, None], [value], {"a": value, "b": None})
    return (
        (*full, (value, [(value,), (None,), None])),
        (value, None, [], [], {}, None),
        (value, value, None, [value, value], None, (value, [])),
    )[turn]


def frame(spark: SparkSession, types: dict[str, tuple[DataType, list[Any]]]) -> DataFrame:
    """Several types beside each other, and a number `k` for each row."""
    fields = [field for name, (type_, _) in types.items() for field in columns_of(name, type_)]
    rows = [
        (k, *(cell for _, v in types.values() for cell in cells_of(v[k // 3 % len(v)], k % 3)))
        for k in range(3 * max(len(values) for _, values in types.values()))
    ]
    schema = StructType([StructField("k", IntegerType(), nullable=False), *fields])
    return spark.createDataFrame(rows, schema).repartition(2)


def comparable(value: object) -> object:
    """A form that tells apart what ``==`` does not (-0.0), and finds equal what it does not."""
    match value:
        case VariantVal():
            return ("variant", bytes(value.value), bytes(value.metadata))
        case _ if hasattr(value, "getSrid"):  # Geometry, Geography
            return (type(value).__name__, bytes(value.getBytes()), value.getSrid())
        case float() | Decimal():
            return repr(value)
        case Row():
            return (tuple(value.__fields__), *map(comparable, value))
        case list() | tuple():
            return list(map(comparable, value))
        case dict():
            return sorted((repr(comparable(k)), repr(comparable(v))) for k, v in value.items())
        case PythonOnlyPoint():
            return ("point", value.x, value.y)
        case _:
            return value


def contents(df: DataFrame) -> list[object]:
    return list(map(comparable, sorted(df.collect(), key=lambda row: row["k"])))


# The four ways of writing ------------------------------------------------------------------------


def by_function(df: DataFrame, path: str) -> None:
    arrow_shuffle.write_shuffle(df, path, keys="k", num_subpartitions=NUM_SUBPARTITIONS)


def by_hook(df: DataFrame, path: str) -> None:
    task = arrow_shuffle.ShuffleMapTask(
        path, schema=df.schema, keys=["k"], num_subpartitions=NUM_SUBPARTITIONS
    )
    arrow_shuffle.commit_shuffle(task, df.mapInArrow(task, task.status_schema).collect())


def by_data_source(df: DataFrame, path: str) -> None:
    writer = df.write.format("arrow_shuffle").option("keys", "k")
    writer.option("numSubpartitions", NUM_SUBPARTITIONS).mode("append").save(path)


def by_sql(df: DataFrame, path: str) -> None:
    # The view takes its columns from an empty shuffle: SQL has no words for a user-defined type.
    by_function(df.limit(0), path)
    df.createOrReplaceTempView("written")
    df.sparkSession.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW shuffle USING arrow_shuffle OPTIONS (path '{path}')"
    )
    df.sparkSession.sql("INSERT INTO shuffle SELECT * FROM written")


WAYS = [by_function, by_hook, by_data_source, by_sql]


@pytest.fixture(autouse=True)
def time_type(spark: SparkSession) -> Iterator[None]:
    """TIME has to be switched on in Spark 4.3 before SQL names it."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    yield
    spark.conf.unset("spark.sql.timeType.enabled")


# What comes back ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def everything(spark: SparkSession) -> DataFrame:
    """All types that are supported in one frame: one job for each way of writing tests them all."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    return frame(spark, SUPPORTED)


@pytest.fixture(scope="module")
def expected(everything: DataFrame) -> list[Row]:
    return sorted(everything.collect(), key=lambda row: row["k"])


@guarantee("Spark types")
@pytest.mark.parametrize("write", WAYS)
def test_rows_and_schema_come_back_as_written(
    spark: SparkSession,
    tmp_path: Path,
    everything: DataFrame,
    expected: list[Row],
    write: Callable[[DataFrame, str], None],
):
    path = str(tmp_path / "shuffle")

    write(everything, path)

    back = open_shuffle(path).to_spark(spark)
    found = sorted(back.collect(), key=lambda row: row["k"])
    assert back.schema.fields == everything.schema.fields
    assert len(found) == len(expected) > 15
    names = everything.columns
    differing = {
        name
        for one, other in zip(found, expected, strict=True)
        for name, value, wanted in zip(names, one, other, strict=True)
        if comparable(value) != comparable(wanted)
    }
    assert not differing


@exhaustive(but="write", least=2)
@pytest.mark.parametrize("write", WAYS)
def test_void_comes_back_as_written(
    spark: SparkSession, tmp_path: Path, write: Callable[[DataFrame, str], None]
):
    schema = StructType(
        [
            StructField("k", IntegerType(), nullable=False),
            StructField("c", NullType()),
            StructField("listed", ArrayType(NullType())),
            StructField("mapped", MapType(StringType(), NullType())),
            StructField("nested", StructType([StructField("x", NullType())])),
        ]
    )
    rows = [(0, None, [None, None], {"a": None}, (None,)), (1, None, [], {}, None)]
    df = spark.createDataFrame(rows, schema)
    path = str(tmp_path / "shuffle")

    write(df, path)

    back = open_shuffle(path).to_spark(spark)
    assert back.schema == df.schema
    assert contents(back) == contents(df)


@exhaustive(but="write", least=2)
@pytest.mark.parametrize("write", WAYS)
def test_values_beyond_python_s_calendar_come_back(
    spark: SparkSession, tmp_path: Path, write: Callable[[DataFrame, str], None]
):
    longs = spark.createDataFrame([(0, -(2**63)), (1, 2**63 - 1), (2, None)], "k int, v long")
    df = longs.selectExpr(
        "k",
        "timestamp_micros(v) AS t",
        "cast(date_from_unix_date(cast(v >> 32 AS int)) AS date) AS d",
        "make_dt_interval(cast(v div 86400000000 AS int), 0, 0, "
        "cast(v % 86400000000 / 1000000 AS decimal(18, 6))) AS i",
    )
    path = str(tmp_path / "shuffle")

    write(df, path)

    # Compared inside Spark: collect() cannot make Python dates of these.
    back = open_shuffle(path).to_spark(spark)
    assert back.schema == df.schema
    assert back.count() == 3
    assert back.exceptAll(df).count() == 0


@exhaustive(but="write", least=2)
@pytest.mark.parametrize("write", WAYS)
def test_rows_written_in_one_time_zone_are_the_same_instants_in_another(
    spark: SparkSession, tmp_path: Path, write: Callable[[DataFrame, str], None]
):
    path = str(tmp_path / "shuffle")
    df = spark.range(1).selectExpr(
        "cast(id AS int) AS k",
        "timestamp_seconds(id) AS t",
        "map(timestamp_seconds(id), array(struct(timestamp_seconds(id) AS x))) AS nested",
    )
    write(df, path)

    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        back = open_shuffle(path).to_spark(spark)
        row = back.selectExpr(
            "cast(t AS string)", "unix_micros(t)", "unix_micros(map_values(nested)[0][0].x)"
        ).first()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)

    assert row is not None
    assert tuple(row) == ("1970-01-01 05:30:00", 0, 0)


def test_large_types_on_the_way_in_change_nothing(spark: SparkSession, tmp_path: Path):
    df = frame(spark, {"text": SUPPORTED["string"]})
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        by_function(df, str(tmp_path / "one"))
        by_data_source(df, str(tmp_path / "other"))
        assert contents(open_shuffle(str(tmp_path / "one")).to_spark(spark)) == contents(df)
        assert contents(open_shuffle(str(tmp_path / "other")).to_spark(spark)) == contents(df)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


def test_a_view_with_columns_of_its_own_starts_a_shuffle(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "shuffle"
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW fresh (k int, v varchar(5), s string COLLATE UNICODE_CI) "
        f"USING arrow_shuffle OPTIONS (path '{path}', keys 'k', numSubpartitions '3')"
    )
    spark.sql("INSERT INTO fresh VALUES (1, 'ab', 'é'), (2, NULL, NULL)")

    back = open_shuffle(str(path)).to_spark(spark)

    assert [field.dataType for field in back.schema] == [
        IntegerType(),
        StringType(),
        StringType("UNICODE_CI"),
    ]
    names = ("k", "v", "s")
    assert contents(back) == [(names, 1, "ab", "é"), (names, 2, None, None)]


# Written without Spark ---------------------------------------------------------------------------


def test_char_and_varchar_are_strings_also_where_spark_keeps_their_types(
    spark: SparkSession, tmp_path: Path
):
    spark.sql(
        "CREATE TABLE chars (c CHAR(5), v VARCHAR(4), s STRUCT<x: CHAR(3)>) USING parquet "
        f"LOCATION '{tmp_path / 'chars'}'"
    )
    setting = "spark.sql.preserveCharVarcharTypeInfo"
    try:
        spark.sql("INSERT INTO chars VALUES ('ab', 'cd', struct('q')), ('e', '', NULL)")
        spark.conf.set(setting, "true")
        df = spark.table("chars").selectExpr("*", "cast(v AS VARCHAR(7)) AS w")
        assert [df.schema[name].dataType for name in ("c", "w")] == [CharType(5), VarcharType(7)]
        rows = sorted(df.collect())
        for how in ({"keys": ["c", "w"]}, {"partitioner": RangePartitioner(keys=["c"])}):
            path = tmp_path / "-".join(how)
            arrow_shuffle.write_shuffle(df, path, num_subpartitions=3, **how)
            df.write.format("arrow_shuffle").mode("append").save(str(path))
            read = open_shuffle(path).to_spark(spark)
            # Of a column from a table, Spark finds the type in the metadata, and compares by it.
            assert [read.schema[name].dataType for name in "cw"] == [CharType(5), StringType()]
            assert sorted(read.collect()) == sorted([*rows, *rows])
            for condition in ("c = 'ab'", "c = 'ab   '", "s.x = 'q  '"):
                assert read.where(condition).count() == 2 * df.where(condition).count()
            spark.conf.set(setting, "false")
            read = open_shuffle(path).to_spark(spark)
            assert [read.schema[name].dataType for name in "cw"] == [StringType()] * 2
            assert sorted(read.collect()) == sorted([*rows, *rows])
            assert read.where("c = 'ab'").count() == 2
            spark.conf.set(setting, "true")
    finally:
        spark.conf.unset(setting)
        spark.sql("DROP TABLE chars")


def test_what_arrow_wrote_spark_reads(spark: SparkSession, tmp_path: Path):
    instants = pa.array([0, None], pa.timestamp("us", "Asia/Tokyo"))
    batch = pa.RecordBatch.from_pydict(
        {
            "k": pa.array([1, 2]),
            "word": pa.array(["a", None]).dictionary_encode(),
            "view": pa.array(["b", None], pa.string_view()),
            "lists": pa.array([["c"], None], pa.large_list_view(pa.large_string())),
            "instant": instants,
            "wall": pa.array([0, None], pa.timestamp("us")),
        }
    )
    write_shuffle([batch], str(tmp_path / "s"), num_subpartitions=2, keys="k")

    back = open_shuffle(str(tmp_path / "s")).to_spark(spark)

    assert [field.dataType for field in back.schema] == [
        LongType(),
        StringType(),
        StringType(),
        ArrayType(StringType()),
        TimestampType(),
        TimestampNTZType(),
    ]
    rows = back.selectExpr("k", "word", "view", "lists", "unix_micros(instant)", "wall")
    assert sorted(map(tuple, rows.collect()), key=lambda row: row[0]) == [
        (1, "a", "b", ["c"], 0, datetime(1970, 1, 1)),
        (2, None, None, None, None, None),
    ]


def test_times_that_arrow_wrote_are_time_9(spark: SparkSession, tmp_path: Path):
    batch = pa.RecordBatch.from_pydict({"k": [1, 2], "t": pa.array([1_000, None], pa.time64("ns"))})
    write_shuffle([batch], str(tmp_path / "s"), num_subpartitions=2, keys="k")
    if SPARK < (4, 3):
        message = r"column 't' has type time\(9\), .* lacks: use PySpark 4.3 or newer"
        with pytest.raises(SchemaError, match=message):
            open_shuffle(tmp_path / "s").to_spark(spark)
        assert open_shuffle(tmp_path / "s").select("k").to_spark(spark).count() == 2
        return
    back = open_shuffle(tmp_path / "s").to_spark(spark)
    assert back.schema["t"].dataType == TimeType(9)
    assert sorted(map(tuple, back.collect())) == [(1, time(0, 0, 0, 1)), (2, None)]


def test_what_spark_has_no_type_for_is_refused_by_name(spark: SparkSession, tmp_path: Path):
    batch = pa.RecordBatch.from_pydict({"k": [1], "u": pa.array([2], pa.uint64())})
    write_shuffle([batch], str(tmp_path / "s"), num_subpartitions=2, keys="k", for_spark=False)

    with pytest.raises(SchemaError, match="column 'u' has type uint64, which Spark cannot read"):
        open_shuffle(str(tmp_path / "s")).to_spark(spark)


@guarantee("types for Spark")
def test_what_pandas_and_polars_wrote_spark_reads_as_from_parquet(
    spark: SparkSession, tmp_path: Path
):
    """The same values, and where Spark reads such a column of a Parquet file, the same types."""
    frame = pd.DataFrame(
        {
            "k": np.array([1, 255], np.uint8),
            "u16": np.array([0, 2**16 - 1], np.uint16),
            "u32": np.array([0, 2**32 - 1], np.uint32),
            "u64": np.array([0, 2**64 - 1], np.uint64),
            "t": pd.to_datetime(["2024-01-01 00:00:00.000001", None]).astype("datetime64[ns]"),
            "word": pd.Categorical(["a", None]),
        }
    )
    table = pa.table(frame)
    back = {}
    for name, rows in (("pandas", frame), ("polars", pl.DataFrame(frame)), ("arrow", table)):
        write_shuffle(rows, str(tmp_path / name), num_subpartitions=2, keys="k")
        back[name] = open_shuffle(str(tmp_path / name)).to_spark(spark).select(*frame.columns)
    plain = table.set_column(4, "t", table["t"].cast(pa.timestamp("us")))
    pq.write_table(plain, tmp_path / "x.parquet")
    expected = spark.read.parquet(str(tmp_path / "x.parquet"))

    for df in back.values():
        assert [field.dataType for field in df.schema] == [
            field.dataType for field in expected.schema
        ]
        assert sorted(df.collect()) == sorted(expected.collect())


@guarantee("types for Spark")
def test_a_frame_of_pandas_is_appended_to_what_spark_wrote(spark: SparkSession, tmp_path: Path):
    path = str(tmp_path / "s")
    df = spark.sql("SELECT 1L AS k, TIMESTAMP_NTZ'2024-01-01 00:00:00' AS t")
    arrow_shuffle.write_shuffle(df, path, num_subpartitions=2, keys="k")
    frame = pd.DataFrame({"k": [2], "t": pd.to_datetime(["2024-01-02"]).astype("datetime64[ns]")})

    write_shuffle(frame, path, num_subpartitions=2, keys="k", mode="append")

    rows = sorted(map(tuple, open_shuffle(path).to_spark(spark).collect()))
    assert rows == [(1, datetime(2024, 1, 1)), (2, datetime(2024, 1, 2))]


# Keys --------------------------------------------------------------------------------------------


def keys_of(name: str) -> list[str]:
    return [f"{column} {name}" for column in ("optional", "nested", "listed")]


@guarantee("placement")
def test_rows_land_where_spark_s_repartition_puts_them(spark: SparkSession, tmp_path: Path):
    # Hashes are chained: a wrong one of any column moves the row.
    df = frame(spark, HASHABLE)
    keys = [key for name in HASHABLE for key in keys_of(name)]
    path = str(tmp_path / "shuffle")

    arrow_shuffle.write_shuffle(df, path, keys=keys, num_subpartitions=1_000)

    ours = open_shuffle(path).to_spark(spark, with_subpartition=True).select("k", "_subpartition")
    spark_s = df.select("k", F.pmod(F.hash(*keys), F.lit(1_000)))
    assert sorted(map(tuple, ours.collect())) == sorted(map(tuple, spark_s.collect()))
    # And type by type, of the rows as they are stored.
    rows = open_shuffle(path).read().read_all().sort_by("k").combine_chunks().to_batches()[0]
    hashes = df.orderBy("k").select(
        *(F.pmod(F.hash(*keys_of(name)), F.lit(1_000)) for name in HASHABLE)
    )
    for name, wanted in zip(HASHABLE, zip(*hashes.collect(), strict=True), strict=True):
        place = HashPartitioner(keys_of(name)).bind(rows.schema, 1_000, 0)
        assert place(rows).tolist() == list(wanted), name


@pytest.mark.parametrize("name", NOT_HASHABLE)
def test_types_without_a_hash_are_refused_as_keys(spark: SparkSession, tmp_path: Path, name: str):
    df = frame(spark, {name: NOT_HASHABLE[name]})

    for key in keys_of(name):
        message = rf"column '{re.escape(key)}.*cannot be a key: "
        with pytest.raises(SchemaError, match=message):
            arrow_shuffle.write_shuffle(
                df, str(tmp_path / "s"), keys=["k", key], num_subpartitions=3
            )
    with pytest.raises(Exception, match=message):
        df.write.format("arrow_shuffle").options(keys=key, numSubpartitions=3).mode("append").save(
            str(tmp_path / "s")
        )
    assert not (tmp_path / "s").exists()


# What is refused before any task runs ------------------------------------------------------------

A_TASK_RAN = "if(id < 0, '', raise_error(concat('a task ran', id))) AS trap"
REFUSED = {
    "year-month": ("make_ym_interval(1, cast(id AS int)) AS c", r"column 'c' has type interval"),
    "nested": (
        "named_struct('x', array(make_ym_interval(1, cast(id AS int)))) AS c",
        r"column 'c\.x\.element' has type interval",
    ),
    "void": ("if(id < 0, array(), array()) AS c", r"column 'c\.element' has type non-nullable"),
    "same field": ("named_struct('x', id, 'x', id) AS c", r"fields of column 'c' .*'x'"),
}


@guarantee("Spark types")
@exhaustive()
@pytest.mark.parametrize("write", [by_function, by_hook, by_data_source])
@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_types_are_refused_by_name_before_any_task_runs(
    spark: SparkSession, tmp_path: Path, name: str, write: Callable[[DataFrame, str], None]
):
    expression, message = REFUSED[name]
    df = spark.range(1).selectExpr("cast(id AS int) AS k", expression, A_TASK_RAN)

    with pytest.raises(Exception, match=message) as caught:
        write(df, str(tmp_path / "shuffle"))

    assert "a task ran" not in str(caught.value)
    assert not (tmp_path / "shuffle").exists()


@pytest.mark.parametrize("write", [by_function, by_hook])
def test_calendar_intervals_are_refused(
    spark: SparkSession, tmp_path: Path, write: Callable[[DataFrame, str], None]
):
    # Spark itself refuses them in df.write, without a word about the column.
    df = spark.range(1).selectExpr("id AS k", "make_interval(1, 2, 3, 4, 5, 6, id) AS c")

    with pytest.raises(SchemaError, match="column 'c' has type interval"):
        write(df, str(tmp_path / "shuffle"))


@pytest.mark.parametrize("write", [by_function, by_hook, by_data_source])
def test_equal_names_are_refused(
    spark: SparkSession, tmp_path: Path, write: Callable[[DataFrame, str], None]
):
    df = spark.range(1).selectExpr("id AS k", "id AS c", "id AS c", A_TASK_RAN)

    with pytest.raises(Exception, match="columns with the same name: 'c'"):
        write(df, str(tmp_path / "shuffle"))


@exhaustive(but="name", least=2)
@pytest.mark.parametrize("name", ["a.b", "a`b", "*", "K"])
def test_names_map_in_arrow_cannot_find_go_through_the_data_source(
    spark: SparkSession, tmp_path: Path, name: str
):
    df = spark.createDataFrame([(1, 2)], "k int, c int").toDF("k", name)

    for write in (by_function, by_hook):
        with pytest.raises(SchemaError) as caught:
            write(df, str(tmp_path / "refused"))
        assert repr(name) in str(caught.value)

    by_data_source(df, str(tmp_path / "shuffle"))
    back = open_shuffle(str(tmp_path / "shuffle")).to_spark(spark)
    assert back.schema == df.schema
    assert [tuple(row) for row in back.collect()] == [(1, 2)]


def test_a_session_that_tells_cases_apart_may_write_both(spark: SparkSession, tmp_path: Path):
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        df = spark.createDataFrame([(1, 2)], "k int, K int")
        by_function(df, str(tmp_path / "shuffle"))
        back = open_shuffle(str(tmp_path / "shuffle")).to_spark(spark)
        assert back.schema == df.schema
        assert [tuple(row) for row in back.collect()] == [(1, 2)]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_a_frame_without_columns_is_refused(spark: SparkSession, tmp_path: Path):
    with pytest.raises(SchemaError, match="add a column"):
        arrow_shuffle.write_shuffle(
            spark.range(3).select(),
            str(tmp_path / "shuffle"),
            partitioner=RoundRobinPartitioner(),
            num_subpartitions=2,
        )
