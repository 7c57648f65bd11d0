"""Types of columns in files, as ``spark.read`` would give them; pure.

Where Spark's readers use another unit or width than Arrow, values are converted, so that a shuffle
is the same whether its rows came through Spark or from the files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.arrays.buffers import no_rows, to_scalar
from arrow_format.arrays.conversion import is_list
from arrow_format.arrays.stored_types import data_schema, normalise, same_but_labels
from arrow_format.arrays.types_for_spark import as_spark_has
from arrow_format.errors import SchemaError
from arrow_format.ingest.spark_footer import TIME_PRECISION_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    Change = Callable[[pa.DataType], pa.DataType]

FILE_METADATA = (b"PARQUET:", b"spark.sql.catalyst.")
"""Prefixes of field metadata that describes the file, such as a column's position."""


def plain_schema(schema: pa.Schema, int96: Container[str] = ()) -> pa.Schema:
    """Return the schema of a dataset's columns without encodings; filters are checked against it.

    All columns are nullable, as in Spark, which does not trust files. Columns in ``int96`` are in
    microseconds, since nanoseconds in 64 bits end in 2262.
    """
    return pa.schema(
        [
            _mapped(field, _in_microseconds if field.name in int96 else _unchanged, sizes=True)
            for field in data_schema(schema)
        ]
    )


def schema_as_spark_reads(plain: pa.Schema, int96: Container[str] = ()) -> pa.Schema:
    """Return the data schema of the rows written for files of a :func:`plain_schema`.

    Types are as :func:`~arrow_format.arrays.types_for_spark.as_spark_has` says, unchanged where
    Spark has none; timestamps with a zone, and INT96, are instants in UTC.
    """
    return pa.schema(
        [_mapped(field, _as_instant if field.name in int96 else _widened) for field in plain]
    )


def as_spark_reads(batch: pa.RecordBatch, schema: pa.Schema, where: str) -> pa.RecordBatch:
    """Convert a plain batch to :func:`schema_as_spark_reads`, dropping other columns.

    Nanoseconds are rounded down to microseconds, also before 1970. SchemaError, naming ``where``
    the rows are from, if a value does not fit, such as a timestamp in seconds out of range.
    """
    columns = []
    for field in schema:
        column = batch.column(field.name)
        if not same_but_labels(column.type, field.type):
            # The cast keeps nanoseconds, so it fails for what does not fit; then they are rounded.
            kept = _map_type(column.type, lambda leaf: leaf if _is_nano(leaf) else _widened(leaf))
            column = _rounded_down(cast_column(column, field.with_type(kept), where), field.type)
        columns.append(column)
    return normalise(pa.RecordBatch.from_arrays(columns, names=schema.names), schema)


def cast_column(column: pa.Array, field: pa.Field, where: str) -> pa.Array:
    """Cast a plain column to the type of ``field`` without loss; SchemaError names ``where``."""
    if same_but_labels(column.type, field.type):
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        msg = (
            f"{where}: column {field.name!r} has type {column.type}, which does not convert to "
            f"{field.type}: {error}. Leave the column out, or give the dataset a schema that fits "
            "all files"
        )
        raise SchemaError(msg) from error


def leaves(schema: pa.Schema) -> Iterator[tuple[str, pa.DataType]]:
    """Yield column name and type of each leaf, as Parquet counts columns."""
    for field in schema:
        for leaf in _leaves_of(field.type):
            yield field.name, leaf


def _leaves_of(type_: pa.DataType) -> Iterator[pa.DataType]:
    if isinstance(type_, pa.BaseExtensionType):
        yield from _leaves_of(type_.storage_type)
    elif pt.is_dictionary(type_) or pt.is_run_end_encoded(type_):
        yield from _leaves_of(type_.value_type)
    elif type_.num_fields:
        # The one field of a map is its entries, that of a list its items.
        for i in range(type_.num_fields):
            yield from _leaves_of(type_.field(i).type)
    else:
        yield type_


