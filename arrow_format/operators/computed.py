"""The rows that an operation makes, as the input of another: nothing is written in between.

They lie in the subpartitions of what they were made of, so what reads them finds equal keys
together, as in a shuffle.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from functools import cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.gather import filtered
from arrow_format.arrays.selection import joined, take
from arrow_format.arrays.stored_types import conform
from arrow_format.errors import OptionError
from arrow_format.filters.conjunction import Both
from arrow_format.filters.filter import bind_filter
from arrow_format.filters.keys import bind_keys
from arrow_format.keys.co_partitioning import is_broadcast
from arrow_format.keys.partitioner import key_columns
from arrow_format.operators.join_plan import JoinPlan
from arrow_format.operators.placement import Placement, plan_placement
from arrow_format.operators.replay import Replayed
from arrow_format.operators.task_plan import read_weights
from arrow_format.read.chunk_plan import group_adjacent
from arrow_format.read.rows import Rows
from arrow_format.read.subpartition_reader import select_columns

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    import pyarrow.compute as pc

    from arrow_format.filters.expression import Expression
    from arrow_format.filters.keys import Keys
    from arrow_format.filters.row_filter import RowFilter
    from arrow_format.filters.spark_rules import SparkSettings
    from arrow_format.keys.partitioner import Partitioner
    from arrow_format.keys.sort_keys import SortBy
    from arrow_format.model import Int64Array
    from arrow_format.operators.placement import Result
    from arrow_format.operators.task_plan import TaskPlan
    from arrow_format.options import ReadOptions
    from arrow_format.read.chunk_plan import Piece


UNKNOWN: Mapping[str, Any] = {"kind": "unknown"}
"""Describes the placement of rows whose columns do not say where they are."""


class Computed:
    """Rows of an operation, read as those of a :class:`~arrow_format.read.shuffle.Shuffle` are.

    Several threads may read them, each other subpartitions. Those who read some twice, in several
    passes, ask for :meth:`again`.

    Parameters
    ----------
    plan
        The operation.
    options
        Memory of these rows, besides that of what they are made of.
    spark_fields
        Spark's fields, as in its JSON of a schema, of columns that are more than their Arrow type.
    """

    map_outputs = ()
    """None: no row is stored, hence none is broadcast."""
    sort_by: SortBy = ()
    """The rows of a subpartition are in no particular order."""

    def __init__(
        self, plan: TaskPlan, options: ReadOptions, spark_fields: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self.plan = plan
        self.options = options
        self.spark_fields = spark_fields
        self.filter: RowFilter | None = None

    @property
    def path(self) -> str:
        """What was done with which shuffles, for messages."""
        return f"the {self.plan.what} of {self.plan.paths}"

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows."""
        return self.plan.schema

    @property
    def spark_schema(self) -> str | None:
        """Spark's JSON of the columns that are more than their Arrow type; None for none."""
        if not self.spark_fields:
            return None
        return json.dumps({"type": "struct", "fields": list(self.spark_fields.values())})

    @cached_property
    def combine(self) -> Mapping[str, str]:
        """Functions of the columns that hold partial results: those that a join took as they are.

        One that the join leaves out is among them: several rows may be one for its sake.
        """
        if self.plan.calls_function or not isinstance(self.plan.details, JoinPlan):
            return {}
        join, found = self.plan.details, {}
        sides = self.plan.inputs if join.multiplies else self.plan.inputs[:1]
        for number, rows in enumerate(sides):
            names = {(each.right if number else each.left): each.name for each in join.columns}
            for name, function in rows.combine.items():
                found[names.get(name, f"{name} of {rows.path}")] = function
        return found

    @property
    def num_subpartitions(self) -> int:
        """Number of subpartitions."""
        return self.plan.placed_as.num_subpartitions

    @property
    def partitioner(self) -> Partitioner | Mapping[str, Any]:
        """How the rows are placed; of a kind of its own where their columns do not say it."""
        return UNKNOWN if isinstance(self._placed_by, str) else self._placed_by.partitioner

    def check_placed(self) -> None:
        """Raise OptionError unless the columns of a row say in which subpartition it is."""
        if isinstance(self._placed_by, str):
            msg = (
                f"{self.path}: {self._placed_by}, so equal keys are not known to be in one "
                "subpartition. Write it first, .write(path, keys=...), and go on with "
                "open_shuffle(path)"
            )
            raise OptionError(msg)

    @cached_property
    def _placed_by(self) -> Placement | str:
        """How the rows are placed, or why that is not known."""
        source = self.plan.placed_as
        if isinstance(source, Computed) and isinstance(source._placed_by, str):
            return source._placed_by
        try:
            return plan_placement(source, self.schema, self.plan.names)
        except OptionError as error:
            return str(error).removeprefix("keys=None: ").partition("; give keys=")[0]

    def schema_of(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the schema of some columns, all when None; SchemaError for one that is missing."""
        return pa.schema([self.schema.field(i) for i in select_columns(self.schema, columns)])

    def where(self, filter: RowFilter) -> Computed:
        """Return the rows that a filter is true for."""
        rows = Computed(self.plan, self.options, self.spark_fields)
        rows.filter = filter if self.filter is None else Both(self.filter, filter)
        return rows

    def pruned(self, names: Sequence[str]) -> Computed:
        """Return the same rows without columns that are not asked for, as far as it saves work.

        Those that place the rows and that filter them are kept.
        """
        if self.plan.pruned is None:
            return self
        kept = {*names, *(key_columns(self.partitioner) or ())}
        if self.filter is not None:
            kept |= {*self.filter.columns}
        plan = self.plan.pruned([name for name in self.schema.names if name in kept])
        rows = Computed(plan, self.options, self.spark_fields)
        return rows if self.filter is None else rows.where(self.filter)

    def __getstate__(self) -> dict[str, Any]:
        # Tasks need no other plan, and it has all that the whole one has.
        return vars(self) | {"plan": replace(self.plan, pruned=None)}

    def bound(self, filter: str | pc.Expression | Expression, settings: SparkSettings) -> RowFilter:
        """Return a filter bound to the columns; raises OptionError and SchemaError."""
        return bind_filter(filter, self.schema, settings=settings, spark_schema=self.spark_schema)

    def bound_keys(self, keys: Keys) -> RowFilter:
        """Return the rows of keys as a filter; raises OptionError and SchemaError."""
        return bind_keys(keys, self.schema, self.partitioner, self.spark_schema)

    def candidates(self) -> list[int] | None:
        """Return the subpartitions, ascending, that can have rows; None for all."""
        possible, asked = self.plan.candidates, self.plan.subpartitions
        if possible is None or asked is None:
            known = possible if asked is None else asked
            return None if known is None else list(known)
        return sorted({*possible} & {*asked})

    @property
    def read_bytes(self) -> pa.Int64Array:
        """Estimated stored bytes that are read for each subpartition."""
        return to_arrow(read_weights(self.plan.inputs))

    def weights(
        self, columns: Sequence[str] | None = None, *, within: range | None = None
    ) -> tuple[Int64Array, Int64Array]:
        """Estimate rows and raw bytes of each subpartition, by those that they are made of."""
        self.schema_of(columns)
        weights = [each.weights(within=within) for each in _weighed(self.plan)]
        rows, sizes = zip(*weights, strict=True)
        return np.max(rows, axis=0), np.sum(sizes, axis=0)

    @property
    def cut_bytes(self) -> pa.Int64Array | None:
        """Those of :attr:`read_bytes` that pieces of a subpartition share; None where none is."""
        shared = self.plan.cut_bytes
        return None if shared is None else to_arrow(shared)

    def is_in_order(self, subpartition: int) -> bool:
        """Whether pieces have the order of the rows, if these have any."""
        inputs = (self.plan.inputs[number] for number in self.plan.cuts)
        return not self.plan.in_order or all(each.is_in_order(subpartition) for each in inputs)

    def again(
        self,
        ranges: Sequence[tuple[int, int]],
        columns: Sequence[str] | None = None,
        piece: Piece | None = None,
    ) -> Replayed:
        """Return the rows of ascending ranges ``[first, end)``, to be read one or more times.

        Of one subpartition it may be a ``piece``: what is made of a piece of what it is made of.

        Each time has the same batches: up to a part of the memory is kept, and beyond that in a
        temporary file until the object is dropped. Where a function of the user is called, they are
        made once; else the file is written the second time, so that one pass needs none.
        """
        numbers = [number for first, end in ranges for number in range(first, end)]
        make = partial(self._results, numbers, columns, piece)
        return Replayed(
            self.schema_of(columns),
            make,
            self.options.kept_bytes,
            makes_equal=not _calls_function(self.plan),
        )

    def rows(
        self,
        subpartitions: Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        *,
        piece: Piece | None = None,
    ) -> Generator[Rows]:
        """Yield the rows of subpartitions, which ascend, in their order; or a piece of one."""
        wanted = range(self.num_subpartitions) if subpartitions is None else list(subpartitions)
        most = self.options.working_set_bytes
        for first, end in group_adjacent(self.weights(columns)[1], most, wanted):
            yield from self._in_order(range(first, end), columns, most, piece)

    def _in_order(
        self, numbers: range, columns: Sequence[str] | None, most: int, piece: Piece | None
    ) -> Generator[Rows]:
        """Yield the rows of adjacent subpartitions in order, made together if they fit."""
        if len(numbers) > 1 and isinstance(self._placed_by, Placement):
            batches: list[pa.RecordBatch] = []
            ids: list[Any] = []
            num_bytes = 0
            with closing(self._placed(numbers, columns)) as placed:
                for run in placed:
                    batches.append(run.batch)
                    ids.append(run.subpartitions)
                    num_bytes += run.batch.nbytes
                    if num_bytes > 2 * most:
                        break
            if num_bytes <= 2 * most:
                if batches:
                    numbered = np.concatenate(ids)
                    order = np.argsort(numbered, kind="stable")
                    batch = joined(batches)
                    del batches
                    yield Rows(take(batch, to_arrow(order)), numbered[order])
                return
            del batches, ids, run  # they are made again, each subpartition alone
        for number in numbers:
            with closing(self._results(range(number, number + 1), columns, piece)) as results:
                for batch in results:
                    yield Rows(batch, np.full(batch.num_rows, number, np.int32))

    def _placed(
        self,
        numbers: Sequence[int],
        columns: Sequence[str] | None,
        piece: Piece | None = None,
    ) -> Generator[Rows]:
        """Yield rows with their subpartitions."""
        placement = self._placed_by
        assert isinstance(placement, Placement)
        with closing(self._made(numbers, piece)) as made:
            for run in placement.rows(made, self.schema, self.plan.paths):
                assert isinstance(run, Rows)
                batch, ids = run.batch, run.subpartitions
                if self.filter is not None:
                    mask = self._mask(batch)
                    batch, ids = filtered(batch, to_arrow(mask)), ids[mask]
                yield Rows(batch if columns is None else batch.select(list(columns)), ids)

    def _results(
        self, numbers: Sequence[int], columns: Sequence[str] | None, piece: Piece | None
    ) -> Generator[pa.RecordBatch]:
        """Yield the rows of subpartitions; those of a function are checked to be where they say."""
        if self.plan.calls_function and isinstance(self._placed_by, Placement):
            with closing(self._placed(numbers, columns, piece)) as placed:
                yield from map(attrgetter("batch"), placed)
            return
        with closing(self._made(numbers, piece)) as made:
            for _, batch in made:
                rows = batch
                if self.filter is not None:
                    rows = filtered(batch, to_arrow(self._mask(batch)))
                yield rows if columns is None else rows.select(list(columns))

    def _made(self, numbers: Sequence[int], piece: Piece | None) -> Generator[Result]:
        possible = self.candidates()
        if possible is not None:
            numbers = sorted(set(numbers).intersection(possible))
            if not numbers:
                return
        pieces = () if piece is None else (piece,)
        with closing(self.plan.work(numbers, *pieces)) as results:
            for origin, batch in results:
                if batch.num_rows:
                    yield origin, conform(batch, self.schema)

    def _mask(self, batch: pa.RecordBatch) -> Any:  # noqa: ANN401
        assert self.filter is not None
        columns = [batch.column(name) for name in self.filter.columns]
        return self.filter.mask(columns, batch.num_rows)


def _weighed(plan: TaskPlan) -> list[Any]:
    """Return the inputs that decide how much a subpartition has."""
    return [each for each in plan.inputs if not is_broadcast(each)] or [plan.inputs[0]]


def _calls_function(plan: TaskPlan) -> bool:
    """Whether the rows of a plan, or those it is made of, are made by a function of the user."""
    inputs = [each.plan for each in plan.inputs if isinstance(each, Computed)]
    return plan.calls_function or any(map(_calls_function, inputs))
