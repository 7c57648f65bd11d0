"""The range partitioner: subpartition ``i`` holds what sorts between bounds ``i - 1`` and ``i``."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrow_format.arrow_types import data_schema, normalise
from arrow_format.errors import OptionError
from arrow_format.ipc_message import check_stream
from arrow_format.layout_check import check_array
from arrow_format.options import check_num_subpartitions
from arrow_format.range_bounds import BoundIndex, bounds_of_sample, first_descent
from arrow_format.sampling import sample_columns, sample_size
from arrow_format.sort_order import ORDERS, SortBy, key_fields, normalise_sort_by

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow.dataset as ds

    Key = str | tuple[str, str]

LEAST_BOUNDS_BYTES, MOST_BOUNDS_RATIO = 16 << 20, 256
"""Bounds that would take more than this many bytes, and times those they have in the log, are
refused before they are decompressed."""

WHAT = "range keys"
"""What the columns are called in messages."""


@dataclass(frozen=True, init=False, eq=False, repr=False)
class RangePartitioner:
    """Rows by ranges of their keys: subpartitions follow one another in the order of the keys.

    The subpartition of a row is the number of bounds that are strictly less than it: a bound and
    all that equals it belong to the subpartition before. With ``sort_by`` of the same keys, all
    subpartitions one after the other are sorted.

    Parameters
    ----------
    columns
        The keys: column names, or pairs of name and order such as ``("b", "descending")``.
    keys
        The same as one sequence.
    bounds
        At most ``num_subpartitions - 1``, ascending in the order of the keys: values of the one
        key, tuples of the values of several, or a ``pyarrow`` table or record batch with the key
        columns. When None, :func:`write_shuffle` samples its input, and an append takes those of
        the shuffle that is there. A datetime without time zone is UTC.

    Raises
    ------
    OptionError
        Keys or bounds are not of that form, or bounds do not ascend.

    Source: Spark, ``RangePartitioner`` and ``RangePartitioning``.
    """

    keys: SortBy
    """Pairs of column and order, the most significant first."""
    bounds: pa.RecordBatch | None
    """Key columns of the bounds, one row each."""

    def __init__(
        self,
        *columns: Key | Sequence[Key],
        keys: Sequence[Key] | str | None = None,
        bounds: pa.Table | pa.RecordBatch | Iterable[Any] | None = None,
    ) -> None:
        given: Any = columns
        if len(columns) == 1 and not _is_pair(columns[0]):
            given = columns[0]
        if bool(columns) == (keys is not None):
            msg = f"range keys {columns!r}, keys={keys!r}: expected one of them"
            raise OptionError(msg)
        pairs = normalise_sort_by(given if keys is None else keys, "keys")
        if not pairs:
            msg = f"keys={keys!r}: expected at least one column to partition by"
            raise OptionError(msg)
        object.__setattr__(self, "keys", pairs)
        object.__setattr__(self, "bounds", None if bounds is None else _as_batch(bounds, pairs))
        if self.bounds is not None:
            _check_ascending(self.bounds, self.keys)

    @classmethod
    def sampled(
        cls,
        source: pa.Table | pa.RecordBatch | ds.Dataset,
        keys: Sequence[Key] | str,
        num_subpartitions: int,
    ) -> RangePartitioner:
        """Partitioner whose bounds split a sample of ``source`` evenly.

        Parameters
        ----------
        source
            Rows like those that will be written. Of a dataset, the key columns are scanned.
        keys
            As in the constructor.
        num_subpartitions
            Ranges wanted; there may be fewer bounds than that takes when keys repeat.

        Raises
        ------
        OptionError, SchemaError
            A key or the source does not fit.
        """
        check_num_subpartitions(num_subpartitions)
        partitioner = cls(keys=keys)
        key_fields(data_schema(source.schema), partitioner.keys, WHAT)
        size = sample_size(num_subpartitions)
        sample = sample_columns(source, [name for name, _ in partitioner.keys], size)
        return partitioner.with_sample(sample, num_subpartitions)

    def with_sample(
        self, sample: pa.Table | pa.RecordBatch, num_subpartitions: int
    ) -> RangePartitioner:
        """Return this partitioner with bounds that split a sample of the keys evenly."""
        bounds = sample_bounds(sample, self.keys, num_subpartitions)
        return RangePartitioner(keys=self.keys, bounds=bounds)

    def fitted(self, schema: pa.Schema, num_subpartitions: int | None = None) -> RangePartitioner:
        """Return this partitioner with its bounds in the types of the data.

        So that the same bounds have the same description, however they were given.

        Parameters
        ----------
        schema
            A data schema.
        num_subpartitions
            To check the number of bounds against; not checked when None.

        Raises
        ------
        OptionError
            There are no bounds, too many, or one that the type of its column cannot hold.
        SchemaError
            A key is missing or its type has no order.
        """
        fields = key_fields(schema, self.keys, WHAT)
        if self.bounds is None:
            msg = (
                f"{self!r} has no bounds: give bounds=..., or take them from a sample with "
                "RangePartitioner.sampled(table_or_dataset, keys, num_subpartitions) or "
                "connector.sample_range_partitioner(df, keys, num_subpartitions). write_shuffle "
                "samples by itself when its source is a table or a DataFrame"
            )
            raise OptionError(msg)
        most = self.bounds.num_rows if num_subpartitions is None else num_subpartitions - 1
        if self.bounds.num_rows > most:
            msg = (
                f"{self!r}: {self.bounds.num_rows} bounds make {self.bounds.num_rows + 1} ranges; "
                f"num_subpartitions is {num_subpartitions}, so there can be at most {most}"
            )
            raise OptionError(msg)
        return RangePartitioner(keys=self.keys, bounds=_cast_to(self.bounds, fields))

    def describe(self) -> dict[str, Any]:
        """Value as JSON: the bounds as base64 of an Arrow IPC stream with zstd buffers."""
        bounds = None if self.bounds is None else _to_text(self.bounds)
        return {"kind": "range", "keys": [list(key) for key in self.keys], "bounds": bounds}

    @staticmethod
    def from_description(description: Mapping[str, Any]) -> RangePartitioner:
        """Inverse of :meth:`describe`; raises an Arrow error or ValueError when it is none."""
        text = description["bounds"]
        bounds = None if text is None else _from_text(text)
        return RangePartitioner(keys=description["keys"], bounds=bounds)

    def check(self, schema: pa.Schema) -> None:
        """Raise what :meth:`fitted` raises."""
        self.fitted(schema)

    def bind(
        self, schema: pa.Schema, num_subpartitions: int, map_task: int
    ) -> Callable[[pa.RecordBatch], npt.NDArray[np.int32]]:
        """Return the function that places the rows of a batch between the bounds."""
        del map_task
        bounds = self.fitted(schema, num_subpartitions).bounds
        index = BoundIndex(bounds, [order for _, order in self.keys])
        columns = [schema.get_field_index(name) for name, _ in self.keys]
        return lambda batch: index.place([batch.column(i) for i in columns])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangePartitioner):
            return NotImplemented
        return self.keys == other.keys and _content(self.bounds) == _content(other.bounds)

    def __hash__(self) -> int:
        return hash((self.keys, None if self.bounds is None else self.bounds.num_rows))

    def __repr__(self) -> str:
        keys = ", ".join(
            repr(name if order == ORDERS[0] else (name, order)) for name, order in self.keys
        )
        if self.bounds is None:
            return f"RangePartitioner({keys})"
        edges = ""
        if self.bounds.num_rows:
            first, last = (
                ", ".join(str(column[i]) for column in self.bounds.columns)
                for i in (0, self.bounds.num_rows - 1)
            )
            edges = f" from ({first[:40]}) to ({last[:40]})"
        return f"RangePartitioner({keys}, {self.bounds.num_rows} bounds{edges})"


def sample_bounds(
    sample: pa.Table | pa.RecordBatch, keys: Sequence[Key] | str, num_subpartitions: int
) -> pa.RecordBatch:
    """Choose bounds that split a sample into ranges of about equal numbers of rows. Pure.

    Parameters
    ----------
    sample
        Rows with the key columns.
    keys
        As in :class:`RangePartitioner`.
    num_subpartitions
        Ranges wanted.

    Returns
    -------
    pyarrow.RecordBatch
        The key columns of at most ``num_subpartitions - 1`` rows, ascending and all different.

    Raises
    ------
    OptionError, SchemaError
        A key is not of its form, not there, or its type has no order.
    """
    check_num_subpartitions(num_subpartitions)
    pairs = normalise_sort_by(keys, "keys")
    batch = _batch_of_columns(sample, pairs)
    key_fields(batch.schema, pairs, WHAT)
    return bounds_of_sample(batch, [order for _, order in pairs], num_subpartitions)


def bounds_of_rows(rows: Sequence[Any], fields: Sequence[pa.Field]) -> pa.RecordBatch:
    """Bounds as they may be written down, in the types of the key columns.

    Parameters
    ----------
    rows
        One sequence of values per bound, such as come from JSON: dates, timestamps, times and
        decimals may be text.
    fields
        Fields of the key columns.

    Raises
    ------
    OptionError
        A value does not fit.
    """
    inferred = _batch_of_rows(rows, tuple((field.name, ORDERS[0]) for field in fields))
    return _cast_to(inferred, fields)


# Bounds as they may be given ---------------------------------------------------------------------


def _is_pair(key: object) -> bool:
    """Whether ``key`` is one key with its order, and not a sequence of keys."""
    return isinstance(key, tuple) and len(key) == 2 and key[1] in ORDERS


def _as_batch(bounds: pa.Table | pa.RecordBatch | Iterable[Any], keys: SortBy) -> pa.RecordBatch:
    """Bounds in any form as one batch that owns its memory."""
    if isinstance(bounds, pa.Table | pa.RecordBatch):
        batch = _batch_of_columns(bounds, keys)
    elif isinstance(bounds, Iterable) and not isinstance(bounds, str | bytes | Mapping):
        batch = _batch_of_rows(list(bounds), keys)
    else:
        msg = f"bounds={bounds!r}: expected values, tuples, or a pyarrow table of the key columns"
        raise OptionError(msg)
    # Copied: without the nulls' garbage and what a slice pins, equal bounds have equal bytes.
    return batch.take(pa.array(np.arange(batch.num_rows)))


def _batch_of_columns(bounds: pa.Table | pa.RecordBatch, keys: SortBy) -> pa.RecordBatch:
    names = [name for name, _ in keys]
    missing = [name for name in names if name not in bounds.schema.names]
    if missing:
        msg = (
            f"key column {missing[0]!r} is not among the columns {', '.join(bounds.schema.names)} "
            "of the bounds or sample that was given"
        )
        raise OptionError(msg)
    selected = bounds.select(names)
    schema = pa.schema([(f.name, _bare(f.type)) for f in data_schema(selected.schema)])
    parts = selected.to_batches() if isinstance(selected, pa.Table) else [selected]
    empty = pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
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


def _cast_to(bounds: pa.RecordBatch, fields: Sequence[pa.Field]) -> pa.RecordBatch:
    """Bounds in the types of the key columns."""
    columns = [
        _cast(column, field.name, _bare(field.type))
        for column, field in zip(bounds.columns, fields, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=[field.name for field in fields])


def _cast(column: pa.Array, name: str, type_: pa.DataType) -> pa.Array:
    if column.type.equals(type_):
        return column
    why: object = "some would be cut"
    try:
        found = column.cast(type_)
    except pa.ArrowException as error:
        why = error
        try:  # what Arrow does not cast it may still build, as decimals from whole numbers
            found = pa.array(column.to_pylist(), type_)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            found = None
    # A bound that lost its fraction or its time of day would part the rows elsewhere.
    if found is None or not _is_same(found, column):
        msg = (
            f"bounds of key {name!r} are {column.type}, which does not fit its type {type_}: {why}"
        )
        raise OptionError(msg)
    return found


def _is_same(found: pa.Array, given: pa.Array) -> bool:
    """Whether bounds that were cast are still what was given."""
    types = (found.type, given.type)
    if all(map(pa.types.is_floating, types)) or not all(
        pa.types.is_temporal(type_) or pa.types.is_decimal(type_) or pa.types.is_primitive(type_)
        for type_ in types
    ):
        return True
    try:
        return bool(found.cast(given.type).equals(given))
    except pa.ArrowException:
        return bool(found.to_pylist() == given.to_pylist())


def _bare(type_: pa.DataType) -> pa.DataType:
    """Type without its labels: rows that may be appended may differ in them, and bounds do not."""
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _bare(field.type)) for field in type_])
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return pa.timestamp(type_.unit, "UTC")
    return type_


def _check_ascending(bounds: pa.RecordBatch, keys: SortBy) -> None:
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


def _to_text(bounds: pa.RecordBatch) -> str:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, bounds.schema, options=options) as writer:
        writer.write_batch(bounds)
    return base64.b64encode(sink.getvalue()).decode("ascii")


def _from_text(text: str) -> pa.RecordBatch:
    stream = base64.b64decode(text, validate=True)
    check_stream(memoryview(stream), max(LEAST_BOUNDS_BYTES, MOST_BOUNDS_RATIO * len(stream)))
    with pa.ipc.open_stream(stream) as reader:
        batches = list(reader)
    if len(batches) != 1:
        msg = f"bounds in {len(batches)} batches, expected one"
        raise ValueError(msg)
    for column in batches[0].columns:
        check_array(column)
    return batches[0]


def _content(bounds: pa.RecordBatch | None) -> tuple[pa.Schema, bytes] | None:
    """Return what bounds are compared by: bytes before compression, so that NaN equals itself."""
    return None if bounds is None else (bounds.schema, bounds.serialize().to_pybytes())
