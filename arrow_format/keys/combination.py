"""Columns that rows of one key are combined by, as Spark's map-side combine does. Pure.

A *combination* maps columns to functions, as in the log: ``{"n": "sum", "price": "max"}``. All
other columns are the partition keys. What is stored is a partial result, which the same function
combines further.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.exact_sums import sum_type
from arrow_format.arrays.stored_types import ORDERED_TYPES, missing_column
from arrow_format.errors import OptionError, SchemaError
from arrow_format.keys.partitioner import HashPartitioner, Partitioner, key_columns
from arrow_format.keys.range_partitioner import RangePartitioner

COMBINING = ("sum", "min", "max")
"""Functions whose results of parts of a group give that of the whole group, in the same type."""

SLICE_ROWS = 1 << 16
"""Rows given to the combining buffer together: sums may be 16 times as wide as what they add, and
a slice that does not fit beside the combined rows makes a region of those."""


def check_functions(combine: object) -> dict[str, str]:
    """Return a combination if it maps columns to :data:`COMBINING`; raises OptionError."""
    pairs = dict(combine) if isinstance(combine, Mapping) else {"": ""}
    for name, function in pairs.items():
        if not isinstance(name, str) or not name or function not in COMBINING:
            msg = (
                f"combine={combine!r}: expected columns with one of the functions "
                f'{", ".join(COMBINING)}, such as {{"n": "sum", "price": "max"}}'
            )
            raise OptionError(msg)
    return pairs


def check_combine(
    schema: pa.Schema, combine: object, partitioner: Partitioner, *, evolves: bool = False
) -> dict[str, str]:
    """Return the combination of a write, empty for none.

    ``schema`` is the data schema of the rows, which may lack columns of the combination if it
    ``evolves``. Raises OptionError where a column is neither a key nor combined, or both, and where
    rows have no keys; SchemaError where a column is missing, the function does not take its type,
    or a key is nested.
    """
    pairs = check_functions({} if combine is None else combine)
    if evolves:
        pairs = {name: function for name, function in pairs.items() if name in schema.names}
    if not pairs:
        return pairs
    keys = key_columns(partitioner) or ()
    if not keys or not isinstance(partitioner, HashPartitioner | RangePartitioner):
        msg = (
            f"combine={pairs!r}: rows are combined that have equal keys, and {partitioner!r} has "
            "none; give keys=, or a RangePartitioner"
        )
        raise OptionError(msg)
    combined_schema(schema, pairs)
    for field in schema:
        if field.name in keys and pt.is_nested(field.type):
            msg = (
                f"combine={pairs!r}: key {field.name!r} is {field.type}, and aggregate(), "
                "which completes combined rows, groups by no nested column; store its fields as "
                "columns"
            )
            raise SchemaError(msg)
    both = [name for name in pairs if name in keys]
    if both:
        msg = f"combine={pairs!r}: {_listed(both)} decides the subpartition; leave it out"
        raise OptionError(msg)
    neither = [name for name in schema.names if name not in pairs and name not in keys]
    if neither:
        msg = (
            f"combine={pairs!r}: {_listed(neither)} is neither a key nor combined, so a row for "
            "several would have no value for it; add it to keys or to combine "
            f"({', '.join(COMBINING)}), or do not write it"
        )
        raise OptionError(msg)
    return pairs


def _listed(names: list[str]) -> str:
    return f"column {', '.join(map(repr, names))}"


def combined_schema(schema: pa.Schema, combine: Mapping[str, str]) -> pa.Schema:
    """Return the data schema of combined rows: sums have the types that Spark gives them.

    Raises SchemaError where a column is missing or the function does not take its type.
    """
    for name, function in combine.items():
        if name not in schema.names:
            raise SchemaError(missing_column(name, schema.names, "combine: column"))
        i = schema.get_field_index(name)
        field = schema.field(i)
        schema = schema.set(i, field.with_type(_combined_type(field, function)))
    return schema


def _combined_type(field: pa.Field, function: str) -> pa.DataType:
    type_ = sum_type(field.type) if function == "sum" else field.type
    is_ordered = any(is_ordered(field.type) for is_ordered in ORDERED_TYPES)
    if type_ is None or not is_ordered or pt.is_null(field.type):
        taken = "numbers and durations" if function == "sum" else "what is neither nested nor void"
        msg = (
            f"combine: column {field.name!r} has type {field.type}, and {function} takes {taken}; "
            "cast it before it is written"
        )
        raise SchemaError(msg)
    return type_


def as_combined(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows of a data schema in that of their combination, some at a time.

    Raises SchemaError for a value that Spark's type of the sum does not hold.
    """
    if batch.num_rows <= SLICE_ROWS and batch.schema.equals(schema):
        yield batch
        return
    for start in range(0, batch.num_rows, SLICE_ROWS):
        columns = [
            _cast(column.slice(start, SLICE_ROWS), field)
            for column, field in zip(batch.columns, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return column if column.type == field.type else column.cast(field.type)
    except pa.ArrowInvalid as error:
        msg = (
            f"combine: column {field.name!r} of type {column.type}: {error}, and its sums would be "
            f"{field.type}; cast it to double before it is written"
        )
        raise SchemaError(msg) from error


def combine_text(combine: Mapping[str, str]) -> str:
    """Return a combination for people: ``sum of n, max of price``."""
    return ", ".join(f"{function} of {name}" for name, function in combine.items())


def partial_error(what: str, path: str, combine: Mapping[str, str], name: str) -> OptionError:
    """Return the error of work that would take the partial results of a column for rows."""
    return OptionError(
        f"{what}: {path} was written with combine={dict(combine)!r}, so several rows may be one, "
        f"and {name!r} has partial results, of which only {combine[name]}({name}) is complete; "
        "count with a column of ones that is summed, or write the rows without combine"
    )
