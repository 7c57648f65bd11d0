"""A DataFrame reads the very rows it was made for, whatever else the session reads or writes."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import arrow_format
import arrow_shuffle
from arrow_format import WriteOptions
from arrow_format.log.snapshot import VersionSpan
from arrow_shuffle import open_shuffle
from connector.source import described as described_source
from integration.programs.ways import FAST

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame


def write(path: Path, start: int, end: int, **options: object) -> None:
    arrow_format.write_shuffle(
        pa.table({"k": range(start, end)}),
        path,
        keys="k",
        num_subpartitions=2,
        **({"options": FAST} | options),  # type: ignore[arg-type]
    )


def values(df: DataFrame) -> list[int]:
    return sorted(row.k for row in df.collect())


@pytest.fixture
def registered(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that were registered with Spark, in order."""
    names = []
    kind = type(spark.dataSource)
    register = kind.register

    def counted(self: object, source: type) -> None:
        register(self, source)
        names.append(source.name())

    monkeypatch.setattr(kind, "register", counted)
    return names


def test_two_consumers_of_one_path_read_their_own_rows(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "s"
    kept = WriteOptions(sync=False, result_type="PIPELINED")
    write(path, 0, 10, options=kept)
    with arrow_shuffle.consume(path, consumer="early") as consumption:
        assert values(consumption.shuffle.to_spark(spark)) == list(range(10))
    write(path, 10, 20, mode="append", options=kept)
    write(path, 20, 30, mode="overwrite", options=kept)
    late = arrow_shuffle.consume(path, consumer="late")
    early = arrow_shuffle.consume(path, consumer="early")
    assert [one.shuffle.span for one in (late, early)] == [
        VersionSpan(1, 1, 3),
        VersionSpan(0, 1, 3),
    ]
    frames = [one.shuffle.to_spark(spark) for one in (late, early)]
    assert [values(df) for df in frames] == [list(range(30)), list(range(10, 30))]
    for one in (late, early):
        one.commit()


def test_paths_that_differ_in_case_are_two_shuffles(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "Events", 0, 10)
    write(tmp_path / "events", 100, 105)
    upper, lower = (open_shuffle(tmp_path / name).to_spark(spark) for name in ("Events", "events"))
    assert upper.union(lower).count() == 15
    assert values(upper) == list(range(10))
    assert values(lower) == list(range(100, 105))


@pytest.mark.parametrize("mode", ["overwrite", "append"])
def test_a_frame_of_a_shuffle_that_was_removed_is_an_error(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    """Also where another one is there by now, with a version of that number."""
    path = tmp_path / "s"
    write(path, 0, 10)
    df = open_shuffle(path).to_spark(spark)
    shutil.rmtree(path)
    with pytest.raises(Exception, match=r"(?s)ShuffleNotFoundError.*s: is not there; check the"):
        df.collect()
    write(path, 100, 110, mode=mode)
    df = open_shuffle(path).to_spark(spark)
    shutil.rmtree(path)
    write(path, 200, 210, mode=mode)
    with pytest.raises(Exception, match=r"(?s)CorruptShuffleError.*version 1 is another one than"):
        df.collect()
    assert values(open_shuffle(path).to_spark(spark)) == list(range(200, 210))


def test_what_is_read_again_is_registered_once(
    spark: SparkSession, tmp_path: Path, registered: list[str]
) -> None:
    path = tmp_path / "s"
    write(path, 0, 10)

    def read(session: SparkSession) -> list[int]:
        return values(open_shuffle(path).to_spark(session))

    assert read(spark) == read(spark) == list(range(10))
    # As foreachBatch makes it for each batch: the same session in another object.
    again = SparkSession(spark.sparkContext, spark._jsparkSession)
    assert read(again) == list(range(10))
    shutil.rmtree(path)
    write(path, 20, 30)
    assert read(spark) == list(range(20, 30))
    assert registered == [f"arrow_shuffle {path} version 1"]


def test_sessions_have_names_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    """Also while another session is active, which has the name."""
    write(tmp_path / "s", 0, 10)
    for session in (spark, spark.newSession(), spark.newSession(), spark):
        assert open_shuffle(tmp_path / "s").to_spark(session).count() == 10


def test_a_global_view_is_made_of_the_source_itself(spark: SparkSession, tmp_path: Path) -> None:
    """Spark has names of `to_spark` in one session; what it finds by itself, in all."""
    path = tmp_path / "s"
    write(path, 0, 10)
    write(path, 10, 20, mode="append")
    other = spark.newSession()
    by_name = spark.read.format("arrow_shuffle").option("version", 1).load(str(path))
    try:
        by_name.createOrReplaceGlobalTempView("of_shuffle")
        assert values(other.table("global_temp.of_shuffle")) == list(range(10))
        open_shuffle(path).to_spark(spark).createOrReplaceGlobalTempView("of_shuffle")
        with pytest.raises(Exception, match="DATA_SOURCE_NOT_EXIST"):
            other.table("global_temp.of_shuffle").collect()
        assert spark.table("global_temp.of_shuffle").count() == 20
    finally:
        spark.catalog.dropGlobalTempView("of_shuffle")


def test_a_session_has_a_limited_number_of_names(
    spark: SparkSession, tmp_path: Path, registered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(described_source, "MOST_NAMES", 3)
    session = spark.newSession()
    path = tmp_path / "s"
    frames = []
    for version in range(6):
        write(path, 10 * version, 10 * version + 10, mode="append")
        frames.append(open_shuffle(path).to_spark(session, coalesce=True))  # in Python
    assert [df.count() for df in frames] == [10, 20, 30, 40, 50, 60]
    assert registered == [
        *(f"arrow_shuffle {path} version {version}" for version in (1, 2, 3)),
        "arrow_shuffle read",
    ]
