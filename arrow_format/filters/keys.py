"""Keys of a lookup, in the stored types: which rows have them, and where these rows are."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.arrays.buffers import binary_array, to_arrow, to_numpy
from arrow_format.arrays.conversion import convert
from arrow_format.arrays.selection import ascending, keep, take
from arrow_format.arrays.stored_types import data_schema
from arrow_format.errors import OptionError, SchemaError
from arrow_format.filters.comparison import comparable, comparable_type, distinct
from arrow_format.filters.expression import (
    Column,
    Comparison,
    Expression,
    IsIn,
    IsNull,
    Literal,
    all_of,
    any_of,
    as_sql,
)
from arrow_format.filters.filter import Filter
from arrow_format.filters.spark_rules import char_lengths
from arrow_format.keys.bounds import cast_exactly
from arrow_format.keys.key_set import KeySet, rows_with_keys
from arrow_format.keys.partitioner import (
    ColumnPartitioner,
    HashPartitioner,
    Partitioner,
    key_columns,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from arrow_format.format.statistics import ColumnStatistics
    from arrow_format.model import Int32Array, Int64Array

Keys: TypeAlias = pa.Table | pa.RecordBatch | Mapping[str, Any]
"""Key columns, aligned by position. In a mapping, a single value goes with all of the others."""

_SHOWN_KEYS = 3


@dataclass(frozen=True, slots=True, eq=False)
class KeyFilter:
    """Rows that have one of several keys, bound by :func:`bind_keys`; used as a ``Filter`` is.

    A null is a key like any other, NaN equals NaN, and -0.0 equals 0.0.
    """

    batch: pa.RecordBatch
    """Key columns in their stored types, in the partitioner's order."""
    filter: Filter
    """A condition that holds for all rows of the keys, and may for others."""
    is_exact: bool
    """Whether it holds for no others."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The key columns, in the partitioner's order."""
        return tuple(self.batch.schema.names)

    def mask(self, columns: Sequence[pa.Array], num_rows: int | None = None) -> NDArray[np.bool_]:
        """Return which rows have one of the keys; ``columns`` as :attr:`columns` names them."""
        if self.is_exact:
            return self.filter.mask(columns, num_rows)
        return rows_with_keys(self.batch, columns)

    def may_match(
        self, statistics: Mapping[str, ColumnStatistics], num_rows: Int64Array
    ) -> NDArray[np.bool_]:
        """Return for each unit of rows whether one may have a key; as of a ``Filter``."""
        return self.filter.may_match(statistics, num_rows)

    def must_match(
        self, statistics: Mapping[str, ColumnStatistics], num_rows: Int64Array
    ) -> NDArray[np.bool_]:
        """Return for each unit whether all rows of it surely have a key; as of a ``Filter``."""
        found = self.filter.must_match(statistics, num_rows)
        return found if self.is_exact else np.zeros_like(found)

    def subpartitions(
        self, partitioner: object, schema: pa.Schema, num_subpartitions: int
    ) -> Int64Array | None:
        """Return the subpartitions of the keys, ascending; None if not known."""
        del schema  # that of the keys
        if not isinstance(partitioner, Partitioner) or key_columns(partitioner) != self.columns:
            return None
        keys = self.batch
        if isinstance(partitioner, ColumnPartitioner):  # what is no subpartition is nowhere
            ids = keys.column(0).cast(pa.int64(), safe=False)
            numbers = to_numpy(keep(ids, ids.is_valid()))
            return ascending(numbers[(numbers >= 0) & (numbers < num_subpartitions)])
        ids = subpartitions_of_keys(keys, partitioner, num_subpartitions)
        return ascending(ids)

    def keys(self, partitioner: object, schema: pa.Schema, num_subpartitions: int) -> KeySet | None:
        """Return the keys by subpartition; None where that does not say which keys it has."""
        del schema  # that of the keys
        if not isinstance(partitioner, HashPartitioner) or partitioner.keys != self.columns:
            return None
        ids = subpartitions_of_keys(self.batch, partitioner, num_subpartitions)
        return KeySet(self.batch, ids, num_subpartitions)

    def part_on(self, columns: Collection[str]) -> KeyFilter | None:
        """Return the filter itself where the key columns are among these; None otherwise."""
        return self if {*self.columns} <= {*columns} else None

    def _identity(self) -> tuple[object, ...]:
        return self.batch.schema, self.batch.serialize().to_pybytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyFilter) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash((self.columns, self.batch.num_rows))

    def __str__(self) -> str:
        names = ", ".join(as_sql(Column(name)) for name in self.columns)
        shown = [
            "(" + ", ".join(str(column[row]) for column in self.batch.columns) + ")"
            for row in range(min(self.batch.num_rows, _SHOWN_KEYS))
        ]
        if self.batch.num_rows > _SHOWN_KEYS:
            shown.append(f"... {self.batch.num_rows - _SHOWN_KEYS:,} more")
        return f"keys ({names}): {', '.join(shown)}"


