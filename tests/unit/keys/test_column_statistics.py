"""Bounds and null counts of groups of rows, against a slow model, for every type that has some."""

import warnings
from functools import cmp_to_key

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.format.statistics import UNKNOWN, ColumnStatistics, has_statistics
from arrow_format.keys.column_statistics import (
    MOST_CHARACTERS,
    combined,
    statistics_of_rows,
    with_short_bounds,
)
from tests.support.spark_order_model import compare
from tests.support.tables import FLAT
from tests.unit.keys.test_spark_order import SORTABLE

BY_VALUE = cmp_to_key(lambda left, right: compare(left, right, "ascending"))
TYPES = [(type_, values) for type_, values in SORTABLE if has_statistics(type_)]


def statistics_of(column, starts=(0,)):
    batch = pa.record_batch({"x": column})
    return statistics_of_rows(batch, ["x"], np.array(starts, np.int64))["x"]


@st.composite
def grouped(draw):
    """A column, sliced anywhere, and where its groups start; now and then a group of nulls."""
    type_, values = draw(st.sampled_from(TYPES))
    cells = draw(st.lists(st.none() | values, min_size=1, max_size=12))
    skipped = draw(st.integers(0, 9))
    column = pa.array([None] * skipped + cells, type_).slice(skipped)
    inner = draw(st.sets(st.integers(1, max(len(cells) - 1, 1)), max_size=4))
    return column, [0, *sorted(at for at in inner if at < len(cells))]


def are_equal(bounds, expected):
    return all(
        compare(found, wanted, "ascending") == 0
        for found, wanted in zip(bounds.to_pylist(), expected, strict=True)
    )


@given(grouped())
def test_bounds_and_nulls_of_groups(case):
    column, starts = case
    found = statistics_of(column, starts)
    cells = column.to_pylist()
    groups = [cells[a:b] for a, b in zip(starts, [*starts[1:], len(cells)], strict=True)]
    present = [[value for value in group if value is not None] for group in groups]
    assert found.minimum.type == found.maximum.type == column.type
    assert are_equal(found.minimum, [min(group, key=BY_VALUE, default=None) for group in present])
    assert are_equal(found.maximum, [max(group, key=BY_VALUE, default=None) for group in present])
    assert found.null_count.tolist() == [group.count(None) for group in groups]
    assert found.num_rows.tolist() == [len(group) for group in groups]


@given(grouped())
def test_groups_together_are_one_group(case):
    column, starts = case
    parts, whole = statistics_of(column, starts), statistics_of(column)
    together = combined(parts, np.zeros(1, np.int64))
    assert are_equal(together.minimum, whole.minimum.to_pylist())
    assert are_equal(together.maximum, whole.maximum.to_pylist())
    assert together.null_count.tolist() == whole.null_count.tolist()
    assert together.num_rows.tolist() == [len(column)]


def test_what_is_unknown_of_a_unit_is_unknown_of_its_group():
    numbers = statistics_of(pa.array([1, 2, None, None, 5, 6]), [0, 2, 4])
    unknown = ColumnStatistics.unknown(pa.int64(), np.array([3]))
    units = ColumnStatistics.joined([numbers, unknown])
    grouped = combined(units, np.array([0, 2]))
    assert grouped.null_count.tolist() == [2, UNKNOWN]
    assert grouped.minimum.to_pylist() == [1, None]
    assert grouped.maximum.to_pylist() == [2, None]
    assert grouped.num_rows.tolist() == [4, 5]


def test_a_unit_without_an_upper_bound_leaves_its_group_without_one():
    highest = chr(0x10FFFF) * (MOST_CHARACTERS + 1)
    units = with_short_bounds(statistics_of(pa.array(["a", highest, None]), [0, 1, 2]))
    assert units.maximum.to_pylist() == ["a", None, None]
    assert combined(units, np.array([0])).maximum.to_pylist() == [None]
    assert combined(units, np.array([0, 2])).minimum.to_pylist() == ["a", None]


def test_zeros_and_nans_of_any_bits():
    bits = np.array([0x7FF0000000000001, 1 << 63], np.uint64)  # a signalling NaN, and -0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = statistics_of(pa.array(bits.view(np.float64)))
    assert str(found.minimum[0]) == "0.0"  # not -0.0
    assert np.isnan(found.maximum[0].as_py())


def test_garbage_under_nulls_is_no_bound():
    for values in (np.array([5, 900, -900]), np.array([5.0, np.nan, -np.inf])):
        column = pa.array(values, mask=np.array([False, True, True]))
        found = statistics_of(column)
        assert found.minimum.to_pylist() == found.maximum.to_pylist() == [5]
    wide = pa.array([10**30, 7], pa.decimal128(38, 0)).buffers()[1]
    column = pa.Array.from_buffers(pa.decimal128(38, 0), 2, [pa.py_buffer(b"\x02"), wide])
    assert statistics_of(column).maximum.to_pylist() == [7]


def test_decimals_of_more_digits_than_their_type():
    """Arrow takes them, and Spark writes them: the high word decides, whatever the precision."""
    values = pa.array([-(10**30), 10**30, 5], pa.decimal128(38, 0)).view(pa.decimal128(10, 0))
    found = statistics_of(values)
    assert found.minimum.view(pa.decimal128(38, 0)).to_pylist() == [-(10**30)]
    assert found.maximum.view(pa.decimal128(38, 0)).to_pylist() == [10**30]


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        ("", "", ""),
        ("sixteen letters!", "sixteen letters!", "sixteen letters!"),
        ("sixteen letters! and more", "sixteen letters!", 'sixteen letters"'),
        ("é" * 17, "é" * 16, "é" * 15 + "ê"),
        ("a" * 15 + "\ud7ff" + "b", "a" * 15 + "\ud7ff", "a" * 15 + "\ue000"),
        ("a" * 14 + "b\U0010ffffc", "a" * 14 + "b\U0010ffff", "a" * 14 + "c"),
        ("\U0010ffff" * 17, "\U0010ffff" * 16, None),
        (b"\xff" * 16, b"\xff" * 16, b"\xff" * 16),
        (b"a" * 15 + b"\xff\x00", b"a" * 15 + b"\xff", b"a" * 14 + b"b"),
        (b"\xff" * 17, b"\xff" * 16, None),
    ],
)
def test_short_bounds_of_text_and_bytes(value, low, high):
    short = with_short_bounds(statistics_of(pa.array([value])))
    assert short.minimum.to_pylist() == [low]
    assert short.maximum.to_pylist() == [high]


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [(b"ab\xff\xffc", "ab", "ac"), (b"\xffabc", "", None), (b"a\xc3", "a", "b")],
)
def test_bounds_of_text_that_is_not_utf_8_are(value, low, high):
    text = pa.array([value]).view(pa.string())
    short = with_short_bounds(statistics_of(text))
    short.minimum.validate(full=True)
    assert short.minimum.to_pylist() == [low]
    assert short.maximum.to_pylist() == [high]


@given(st.lists(st.none() | dict(FLAT)[pa.string()] | st.text(min_size=15), min_size=1))
def test_short_bounds_hold_every_text(cells):
    short = with_short_bounds(statistics_of(pa.array(cells, pa.string())))
    (low,), (high,) = short.minimum.to_pylist(), short.maximum.to_pylist()
    for value in filter(lambda cell: cell is not None, cells):
        assert low.encode() <= value.encode()
        assert high is None or value.encode() <= high.encode()
        assert len(low) <= MOST_CHARACTERS
        assert high is None or len(high) <= MOST_CHARACTERS
