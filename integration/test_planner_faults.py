"""Known faults of Spark's joins by reported partitionings, with the settings that trigger them.

Each lost, doubled or refused rows in some version of Spark. The reader's choices keep clear of all:
one division of n for every scan of a session, no reducers, a key for each range, and no
partitioning where Spark may cut one range in parts. So rows are those of Parquet, whatever is set.
"""

from __future__ import annotations

import random
from itertools import product
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import arrow_shuffle
from integration.programs.planner import (
    PLAIN,
    exchanged,
    plan_of,
    planning_session,
    rows_of,
)
from integration.programs.ways import FAST
from tests.support.exhaustive import exhaustive, part, times
from tests.support.guarantees import guarantee
from tests.support.spark_session import spark_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NUM_ROWS = 240
SIZES = (1, 3, 4, 6, 8, 12, 24)
"""Of each there is a shuffle of the same rows, ``t`` and its n."""

BUCKETING = "spark.sql.sources.v2.bucketing."
REDUCERS = {f"{BUCKETING}allowCompatibleTransforms.enabled": "true"}
ONE_SIDE = {f"{BUCKETING}shuffle.enabled": "true"}
PARTIALLY = {
    f"{BUCKETING}pushPartValues.enabled": "true",
    f"{BUCKETING}partiallyClusteredDistribution.enabled": "true",
}
NOT_ALL_KEYS = {
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    "spark.sql.requireAllClusterKeysForDistribution": "false",
    f"{BUCKETING}allowJoinKeysSubsetOfPartitionKeys.enabled": "true",
    f"{BUCKETING}allowKeysSubsetOfPartitionKeys.enabled": "true",  # its name from 4.3 on
}
ORDERED = {
    f"{BUCKETING}sorting.enabled": "true",
    f"{BUCKETING}partitionKeyOrdering.enabled": "true",
    f"{BUCKETING}preserveKeyOrderingOnCoalesce.enabled": "true",
    f"{BUCKETING}preserveOrderingOnCoalesce.enabled": "true",
}
FILTERED = {f"{BUCKETING}partition.filter.enabled": "true"}
NO_VALUES = {f"{BUCKETING}pushPartValues.enabled": "false"}

SETTINGS: dict[str, dict[str, str]] = {
    "as it is": {},
    "reducers": REDUCERS,
    "one side": ONE_SIDE,
    "partially": PARTIALLY,
    "subsets": NOT_ALL_KEYS,
    "filtered": FILTERED,
    "no values": NO_VALUES,
    "ordered": ORDERED,
    "all": REDUCERS | ONE_SIDE | PARTIALLY | NOT_ALL_KEYS | FILTERED | ORDERED,
    "all but parts": REDUCERS | ONE_SIDE | NOT_ALL_KEYS | FILTERED | ORDERED,
}


def numbers() -> pa.Table:
    """Rows of few keys: one of them has a third of the rows, one is null, and each has several."""
    keys = [0 if i % 3 == 0 else None if i % 40 == 1 else i % 60 for i in range(NUM_ROWS)]
    return pa.table(
        {
            "k": pa.array(keys, pa.int64()),
            "v": pa.array(range(NUM_ROWS), pa.int64()),
            "w": [f"w{i % 7}" for i in range(NUM_ROWS)],
        }
    )


