"""Operations give the same rows and types in Spark's tasks and in one process."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from arrow_shuffle import open_shuffle
from tests.support.guarantees import guarantee
from tests.support.operations import made, written
from tests.support.session_in_process import SessionInProcess, Settings
from tests.support.small_shuffles import FAST

TOKYO = "Asia/Tokyo"
SPARK = SessionInProcess(Settings(**{"spark.sql.session.timeZone": TOKYO}))
N = 7

ITEMS = pa.table(
    {
        "k": pa.array([i * i % 40 if i % 9 else None for i in range(300)], pa.int64()),
        "text": [f"t{i % 13}" for i in range(300)],
        "at": pa.array(
            [dt.datetime(2024, 3, 1 + i % 28, i % 24, tzinfo=dt.UTC) for i in range(300)],
            pa.timestamp("us", "UTC"),
        ),
        "price": pa.array([Decimal(i) / 4 for i in range(300)], pa.decimal128(12, 2)),
        "weight": [float(i % 17) if i % 5 else float("nan") for i in range(300)],
        "tags": [[str(i % 3), None] for i in range(300)],
        "small": pa.array([i % 100 for i in range(300)], pa.int8()),
    }
)
USERS = pa.table(
    {"k": list(range(5, 45)), "day": [dt.date(2024, 1, 1 + i % 31) for i in range(40)]}
)


@pytest.fixture(scope="module")
def items(tmp_path_factory):
    return written(tmp_path_factory.mktemp("items") / "s", ITEMS, "k", n=N)


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    return written(tmp_path_factory.mktemp("users") / "s", USERS, "k", n=N)


def assert_same(asked):
    """Equal names, types and rows; the zone of timestamps is a label, and Spark's is UTC."""
    here, spark = made(asked, time_zone=TOKYO), made(asked, spark=SPARK)
    assert here.schema.equals(spark.schema), (here.schema, spark.schema)
    assert sorted(map(str, here.to_pylist())) == sorted(map(str, spark.to_pylist()))
    assert here.num_rows
    explained = asked.explain(time_zone=TOKYO), asked.explain(SPARK)
    places = [str(each).split(", in ", 1) for each in explained]
    assert [place for place, _ in places] == [
        f"{place}: {asked._plan.what} of {asked._plan.paths}"
        for place in ("in this process", "in Spark")
    ]
    # They differ in tasks alone.
    assert len({tasks.partition("\n")[2] for _, tasks in places}) == 1


@guarantee("operations in one process")
@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
def test_joins(items, users, how):
    assert_same(items.join(users, "k", how))


@guarantee("operations in one process")
def test_aggregations(items):
    functions = ["sum", "avg", "min", "max", "count", "stddev", "first", "collect_list"]
    asked = {f"p_{name}": ("price", name) for name in functions}
    asked |= {f"w_{name}": ("weight", name) for name in functions if name != "collect_list"}
    asked |= {f"a_{name}": ("at", name) for name in ("min", "max", "last", "collect_set")}
    asked |= {"s": ("small", "sum"), "t": ("tags", "first"), "n": ("*", "count")}
    assert_same(items.select(filter="at >= '2024-03-05 09:00'").aggregate(["k", "text"], asked))


def hours(subpartition, items, users):
    known = set(users.read_all()["k"].to_pylist())
    for batch in items:
        rows = batch.to_pylist()
        yield pa.record_batch(
            {
                "hour": pa.array([row["at"].hour for row in rows], pa.int32()),
                "k": batch["k"],
                "known": [row["k"] in known for row in rows],
                "at": batch["at"],
            }
        )


SCHEMA = pa.schema(
    {"k": pa.int64(), "hour": pa.int32(), "known": pa.bool_(), "at": pa.timestamp("us", "UTC")}
)


@guarantee("operations in one process")
def test_a_function_per_subpartition(items, users):
    earlier = items.select("k", "at", filter="at < '2024-03-20 09:00'")
    assert_same(earlier.map_subpartitions(hours, SCHEMA, others=users.select("k")))


def first_hour(rows: pa.Table) -> pa.Table:
    first = rows.sort_by("at").slice(0, 1)
    hour = pa.array([at.hour for at in first["at"].to_pylist()], pa.int32())
    return pa.table({"k": first["k"], "hour": hour})


def latest(key, frame):
    return frame.sort_values(["at", "price"]).tail(1).assign(hour=frame["at"].max().hour)


@guarantee("operations in one process")
@pytest.mark.parametrize("function", [first_hour, latest])
def test_a_function_per_group(items, function):
    """Frames are made by Spark's converters in both."""
    schema = pa.schema({"k": pa.int64(), "hour": pa.int32()})
    if function is latest:
        schema = items.select("k", "at", "price", "text").schema.append(schema.field("hour"))
    assert_same(items.select("k", "at", "price", "text").map_groups(function, schema))


@pytest.mark.slow
@guarantee("operations in one process")
def test_results_that_are_written(items, users, tmp_path):
    """The same shuffle, but for the names of files; both may be appended to by the other."""
    joined = items.join(users)
    places = {"spark": SPARK, "here": None}
    receipts = [
        joined.write(tmp_path / out, spark=spark, options=FAST, target_partition_bytes=1)
        for out, spark in places.items()
    ]
    first, second = [(r.num_rows, r.subpartition_rows.to_pylist()) for r in receipts]
    assert first == second
    spark, here = (open_shuffle(tmp_path / out) for out in places)
    assert spark.schema.equals(here.schema)
    assert spark.partitioner == here.partitioner
    rows = [sorted(map(str, each.to_table().to_pylist())) for each in (spark, here)]
    assert rows[0] == rows[1]
    for out, session in zip(places, (None, SPARK), strict=True):
        joined.write(tmp_path / out, spark=session, mode="append", options=FAST)
        assert open_shuffle(tmp_path / out).num_rows == 2 * receipts[0].num_rows
