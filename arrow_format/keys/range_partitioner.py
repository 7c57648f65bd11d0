"""The range partitioner: subpartition ``i`` holds what sorts between bounds ``i - 1`` and ``i``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from arrow_format.arrays.stored_types import data_schema
from arrow_format.errors import OptionError
from arrow_format.keys.bound_search import BoundIndex
from arrow_format.keys.bounds import (
    WHAT,
    as_bounds,
    bounds_content,
    bounds_from_text,
    bounds_to_text,
    cast_bounds,
    check_ascending,
    sample_bounds,
)
from arrow_format.keys.sampling import check_sampled, sample_columns, sample_size
from arrow_format.keys.sort_keys import ORDERS, SortBy, key_fields, normalise_sort_by
from arrow_format.options import check_num_subpartitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    import pyarrow.dataset as ds

    Key = str | tuple[str, str]


@dataclass(frozen=True, init=False, eq=False, repr=False)
class RangePartitioner:
    """Rows by ranges of their keys: subpartitions are in the order of the keys.

    .. code-block:: python

        by_price = arrow_shuffle.RangePartitioner("price", bounds=[[10.0], [20.0]])
        arrow_shuffle.write_shuffle(rows, "/data/ranges", partitioner=by_price, num_subpartitions=3)

    The subpartition of a row is the number of bounds strictly less than it: rows that equal a bound
    belong to the subpartition before it. With ``sort_by`` of the same keys, the subpartitions in
    order are sorted as a whole.

    Parameters
    ----------
    columns
        The keys: column names, or pairs of name and order such as ``("b", "descending")``.
    keys
        The same as one sequence.
    bounds
        At most ``num_subpartitions - 1``, ascending in the order of the keys: values of the one
        key, tuples of the values of several, or a ``pyarrow`` table or record batch with the key
        columns. When None, :func:`write_shuffle` samples its input, and an append uses those of
        the existing shuffle. A datetime without time zone is UTC.

    Raises
    ------
    OptionError
        Keys or bounds are malformed, or bounds do not ascend.

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
        object.__setattr__(self, "bounds", None if bounds is None else as_bounds(bounds, pairs))
        if self.bounds is not None:
            check_ascending(self.bounds, self.keys)

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
        check_sampled(source)
        key_fields(data_schema(source.schema), partitioner.keys, WHAT)
        size = sample_size(num_subpartitions)
        sample = sample_columns(source, [name for name, _ in partitioner.keys], size)
        return partitioner.with_sample(sample, num_subpartitions)

    def with_sample(
        self,
        sample: pa.Table | pa.RecordBatch,
        num_subpartitions: int,
        weights: npt.NDArray[np.float64] | None = None,
    ) -> RangePartitioner:
        """Return this partitioner with bounds that split a sample of rows evenly.

        The arguments are those of :func:`~arrow_format.sample_bounds`.
        """
        bounds = sample_bounds(sample, self.keys, num_subpartitions, weights)
        return RangePartitioner(keys=self.keys, bounds=bounds)

    def fitted(self, schema: pa.Schema, num_subpartitions: int | None = None) -> RangePartitioner:
        """Return this partitioner with its bounds in the types of a data schema.

        The same bounds then have the same description, however they were given. The number of
        bounds is checked if ``num_subpartitions`` is given.

        Raises
        ------
        OptionError
            Bounds are missing, too many, or do not fit the type of their column.
        SchemaError
            A key is missing or its type has no order.
        """
        fields = key_fields(schema, self.keys, WHAT)
        if self.bounds is None:
            msg = (
                f"{self!r} has no bounds: give bounds=..., or take them from a sample with "
                "RangePartitioner.sampled(table_or_dataset, keys, num_subpartitions) or "
                "arrow_shuffle.sample_range_partitioner(df, keys, num_subpartitions). "
                "write_shuffle samples by itself when its source is a table or a DataFrame"
            )
            raise OptionError(msg)
        most = self.bounds.num_rows if num_subpartitions is None else num_subpartitions - 1
        if self.bounds.num_rows > most:
            msg = (
                f"{self!r}: {self.bounds.num_rows} bounds make {self.bounds.num_rows + 1} ranges; "
                f"num_subpartitions is {num_subpartitions}, so there can be at most {most}"
            )
            raise OptionError(msg)
        return RangePartitioner(keys=self.keys, bounds=cast_bounds(self.bounds, fields))

    def describe(self) -> dict[str, Any]:
        """Return the value as JSON: bounds as base64 of an Arrow IPC stream with zstd buffers."""
        bounds = None if self.bounds is None else bounds_to_text(self.bounds)
        return {"kind": "range", "keys": [list(key) for key in self.keys], "bounds": bounds}

    @staticmethod
    def from_description(description: Mapping[str, Any]) -> RangePartitioner:
        """Parse the result of :meth:`describe`; ArrowException or ValueError if malformed."""
        text = description["bounds"]
        bounds = None if text is None else bounds_from_text(text)
        return RangePartitioner(keys=description["keys"], bounds=bounds)

    def check(self, schema: pa.Schema) -> None:
        """Raise what :meth:`fitted` raises."""
        self.fitted(schema)

    def bind(
        self, schema: pa.Schema, num_subpartitions: int, map_task: int
    ) -> Callable[[pa.RecordBatch], npt.NDArray[np.int32]]:
        """Return the function that locates the rows of a batch between the bounds."""
        del map_task
        bounds = self.fitted(schema, num_subpartitions).bounds
        index = BoundIndex(bounds, [order for _, order in self.keys])
        columns = [schema.get_field_index(name) for name, _ in self.keys]
        return lambda batch: index.place([batch.column(i) for i in columns])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangePartitioner):
            return NotImplemented
        return self.keys == other.keys and (
            bounds_content(self.bounds) == bounds_content(other.bounds)
        )

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
                ", ".join(_shown(column[i]) for column in self.bounds.columns)
                for i in (0, self.bounds.num_rows - 1)
            )
            edges = f" from ({first[:40]}) to ({last[:40]})"
        return f"RangePartitioner({keys}, {self.bounds.num_rows} bounds{edges})"


def _shown(bound: pa.Scalar) -> str:
    """Return a bound as text; one that Spark wrote need not be UTF-8."""
    try:
        return str(bound)
    except UnicodeDecodeError:
        return repr(bound.as_buffer().to_pybytes())


def _is_pair(key: object) -> bool:
    """Whether ``key`` is a key with its order, not a sequence of keys."""
    return isinstance(key, tuple) and len(key) == 2 and key[1] in ORDERS