@pytest.fixture(scope="module")
def sessions(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[SparkSession, SparkSession]:
    """One in which the names are shuffles, and one in which they are views of Parquet."""
    warehouse = tmp_path_factory.mktemp("faults")
    rows = numbers()
    tables = {f"t{n}": (rows, n) for n in SIZES}
    tables["distinct8"] = (pa.table({"k": [*range(80)], "x": [*range(80)]}), 8)
    tables["some8"] = (pa.table({"k": [1, 2, 3, 5, 8, 13], "x": [*range(6)]}), 8)
    tables["one8"] = (pa.table({"k": [7], "x": [7]}), 8)
    tables["none8"] = (tables["one8"][0][:0], 8)
    files, shuffles = spark.newSession(), planning_session(spark, warehouse, PLAIN)
    for name, (table, n) in tables.items():
        for some in (table[: len(table) // 2], table[len(table) // 2 :]):
            arrow_shuffle.write_shuffle(
                some, warehouse / name, keys="k", num_subpartitions=n, mode="append", options=FAST
            )
        path = warehouse / f"{name}.parquet"
        pq.write_table(table, path)
        files.read.parquet(str(path)).createOrReplaceTempView(name)
        # Of the planning session: tables that are no shuffles have another name.
        shuffles.read.parquet(str(path)).createOrReplaceTempView(f"{name}_of_parquet")
        files.read.parquet(str(path)).createOrReplaceTempView(f"{name}_of_parquet")
    return shuffles, files


@pytest.fixture(scope="module")
def known() -> dict[str, list[Any]]:
    """Rows of queries on Parquet, once they were asked for."""
    return {}


def check(
    sessions: tuple[SparkSession, SparkSession],
    known: dict[str, list[Any]],
    sql: str,
    settings: dict[str, str],
) -> str:
    """Compare the rows of a query, and return its plan."""
    shuffles, files = sessions
    with spark_settings(shuffles, settings):
        df = shuffles.sql(sql)
        found = rows_of(df)
        plan = plan_of(df)
    if sql not in known:
        known[sql] = rows_of(files.sql(sql))
    assert found == known[sql], f"{sql}\n{plan}"
    return plan


CHAIN = "SELECT count(*), sum(a.v + b.v), sum(c.v) FROM {} a JOIN {} b ON a.k = b.k JOIN {} c ON {}"
TWO_BY_TWO = (
    "SELECT count(*), sum(l.v), sum(r.v) FROM (SELECT a.k, a.v FROM {} a JOIN {} b ON a.k = b.k) l "
    "JOIN (SELECT a.k, b.v FROM {} a JOIN {} b ON a.k = b.k) r ON l.k = r.k WHERE l.v < 60"
)
UNION = (
    "SELECT count(*), sum(u.v) FROM (SELECT a.k, a.v FROM {} a JOIN {} b ON a.k = b.k "
    "UNION ALL SELECT k, v FROM {} WHERE k < 0) u JOIN {} c ON u.k = c.k"
)
UNION_OF_JOINS = (
    "SELECT u.k, count(*), sum(u.v) FROM (SELECT a.k, a.v FROM {} a JOIN {} b ON a.k = b.k "
    "UNION ALL SELECT a.k, b.v FROM {} a JOIN {} b ON a.k = b.k) u GROUP BY u.k"
)
TRIPLES = [
    ("t8", "t8", "t8"), ("t4", "t8", "t24"), ("t24", "t8", "t4"), ("t8", "t4", "t24"),
    ("t4", "t24", "t8"), ("t8", "t12", "t6"), ("t12", "t8", "t3"), ("t1", "t8", "t24"),
    ("t24", "t24", "t12"), ("t3", "t4", "t3"),
]  # fmt: skip
FOURS = [
    ("t8", "t8", "t8", "t8"), ("t4", "t8", "t12", "t24"), ("t24", "t4", "t8", "t12"),
    ("t12", "t8", "t12", "t3"), ("t8", "t8", "t12", "t12"), ("t12", "t6", "t6", "t24"),
]  # fmt: skip
SHAPES = [
    *(CHAIN.format(*of, on) for of, on in product(TRIPLES, ("a.k = c.k", "b.k = c.k"))),
    *(shape.format(*of) for shape in (TWO_BY_TWO, UNION, UNION_OF_JOINS) for of in FOURS),
]


@guarantee("joins in SQL")
@pytest.mark.parametrize("settings", ["as it is", "reducers", "ordered", "all but parts"])
def test_chains_of_joins_of_several_n(  # SPARK-59121
    sessions: tuple[SparkSession, SparkSession], known: dict[str, list[Any]], settings: str
) -> None:
    """Reducers reduced both sides, or one twice: 8 of 24 rows were left."""
    for sql in part(SHAPES, 12):
        plan = check(sessions, known, sql, SETTINGS[settings])
        assert "Reducers: [" not in plan.replace("Reducers: []", "")
    same = CHAIN.format("t8", "t8", "t8", "a.k = c.k")
    assert exchanged(check(sessions, known, same, SETTINGS[settings])) == []


ONE_SIDED = [
    # Keys that are outside of what the other side declares, then another join.
    "SELECT count(*), sum(a.v), sum(c.x) FROM {0} a JOIN distinct8_of_parquet b ON a.k = b.k "
    "JOIN distinct8 c ON b.k = c.k",
    "SELECT count(*), sum(a.v), count(b.x), count(c.x) FROM {0} a "
    "FULL JOIN distinct8_of_parquet b ON a.k = b.k FULL JOIN distinct8 c ON b.k = c.k",
    "SELECT b.k, a.v, c.x FROM {0} a RIGHT JOIN distinct8_of_parquet b ON a.k = b.k "
    "LEFT JOIN some8 c ON b.k = c.k",
    "SELECT b.k, a.v, c.x FROM (SELECT * FROM {0} WHERE k IN (1, 2)) a "
    "RIGHT JOIN distinct8_of_parquet b ON a.k = b.k JOIN distinct8 c ON b.k = c.k",
    "SELECT b.k, c.x FROM some8 a RIGHT JOIN distinct8_of_parquet b ON a.k = b.k "
    "JOIN {0} c2 ON b.k = c2.k JOIN distinct8 c ON b.k = c.k",
    "SELECT count(*), sum(b.x) FROM one8 a RIGHT JOIN distinct8_of_parquet b ON a.k = b.k "
    "JOIN {0} c ON b.k = c.k",
    "SELECT count(*), sum(b.x) FROM none8 a RIGHT JOIN distinct8_of_parquet b ON a.k = b.k "
    "JOIN {0} c ON b.k = c.k",
    "SELECT b.k, count(*) FROM {0} a FULL JOIN t8_of_parquet b ON a.k = b.k GROUP BY b.k",
]


@guarantee("joins in SQL")
@pytest.mark.parametrize("settings", ["as it is", "one side", "all", "all but parts"])
def test_one_side_is_exchanged_onto_the_other_s_keys(  # SPARK-59050
    sessions: tuple[SparkSession, SparkSession], known: dict[str, list[Any]], settings: str
) -> None:
    """Rows of keys outside of the declared ones were lost: 0 of 4 rows."""
    for sql in ONE_SIDED:
        for table in ("t8", "t24"):
            check(sessions, known, sql.format(table), SETTINGS[settings])


IN_PARTS = [
    "SELECT a.k, a.v, b.v FROM t8 a JOIN t8 b ON a.k = b.k WHERE a.v < 40",
    "SELECT count(*), sum(a.v) FROM t8 a LEFT JOIN distinct8 b ON a.k = b.k",
    "SELECT k, count(*), sum(v) FROM t8 GROUP BY k",
    "SELECT DISTINCT k FROM t8",
    "SELECT a.k, count(*) FROM t8 a JOIN distinct8 b ON a.k = b.k GROUP BY a.k",
    "SELECT DISTINCT a.k, b.x FROM t8 a JOIN distinct8 b ON a.k = b.k",
    "SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v) AS r FROM t8",
    "SELECT a.k, a.v, sum(b.x) OVER (PARTITION BY a.k) AS s FROM t8 a "
    "JOIN distinct8 b ON a.k = b.k",
    "SELECT a.k, count(*) FROM t8 a JOIN t8 b ON a.k = b.k JOIN distinct8 c ON b.k = c.k "
    "GROUP BY a.k",
    "SELECT a.k FROM t8 a LEFT ANTI JOIN some8 b ON a.k = b.k",
    "SELECT a.k, b.v FROM distinct8 a FULL JOIN t8 b ON a.k = b.k",
]


@guarantee("joins in SQL")
@pytest.mark.parametrize("settings", ["as it is", "partially", "all"])
def test_ranges_are_not_read_in_parts(  # SPARK-58996, SPARK-53074, SPARK-55848
    sessions: tuple[SparkSession, SparkSession], known: dict[str, list[Any]], settings: str
) -> None:
    """Of a skewed key, rows were doubled; duplicates and windows saw parts of a key."""
    for sql in IN_PARTS:
        plan = check(sessions, known, sql, SETTINGS[settings])
        if settings != "as it is":
            assert "partiallyClusteredDistribution.enabled is true" in plan
    with spark_settings(sessions[0], SETTINGS[settings]):
        joined = [
            of.table("t8").join(of.table("distinct8"), "k").dropDuplicates(["k"]).count()
            for of in sessions
        ]
    assert joined[0] == joined[1]


WITHOUT_KEYS = [
    "SELECT a.k, a.v, b.x FROM t8 a LEFT JOIN (SELECT * FROM distinct8 WHERE k = 3) b ON a.k = b.k",
    "SELECT a.k, a.v, b.x FROM t8 a LEFT JOIN (SELECT * FROM distinct8 WHERE k = -1) b "
    "ON a.k = b.k",
    "SELECT a.k, a.v FROM t8 a LEFT JOIN (SELECT * FROM distinct8 WHERE k IN (1, 2, 3, 5)) b "
    "ON a.k = b.k WHERE b.k IS NULL",
    "SELECT count(*) FROM t8 a JOIN none8 b ON a.k = b.k",
    "SELECT a.k, b.x FROM t8 a FULL JOIN none8 b ON a.k = b.k",
    "SELECT a.k, b.k, a.x FROM none8 a FULL JOIN none8 b ON a.k = b.k",
    "SELECT k, count(*) FROM none8 GROUP BY k",
    "SELECT count(*), sum(u.k) FROM (SELECT a.k FROM t8 a JOIN t8 b ON a.k = b.k UNION ALL "
    "SELECT k FROM t8 WHERE k = -5) u JOIN distinct8 c ON u.k = c.k",
    "SELECT count(*) FROM (SELECT * FROM t8 WHERE _subpartition IN (1, 6)) a "
    "JOIN (SELECT * FROM distinct8 WHERE _subpartition IN (2, 6)) b ON a.k = b.k",
    "SELECT count(*) FROM (SELECT * FROM t8 WHERE _subpartition IN (0, 7)) a "
    "FULL JOIN (SELECT * FROM distinct8 WHERE _subpartition IN (3, 4)) b ON a.k = b.k",
    "SELECT count(*), sum(a.v) FROM (SELECT * FROM t8 WHERE k IN (1, 13, 59)) a "
    "JOIN (SELECT * FROM distinct8 WHERE k IN (2, 13)) b ON a.k = b.k "
    "JOIN (SELECT * FROM t8 WHERE k IN (13, 17, 19, 23)) c ON c.k = b.k",
    "SELECT count(*), sum(a.v) FROM (SELECT * FROM t8 WHERE k <= 0) a JOIN t8 b ON a.k = b.k",
]


@guarantee("joins in SQL")
@pytest.mark.parametrize(
    "settings", ["as it is", "one side", "filtered", "no values", "all", "all but parts"]
)
def test_legs_that_filters_leave_without_keys(  # SPARK-59176
    sessions: tuple[SparkSession, SparkSession], known: dict[str, list[Any]], settings: str
) -> None:
    """Such a leg failed, or its empty ranges were taken for those of the other side."""
    _, files = sessions
    for sql in WITHOUT_KEYS:
        if "_subpartition" not in sql:
            check(sessions, known, sql, SETTINGS[settings])
            continue
        if sql not in known:
            plainly = sql.replace("_subpartition", "pmod(hash(k), 8)")
            known[sql] = rows_of(files.sql(plainly))
        check(sessions, known, sql, SETTINGS[settings])


AT_RUN_TIME = [
    "SELECT count(*), sum(a.v) FROM t24 a JOIN {0} b ON a.k = b.k WHERE b.x < {1}",
    "SELECT count(*), sum(a.v) FROM t24 a JOIN t24 c ON a.k = c.k JOIN {0} b ON a.k = b.k "
    "WHERE b.x < {1}",
    "SELECT a.k, count(*) FROM t24 a JOIN {0} b ON a.k = b.k WHERE b.x < {1} GROUP BY a.k",
    "SELECT count(*), sum(c.v) FROM t24 a JOIN {0} b ON a.k = b.k FULL JOIN t24 c ON a.k = c.k "
    "WHERE b.x < {1} OR b.x IS NULL",
    "SELECT a.k, c.v FROM (SELECT a.k FROM t24 a JOIN {0} b ON a.k = b.k WHERE b.x < {1}) a "
    "RIGHT JOIN t24 c ON a.k = c.k",
]


@guarantee("joins in SQL")
@pytest.mark.parametrize("settings", ["as it is", "one side", "all", "all but parts"])
def test_filters_of_run_time_empty_ranges_of_one_side(
    sessions: tuple[SparkSession, SparkSession], known: dict[str, list[Any]], settings: str
) -> None:
    """Ranges stay, with fewer rows: those of the other side are joined with them."""
    pruned = 0
    broadcast = {"spark.sql.autoBroadcastJoinThreshold": "10MB"}
    for sql, (table, most) in product(
        AT_RUN_TIME, (("distinct8_of_parquet", 3), ("distinct8", 5), ("some8_of_parquet", 0))
    ):
        for adaptive in ("false", "true"):
            more = broadcast | {"spark.sql.adaptive.enabled": adaptive}
            plan = check(sessions, known, sql.format(table, most), SETTINGS[settings] | more)
            pruned += "dynamicpruning" in plan
    assert pruned > len(AT_RUN_TIME)


class Trees:
    """Draws queries: joins of joins, with groups, windows, unions and filters in between."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def draw(self) -> str:
        """Return a query that sums up the rows of a tree."""
        tree = self._tree(self._random.choice((2, 2, 3)))
        return f"SELECT count(*), count(k), sum(k), sum(v), sum(hash(k, v) % 1000) FROM ({tree})"

    def settings(self) -> dict[str, str]:
        choose = self._random.choice
        return SETTINGS[choose(list(SETTINGS))] | {
            "spark.sql.adaptive.enabled": choose(("true", "false")),
            "spark.sql.autoBroadcastJoinThreshold": choose(("-1", "-1", "10MB")),
        }

    def _tree(self, depth: int) -> str:
        choose = self._random.choice
        if depth == 0:
            return self._leaf()
        kind = choose(("join",) * 6 + ("only",) * 2 + ("group", "window", "distinct", "union"))
        inside = self._tree(depth - 1)
        if kind == "group":
            return f"SELECT k, max(v) AS v FROM ({inside}) GROUP BY k"
        if kind == "window":
            return f"SELECT k, min(v) OVER (PARTITION BY k) + v AS v FROM ({inside})"
        if kind == "distinct":
            return f"SELECT DISTINCT k, v % 7 AS v FROM ({inside})"
        other = self._tree(choose((0, depth - 1)))
        if kind == "union":
            return f"{inside} UNION ALL SELECT k, v FROM ({other})"
        if kind == "only":
            how = choose(("SEMI", "ANTI"))
            return f"SELECT a.k, a.v FROM ({inside}) a LEFT {how} JOIN ({other}) b ON a.k = b.k"
        how = choose(("INNER", "INNER", "INNER", "LEFT", "RIGHT", "FULL"))
        key = choose(("a.k", "b.k", "coalesce(a.k, b.k)"))
        return (
            f"SELECT {key} AS k, coalesce(a.v, 0) + coalesce(b.v, 1) AS v FROM ({inside}) a "
            f"{how} JOIN ({other}) b ON a.k = b.k"
        )

    def _leaf(self) -> str:
        choose = self._random.choice
        table = choose(("t8", "t8", "t24", "t4", "t12", "distinct8", "distinct8", "some8", "one8",
                        "none8", "t8_of_parquet", "distinct8_of_parquet"))  # fmt: skip
        value = "v" if table.startswith("t") else "x"
        where = choose(("TRUE", "TRUE", "k > 20", "k = 13", "k IN (1, 2, 30)", "k IS NOT NULL",
                        f"{value} % 2 = 0", "k < 0"))  # fmt: skip
        return f"SELECT k, {value} AS v FROM {table} WHERE {value} < 70 AND {where}"


@guarantee("joins in SQL")
@pytest.mark.parametrize("seed", [41])
def test_trees_of_joins_under_any_settings(
    sessions: tuple[SparkSession, SparkSession], seed: int
) -> None:
    trees = Trees(seed)
    known: dict[str, list[Any]] = {}
    for _ in range(times(25, 400)):
        check(sessions, known, trees.draw(), trees.settings())


@exhaustive(but="n", least=2)
@pytest.mark.parametrize("n", [3, 8, 24])
def test_frames_are_joined_as_tables_are(
    sessions: tuple[SparkSession, SparkSession], n: int
) -> None:
    def of(session: SparkSession) -> DataFrame:
        table = session.table(f"t{n}")
        once = table.groupBy("k").agg(F.sum("v").alias("s"))
        return once.join(table.where("v % 2 = 0"), "k").join(once.alias("again"), "k", "left")

    shuffles, files = sessions
    df = of(shuffles)
    assert rows_of(df) == rows_of(of(files))
    assert exchanged(plan_of(df)) == []


def test_names_of_settings_are_those_of_this_spark(sessions: tuple[SparkSession, Any]) -> None:
    """A name that Spark does not know would trigger nothing."""
    conf = getattr(getattr(sessions[0]._jvm.org.apache.spark.sql.internal, "SQLConf$"), "MODULE$")
    for name, settings in SETTINGS.items():
        assert not settings or any(map(conf.containsConfigKey, settings)), name
