"""Text in SQL: what is understood, and what is refused with its place or its name."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrow_format.errors import OptionError, SchemaError
from arrow_format.filters.filter import bind_filter
from arrow_format.filters.spark_rules import SparkSettings

SCHEMA = pa.schema(
    [
        ("i", pa.int32()),
        ("x", pa.float64()),
        ("m", pa.decimal128(5, 2)),
        ("s", pa.string()),
        ("y", pa.binary()),
        ("b", pa.bool_()),
        ("day", pa.date32()),
        ("t", pa.timestamp("us", "UTC")),
        ("n", pa.timestamp("us")),
        ("a b", pa.int64()),
        ("point", pa.struct([("x", pa.int32())])),
        ("Same", pa.int32()),
        ("same", pa.int32()),
    ]
)
I, X, S, B, DAY = map(pc.field, ("i", "x", "s", "b", "day"))  # noqa: E741


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("i = 1 AND x < 2.5", (I == 1) & (X < 2.5)),
        ("1 < i or not (S <> 'a')", (I > 1) | ~(S != "a")),
        ("i IN (17, 18)", I.isin([17, 18])),
        ("i IN (17, 18) OR i IS NULL", I.isin([17, 18, None])),
        ("i BETWEEN 1 AND -1", (I >= 1) & (I <= -1)),
        ("i IS NULL OR s IS NOT NULL", I.is_null() | S.is_valid()),
        ("isnan(x)", X.is_valid() & X.is_nan()),
        ("b AND NOT b", B & ~B),
        ("day >= DATE '2024-06-01'", pc.scalar("2024-06-01").cast(pa.date32()) <= DAY),
        ("day >= '2024-06-01'", pc.scalar("2024-06-01").cast(pa.date32()) <= DAY),
        ("`a b` = 5L", pc.field("a b") == 5),
        ("m = 1.5", pc.field("m") == 1.5),
        ("TRUE", pc.scalar(True)),
        ("y = X'00ff'", pc.field("y") == b"\x00\xff"),
    ],
)
def test_text_and_expression_bind_to_the_same(text, expression):
    assert bind_filter(text, SCHEMA) == bind_filter(expression, SCHEMA)


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("i = '2'", "i = 2"),
        ("i = -2", "i = -2"),
        ("i <=> 2", "i IS NOT NULL AND i = 2"),
        ("i <=> NULL", "i IS NULL"),
        ("x > '2.5'", "x > 2.5"),
        ("x = 1e3", "x = 1000.0"),
        ("m = CAST('1.50' AS DECIMAL(10, 3))", "m = 1.50"),
        ("b = 'true'", "b = TRUE"),
        ("b IS TRUE", "b IS NOT NULL AND b = TRUE"),
        ("b IS NOT FALSE", "b IS NULL OR b = TRUE"),
        ("s = 'it\\'s'", "s = 'it\\'s'"),
        ('s = "a"', "s = 'a'"),
        ("day = CAST('2024-6-1' AS DATE)", "day = DATE '2024-06-01'"),
        ("t = TIMESTAMP '2024-06-01 02:00:00'", "t = TIMESTAMP '2024-06-01 00:00:00Z'"),
        ("t = '2024-06-01 02:00:00.5Z'", "t = TIMESTAMP '2024-06-01 02:00:00.5Z'"),
        ("t = TIMESTAMP_NTZ '2024-06-01 02:00:00'", "t = TIMESTAMP '2024-06-01 00:00:00Z'"),
        ("t >= DATE '2024-06-01'", "t >= TIMESTAMP '2024-05-31 22:00:00Z'"),
        ("n = TIMESTAMP_NTZ '2024-06-01'", "n = TIMESTAMP_NTZ '2024-06-01 00:00:00'"),
        ("day > TIMESTAMP '2024-06-01 00:00:00'", "day > DATE '2024-06-01'"),
        ("day >= TIMESTAMP '2024-06-01 00:00:01'", "day >= DATE '2024-06-02'"),
        ("1 = 2 OR i = 1", "i = 1"),
        ("NULL", "NULL"),
        ("point IS NOT NULL", "point IS NOT NULL"),
        ("x IN (1, 2.5, 3.0, NULL)", "x = 1.0 OR x IN (2.5, 3.0) OR NULL"),
    ],
)
def test_values_are_in_the_type_of_their_column(text, bound):
    assert str(bind_filter(text, SCHEMA, settings=SparkSettings("Europe/Berlin"))) == bound


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("i = ", "line 1, column 3, at '='"),
        ("i = 1 )", "line 1, column 7, at ')'"),
        ("i = 1\n  AND OR s = 'a'", "line 2, column 7, at 'OR'"),
        ("i = 1; s = 'a'", "line 1, column 6, at ';'"),
        ("i = 1 AS z", "line 1, column 7, at 'AS'"),
    ],
)
def test_text_that_does_not_parse(text, place):
    with pytest.raises(OptionError) as raised:
        bind_filter(text, SCHEMA)
    message, line, caret = str(raised.value).split("\n")
    assert place in message
    assert line[caret.index("^") :].startswith(place.split("at '")[1][:-1])


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("", OptionError, "expected a condition such as"),
        ("s = 'abc", OptionError, "is a quote left open"),
        ("lower(s) = 'a'", OptionError, r"'LOWER\(s\)' \(Lower\) is not supported"),
        ("i + 1 = 2", OptionError, r"\(Add\) is not supported"),
        ("-i = 2", OptionError, "is not supported"),
        ("s LIKE 'a%'", OptionError, "Like"),
        ("i IN (SELECT 1)", OptionError, "In"),
        ("i IN ()", OptionError, "In"),
        ("i = TRY_CAST('1' AS INT)", OptionError, "TryCast"),
        ("i = CAST('x' AS INT)", OptionError, "is no value of its type"),
        ("x = CAST('1' AS INTERVAL)", OptionError, "a cast to INTERVAL is not supported"),
        ("n = TIMESTAMP_NTZ '2024-06-01 00:00:00Z'", OptionError, "a time zone"),
        ("CAST(s AS INT) = 1", OptionError, "is not supported"),
        ("CASE WHEN b THEN b END", OptionError, "Case"),
        ("point.x = 1", OptionError, "nested fields is not supported"),
        ("5", OptionError, "5 is no condition"),
        ("i", SchemaError, "column 'i' is int32, and so no condition"),
        ("dya = 1", SchemaError, "did you mean 'day'"),
        ("same = 1", SchemaError, "'same' is ambiguous; columns are Same, same"),
        ("i = '2.5'", SchemaError, "the text '2.5'"),
        ("day = '2024-13-01'", SchemaError, "the text '2024-13-01'"),
        ("s = 5", SchemaError, "does not compare with 5 of type int64"),
        ("point = 1", SchemaError, "values of column 'point', struct<x: int32>, do not compare"),
        ("isnan(i)", SchemaError, "only floating-point numbers can be NaN"),
        ("i = s", SchemaError, "they do not compare"),
        ("n > TIMESTAMP '2024-06-01 00:00:00'", SchemaError, "TIMESTAMP_NTZ"),
    ],
)
def test_what_is_refused(text, error, says):
    with pytest.raises(error, match=says):
        bind_filter(text, SCHEMA, settings=SparkSettings("Europe/Berlin"))


def test_conditions_nested_too_deeply():
    with pytest.raises(OptionError, match="nested too deeply"):
        bind_filter("NOT (" * 5_000 + "b" + ")" * 5_000, SCHEMA)


def test_many_conditions_side_by_side():
    text = " OR ".join(f"i > {number}" for number in range(1_200))
    assert len(bind_filter(text, SCHEMA).expression.operands) == 1_200


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("i = 1 OR i = 2 OR s = 'a' OR i IN (7, 2)", "i IN (1, 2, 7) OR s = 'a'"),
        ("NOT (i = 1 OR i = 2)", "i NOT IN (1, 2)"),
        ("i = 1 OR s = 'a'", "i = 1 OR s = 'a'"),
    ],
)
def test_values_of_one_column_are_searched_together(text, joined):
    assert str(bind_filter(text, SCHEMA)) == joined


def test_an_unknown_time_zone():
    with pytest.raises(OptionError, match="time_zone='Mars'"):
        bind_filter("b", SCHEMA, settings=SparkSettings("Mars"))