def bind_keys(
    keys: Keys, schema: pa.Schema, partitioner: object, spark_schema: str | None = None
) -> KeyFilter:
    """Return the rows of given keys as a filter.

    Parameters
    ----------
    keys
        A table, or a dict of values, of exactly the key columns of the partitioner.
    schema
        The data schema of the shuffle.
    partitioner
        What assigned the rows: by the hash or ranges of keys, or by a column.
    spark_schema
        Spark's JSON of the schema, which knows the lengths of texts that are padded.

    Raises
    ------
    OptionError
        The keys are no table or mapping, or no keys decide the subpartition of a row.
    SchemaError
        A key column is missing or surplus, a value is of another type or does not fit the stored
        one, or columns have different lengths.
    """
    batch = stored_keys(keys, _keys_of(partitioner), schema, spark_schema)
    conditions = []
    is_exact = batch.num_columns == 1 or batch.num_rows == 1
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if comparable_type(column.type) is None:
            is_exact = False
        else:
            conditions.append(_one_of(Column(name), column))
    types = tuple(field.type for field in batch.schema)
    by_name = Filter(all_of(conditions), tuple(batch.schema.names), types)
    return KeyFilter(batch, by_name, is_exact)


def _one_of(column: Column, values: pa.Array) -> Expression:
    """Return the condition that a column has one of the values, null like any other."""
    found: list[Expression] = [IsNull(column)] if values.null_count else []
    different = distinct(comparable(keep(values, values.is_valid())))
    if len(different) == 1:
        found.append(Comparison("=", column, Literal(different[0])))
    elif len(different):
        found.append(IsIn(column, different))
    return any_of(found)


def subpartition_of(
    keys: Mapping[str, Any],
    partitioner: object,
    schema: pa.Schema,
    num_subpartitions: int,
    spark_schema: str | None = None,
) -> int:
    """Return the subpartition of one key, a value for each key column.

    Raises what :func:`bind_keys` does, and SchemaError for a value that a column of subpartitions
    cannot have.
    """
    one_each = isinstance(keys, Mapping)
    columns = {name: _listed(value) for name, value in keys.items()} if one_each else keys
    batch = stored_keys(columns, _keys_of(partitioner), schema, spark_schema)
    assert isinstance(partitioner, Partitioner)
    return int(subpartitions_of_keys(batch, partitioner, num_subpartitions)[0])


def subpartitions_of_keys(
    keys: pa.RecordBatch, partitioner: Partitioner, num_subpartitions: int
) -> Int32Array:
    """Return the subpartition of each key."""
    if not keys.num_rows:
        return np.empty(0, np.int32)
    return partitioner.bind(keys.schema, num_subpartitions, 0)(keys).astype(np.int32, copy=False)


