"""Appending with other columns: what is allowed, and what both are read as."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.arrays.schema_evolution import (
    can_read_as,
    is_appendable,
    is_wider,
    refusals,
    widen,
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


ORDERED = [
    [pa.int8(), pa.int16(), pa.int32(), pa.int64()],
    [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()],
    [pa.float32(), pa.float64()],
    [pa.decimal128(5, 2), pa.decimal128(6, 2), pa.decimal128(38, 2), pa.decimal256(76, 2)],
    [pa.decimal32(5, 1), pa.decimal64(5, 1), pa.decimal128(19, 1)],
]
"""Types of which each is wider than those before it."""

UNRELATED = [
    (pa.int32(), pa.uint32()),
    (pa.uint8(), pa.int16()),
    (pa.int8(), pa.float64()),
    (pa.int8(), pa.decimal128(38, 0)),
    (pa.float16(), pa.float32()),
    (pa.decimal128(5, 2), pa.decimal128(38, 3)),
    (pa.decimal128(9, 2), pa.decimal256(8, 2)),
    (pa.date32(), pa.timestamp("us")),
    (pa.timestamp("ms"), pa.timestamp("us")),
    (pa.list_(pa.int8()), pa.list_(pa.int16())),
    (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int16())])),
    (pa.null(), pa.int8()),
    (pa.string(), pa.binary()),
]


@pytest.mark.parametrize("chain", ORDERED, ids=lambda chain: str(chain[0]))
def test_wider_types(chain):
    for i, narrow in enumerate(chain):
        for j, wide in enumerate(chain):
            assert is_wider(wide, narrow) == (i < j)


@pytest.mark.parametrize(("one", "other"), UNRELATED, ids=str)
def test_types_of_which_neither_is_wider(one, other):
    assert not is_wider(one, other)
    assert not is_wider(other, one)


@given(types(), types())
def test_another_type_is_refused(one, other):
    there, here = (pa.schema([("a", dtype)]) for dtype, _ in (one, other))
    assert is_appendable(there, there)
    if one[0] != other[0]:
        assert is_appendable(there, here) == is_wider(one[0], other[0])


AB = pa.schema([("a", pa.int32()), pa.field("b", pa.string(), nullable=False)])


def why_not(here, *, there=AB, exact=(), evolves=False):
    reasons = dict.fromkeys(exact, "it is the key")
    return list(refusals(there, here, exact=reasons, evolves=evolves))


def test_columns_in_another_order_without_a_nullable_one_and_narrower_fit():
    assert is_appendable(AB, pa.schema([AB.field("b"), AB.field("a")]))
    assert is_appendable(AB, pa.schema([AB.field("b")]))
    assert is_appendable(AB, pa.schema([("b", pa.string()), ("a", pa.int8())]))
    assert is_appendable(AB, pa.schema([("a", pa.int32()), ("b", pa.string())]))


@pytest.mark.parametrize(
    ("here", "message"),
    [
        ({"a": pa.int32()}, "column 'b' (string) is missing, and is not nullable there: add it"),
        ({"a": pa.int64(), "b": pa.string()}, "column 'a' is int32 there, int64 here: cast it to"),
        ({"a": pa.int8(), "b": pa.string(), "aa": pa.int8()}, "column 'aa' (int8) is not in the"),
        ({"aa": pa.int8(), "b": pa.string()}, "is not in the shuffle (did you mean 'a'?): rename"),
    ],
)
def test_what_only_evolution_allows(here, message):
    schema = pa.schema(here)
    (why,) = why_not(schema)
    assert message in why
    if "b" in here:
        assert "schema_evolution=True (option mergeSchema)" in why
        assert why_not(schema, evolves=True) == []
    else:
        assert why_not(schema, evolves=True) == [why]


@pytest.mark.parametrize(
    ("here", "exact", "message"),
    [
        ({"a": pa.string(), "b": pa.string()}, (), "string here, and neither holds all values"),
        ({"a": pa.float64(), "b": pa.string()}, (), "double here, and neither holds all values"),
        ({"a": pa.uint32(), "b": pa.string()}, (), "uint32 here, and neither holds all values"),
        ({"a": pa.int64(), "b": pa.string()}, ("a",), "must keep its type, because it is the key"),
        ({"a": pa.int8(), "b": pa.string()}, ("a",), "must keep its type, because it is the key"),
        ({"b": pa.string(), "A": pa.int32()}, (), "and 'a' differs only in case: rename it"),
    ],
)
def test_what_nothing_allows(here, exact, message):
    for evolves in (False, True):
        (why,) = why_not(pa.schema(here), exact=exact, evolves=evolves)
        assert message in why


def test_the_wider_type_and_all_columns():
    here = pa.schema([pa.field("c", pa.int8(), nullable=False), ("a", pa.int64())])
    both = widen(AB, here)
    assert both.equals(pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.int8())]))
    assert widen(here, AB).equals(pa.schema([("c", pa.int8()), ("a", pa.int64()), ("b", "string")]))
    for schema in (AB, here):
        assert can_read_as(schema, both)
    assert not can_read_as(both, AB)
    assert not can_read_as(AB, both, exact=["a"])
    assert can_read_as(AB, both, exact=["b"])


@st.composite
def schemas(draw):
    """A schema of some of the columns a to d, each of one chain of types, in any order."""
    names = draw(st.lists(st.sampled_from("abcd"), min_size=1, unique=True))
    chains = dict(zip("abcd", ORDERED, strict=False))
    return pa.schema(
        [
            pa.field(name, draw(st.sampled_from(chains[name])), nullable=draw(st.booleans()))
            for name in names
        ]
    )


@given(schemas(), schemas(), schemas())
def test_widening_is_the_least_upper_bound(one, other, third):
    both = widen(one, other)
    assert can_read_as(one, both)
    assert can_read_as(other, both)
    assert widen(both, one).equals(both)
    assert widen(both, other).equals(both)
    swapped = widen(other, one)
    assert {field.name: field for field in swapped} == {field.name: field for field in both}
    assert widen(both, third).equals(widen(one, widen(other, third)))
    assert is_appendable(both, one) == all(
        field.nullable for field in both if field.name not in one.names
    )
    assert list(refusals(one, other, exact={}, evolves=True)) == [
        why for why in refusals(one, other, exact={}, evolves=False) if "is missing" in why
    ]
