"""What is asked of shuffles, whatever it is; and selections of rows. Pure.

A description says nothing of where it runs. Bound to what a place decides, the time zone, what text
means in a filter, the memory, it is a :class:`~arrow_format.operators.task_plan.TaskPlan`, of which
threads, processes or Spark's tasks make the same rows. Others are in ``described_joins`` and
``described_calls``.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING, Any

from arrow_format.arrays.spark_schema_evolution import renamed_field
from arrow_format.errors import OptionError, SchemaError
from arrow_format.filters.spark_rules import SPARK_DEFAULTS, SparkSettings, collations
from arrow_format.keys.co_partitioning import has_broadcast_rows, is_broadcast
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.operators.aggregate_functions import OF_ROWS
from arrow_format.operators.aggregation_plan import AggregationPlan
from arrow_format.operators.asof_plan import AsOfPlan
from arrow_format.operators.computed import Computed
from arrow_format.operators.inputs import InputSlice, bound
from arrow_format.operators.join_plan import JoinPlan
from arrow_format.operators.task_plan import TaskPlan
from arrow_format.options import check_flag
from arrow_format.read.chunk_plan import check_subpartitions
from arrow_format.read.subpartition_reader import select_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from arrow_format.filters.keys import Keys
    from arrow_format.operators.inputs import Filter, Input
    from arrow_format.operators.placement import Result
    from arrow_format.operators.task_plan import Operand
    from arrow_format.options import ReadOptions
    from arrow_format.read.chunk_plan import Piece
    from arrow_format.read.shuffle import Shuffle


@dataclass(frozen=True)
class RunSettings:
    """What the place where a description runs decides of it."""

    time_zone: str | None = None
    """Of timestamps that functions read; as they are stored when None."""
    sql: SparkSettings = SPARK_DEFAULTS
    """What filters that are text mean."""
    frames: object = None
    """How rows become frames of pandas; the defaults of the installed Spark when None."""
    memory: ReadOptions | None = None
    """Of each input; that which each shuffle was opened with when None."""
    checks: bool = False
    """Whether each row that is read is checked to be where the partitioner says."""
    num_tasks: Callable[[], int] | None = None
    """Returns how many tasks run at a time; None where no one has said where it runs."""
    merges_pieces: bool = False
    """Whether results of the pieces of a subpartition are made one where they come together."""
    num_subpartitions: int | None = None
    """By which shuffles are read, a divisor of what each has; by their own number when None."""


ANY_PLACE = RunSettings(sql=SparkSettings("UTC"))
"""What a description is checked with before anyone says where it runs."""


class Description(ABC):
    """What is asked of one shuffle or several."""

    least_bytes = 0
    """Memory that a worker needs for each input; 0 for what reading needs."""

    is_call = False
    """Whether it calls a function of the user for rows; what that costs, no bytes tell."""

    @property
    @abstractmethod
    def sources(self) -> tuple[Description, ...]:
        """What it is made of."""

    @abstractmethod
    def bind(self, at: RunSettings) -> TaskPlan:
        """Return what tasks do; raises OptionError and SchemaError where it does not fit."""

    @property
    def num_inputs(self) -> int:
        """How many inputs have a share of the memory, those of sources included."""
        return sum(source.num_inputs + source.is_computed for source in self.sources)

    @property
    def is_computed(self) -> bool:
        """Whether its rows are made, and not read of a shuffle."""
        return True

    @property
    def shuffles(self) -> Iterator[Shuffle]:
        """The shuffles that it reads, from left to right."""
        for source in self.sources:
            yield from source.shuffles

    @property
    def filters(self) -> Iterator[Filter]:
        """The conditions in it."""
        for source in self.sources:
            yield from source.filters

    @property
    def calls_function(self) -> bool:
        """Whether it, or one of its sources, is a call."""
        return self.is_call or any(source.calls_function for source in self.sources)

    @property
    def most_bytes(self) -> int:
        """The most of :attr:`least_bytes`, of it and its sources."""
        return max([self.least_bytes, *(source.most_bytes for source in self.sources)])

    def check_runs(self) -> None:  # noqa: B027  most are of use anywhere
        """Raise OptionError where it is only of use to a result that is written."""

    def as_input(self, at: RunSettings) -> InputSlice:
        """Return its rows as those that another reads; raises as :meth:`bind`."""
        self.check_runs()
        plan = self.bind(replace(at, merges_pieces=False))
        options = plan.inputs[0].options if at.memory is None else at.memory
        return InputSlice(Computed(plan, options, spark_fields(plan)), None, plan.subpartitions)


@dataclass(frozen=True, eq=False)
class Selected(Description):
    """Some rows and columns of a shuffle, or of another description."""

    source: Shuffle | Description
    columns: tuple[str, ...] | None = None
    filter: Filter = None
    key_values: Keys | None = None
    subpartitions: tuple[int, ...] | None = None
    latest_by: str | None = None
    """A column, by which only the last row of each key is read, chosen before the filter."""

    @property
    def sources(self) -> tuple[Description, ...]:
        """The description that it restricts; none where that is a shuffle."""
        return (self.source,) if isinstance(self.source, Description) else ()

    @property
    def num_inputs(self) -> int:
        """As of what it restricts."""
        return self.source.num_inputs if isinstance(self.source, Description) else 1

    @property
    def is_computed(self) -> bool:
        """As of what it restricts."""
        return isinstance(self.source, Description) and self.source.is_computed

    @property
    def shuffles(self) -> Iterator[Shuffle]:
        """The shuffles that it reads."""
        if isinstance(self.source, Description):
            yield from self.source.shuffles
        else:
            yield self.source

    @property
    def filters(self) -> Iterator[Filter]:
        """The conditions in it."""
        yield from super().filters
        yield self.filter

    def as_input(self, at: RunSettings) -> InputSlice:
        """Return the rows; raises OptionError and SchemaError where they do not fit."""
        if isinstance(self.source, Description):
            given = self.source.as_input(at)
        else:
            rows = self.source if at.memory is None else self.source.with_options(at.memory)
            if at.num_subpartitions is not None and not is_broadcast(rows):
                rows = rows.divided(at.num_subpartitions)
            given = InputSlice(rows.checking() if at.checks else rows, None, None)
        restricted = self._latest(given)
        if self.filter is not None:
            # Of this filter alone: an earlier select may leave out what its own filter is of.
            filter = bound(given.rows, self.filter, at.sql)
            check_visible(given, filter.columns)
            restricted = restricted.where(filter)
        if self.key_values is not None:
            restricted = restricted.where(restricted.bound_keys(self.key_values))
        columns = given.columns
        if self.columns is not None:
            check_visible(given, self.columns)
            columns = self.columns
        select_columns(restricted.schema, columns)
        numbers = given.subpartitions
        if self.subpartitions is not None:
            asked = check_subpartitions(self.subpartitions, given.rows.num_subpartitions)
            if not asked:
                msg = "subpartitions is empty: expected at least one"
                raise OptionError(msg)
            numbers = asked if numbers is None else sorted({*asked} & {*numbers})
        return InputSlice(restricted, columns, numbers)

    def _latest(self, given: InputSlice) -> Input:
        """Return rows, of each key the last if that is asked for; raises OptionError."""
        if self.latest_by is None:
            return given.rows
        if isinstance(given.rows, Computed):
            msg = (
                f"latest_by={self.latest_by!r}: {given.rows.path} makes rows, in no order of "
                "writing; ask for it in a select of the shuffle, before"
            )
            raise OptionError(msg)
        check_visible(given, [self.latest_by])
        return given.rows.latest_by(self.latest_by)

    def bind(self, at: RunSettings) -> TaskPlan:
        """Return what tasks do: read the rows, in order."""
        given = self.as_input(at)
        given = given.pruned(given.names)
        schema = given.rows.schema_of(given.columns)
        return TaskPlan(
            "select",
            (given.rows,),
            SelectedRows(given.rows, given.columns),
            schema,
            subpartitions=given.subpartitions,
            candidates=None if is_broadcast(given.rows) else given.rows.candidates(),
            columns=(given.names,),
            cuts=(0,),
            in_order=True,
        )


@dataclass(frozen=True)
class SelectedRows:
    """Reads subpartitions in order."""

    rows: Input
    columns: Sequence[str] | None

    def __call__(
        self, subpartitions: Sequence[int], piece: Piece | None = None
    ) -> Generator[Result]:
        """Yield the rows, each with its subpartition; or those of a piece of one."""
        runs = self.rows.rows(subpartitions, self.columns, piece=piece)
        for run in runs:
            yield run.subpartitions, run.batch
            del run  # before the next is read


def check_visible(given: InputSlice, names: Sequence[str]) -> None:
    """Raise SchemaError for a column that an earlier selection left out."""
    left = given.names
    for name in names:
        if name not in left and name in given.rows.schema.names:
            msg = (
                f"column {name!r} of {given.rows.path} was left out by an earlier select; select "
                "it there too"
            )
            raise SchemaError(msg)


def refuse_collated(rows: Input, columns: Iterable[str], what: str) -> None:
    """Raise SchemaError for columns of which Spark compares something else than bytes."""
    for path, collation in collations(rows.spark_schema, columns).items():
        msg = (
            f"{what}: column {path!r} has the collation {collation}, and only bytes are compared "
            "here; write its bytes (CAST(c AS STRING)), or lower(...) of those, as a column of "
            "their own, or go on in Spark with the DataFrame of to_spark()"
        )
        raise SchemaError(msg)


def checked(at: RunSettings, *, check: bool) -> RunSettings:
    """Return settings by which rows are checked, if that is asked for; raises OptionError."""
    check_flag("check", check)
    return replace(at, checks=at.checks or check)


def by_one_number(sources: Sequence[Description], at: RunSettings) -> tuple[InputSlice, ...]:
    """Return the rows of sources, read by one number of subpartitions as far as that is possible.

    Of hashed shuffles that is the largest which divides all: ``pmod(hash, n)`` modulo a divisor of
    n is the hash modulo that. Raises OptionError where it would leave tasks without work, or where
    numbers of subpartitions are named that it changes.
    """
    given = tuple(source.as_input(at) for source in sources)
    some = [each for each in given if not is_broadcast(each.rows)]
    numbers = [each.rows.num_subpartitions for each in some]
    are_hashed = all(
        isinstance(each.rows.partitioner, HashPartitioner) and not has_broadcast_rows(each.rows)
        for each in some
    )
    if len({*numbers}) < 2 or not are_hashed:
        return given
    n, least = gcd(*numbers), min(numbers)
    have = ", ".join(f"{each.rows.path} has {each.rows.num_subpartitions}" for each in some)
    for each in given:
        if each.subpartitions is not None:
            msg = (
                f"subpartitions: those of {each.rows.path} are selected by its own numbers, and "
                f"it is read together with others by {n} ({have}); select them of the result, "
                f".select(subpartitions=...), which has {n}"
            )
            raise OptionError(msg)
    if n < least and at.num_tasks is not None and n < (at_a_time := at.num_tasks()):
        msg = (
            f"numbers of subpartitions: {have}, so they could be read together as {n}, by {n} "
            f"{'task' if n == 1 else 'tasks'} where {min(least, at_a_time)} run at a time; give "
            f"one of them the number of the other, .rescale({least}), and merge it"
        )
        raise OptionError(msg)
    divided = replace(at, num_subpartitions=n)
    return tuple(
        source.as_input(divided)
        if not is_broadcast(each.rows) and each.rows.num_subpartitions > n
        else each
        for source, each in zip(sources, given, strict=True)
    )


def check_placed(*inputs: InputSlice) -> None:
    """Raise OptionError where the columns of a computed input do not say where its rows are."""
    for given in inputs:
        if isinstance(given.rows, Computed):
            given.rows.check_placed()


def spark_fields(plan: TaskPlan) -> dict[str, dict[str, Any]]:
    """Return what Spark knows of columns of a plan that are more than their Arrow type, by name.

    They are those of its inputs, or those that the user declared in Spark's words.
    """
    if plan.calls_function:
        declared: Any = plan.declared
        return {} if declared is None else {f["name"]: f for f in declared.jsonValue()["fields"]}
    known = [_fields_of(rows) for rows in plan.inputs]
    found: dict[str, dict[str, Any]] = {}
    for field in plan.schema:
        if isinstance(plan.details, JoinPlan | AsOfPlan):
            number, name = next(plan.details.sources_of(field.name))
            given = known[number].get(name)
        else:
            given = known[0].get(_value_of(plan.details, field.name) or "")
        if given is not None:
            found[field.name] = {**renamed_field(given, field.name), "nullable": field.nullable}
    return found


def _value_of(details: object, name: str) -> str | None:
    """Return the column of which a result has values; None where it has others."""
    if not isinstance(details, AggregationPlan) or name in details.keys:
        return name
    planned = next(each for each in details.aggregations if each.name == name)
    return planned.columns[0] if planned.function in OF_ROWS else None


def _fields_of(rows: Operand) -> dict[str, dict[str, Any]]:
    text = rows.spark_schema
    return {} if text is None else {field["name"]: field for field in json.loads(text)["fields"]}
