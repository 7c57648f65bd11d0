"""What a shuffle stores for a given Arrow schema, and how a batch is made to fit it.

One type stands for each kind of value: plain lists, text and bytes with 32-bit offsets, no
encodings. Spark takes no others, and a region can be gathered column by column only if every batch
of a map task has the same layout.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.errors import SchemaError
from arrow_format.row_runs import positions_of

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        _check_nulls_of(batch, schema)
        if have.equals(schema, check_metadata=True):
            return batch
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    if have.names != schema.names:
        _refuse_names(have.names, schema.names)
    columns = [_fit(column, field) for column, field in zip(batch.columns, schema, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    _check_nulls_of(batch, schema)
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
        there = set(batch.schema.names)
        for name in schema.names:
            if name not in there:
                columns = ", ".join(map(repr, batch.schema.names))
                msg = f"there is no column {name!r}; columns are {columns}"
                raise SchemaError(msg)
        batch = batch.select(schema.names)
    return normalise(batch, schema)


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


def is_list(type_: pa.DataType) -> bool:
    """Whether values are lists of any length, whatever their layout (a map is not)."""
    return bool(pt.is_list(type_) or pt.is_large_list(type_) or is_list_view(type_))


def is_list_view(type_: pa.DataType) -> bool:
    """Whether values are lists that may lie in any order and share items."""
    return bool(pt.is_list_view(type_) or pt.is_large_list_view(type_))


def can_be_taken(type_: pa.DataType) -> bool:
    """Whether Arrow's ``take`` has a kernel for a type: there are none for views of text and runs.

    A dictionary is taken by its indices, whatever its values.
    """
    if isinstance(type_, pa.BaseExtensionType):
        return can_be_taken(type_.storage_type)
    if pt.is_struct(type_):
        return all(can_be_taken(field.type) for field in type_)
    if pt.is_map(type_):
        return can_be_taken(type_.key_type) and can_be_taken(type_.item_type)
    if is_list(type_) or pt.is_fixed_size_list(type_):
        return can_be_taken(type_.value_type)
    return not (
        pt.is_string_view(type_) or pt.is_binary_view(type_) or pt.is_run_end_encoded(type_)
    )


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
        return _convert(array, target)
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


def _convert(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Rebuild ``array`` as ``target``, which :func:`same_but_labels` has allowed.

    Lists are rebuilt here and not cast: casting a slice of a list view gives wrong values
    (pyarrow 26), and casting a run-end encoded array or a dictionary of lists is refused.
    """
    type_ = array.type
    if type_.equals(target):
        return array
    if isinstance(type_, pa.BaseExtensionType):
        return _convert(array.storage, target)
    if pt.is_dictionary(type_):
        # The few distinct values first: views can be cast but not taken.
        return _convert(array.dictionary, target).take(array.indices)
    if pt.is_run_end_encoded(type_):
        rows = np.arange(array.offset, array.offset + len(array))
        runs = np.searchsorted(array.run_ends.to_numpy(), rows, side="right")
        return _convert(array.values, target).take(pa.array(runs))
    if pt.is_timestamp(type_):
        return array.view(target)
    if pt.is_struct(type_):
        children = [
            _convert(_hide(array.field(i), array, 1, child.type), child.type)
            for i, child in enumerate(target)
        ]
        return _assemble(array, target, [], children)
    if pt.is_map(type_):
        offsets, (keys, items) = _unnest(array, [array.keys, array.items])
        entries = pa.StructArray.from_arrays(
            [_convert(keys, target.key_type), _convert(items, target.item_type)],
            fields=[target.key_field, target.item_field],
        )
        return _assemble(array, target, [offsets], [entries])
    if pt.is_fixed_size_list(type_):
        values = array.values.slice(array.offset * type_.list_size, len(array) * type_.list_size)
        values = _hide(values, array, type_.list_size, target.value_type)
        return _assemble(array, target, [], [_convert(values, target.value_type)])
    if is_list_view(type_):
        offsets, values = _gather_views(array, target.value_type)
        return _assemble(array, target, [offsets], [values])
    if is_list(type_):
        offsets, (values,) = _unnest(array, [array.values])
        return _assemble(array, target, [offsets], [_convert(values, target.value_type)])
    return array.cast(target)  # views and 64-bit offsets of text and bytes


