"""What is combined of each group: every function and type, and sums that do not fit."""

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.arrays.exact_sums import DoesNotFitError
from arrow_format.keys.group_values import combine_column

NAN = math.nan
MOST = 10**11 - 1


def combined(values, type_, function, groups=None):
    groups = [0] * len(values) if groups is None else groups
    column = pa.array(values, type_)
    halves = [column.slice(0, 1), column.slice(1)]
    result = combine_column(halves, function, np.array(groups), max(groups) + 1)
    result.validate(full=True)
    assert result.type == type_
    return result.to_pylist()


@pytest.mark.parametrize(
    ("type_", "values", "total", "low", "high"),
    [
        (pa.int64(), [3, None, -5], -2, -5, 3),
        (pa.int64(), [None, None], None, None, None),
        (pa.int64(), [2**62, -(2**62), 2**62], 2**62, -(2**62), 2**62),
        (pa.float64(), [0.5, None, -0.0], 0.5, -0.0, 0.5),
        (pa.float64(), [math.inf, 1.0, -math.inf], NAN, -math.inf, math.inf),
        (pa.float64(), [1.0, NAN], NAN, 1.0, NAN),
        (pa.duration("us"), [5, None, -7], -2, -7, 5),
        (pa.decimal128(20, 2), [Decimal("1.50"), Decimal("-2.25")], -0.75, -2.25, 1.5),
        (pa.decimal128(38, 0), [Decimal(10**30), None, Decimal(-1)], 10**30 - 1, -1, 10**30),
        (pa.decimal128(11, 0), [Decimal(MOST), Decimal(-MOST), Decimal(1)], 1, -MOST, MOST),
    ],
)
def test_sums_and_ends_of_numbers(type_, values, total, low, high):
    def as_python(value):
        array = pa.array([value if not pa.types.is_decimal(type_) or value is None else
                          Decimal(str(value))], type_)  # fmt: skip
        return array.to_pylist()

    for function, expected in (("sum", total), ("min", low), ("max", high)):
        assert repr(combined(values, type_, function)) == repr(as_python(expected))


@pytest.mark.parametrize(
    ("type_", "values", "low", "high"),
    [
        (pa.bool_(), [True, None, False], False, True),
        (pa.int8(), [-128, 127], -128, 127),
        (pa.uint64(), [0, 2**64 - 1], 0, 2**64 - 1),
        (pa.float16(), [1.0, NAN, -2.0], -2.0, NAN),
        (pa.float32(), [1.5, -0.0, 0.0], -0.0, 1.5),
        (pa.string(), ["b", None, "a", "B"], "B", "b"),
        (pa.binary(), [b"\xff", b"", None], b"", b"\xff"),
        (pa.binary(2), [b"ab", b"aa"], b"aa", b"ab"),
        (pa.date32(), [dt.date(2024, 2, 29), dt.date(1969, 1, 1)], dt.date(1969, 1, 1),
         dt.date(2024, 2, 29)),
        (pa.timestamp("us"), [dt.datetime(2024, 1, 1), dt.datetime(2023, 1, 1)],
         dt.datetime(2023, 1, 1), dt.datetime(2024, 1, 1)),
        (pa.time64("us"), [dt.time(3), dt.time(2)], dt.time(2), dt.time(3)),
        (pa.decimal32(5, 2), [Decimal("1.00"), Decimal("-1.00")], Decimal("-1.00"),
         Decimal("1.00")),
        (pa.decimal256(70, 0), [Decimal(10**60), Decimal(1)], Decimal(1), Decimal(10**60)),
    ],
)  # fmt: skip
def test_smallest_and_largest_of_every_type(type_, values, low, high):
    assert repr(combined(values, type_, "min")) == repr([low])
    assert repr(combined(values, type_, "max")) == repr([high])


def test_groups_are_in_the_order_of_their_numbers():
    groups = [2, 0, 1, 2, 0]
    assert combined([1, 2, 3, 4, 5], pa.int64(), "sum", groups) == [7, 3, 5]
    texts = ["a", "b", None, "c", "d"]
    assert combined(texts, pa.string(), "max", groups) == ["d", None, "c"]


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.int64(), [2**62, 2**62]),
        (pa.int64(), [-(2**63), -1]),
        (pa.decimal128(11, 0), [Decimal(MOST), Decimal(1)]),
        (pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(1)]),
        (pa.duration("us"), [2**62, 2**62]),
    ],
)
def test_a_sum_out_of_range_is_noticed(type_, values):
    with pytest.raises(DoesNotFitError):
        combined(values, type_, "sum")


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(-(2**55), 2**55)), min_size=1))
def test_integers_add_up_as_those_of_python(rows):
    groups = np.unique([group for group, _ in rows], return_inverse=True)[1].tolist()
    expected = [None] * (max(groups) + 1)
    for group, (_, value) in zip(groups, rows, strict=True):
        if value is not None:
            expected[group] = (expected[group] or 0) + value
    assert combined([value for _, value in rows], pa.int64(), "sum", groups) == expected
