"""Predicates of Polars: what becomes a filter, and that none drops a row that Polars keeps."""

import datetime as dt
import io
import json
from decimal import Decimal

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrow_format.filters.expression import TRUE, as_sql
from arrow_format.filters.filter import bind_filter
from arrow_format.filters.from_polars import filters_of
from tests.support.exhaustive import examples
from tests.support.operations import written

UTC = dt.UTC
BIG = 1 << 53

ROWS = pa.table(
    {
        "i": pa.array([1, 2, 3, None, -(BIG + 1), BIG + 1, BIG, 0], pa.int64()),
        "small": pa.array([1, -1, 3, None, 127, -128, 0, 2], pa.int8()),
        "f": pa.array([1.0, float("nan"), None, -0.0, 0.0, float("inf"), -1.5, 2.5], pa.float64()),
        "g": pa.array([1, np.nan, None, -0.0, 0.1, np.inf, -1.5, 2.5], pa.float32()),
        "s": pa.array(["a", "", None, "é", "a\0", "b", "aa", "z"]),
        "x": pa.array([b"\x00", b"\xff", None, b"", b"a", b"b", b"aa", b"z"]),
        "b": pa.array([True, False, None, True, False, True, None, False]),
        "d": pa.array([dt.date(2024, 1, day) if day else None for day in range(8)]),
        "t": pa.array(
            [dt.datetime(2024, 1, 1, hour, tzinfo=UTC) if hour else None for hour in range(8)],
            pa.timestamp("us", "UTC"),
        ),
        "m": pa.array([None if n == 3 else Decimal(n) / 4 for n in range(8)], pa.decimal128(9, 2)),
    }
)
FRAME = pl.DataFrame(ROWS)


def seen(predicate):
    """Return the predicate in the form in which a source gets it, with its types resolved."""
    found = []

    def source(columns, predicate, n_rows, batch_size):
        found.append(predicate)
        yield FRAME.filter(predicate).select(columns or pl.all())

    lazy = pl.io.plugins.register_io_source(source, schema=FRAME.schema)
    lazy.filter(predicate).collect()
    return found[0]


def translated(predicate):
    _, filters = filters_of(seen(predicate), ROWS.schema)
    return [as_sql(condition) for condition in filters]


@pytest.mark.parametrize(
    ("predicate", "filters"),
    [
        (pl.col("i") > 1, ["i > 1"]),
        (pl.lit(1) < pl.col("i"), ["i > 1"]),
        (pl.lit(1) == pl.col("i"), ["i = 1"]),
        (pl.col("i") >= 1.5, ["i >= 1.5"]),
        (pl.col("small") <= 1.5, ["small <= 1.5"]),
        (pl.col("g") <= pl.lit(0.1, pl.Float64), ["g <= 0.1"]),
        (pl.col("s") != "a", ["s != 'a'"]),
        (pl.col("d") < dt.date(2024, 1, 5), ["d < DATE '2024-01-05'"]),
        (pl.col("b"), ["b"]),
        (~pl.col("b"), ["NOT b"]),
        (pl.col("i").is_null(), ["i IS NULL"]),
        (pl.col("i").is_not_null(), ["i IS NOT NULL"]),
        (pl.col("f").is_nan(), ["f = CAST('nan' AS DOUBLE)"]),
        (pl.col("i").is_between(1, 3), ["i >= 1 AND i <= 3"]),
        (pl.col("i").is_between(1, 3, closed="left"), ["i >= 1 AND i < 3"]),
        (pl.col("i").is_between(1, 3, closed="right"), ["i > 1 AND i <= 3"]),
        (pl.col("i").is_between(1, 3, closed="none"), ["i > 1 AND i < 3"]),
        ((pl.col("i") > 1) | pl.col("b"), ["i > 1 OR b"]),
        ((pl.col("i") > 1) & (pl.col("s") == "a") & pl.col("b"), ["i > 1", "s = 'a'", "b"]),
    ],
)
def test_what_becomes_filters(predicate, filters):
    assert sorted(translated(predicate)) == sorted(filters)


def test_a_list_loses_its_nulls():
    assert translated(pl.col("i").is_in([1, None, 3])) == ["i IN (1, 3)"]


