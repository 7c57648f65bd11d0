"""Work on shuffles in tasks: one task per group of adjacent subpartitions. Pure but for the work.

Spark's job and a process without Spark divide the subpartitions the same way, and get the same
results of each task.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

import numpy as np

from arrow_format.arrays.batches import BATCH_BYTES, BATCH_ROWS, rebatched
from arrow_format.arrays.buffers import to_numpy
from arrow_format.arrays.stored_types import conform
from arrow_format.errors import OptionError
from arrow_format.keys.co_partitioning import Partitioned, has_broadcast_rows, is_broadcast
from arrow_format.options import check_integer
from arrow_format.read.chunk_plan import adjacent_ranges, cut_evenly
from arrow_format.read.estimates import Shard, num_pieces, partition_bytes, shards_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    import pyarrow as pa

    from arrow_format.model import Int64Array
    from arrow_format.operators.placement import Result
    from arrow_format.options import ReadOptions
    from arrow_format.read.chunk_plan import Piece

    Work = Callable[..., Generator[Result]]
    """Reads subpartitions, ascending, and yields rows with those of them that they came from. It
    can be pickled if the user's functions in it can. That of a plan with :attr:`TaskPlan.cuts` also
    takes a :class:`~arrow_format.read.chunk_plan.Piece` of one."""

SUBPARTITION_BYTES = 64
"""Weight that every subpartition has besides its bytes, so that tasks of few rows have limits."""

MUCH_HEAVIER = 2
"""As heavy as so many others of the shuffle, by their mean, is a subpartition that is cut, and as
what so many tasks read."""

CALL_BYTES = 4 << 10
"""The same where a user's function is called for every subpartition, the empty ones too."""


class Operand(Partitioned, Protocol):
    """What is read: a shuffle, or the rows of another plan."""

    @property
    def options(self) -> ReadOptions:
        """Memory of reading it."""

    @property
    def spark_schema(self) -> str | None:
        """Spark's JSON of columns that are more than their Arrow type; None where none is."""

    @property
    def read_bytes(self) -> pa.Int64Array:
        """Estimated stored bytes that are read for each subpartition."""

    @property
    def cut_bytes(self) -> pa.Int64Array | None:
        """Those of :attr:`read_bytes` that pieces of a subpartition share; None where none is."""

    def is_in_order(self, subpartition: int) -> bool:
        """Whether the rows of pieces, one after the other, are in the order of the input."""

    def weights(
        self, columns: Sequence[str] | None = None, *, within: range | None = None
    ) -> tuple[Int64Array, Int64Array]:
        """Estimate the rows of each subpartition, and their bytes in Arrow."""


