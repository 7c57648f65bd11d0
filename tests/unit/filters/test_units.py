"""What statistics say of units of rows."""

import numpy as np
import pyarrow as pa
import pytest

from arrow_format.filters.filter import bind_filter
from arrow_format.format.statistics import UNKNOWN, ColumnStatistics
from tests.support.column_statistics import statistics_of

NAN = float("nan")
UNITS = [[1, 5], [5, 5], [7, None], [None, None]]
SCHEMA = pa.schema([("c", pa.int32()), ("x", pa.float64()), ("s", pa.string())])
STATISTICS = {
    "c": statistics_of([pa.array(unit, pa.int32()) for unit in UNITS]),
    "x": statistics_of([pa.array(u, pa.float64()) for u in ([NAN, 1], [NAN], [-0.0], [1, 2])]),
    "s": statistics_of([pa.array(u, pa.string()) for u in (["a"], ["abc", "b"], ["b"], ["abc"])]),
}
NUM_ROWS = np.array([2, 2, 2, 2])
YES, NO = True, False


@pytest.mark.parametrize(
    ("text", "may", "surely"),
    [
        ("c = 5", [YES, YES, NO, NO], [NO, YES, NO, NO]),
        ("c != 5", [YES, NO, YES, NO], [NO, NO, NO, NO]),
        ("c < 5", [YES, NO, NO, NO], [NO, NO, NO, NO]),
        ("c <= 5", [YES, YES, NO, NO], [YES, YES, NO, NO]),
        ("c > 5", [NO, NO, YES, NO], [NO, NO, NO, NO]),
        ("c >= 1", [YES, YES, YES, NO], [YES, YES, NO, NO]),
        ("c IN (2, 6)", [YES, NO, NO, NO], [NO, NO, NO, NO]),
        ("c IN (0, 5, 9)", [YES, YES, NO, NO], [NO, YES, NO, NO]),
        ("c NOT IN (5, 7)", [YES, NO, NO, NO], [NO, NO, NO, NO]),
        ("c IS NULL", [NO, NO, YES, YES], [NO, NO, NO, YES]),
        ("c IS NOT NULL", [YES, YES, YES, NO], [YES, YES, NO, NO]),
        ("c <=> NULL OR c = 7", [NO, NO, YES, YES], [NO, NO, NO, YES]),
        ("NOT (c < 6 OR c IS NULL)", [NO, NO, YES, NO], [NO, NO, NO, NO]),
        ("(c = 5) IS NULL", [NO, NO, YES, YES], [NO, NO, NO, YES]),
        ("c = c", [YES, YES, YES, NO], [YES, YES, NO, NO]),
        ("isnan(x)", [YES, YES, NO, NO], [NO, YES, NO, NO]),
        ("x > 5", [YES, YES, NO, NO], [NO, YES, NO, NO]),
        ("x = 0", [NO, NO, YES, NO], [NO, NO, YES, NO]),
        ("x IN (0, 9)", [YES, NO, YES, NO], [NO, NO, YES, NO]),
        ("s = 'ab'", [NO, YES, NO, YES], [NO, NO, NO, NO]),
        ("s > 'b'", [NO, NO, NO, YES], [NO, NO, NO, NO]),  # the last maximum was cut: no bound
        ("s IN ('x', 'y')", [NO, NO, NO, YES], [NO, NO, NO, NO]),
        ("x > c", [YES, YES, NO, NO], [NO, YES, NO, NO]),
        ("x < c", [YES, NO, YES, NO], [NO, NO, NO, NO]),
        ("TRUE", [YES] * 4, [YES] * 4),
        ("NULL", [NO] * 4, [NO] * 4),
    ],
)
def test_units(text, may, surely):
    bound = bind_filter(text, SCHEMA)
    assert bound.may_match(STATISTICS, NUM_ROWS).tolist() == may
    assert bound.must_match(STATISTICS, NUM_ROWS).tolist() == surely


def test_of_an_unknown_column_anything_is_possible():
    bound = bind_filter("c = 5 AND x > 100", SCHEMA)
    only = {"c": STATISTICS["c"]}
    assert bound.may_match(only, NUM_ROWS).tolist() == [YES, YES, NO, NO]
    assert not bound.must_match(only, NUM_ROWS).any()
    assert bind_filter("x IS NULL", SCHEMA).may_match(only, NUM_ROWS).all()


def test_of_an_unknown_unit_anything_is_possible():
    nothing = ColumnStatistics(
        pa.nulls(2, pa.int32()), pa.nulls(2, pa.int32()), np.full(2, UNKNOWN), np.array([3, 3])
    )
    for text in ("c = 1", "c != 1", "c IS NULL", "c IS NOT NULL", "c IN (1, 2)", "c = c"):
        bound = bind_filter(text, SCHEMA)
        assert bound.may_match({"c": nothing}, np.array([3, 0])).tolist() == [True, False]
        assert bound.must_match({"c": nothing}, np.array([3, 0])).tolist() == [False, True]


def test_bounds_of_a_narrower_type():
    """Columns may have become wider since the statistics were written."""
    narrow = ColumnStatistics(
        pa.array([1], pa.int8()), pa.array([2], pa.int8()), np.array([0]), np.array([2])
    )
    bound = bind_filter("c > 1000", SCHEMA)
    assert bound.may_match({"c": narrow}, np.array([2])).tolist() == [False]
