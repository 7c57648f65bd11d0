"""The Arrow types that shuffles store, and batches brought to them and checked for nulls."""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.conversion import convert, is_list
from arrow_format.arrays.selection import keep
from arrow_format.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def check_nulls(batch: pa.RecordBatch, schema: pa.Schema) -> None:
    """Check that a batch has no null where its schema allows none; raises SchemaError.

    Parameters
    ----------
    batch
        Of the types of the schema.
    schema
        Says what may be null. It is told apart from the batch's own, which may allow more.
    """
    for i, field in enumerate(schema):
        # Making a column object costs more than this question.
        if not field.nullable or field.type.num_fields:
            _check_column(batch.column(i), field, field.name)


def _check_column(array: pa.Array, field: pa.Field, path: str) -> None:
    if not field.nullable and array.null_count:
        msg = (
            f"column {path!r} is declared non-nullable but has {array.null_count} null(s) in one "
            "batch; declare it nullable or fill them"
        )
        raise SchemaError(msg)
    type_ = field.type
    if type_.num_fields:
        _check_inside(array, type_, path)


def _check_inside(array: pa.Array, type_: pa.DataType, path: str) -> None:
    """Look for nulls inside the values that are there; what a null row hides does not count."""
    if not _declares_non_null(type_):
        return
    if pt.is_map(type_):
        # A map has no flatten of its own; as the list of structs it is, it does.
        entries = pa.struct([type_.key_field, type_.item_field])
        as_list = pa.Array.from_buffers(
            pa.list_(pa.field("entries", entries, nullable=False)),
            len(array),
            array.buffers()[:2],
            offset=array.offset,
            children=[pa.StructArray.from_arrays([array.keys, array.items], fields=list(entries))],
        )
        inside = as_list.flatten()
        _check_column(inside.field(0), type_.key_field, f"{path}.key")
        _check_column(inside.field(1), type_.item_field, f"{path}.value")
    elif pt.is_struct(type_):
        present = keep(array, array.is_valid()) if array.null_count else array
        for i, child in enumerate(type_):
            _check_column(present.field(i), child, f"{path}.{child.name}")
    else:
        _check_column(array.flatten(), type_.value_field, f"{path}.element")


def _declares_non_null(type_: pa.DataType) -> bool:
    """Whether something inside ``type_`` may not be null; the key of a map never is."""
    if pt.is_map(type_):
        item = type_.item_field
        return not item.nullable or any(
            part.num_fields and _declares_non_null(part) for part in (type_.key_type, item.type)
        )
    children: Any = type_ if pt.is_struct(type_) else [type_.value_field]
    return any(
        not child.nullable or (child.type.num_fields > 0 and _declares_non_null(child.type))
        for child in children
    )


_FLAT = (
    pt.is_boolean,
    pt.is_integer,
    pt.is_floating,
    pt.is_decimal,
    pt.is_date,
    pt.is_time,
    pt.is_timestamp,
    pt.is_duration,
    pt.is_null,
    pt.is_string,
    pt.is_binary,
    pt.is_fixed_size_binary,
    lambda type_: type_.equals(pa.month_day_nano_interval()),
)
"""Tests for the types that are stored as they are."""

_EXTENSION_KEYS = frozenset({b"ARROW:extension:name", b"ARROW:extension:metadata"})
"""Metadata that turns a storage type back into the extension type wherever that is registered."""


