"""Calls of a user's function for groups of rows, in a task: with frames of pandas, or with tables.

What is done for all groups of a block is done for whole columns; a group costs a slice and the
call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.arrays.batches import BATCH_BYTES, BATCH_ROWS
from arrow_format.arrays.buffers import to_arrow, to_scalar
from arrow_format.arrays.conversion import key_text
from arrow_format.arrays.selection import joined, take
from arrow_format.arrays.stored_types import conform
from arrow_format.errors import SchemaError
from arrow_format.operators.results import fitted, names_that_differ, noted
from connector.spark_version import PandasSettings, from_pandas_frame, to_pandas_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql.types import StructType

    from arrow_format.model import Int32Array
    from arrow_format.operators.groups import GroupBlock


@dataclass(frozen=True)
class GroupsForm:
    """What a call per group is given, and what it returns."""

    path: str
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    takes_key: bool
    schema: pa.Schema

    def where(self, block: GroupBlock, group: int) -> str:
        """Return the name of a group for messages."""
        key = key_text(block.batch, self.keys, int(block.starts[group]))
        return f"the group {key} of {self.path}"


class GroupCall(ABC):
    """Calls a user's function for each group of a block."""

    form: GroupsForm

    @abstractmethod
    def results(self, block: GroupBlock) -> Iterator[tuple[Int32Array, pa.RecordBatch]]:
        """Yield results, and how many rows of them the next groups have each."""


@dataclass(frozen=True)
class TableCall(GroupCall):
    """Calls a function of a table of PyArrow."""

    form: GroupsForm
    function: Callable[..., Any]

    def results(self, block: GroupBlock) -> Iterator[tuple[Int32Array, pa.RecordBatch]]:
        """Yield results as :class:`GroupCall` says."""
        form, starts = self.form, block.starts.tolist()
        rows = pa.Table.from_batches([block.batch.select(form.columns)])
        keys = block.batch.select(form.keys).columns
        counts: list[int] = []
        made: list[pa.RecordBatch] = []
        num_rows = num_bytes = 0
        for group, (start, stop) in enumerate(pairwise(starts)):
            given = [rows.slice(start, stop - start)]
            if form.takes_key:
                given.insert(0, tuple(column[start] for column in keys))
            with noted("map_groups", partial(form.where, block, group)):
                table = _called(self.function, given, pa.Table)
                where = form.where(block, group) if not table.schema.equals(form.schema) else ""
                if table.num_columns or table.num_rows:
                    made += (fitted(batch, form.schema, where) for batch in table.to_batches())
            counts.append(table.num_rows)
            num_rows += table.num_rows
            num_bytes += table.nbytes
            if num_rows >= BATCH_ROWS or num_bytes >= BATCH_BYTES:
                yield np.array(counts, np.int32), _joined(made, form.schema)
                counts, made = [], []
                num_rows = num_bytes = 0
        if counts:
            yield np.array(counts, np.int32), _joined(made, form.schema)


