"""The Arrow types that shuffles store, and batches brought to them and checked for nulls."""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.conversion import convert, is_list, with_fields
from arrow_format.arrays.selection import keep
from arrow_format.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def check_nulls(batch: pa.RecordBatch, schema: pa.Schema) -> None:
    """Raise SchemaError if a batch has a null where ``schema``, of the same types, allows none."""
    for i, field in enumerate(schema):
        # Checked first, since making a column object costs more.
        if not field.nullable or field.type.num_fields:
            _check_column(batch.column(i), field, field.name)


def _check_column(array: pa.Array, field: pa.Field, path: str) -> None:
    if not field.nullable and array.null_count:
        msg = (
            f"column {path!r} is declared non-nullable but has {array.null_count} null(s) in one "
            "batch; declare it nullable or fill them"
        )
        raise SchemaError(msg)
    if field.type.num_fields:
        _check_inside(array, field.type, path)


def _check_inside(array: pa.Array, type_: pa.DataType, path: str) -> None:
    """Look for nulls inside the values that are not null themselves."""
    if not _declares_non_null(type_):
        return
    if pt.is_map(type_):
        # A map array has no `flatten`; the list of structs that it is has.
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
    """Whether something inside ``type_`` may not be null, besides the keys of maps."""
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


ORDERED_TYPES = (
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
)
"""Tests for the flat types that are stored as they are and whose values have Spark's order."""

_EXTENSION_KEYS = frozenset({b"ARROW:extension:name", b"ARROW:extension:metadata"})
"""Metadata that turns a storage type back into an extension type where that is registered."""


def data_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the rows a shuffle stores for input of ``schema``; idempotent.

    At every depth, dictionary and run-end encoded columns become their values, views and 64-bit
    offsets the plain types with 32-bit offsets, extension types their storage. Names, nullability
    and the metadata of fields stay; metadata of the schema itself is dropped.

    Raises
    ------
    SchemaError
        No columns, a name used twice in the schema or in one struct, or a type that cannot be
        stored (unions, year-month intervals).
    """
    if not schema.names:
        msg = "the schema has no columns, so the rows would be lost; add a column"
        raise SchemaError(msg)
    refuse_duplicates(schema.names)
    return pa.schema([_stored_field(field, field.name) for field in schema])


def normalise(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows with exactly the data schema ``schema``, copying only what does not fit.

    Encodings are resolved as :func:`data_schema` says. Timestamps with another time zone are only
    relabelled: their values are instants in UTC. A batch whose types fit costs microseconds.

    Raises
    ------
    SchemaError
        Names, their order or types differ, or a non-nullable column has a null, at any depth.
    """
    have = batch.schema
    if not schema.names:  # from_arrays would lose the number of rows
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

    For reading: the target may have fewer columns (even none), another order, nullability,
    metadata or time zone. Copies nothing but the offsets of lists whose nullability inside differs.

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
    """Return a data schema whose zoned timestamps have this time zone, at every depth.

    :func:`conform` brings batches to it; the instants stay the same.
    """

    def in_zone(field: pa.Field, _suffix: str = "") -> pa.Field:
        type_ = field.type
        if pt.is_timestamp(type_) and type_.tz is not None:
            return field.with_type(pa.timestamp(type_.unit, time_zone))
        nested = with_fields(type_, in_zone)
        return field if nested is None else field.with_type(nested)

    return pa.schema(map(in_zone, schema), schema.metadata)


