"""Which rows may be appended to which, and the schema that both are read as; pure.

Columns are matched by name. The result has the columns of both, each in the wider of its two types,
nullable where either side is or where one side lacks it: Spark derives nullability from the plan
that made the rows. A type is wider if it holds every value of the other exactly, with the same
order: a larger integer, float64, a decimal of the same scale. Nested types differ in labels only.
Appends, reads, merges, and reads of changes share this; ``row_fit`` brings rows to the result.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.stored_types import same_but_labels

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

_WIDENING = (
    (pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    (pa.float32(), pa.float64()),
)
"""Types of which each holds the values of those before it, in the same order."""


# What is allowed ----------------------------------------------------------------------------------


def is_wider(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether ``wide`` is another type that holds every value of ``narrow``, in the same order."""
    if pt.is_decimal(wide) and pt.is_decimal(narrow):
        # Of another scale, a decimal of the same precision has fewer digits before the point.
        return bool(
            wide != narrow
            and wide.scale == narrow.scale
            and wide.precision >= narrow.precision
            and wide.byte_width >= narrow.byte_width
        )
    return any(narrow in chain and wide in chain[chain.index(narrow) + 1 :] for chain in _WIDENING)


def is_same_type(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether two stored types differ at most in labels."""
    # Only one side may claim that the keys of a map are sorted.
    return same_but_labels(left, right) or same_but_labels(right, left)


def has_same_columns(left: pa.Schema, right: pa.Schema) -> bool:
    """Whether stored bytes of one schema are those of the other: the same columns, in order."""
    return left.equals(right) or (
        left.names == right.names
        and all(is_same_type(a.type, b.type) for a, b in zip(left, right, strict=True))
    )


def shared_columns(stored: pa.Schema, schema: pa.Schema) -> pa.Schema:
    """Return the stored columns that a schema has; it lacks those that were dropped."""
    if stored.equals(schema) or stored.names == schema.names:  # a schema takes long to make
        return stored
    return pa.schema([field for field in stored if field.name in schema.names])


def can_read_as(stored: pa.Schema, schema: pa.Schema, exact: Collection[str] = ()) -> bool:
    """Whether rows stored with one schema can be read with another, a later one.

    The columns ``exact`` must have the same type in both.
    """
    if stored.equals(schema):
        return True
    if not set(stored.names) <= set(schema.names):
        return False
    for field in schema:
        index = stored.get_field_index(field.name)
        if index < 0:
            if not field.nullable:
                return False
            continue
        type_ = stored.field(index).type
        if not is_same_type(type_, field.type) and (
            field.name in exact or not is_wider(field.type, type_)
        ):
            return False
    return True


def is_appendable(old: pa.Schema, new: pa.Schema) -> bool:
    """Whether rows of ``new`` fit a shuffle of ``old`` whose columns stay as they are."""
    return next(refusals(old, new, exact={}, evolves=False), None) is None


def refusals(
    old: pa.Schema, new: pa.Schema, *, exact: Mapping[str, str], evolves: bool
) -> Iterator[str]:
    """Yield why rows of ``new`` cannot be appended to a shuffle of ``old``, and what to do.

    ``exact`` has the columns that must keep their type, each with the reason. ``evolves`` is
    whether the columns of the shuffle may change: new ones, and wider types.
    """
    for field in old:
        index = new.get_field_index(field.name)
        if index < 0:
            if not field.nullable:
                yield (
                    f"column {field.name!r} ({field.type}) is missing, and is not nullable there: "
                    "add it to the rows"
                )
            continue
        yield from _type_refusals(field, new.field(index).type, exact.get(field.name), evolves)
    for field in new:
        if old.get_field_index(field.name) < 0:
            yield from _new_column_refusals(field, old, new, evolves)


def _type_refusals(
    field: pa.Field, appended: pa.DataType, reason: str | None, evolves: bool
) -> Iterator[str]:
    there = field.type
    if is_same_type(there, appended):
        return
    types = f"column {field.name!r} is {there} there, {appended} here"
    widens = is_wider(appended, there)
    if not widens and not is_wider(there, appended):
        yield f"{types}, and neither holds all values of the other: cast it to {there}"
    elif reason is not None:
        yield f"{types}, and must keep its type, because {reason}: cast it to {there}"
    elif widens and not evolves:
        yield f"{types}: cast it to {there}, or widen the shuffle's column with {_OPTION}"


def _new_column_refusals(
    field: pa.Field, old: pa.Schema, new: pa.Schema, evolves: bool
) -> Iterator[str]:
    described = f"column {field.name!r} ({field.type}) is not in the shuffle"
    same_in_lower_case = [name for name in old.names if name.lower() == field.name.lower()]
    if same_in_lower_case:
        # Spark could then select neither of them.
        yield f"{described}, and {same_in_lower_case[0]!r} differs only in case: rename it"
    elif not evolves:
        lacking = [name for name in old.names if new.get_field_index(name) < 0]
        nearest = get_close_matches(field.name, lacking, n=1)
        hint = f" (did you mean {nearest[0]!r}?)" if nearest else ""
        yield f"{described}{hint}: rename or drop it, or add it with {_OPTION}"


_OPTION = "schema_evolution=True (option mergeSchema)"


# What both are read as ----------------------------------------------------------------------------


def widen(old: pa.Schema, new: pa.Schema) -> pa.Schema:
    """Return the schema in which rows of both can be read: columns of ``old``, then new ones.

    Neither may refuse the other, see :func:`refusals`.
    """
    fields = []
    for field in old:
        index = new.get_field_index(field.name)
        fields.append(
            field.with_nullable(True) if index < 0 else _widen_field(field, new.field(index))
        )
    added = (field.with_nullable(True) for field in new if old.get_field_index(field.name) < 0)
    return pa.schema([*fields, *added])


def _widen_field(old: pa.Field, new: pa.Field) -> pa.Field:
    return old.with_type(_widen_type(old.type, new.type)).with_nullable(
        old.nullable or new.nullable
    )


def _widen_type(old: pa.DataType, new: pa.DataType) -> pa.DataType:
    if pt.is_struct(old):
        return pa.struct([_widen_field(*pair) for pair in zip(old, new, strict=True)])
    if pt.is_map(old):
        key = _widen_field(old.key_field, new.key_field).with_nullable(False)
        item = _widen_field(old.item_field, new.item_field)
        return pa.map_(key, item, keys_sorted=old.keys_sorted and new.keys_sorted)
    if pt.is_fixed_size_list(old):
        return pa.list_(_widen_field(old.value_field, new.value_field), old.list_size)
    if pt.is_list(old):
        return pa.list_(_widen_field(old.value_field, new.value_field))
    return new if is_wider(new, old) else old
