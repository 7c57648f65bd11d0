"""Event times of rows, and which of them are later than a watermark. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from numbers import Integral

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.arrays.buffers import to_scalar
from arrow_format.arrays.stored_types import missing_column
from arrow_format.errors import OptionError, SchemaError


@dataclass(frozen=True, slots=True)
class EventTime:
    """A column of event times: integers, dates or timestamps; a null is earlier than all."""

    name: str
    """The column."""

    def check(self, schema: pa.Schema) -> None:
        """Check that the column is there.

        Raises
        ------
        SchemaError
            It is not, or its type is another.
        """
        if self.name not in schema.names:
            raise SchemaError(missing_column(self.name, schema.names, "timestamp: column"))
        type_ = schema.field(self.name).type
        if not (pt.is_integer(type_) or pt.is_timestamp(type_) or pt.is_date(type_)):
            msg = (
                f"timestamp={self.name!r}: the column is {type_}; event times are whole numbers, "
                "dates or timestamps"
            )
            raise SchemaError(msg)

    def check_watermark(self, watermark: object) -> None:
        """Check that a watermark is a whole number, a date or a time.

        Raises
        ------
        OptionError
            It is not. A number with a fraction would have to be rounded, and nothing says which
            rows an absent one is later than.
        """
        is_number = isinstance(watermark, Integral) and not isinstance(watermark, bool)
        if not (is_number or isinstance(watermark, date | np.datetime64)):
            msg = (
                f"watermark {watermark!r} cannot be compared with the event times of column "
                f"{self.name!r}: expected a whole number, a date or a time"
            )
            raise OptionError(msg)

    def limit(self, watermark: object, schema: pa.Schema) -> pa.Scalar | None:
        """Return a watermark as a value of the column; None if it is below all of them.

        Raises
        ------
        OptionError
            It is no such value.
        """
        type_ = schema.field(self.name).type
        self.check_watermark(watermark)
        try:
            if isinstance(watermark, Integral):
                # The watermark of the end of a stream is the greatest number of 64 bits.
                is_signed = not pt.is_unsigned_integer(type_)
                bits = type_.bit_width - is_signed
                if watermark < (-(1 << bits) if is_signed else 0):
                    return None
                return pa.scalar(min(int(watermark), (1 << bits) - 1), type_)
            return pa.scalar(watermark, type_)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            msg = (
                f"watermark {watermark!r} cannot be compared with the event times of column "
                f"{self.name!r}, which are {type_}: {error}"
            )
            raise OptionError(msg) from error

    def are_later(self, batch: pa.RecordBatch, limit: pa.Scalar | None) -> pa.BooleanArray:
        """Tell which rows have an event time above a limit of :meth:`limit`."""
        column = batch.column(self.name)
        if limit is None:
            return column.is_valid()
        return pc.fill_null(pc.greater(column, limit), to_scalar(0, pa.bool_()))
