"""Scalars made without ``pa.scalar`` and ``pa.array``, which import pandas. Pure.

In few lines of its own, since what reads filters, what binds them and what they are need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrow_format.arrays.buffers import binary_array, no_rows, text_array, to_scalar
from arrow_format.arrays.conversion import convert
from arrow_format.arrays.stored_types import data_schema
from arrow_format.errors import OptionError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal


def null(type_: pa.DataType) -> pa.Scalar:
    """Return a null."""
    return pa.nulls(1, type_)[0]


def text(value: str) -> pa.Scalar:
    """Return a text."""
    return text_array([value])[0]


def binary(value: bytes) -> pa.Scalar:
    """Return bytes."""
    return binary_array([value], pa.binary())[0]


def number(value: float, type_: pa.DataType | None = None) -> pa.Scalar:
    """Return an integer, a long unless a type is given, or a double."""
    return to_scalar(value, type_ or (pa.int64() if isinstance(value, int) else pa.float64()))


def decimal(value: Decimal, type_: pa.DataType | None = None) -> pa.Scalar:
    """Return a decimal, of as many digits as it has unless a type is given.

    Raises ValueError if it has more than 76 digits, ArrowInvalid if it does not fit the type.
    """
    if type_ is None:
        _, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int):
            msg = f"{value} is no number"
            raise ValueError(msg)
        scale = max(-exponent, 0)
        precision = max(len(digits) + max(exponent, 0), scale, 1)
        type_ = (pa.decimal128 if precision <= 38 else pa.decimal256)(precision, scale)
    return text(f"{value:f}").cast(type_)


def as_stored(value: pa.Scalar | pa.Array) -> Any:  # noqa: ANN401  of the same kind
    """Return values in the type that is stored for theirs: the text of a dictionary, say.

    Raises OptionError where there is none.
    """
    if isinstance(value, pa.Scalar):
        return as_stored(pa.repeat(value, 1))[0]
    try:
        type_ = data_schema(pa.schema([("value", value.type)])).field(0).type
        return convert(value, type_)
    except SchemaError as error:
        msg = f"filter: a value of type {value.type} compares with no column; cast it"
        raise OptionError(msg) from error


def array_of(scalars: Sequence[pa.Scalar], type_: pa.DataType) -> pa.Array:
    """Return scalars of one type as an array."""
    return pa.concat_arrays([no_rows(type_), *(pa.repeat(scalar, 1) for scalar in scalars)])