@dataclass(frozen=True)
class FrameCall(GroupCall):
    """Calls a function of a DataFrame of pandas.

    Columns are converted for all groups of a block at once; so are results of equal types. A group
    costs pandas a slice then, and no conversion.
    """

    form: GroupsForm
    function: Callable[..., Any]
    struct: StructType
    settings: PandasSettings

    def results(self, block: GroupBlock) -> Iterator[tuple[Int32Array, pa.RecordBatch]]:
        """Yield results as :class:`GroupCall` says."""
        import pandas as pd

        form, starts = self.form, block.starts.tolist()
        rows = Frames(block.batch.select(form.columns), self.settings)
        firsts = take(block.batch.select(form.keys), to_arrow(block.starts[:-1]))
        keys = Frames(firsts, self.settings) if form.takes_key else None
        frames: list[tuple[int, Any]] = []
        counts: list[int] = []
        # The first results are converted at once: how large a row is, nothing else tells.
        num_rows, most_rows = 0, 1
        for group, (start, stop) in enumerate(pairwise(starts)):
            given = [rows.slice(start, stop)]
            if keys is not None:
                values = keys.slice(group, group + 1)
                given.insert(0, tuple(values[name].iloc[0] for name in form.keys))
            with noted("map_groups", partial(form.where, block, group)):
                frame = _called(self.function, given, pd.DataFrame)
                self._check_columns(frame)
            counts.append(len(frame))
            if len(frame):
                # A copy: the function may return the same frame again, with other values.
                frames.append((group, frame.copy()))
            del frame, given
            num_rows += counts[-1]
            if num_rows >= most_rows or group + 2 == len(starts):
                batch = self._converted(frames, block)
                yield np.array(counts, np.int32), batch
                if num_rows:
                    most_rows = self._most_rows(num_rows, batch.nbytes)
                frames, counts, num_rows = [], [], 0
                del batch

    def _most_rows(self, num_rows: int, num_bytes: int) -> int:
        """Return how many rows to convert together, after some that had so many bytes."""
        if any(pt.is_nested(type_) for type_ in self.form.schema.types):
            return 1  # lists and dicts may change in the next call, and a copy has the same
        return max(min(num_rows * 8, BATCH_ROWS, BATCH_BYTES * num_rows // max(num_bytes, 1)), 1)

    def _check_columns(self, frame: Any) -> None:  # noqa: ANN401
        names, expected = list(frame.columns), self.form.schema.names
        if not names and not len(frame):
            return
        if self.settings.by_name and any(isinstance(name, str) for name in names):
            if difference := names_that_differ(names, expected):
                msg = f"the frame that the function returned does not fit the schema: {difference}"
                raise SchemaError(msg)
        elif len(names) != len(expected):
            msg = (
                f"the frame that the function returned has {len(names)} columns, and the schema "
                f"{len(expected)}: {', '.join(expected)}"
            )
            raise SchemaError(msg)

    def _converted(self, frames: list[tuple[int, Any]], block: GroupBlock) -> pa.RecordBatch:
        """Return frames with rows, each with the number of its group, as one batch."""
        import pandas as pd

        if len(frames) > 1 and _have_equal_types([frame for _, frame in frames]):
            whole = pd.concat([frame for _, frame in frames], ignore_index=True)
            with suppress(Exception):  # one by one below, which tells whose it is
                return self._to_arrow(whole, may_cast=False)
        batches = []
        for group, frame in frames:
            with noted("map_groups", partial(self.form.where, block, group)):
                batches.append(self._to_arrow(frame, may_cast=True))
        return _joined(batches, self.form.schema)

    def _to_arrow(self, frame: Any, *, may_cast: bool) -> pa.RecordBatch:  # noqa: ANN401
        batch = from_pandas_frame(frame, self.struct, self.settings, may_cast=may_cast)
        return conform(batch, self.form.schema)


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
        self._frame = pd.DataFrame(
            dict(zip(columns, series, strict=True)), index=pd.RangeIndex(batch.num_rows)
        )

    def slice(self, start: int, stop: int) -> Any:  # noqa: ANN401
        """Return rows as a DataFrame of its own, numbered from 0."""
        frame = self._frame.iloc[start:stop].reset_index(drop=True)
        names = self._batch.schema.names
        for i in self._apart:
            frame.insert(i, names[i], self._alone(i, start, stop))
        for i in self._with_nulls:
            if self._batch.column(i).slice(start, stop - start).null_count:
                frame[names[i]] = self._alone(i, start, stop)
        return frame

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


def _have_equal_types(frames: list[Any]) -> bool:
    """Whether frames can be joined without a change of any value; categories may differ."""
    names, kinds = frames[0].columns, list(frames[0].dtypes)
    return "category" not in map(str, kinds) and all(
        frame.columns.equals(names) and list(frame.dtypes) == kinds for frame in frames[1:]
    )


def _called(function: Callable[..., Any], given: list[Any], expected: type) -> Any:  # noqa: ANN401
    try:
        result = function(*given)
    except StopIteration as error:
        msg = "the function raised StopIteration; catch it, where it is the end of an iterator"
        raise RuntimeError(msg) from error
    if not isinstance(result, expected):
        kind = "None" if result is None else f"a {type(result).__name__}"
        package = expected.__module__.partition(".")[0]
        msg = f"the function returned {kind}: expected a {package}.{expected.__name__}"
        raise SchemaError(msg)
    return result


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    return joined(batches) if batches else pa.RecordBatch.from_pylist([], schema)
