"""What an operation reads of each shuffle, and in how many tasks; for people."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from arrow_format.keys.co_partitioning import is_broadcast
from arrow_format.operators.asof_plan import AsOfPlan
from arrow_format.operators.computed import Computed
from arrow_format.read.shuffle import Shuffle
from arrow_format.report import Report

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from arrow_format.operators.task_plan import GroupResults, TaskPlan
    from arrow_format.read.explanation import ReadExplanation


MOST_SHOWN = 5
"""Hot subpartitions that are shown."""


@dataclass(frozen=True, slots=True)
class Explanation(Report):
    """What an operation reads, skips, and why; ``str`` shows it.

    .. code-block:: python

        explanation = orders.join(customers).explain()
        print(explanation.num_tasks)
        print(explanation)

    Attributes
    ----------
    place
        ``in this process`` or ``in Spark``.
    what
        The operation.
    num_tasks
        How many tasks run it.
    reader
        Of rows that enter Spark as they are: which reader brings them, and why; else None.
    reads
        Path of each shuffle that is read, from left to right, and what is read of it.
    notes
        Of ``map_groups(since=)``: which groups are made again, why, and in how many chunks their
        rows are. Of subpartitions much heavier than others: in how many pieces they are read, or
        why as a whole.
    """

    place: str
    what: str
    num_tasks: int
    reads: tuple[tuple[str, ReadExplanation], ...]
    reader: str | None = None
    notes: tuple[str, ...] = ()

    def _lines(self) -> Iterator[str]:
        tasks = "1 task" if self.num_tasks == 1 else f"{self.num_tasks:,} tasks"
        yield f"{self.place}: {self.what}, in {tasks}"
        yield from self.notes
        if self.reader is not None:
            yield f"read {self.reader}"
        for path, read in self.reads:
            yield f"{path}:"
            yield from (f"  {line}" for line in str(read).splitlines())


def explain_plan(
    place: str,
    plan: TaskPlan,
    results: GroupResults,
    *,
    reader: str | None = None,
    notes: tuple[str, ...] = (),
) -> Explanation:
    """Return the explanation of a plan; opens the indexes of what it reads, and reads no rows."""
    what = f"{plan.what} of {plan.paths}"
    notes = (*notes, *_of_any_age(plan), *_hot(plan, results.hot))
    return Explanation(place, what, len(results.groups), tuple(_reads(plan)), reader, notes)


def _hot(plan: TaskPlan, hot: Mapping[int, int]) -> Iterator[str]:
    """Yield how hot subpartitions are read."""
    for subpartition, number in islice(hot.items(), MOST_SHOWN):
        how = f"{number} pieces, by a task each"
        if number == 1:
            how = f"one: {plan.why_whole or 'its rows are put in order together'}"
        yield f"subpartition {subpartition} is much heavier than others, and read in {how}"
    if len(hot) > MOST_SHOWN:
        yield f"so are {len(hot) - MOST_SHOWN:,} others"


def _of_any_age(plan: TaskPlan) -> Iterator[str]:
    """Say of which sides of an as-of join no row is too old for a label of today."""
    if isinstance(plan.details, AsOfPlan):
        for side, rows in zip(plan.details.sides, plan.inputs[1:], strict=True):
            if side.rule.tolerance is None:
                yield f"{rows.path}: without a tolerance, rows of any age are read"


def _reads(
    plan: TaskPlan, within: Sequence[int] | None = None
) -> Iterator[tuple[str, ReadExplanation]]:
    """Yield what is read of each shuffle; ``within`` has the subpartitions that are asked for."""
    asked = plan.subpartitions
    if within is not None:
        asked = within if asked is None else sorted({*asked} & {*within})
    for rows, columns in zip(plan.inputs, plan.columns, strict=True):
        if isinstance(rows, Computed):
            yield from _reads(rows.plan, asked)
        elif isinstance(rows, Shuffle):
            # A broadcast one is read whole, and may have another number of subpartitions.
            yield rows.path, rows.explain(None if is_broadcast(rows) else asked, columns)
