"""Appending to rows that Spark describes: which types fit, and how both are described."""

import json

import pyarrow as pa
import pytest

from arrow_format.arrays.spark_schema_evolution import (
    labelled_columns,
    rename_spark,
    same_spark_type,
    spark_refusals,
    widen_schemas,
)


def spark(*columns):
    """Spark's JSON of columns: name, type, nullable."""
    fields = [
        {"name": name, "type": type_, "nullable": nullable, "metadata": {}}
        for name, type_, nullable in columns
    ]
    return json.dumps({"type": "struct", "fields": fields})


def array(contains_null):
    return {"type": "array", "elementType": "integer", "containsNull": contains_null}


def arrow(**types):
    return pa.schema(types)


def widened(old, new):
    """Column by column: type and whether it is nullable."""
    schema, text = widen_schemas(old, new)
    fields = json.loads(text)["fields"]
    assert [field["name"] for field in fields] == [n for n in schema.names if n in text]
    return {field["name"]: (field["type"], field["nullable"]) for field in fields}


LISTS = pa.schema([pa.field("a", pa.list_(pa.int32()), nullable=False)])


@pytest.mark.parametrize(
    ("old", "new", "both"),
    [
        ((array(False), True), (array(True), False), (array(True), True)),
        ((array(False), False), (array(False), False), (array(False), False)),
        ((array(False), False), None, (array(True), True)),
    ],
)
def test_nullable_where_either_is(old, new, both):
    text = None if new is None else spark(("a", *new))
    assert widened((LISTS, spark(("a", *old))), (LISTS, text)) == {"a": both}


def test_without_a_spark_schema():
    new = spark(("a", array(False), False))
    assert widen_schemas((LISTS, None), (LISTS, new)) == (LISTS, None)


def test_new_columns_and_wider_numbers():
    old = arrow(i=pa.int8(), d=pa.decimal128(5, 2), s=pa.string())
    new = arrow(v=pa.binary(), d=pa.decimal128(20, 2), i=pa.int64())
    described = spark(("i", "byte", False), ("d", "decimal(5,2)", True), ("s", "string", False))
    added = spark(("v", "variant", False), ("d", "decimal(20,2)", True), ("i", "long", False))
    assert widened((old, described), (new, added)) == {
        "i": ("long", True),
        "d": ("decimal(20,2)", True),
        "s": ("string", True),
        "v": ("variant", True),
    }
    # Without Spark's JSON of the new rows, the Arrow schema tells the numbers and has the rest.
    assert widened((old, described), (new, None)) == {
        "i": ("long", True),
        "d": ("decimal(20,2)", True),
        "s": ("string", True),
    }


def test_a_column_that_was_added_without_spark_stays_as_arrow_has_it():
    old = arrow(i=pa.int8(), v=pa.binary())
    described = spark(("i", "byte", True))
    assert widened((old, described), (old, spark(("i", "byte", True), ("v", "variant", True)))) == {
        "i": ("byte", True)
    }


def test_a_missing_column_keeps_what_is_inside():
    old = pa.schema([*LISTS, pa.field("i", pa.int8())])
    described = spark(("a", array(False), True), ("i", "byte", True))
    new = arrow(i=pa.int8())
    assert widened((old, described), (new, None))["a"] == (array(False), True)


def test_same_spark_type():
    one, other = (json.loads(spark(("a", array(null), not null))) for null in (False, True))
    assert same_spark_type(one, other)
    assert not same_spark_type(one, json.loads(spark(("a", "integer", True))))
    assert not same_spark_type({"fields": [1]}, {"fields": [1, 2]})


def test_types_that_cannot_be_read_as_one():
    old = spark(("a", "variant", True), ("i", "integer", True), ("y", "interval year", True))
    fits = spark(("i", "long", False), ("b", "binary", True), ("a", "variant", False))
    assert not any(spark_refusals(old, fits))
    assert not any(spark_refusals(old, None))
    assert not any(spark_refusals(None, fits))
    for other in (
        spark(("a", "struct", True)),
        spark(("y", "integer", True)),
        spark(("i", "interval year", True)),
    ):
        assert len(list(spark_refusals(old, other))) == 1
    (why,) = spark_refusals(old, spark(("a", array(True), True)))
    assert why.startswith("column 'a' is variant there, {")


def test_labelled_columns():
    udt = {"type": "udt", "sqlType": "integer"}
    text = spark(
        ("a", udt, True), ("i", "long", True), ("d", "decimal(5,2)", True), ("x", "date", True)
    )
    assert labelled_columns(text) == {"a", "x"}
    assert labelled_columns(None) == frozenset()


def test_a_renamed_column_keeps_its_collations():
    def described(*columns):
        fields = [
            {"name": name, "type": type_, "nullable": True, "metadata": {"comment": "c"} | labels}
            for name, type_, labels in columns
        ]
        return {"type": "struct", "fields": fields}

    def collated(**by_path):
        return {"__COLLATIONS": by_path}

    inside = {"ks.element": "icu.UNICODE", "ks.element.k": "spark.UTF8_LCASE"}
    texts = array(True) | {"elementType": array(True) | {"elementType": "string"}}
    before = described(
        ("k", "string", collated(k="spark.UTF8_LCASE")),
        ("ks", texts, collated(**inside)),
        ("x", "integer", {}),
    )
    after = described(
        ("ks", "string", collated(ks="spark.UTF8_LCASE")),
        (
            "key",
            texts,
            collated(**{"key" + path.removeprefix("ks"): c for path, c in inside.items()}),
        ),
    )
    names = {"k": "ks", "ks": "key"}
    assert json.loads(rename_spark(json.dumps(before), names, ["x"])) == after
    assert rename_spark(None, names) is None
