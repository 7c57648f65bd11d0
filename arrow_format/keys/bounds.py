"""Bounds of ranges: as users give them, sampled, and as text in the log; pure."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import no_rows, to_arrow
from arrow_format.arrays.selection import take
from arrow_format.arrays.stored_types import data_schema, missing_column, normalise
from arrow_format.errors import OptionError
from arrow_format.format.ipc import LayoutCheck, check_stream
from arrow_format.keys.bound_search import bounds_of_sample, first_descent
from arrow_format.keys.sort_keys import ORDERS, SortBy, key_fields, normalise_sort_by
from arrow_format.options import check_num_subpartitions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Key = str | tuple[str, str]

LEAST_BOUNDS_BYTES, MOST_BOUNDS_RATIO = 16 << 20, 256
"""Bounds of more bytes than this, and than this times those in the log, are refused before they are
decompressed."""

WHAT = "range keys"
"""What the columns are called in messages."""


def sample_bounds(
    sample: pa.Table | pa.RecordBatch,
    keys: Sequence[Key] | str,
    num_subpartitions: int,
    weights: NDArray[np.float64] | None = None,
) -> pa.RecordBatch:
    """Choose bounds that split a sample into ranges of about equal numbers of rows.

    Parameters
    ----------
    sample
        Rows with the key columns.
    keys
        As in :class:`~arrow_format.RangePartitioner`.
    num_subpartitions
        Ranges wanted.
    weights
        Float64, a positive number for each row: how many rows it represents. All equal if None.

    Returns
    -------
    pyarrow.RecordBatch
        The key columns of at most ``num_subpartitions - 1`` rows, ascending and distinct.

    Raises
    ------
    OptionError, SchemaError
        A key is malformed or missing, its type has no order, or weights are not as many as rows.
    """
    check_num_subpartitions(num_subpartitions)
    pairs = normalise_sort_by(keys, "keys")
    batch = _batch_of_columns(sample, pairs)
    key_fields(batch.schema, pairs, WHAT)
    if weights is not None and len(weights) != batch.num_rows:
        msg = f"{len(weights)} weights of {batch.num_rows} rows of a sample; expected one each"
        raise OptionError(msg)
    return bounds_of_sample(batch, [order for _, order in pairs], num_subpartitions, weights)


def bounds_of_rows(rows: Sequence[Any], fields: Sequence[pa.Field]) -> pa.RecordBatch:
    """Return bounds in the types of the key columns; a value that does not fit: OptionError.

    ``rows`` has one sequence of values per bound, as from JSON: dates, timestamps, times and
    decimals may be text.
    """
    inferred = _batch_of_rows(rows, tuple((field.name, ORDERS[0]) for field in fields))
    return cast_bounds(inferred, fields)


def as_bounds(bounds: pa.Table | pa.RecordBatch | Iterable[Any], keys: SortBy) -> pa.RecordBatch:
    """Return bounds in any form as one batch that owns its memory; raises OptionError."""
    if isinstance(bounds, pa.Table | pa.RecordBatch):
        batch = _batch_of_columns(bounds, keys)
    elif isinstance(bounds, Iterable) and not isinstance(bounds, str | bytes | Mapping):
        batch = _batch_of_rows(list(bounds), keys)
    else:
        msg = f"bounds={bounds!r}: expected values, tuples, or a pyarrow table of the key columns"
        raise OptionError(msg)
    # Copied without garbage under nulls and around slices, so that equal bounds have equal bytes.
    return take(batch, to_arrow(np.arange(batch.num_rows)))


def _batch_of_columns(bounds: pa.Table | pa.RecordBatch, keys: SortBy) -> pa.RecordBatch:
    names = [name for name, _ in keys]
    missing = [name for name in names if name not in bounds.schema.names]
    if missing:
        raise OptionError(
            missing_column(missing[0], bounds.schema.names, "bounds or sample: key column")
        )
    selected = bounds.select(names)
    schema = pa.schema([(f.name, _bare(f.type)) for f in data_schema(selected.schema)])
    parts = selected.to_batches() if isinstance(selected, pa.Table) else [selected]
    empty = pa.RecordBatch.from_arrays([no_rows(f.type) for f in schema], schema=schema)
    return pa.concat_batches([empty, *(normalise(part, schema) for part in parts)])


def _batch_of_rows(bounds: Sequence[Any], keys: SortBy) -> pa.RecordBatch:
    rows = [bound if isinstance(bound, tuple | list) else (bound,) for bound in bounds]
    for row in rows:
        if len(row) != len(keys):
            msg = (
                f"bounds: {row!r} has {len(row)} value(s) for the {len(keys)} key(s) "
                f"{', '.join(name for name, _ in keys)}; expected one each"
            )
            raise OptionError(msg)
    columns = []
    for i, (name, _) in enumerate(keys):
        try:
            columns.append(pa.array([row[i] for row in rows]))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            msg = f"bounds: the values for key {name!r} are not of one type: {error}"
            raise OptionError(msg) from error
    return pa.RecordBatch.from_arrays(columns, names=[name for name, _ in keys])


def cast_bounds(bounds: pa.RecordBatch, fields: Sequence[pa.Field]) -> pa.RecordBatch:
    """Return bounds in the types of the key columns; OptionError where one would change."""
    columns = [
        _cast(column, field.name, _bare(field.type))
        for column, field in zip(bounds.columns, fields, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=[field.name for field in fields])


def _cast(column: pa.Array, name: str, type_: pa.DataType) -> pa.Array:
    try:
        return cast_exactly(column, type_)
    except ValueError as error:
        msg = f"bounds of key {name!r} are {column.type}, which does not fit {type_}: {error}"
        raise OptionError(msg) from error


def cast_exactly(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return values in another type; ValueError where one would change.

    A bound that lost its fraction or its time of day would split the rows elsewhere.
    """
    if column.type.equals(type_):
        return column
    why: object = "some would be truncated"
    try:
        cast = column.cast(type_)
    except pa.ArrowException as error:
        why = error
        try:  # what Arrow cannot cast it may still build: decimals from whole numbers
            cast = pa.array(column.to_pylist(), type_)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            cast = None
    if cast is None or not _is_same(cast, column):
        raise ValueError(str(why))
    return cast


