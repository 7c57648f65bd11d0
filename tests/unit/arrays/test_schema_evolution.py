"""Appending with another nullability: what is allowed, and what both are read as."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.arrays.schema_evolution import (
    is_appendable,
    same_spark_type,
    widen,
    widen_spark_schema,
)
from tests.support.tables import types

FLAT = st.sampled_from([pa.int32(), pa.string(), pa.timestamp("us", tz="UTC")])


def _nested(inner):
    field = st.builds(lambda dtype, null: pa.field("item", dtype, null), inner, st.booleans())
    return (
        field.map(pa.list_)
        | field.map(lambda f: pa.list_(f, 2))
        | st.lists(field, min_size=1, max_size=3).map(
            lambda fs: pa.struct([f.with_name(f"f{i}") for i, f in enumerate(fs)])
        )
        | field.map(lambda f: pa.map_(pa.string(), f.with_name("value")))
    )


def renulled(dtype, draw):
    """`dtype` with another nullability at every depth."""

    def field(one):
        return one.with_type(renulled(one.type, draw)).with_nullable(draw(st.booleans()))

    if pa.types.is_struct(dtype):
        return pa.struct([field(one) for one in dtype])
    if pa.types.is_map(dtype):
        return pa.map_(dtype.key_field, field(dtype.item_field))
    if pa.types.is_fixed_size_list(dtype):
        return pa.list_(field(dtype.value_field), dtype.list_size)
    if pa.types.is_list(dtype):
        return pa.list_(field(dtype.value_field))
    return dtype


def nullable_paths(dtype, at=()):
    """Where in a type nulls may be."""
    if pa.types.is_struct(dtype):
        fields = list(dtype)
    elif pa.types.is_map(dtype):
        fields = [dtype.item_field]
    elif pa.types.is_list(dtype) or pa.types.is_fixed_size_list(dtype):
        fields = [dtype.value_field]
    else:
        fields = []
    for i, field in enumerate(fields):
        if field.nullable:
            yield (*at, i)
        yield from nullable_paths(field.type, (*at, i))


@given(st.recursive(FLAT, _nested, max_leaves=4), st.data())
def test_nullable_where_either_is(dtype, data):
    other = renulled(dtype, data.draw)
    there = pa.schema([pa.field("a", dtype, data.draw(st.booleans()))])
    here = pa.schema([pa.field("a", other, data.draw(st.booleans()))])
    assert is_appendable(there, here)
    both = widen(there, here)
    assert both.field("a").nullable == (there.field("a").nullable or here.field("a").nullable)
    assert set(nullable_paths(both.field("a").type)) == {
        *nullable_paths(dtype),
        *nullable_paths(other),
    }
    assert is_appendable(both, there)
    assert widen(both, here).equals(both)
    assert widen(there, there).equals(there)


@given(types(), types())
def test_another_type_is_refused(one, other):
    there, here = (pa.schema([("a", dtype)]) for dtype, _ in (one, other))
    assert is_appendable(there, there)
    if one[0] != other[0]:
        assert not is_appendable(there, here)


@pytest.mark.parametrize(
    "here",
    [
        pa.schema([("a", pa.int32())]),
        pa.schema([("b", pa.string()), ("a", pa.int32())]),
        pa.schema([("a", pa.int32()), ("B", pa.string())]),
        pa.schema([("a", pa.int32()), ("b", pa.string()), ("c", pa.int8())]),
    ],
)
def test_other_columns_are_refused(here):
    assert not is_appendable(pa.schema([("a", pa.int32()), ("b", pa.string())]), here)


def spark(type_, nullable):
    field = {"name": "a", "type": type_, "nullable": nullable, "metadata": {}}
    return json.dumps({"type": "struct", "fields": [field]})


def array(contains_null):
    return {"type": "array", "elementType": "integer", "containsNull": contains_null}


def test_spark_schemas_are_widened_alike():
    found = widen_spark_schema(spark(array(False), True), spark(array(True), False))
    assert json.loads(found) == json.loads(spark(array(True), True))
    found = widen_spark_schema(spark(array(False), False), spark(array(False), False))
    assert json.loads(found) == json.loads(spark(array(False), False))


def test_without_a_spark_schema():
    assert widen_spark_schema(None, spark("integer", False)) is None
    found = widen_spark_schema(spark(array(False), False), None)
    assert json.loads(found) == json.loads(spark(array(True), True))


def test_same_spark_type():
    one, other = json.loads(spark(array(False), True)), json.loads(spark(array(True), False))
    assert same_spark_type(one, other)
    assert not same_spark_type(one, json.loads(spark("integer", True)))
    assert not same_spark_type({"fields": [1]}, {"fields": [1, 2]})
