"""What an entry says of the log as a whole, so that a writer needs the newest entry alone.

Each entry carries the state after it: the shape of the newest version, what was released, how far
versions have expired, what is pending, how jobs ended lately, and the last commits of applications.
The fields are those of the JSON; what has its first value is left out there.
"""

from __future__ import annotations

from itertools import chain
from math import gcd
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
from msgspec import Meta, Struct
from msgspec.structs import replace

from arrow_format.arrays.column_ids import MAX_COLUMN_ID, Columns, problem_of_ids
from arrow_format.keys.combination import check_functions, combined_schema
from arrow_format.keys.partitioner import check_described
from arrow_format.keys.row_identity import check_sequence, check_unique
from arrow_format.keys.sort_keys import check_sort_by
from arrow_format.log.job_ends import JobEnd
from arrow_format.log.result import PERSISTENT, Released, ResultDescription
from arrow_format.model import MAX_SUBPARTITIONS, Name, Natural
from arrow_format.options import Codec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ColumnId = Annotated[int, Meta(ge=0, le=MAX_COLUMN_ID)]


class VersionShape(Struct, frozen=True, omit_defaults=True):
    """What the rows of a version have in common."""

    shuffle_id: Name
    """Of the overwrite that began the shuffle."""
    data_schema: pa.Schema
    spark_schema: str | None
    """Spark's JSON of the schema; None when it was written without Spark."""
    num_subpartitions: Annotated[int, Meta(ge=1, le=MAX_SUBPARTITIONS)]
    partitioner: dict[str, Any]
    column_ids: tuple[ColumnId, ...]
    """Of the columns of :attr:`data_schema`, and of all inside them, depth first."""
    codec: Codec = "zstd"
    """Of the last write; files say their own."""
    sort_by: tuple[tuple[str, str], ...] = ()
    combine: dict[str, str] = {}
    """Functions of the columns that rows of equal keys were combined by, in each map task."""
    result: ResultDescription = PERSISTENT
    bounds_since: Natural = 0
    """The version from which on the partitioner has the bounds that it has; 0 where it has none. A
    rollback brings back the one that its shape had."""

    rescaled_to: Annotated[int, Meta(ge=1, le=MAX_SUBPARTITIONS)] | None = None
    """Subpartitions of files that are written from now on, a multiple of :attr:`num_subpartitions`;
    None before the first rescale. Then files have this number or
    others, and are read by one that divides all."""
    unique: tuple[ColumnId, ...] = ()
    """Ids of the columns that identify a row: no two rows of a version have equal values in them,
    none of which is null. Empty: nothing identifies a row."""

    sequence_by: ColumnId = 0
    """Id of the column whose largest value is the newest change of a row; 0: nothing says it."""

    @property
    def columns(self) -> Columns:
        """The schema with its ids."""
        return Columns(self.data_schema, self.column_ids)

    @property
    def new_subpartitions(self) -> int:
        """Subpartitions of a file that is written now."""
        return self.rescaled_to or self.num_subpartitions

    def divided(self, numbers: Iterable[int]) -> VersionShape:
        """Return the shape by which files of these numbers of subpartitions can be read as well.

        It is this one before the first rescale: then all files have one number.
        """
        if self.rescaled_to is None:
            return self
        return replace(self, num_subpartitions=gcd(self.num_subpartitions, *numbers))

    @property
    def unique_names(self) -> tuple[str, ...]:
        """The names of the columns of :attr:`unique`, in its order."""
        names = {id_: name for name, id_ in self.columns.by_name.items()}
        return tuple(names[id_] for id_ in self.unique)

    @property
    def sequence_name(self) -> str | None:
        """The name of the column of :attr:`sequence_by`; None where there is none."""
        names = (name for name, id_ in self.columns.by_name.items() if id_ == self.sequence_by)
        return next(names, None)


_last_sound: VersionShape | None = None
"""The last that was checked: nearly all entries of a log have the shape of the one before, and to
check it took a seventh of the time of reading them."""


