"""As-of joins in tasks of Spark, against the same in Spark's SQL, and on real flights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import arrow_shuffle
from arrow_shuffle import MergePolicy, open_shuffle
from integration.programs.datasets import flights
from integration.programs.ways import FAST
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

KEY = "CASE id % 19 WHEN 0 THEN NULL WHEN 1 THEN double('NaN') WHEN 2 THEN -0.0D ELSE id % 40 END"
LABELS = (
    f"{KEY} AS k", "IF(id % 13 = 0, NULL, timestamp_seconds(id * 7919 % 5000)) AS at", "id",
    "cast(id AS decimal(25, 3)) AS d",
)  # fmt: skip
FEATURES = (
    f"{KEY} AS k", "IF(id % 17 = 0, NULL, timestamp_seconds(id * 104729 % 5000 div 50 * 50)) AS at",
    "id AS n", "map('x', array(named_struct('y', id))) AS m", "parse_json('[1]') AS j",
    "timestamp_ntz'2020-01-01' AS z",
)  # fmt: skip
"""Some of one key have one time: the number of a row says which was written last."""

OTHER = {
    "backward": ("f.at <= l.at", "f.at DESC, n DESC"),
    "forward": ("f.at >= l.at", "f.at, n"),
    "nearest": (
        "f.at <> l.at IS NOT NULL",
        "abs(unix_seconds(f.at) - unix_seconds(l.at)), f.at, n DESC",
    ),
}
"""Which rows come into question, and in which order."""


def expected(spark: SparkSession, direction: str, seconds: int | None) -> list[Any]:
    """Return rows of the same in Spark's SQL: rows of each label numbered, and the first taken."""
    condition, order = OTHER[direction]
    if seconds is not None:
        condition += f" AND abs(unix_seconds(f.at) - unix_seconds(l.at)) <= {seconds}"
    return spark.sql(f"""
        WITH found AS (
            SELECT l.*, f.n, to_json(f.m) AS m, to_json(f.j) AS j, f.z,
                row_number() OVER (PARTITION BY l.id ORDER BY f.n IS NULL, {order}) AS place
            FROM labels l LEFT JOIN features f ON l.k = f.k AND {condition}
        ) SELECT id, k, at, d, n, m, j, z FROM found WHERE place = 1
    """).collect()


def sorted_rows(rows: DataFrame) -> list[Any]:
    return rows.selectExpr(
        "id", "k", "at", "d", "n", "to_json(m) AS m", "to_json(j) AS j", "z"
    ).collect()  # fmt: skip


def as_set(rows: list[Any]) -> list[str]:
    return sorted(map(str, rows))


@guarantee("rows as of a time")
def test_awkward_rows_are_joined_as_in_sparks_sql(spark: SparkSession, tmp_path: Path) -> None:
    labels = spark.range(0, 1_500, 1, 2).selectExpr(*LABELS)
    parts = [spark.range(i, 900, 3, 1).selectExpr(*FEATURES) for i in range(3)]
    labels.createOrReplaceTempView("labels")
    spark.range(0, 900).selectExpr(*FEATURES).createOrReplaceTempView("features")
    arrow_shuffle.write_shuffle(
        labels, tmp_path / "l", keys="k", num_subpartitions=24, options=FAST
    )
    for number, part in enumerate(parts):  # each a day: those of a later one stand later
        part = part.selectExpr("k", "at", f"n * 3 + {number} AS n", "m", "j", "z")
        arrow_shuffle.write_shuffle(
            part, tmp_path / "f", keys="k", num_subpartitions=16, mode="append",
            sort_by=["k", "at"], options=FAST,
        )  # fmt: skip
    newest = open_shuffle(tmp_path / "f")
    newest.to_spark(spark).createOrReplaceTempView("features")
    # Of rows of one time, the shuffle has the order of its days.
    place = "n % 3 * 1000 + n div 3 AS n"
    spark.table("features").selectExpr("k", "at", place, "m", "j", "z").createOrReplaceTempView(
        "features"
    )
    for merge in (False, True):
        if merge:
            policy = MergePolicy(rewrite="always")
            newest.merge("subpartition", policy=policy, options=FAST, spark=spark)
            newest = newest.newest()
        for direction in OTHER:
            for seconds in (None, 30):
                asked = open_shuffle(tmp_path / "l").join(
                    newest, how="asof", time="at", direction=direction,
                    tolerance=seconds and f"{seconds}s",
                )  # fmt: skip
                rows = asked.to_spark(spark)
                assert [(f.name, f.dataType) for f in rows.schema][:4] == [
                    (f.name, f.dataType) for f in labels.schema
                ]
                found = sorted_rows(rows.selectExpr("k", "at", "id", "d", place, "m", "j", "z"))
                assert as_set(found) == as_set(expected(spark, direction, seconds))


@pytest.fixture(scope="module")
def flown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Flights of 2013 by aircraft, and the delay with which each one landed before."""
    path = tmp_path_factory.mktemp("flown")
    rows = ds.dataset(flights())
    how: dict[str, Any] = {"keys": "tailnum", "num_subpartitions": 32, "options": FAST}
    asked = ["tailnum", "time_hour", "flight", "dest"]
    arrow_shuffle.write_shuffle(rows, path / "departures", columns=asked, **how)
    for file in sorted(flights().glob("*.parquet")):  # each month as it comes
        landed = pq.read_table(file, columns=["tailnum", "time_hour", "arr_delay"])
        arrow_shuffle.write_shuffle(
            landed, path / "landings", mode="append", sort_by=["tailnum", "time_hour"], **how
        )
    return path


def test_flights_have_the_delay_of_the_flight_before(spark: SparkSession, flown: Path) -> None:
    departures, landings = (open_shuffle(flown / name) for name in ("departures", "landings"))
    asked = departures.join(
        landings, how="asof", time="time_hour", tolerance="1d", allow_exact_matches=False
    )
    receipt = asked.write(flown / "set", spark=spark, options=FAST)
    assert receipt.num_rows == departures.num_rows
    spark.read.parquet(str(flights())).createOrReplaceTempView("flown")
    # Of an hour an aircraft may have two flights. A day has 24 hours, in an INTERVAL of Spark not.
    sums = spark.sql("""
        WITH landed AS (SELECT tailnum, time_hour,
                        collect_set(coalesce(arr_delay, -999)) AS delays FROM flown
                        WHERE tailnum IS NOT NULL GROUP BY 1, 2),
        before AS (SELECT *, lag(time_hour) OVER (PARTITION BY tailnum ORDER BY time_hour) AS last,
                   lag(delays) OVER (PARTITION BY tailnum ORDER BY time_hour) AS was FROM landed)
        SELECT f.tailnum, f.time_hour, f.flight,
               IF(unix_seconds(b.time_hour) - unix_seconds(b.last) <= 86400, b.was, NULL) AS was
        FROM flown f LEFT JOIN before b ON f.tailnum = b.tailnum AND f.time_hour = b.time_hour
    """)
    kept = open_shuffle(flown / "set").to_spark(spark)
    both = kept.join(sums.distinct(), ["tailnum", "time_hour", "flight"])
    wrong = both.where("NOT array_contains(coalesce(was, array(-999)), coalesce(arr_delay, -999))")
    known = kept.where("arr_delay IS NOT NULL").count()
    assert wrong.collect() == []
    assert known > 100_000
    here: pa.Table = asked.to_table()
    assert here.num_rows - here["arr_delay"].null_count == known
