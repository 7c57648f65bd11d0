"""Sort keys: the forms they are written in, and what cannot be sorted by."""

import pyarrow as pa
import pytest

from arrow_format.errors import OptionError, SchemaError
from arrow_format.keys.sort_keys import (
    ORDERS,
    check_sort_by,
    is_descending,
    key_fields,
    normalise_sort_by,
    puts_nulls_first,
)

VARIANT = pa.struct(
    [
        pa.field("value", pa.binary()),
        pa.field("metadata", pa.binary(), metadata={"variant": "true"}),
    ]
)
SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("b", pa.string()),
        ("pair", pa.struct([("x", pa.int32()), ("y", pa.float64())])),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("items", pa.list_(pa.int32())),
        ("deep", pa.struct([("x", pa.list_(pa.int32()))])),
        ("v", VARIANT),
        ("i", pa.month_day_nano_interval()),
    ]
)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((), ()),
        ([], ()),
        ("a", (("a", "ascending"),)),
        (("a",), (("a", "ascending"),)),
        (("a", ("b", "descending")), (("a", "ascending"), ("b", "descending"))),
        ([["a", "ascending nulls last"]], (("a", "ascending nulls last"),)),
        ((("b", "descending nulls first"), "a"), (("b", ORDERS[3]), ("a", "ascending"))),
        (None, ()),
    ],
)
def test_keys_as_they_may_be_written(given, found):
    assert normalise_sort_by(given) == found
    assert normalise_sort_by(found) == found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, "sort_by=5: 5 is no sort key; expected a column name, or a pair"),
        ([None], r"sort_by=\[None\]: None is no sort key"),
        ([5], r"sort_by=\[5\]: 5 is no sort key"),
        ([""], "'' is no sort key"),
        ([("a",)], r"\('a',\) is no sort key"),
        ([("a", "descending", "nulls first")], "is no sort key"),
        ([("a", 1)], "is no sort key"),
        ([("a", "down")], "order 'down' is not one of 'ascending', 'descending', 'ascending null"),
        (("a", ("a", "descending")), "a column is named twice"),
    ],
)
def test_a_bad_form_is_told(given, message):
    with pytest.raises(OptionError, match=message):
        normalise_sort_by(given)


def test_defaults_for_nulls_are_those_of_spark():
    assert [is_descending(order) for order in ORDERS] == [False, True, False, True]
    assert [puts_nulls_first(order) for order in ORDERS] == [True, False, False, True]


def test_fields_of_keys():
    fields = key_fields(SCHEMA, (("pair", "descending"), ("a", "ascending")))
    assert [field.name for field in fields] == ["pair", "a"]
    assert check_sort_by(SCHEMA, ["a"]) == (("a", "ascending"),)
    assert check_sort_by(SCHEMA, ()) == ()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "sort_by: column 'nothing' is not there; columns are a, b, pair"),
        ("B", r"column 'B' is not there \(did you mean 'b'\?\)"),
        ("m", "sort_by: column 'm' of type map<string, int32> cannot be a sort key: equal maps"),
        ("items", "column 'items' of type list<item: int32> cannot be a sort key"),
        ("deep", "column 'deep.x' of type list"),
        ("v", "column 'v' of type variant cannot be a sort key: Spark does not order it"),
        ("i", "column 'i' of type month_day_nano_interval cannot be a sort key"),
    ],
)
def test_what_cannot_be_a_sort_key(name, message):
    with pytest.raises(SchemaError, match=message):
        check_sort_by(SCHEMA, [name])
