"""Rows of many groups as frames of pandas, and results of pandas as rows; column by column.

Both conversions are made for many groups together, and give what one for each would.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.arrays.buffers import to_scalar
from connector.spark_version import PandasSettings, to_pandas_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Frames:
    """Rows as DataFrames of pandas, whose columns have types as if each had been converted alone.

    Integers and booleans without nulls have other types than those with some, so a slice with nulls
    of such a column is converted by itself. So is every slice of a nested column that has such
    values inside.
    """

    def __init__(self, batch: pa.RecordBatch, settings: PandasSettings) -> None:
        import pandas as pd

        self._batch = batch
        self._settings = settings
        columns, self._with_nulls, self._apart = {}, [], []
        for i, (name, column) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
            if _has_nulls_inside(column):
                self._apart.append(i)
                continue
            if column.null_count and _has_nulls_as_another_type(column.type):
                self._with_nulls.append(i)
                column = pc.fill_null(column, to_scalar(0, column.type))
            columns[name] = column
        schema = pa.schema([batch.schema.field(name) for name in columns])
        table = pa.Table.from_arrays(list(columns.values()), schema=schema)
        series = to_pandas_columns(table, settings) if columns else []
        # A copy of all values: a function may change those of its slice, and Arrow's are read-only.
        self._frame = pd.DataFrame(
            dict(zip(columns, series, strict=True)), index=pd.RangeIndex(batch.num_rows)
        )

    def slice(self, start: int, stop: int) -> Any:  # noqa: ANN401
        """Return rows as a DataFrame of its own, numbered from 0.

        No two slices that are disjoint share values, and none shares its labels.
        """
        import pandas as pd

        # Without the copy, pandas warns of a change to a slice.
        frame = self._frame.iloc[start:stop].copy(deep=False)
        frame.index = pd.RangeIndex(stop - start)
        frame.columns = self._frame.columns.view()
        names = self._batch.schema.names
        for i in self._apart:
            frame.insert(i, names[i], self._alone(i, start, stop))
        for i in self._with_nulls:
            if self._batch.column(i).slice(start, stop - start).null_count:
                frame[names[i]] = self._alone(i, start, stop)
        return frame

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the values of each row, as a frame of that row alone has them."""
        columns = [self._frame[name].array for name in self._frame.columns]
        for i in self._apart:
            columns.insert(i, ())
        is_valid = {i: pc.is_valid(self._batch.column(i)).to_pylist() for i in self._with_nulls}
        for row in range(self._batch.num_rows):
            yield tuple(
                self._alone(i, row, row + 1).iloc[0]
                if i in self._apart or (i in is_valid and not is_valid[i][row])
                else column[row]
                for i, column in enumerate(columns)
            )

    def _alone(self, i: int, start: int, stop: int) -> Any:  # noqa: ANN401
        part = self._batch.column(i).slice(start, stop - start)
        table = pa.Table.from_arrays([part], schema=pa.schema([self._batch.schema.field(i)]))
        (series,) = to_pandas_columns(table, self._settings)
        return series


def _has_nulls_as_another_type(type_: pa.DataType) -> bool:
    return bool(pt.is_integer(type_) or pt.is_boolean(type_))


def _has_nulls_inside(array: pa.Array) -> bool:
    """Whether a nested column may have integers or booleans inside some of which are null."""
    if pt.is_struct(array.type):
        inside = [array.field(i) for i in range(array.type.num_fields)]
    elif pt.is_map(array.type):
        inside = [array.keys, array.items]
    elif pt.is_nested(array.type):
        inside = [array.values]
    else:
        return False
    return any(
        (part.null_count and _has_nulls_as_another_type(part.type)) or _has_nulls_inside(part)
        for part in inside
    )


UNCHANGING = frozenset(
    {
        type(None), bool, int, float, complex, str, bytes, Decimal,
        datetime.date, datetime.datetime, datetime.time, datetime.timedelta,
    }
)  # fmt: skip
"""Types of Python objects that are immutable."""


def can_change(series: Any) -> bool:  # noqa: ANN401
    """Whether values of a column are objects that its maker may change later, such as lists."""
    if series.dtype != object:
        return False
    import pandas as pd

    of_pandas = {pd.Timestamp, pd.Timedelta, type(pd.NaT), type(pd.NA)}
    others = set(map(type, series.to_numpy())) - UNCHANGING - of_pandas
    return any(not issubclass(kind, np.number | np.bool_ | np.character) for kind in others)


@dataclass(slots=True)
class Collected:
    """Results of groups, with columns of equal types, that are converted together."""

    columns: list[list[Any]]
    """Of each column, that of each result: arrays of NumPy, or a Series of a type of pandas."""
    groups: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    """Rows of each result."""

    def add(self, group: int, columns: Sequence[Any]) -> None:
        """Take a copy of the columns of a result: a Series each, of equal length.

        The function may return the same memory with other values, before these are written.
        """
        self.groups.append(group)
        self.counts.append(len(columns[0]))
        import pandas as pd

        for results, series in zip(self.columns, columns, strict=True):
            if isinstance(series.dtype, np.dtype):
                results.append(series.values.copy())
            else:
                # Columns of Arrow share their memory with what copy() returns, and with a slice.
                results.append(pd.Series(series.array[np.arange(len(series))]))

    def frame(self, names: Sequence[str]) -> Any:  # noqa: ANN401
        """Return all results as one DataFrame."""
        import pandas as pd

        columns = [
            # A type that is given is not inferred from the values.
            pd.Series(whole := _concatenated(results), dtype=whole.dtype)
            if isinstance(results[0], np.ndarray)
            else pd.concat(results, ignore_index=True)
            for results in self.columns
        ]
        return pd.DataFrame(dict(zip(names, columns, strict=True)), copy=False)


def _concatenated(arrays: list[Any]) -> Any:  # noqa: ANN401
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