class OfPieces(Protocol):
    """Makes the results of a subpartition of those of its pieces."""

    @property
    def schema(self) -> pa.Schema:
        """Of the results of a piece."""

    def num_bytes(self, kept: pa.RecordBatch) -> int:
        """Return the bytes that results of a piece take where they are merged."""

    def merged(self, kept: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        """Return results of several pieces, in their order, as those of one."""

    def finished(self, kept: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        """Return the results of the subpartition, of those of all pieces as one."""


@dataclass(frozen=True)
class TaskPlan:
    """What is done with the subpartitions of shuffles, checked; tasks are made of it."""

    what: str
    """Of the operation, in messages and in Spark's UI."""
    inputs: tuple[Operand, ...]
    work: Work
    schema: pa.Schema
    """Of the results."""
    subpartitions: Sequence[int] | None = None
    """Those that were asked for, ascending; all where it is None."""
    candidates: Sequence[int] | None = None
    """Subpartitions, ascending, that can have results; any may where it is None."""
    source: Operand | None = None
    """The input in whose subpartitions the results are; by default the first that is not
    broadcast."""
    names: Callable[[str], str | None] = str
    """Returns the name of a column of the source in the results, as
    :func:`~arrow_format.operators.placement.plan_placement` has it."""
    calls_function: bool = False
    """Whether a function of the user makes the results."""
    subpartition_bytes: int = SUBPARTITION_BYTES
    """Weight of a subpartition without rows."""
    columns: tuple[Sequence[str], ...] = ()
    """Columns that are read of each input."""
    details: object = None
    """How a join or an aggregation was planned."""
    declared: object = None
    """The schema that the user declared, as Spark has it."""
    cuts: tuple[int, ...] = ()
    """The inputs, by number, of which a subpartition may be read in pieces, by several tasks: of
    one of them at a time, whose rows are in the results once. None where that changes results."""
    of_pieces: OfPieces | None = None
    """Makes results of those of pieces; None where these are results already."""
    why_whole: str = ""
    """Why no subpartition is read in pieces, where :attr:`cuts` has none."""
    in_order: bool = False
    """Whether results are in the order of the input, within a subpartition too."""
    pruned: Callable[[Sequence[str]], TaskPlan] | None = None
    """Returns the plan that makes these columns of the results alone; None where it makes all."""

    @property
    def placed_as(self) -> Operand:
        """The input in whose subpartitions the results are."""
        if self.source is not None:
            return self.source
        return next((each for each in self.inputs if not is_broadcast(each)), self.inputs[0])

    @property
    def paths(self) -> str:
        """Of the shuffles, for messages."""
        return ", ".join(dict.fromkeys(each.path for each in self.inputs))

    @property
    def cut_bytes(self) -> Int64Array | None:
        """What pieces of a subpartition share of what is read for it; None where none is cut."""
        found = [self.inputs[number].cut_bytes for number in self.cuts]
        sizes = [to_numpy(each) for each in found if each is not None]
        return np.max(sizes, axis=0) if sizes else None

    def check_stored_once(self) -> None:
        """Refuse to store what several subpartitions make of the same rows; raises OptionError."""
        asked, first = self.subpartitions, self.inputs[0]
        times = first.num_subpartitions if asked is None else len(asked)
        are_some = len(self.inputs) == 1 and not self.calls_function and has_broadcast_rows(first)
        if times > 1 and (are_some or all(map(is_broadcast, self.inputs))):
            which = "all rows" if is_broadcast(first) else "the broadcast rows"
            what = "is broadcast" if is_broadcast(first) else "has some"
            msg = (
                f"every subpartition reads {which} of {first.path}, which {what}, so the "
                f"results of {times} subpartitions would have them {times} times: select one, "
                ".select(subpartitions=0)"
            )
            if not is_broadcast(first):
                msg += ", or write the rows as they were before they were written"
            raise OptionError(msg)

    def in_groups(self, *, target_partition_bytes: int, least_groups: int = 1) -> GroupResults:
        """Divide the work into groups of about ``target_partition_bytes`` on disk, of all shuffles.

        There are at least ``least_groups``, as far as there are subpartitions. Raises OptionError.
        """
        check_integer("target_partition_bytes", target_partition_bytes, 1, 1 << 62, "bytes")
        weights = read_weights(self.inputs) + self.subpartition_bytes
        asked = self.subpartitions
        numbers = np.arange(len(weights)) if asked is None else np.asarray(asked, np.int64)
        if self.candidates is not None:
            numbers = np.intersect1d(numbers, np.asarray(self.candidates, np.int64))
        total = int(weights[numbers].sum())
        max_bytes = partition_bytes(total, target_partition_bytes)
        max_bytes = max(min(max_bytes, total // least_groups), 1)
        others = (weights.sum() - weights) / max(len(weights) - 1, 1)
        hot = numbers[
            (weights > MUCH_HEAVIER * np.maximum(others, max_bytes))[numbers] & (len(weights) > 1)
        ]
        pieces = {one: self._num_pieces(one, int(weights[one]), max_bytes) for one in hot.tolist()}
        cut = np.searchsorted(numbers, [one for one, number in pieces.items() if number > 1])
        groups: list[Shard] = []
        for at, between in enumerate(np.split(numbers, np.stack([cut, cut + 1], 1).ravel())):
            if at % 2:
                one = int(between[0])
                groups += shards_of(((one, one + 1),), pieces[one])
            elif len(between):
                groups += map(Shard, balanced_groups(weights, max_bytes, between))
        of_pieces = self.of_pieces if len(cut) else None
        return GroupResults(tuple(groups), self.work, self.schema, pieces, of_pieces)

    def _num_pieces(self, subpartition: int, weight: int, max_bytes: int) -> int:
        """Return by how many tasks a hot subpartition is read, each a piece of it.

        A piece has what a task should read, and at least as much as it reads of other inputs, so
        that these are not read again and again.
        """
        shared = self.cut_bytes
        inputs = [self.inputs[number] for number in self.cuts if self.in_order]
        if shared is None or not all(each.is_in_order(subpartition) for each in inputs):
            return 1
        num_bytes = int(shared[subpartition])
        return num_pieces(num_bytes, max(max_bytes, weight - num_bytes))


def balanced_groups(
    weights: Int64Array, max_weight: int, subpartitions: Int64Array
) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Cut subpartitions, in order, into the fewest groups of about equal weight.

    Each is ranges ``[first, end)``. So no task is left over with little to do. A group may be
    heavier than ``max_weight`` by half a subpartition at either end. ``weights`` has the weight of
    every subpartition of the shuffle, 1 or more; ``subpartitions`` are at least one, ascending
    without repetition.
    """
    wanted = weights[subpartitions]
    cuts = cut_evenly(wanted, -(-int(wanted.sum()) // max_weight))
    return tuple(adjacent_ranges(subpartitions[start:stop]) for start, stop in cuts)


def read_weights(inputs: Sequence[Operand]) -> Int64Array:
    """Return the bytes that a task reads per subpartition, of all shuffles; shape (n,).

    A broadcast shuffle is read once per task and weighs nothing next to others.
    """
    weighed = [each for each in inputs if not is_broadcast(each)] or inputs[:1]
    sizes = map(to_numpy, map(attrgetter("read_bytes"), weighed))
    weights: Int64Array = np.sum(list(sizes), axis=0)
    return weights


@dataclass(frozen=True)
class GroupResults:
    """The results of the work on each group of subpartitions, or piece of one."""

    groups: tuple[Shard, ...]
    work: Work
    schema: pa.Schema
    hot: Mapping[int, int] = field(default_factory=dict)
    """Subpartitions much heavier than others, and than what a task should read, and by how many
    tasks each is read."""
    of_pieces: OfPieces | None = None
    """Makes results of those of the pieces of a subpartition; None where these are results."""

    def schema_of(self, number: int) -> pa.Schema:
        """Return the schema of what a task yields."""
        is_part = self.of_pieces is not None and self.groups[number].piece is not None
        return self.of_pieces.schema if self.of_pieces and is_part else self.schema

    def of_whole(self, number: int) -> Generator[pa.RecordBatch]:
        """Yield the results of a subpartition by one task, of which that one is a piece."""
        whole = replace(self, groups=(Shard(self.groups[number].ranges),), of_pieces=None)
        return whole.batches(0)

    def __call__(self, number: int) -> Generator[Result]:
        """Yield the results of a group, as they fit the schema."""
        ranges, piece = self.groups[number].ranges, self.groups[number].piece
        subpartitions: Sequence[int] = range(*ranges[0])
        if len(ranges) > 1:
            subpartitions = [number for first, end in ranges for number in range(first, end)]
        schema = self.schema_of(number)
        # Closed when no more is taken, and not when Python collects garbage.
        pieces = () if piece is None else (piece,)
        with closing(self.work(subpartitions, *pieces)) as results:
            for origin, batch in results:
                if batch.num_rows:
                    yield origin, conform(batch, schema)

    def batches(self, number: int) -> Generator[pa.RecordBatch]:
        """Yield the results of a group in batches worth handing over."""
        with closing(self(number)) as results:
            rows = (batch for _, batch in results)
            yield from rebatched(rows, min_rows=BATCH_ROWS, max_bytes=BATCH_BYTES)


@dataclass(frozen=True)
class WholeGroups:
    """Work that reads adjacent subpartitions together: its rows came from any of them."""

    work: Callable[..., Generator[pa.RecordBatch]]

    def __call__(self, subpartitions: Sequence[int], *piece: Piece) -> Generator[Result]:
        """Yield the rows of the work."""
        with closing(self.work(subpartitions, *piece)) as batches:
            for batch in batches:
                yield subpartitions, batch