def data_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the rows a shuffle stores for input of ``schema``.

    Dictionary and run-end encoded columns become their values, views and 64-bit offsets the plain
    types with 32-bit offsets, extension types their storage, at every depth. Names, nullability and
    the metadata of fields stay; metadata of the schema itself goes. Applying it twice changes
    nothing more.

    Raises
    ------
    SchemaError
        No columns, a name used twice in the schema or in one struct, or a type that cannot be
        stored (unions, year-month intervals); names the column.
    """
    if not schema.names:
        msg = "the schema has no columns, so the rows would be lost; add a column"
        raise SchemaError(msg)
    refuse_duplicates(schema.names)
    return pa.schema([_stored_field(field, field.name) for field in schema])


def normalise(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Make ``batch`` fit a data schema exactly, without copying what fits already.

    Columns are taken by position once the names have been found equal. Encodings are resolved as
    :func:`data_schema` says. Timestamps with another time zone are only relabelled: their values
    are instants in UTC. A batch whose types fit costs microseconds: what it takes to ask the
    non-nullable columns how many nulls they have, and to attach metadata if the batch lacks it.

    Parameters
    ----------
    batch
        Any number of rows; may be a slice.
    schema
        A result of :func:`data_schema`.

    Returns
    -------
    pyarrow.RecordBatch
        As many rows in the same order; its schema is ``schema`` with all metadata.

    Raises
    ------
    SchemaError
        Names or types differ, or a column declared non-nullable has a null (at any depth).
    """
    have = batch.schema
    if not schema.names:  # from_arrays would forget the number of rows
        if have.names:
            _refuse_names(have.names, schema.names)
        return batch.replace_schema_metadata(schema.metadata)
    if have.equals(schema):
        check_nulls(batch, schema)
        if have.equals(schema, check_metadata=True):
            return batch
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    if have.names != schema.names:
        _refuse_names(have.names, schema.names)
    columns = [_fit(column, field) for column, field in zip(batch.columns, schema, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    check_nulls(batch, schema)
    return batch


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Select the columns of ``schema`` from a stored batch, by name, and make them fit it.

    For reading: the target may have fewer columns (even none), another order, and another
    nullability, metadata or time zone. Copies nothing but, where the nullability inside a list
    differs, its offsets.

    Raises
    ------
    SchemaError
        A column is missing, has another type, or has nulls where the target allows none.
    """
    if batch.schema.names != schema.names:
        present = set(batch.schema.names)
        for name in schema.names:
            if name not in present:
                raise SchemaError(missing_column(name, batch.schema.names))
        batch = batch.select(schema.names)
    return normalise(batch, schema)


def in_time_zone(schema: pa.Schema, time_zone: str) -> pa.Schema:
    """Return a data schema whose timestamps with a time zone have this one, at every depth.

    :func:`conform` brings batches to it: the instants are the same.
    """
    return pa.schema([_field_in_zone(field, time_zone) for field in schema], schema.metadata)


def _field_in_zone(field: pa.Field, time_zone: str) -> pa.Field:
    return field.with_type(_type_in_zone(field.type, time_zone))


def _type_in_zone(type_: pa.DataType, time_zone: str) -> pa.DataType:
    if pt.is_timestamp(type_) and type_.tz is not None:
        return pa.timestamp(type_.unit, time_zone)
    if pt.is_struct(type_):
        return pa.struct([_field_in_zone(child, time_zone) for child in type_])
    if pt.is_map(type_):
        key = _field_in_zone(type_.key_field, time_zone)
        item = _field_in_zone(type_.item_field, time_zone)
        return pa.map_(key, item, keys_sorted=type_.keys_sorted)
    if pt.is_fixed_size_list(type_):
        return pa.list_(_field_in_zone(type_.value_field, time_zone), type_.list_size)
    if is_list(type_):
        return pa.list_(_field_in_zone(type_.value_field, time_zone))
    return type_


def refuse_duplicates(names: Iterable[str], what: str = "columns") -> None:
    """Raise SchemaError when a name occurs twice.

    Parameters
    ----------
    names
        In any order.
    what
        What bears the names, for the message.

    Raises
    ------
    SchemaError
        Lists the names in question.
    """
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        msg = (
            f"{what} with the same name: {', '.join(map(repr, twice))}; "
            "each must be told from the others: rename or drop them"
        )
        raise SchemaError(msg)


def missing_column(name: str, names: Sequence[str], what: str = "column") -> str:
    """Return the message that ``name`` is not among ``names``; ``what`` says what was looked for.

    It lists the names, and the nearest first if there is one.
    """
    lowered = {present.lower(): present for present in names}
    nearest = get_close_matches(name.lower(), lowered, n=1)
    hint = f" (did you mean {lowered[nearest[0]]!r}?)" if nearest else ""
    return f"{what} {name!r} is not there{hint}; columns are {', '.join(names)}"


# What is stored ----------------------------------------------------------------------------------


def _stored_field(field: pa.Field, path: str) -> pa.Field:
    metadata = field.metadata
    if metadata and not _EXTENSION_KEYS.isdisjoint(metadata):
        metadata = {k: v for k, v in metadata.items() if k not in _EXTENSION_KEYS}
        field = field.with_metadata(metadata or None)
    return field.with_type(_stored_type(field.type, path))


def _stored_type(type_: pa.DataType, path: str) -> pa.DataType:
    if isinstance(type_, pa.BaseExtensionType):
        return _stored_type(type_.storage_type, path)
    if pt.is_dictionary(type_) or pt.is_run_end_encoded(type_):
        return _stored_type(type_.value_type, path)
    if pt.is_large_string(type_) or pt.is_string_view(type_):
        return pa.string()
    if pt.is_large_binary(type_) or pt.is_binary_view(type_):
        return pa.binary()
    if pt.is_struct(type_):
        refuse_duplicates((child.name for child in type_), f"fields of column {path!r}")
        return pa.struct([_stored_field(child, f"{path}.{child.name}") for child in type_])
    if pt.is_map(type_):
        key = _stored_field(type_.key_field, f"{path}.key")
        item = _stored_field(type_.item_field, f"{path}.value")
        return pa.map_(key, item, keys_sorted=type_.keys_sorted)
    if pt.is_fixed_size_list(type_):
        return pa.list_(_stored_field(type_.value_field, f"{path}.element"), type_.list_size)
    if is_list(type_):
        return pa.list_(_stored_field(type_.value_field, f"{path}.element"))
    if any(is_flat(type_) for is_flat in _FLAT):
        return type_
    msg = f"column {path!r} has type {type_}, which cannot be stored; cast it or drop it"
    raise SchemaError(msg)


# Making a column fit -----------------------------------------------------------------------------


def _fit(array: pa.Array, field: pa.Field) -> pa.Array:
    """Turn a column into the type of ``field``, if that is how its type is stored."""
    if array.type.equals(field.type):
        return array
    path = field.name
    if not same_but_labels(_stored_type(array.type, path), field.type):
        msg = (
            f"column {path!r} has type {array.type}, but the shuffle stores {field.type}; "
            "cast it before it is written, or ask for the stored type when reading"
        )
        raise SchemaError(msg)
    return _convert_or_refuse(array, array.type, field.type, path)


def plain_dictionary(array: pa.DictionaryArray, field: pa.Field) -> pa.DictionaryArray:
    """Return a dictionary array with the values of its dictionary as they will be stored.

    Raises
    ------
    SchemaError
        They do not fit into the type of ``field``.
    """
    values = array.dictionary
    if values.type.equals(field.type) or not same_but_labels(
        _stored_type(values.type, field.name), field.type
    ):
        return array  # normalise refuses the type, naming it
    plain = _convert_or_refuse(values, array.type, field.type, field.name)
    return pa.DictionaryArray.from_arrays(array.indices, plain, safe=False)


def _convert_or_refuse(
    array: pa.Array, given: pa.DataType, target: pa.DataType, path: str
) -> pa.Array:
    try:
        return convert(array, target)
    except pa.ArrowException as error:
        msg = (
            f"column {path!r} of type {given} does not fit into {target}: {error}; "
            "hand in smaller batches"
        )
        raise SchemaError(msg) from error


def same_but_labels(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether two stored types differ at most in labels: time zones, nullability inside, metadata.

    Only then does :func:`conform` turn one into the other, given that there are no nulls where the
    other allows none.
    """
    if one.equals(other):
        return True
    if one.id != other.id:
        return False
    if pt.is_timestamp(one):
        return bool(one.unit == other.unit and (one.tz is None) == (other.tz is None))
    if pt.is_struct(one):
        return one.num_fields == other.num_fields and all(
            a.name == b.name and same_but_labels(a.type, b.type)
            for a, b in zip(one, other, strict=True)
        )
    if pt.is_map(one):
        # Whether keys are sorted is a claim about the values that a label must not add.
        return (
            (one.keys_sorted or not other.keys_sorted)
            and same_but_labels(one.key_type, other.key_type)
            and same_but_labels(one.item_type, other.item_type)
        )
    if pt.is_fixed_size_list(one) and one.list_size != other.list_size:
        return False
    nested = is_list(one) or pt.is_fixed_size_list(one)
    return bool(nested and same_but_labels(one.value_type, other.value_type))


# Refusals ----------------------------------------------------------------------------------------


def _refuse_names(have: list[str], want: list[str]) -> NoReturn:
    missing = [name for name in want if name not in have]
    extra = [name for name in have if name not in want]
    if missing or extra:
        parts = []
        if missing:
            parts.append(f"without {', '.join(map(repr, missing))}")
        if extra:
            parts.append(f"with {', '.join(map(repr, extra))}, which the shuffle does not have")
        differs = " and ".join(parts)
    else:
        differs = f"in the order {', '.join(map(repr, have))}"
    msg = (
        f"a batch came {differs}; the shuffle's columns are {', '.join(map(repr, want))}, in this "
        "order: select them before writing"
    )
    raise SchemaError(msg)
