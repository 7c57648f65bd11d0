"""Groups of subpartitions for tasks: whole, in order, balanced; and their memory."""

import pickle
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructType

from arrow_format import OptionError, ReadOptions, SchemaError, write_shuffle
from arrow_format.operators.inputs import open_shuffles
from arrow_format.operators.tasks import balanced_groups
from connector.operators.aggregate import aggregate_shuffle
from connector.operators.join import join_shuffles
from connector.operators.map import map_subpartitions
from connector.operators.tasks import python_time_zone

UTC = SimpleNamespace(conf={"spark.sql.session.timeZone": "UTC"})
"""What arguments are checked with."""

ROWS = StructType().add("n", LongType())


@given(
    st.lists(st.integers(1, 1 << 40), min_size=1, max_size=60), st.integers(1, 1 << 42), st.data()
)
def test_every_subpartition_is_in_one_group(weights, most, data):
    numbers = st.lists(st.integers(0, len(weights) - 1), min_size=1, unique=True).map(sorted)
    wanted = data.draw(numbers)
    array = np.array(weights, np.int64)
    groups = balanced_groups(array, most, np.array(wanted))
    found = [[number for first, end in group for number in range(first, end)] for group in groups]
    assert [number for group in found for number in group] == wanted
    assert all(found)
    for group in found:
        # Half of the first and half of the last may stand over.
        ends = (weights[group[0]] + weights[group[-1]]) / 2
        assert (
            sum(weights[number] for number in group) <= (most + ends) * (1 + 1e-9)
            or len(group) == 1
        )
    assert len(groups) <= -(-sum(weights[number] for number in wanted) // most)


def test_equal_subpartitions_make_equal_groups():
    groups = balanced_groups(np.full(1_000, 10), 1_300, np.arange(1_000))
    assert [end - first for ((first, end),) in groups] == [125] * 8


def test_ranges_of_a_group_are_as_long_as_they_can_be():
    wanted = np.array([0, 1, 5, 6, 9])
    assert balanced_groups(np.ones(10, np.int64), 100, wanted) == (((0, 2), (5, 7), (9, 10)),)


def test_shuffles_of_a_task_share_its_memory(tmp_path):
    for name in "ab":
        write_shuffle(pa.table({"k": [1]}), tmp_path / name, num_subpartitions=2, keys="k")
    paths = [tmp_path / "a", tmp_path / "b"]
    options = ReadOptions(memory_bytes=400 << 20)
    opened = open_shuffles(paths, None, options)
    assert [shuffle.options for shuffle in opened] == [options.shared_by(2)] * 2
    assert sum(shuffle.options.working_set_bytes for shuffle in opened) <= options.working_set_bytes
    with pytest.raises(OptionError, match=r"15 shuffles that one task reads need .* 272 MiB"):
        open_shuffles([tmp_path / "a"] * 15, None, None)
    assert pickle.loads(pickle.dumps(opened[0])).options == opened[0].options
    assert open_shuffles(paths[0], None, None)[0].options == ReadOptions()


@pytest.mark.parametrize("shuffles", [5, [5], None])
def test_what_is_no_path(shuffles):
    with pytest.raises(OptionError, match=r"shuffle .*: expected the path or URI"):
        open_shuffles(shuffles, None, None)


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
