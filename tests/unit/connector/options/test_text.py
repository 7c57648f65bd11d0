"""Sort keys and bounds as options of the data source write them."""

from datetime import timedelta

import pytest

from arrow_format import OptionError
from arrow_format.option_fields import DURATION
from arrow_format.options import STATISTICS
from arrow_format.read.presentation import duration_text
from connector.options.text import BOUNDS, COMBINE, SORT_KEYS

UP, DOWN = "ascending", "descending"


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("a", [("a", UP)]),
        ("a,b", [("a", UP), ("b", UP)]),
        (" a , b desc ", [("a", UP), ("b", DOWN)]),
        ("a ASC, b DESC", [("a", UP), ("b", DOWN)]),
        ("a ascending,b descending", [("a", UP), ("b", DOWN)]),
        ("a nulls first, b nulls last", [("a", UP), ("b", "ascending nulls last")]),
        ("a asc nulls last", [("a", "ascending nulls last")]),
        ("b desc nulls first", [("b", "descending nulls first")]),
        ("b  Desc\tNulls  Last", [("b", DOWN)]),
        ("order of the day desc", [("order of the day", DOWN)]),
        ("desc", [("desc", UP)]),
        ("a.b desc", [("a.b", DOWN)]),
        ('["a", "b desc"]', [("a", UP), ("b desc", UP)]),
        ('[["a, b", "descending"], ["c", "desc nulls first"], ["d", "asc"]]',
         [("a, b", DOWN), ("c", "descending nulls first"), ("d", UP)]),
        (' ["a"]', [("a", UP)]),
    ],
)  # fmt: skip
def test_keys(text, keys):
    assert SORT_KEYS.of_text("option sortBy", text) == tuple(keys)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,,b", "option sortBy='a,,b': expected columns such as a, b desc nulls first, or"),
        (",", "option sortBy=','"),
        ('["a"', "expected columns such as a, b desc"),
        ("a, a desc", "option sortBy=.*: a column is named twice"),
        ("[5]", r"option sortBy='\[5\]': 5 is no sort key"),
        ('[["a", "down"]]', "order 'down' is not one of"),
        ('[["a", ""]]', "is no sort key"),
    ],
)
def test_bad_keys(text, message):
    with pytest.raises(OptionError, match=message):
        SORT_KEYS.of_text("option sortBy", text)


def test_bounds():
    assert BOUNDS.of_text("option rangeBounds", '[[1, "x"], [2, null]]') == ([1, "x"], [2, None])
    assert BOUNDS.of_text("option rangeBounds", "[1, 2.5]") == (1, 2.5)
    for text in ("", "{}", "5", "[1,"):
        with pytest.raises(OptionError, match=r"option rangeBounds=.*expected a JSON list with a"):
            BOUNDS.of_text("option rangeBounds", text)


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("all", "all"),
        ("ALL", "all"),
        ("none", ()),
        ("day, price", ("day", "price")),
        ('["none"]', ("none",)),
        ('["a,b"]', ("a,b",)),
    ],
)
def test_columns_with_statistics(text, chosen):
    assert STATISTICS.of_text("statistics", text) == chosen


@pytest.mark.parametrize(
    "text", ["n:sum, a:b:MAX", '{"n": "sum", "a:b": "max"}', ' {"n":"sum","a:b":"max"}']
)
def test_combined_columns(text):
    assert COMBINE.of_text("combine", text) == {"n": "sum", "a:b": "max"}


@pytest.mark.parametrize(
    "text",
    [
        "n", "n=sum", ":sum", "n:avg", "n:sum,", '{"n": 1}', '{"n": {"sum": 1}}', '{"n"',
        "n:sum, n:max", '{"n": "sum", "n": "max"}',
    ],
)  # fmt: skip
def test_combined_columns_that_are_none_or_come_twice(text):
    with pytest.raises(OptionError, match=r"combine.*columns with one function each"):
        COMBINE.of_text("combine", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0s", timedelta(0)),
        ("500ms", timedelta(milliseconds=500)),
        ("3 milliseconds", timedelta(milliseconds=3)),
        ("1 sec", timedelta(seconds=1)),
        ("20seconds", timedelta(seconds=20)),
        ("90 secs", timedelta(seconds=90)),
        ("30m", timedelta(minutes=30)),
        ("2min", timedelta(minutes=2)),
        ("2 Minutes", timedelta(minutes=2)),
        ("2mins", timedelta(minutes=2)),
        ("1 hour", timedelta(hours=1)),
        ("24H", timedelta(days=1)),
        (" 7d ", timedelta(days=7)),
        ("7 days", timedelta(days=7)),
    ],
)
def test_durations_as_flink_writes_them(text, expected):
    assert DURATION.of_text("x", text) == expected
    whole_seconds = expected - timedelta(microseconds=expected.microseconds)
    assert DURATION.of_text("x", duration_text(expected)) == whole_seconds


@pytest.mark.parametrize(
    "text", ["2", "min", "2 mins2", "-1s", "1.5s", "2 minutess", "1h 5m", "", "2ss", "2mss", "2hs"]
)
def test_other_text_is_no_duration(text):
    with pytest.raises(OptionError, match=f"x='{text}': expected a whole number with a unit"):
        DURATION.of_text("x", text)
