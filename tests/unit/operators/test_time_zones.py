"""A time zone is one that Spark knows, by its names, or refused before anything runs."""

import datetime as dt

import pyarrow as pa
import pytest

from arrow_format.errors import OptionError
from tests.support.operations import written

AT = pa.table({"k": [1], "at": pa.array([dt.datetime(2024, 1, 1)], pa.timestamp("us", "UTC"))})


@pytest.fixture
def rows(tmp_path):
    return written(tmp_path / "s", AT, "k")


def zones(_, rows):
    for batch in rows:
        yield pa.record_batch({"zone": [str(batch["at"].type)]})


def days(rows):
    return rows.assign(at=rows["at"].dt.day)


@pytest.mark.parametrize("zone", ["Mars", 3, "+25:99"])
def test_one_that_is_not_known(rows, zone):
    with pytest.raises(OptionError, match=r"time_zone=.*expected a region"):
        rows.map_groups(days, "k bigint, at bigint").read(time_zone=zone)


@pytest.mark.parametrize(
    ("zone", "arrow"), [("GMT-8", "-08:00"), ("+0530", "+05:30"), ("Z", "UTC"), ("Asia/Tokyo",) * 2]
)
def test_names_of_spark(rows, zone, arrow):
    asked = rows.map_subpartitions(zones, "zone string")
    assert asked.read(time_zone=zone).read_all()["zone"].to_pylist() == [
        f"timestamp[us, tz={arrow}]"
    ]
    day = rows.map_groups(days, "k bigint, at bigint").read(time_zone=zone).read_all()["at"]
    assert day.to_pylist() == [31 if zone == "GMT-8" else 1]