# Nanoseconds -------------------------------------------------------------------------------------


def _rounded_down(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return the array as ``type_``, nanoseconds rounded down to microseconds.

    Arrow's cast rounds toward 1970, and its ``floor_temporal`` takes no nested values.
    """
    if not _has_nano(array.type):
        return array.cast(type_)
    if not len(array):
        return no_rows(type_)
    valid = array.is_valid().buffers()[1] if array.null_count else None
    buffers, children = [valid], []
    if _is_nano(array.type):
        values = np.frombuffer(array.buffers()[1], np.int64)[array.offset :][: len(array)]
        buffers.append(pa.py_buffer(values // 1_000))
    elif pt.is_struct(array.type):
        children = [_rounded_down(array.field(i), child.type) for i, child in enumerate(type_)]
    else:
        start = array.offsets[0].as_py()
        num_values = array.offsets[-1].as_py() - start
        offsets = pc.subtract(array.offsets, to_scalar(start, pa.int32()))
        buffers.append(offsets.buffers()[1])
        if pt.is_map(type_):
            entries = pa.StructArray.from_arrays(
                [
                    _rounded_down(array.keys.slice(start, num_values), type_.key_type),
                    _rounded_down(array.items.slice(start, num_values), type_.item_type),
                ],
                fields=[type_.key_field, type_.item_field],
            )
            children = [entries]
        else:
            items = array.values.slice(start, num_values)
            children = [_rounded_down(items, type_.value_type)]
    return pa.Array.from_buffers(type_, len(array), buffers, children=children)


def _has_nano(type_: pa.DataType) -> bool:
    return any(_is_nano(leaf) for leaf in _leaves_of(type_))


# One type ----------------------------------------------------------------------------------------


def _mapped(field: pa.Field, change: Change, *, sizes: bool = False) -> pa.Field:
    """Return the field with its leaf types changed, nullable, without metadata about its file."""
    metadata = {
        key: value
        for key, value in (field.metadata or {}).items()
        if not key.startswith(FILE_METADATA)
    }
    if pt.is_time(field.type) and field.type.unit == "us":
        metadata.setdefault(TIME_PRECISION_KEY, b"6")
    type_ = _map_type(field.type, change, sizes=sizes)
    return pa.field(field.name, type_, metadata=metadata or None)


def _map_type(type_: pa.DataType, change: Change, *, sizes: bool = False) -> pa.DataType:
    """Return the type with its leaves changed; with ``sizes``, fixed-size lists keep their size."""
    if pt.is_struct(type_):
        return pa.struct([_mapped(child, change, sizes=sizes) for child in type_])
    if pt.is_map(type_):
        key = _mapped(type_.key_field, change, sizes=sizes).with_nullable(False)
        item = _mapped(type_.item_field, change, sizes=sizes)
        return pa.map_(key, item, keys_sorted=type_.keys_sorted)
    if pt.is_fixed_size_list(type_) or is_list(type_):
        item = _mapped(type_.value_field, change, sizes=sizes).with_name("element")
        return pa.list_(item, type_.list_size) if sizes and not is_list(type_) else pa.list_(item)
    return change(type_)


def _is_nano(type_: pa.DataType) -> bool:
    return bool((pt.is_timestamp(type_) or pt.is_duration(type_)) and type_.unit == "ns")


def _unchanged(type_: pa.DataType) -> pa.DataType:
    return type_


def _in_microseconds(type_: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", type_.tz) if pt.is_timestamp(type_) else type_


def _as_instant(type_: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", "UTC") if pt.is_timestamp(type_) else _widened(type_)


def _widened(type_: pa.DataType) -> pa.DataType:
    """Return the type that Spark's readers give such values, or the same where they have none."""
    found = as_spark_has(type_) or type_
    return pa.timestamp("us", "UTC") if pt.is_timestamp(found) and found.tz else found
