"""Calls of a user's function for groups of rows, in a task, with frames of pandas.

What is done for all groups of a block is done for whole columns; a group costs a slice and the
call.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql.types import StructType

from arrow_format.arrays.batches import BATCH_BYTES
from arrow_format.arrays.selection import joined
from arrow_format.arrays.stored_types import conform
from arrow_format.errors import SchemaError
from arrow_format.extras import require
from arrow_format.operators.group_calls import GroupCall, GroupsForm, called, check_kind
from arrow_format.operators.results import names_that_differ, noted
from connector.operators.group_frames import Collected, Frames, can_change
from connector.source.reader import spark_schema
from connector.spark_types import spark_schema_of
from connector.spark_version import PandasSettings, from_pandas_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from arrow_format.operators.described_calls import Cogrouped, MappedGroups
    from arrow_format.operators.description import RunSettings
    from arrow_format.operators.group_calls import GroupResult
    from arrow_format.operators.groups import GroupBlock
    from arrow_format.operators.inputs import Input

RESULT_ROWS = 1 << 16
"""Rows of results that are converted together at most: a conversion costs 0.7 ms, however few."""


@dataclass(frozen=True)
class FrameCall(GroupCall):
    """Calls a function of a DataFrame of pandas.

    Columns are converted for all groups of a block at once; so are results whose columns have equal
    types. A group costs pandas a slice then, and a copy of each column of its result.
    """

    form: GroupsForm
    function: Callable[..., Any]
    struct: StructType
    settings: PandasSettings

    def results(self, block: GroupBlock) -> Iterator[GroupResult]:
        """Yield results as :class:`GroupCall` says."""
        form, starts = self.form, block.starts.tolist()
        rows = Frames(block.batch.select(form.columns), self.settings)
        keys: Iterable[tuple[Any, ...]] = repeat(())
        if form.takes_key:
            keys = Frames(block.keys(form.keys), self.settings).rows()
        if block.other is not None:
            others = Frames(block.other[0].select(form.other_columns), self.settings)
            other_starts = block.other[1].tolist()
        collected: dict[tuple[Any, ...], Collected] = {}
        known: dict[tuple[Any, ...], list[int]] = {}
        # The first results are converted at once: how large a row is, nothing else tells.
        num_rows, most_rows = 0, 1
        for group, ((start, stop), key) in enumerate(zip(pairwise(starts), keys, strict=False)):
            given = [rows.slice(start, stop)]
            if block.other is not None:
                given.append(others.slice(other_starts[group], other_starts[group + 1]))
            if form.takes_key:
                given.insert(0, key)
            for columns in self._columns(given, known, block, group):
                num_rows += len(columns[0])
                # What the function may change in its next call is converted before.
                is_full = num_rows >= most_rows or any(map(can_change, columns))
                kinds = tuple([series.dtype for series in columns])
                if kinds not in collected:
                    collected[kinds] = Collected([[] for _ in columns])
                collected[kinds].add(group, columns)
                del columns
                if is_full:
                    num_bytes = 0
                    for result in self._taken(collected, block):
                        num_bytes += result[2].nbytes
                        yield result
                        del result
                    most_rows = min(
                        num_rows * 8, RESULT_ROWS, BATCH_BYTES * num_rows // (num_bytes + 1)
                    )
                    num_rows = 0
        yield from self._taken(collected, block)

    def _columns(
        self,
        given: list[Any],
        known: dict[tuple[Any, ...], list[int]],
        block: GroupBlock,
        group: int,
    ) -> Iterator[list[Any]]:
        """Call the function, and yield the columns of each result with rows, as in the schema.

        Neither what it is given nor what it returns is kept. ``known`` has, by labels of frames,
        where the columns are.
        """
        with noted("map_groups", partial(self.form.where, block, group)):
            for frame in self._frames(given):
                labels = tuple(frame.columns.tolist())
                positions = known.get(labels)
                if positions is None:
                    positions = self._positions(list(labels), num_rows=len(frame))
                    if labels:
                        known[labels] = positions
                if len(frame):
                    series = [series for _, series in frame.items()]
                    columns = [[series[i] for i in positions]]
                    del frame, series
                    yield columns.pop()

    def _frames(self, given: list[Any]) -> Iterator[Any]:
        """Yield the frames that the function returns."""
        import pandas as pd

        if not self.form.takes_frames:
            frames = [called(self.function, given, pd.DataFrame)]
            given.clear()
            yield frames.pop()
            return
        *key, rows = given
        given.clear()
        results = called(self.function, [*key, iter([rows])], Iterable)
        del rows
        for frame in results:
            check_kind("yielded", frame, pd.DataFrame)
            yield frame

    def _taken(
        self, collected: dict[tuple[Any, ...], Collected], block: GroupBlock
    ) -> Iterator[GroupResult]:
        """Yield collected results as batches, each forgotten once it is converted."""
        for kinds in list(collected):
            results = collected.pop(kinds)
            yield (
                np.array(results.groups),
                np.array(results.counts),
                self._converted(results, block),
            )

    def _positions(self, names: list[Any], *, num_rows: int) -> list[int]:
        """Return where in a frame with such labels the columns of the schema are."""
        expected = self.form.schema.names
        if not names and not num_rows:
            return []
        if self.settings.by_name and any(isinstance(name, str) for name in names):
            if difference := names_that_differ(names, expected):
                msg = f"the frame that the function returned does not fit the schema: {difference}"
                raise SchemaError(msg)
            # As pandas selects by name where several columns have one.
            found = [i for name in expected for i, other in enumerate(names) if other == name]
            return found[: len(expected)]
        if len(names) != len(expected):
            msg = (
                f"the frame that the function returned has {len(names)} columns, and the schema "
                f"{len(expected)}: {', '.join(expected)}"
            )
            raise SchemaError(msg)
        return list(range(len(names)))

    def _converted(self, results: Collected, block: GroupBlock) -> pa.RecordBatch:
        """Return results, of a group at least, as one batch."""
        frame = results.frame(self.form.schema.names)
        if len(results.groups) > 1:
            with suppress(Exception):  # one by one below, which tells whose it is
                return self._to_arrow(frame, may_cast=False)
        batches, start = [], 0
        for group, count in zip(results.groups, results.counts, strict=True):
            with noted("map_groups", partial(self.form.where, block, group)):
                batches.append(self._to_arrow(frame.iloc[start : start + count], may_cast=True))
            start += count
        return joined(batches)

    def _to_arrow(self, frame: Any, *, may_cast: bool) -> pa.RecordBatch:  # noqa: ANN401
        batch = from_pandas_frame(frame, self.struct, self.settings, may_cast=may_cast)
        return conform(batch, self.form.schema)


def frame_calls(
    form: GroupsForm, groups: MappedGroups | Cogrouped, at: RunSettings, rows: Input
) -> FrameCall:
    """Return the calls of a function of frames, which Spark's converters make, without a JVM.

    Raises MissingPackageError where pandas is missing, SchemaError for a column that Spark has no
    type for.
    """
    require("pandas", "map_groups, unless its function takes a pyarrow.Table,")
    given = (*form.columns, *(form.keys if form.takes_key else ()))
    spark_schema(rows, list(dict.fromkeys(given)))  # type: ignore[arg-type]
    struct = groups.declared
    if not isinstance(struct, StructType):
        struct = spark_schema_of(groups.schema)
    settings = PandasSettings.of(at.frames, at.time_zone or "UTC")
    return FrameCall(form, groups.function, struct, settings)
