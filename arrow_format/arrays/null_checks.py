"""Nulls where a schema allows none, at any depth of a batch."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.selection import keep
from arrow_format.errors import SchemaError


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
