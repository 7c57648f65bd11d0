"""The join of two co-partitioned shuffles, in tasks."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from arrow_format.arrays.batch_stream import BatchReader
from arrow_format.arrays.stored_types import conform
from arrow_format.errors import OptionError
from arrow_format.keys.co_partitioning import is_broadcast
from arrow_format.operators.join import join_range
from arrow_format.operators.results import results_of
from arrow_format.operators.tasks import Operation, WholeGroups

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    import pyarrow as pa

    from arrow_format.operators.join_plan import JoinPlan
    from arrow_format.read.shuffle import Shuffle

    Then: TypeAlias = Callable[[BatchReader], Iterable[pa.RecordBatch]]


def check_then(then: Then | None, schema: object) -> None:
    """Raise OptionError unless both or neither were given."""
    if (then is None) != (schema is None):
        msg = "then and schema: expected both or neither; schema is that of what then yields"
        raise OptionError(msg)


def join_operation(
    left: Shuffle,
    right: Shuffle,
    plan: JoinPlan,
    *,
    joined: pa.Schema,
    then: Then | None,
    schema: pa.Schema,
) -> Operation:
    """Return a planned join of two shuffles, and what is done ``then`` with its rows.

    ``joined`` is the schema of the rows that ``then`` reads, ``schema`` that of the results.
    """
    join = partial(join_range, left, right, plan)
    work = WholeGroups(join)
    if then is not None:
        work = WholeGroups(ThenOfGroup(join, joined, then, schema, f"{left.path} and {right.path}"))
    in_right = plan.how == "right" or is_broadcast(left)
    return Operation(
        (left, right),
        work,
        candidates=plan.candidates(_candidates(left), _candidates(right)),
        source=right if in_right else left,
        names=partial(plan.name_of, of_right=in_right),
    )


def _candidates(shuffle: Shuffle) -> list[int] | None:
    """Return the subpartitions that can have rows; a broadcast shuffle has them in all."""
    return None if is_broadcast(shuffle) else shuffle.candidates()


@dataclass(frozen=True)
class ThenOfGroup:
    """Calls the user's function with the joined rows of a group."""

    join: Callable[[Sequence[int]], Generator[pa.RecordBatch]]
    joined: pa.Schema
    """Of the rows that the function reads."""
    then: Then
    schema: pa.Schema
    """Of its results."""
    paths: str
    """Of the shuffles, for messages."""

    def __call__(self, subpartitions: Sequence[int]) -> Generator[pa.RecordBatch]:
        """Yield the results of the function."""
        with closing(self.join(subpartitions)) as batches:
            reader = BatchReader(self.joined, (conform(batch, self.joined) for batch in batches))
            where = f"subpartitions {subpartitions[0]} to {subpartitions[-1]} of {self.paths}"
            yield from results_of(
                lambda: self.then(reader), self.schema, caller="join_shuffles", where=where
            )
