"""Operations give the same rows and types in Spark's tasks and in one process."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

import arrow_format
import connector
from arrow_format import open_shuffle, write_shuffle
from tests.support.guarantees import guarantee
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
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("both")
    for name, rows in (("items", ITEMS), ("users", USERS)):
        write_shuffle(rows, home / name, num_subpartitions=N, keys="k", options=FAST)
    return home


def of_spark(frame):
    return frame.toArrow()


def assert_same(spark, here):
    """Equal names, types and rows; the zone of timestamps is a label, and Spark's is UTC."""
    table = here.read_all()
    assert table.schema.names == spark.schema.names
    assert table.schema.equals(spark.schema), (table.schema, spark.schema)
    assert sorted(map(str, table.to_pylist())) == sorted(map(str, spark.to_pylist()))
    assert table.num_rows


@guarantee("operations in one process")
@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
def test_joins(home, how):
    arguments = (home / "items", home / "users", "k", how)
    assert_same(
        connector.join_shuffles(SPARK, *arguments).toArrow(),
        arrow_format.join_shuffles(*arguments),
    )


@guarantee("operations in one process")
def test_aggregations(home):
    functions = ["sum", "avg", "min", "max", "count", "stddev", "first", "collect_list"]
    asked = {f"p_{name}": ("price", name) for name in functions}
    asked |= {f"w_{name}": ("weight", name) for name in functions if name != "collect_list"}
    asked |= {f"a_{name}": ("at", name) for name in ("min", "max", "last", "collect_set")}
    asked |= {"s": ("small", "sum"), "t": ("tags", "first"), "n": ("*", "count")}
    arguments = (home / "items", ["k", "text"], asked)
    more = {"filter": "at >= '2024-03-05 09:00'"}
    assert_same(
        connector.aggregate_shuffle(SPARK, *arguments, **more).toArrow(),
        arrow_format.aggregate_shuffle(*arguments, **more, time_zone=TOKYO),
    )


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
def test_a_function_per_subpartition(home):
    arguments = ([home / "items", home / "users"], hours, SCHEMA)
    more = {"columns": [["k", "at"], ["k"]], "filter": ["at < '2024-03-20 09:00'", None]}
    assert_same(
        connector.map_subpartitions(SPARK, *arguments, **more).toArrow(),
        arrow_format.map_subpartitions(*arguments, **more, time_zone=TOKYO),
    )


def first_of_each(joined):
    for batch in joined:
        yield pa.record_batch({"h": [batch["at"][0].as_py().hour]})


@guarantee("operations in one process")
def test_results_that_are_written(home, tmp_path):
    """The same shuffle, but for the names of files; both may be appended to by the other."""
    receipts = []
    for package, first, out in ((connector, (SPARK,), "spark"), (arrow_format, (), "here")):
        receipts.append(
            package.join_shuffles(
                *first, home / "items", home / "users", into=tmp_path / out, options=FAST,
                target_partition_bytes=1,
            )
        )  # fmt: skip
        receipts[-1] = (receipts[-1].num_rows, receipts[-1].subpartition_rows.to_pylist())
    assert receipts[0] == receipts[1]
    spark, here = (open_shuffle(tmp_path / out) for out in ("spark", "here"))
    assert spark.schema.equals(here.schema)
    assert spark.partitioner == here.partitioner
    assert sorted(map(str, spark.to_table().to_pylist())) == sorted(
        map(str, here.to_table().to_pylist())
    )
    arrow_format.join_shuffles(
        home / "items", home / "users", into=tmp_path / "spark", mode="append", options=FAST
    )
    connector.join_shuffles(
        SPARK, home / "items", home / "users", into=tmp_path / "here", mode="append", options=FAST
    )
    for out in ("spark", "here"):
        assert open_shuffle(tmp_path / out).num_rows == 2 * receipts[0][0]
