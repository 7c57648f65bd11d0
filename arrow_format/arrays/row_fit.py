"""Rows of an older or narrower schema brought to a later one: casts, and nulls; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.schema_evolution import is_same_type

if TYPE_CHECKING:
    from collections.abc import Sequence


class RowFit:
    """Makes batches of ``schema`` from stored ones, see :func:`~.schema_evolution.can_read_as`.

    Casts are exact. A column that the stored rows lack is null. ``columns`` are the positions of
    those to return, in order; all when None.
    """

    def __init__(
        self, stored: pa.Schema, schema: pa.Schema, columns: Sequence[int] | None = None
    ) -> None:
        fields = [*schema] if columns is None else [schema.field(i) for i in columns]
        sources = [stored.get_field_index(field.name) for field in fields]
        self.schema = pa.schema(fields)
        """Of the batches that are returned."""
        self.columns = [source for source in sources if source >= 0]
        """Positions of the stored columns to decode, in the order in which they are needed."""
        labelled = [*stored]
        for field, source in zip(fields, sources, strict=True):
            if source >= 0 and is_same_type(labelled[source].type, field.type):
                labelled[source] = field
        self.stored = pa.schema(labelled)
        """The stored schema, with the labels of :attr:`schema`: what chunks are decoded as."""
        numbers = iter(range(len(self.columns)))
        self._sources = [next(numbers) if source >= 0 else None for source in sources]
        self.added_row_bytes = sum(_width(field.type) for field in fields) - sum(
            _width(stored.field(source).type) for source in self.columns
        )
        """Bytes by which a row grows, at least."""

    def sources(self, positions: Sequence[int]) -> list[int]:
        """Return the positions in :attr:`columns` of those columns of :attr:`schema` in it."""
        return [source for i in positions if (source := self._sources[i]) is not None]

    def fit(
        self, stored: Sequence[pa.Array], positions: Sequence[int], num_rows: int
    ) -> list[pa.Array]:
        """Return columns of :attr:`schema`, from those of their :meth:`sources`."""
        arrays = iter(stored)
        types = self.schema.types
        return [
            pa.nulls(num_rows, types[i])
            if self._sources[i] is None
            else cast_exactly(next(arrays), types[i])
            for i in positions
        ]


def cast_exactly(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return a column of a stored type in a later one, which holds all of its values."""
    if column.type.equals(type_):
        return column
    if pt.is_decimal(type_) and type_.byte_width == column.type.byte_width:
        return column.view(type_)
    # Nothing to check either: Spark may write decimals of more digits than their type has.
    return column.cast(type_, safe=False)


def _width(type_: pa.DataType) -> int:
    """Bytes of a value of a type of fixed width; 0 for others."""
    try:
        return -(-int(type_.bit_width) // 8)
    except ValueError:
        return 0
