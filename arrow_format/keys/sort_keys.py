"""Sort keys: the columns rows are sorted by, with direction and position of nulls.

A sort order is a tuple of ``(column, order)`` pairs, as in the log and in every index.
Source: Spark's ``SortOrder``, with Spark's default for nulls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.stored_types import ORDERED_TYPES, missing_column
from arrow_format.errors import OptionError, SchemaError
from arrow_format.options import as_several

if TYPE_CHECKING:
    from collections.abc import Sequence

SortBy = tuple[tuple[str, str], ...]
"""Pairs of a column and one of :data:`ORDERS`, the most significant first."""

ORDERS = (
    "ascending",
    "descending",
    "ascending nulls last",
    "descending nulls first",
)
"""``ascending`` puts nulls first and ``descending`` puts them last, as Spark does."""

_TAGGED = {("metadata", b"variant"), ("wkb", b"geometry"), ("wkb", b"geography")}
"""Fields and metadata that mark a struct as a Spark type with neither an order nor a hash."""


def is_descending(order: str) -> bool:
    """Whether larger values come first."""
    return order.startswith("descending")


def puts_nulls_first(order: str) -> bool:
    """Whether nulls come before all values."""
    return order in ("ascending", "descending nulls first")


def normalise_sort_by(value: object, what: str = "sort_by") -> SortBy:
    """Return a user's sort keys as pairs; OptionError if malformed, or a column is named twice.

    ``value`` is a column name, or several keys, each a column name or a pair of name and order:
    ``("a", ("b", "descending"))``; None is not sorted. ``what`` is the argument's name in messages.
    """
    keys = tuple(_key(key, value, what) for key in as_several(() if value is None else value))
    names = [name for name, _ in keys]
    if len(set(names)) < len(names):
        raise OptionError.of(what, value, "a column is named twice")
    return keys


def _key(key: Any, value: object, what: str) -> tuple[str, str]:  # noqa: ANN401  from the user
    pair = (key, ORDERS[0]) if isinstance(key, str) else key
    if (
        not isinstance(pair, tuple | list)
        or len(pair) != 2
        or not all(isinstance(part, str) and part for part in pair)
    ):
        problem = (
            f"{key!r} is no sort key; expected a column name, or a pair of name and order such as "
            f"('a', {ORDERS[1]!r})"
        )
        raise OptionError.of(what, value, problem)
    name, order = pair
    if order not in ORDERS:
        problem = f"order {order!r} is not one of {', '.join(map(repr, ORDERS))}"
        raise OptionError.of(what, value, problem)
    return name, order


def key_fields(schema: pa.Schema, keys: SortBy, what: str = "sort_by") -> list[pa.Field]:
    """Return the fields of the key columns; SchemaError if missing, or their type has no order."""
    fields = []
    for name, _ in keys:
        if name not in schema.names:
            raise SchemaError(missing_column(name, schema.names, f"{what}: column"))
        field = schema.field(name)
        _check_sortable(field.type, name, what)
        fields.append(field)
    return fields


def check_sort_by(schema: pa.Schema, sort_by: Sequence[Any] | str | None) -> SortBy:
    """Return sort keys as :func:`normalise_sort_by`, checked as :func:`key_fields`."""
    keys = normalise_sort_by(sort_by)
    key_fields(schema, keys)
    return keys


def _check_sortable(type_: pa.DataType, path: str, what: str) -> None:
    if any(is_ordered(type_) for is_ordered in ORDERED_TYPES):
        return
    if pt.is_struct(type_) and not spark_struct(type_):
        for field in type_:
            _check_sortable(field.type, f"{path}.{field.name}", what)
        return
    kind = spark_struct(type_) or str(type_)
    if pt.is_map(type_):
        advice = "equal maps may list their entries in any order; use a value taken from it"
    elif spark_struct(type_):
        advice = "Spark does not order it either; use a plain column derived from it"
    elif type_.num_fields:
        advice = "use a column of its own with the elements to sort by"
    else:
        advice = "its values have no order; store what to sort by as a number"
    msg = f"{what}: column {path!r} of type {kind} cannot be a sort key: {advice}"
    raise SchemaError(msg)


def spark_struct(type_: pa.DataType) -> str | None:
    """Return the Spark type that a struct stores, such as ``variant``; None if it is plain."""
    if not pt.is_struct(type_):
        return None
    tags = {
        (field.name, tag)
        for field in type_
        for tag, value in (field.metadata or {}).items()
        if value == b"true"
    }
    marks = tags & _TAGGED
    return min(marks)[1].decode() if marks else None
