"""What a filter in SQL may ask for: nothing that Spark would answer otherwise."""

import json

import pyarrow as pa
import pytest

from arrow_format.errors import OptionError, SchemaError
from arrow_format.filters.filter import bind_filter
from arrow_format.filters.spark_rules import (
    ANSI,
    COMPARED,
    DEFAULTS,
    SparkSettings,
    char_lengths,
    kind_of,
    refused_columns,
)

SCHEMA = pa.schema(
    [
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("f", pa.float32()),
        ("x", pa.float64()),
        ("m", pa.decimal128(9, 2)),
        ("w", pa.decimal128(38, 38)),
        ("s", pa.string()),
        ("c", pa.string()),
        ("r", pa.string()),
        ("h", pa.string()),
        ("v", pa.string()),
        ("u", pa.int64()),
        ("b", pa.bool_()),
        ("y", pa.binary()),
        ("day", pa.date32()),
        ("t", pa.timestamp("us", "UTC")),
        ("n", pa.timestamp("us")),
    ]
)


def field(name, type_="string", **metadata):
    return {"name": name, "type": type_, "nullable": True, "metadata": metadata}


SPARK_SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            field("s", comment="a text"),
            field("c", __COLLATIONS={"c": "spark.UTF8_LCASE"}),
            field("r", __COLLATIONS={"r": "icu.UNICODE_CI"}),
            field("h", __CHAR_VARCHAR_TYPE_STRING="char(5)"),
            field("v", __CHAR_VARCHAR_TYPE_STRING="varchar(5)"),
            field("u", {"type": "udt", "pyClass": "m.Point", "sqlType": "long"}),
        ],
    }
)
TOKYO = SparkSettings("Asia/Tokyo")


def bound(text, settings=TOKYO):
    return bind_filter(text, SCHEMA, settings=settings, spark_schema=SPARK_SCHEMA)


def test_columns_that_are_more_than_their_bytes():
    assert set(refused_columns(SPARK_SCHEMA)) == {"c", "r", "h", "u"}
    assert refused_columns(None) == {}
    assert char_lengths(SPARK_SCHEMA) == {"h": 5}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("c = 'abc'", "column 'c' has the collation UTF8_LCASE, and only bytes are compared here"),
        ("'abc' >= r", "collation UNICODE_CI"),
        ("s = 'a' OR NOT (c IN ('abc'))", "collation UTF8_LCASE"),
        ("c = s", "collation UTF8_LCASE"),
        ("c = c", "collation UTF8_LCASE"),
        ("c <=> NULL", "collation UTF8_LCASE"),
        (
            "h = 'ab'",
            r"column 'h' is CHAR\(5\), and Spark pads what it is compared with",
        ),
        ("h BETWEEN 'a' AND 'b'", r"CHAR\(5\)"),
        ("u = 5", "is of a user's class"),
        ("w = 0", "in a decimal of 39 digits, of which it has 38"),
        ("w < m", "in a decimal of 45 digits"),
        ("i = 0.00000000000000000000000000000000000001", "in a decimal of 48 digits"),
        ("i IN (1, 1.5, 12345678901234567890123456789012345678)", "in a decimal of 39 digits"),
        ("l < 9223372036854775808", "is beyond all integers"),
        ("NOT (i >= -9223372036854775809)", "is beyond all integers"),
        ("i = '1_0'", "is no such value"),
        ("x = '1_0'", "is no such value"),
        ("m = '1_0'", "is no such value"),
        ("i = '\uff11'", "is no such value"),
        ("day = '\uff12024-01-01'", "is no such value"),
        ("i = '\u00a05'", "is no such value"),
        ("s = NULL OR s = CAST(NULL AS INT)", "does not compare with NULL"),
        ("i IN (1, CAST(NULL AS DATE))", "does not compare with NULL"),
    ],
)
def test_comparisons_that_are_not_those_of_spark(text, says):
    with pytest.raises(SchemaError, match=says):
        bound(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("day = CAST(TIMESTAMP '2024-01-05 22:00:00' AS DATE)", "a cast of timestamp to date may"),
        ("l < CAST(TIMESTAMP '1970-01-01 00:00:10Z' AS BIGINT)", "timestamp to integer"),
        ("s = CAST(1e20 AS STRING)", "a cast to STRING"),
        ("s = CAST('abcd' AS VARCHAR(3))", "a cast to STRING"),
        ("m = CAST(1.005e0 AS DECIMAL(10,2))", "double to decimal"),
        ("m = CAST(1.005 AS DECIMAL(10,2))", "is no value of its type"),
        ("i = CAST(2.9 AS INT)", "decimal to integer"),
        ("i = CAST('1_0' AS INT)", "is no value of its type"),
        ("m = CAST('1_0' AS DECIMAL(10,2))", "is no value of its type"),
        ("b = CAST(1 AS BOOLEAN)", "integer to boolean"),
        ("x = 1e999", "is no value of its type"),
        ("l IN (1, 1e0)", "IN of column 'l' has values of different kinds, double, integer"),
        ("day IN ('2024-01-01', DATE '2024-01-02')", "of different kinds, date, text"),
        (r"s = 'a\u0041'", "is no escape that is known here"),
    ],
)
def test_values_that_are_not_those_of_spark(text, says):
    with pytest.raises(OptionError, match=says):
        bound(text)


