"""What statistics say of units of rows."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.filters import units
from arrow_format.filters.filter import bind_filter
from arrow_format.filters.units import possible_keys
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


_VALUES = st.sampled_from([None, NAN, -0.0, 0.0, 1.0, 2.0])
_ROWS = st.tuples(_VALUES, st.sampled_from([None, 1, 2, 3]))


def _is_key(row, key):
    return all(a == b or (a != a and b != b) for a, b in zip(row, key, strict=True))


@given(
    st.lists(st.lists(_ROWS, min_size=1, max_size=4), min_size=1, max_size=5),
    st.lists(_ROWS, max_size=6),
    st.data(),
)
def test_a_unit_that_has_one_of_its_keys_may_have_it(rows, keys, data):
    types = {"x": pa.float64(), "c": pa.int32()}
    known = {
        name: statistics_of([pa.array([row[i] for row in unit], type_) for unit in rows])
        for i, (name, type_) in enumerate(types.items())
        if data.draw(st.booleans())
    }
    edges = st.lists(st.integers(0, len(keys)), min_size=2, max_size=2).map(sorted)
    extents = np.array([data.draw(edges) for _ in rows], np.int64)
    batch = pa.record_batch(
        [pa.array([key[i] for key in keys], type_) for i, type_ in enumerate(types.values())],
        names=[*types],
    )
    found = possible_keys(batch, extents[:, 0], extents[:, 1], known)
    for may, unit, (first, end) in zip(found, rows, extents.tolist(), strict=True):
        assert may or not any(_is_key(row, key) for row in unit for key in keys[first:end])
        assert first < end or not may


def test_a_unit_is_compared_with_its_own_keys_alone(monkeypatch):
    keys = pa.record_batch({"c": pa.array([3, 6, None, 7], pa.int32())})
    first, end = np.array([[0, 1], [0, 2], [1, 3], [1, 2]]).T
    assert possible_keys(keys, first, end, STATISTICS).tolist() == [YES, NO, YES, NO]
    assert possible_keys(keys, first, end, {}).all()
    monkeypatch.setattr(units, "MOST_PAIRS", 3)
    assert possible_keys(keys, first, end, STATISTICS).all()
