"""Ids of columns: how they are given, and what a file's columns are called by them."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.arrays.column_ids import (
    Columns,
    give_ids,
    inside_is_alike,
    names_in,
    paths_of,
    problem_of_ids,
    renamed,
)

NESTED = pa.schema(
    [
        ("a", pa.int32()),
        ("s", pa.struct([("x", pa.int8()), ("l", pa.list_(pa.struct([("y", pa.int8())])))])),
        ("m", pa.map_(pa.string(), pa.list_(pa.int8(), 2))),
    ]
)


def test_columns_and_all_inside_them_have_ids_depth_first():
    assert list(paths_of(NESTED)) == [
        ("a",), ("s",), ("s", "x"), ("s", "l"), ("s", "l", "item"), ("s", "l", "item", "y"),
        ("m",), ("m", "key"), ("m", "value"), ("m", "value", "item"),
    ]  # fmt: skip
    assert give_ids(NESTED, [], 4).ids == tuple(range(5, 15))
    assert give_ids(NESTED, [], 0).by_name == {"a": 1, "s": 2, "m": 7}


NAMES = st.lists(st.sampled_from("abcdefg"), min_size=1, unique=True)


@given(st.lists(NAMES, min_size=1))
def test_an_id_is_of_one_name_while_all_that_was_is_known(writes):
    last, known, names = 0, [], {}
    for write in writes:
        columns = give_ids(pa.schema([(name, pa.int8()) for name in write]), known, last)
        assert problem_of_ids(columns) is None
        last, known = max(last, *columns.ids), [columns, *known]
        for name, id_ in columns.by_name.items():
            assert names.setdefault(id_, name) == name
    assert len(names) == len(set(names.values()))


def test_a_column_that_is_no_longer_known_gets_a_new_id():
    one = give_ids(pa.schema([("a", pa.int8()), ("b", pa.int8())]), [], 0)
    without = give_ids(pa.schema([("b", pa.int8())]), [one], 2)
    again = give_ids(one.schema, [without], 2)
    assert (without.ids, again.ids) == ((2,), (3, 2))
    # So its old values are those of no column, whatever they are called.
    assert names_in(one, again) == {"a": "a (dropped)", "b": "b"}


def test_columns_of_a_file_are_called_what_the_version_calls_them():
    stored = Columns(pa.schema([("a", pa.int8()), ("b", pa.int8()), ("c", pa.int8())]), (1, 2, 3))
    version = Columns(
        pa.schema([("b", pa.int8()), ("c (dropped)", pa.int8()), ("new", pa.int8())]), (1, 2, 4)
    )
    names = names_in(stored, version)
    assert names == {"a": "b", "b": "c (dropped)", "c": "c (dropped)'"}
    assert renamed(stored.schema, names).names == ["b", "c (dropped)", "c (dropped)'"]


@pytest.mark.parametrize(
    ("ids", "problem"),
    [((1,), "1 ids of 2"), ((1, 1), "one id"), ((0, 1), "from 1"), ((1, 2**31), "from 1")],
)
def test_ids_that_cannot_be(ids, problem):
    schema = pa.schema([("a", pa.list_(pa.int8()))])
    assert problem in (problem_of_ids(Columns(schema, ids)) or "")


def test_what_is_inside_has_the_same_ids():
    schema = pa.schema([("s", pa.struct([("x", pa.int8()), ("y", pa.int8())])), ("a", pa.int8())])
    one = Columns(schema, (1, 2, 3, 4))
    assert inside_is_alike(one, one)
    assert not inside_is_alike(one, Columns(schema, (1, 3, 2, 4)))
    assert inside_is_alike(one, Columns(schema, (5, 6, 7, 4)))  # of another column