def _is_same(cast: pa.Array, given: pa.Array) -> bool:
    """Whether bounds kept their values when they were cast."""
    types = (cast.type, given.type)
    if all(map(pa.types.is_struct, types)):
        fields = {field.name for field in cast.type}
        return all(
            field.name in fields and _is_same(cast.field(field.name), given.field(field.name))
            for field in given.type
        )
    if all(map(pa.types.is_floating, types)) or not all(
        pa.types.is_temporal(type_) or pa.types.is_decimal(type_) or pa.types.is_primitive(type_)
        for type_ in types
    ):
        return True
    try:
        return bool(cast.cast(given.type).equals(given))
    except pa.ArrowException:
        return bool(cast.to_pylist() == given.to_pylist())


def _bare(type_: pa.DataType) -> pa.DataType:
    """Type without labels, in which rows to append may differ."""
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _bare(field.type)) for field in type_])
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return pa.timestamp(type_.unit, "UTC")
    return type_


def check_ascending(bounds: pa.RecordBatch, keys: SortBy) -> None:
    """Raise OptionError unless bounds ascend in the order of the keys."""
    key_fields(bounds.schema, keys, "bounds")
    at = first_descent(bounds, [order for _, order in keys])
    if at is not None:
        before, bound = (
            ", ".join(str(column[i]) for column in bounds.columns) for i in (at - 1, at)
        )
        orders = ", ".join(f"{name} {order}" for name, order in keys)
        msg = (
            f"bounds must ascend in the order of the keys ({orders}), but bound {at}, ({bound}), "
            f"comes before bound {at - 1}, ({before}); sort them"
        )
        raise OptionError(msg)


# Bounds as text ----------------------------------------------------------------------------------


def bounds_to_text(bounds: pa.RecordBatch) -> str:
    """Return bounds as base64 of an Arrow IPC stream with zstd buffers, their form in the log."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, bounds.schema, options=options) as writer:
        writer.write_batch(bounds)
    return base64.b64encode(sink.getvalue()).decode("ascii")


def bounds_from_text(text: str) -> pa.RecordBatch:
    """Parse the result of :func:`bounds_to_text`; ValueError or ArrowException if malformed."""
    stream = base64.b64decode(text, validate=True)
    check_stream(memoryview(stream), max(LEAST_BOUNDS_BYTES, MOST_BOUNDS_RATIO * len(stream)))
    with pa.ipc.open_stream(stream) as reader:
        batches = list(reader)
    if len(batches) != 1:
        msg = f"bounds in {len(batches)} batches, expected one"
        raise ValueError(msg)
    messages = pa.ipc.MessageReader.open_stream(stream)
    messages.read_next_message()  # the schema
    LayoutCheck(batches[0].schema).check(messages.read_next_message())
    return batches[0]


def bounds_content(bounds: pa.RecordBatch | None) -> tuple[pa.Schema, bytes] | None:
    """Return what bounds are compared by: their bytes, so that NaN equals itself."""
    return None if bounds is None else (bounds.schema, bounds.serialize().to_pybytes())
