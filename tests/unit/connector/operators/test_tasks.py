"""Arguments of operations in Spark tasks, and time zones as Spark writes them."""

from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import LongType, StructType

from arrow_format import OptionError, SchemaError, write_shuffle
from connector.operators.aggregate import aggregate_shuffle
from connector.operators.join import join_shuffles
from connector.operators.map import map_subpartitions
from connector.operators.tasks import python_time_zone

UTC = SimpleNamespace(conf={"spark.sql.session.timeZone": "UTC"})
"""What arguments are checked with."""

ROWS = StructType().add("n", LongType())


@pytest.mark.parametrize("columns", [5, (name for name in "k"), [5], [["k"], [5]], [["k"], 5]])
def test_what_are_no_columns(tmp_path, columns):
    write_shuffle(pa.table({"k": [1]}), tmp_path / "s", num_subpartitions=2, keys="k")
    paths = [tmp_path / "s"] * 2
    with pytest.raises(OptionError, match=r"columns=.*: expected"):
        map_subpartitions(UTC, paths, print, ROWS, columns=columns)


def test_a_filter_that_does_not_fit_names_its_side(tmp_path):
    for name in "ab":
        write_shuffle(
            pa.table({"k": [1], name: [1]}), tmp_path / name, num_subpartitions=2, keys="k"
        )
    paths = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(SchemaError, match=r"^right_filter: column 'a' is not there; columns are k"):
        join_shuffles(UTC, *paths, left_filter="a = 1", right_filter="a = 1")
    with pytest.raises(OptionError, match=r"^left_filter: filter does not parse: line 1, column 5"):
        join_shuffles(UTC, *paths, left_filter="a = = 1")
    with pytest.raises(SchemaError, match=rf"^filter of {paths[1]}: column 'a' is not there"):
        map_subpartitions(UTC, paths, print, ROWS, filter="a = 1")
    with pytest.raises(OptionError, match=r"^filter=\['a = 1'\]: expected one, or one for each of"):
        map_subpartitions(UTC, paths, print, ROWS, filter=["a = 1"])
    with pytest.raises(SchemaError, match=r"^filter: column 'x' is not there"):
        aggregate_shuffle(UTC, paths[0], "k", [], filter=pc.field("x") == 1)


@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        *[(zone, zone) for zone in ("UTC", "GMT", "America/New_York", "GMT0", "EST")],
        *[(zone, "UTC") for zone in ("Z", "UT")],
        *[(zone, "+08:00") for zone in ("+8", "+08", "+8:0", "+08:00", "GMT+8", "UTC+8", "UT+08")],
        *[(zone, "-05:30") for zone in ("-0530", "-5:30", "-05:30", "UTC-0530", "GMT-5:30")],
        ("+5:3", "+05:03"),
        ("PST", "America/Los_Angeles"),
        ("JST", "Asia/Tokyo"),
    ],
)
def test_time_zones_of_spark_as_python_writes_them(zone, expected):
    name = python_time_zone(zone)
    assert name == expected
    moment = pa.array([1_719_828_000_000_000]).cast(pa.timestamp("us", name))
    assert moment[0].as_py().tzinfo is not None
