"""Joins as they are asked for: of two descriptions by keys, or of labels as of their time. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from arrow_format.arrays.stored_types import in_time_zone
from arrow_format.errors import OptionError
from arrow_format.keys.co_partitioning import is_broadcast
from arrow_format.operators.asof_join import join_asof, reached_by
from arrow_format.operators.asof_plan import AsOfPlan, plan_asof_join
from arrow_format.operators.description import (
    Description,
    RunSettings,
    by_one_number,
    check_placed,
    checked,
    refuse_collated,
)
from arrow_format.operators.inputs import InputSlice, common_subpartitions
from arrow_format.operators.join import ThenOfGroup, join_range
from arrow_format.operators.join_plan import JoinPlan, plan_join
from arrow_format.operators.task_plan import TaskPlan, WholeGroups

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    import pyarrow as pa

    from arrow_format.operators.asof_match import Direction
    from arrow_format.operators.asof_plan import TimeRequest
    from arrow_format.operators.inputs import Input
    from arrow_format.operators.join import Then


@dataclass(frozen=True, eq=False, kw_only=True)
class _Join(Description):
    """What each join has: the columns that are equal, and a function that may read its rows."""

    on: str | Sequence[str | tuple[str, str]] | None = None
    suffixes: tuple[str, ...] | None = None
    then: Then | None = None
    schema: pa.Schema | None = None
    """Of what ``then`` yields."""
    declared: object = None
    """The same, as Spark has it; None for what the Arrow schema says."""
    check: bool = False

    def _inputs(self, at: RunSettings) -> tuple[InputSlice, ...]:
        """Return the rows of all sides; raises OptionError where they do not fit together."""
        if (self.then is None) != (self.schema is None):
            msg = "then and schema: expected both or neither; schema is that of what then yields"
            raise OptionError(msg)
        given = by_one_number(self.sources, checked(at, check=self.check))
        check_placed(*given)
        return given

    def _with_then(
        self,
        join: Callable[..., Generator[pa.RecordBatch]],
        joined: pa.Schema,
        inputs: Sequence[Input],
        time_zone: str | None,
    ) -> tuple[WholeGroups, pa.Schema]:
        """Return the work, with the function that reads the joined rows if there is one."""
        if self.then is None or self.schema is None:
            return WholeGroups(join), joined
        if time_zone is not None:
            joined = in_time_zone(joined, time_zone)
        paths = " and ".join(rows.path for rows in inputs)
        return WholeGroups(ThenOfGroup(join, joined, self.then, self.schema, paths)), self.schema


@dataclass(frozen=True, eq=False)
class Joined(_Join):
    """The join of two descriptions that are co-partitioned."""

    left: Description
    right: Description
    how: str = "inner"

    @property
    def sources(self) -> tuple[Description, ...]:
        """Both sides."""
        return self.left, self.right

    def bind(self, at: RunSettings) -> TaskPlan:
        """Return what tasks do: join the rows."""
        left, right = self._inputs(at)
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
            refuse_collated(rows, [pair[number] for pair in plan.keys], "on")
        return self._joining(left, right, plan, at.time_zone)

    def _joining(
        self, left: InputSlice, right: InputSlice, plan: JoinPlan, time_zone: str | None
    ) -> TaskPlan:
        """Return what tasks do; a side that is made has the columns that are joined alone."""
        numbers = _subpartitions_of_join(left, right, plan)
        left, right = left.pruned(plan.left_columns), right.pruned(plan.right_columns)
        join = partial(join_range, left.rows, right.rows, plan)
        joined = plan.schema(left.rows.schema, right.rows.schema)
        work, schema = self._with_then(join, joined, [left.rows, right.rows], time_zone)
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
class JoinedAsOf(_Join):
    """Each row of a description, with what others of its key have as of its time."""

    left: Description
    rights: tuple[Description, ...]
    requests: tuple[TimeRequest, ...]
    direction: Direction = "backward"
    allow_exact_matches: bool = True

    @property
    def sources(self) -> tuple[Description, ...]:
        """The left, and all rights."""
        return self.left, *self.rights

    def bind(self, at: RunSettings) -> TaskPlan:
        """Return what tasks do: join the rows."""
        given = self._inputs(at)
        left, *rights = given
        plan = plan_asof_join(
            left.rows,
            [right.rows for right in rights],
            self.requests,
            on=self.on,
            direction=self.direction,
            allow_exact_matches=self.allow_exact_matches,
            left_columns=left.columns,
            right_columns=[right.columns for right in rights],
            suffixes=self.suffixes,
        )
        for right, side in zip(rights, plan.sides, strict=True):
            refuse_collated(left.rows, [a for a, _ in side.keys], "on")
            refuse_collated(right.rows, [b for _, b in side.keys], "on")
            refuse_collated(right.rows, [] if side.ties is None else [side.ties], "ties")
        return self._joining(given, plan, at.time_zone)

    def _joining(
        self, given: Sequence[InputSlice], plan: AsOfPlan, time_zone: str | None
    ) -> TaskPlan:
        """Return what tasks do; a right of which no column is asked for is not read."""
        left, *rights = given
        pruned = partial(self._pruned, given, plan) if self.then is None else None
        if self.then is None:
            used = [i for i, side in enumerate(plan.sides) if side.columns]
            rights = [rights[i] for i in used]
            plan = replace(plan, sides=tuple(plan.sides[i] for i in used))
        numbers = common_subpartitions([left, *rights])
        for right in rights:
            _refuse_restricted(right, left, "an as-of")
        left = left.pruned(plan.left_columns)
        columns = [side.read_columns for side in plan.sides]
        rights = [right.pruned(names) for right, names in zip(rights, columns, strict=True)]
        sides = reached_by(left.rows, [right.rows for right in rights], plan)
        join = partial(join_asof, left.rows, sides, plan)
        joined = plan.schema(left.rows.schema, [rows.schema for rows in sides])
        work, schema = self._with_then(join, joined, [left.rows, *sides], time_zone)
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
            pruned=pruned,
        )

    def _pruned(
        self, given: Sequence[InputSlice], plan: AsOfPlan, names: Sequence[str]
    ) -> TaskPlan:
        return self._joining(given, plan.pruned(names), None)


def _subpartitions_of_join(
    left: InputSlice, right: InputSlice, plan: JoinPlan
) -> Sequence[int] | None:
    """Return those to join; raises OptionError where one side leaves out rows of the other."""
    numbers = common_subpartitions([left, right])
    for side, other, is_left in ((left, right, True), (right, left, False)):
        if plan.keeps(left=not is_left):
            _refuse_restricted(side, other, f"a {plan.how}")
    return numbers


def _refuse_restricted(side: InputSlice, kept: InputSlice, join: str) -> None:
    """Raise OptionError where a side leaves out rows of one of which all are in the result."""
    if (
        side.subpartitions is not None
        and kept.subpartitions is None
        and not is_broadcast(kept.rows)
    ):
        msg = (
            f"subpartitions: {side.rows.path} is restricted to some, and {join} join keeps all "
            f"rows of {kept.rows.path}; select the same subpartitions of both"
        )
        raise OptionError(msg)


def _candidates(rows: Input) -> list[int] | None:
    """Return the subpartitions that can have rows; a broadcast shuffle has them in all."""
    return None if is_broadcast(rows) else rows.candidates()