def check_shape(shape: VersionShape) -> None:
    """Raise ValueError, OptionError or SchemaError for a shape of which no rows can be."""
    global _last_sound
    if shape != _last_sound:
        _check_shape(shape)
        _last_sound = shape


def _check_shape(shape: VersionShape) -> None:
    if not isinstance(shape.partitioner.get("kind"), str):
        msg = "the partitioner is not an object with a kind"
        raise ValueError(msg)  # noqa: TRY004  of what was parsed, not of an argument
    problem = problem_of_ids(shape.columns)
    if problem is not None:
        raise ValueError(problem)
    check_sort_by(shape.data_schema, shape.sort_by)
    check_described(shape.partitioner, shape.data_schema)
    combined_schema(shape.data_schema, check_functions(shape.combine))
    if shape.new_subpartitions % shape.num_subpartitions:
        msg = f"{shape.rescaled_to} subpartitions are read as {shape.num_subpartitions}"
        raise ValueError(msg)
    if set(shape.unique) - {*shape.columns.by_name.values()}:
        msg = f"columns of ids {list(shape.unique)} identify a row, and some are none of it"
        raise ValueError(msg)
    check_unique(shape.data_schema, shape.unique_names, shape.partitioner, shape.combine)
    if shape.sequence_by and shape.sequence_name is None:
        msg = f"the column of id {shape.sequence_by} orders changes, and it is none of the rows"
        raise ValueError(msg)
    check_sequence(shape.data_schema, shape.sequence_name, shape.unique_names)


class LastCommit(Struct, frozen=True):
    """The newest commit of an application."""

    version: Natural
    """Number of its entry."""
    number: Natural
    """The largest committed one, see :attr:`arrow_format.model.Transaction.number`."""


_MOST_PENDING = 1 << 20
"""Far more than any stream lets wait, so that a few bytes do not become gigabytes."""


