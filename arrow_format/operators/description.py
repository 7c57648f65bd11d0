"""What is asked of shuffles: selections, joins, aggregations, calls of functions. Pure.

A description says nothing of where it runs. Bound to what a place decides, the time zone, what text
means in a filter, the memory, it is a :class:`~arrow_format.operators.task_plan.TaskPlan`, of which
threads, processes or Spark's tasks make the same rows.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from typing import TYPE_CHECKING, Any

from arrow_format.arrays.spark_schema_evolution import renamed_field
from arrow_format.arrays.stored_types import in_time_zone
from arrow_format.errors import OptionError, SchemaError
from arrow_format.filters.spark_rules import SPARK_DEFAULTS, SparkSettings, collations
from arrow_format.keys.co_partitioning import (
    check_co_partitioned,
    has_broadcast_rows,
    is_broadcast,
)
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.keys.sort_keys import check_sort_by
from arrow_format.operators.aggregate import GroupsOfPieces, aggregate_range
from arrow_format.operators.aggregate_functions import COMPARING, IN_ORDER, OF_ROWS
from arrow_format.operators.aggregation_plan import (
    AggregationPlan,
    plan_aggregation,
    refuse_partial_filter,
)
from arrow_format.operators.asof_join import join_asof, reached_by
from arrow_format.operators.asof_plan import AsOfPlan, plan_asof_join
from arrow_format.operators.computed import Computed
from arrow_format.operators.group_calls import (
    EachGroup,
    GroupsForm,
    OtherSide,
    TableCall,
    form_of,
)
from arrow_format.operators.groups import group_keys
from arrow_format.operators.inputs import InputSlice, bound, common_subpartitions
from arrow_format.operators.join import ThenOfGroup, join_range
from arrow_format.operators.join_plan import JoinPlan, plan_join
from arrow_format.operators.subpartition_calls import EachSubpartition
from arrow_format.operators.task_plan import CALL_BYTES, TaskPlan, WholeGroups
from arrow_format.options import check_flag
from arrow_format.read.chunk_plan import check_subpartitions
from arrow_format.read.subpartition_reader import select_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from arrow_format.filters.keys import Keys
    from arrow_format.operators.aggregation_plan import Aggregation
    from arrow_format.operators.asof_match import Direction
    from arrow_format.operators.asof_plan import TimeOrder
    from arrow_format.operators.group_calls import GroupCall
    from arrow_format.operators.inputs import Filter, Input
    from arrow_format.operators.join import Then
    from arrow_format.operators.placement import Result
    from arrow_format.operators.task_plan import Operand
    from arrow_format.options import ReadOptions
    from arrow_format.read.chunk_plan import Piece
    from arrow_format.read.shuffle import Shuffle

    Function = Callable[..., Iterable[pa.RecordBatch]]
    FrameCalls = Callable[[GroupsForm, "MappedGroups | Cogrouped", "RunSettings", Input], GroupCall]
    """Makes the calls of a function of pandas frames, which this package does not know."""

AGGREGATION_BYTES = 32 << 20
"""Memory of a worker that aggregates: measured, the decoded chunks, a block of rows and its groups
take as much as that where its share is the least."""


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
    joins_pieces: bool = False
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
        plan = self.bind(replace(at, joins_pieces=False))
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
            _check_visible(given, filter.columns)
            restricted = restricted.where(filter)
        if self.key_values is not None:
            restricted = restricted.where(restricted.bound_keys(self.key_values))
        columns = given.columns
        if self.columns is not None:
            _check_visible(given, self.columns)
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
        _check_visible(given, [self.latest_by])
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


def _check_visible(given: InputSlice, names: Sequence[str]) -> None:
    """Raise SchemaError for a column that an earlier selection left out."""
    left = given.names
    for name in names:
        if name not in left and name in given.rows.schema.names:
            msg = (
                f"column {name!r} of {given.rows.path} was left out by an earlier select; select "
                "it there too"
            )
            raise SchemaError(msg)


@dataclass(frozen=True, eq=False)
class Joined(Description):
    """The join of two descriptions that are co-partitioned."""

    left: Description
    right: Description
    on: str | Sequence[str | tuple[str, str]] | None = None
    how: str = "inner"
    suffixes: tuple[str, str] | None = None
    then: Then | None = None
    schema: pa.Schema | None = None
    """Of what ``then`` yields."""
    declared: object = None
    """The same, as Spark has it; None for what the Arrow schema says."""
    check: bool = False

    @property
    def sources(self) -> tuple[Description, ...]:
        """Both sides."""
        return self.left, self.right

    def bind(self, at: RunSettings) -> TaskPlan:
        """Return what tasks do: join the rows."""
        at = _checked(at, check=self.check)
        left, right = _by_one_number(self.sources, at)
        _check_placed(left, right)
        plan = plan_join(
            left.rows,
            right.rows,
            on=self.on,
            how=self.how,
            left_columns=left.columns,
            right_columns=right.columns,
            suffixes=self.suffixes,
        )
        for number, rows in enumerate((left.rows, right.rows)):
            _refuse_collated(rows, [pair[number] for pair in plan.keys], "on")
        _check_then(self.then, self.schema)
        return self._joining(left, right, plan, at.time_zone)

    def _joining(
        self, left: InputSlice, right: InputSlice, plan: JoinPlan, time_zone: str | None
    ) -> TaskPlan:
        """Return what tasks do; a side that is made has the columns that are joined alone."""
        numbers = _subpartitions_of_join(left, right, plan)
        left, right = left.pruned(plan.left_columns), right.pruned(plan.right_columns)
        join = partial(join_range, left.rows, right.rows, plan)
        joined = plan.schema(left.rows.schema, right.rows.schema)
        work, schema = _with_then(
            join, joined, self.then, self.schema, time_zone, [left.rows, right.rows]
        )
        in_right = plan.how == "right" or is_broadcast(left.rows)
        return TaskPlan(
            "join",
            (left.rows, right.rows),
            work,
            schema,
            subpartitions=numbers,
            candidates=plan.candidates(_candidates(left.rows), _candidates(right.rows)),
            source=right.rows if in_right else left.rows,
            names=partial(plan.name_of, of_right=in_right),
            columns=(plan.left_columns, plan.right_columns),
            details=plan,
            declared=self.declared if self.then is not None else None,
            calls_function=self.then is not None,
            cuts=plan.cuts,
            why_whole=plan.why_whole,
            pruned=partial(self._pruned, left, right, plan) if self.then is None else None,
        )

    def _pruned(
        self, left: InputSlice, right: InputSlice, plan: JoinPlan, names: Sequence[str]
    ) -> TaskPlan:
        columns = tuple(column for column in plan.columns if column.name in names)
        return self._joining(left, right, replace(plan, columns=columns), None)


@dataclass(frozen=True, eq=False)
class JoinedAsOf(Description):
    """Each row of a description, with what others of its key have as of its time."""

    left: Description
    rights: tuple[Description, ...]
    orders: tuple[TimeOrder, ...]
    on: str | Sequence[str | tuple[str, str]] | None = None
    direction: Direction = "backward"
    allow_exact_matches: bool = True
    suffixes: tuple[str, ...] | None = None
    then: Then | None = None
    schema: pa.Schema | None = None
    """Of what ``then`` yields."""
    declared: object = None
    """The same, as Spark has it; None for what the Arrow schema says."""
    check: bool = False

    @property
    def sources(self) -> tuple[Description, ...]:
        """The left, and all rights."""
        return self.left, *self.rights

    def bind(self, at: RunSettings) -> TaskPlan:
        """Return what tasks do: join the rows."""
        at = _checked(at, check=self.check)
        given = _by_one_number(self.sources, at)
        _check_placed(*given)
        left, *rights = given
        plan = plan_asof_join(
            left.rows,
            [right.rows for right in rights],
            self.orders,
            on=self.on,
            direction=self.direction,
            allow_exact_matches=self.allow_exact_matches,
            left_columns=left.columns,
            right_columns=[right.columns for right in rights],
            suffixes=self.suffixes,
        )
        for right, side in zip(rights, plan.sides, strict=True):
            _refuse_collated(left.rows, [a for a, _ in side.keys], "on")
            _refuse_collated(right.rows, [b for _, b in side.keys], "on")
            _refuse_collated(right.rows, [] if side.ties is None else [side.ties], "ties")
        _check_then(self.then, self.schema)
        return self._joining(given, plan, at.time_zone)

    def _joining(
        self, given: Sequence[InputSlice], plan: AsOfPlan, time_zone: str | None
    ) -> TaskPlan:
        """Return what tasks do; a right of which no column is asked for is not read."""
        numbers = common_subpartitions(given)
        left, *rights = given
        for right in rights:
            if right.subpartitions is not None and left.subpartitions is None:
                msg = (
                    f"subpartitions: {right.rows.path} is restricted to some, and an as-of join "
                    f"keeps all rows of {left.rows.path}; select the same subpartitions of both"
                )
                raise OptionError(msg)
        if self.then is None:
            used = [i for i, side in enumerate(plan.sides) if side.columns]
            rights = [rights[i] for i in used]
            plan = replace(plan, sides=tuple(plan.sides[i] for i in used))
        left = left.pruned(plan.left_columns)
        columns = [side.read_columns for side in plan.sides]
        rights = [right.pruned(names) for right, names in zip(rights, columns, strict=True)]
        sides = reached_by(left.rows, [right.rows for right in rights], plan)
        join = partial(join_asof, left.rows, sides, plan)
        joined = plan.schema(left.rows.schema, [rows.schema for rows in sides])
        work, schema = _with_then(
            join, joined, self.then, self.schema, time_zone, [left.rows, *sides]
        )
        return TaskPlan(
            "as-of join",
            (left.rows, *sides),
            work,
            schema,
            subpartitions=numbers,
            candidates=_candidates(left.rows),
            source=left.rows,
            names=plan.name_of,
            columns=(plan.left_columns, *columns),
            details=plan,
            declared=self.declared if self.then is not None else None,
            calls_function=self.then is not None,
            cuts=(0,),
            why_whole=(
                "of an as-of join the left is cut, and has little there, or rows of several sorted "
                "runs, which are put in order together"
            ),
            in_order=True,
            pruned=partial(self._pruned, given, plan) if self.then is None else None,
        )

    def _pruned(
        self, given: Sequence[InputSlice], plan: AsOfPlan, names: Sequence[str]
    ) -> TaskPlan:
        return self._joining(given, plan.pruned(names), None)


def _check_then(then: Then | None, schema: pa.Schema | None) -> None:
    if (then is None) != (schema is None):
        msg = "then and schema: expected both or neither; schema is that of what then yields"
        raise OptionError(msg)


def _with_then(
    join: Callable[..., Generator[pa.RecordBatch]],
    joined: pa.Schema,
    then: Then | None,
    schema: pa.Schema | None,
    time_zone: str | None,
    inputs: Sequence[Input],
) -> tuple[WholeGroups, pa.Schema]:
    """Return the work of a join, with the function that reads its rows if there is one."""
    if then is None or schema is None:
        return WholeGroups(join), joined
    if time_zone is not None:
        joined = in_time_zone(joined, time_zone)
    paths = " and ".join(rows.path for rows in inputs)
    return WholeGroups(ThenOfGroup(join, joined, then, schema, paths)), schema


def _subpartitions_of_join(
    left: InputSlice, right: InputSlice, plan: JoinPlan
) -> Sequence[int] | None:
    """Return those to join; raises OptionError where one side leaves out rows of the other."""
    numbers = common_subpartitions([left, right])
    for side, other, is_left in ((left, right, True), (right, left, False)):
        if (
            side.subpartitions is not None
            and other.subpartitions is None
            and plan.keeps(left=not is_left)
            and not is_broadcast(other.rows)
        ):
            msg = (
                f"subpartitions: {side.rows.path} is restricted to some, and a {plan.how} join "
                f"keeps all rows of {other.rows.path}; select the same subpartitions of both"
            )
            raise OptionError(msg)
    return numbers


def _candidates(rows: Input) -> list[int] | None:
    """Return the subpartitions that can have rows; a broadcast shuffle has them in all."""
    return None if is_broadcast(rows) else rows.candidates()


@dataclass(frozen=True, eq=False)
class Aggregated(Description):
    """Groups of rows with equal keys, and values of each."""

    source: Description
    by: str | Sequence[str]
    aggregations: Sequence[Aggregation] | Mapping[str, Aggregation | str]

    least_bytes = AGGREGATION_BYTES

    @property
    def sources(self) -> tuple[Description, ...]:
        """Whose rows are aggregated."""
        return (self.source,)

    def bind(self, at: RunSettings) -> TaskPlan:
        """Return what tasks do: aggregate the rows."""
        given = self.source.as_input(at)
        _check_placed(given)
        plan = plan_aggregation(given.rows, self.by, self.aggregations)
        _check_visible(given, plan.columns)
        _refuse_collated(given.rows, plan.keys, "by")
        for planned in plan.aggregations:
            if planned.function in COMPARING:
                _refuse_collated(given.rows, planned.columns, f"aggregation {planned}")
        refuse_partial_filter(given.rows)
        given = given.pruned(plan.columns)
        why_whole = "a group is made by one task where results are written, and in Spark"
        if plan.whole_groups:
            why_whole = f"{plan.whole_groups[0]} needs the rows of a group together"
        return TaskPlan(
            "aggregation",
            (given.rows,),
            WholeGroups(partial(aggregate_range, given.rows, plan)),
            plan.schema,
            subpartitions=given.subpartitions,
            candidates=given.rows.candidates(),
            columns=(plan.columns,),
            details=plan,
            cuts=(0,) if at.joins_pieces and not plan.whole_groups else (),
            of_pieces=GroupsOfPieces(plan),
            why_whole=why_whole,
            in_order=any(each.function in IN_ORDER for each in plan.aggregations),
        )


@dataclass(frozen=True, eq=False)
class MappedSubpartitions(Description):
    """What a function yields for each subpartition of one description or several."""

    inputs: tuple[Description, ...]
    function: Function
    schema: pa.Schema
    declared: object = None
    """The schema as Spark has it; None for what the Arrow schema says."""

    is_call = True

    @property
    def sources(self) -> tuple[Description, ...]:
        """Whose rows the function reads."""
        return self.inputs

    def bind(self, at: RunSettings) -> TaskPlan:
        """Return what tasks do: call the function."""
        if not callable(self.function):
            kind = type(self.function).__name__
            msg = f"function is {kind}: expected a callable(subpartition, *readers)"
            raise OptionError(msg)
        if at.num_subpartitions is not None:
            paths = ", ".join(dict.fromkeys(each.path for each in self.shuffles))
            msg = (
                f"map_subpartitions of {paths} calls its function with the number of each "
                f"subpartition, and is read by {at.num_subpartitions} of them only once it is "
                "written: .write(path), and go on with open_shuffle(path)"
            )
            raise OptionError(msg)
        given = _by_one_number(self.inputs, at)
        if len(given) > 1:
            _check_placed(*given)
        check_co_partitioned([each.rows for each in given])
        given = tuple(each.pruned(each.names) for each in given)
        return TaskPlan(
            "map_subpartitions",
            tuple(each.rows for each in given),
            EachSubpartition(given, self.function, self.schema, at.time_zone),
            self.schema,
            subpartitions=common_subpartitions(given),
            columns=tuple(each.names for each in given),
            declared=self.declared,
            calls_function=True,
            why_whole="its function takes the rows of a subpartition together",
            subpartition_bytes=CALL_BYTES,
        )


@dataclass(frozen=True, eq=False)
class MappedGroups(Description):
    """What a function returns for each group of rows with equal partition keys."""

    source: Description
    function: Callable[..., Any]
    schema: pa.Schema
    declared: object = None
    """The schema as Spark has it; None for what the Arrow schema says."""
    sort_by: Sequence[str | tuple[str, str]] | str | None = ()
    check: bool = False
    frame_calls: FrameCalls | None = None
    since: str | None = None
    """``last`` for the groups alone that changed since a result was made, ``all`` for all of them;
    None where the result does not matter."""
    name: str = ""
    """Of the function in the log of the result, where that is asked."""
    keeps_keys: bool = False
    """Whether each row that the function returns must have the key of its group."""

    is_call = True

    @property
    def sources(self) -> tuple[Description, ...]:
        """Whose rows are grouped."""
        return (self.source,)

    def check_runs(self) -> None:
        """Raise OptionError where the groups are those that a result needs."""
        if self.since is not None:
            msg = (
                f"since={self.since!r}: which groups are made, the result says; write it: "
                '.write(path, mode="replace_groups")'
            )
            raise OptionError(msg)

    def bind(self, at: RunSettings) -> TaskPlan:
        """Return what tasks do: call the function."""
        given = self.source.as_input(_checked(at, check=self.check))
        _check_placed(given)
        rows, keys, asked = given.rows, group_keys(given.rows), form_of(self.function)
        if not given.names:
            msg = "columns is empty: a frame without columns has no rows; name one"
            raise OptionError(msg)
        order = check_sort_by(rows.schema, self.sort_by)
        _refuse_collated(rows, [name for name, _ in order], "sort_by")
        form = GroupsForm(
            path=rows.path,
            keys=keys,
            columns=tuple(given.names),
            takes_key=asked.takes_key,
            takes_frames=asked.takes == "frames",
            schema=self.schema,
        )
        if asked.takes == "table":
            call: GroupCall = TableCall(form, self.function)
        elif self.frame_calls is None:
            msg = "function takes a frame of pandas: expected one that takes a pyarrow.Table"
            raise OptionError(msg)
        else:
            call = self.frame_calls(form, self, at, rows)
        names = tuple(dict.fromkeys([*given.names, *keys, *(name for name, _ in order)]))
        rows = given.pruned(names).rows
        return TaskPlan(
            "map_groups",
            (rows,),
            EachGroup(rows, names, order, call, at.time_zone, self.keeps_keys),
            self.schema,
            subpartitions=given.subpartitions,
            candidates=rows.candidates(),
            columns=(names,),
            declared=self.declared,
            calls_function=True,
            why_whole="its function takes the rows of a key together",
        )


@dataclass(frozen=True, eq=False)
class Cogrouped(Description):
    """What a function returns for each key, of the rows that two descriptions have of it."""

    left: Description
    right: Description
    function: Callable[..., Any]
    schema: pa.Schema
    declared: object = None
    """The schema as Spark has it; None for what the Arrow schema says."""
    check: bool = False
    frame_calls: FrameCalls | None = None

    is_call = True

    @property
    def sources(self) -> tuple[Description, ...]:
        """Both sides."""
        return self.left, self.right

    def bind(self, at: RunSettings) -> TaskPlan:
        """Return what tasks do: call the function."""
        at = _checked(at, check=self.check)
        left, right = _by_one_number(self.sources, at)
        _check_placed(left, right)
        sides, asked = (left.rows, right.rows), form_of(self.function, 2)
        keys = [group_keys(rows) for rows in sides]
        check_co_partitioned(sides)
        for mine, theirs in zip(*keys, strict=True):
            types = left.rows.schema.field(mine).type, right.rows.schema.field(theirs).type
            if types[0] != types[1]:
                msg = (
                    f"cogroup: {mine!r} of {left.rows.path} is {types[0]}, {theirs!r} of "
                    f"{right.rows.path} is {types[1]}: cast one of them before it is written"
                )
                raise SchemaError(msg)
        if not (left.names and right.names):
            msg = "columns is empty: a frame without columns has no rows; name one"
            raise OptionError(msg)
        form = GroupsForm(
            path=f"{left.rows.path} and {right.rows.path}",
            keys=keys[0],
            columns=tuple(left.names),
            takes_key=asked.takes_key,
            takes_frames=asked.takes == "frames",
            schema=self.schema,
            other_columns=tuple(right.names),
        )
        if asked.takes == "table":
            call: GroupCall = TableCall(form, self.function)
        elif self.frame_calls is None or asked.takes == "frames":
            msg = "function of a cogroup: expected one that takes two frames or two pyarrow.Tables"
            raise OptionError(msg)
        else:
            call = self.frame_calls(form, self, at, left.rows)
        names = [
            tuple(dict.fromkeys([*side.names, *of]))
            for side, of in zip((left, right), keys, strict=True)
        ]
        numbers = common_subpartitions([left, right])
        left, right = left.pruned(names[0]), right.pruned(names[1])
        found = [side.rows.candidates() for side in (left, right)]
        known = [each for each in found if each is not None]
        other = OtherSide(right.rows, names[1], keys[1])
        return TaskPlan(
            "cogroup",
            (left.rows, right.rows),
            EachGroup(left.rows, names[0], (), call, at.time_zone, other=other),
            self.schema,
            subpartitions=numbers,
            candidates=sorted({*known[0], *known[1]}) if len(known) == 2 else None,
            columns=(names[0], names[1]),
            declared=self.declared,
            calls_function=True,
            why_whole="its function takes the rows of a key together",
        )


def _refuse_collated(rows: Input, columns: Iterable[str], what: str) -> None:
    """Raise SchemaError for columns of which Spark compares something else than bytes."""
    for path, collation in collations(rows.spark_schema, columns).items():
        msg = (
            f"{what}: column {path!r} has the collation {collation}, and only bytes are compared "
            "here; write its bytes (CAST(c AS STRING)), or lower(...) of those, as a column of "
            "their own, or go on in Spark with the DataFrame of to_spark()"
        )
        raise SchemaError(msg)


def _checked(at: RunSettings, *, check: bool) -> RunSettings:
    """Return settings by which rows are checked, if that is asked for; raises OptionError."""
    check_flag("check", check)
    return replace(at, checks=at.checks or check)


def _by_one_number(sources: Sequence[Description], at: RunSettings) -> tuple[InputSlice, ...]:
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
            f"subpartitions: {have}, so they could be read together as {n}, by {n} "
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


def _check_placed(*inputs: InputSlice) -> None:
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
