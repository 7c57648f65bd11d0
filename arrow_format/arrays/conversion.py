"""Arrays in other types with the same values, floats in canonical form, keys as text; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.arrays.buffers import text_offsets, to_arrow, to_numpy, to_scalar
from arrow_format.arrays.row_sizes import positions_of
from arrow_format.arrays.selection import take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from arrow_format.model import Int32Array


_BITS = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}


def canonical_floats(array: pa.Array) -> pa.Array:
    """Return floats with one NaN, and 0.0 for -0.0; other types unchanged, floats in them too.

    Source: Spark, ``NormalizeFloatingNumbers``.
    """
    if not pa.types.is_floating(array.type):
        return array
    if pa.types.is_float16(array.type):  # Arrow does not compute with them
        return canonical_floats(array.cast(pa.float32())).cast(array.type)
    # The sum turns -0.0 into 0.0 and leaves all others.
    return _with_one_nan(pc.add(array, to_scalar(0, array.type)))


def float_bits(array: pa.Array) -> pa.Array:
    """Return floats as their canonical bits, so that hash tables find NaN; others unchanged."""
    if not pa.types.is_floating(array.type):
        return array
    return canonical_floats(array).view(_BITS[array.type])


def ordered_bits(array: pa.Array) -> pa.Array:
    """Return floats as signed integers in Spark's order: one NaN, the largest; -0.0 below 0.0."""
    if pa.types.is_float16(array.type):
        array = _with_one_nan(array.cast(pa.float32())).cast(array.type)
    else:
        array = _with_one_nan(array)
    return _reversed_below_zero(array.view(_BITS[array.type]))