def _unnest(array: pa.Array, children: list[pa.Array]) -> tuple[pa.Buffer, list[pa.Array]]:
    """Offsets from 0, and the part of each child that the rows of a (sliced) list point to."""
    first = array.offsets[0].as_py()
    num_values = array.offsets[-1].as_py() - first
    offsets = pc.subtract(array.offsets, pa.scalar(first, array.offsets.type)).cast(pa.int32())
    return offsets.buffers()[1], [child.slice(first, num_values) for child in children]


def _gather_views(array: pa.Array, target: pa.DataType) -> tuple[pa.Buffer, pa.Array]:
    """Offsets and values, as ``target``, of the list array with the lists of a (sliced) list view.

    Of the values, only those between the first and the last that a row points to are looked at.
    """
    sizes = array.sizes.to_numpy().astype(np.int64)
    if array.null_count:  # a null list may point to values all the same
        sizes[array.is_null().to_numpy(zero_copy_only=False)] = 0
    offsets = pa.array(np.append(0, np.cumsum(sizes))).cast(pa.int32()).buffers()[1]
    positions = positions_of(array.offsets.to_numpy()[: len(sizes)].astype(np.int64), sizes)
    if not len(positions):
        return offsets, _convert(array.values.slice(0, 0), target)
    low = int(positions.min())
    values = array.values.slice(low, int(positions.max()) + 1 - low)
    index = pa.array(positions - low)
    if can_be_taken(values.type):  # as long as it may be short: a dictionary, say
        return offsets, _convert(values.take(index), target)
    return offsets, _convert(values, target).take(index)


def _hide(child: pa.Array, array: pa.Array, times: int, target: pa.DataType) -> pa.Array:
    """Make null what stands inside null rows, ``times`` values in each, if it will be looked at.

    There an index may lead out of its dictionary.
    """
    if not array.null_count or child.type.equals(target) or pt.is_run_end_encoded(child.type):
        return child
    hidden = np.repeat(array.is_null().to_numpy(zero_copy_only=False), times)
    return pa.StructArray.from_arrays([child], ["child"], mask=pa.array(hidden)).flatten()[0]


def _assemble(
    array: pa.Array, target: pa.DataType, offsets: list[pa.Buffer], children: list[pa.Array]
) -> pa.Array:
    """Nested array of type ``target`` with the nulls of ``array``, which may be a slice."""
    valid = array.is_valid().buffers()[1] if array.null_count else None
    return pa.Array.from_buffers(target, len(array), [valid, *offsets], children=children)


# Refusals ----------------------------------------------------------------------------------------


def _check_nulls_of(batch: pa.RecordBatch, schema: pa.Schema) -> None:
    for i, field in enumerate(schema):
        # Making a column object costs more than this question.
        if not field.nullable or field.type.num_fields:
            _check_nulls(batch.column(i), field, field.name)


def _check_nulls(array: pa.Array, field: pa.Field, path: str) -> None:
    if not field.nullable and array.null_count:
        msg = (
            f"column {path!r} is declared non-nullable but has {array.null_count} null(s) in one "
            "batch; declare it nullable or fill them"
        )
        raise SchemaError(msg)
    type_ = field.type
    if type_.num_fields:
        _check_nulls_inside(array, type_, path)


def _check_nulls_inside(array: pa.Array, type_: pa.DataType, path: str) -> None:
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
        _check_nulls(inside.field(0), type_.key_field, f"{path}.key")
        _check_nulls(inside.field(1), type_.item_field, f"{path}.value")
    elif pt.is_struct(type_):
        present = array.drop_null() if array.null_count else array
        for i, child in enumerate(type_):
            _check_nulls(present.field(i), child, f"{path}.{child.name}")
    else:
        _check_nulls(array.flatten(), type_.value_field, f"{path}.element")


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