class PendingNumbers(Struct, frozen=True, omit_defaults=True):
    """What waits to be flushed."""

    ranges: tuple[tuple[Natural, Natural], ...] = ()
    """Numbers of the log that are pending, ascending: first and last of each range."""
    flushed_at_ms: Natural | None = None
    """When the last flush was committed, milliseconds since 1970; None before the first."""
    interval_ms: Natural | None = None
    """The longest time between two flushes that the last pending commit asked for; None: no time,
    so that only its stream knows when a flush is due."""

    @staticmethod
    def of(
        numbers: Iterable[int], flushed_at_ms: int | None = None, interval_ms: int | None = None
    ) -> PendingNumbers:
        """Return ascending numbers as ranges."""
        ranges: list[tuple[int, int]] = []
        for number in numbers:
            first = ranges.pop()[0] if ranges and ranges[-1][1] == number - 1 else number
            ranges.append((first, number))
        return PendingNumbers(tuple(ranges), flushed_at_ms, interval_ms)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers that are pending, ascending."""
        return tuple(chain.from_iterable(range(first, last + 1) for first, last in self.ranges))

    def begins_with(self, numbers: tuple[int, ...]) -> bool:
        """Whether these numbers are still pending, and none before them."""
        return bool(numbers) and self.numbers[: len(numbers)] == numbers


NOTHING_PENDING = PendingNumbers()


class Tag(Struct, frozen=True):
    """A version that is kept under a name."""

    version: Natural


class Undone(Struct, frozen=True):
    """Deletions that a rollback undid: their rows may be in files of any later version."""

    after: Natural
    """Those after the version that was rolled back to,"""
    before: Natural
    """and before the rollback. Of several rollbacks the numbers span all of them."""


class LogState(Struct, frozen=True, omit_defaults=True):
    """The state of the log after an entry."""

    shape: VersionShape | None = None
    """Of the newest version; None before the first."""
    version: Natural = 0
    """The newest version; 0 for none. Entries after it publish none."""
    content: Natural = 0
    """The newest version that added rows."""
    changed: Natural = 0
    """The newest version that added or took away rows, which all but a merge and rescale do."""
    released: Released | None = None
    """What was released of the result, if anything."""
    ended: Natural = 0
    """Number of the last release of a whole result; 0 for none."""
    oldest: Natural = 1
    """The oldest version that has not expired."""
    expired: Natural = 0
    """The newest version that added rows of those that have expired."""
    base: Natural = 0
    """The newest number of which everything up to it is in one file; 0 for none. Segments before
    its own may have been removed."""
    checkpoint: Natural = 0
    """The newest checkpoint before the entry that its writer saw; 0 for none."""
    swept: Natural = 0
    """Of jobs that ended up to this number, files that no version names were removed."""
    applications: dict[Name, LastCommit] = {}
    """The last commit of each application that committed after :attr:`checkpoint`, which has
    those of the others; of a range that of every application."""
    jobs: dict[Name, JobEnd] = {}
    """How each job ended that ended after :attr:`checkpoint` and :attr:`base`, which have the
    others; none in a range."""
    pending: PendingNumbers = NOTHING_PENDING
    tags: dict[Name, Tag] = {}
    restored: tuple[Natural, ...] = ()
    """Versions from :attr:`oldest` on that have map outputs of earlier ones by a rollback."""
    last_column_id: ColumnId = 0
    """The largest id that a column ever had; it never goes back."""
    deleted: Natural = 0
    """The version of the last deletion that a user asked for; versions before it may have rows
    that are to be gone. What replaces rows by others, or says the same otherwise, is none."""
    undone: Undone | None = None
    """What rollbacks undid of deletions; None: nothing. It is never forgotten."""
    readers: tuple[str, ...] = ()
    """Features of the format that who reads the log must know."""
    writers: tuple[str, ...] = ()
    """Features that who writes it must know."""
    blank: Natural = 0
    """Entries before this number have been made blank, and checkpoints before it removed."""

    @property
    def is_ended(self) -> bool:
        """Whether the result was released as a whole, and none was written since."""
        return self.ended > self.content


def problems_of_state(state: LogState, newest: int) -> Iterator[str]:
    """Yield what is wrong with the state after entry ``newest``, if anything."""
    numbers = (
        state.version, state.content, state.changed, state.ended, state.oldest, state.expired,
        state.base, state.checkpoint, state.swept, state.deleted, state.blank,
        *state.restored,
        *(tag.version for tag in state.tags.values()),
        *(end.version for end in state.jobs.values()),
    )  # fmt: skip
    if max(numbers) > max(newest, 1):
        yield f"the log's state after entry {newest} has the number {max(numbers)}"
    if (state.shape is None) != (state.version == 0):
        yield "a log has the shape of its newest version, and without a version none"
    if state.shape is not None and max(state.shape.column_ids) > state.last_column_id:
        yield f"a column has an id above {state.last_column_id}, the last that was given"
    if state.content > state.changed or state.changed > state.version or state.base > state.oldest:
        yield "the numbers of the log's state contradict each other"
    if state.is_ended and state.released is None:
        yield "a result has ended, and what was released of it is missing"
    if state.oldest > max(state.version, 1):
        yield f"version {state.version} is the newest, and {state.oldest} the oldest"
    if state.released is not None and state.released.through > state.version:
        yield f"version {state.released.through} is released and does not exist"
    if state.blank > state.base:
        yield f"entries before {state.blank} are blank, and only those before {state.base} may be"
    if state.undone is not None and not state.undone.after < state.undone.before <= newest:
        yield f"a rollback before entry {newest} undid no deletion"
    lasts = [0, *(last for _, last in state.pending.ranges)]
    pairs = zip(lasts, state.pending.ranges, strict=False)
    if lasts[-1] > newest or any(not before < first <= last for before, (first, last) in pairs):
        yield f"numbers that are pending do not ascend from 1 to {newest}"
    if sum(last - first for first, last in state.pending.ranges) > _MOST_PENDING:
        yield f"more than {_MOST_PENDING} numbers are pending"