def ordered_bits_as_floats(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return floats of ``type_`` from :func:`ordered_bits`."""
    return _reversed_below_zero(array).view(type_)


def _with_one_nan(array: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_nan(array), to_scalar(np.nan, array.type), array)


def _reversed_below_zero(bits: pa.Array) -> pa.Array:
    """Invert all bits but the sign of negative integers: floats have no two's complement."""
    largest = to_scalar((1 << bits.type.bit_width - 1) - 1, bits.type)
    below = pc.less(bits, to_scalar(0, bits.type))
    return pc.if_else(below, pc.bit_wise_xor(bits, largest), bits)


def is_list(type_: pa.DataType) -> bool:
    """Whether values are lists of any length, whatever their layout (a map is not)."""
    return bool(pt.is_list(type_) or pt.is_large_list(type_) or is_list_view(type_))


def is_list_view(type_: pa.DataType) -> bool:
    """Whether values are list views: lists in any order, which may share items."""
    return bool(pt.is_list_view(type_) or pt.is_large_list_view(type_))


def can_be_taken(type_: pa.DataType) -> bool:
    """Whether Arrow's ``take`` has a kernel for a type; views of text and runs have none.

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


def with_fields(
    type_: pa.DataType, change: Callable[[pa.Field, str], pa.Field]
) -> pa.DataType | None:
    """Return a struct, map or list type with changed fields, lists as plain lists; else None.

    ``change`` is also given the suffix that names the field in a path, such as ``.element``.
    """
    if pt.is_struct(type_):
        return pa.struct([change(child, f".{child.name}") for child in type_])
    if pt.is_map(type_):
        key, item = change(type_.key_field, ".key"), change(type_.item_field, ".value")
        return pa.map_(key, item, keys_sorted=type_.keys_sorted)
    if pt.is_fixed_size_list(type_):
        return pa.list_(change(type_.value_field, ".element"), type_.list_size)
    if is_list(type_):
        return pa.list_(change(type_.value_field, ".element"))
    return None


def convert(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Rebuild ``array`` as ``target``: the type that is stored for its own, or one for Spark.

    No value changes; garbage under nulls is ignored. Raises ArrowException where a value does not
    fit: content beyond 32-bit offsets, or nanoseconds that are no whole microseconds.
    """
    type_ = array.type
    if type_.equals(target):
        return array
    if isinstance(type_, pa.BaseExtensionType):
        return convert(array.storage, target)
    if pt.is_dictionary(type_):
        # The few distinct values first: views can be cast but not taken.
        return take(convert(array.dictionary, target), array.indices)
    if pt.is_run_end_encoded(type_):
        rows = np.arange(array.offset, array.offset + len(array))
        runs = np.searchsorted(to_numpy(array.run_ends), rows, side="right")
        return take(convert(array.values, target), to_arrow(runs))
    if pt.is_timestamp(type_) and type_.unit == target.unit:
        return array.view(target)
    if pt.is_struct(type_):
        children = [
            convert(_hide(array.field(i), array, 1, child.type), child.type)
            for i, child in enumerate(target)
        ]
        return _assemble(array, target, [], children)
    if pt.is_map(type_):
        offsets, (keys, items) = _unnest(array, [array.keys, array.items])
        items = _hide(items, array, _sizes(array, offsets), target.item_type)  # no key is null
        entries = pa.Array.from_buffers(
            pa.struct([target.key_field, target.item_field]),
            len(keys),
            [None],
            children=[convert(keys, target.key_type), convert(items, target.item_type)],
        )
        return _assemble(array, target, [offsets], [entries])
    if pt.is_fixed_size_list(type_):
        values = array.values.slice(array.offset * type_.list_size, len(array) * type_.list_size)
        values = _hide(values, array, type_.list_size, target.value_type)
        ends = np.arange(len(array) + 1, dtype=np.int32) * type_.list_size
        offsets = [] if pt.is_fixed_size_list(target) else [pa.py_buffer(ends)]
        return _assemble(array, target, offsets, [convert(values, target.value_type)])
    if is_list_view(type_):
        offsets, values = _gather_views(array, target.value_type)
        return _assemble(array, target, [offsets], [values])
    if is_list(type_):
        offsets, (values,) = _unnest(array, [array.values])
        values = _hide(values, array, _sizes(array, offsets), target.value_type)
        return _assemble(array, target, [offsets], [convert(values, target.value_type)])
    if pt.is_large_string(type_) or pt.is_large_binary(type_):
        array = _near(array)
    return array.cast(target)  # views and 64-bit offsets of text and bytes, units, sizes


def _near(array: pa.Array) -> pa.Array:
    """Text or bytes with offsets from 0: Arrow refuses to cast the end of a large column."""
    offsets = text_offsets(array, np.int64)
    first, stop = int(offsets[0]), int(offsets[-1])
    if not first:
        return array
    valid = array.is_valid().buffers()[1] if array.null_count else None
    content = array.buffers()[2].slice(first, stop - first)
    return pa.Array.from_buffers(
        array.type, len(array), [valid, pa.py_buffer(offsets - first), content]
    )


def _unnest(array: pa.Array, children: list[pa.Array]) -> tuple[pa.Buffer, list[pa.Array]]:
    """Offsets from 0, and the slice of each child that the rows of a (sliced) list point to."""
    first = array.offsets[0].as_py()
    num_values = array.offsets[-1].as_py() - first
    offsets = pc.subtract(array.offsets, to_scalar(first, array.offsets.type)).cast(pa.int32())
    return offsets.buffers()[1], [child.slice(first, num_values) for child in children]


def _sizes(array: pa.Array, offsets: pa.Buffer) -> Int32Array:
    ends = np.frombuffer(offsets, np.int32, len(array) + 1)
    return ends[1:] - ends[:-1]


def _gather_views(array: pa.Array, target: pa.DataType) -> tuple[pa.Buffer, pa.Array]:
    """Offsets and values, as ``target``, of the plain list array of a (sliced) list view."""
    sizes = to_numpy(array.sizes).astype(np.int64)
    if array.null_count:  # a null list may point to values all the same
        sizes[to_numpy(array.is_null())] = 0
    offsets = to_arrow(np.append(0, np.cumsum(sizes))).cast(pa.int32()).buffers()[1]
    positions = positions_of(to_numpy(array.offsets)[: len(sizes)].astype(np.int64), sizes)
    if not len(positions):
        return offsets, convert(array.values.slice(0, 0), target)
    low = int(positions.min())
    values = array.values.slice(low, int(positions.max()) + 1 - low)
    index = to_arrow(positions - low)
    if can_be_taken(values.type):  # before it expands, where it is a dictionary
        return offsets, convert(take(values, index), target)
    return offsets, take(convert(values, target), index)


def _hide(
    child: pa.Array, array: pa.Array, times: int | Int32Array, target: pa.DataType
) -> pa.Array:
    """Make the ``times`` values inside each null row null, if they will be converted.

    Garbage there could be an index beyond its dictionary, or nanoseconds that do not fit.
    """
    if not array.null_count or child.type.equals(target) or pt.is_run_end_encoded(child.type):
        return child
    hidden = np.repeat(to_numpy(array.is_null()), times)
    return pa.StructArray.from_arrays([child], ["child"], mask=to_arrow(hidden)).flatten()[0]


def _assemble(
    array: pa.Array, target: pa.DataType, offsets: list[pa.Buffer], children: list[pa.Array]
) -> pa.Array:
    """Nested array of type ``target`` with the nulls of ``array``."""
    valid = array.is_valid().buffers()[1] if array.null_count else None
    return pa.Array.from_buffers(target, len(array), [valid, *offsets], children=children)


def key_text(rows: pa.RecordBatch | pa.Table, names: Iterable[str], row: int) -> str:
    """Return columns of a row for a message: ``a=1, b='x'``."""
    return ", ".join(f"{name}={_value_text(rows[name][row])}" for name in names)


def _value_text(value: pa.Scalar) -> str:
    try:
        return repr(value.as_py())
    except ValueError:  # dates that Python lacks, text that is not UTF-8
        return f"some {value.type}"