def _keys_of(partitioner: object) -> tuple[str, ...]:
    known = partitioner if isinstance(partitioner, Partitioner | Mapping) else None
    names = key_columns(known)
    if names:
        return names
    kind = known.describe() if isinstance(known, Partitioner) else known
    msg = (
        f"key_values: the shuffle is partitioned by {dict(kind or {}).get('kind')!r}, so that no "
        "key says where its rows are; give a filter instead"
    )
    raise OptionError(msg)


# Values in the stored types ----------------------------------------------------------------------


def stored_keys(
    keys: Keys, names: Sequence[str], schema: pa.Schema, spark_schema: str | None = None
) -> pa.RecordBatch:
    """Return keys, one a row, as the key columns ``names`` in the types of a data schema.

    Values are cast where that changes none. Text is read as a value of the stored type; apart from
    that, a number is no text and no date, and a timestamp has a time zone where the stored ones do.
    NaN is no null, in a column of pandas neither. Raises what :func:`bind_keys` does.
    """
    if not isinstance(keys, pa.Table | pa.RecordBatch | Mapping):
        msg = (
            f"key_values is {type(keys).__name__}: expected a pyarrow table or record batch, or a "
            "dict of columns"
        )
        raise OptionError(msg)
    given = list(keys) if isinstance(keys, Mapping) else keys.schema.names
    missing = [name for name in names if name not in given]
    if missing:
        msg = (
            f"key_values: key column {missing[0]!r} is missing; the key columns are "
            f"{', '.join(names)}, given are {', '.join(map(str, given)) or 'none'}"
        )
        raise SchemaError(msg)
    surplus = [name for name in given if name not in names or given.count(name) > 1]
    if surplus:
        msg = (
            f"key_values: column {surplus[0]!r} is not a key column, or is given twice; the key "
            f"columns are {', '.join(names)}"
        )
        raise SchemaError(msg)
    # Any column may have a null: such a key has no row where the shuffle has none.
    target = pa.schema([pa.field(name, schema.field(name).type) for name in names])
    single = {name for name in names if _is_single(keys[name])}
    columns = [
        _as_stored(_listed(keys[field.name]) if field.name in single else keys[field.name], field)
        for field in target
    ]
    for name, length in char_lengths(spark_schema).items():
        if name in names:
            _check_padded(name, length, columns[list(names).index(name)])
    lengths = {len(c) for c, name in zip(columns, names, strict=True) if name not in single}
    if len(lengths) > 1:
        msg = f"key_values: columns of different lengths: {', '.join(map(str, sorted(lengths)))}"
        raise SchemaError(msg)
    num_keys = lengths.pop() if lengths else 1
    columns = [
        take(column, to_arrow(np.zeros(num_keys, np.int64))) if name in single else column
        for column, name in zip(columns, names, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _check_padded(name: str, length: int, column: pa.Array) -> None:
    """Refuse texts that no padded value equals, so that a deletion does not miss its rows."""
    short = keep(column, pc.less(pc.utf8_length(column), length))
    if len(short):
        msg = (
            f"key_values: column {name!r} is CHAR({length}), whose values are padded with spaces, "
            f"and {short[0].as_py()!r} is shorter; write {short[0].as_py().ljust(length)!r}"
        )
        raise SchemaError(msg)


def _listed(value: Any) -> Any:  # noqa: ANN401  from the user
    """Return one value as a column; an array without dimensions has one."""
    if isinstance(value, pa.Scalar):
        return value
    return [value[()] if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value]


def _is_single(column: Any) -> bool:  # noqa: ANN401  from the user
    """Whether a column of keys is one value."""
    if isinstance(column, str | bytes | bytearray | memoryview | Mapping | pa.Scalar):
        return True
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return False
    return not hasattr(column, "__len__") or getattr(column, "ndim", 1) == 0


def _as_stored(column: Any, field: pa.Field) -> pa.Array:  # noqa: ANN401  from the user
    """Return a column of keys in its stored type; SchemaError where a value does not fit."""
    does_not_fit = f"key_values: column {field.name!r} does not fit the stored type {field.type}"
    try:
        given = _given(column, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        value = column[0] if isinstance(column, list) and len(column) == 1 else column
        msg = (
            f"{does_not_fit}: {reprlib.repr(value)} is {type(value).__name__}; give a value of "
            "that type, or a list, an array or a column of them, with None for null"
        )
        raise SchemaError(msg) from error
    try:
        plain = data_schema(pa.schema([("key", given.type)])).field(0).type
        given = convert(given, plain)
        if not _is_of_kind(given.type, field.type):
            raise ValueError(f"values are {given.type}")  # noqa: TRY301
        _check_zone(given.type, field.type)
        return cast_exactly(given, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SchemaError(f"{does_not_fit}: {error}") from error


def _given(column: Any, type_: pa.DataType) -> pa.Array:  # noqa: ANN401  from the user
    """Return what was given as an array, in the type that it has by itself."""
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks()
    if isinstance(column, pa.Array):
        return column
    if isinstance(column, pa.Scalar):
        return pa.repeat(column, 1)
    if (plain := _plain(column)) is not None:
        return plain
    if isinstance(column, list | tuple):
        column = [bytes(value) if isinstance(value, memoryview) else value for value in column]
        # PyArrow takes a timestamp of pandas for a datetime, which has microseconds.
        if any(getattr(value, "nanosecond", 0) for value in column):
            zone = "UTC" if getattr(column[0], "tzinfo", None) else None
            return pa.array(column, pa.timestamp("ns", zone))
    try:
        return pa.array(column, from_pandas=False)  # NaN is a key of its own, no null
    except OverflowError:  # a number that is no long
        return pa.array(column, type_)


def _plain(values: Any) -> pa.Array | None:  # noqa: ANN401  from the user
    """Return whole numbers or texts as PyArrow does; None for anything else.

    PyArrow imports pandas to ask whether values are its, which takes longer than a lookup of them.
    """
    if type(values) is np.ndarray:
        is_plain = values.ndim == 1 and values.dtype.kind in "iu" and values.dtype.isnative
        return to_arrow(values) if is_plain else None
    kinds = {type(value) for value in values} if isinstance(values, list | tuple) else ()
    if kinds == {str}:
        return binary_array([value.encode() for value in values], pa.string())
    if kinds != {int}:
        return None
    try:
        return to_arrow(np.array(values, np.int64))
    except OverflowError:  # they are decimals, perhaps
        return None


def _check_zone(given: pa.DataType, stored: pa.DataType) -> None:
    """Refuse instants for local times and the reverse: which is meant is not known."""
    if not (pt.is_timestamp(given) or pt.is_date(given)):
        return
    zones = [pt.is_timestamp(type_) and type_.tz is not None for type_ in (given, stored)]
    if zones[0] == zones[1]:
        return
    advice = (
        "they have no time zone, and the stored ones are instants: give them one, as "
        "value.astimezone(datetime.UTC) does"
    )
    if zones[0]:
        advice = (
            "they are instants, and the stored ones have no time zone: give the local time, as "
            "value.replace(tzinfo=None) does"
        )
    msg = f"values are {given}; {advice}"
    raise ValueError(msg)


def _is_of_kind(given: pa.DataType, stored: pa.DataType) -> bool:
    """Whether values may be meant as values of a stored type."""
    if pt.is_null(given) or pt.is_string(given) or given.equals(stored):
        return True
    return _kind(given) == _kind(stored)


def _kind(type_: pa.DataType) -> str:
    if pt.is_integer(type_) or pt.is_floating(type_) or pt.is_decimal(type_):
        return "number"
    if pt.is_date(type_) or pt.is_timestamp(type_):
        return "moment"
    for is_of, kind in (
        (pt.is_boolean, "boolean"), (pt.is_time, "time"), (pt.is_duration, "duration"),
        (pt.is_binary, "bytes"), (pt.is_fixed_size_binary, "bytes"), (pt.is_string, "text"),
    ):  # fmt: skip
        if is_of(type_):
            return kind
    return "nested"
