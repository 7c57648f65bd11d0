"""What is asked of the rows of each key or subpartition: aggregations, calls of functions. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from arrow_format.errors import OptionError, SchemaError
from arrow_format.keys.co_partitioning import check_co_partitioned
from arrow_format.keys.sort_keys import check_sort_by
from arrow_format.operators.aggregate import GroupsOfPieces, aggregate_range
from arrow_format.operators.aggregate_functions import COMPARING, IN_ORDER
from arrow_format.operators.aggregation_plan import plan_aggregation, refuse_partial_filter
from arrow_format.operators.description import (
    Description,
    RunSettings,
    by_one_number,
    check_placed,
    check_visible,
    checked,
    refuse_collated,
)
from arrow_format.operators.group_calls import (
    EachGroup,
    GroupsForm,
    OtherSide,
    TableCall,
    form_of,
)
from arrow_format.operators.groups import group_keys
from arrow_format.operators.inputs import common_subpartitions
from arrow_format.operators.subpartition_calls import EachSubpartition
from arrow_format.operators.task_plan import CALL_BYTES, TaskPlan, WholeGroups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from arrow_format.operators.aggregation_plan import Aggregation
    from arrow_format.operators.group_calls import GroupCall
    from arrow_format.operators.inputs import Input

    Function = Callable[..., Iterable[pa.RecordBatch]]
    FrameCalls = Callable[[GroupsForm, "MappedGroups | Cogrouped", "RunSettings", Input], GroupCall]
    """Makes the calls of a function of pandas frames, which this package does not know."""

AGGREGATION_BYTES = 32 << 20
"""Memory of a worker that aggregates: measured, the decoded chunks, a block of rows and its groups
take as much as that where its share is the least."""


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
        check_placed(given)
        plan = plan_aggregation(given.rows, self.by, self.aggregations)
        check_visible(given, plan.columns)
        refuse_collated(given.rows, plan.keys, "by")
        for planned in plan.aggregations:
            if planned.function in COMPARING:
                refuse_collated(given.rows, planned.columns, f"aggregation {planned}")
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
            cuts=(0,) if at.merges_pieces and not plan.whole_groups else (),
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
        given = by_one_number(self.inputs, at)
        if len(given) > 1:
            check_placed(*given)
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
        given = self.source.as_input(checked(at, check=self.check))
        check_placed(given)
        rows, keys, asked = given.rows, group_keys(given.rows), form_of(self.function)
        if not given.names:
            msg = "columns is empty: a frame without columns has no rows; name one"
            raise OptionError(msg)
        order = check_sort_by(rows.schema, self.sort_by)
        refuse_collated(rows, [name for name, _ in order], "sort_by")
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
        at = checked(at, check=self.check)
        left, right = by_one_number(self.sources, at)
        check_placed(left, right)
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
