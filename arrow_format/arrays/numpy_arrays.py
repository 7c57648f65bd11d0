"""Numbers and booleans of NumPy as Arrow arrays, and back. Pure.

``pyarrow.array``, ``pyarrow.scalar`` and ``Array.to_numpy`` do the same, but import pandas to see
whether they deal with its objects: a third of a second in each process that Spark starts. So does
``DataType.to_pandas_dtype`` before PyArrow 26.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import boolean_values, fixed_width_values

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NUMPY_TYPES = {pa.from_numpy_dtype(type_): type_ for type_ in map(np.dtype, "?bhilBHILefd")}


def to_arrow(values: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> pa.Array:
    """Return the values as an array of their type, null where the mask is true.

    Parameters
    ----------
    values
        Numbers or booleans, shape (num_rows,). Numbers are not copied if they lie side by side:
        the array is as good as they are.
    mask
        Shape (num_rows,), or None for no nulls.
    """
    validity, null_count = None, 0
    if mask is not None:
        validity, null_count = _bits(~mask), int(np.count_nonzero(mask))
    data = _bits(values) if values.dtype == np.bool_ else pa.py_buffer(np.ascontiguousarray(values))
    type_ = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(type_, len(values), [validity, data], null_count)


def to_scalar(value: float, type_: pa.DataType) -> pa.Scalar:
    """Return a number, or a boolean of 0 or 1, as a scalar of a type."""
    return to_arrow(np.array([value], _NUMPY_TYPES[type_]))[0]


def to_numpy(array: pa.Array) -> NDArray[Any]:
    """Return the values of an array without nulls, shape (num_rows,); numbers are not copied.

    Raises
    ------
    pyarrow.ArrowInvalid
        There are nulls.
    """
    if array.null_count:
        msg = f"{array.null_count} of {len(array)} values are null"
        raise pa.ArrowInvalid(msg)
    if pa.types.is_boolean(array.type):
        return boolean_values(array).view(np.bool_)
    return fixed_width_values(array, _NUMPY_TYPES[array.type])


def no_rows(type_: pa.DataType) -> pa.Array:
    """Return the array of no rows."""
    return pa.nulls(0, type_)


def _bits(values: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))