@pytest.mark.parametrize(
    "text",
    [
        "c IS NULL OR h IS NOT NULL OR u IS NULL",
        "v = 'ab' AND s > 'a'",
        "m = 1.5 AND m < 12345678901234567890123456789012345",
        "w = 0.5",
        "l = 9223372036854775808 OR l <= 9223372036854775807",
        "i = ' +5 ' AND x = '1e3' AND x < '-Infinity'",
        "f = 0.1F OR f = CAST('0.1' AS FLOAT)",
        "i IN (1, 2.5, NULL)",
        r"s = 'it\'s \\ \n'",
        "b = 'true' AND y = 'a' AND y = X'00'",
        "t = '2024-01-01' AND n < DATE '2024-01-01' AND day >= TIMESTAMP '2024-01-01 00:00:00'",
    ],
)
def test_what_spark_compares_alike_is_taken(text):
    bound(text)


def changed(**settings):
    return SparkSettings.of(DEFAULTS | settings, "UTC")


@pytest.mark.parametrize(
    ("name", "value", "refused", "taken"),
    [
        (ANSI, "false", "f = 16777217", "x = 16777217"),
        (ANSI, "false", "f = i", "f = x"),
        (ANSI, "false", "i = '5'", "day = '2024-01-01'"),
        (ANSI, "false", "day IN ('2024-01-01')", "day IN (DATE '2024-01-01')"),
        ("spark.sql.parser.escapedStringLiterals", "true", r"s = 'a\nb'", "s = 'ab'"),
        ("spark.sql.ansi.doubleQuotedIdentifiers", "true", 's = "a"', "s = 'a\"b'"),
        ("spark.sql.timestampType", "TIMESTAMP_NTZ", "b", None),
        ("spark.sql.legacy.literal.pickMinimumPrecision", "false", "b", None),
    ],
)
def test_settings_of_the_session(name, value, refused, taken):
    settings = changed(**{name: value})
    with pytest.raises(OptionError, match=f"{name} is not {DEFAULTS[name]} in this session"):
        bound(refused, settings)
    bound(refused, SparkSettings("UTC"))
    if taken is not None:
        bound(taken, settings)
    assert changed(**{name: DEFAULTS[name].upper()}) == SparkSettings("UTC")


def test_a_data_source_refuses_what_a_setting_may_change():
    unknown = SparkSettings.unknown("UTC")
    for text in ("f = 16777217", "i = '5'", r"s = 'a\nb'", 's = "a"'):
        with pytest.raises(OptionError, match=r"only a session knows; .* by to_spark\(spark\)"):
            bound(text, unknown)
    bound("i = 5 AND I > 3 AND day >= '2024-01-01' AND s = 'a'", unknown)


def test_names_are_exact_in_a_session_that_says_so():
    exact = changed(**{"spark.sql.caseSensitive": "true"})
    bound("i = 1", exact)
    with pytest.raises(SchemaError, match=r"column 'I' is not there \(did you mean 'i'"):
        bound("I = 1", exact)
    both = pa.schema([("k", pa.int32()), ("K", pa.int32())])
    with pytest.raises(SchemaError, match="'k' is ambiguous"):
        bind_filter("k = 1", both, settings=exact)


def test_every_kind_that_is_listed_is_the_kind_of_a_type():
    kinds = {kind_of(field.type) for field in SCHEMA} | {
        kind_of(pa.time64("us")), kind_of(pa.duration("us")), kind_of(pa.float16()),
    }  # fmt: skip
    assert kinds == set(COMPARED)
    assert kind_of(pa.list_(pa.int8())) is None