def refuse_duplicates(names: Iterable[str], what: str = "columns") -> None:
    """Raise SchemaError if a name occurs twice; ``what`` says what has the names."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        msg = (
            f"{what} with the same name: {', '.join(map(repr, twice))}; rename or drop all but one"
        )
        raise SchemaError(msg)


def missing_column(name: str, names: Sequence[str], what: str = "column") -> str:
    """Return the message that ``name`` is not among ``names``, with the nearest of them if any."""
    lowered = {present.lower(): present for present in names}
    nearest = get_close_matches(str(name).lower(), lowered, n=1)
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
    nested = with_fields(type_, lambda child, suffix: _stored_field(child, path + suffix))
    if nested is not None:
        return nested
    if any(is_ordered(type_) for is_ordered in ORDERED_TYPES):
        return type_
    if type_.equals(pa.month_day_nano_interval()):
        return type_
    msg = f"column {path!r} has type {type_}, which cannot be stored; cast it or drop it"
    raise SchemaError(msg)


# Making a column fit -----------------------------------------------------------------------------


def _fit(array: pa.Array, field: pa.Field) -> pa.Array:
    """Convert a column to the type of ``field``, if that is how its type is stored."""
    if array.type.equals(field.type):
        return array
    if not same_but_labels(_stored_type(array.type, field.name), field.type):
        msg = (
            f"column {field.name!r} has type {array.type}, but the shuffle stores {field.type}; "
            "cast it before it is written, or read it as the stored type"
        )
        raise SchemaError(msg)
    return _convert_or_refuse(array, array.type, field)


def plain_dictionary(array: pa.DictionaryArray, field: pa.Field) -> pa.DictionaryArray:
    """Return a dictionary array with its dictionary in the stored type, that of ``field``."""
    values = array.dictionary
    if values.type.equals(field.type) or not same_but_labels(
        _stored_type(values.type, field.name), field.type
    ):
        return array  # normalise refuses the type, naming it
    plain = _convert_or_refuse(values, array.type, field)
    return pa.DictionaryArray.from_arrays(array.indices, plain, safe=False)


def _convert_or_refuse(array: pa.Array, given: pa.DataType, field: pa.Field) -> pa.Array:
    try:
        return convert(array, field.type)
    except pa.ArrowException as error:
        msg = (
            f"column {field.name!r} of type {given} does not fit into {field.type}: {error}; "
            "hand in smaller batches"
        )
        raise SchemaError(msg) from error


def same_but_labels(given: pa.DataType, target: pa.DataType) -> bool:
    """Whether two stored types differ at most in labels: time zones, nullability inside, metadata.

    Only then does :func:`conform` bring values of one to the other, without nulls where the other
    allows none.
    """
    if given.equals(target):
        return True
    if given.id != target.id:
        return False
    if pt.is_timestamp(given):
        return bool(given.unit == target.unit and (given.tz is None) == (target.tz is None))
    if pt.is_struct(given):
        return given.num_fields == target.num_fields and all(
            a.name == b.name and same_but_labels(a.type, b.type)
            for a, b in zip(given, target, strict=True)
        )
    if pt.is_map(given):
        # That keys are sorted is a claim about the values, which a label must not add.
        return (
            (given.keys_sorted or not target.keys_sorted)
            and same_but_labels(given.key_type, target.key_type)
            and same_but_labels(given.item_type, target.item_type)
        )
    if pt.is_fixed_size_list(given) and given.list_size != target.list_size:
        return False
    nested = is_list(given) or pt.is_fixed_size_list(given)
    return bool(nested and same_but_labels(given.value_type, target.value_type))


# Refusals ----------------------------------------------------------------------------------------


def _refuse_names(have: list[str], want: list[str]) -> NoReturn:
    missing = [name for name in want if name not in have]
    extra = [name for name in have if name not in want]
    if missing or extra:
        parts = []
        if missing:
            parts.append(f"lacks {', '.join(map(repr, missing))}")
        if extra:
            parts.append(f"has {', '.join(map(repr, extra))}, which the shuffle does not have")
        differs = " and ".join(parts)
    else:
        differs = f"has its columns in the order {', '.join(map(repr, have))}"
    msg = (
        f"a batch {differs}; the shuffle's columns are {', '.join(map(repr, want))}, in this "
        "order: select them before writing"
    )
    raise SchemaError(msg)
