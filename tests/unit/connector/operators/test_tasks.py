"""What filters and columns of operations say where they do not fit, and Spark's time zones."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrow_format.errors import OptionError, SchemaError
from connector.operators.spark_run import python_time_zone
from tests.support.operations import written

ROWS = pa.table({"k": [1], "a": [1]})


@pytest.mark.parametrize("column", [5, ["k"], None])
def test_what_is_no_column(tmp_path, column):
    rows = written(tmp_path / "s", ROWS, "k")
    with pytest.raises(SchemaError, match=r"select: column .*: expected names, such as"):
        rows.select("k", column)
    with pytest.raises(SchemaError, match="column 'x' is not there; columns are k, a"):
        rows.select("x")


def test_a_filter_that_does_not_fit_names_its_shuffle(tmp_path):
    a = written(tmp_path / "a", ROWS, "k")
    b = written(tmp_path / "b", ROWS.rename_columns(["k", "b"]), "k")
    for rows, filter in ((b, "a = 1"), (a, pc.field("b") == 1)):
        with pytest.raises(SchemaError, match=rf"^filter of {rows.path}: column '.' is not there"):
            rows.select(filter=filter)
    with pytest.raises(OptionError, match=rf"^filter of {a.path}: .*does not parse: line 1, col"):
        a.select(filter="a = = 1")
    joined = a.select("k").join(b)
    with pytest.raises(SchemaError, match=r"^filter of the join of .*column 'a' is not there"):
        joined.select(filter="a = 1")


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