def test_of_a_conjunction_the_rest_is_left_to_polars():
    predicate = pl.col("s").str.contains("a") & (pl.col("i") > 1)
    assert translated(predicate) == ["i > 1"]


@pytest.mark.parametrize(
    "predicate",
    [
        pl.col("s").str.contains("a"),
        pl.col("i") < pl.col("small"),
        pl.col("i") + 1 < 3,
        pl.col("i") > float(BIG),  # as doubles, the whole number above is equal
        pl.col("f") == float("nan"),  # JSON has none
        pl.col("i").is_in([1, 2], nulls_equal=True),
        pl.col("i").eq_missing(1),
        pl.col("i").cast(pl.Int128) > 1,
        pl.col("s").str.contains("a") | (pl.col("i") > 1),
        ~(pl.col("s").str.contains("a") & (pl.col("i") > 1)),
    ],
    ids=str,
)
def test_what_polars_evaluates_alone(predicate):
    assert translated(predicate) == []


def test_what_polars_cannot_evaluate_itself_is_left_out():
    hint = {"Display": {"inputs": [{"Column": "i"}], "fmt_str": "dynamic_pred: 47"}}
    part = json.loads((pl.col("i") > 1).meta.serialize(format="json"))
    both = {"BinaryExpr": {"left": part, "op": "And", "right": hint}}
    predicate = pl.Expr.deserialize(io.BytesIO(json.dumps(both).encode()), format="json")
    evaluated, filters = filters_of(predicate, ROWS.schema)
    assert FRAME.filter(*evaluated).height == 4
    assert [as_sql(condition) for condition in filters] == ["i > 1"]


def test_a_predicate_of_any_depth():
    predicate = pl.col("i") == 0
    for value in range(300):
        predicate |= pl.col("i") == value
    (condition,) = filters_of(predicate, ROWS.schema)[1] or [TRUE]
    bound = bind_filter(condition, ROWS.schema)
    passing = bound.mask([ROWS["i"].combine_chunks()][: len(bound.columns)], ROWS.num_rows)
    assert passing.sum() >= FRAME.filter(predicate).height


# Rows ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shuffle(tmp_path_factory):
    path = tmp_path_factory.mktemp("polars") / "x"
    return written(path, ROWS, "i", n=3)


VALUES = {
    name: [value for value in ROWS[name].to_pylist() if value is not None]
    for name in ROWS.schema.names
}
VALUES["i"] += [1.5, 10, BIG - 1]
VALUES["f"] += [1, 0.5, float("-inf")]
COMPARED = [pl.Expr.__eq__, pl.Expr.ne, pl.Expr.lt, pl.Expr.le, pl.Expr.gt, pl.Expr.ge]


@st.composite
def leaves(draw):
    name = draw(st.sampled_from(ROWS.schema.names))
    column, values = pl.col(name), st.sampled_from(VALUES[name])
    kind = draw(st.integers(0, 8))
    if kind == 0:
        return column.is_null()
    if kind == 1:
        return column.is_not_null()
    if kind == 2:
        found = draw(st.lists(values | st.none(), max_size=3))
        return column.is_in(
            pl.lit(pl.Series(found, dtype=FRAME.schema[name], strict=False).implode())
        )
    if kind == 3 and name != "b":
        closed = draw(st.sampled_from(["both", "left", "right", "none"]))
        return column.is_between(*map(pl.lit, (draw(values), draw(values))), closed=closed)
    if kind == 4:
        return pl.col("b")
    if kind == 5:
        return pl.col("f").is_nan()
    return draw(st.sampled_from(COMPARED))(column, draw(values))


def combined(inner):
    return st.one_of(
        st.builds(pl.Expr.__and__, inner, inner),
        st.builds(pl.Expr.__or__, inner, inner),
        st.builds(pl.Expr.__invert__, inner),
    )


@pytest.mark.slow
@settings(max_examples=examples(120, 200))
@given(st.recursive(leaves(), combined, max_leaves=4))
def test_rows_are_those_that_polars_keeps(shuffle, predicate):
    rows = pl.DataFrame(shuffle.to_table())
    found = shuffle.to_polars().filter(predicate).collect()
    assert found.equals(rows.filter(predicate))
