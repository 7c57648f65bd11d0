"""One entry of the commit log: what a commit does, and the state of the log after it.

Entries are numbered from 1 without gaps, and each names the commit before it. Most publish a
version. The others give jobs up, hold rows that wait to be flushed, or change what is kept.

A checkpoint is the entry of its number with what all entries of a range do together, so that few
files hold a log however long it is: it replaces the entries after
:func:`~arrow_format.log.names.link_of` its number. Where it begins with the log, as for a *base* or
a tag, it replaces all entries up to its number. See ``docs/format/reading.md``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pyarrow as pa
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from arrow_format.arrays.buffers import to_numpy
from arrow_format.errors import CorruptShuffleError
from arrow_format.format.batch_frame import decode_table, encode_table
from arrow_format.log.delta import Delta, compose, decoded
from arrow_format.log.framing import (
    MASKS,
    corrupt_if_malformed,
    from_frame,
    to_frame,
    unknown_error,
)
from arrow_format.log.job_ends import (
    JobEnd,
    committed_at,
    decode_jobs,
    end_in,
    given_up_at,
    join_jobs,
)
from arrow_format.log.output_table import SCHEMA as OUTPUT_SCHEMA
from arrow_format.log.output_table import column_in, lengths_of
from arrow_format.log.outputs import (
    MapOutputs,
    check_keys,
    check_outputs,
    encode_outputs,
)
from arrow_format.log.state import (
    LastCommit,
    LogState,
    VersionShape,
    check_shape,
    problems_of_state,
)
from arrow_format.log.totals import (
    Totals,
    decode_totals,
    encode_totals,
    problem_of_totals,
    sum_totals,
)
from arrow_format.model import FORMAT_VERSION, Name, Natural, Transaction

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from arrow_format.arrays.column_ids import Columns
    from arrow_format.log.result import Released, ResultDescription

UPSERT = "upsert"
RESCALE = "rescale"
OPERATIONS = (
    "overwrite", "append", UPSERT, "merge", "delete", "rollback", "release", "alter", RESCALE
)  # fmt: skip
"""Operations that publish a version. ``overwrite`` and ``rollback`` put map outputs in the place of
all others, ``append`` adds some, ``merge`` and ``delete`` put some in the place of others, and
``release`` drops those that were consumed or given up. ``alter`` changes the shape alone, and
``rescale`` of it the number of subpartitions. An ``upsert`` masks rows and adds others."""
PENDING, PENDING_OVERWRITE = "pending", "pending-overwrite"
"""Operations of map outputs that wait to be flushed, which no version has yet. The second
overwrites the newest version, and all that is pending before it."""
FENCE, EXPIRE, TAG, ERASE = "fence", "expire", "tag", "erase"
"""Operations that change no rows: jobs are given up, versions expire, a tag is set or removed, rows
are to be gone that only earlier versions have."""

BLANK = "blank"
"""Operation of an entry before the base of which nothing is left but what says that it was put, and
how jobs ended by it: no map outputs, statistics or shape. Readers that need more read the base."""

TAKE_NOTHING = ("append", "alter", RESCALE, PENDING, PENDING_OVERWRITE, FENCE, EXPIRE, TAG, ERASE)
"""Operations after which the newest version has all map outputs that it had before."""

_ALL = (*OPERATIONS, PENDING, PENDING_OVERWRITE, FENCE, EXPIRE, TAG, ERASE, BLANK)
_ADD_ROWS = ("overwrite", "append", UPSERT, "rollback")
_OF_ONE_JOB = ("append", "overwrite", PENDING, PENDING_OVERWRITE)
_END_OF_TIME_MS = 253_402_300_799_000
"""The last second that has a date in Python."""
_KEY_SCHEMA = pa.schema([pa.field("key", pa.string(), False)])
_NOTHING = Delta()


class Range(Struct, frozen=True):
    """The numbers of a checkpoint, and what they do together besides its sections."""

    after: Natural
    """The range begins after this number, and ends with that of the entry."""
    parent: Name | None
    """Commit id of :attr:`after`; None where the range begins with the log."""
    clears: bool = False
    released: Natural = 0


class LogEntry(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An entry of the log, by itself or with what a range of numbers up to its own does."""

    format_version: int = FORMAT_VERSION
    version: Natural = field(name="number")
    """Its number in the log, from 1; 0 until it is committed."""
    operation: str
    commit_id: Name
    parent: Name | None
    """Commit id of the number before it; None of the first."""
    committed_at_ms: Annotated[int, Meta(ge=0, le=_END_OF_TIME_MS)]
    """Milliseconds since 1970 by the committing machine's clock, never before its parent's."""
    state: LogState
    job_id: Name | None = None
    """The job that it commits, if any."""
    transaction: Transaction | None = None
    """The transaction that the commit belongs to, if any."""
    receipt: dict[str, Any] | None = None
    """Of a deletion that is a transaction, what it returned: who repeats it gets it again."""
    gives_up: tuple[Name, ...] = ()
    """Jobs that are not committed before it, and cannot be after it."""
    failed: bool = False
    """Whether these reported that they failed, for consumers that wait for them."""
    num_outputs: Natural = 0
    """How many map outputs it adds."""
    num_rows: Natural = 0
    """Rows that these store; a broadcast row counts once."""
    num_bytes: Natural = 0
    """Bytes of their data files."""
    counters: dict[str, Natural] = {}
    """What the tasks that wrote them did, added up; without those that are 0. For information."""
    pending_shape: VersionShape | None = None
    """Of pending map outputs."""
    range: Range | None = None
    """Of a checkpoint, base or tag: the numbers that :attr:`content` is of; None: of this one."""
    content: Any = _NOTHING
    """What the sections of its file have: a :class:`Delta`, which is not part of the JSON."""

    @property
    def is_version(self) -> bool:
        """Whether it publishes a version."""
        return self.operation in OPERATIONS

    @property
    def is_pending(self) -> bool:
        """Whether its map outputs wait to be flushed."""
        return self.operation in (PENDING, PENDING_OVERWRITE)

    @property
    def adds_rows(self) -> bool:
        """Whether it publishes a version with new rows, or with others than the one before."""
        return self.operation in _ADD_ROWS

    @property
    def overwrites(self) -> bool:
        """Whether nothing of the version before it is left."""
        return self.operation in ("overwrite", "rollback") or self.state.ended == self.version

    @property
    def shape(self) -> VersionShape:
        """The shape of its rows; CorruptShuffleError of an entry before the first version."""
        shape = self.pending_shape or self.state.shape
        if shape is None:
            msg = f"entry {self.version} of the log has no version"
            raise CorruptShuffleError(msg)
        return shape

    @property
    def shuffle_id(self) -> str:
        """Id of the overwrite that began the shuffle."""
        return self.shape.shuffle_id

    @property
    def data_schema(self) -> pa.Schema:
        """Columns of its version."""
        return self.shape.data_schema

    @property
    def columns(self) -> Columns:
        """Columns of its version, with their ids."""
        return self.shape.columns

    @property
    def spark_schema(self) -> str | None:
        """Spark's JSON of the schema; None when it was written without Spark."""
        return self.shape.spark_schema

    @property
    def num_subpartitions(self) -> int:
        """Subpartitions of its version."""
        return self.shape.num_subpartitions

    def divided(self, num_subpartitions: int) -> LogEntry:
        """Return it with a divisor of its number of subpartitions, by which its rows are read."""
        shape = replace(self.shape, num_subpartitions=num_subpartitions)
        if self.pending_shape is not None:
            return replace(self, pending_shape=shape)
        return replace(self, state=replace(self.state, shape=shape))

    @property
    def partitioner(self) -> Mapping[str, Any]:
        """The partitioner as JSON."""
        return self.shape.partitioner

    @property
    def sort_by(self) -> tuple[tuple[str, str], ...]:
        """Pairs of column and order that sort the rows of each subpartition."""
        return self.shape.sort_by

    @property
    def combine(self) -> Mapping[str, str]:
        """Functions of the columns that rows of equal keys were combined by."""
        return self.shape.combine

    @property
    def result(self) -> ResultDescription:
        """Type, bounds and owners of the result."""
        return self.shape.result

    @property
    def content_version(self) -> int:
        """The last version that added rows."""
        return self.state.content

    @property
    def released(self) -> Released | None:
        """What it released; None of other operations."""
        return self.state.released if self.operation == "release" else None

    @property
    def map_outputs(self) -> MapOutputs:
        """What it adds, in reading order, or what is pending by it."""
        outputs: MapOutputs = self.content.added
        return outputs

    @property
    def own_sums(self) -> tuple[int, int, int]:
        """Map outputs of its job, their rows and bytes; not those of which an upsert masks rows."""
        if self.operation != UPSERT:
            return self.num_outputs, self.num_rows, self.num_bytes
        own = self.map_outputs.of_job(self.job_id)
        return len(own), own.num_rows, own.num_bytes

    @property
    def totals(self) -> Totals | None:
        """What it adds to the rows and bytes of each subpartition, int64; None for nothing."""
        totals: Totals | None = decoded(self.content.totals)
        return totals

    @property
    def span(self) -> Range:
        """The numbers that it is of: a range, or its own."""
        if self.range is not None:
            return self.range
        released = self.released
        through = released.through if released is not None and not released.ended else 0
        return Range(self.version - 1, self.parent, self.is_version and self.overwrites, through)

    @property
    def delta(self) -> Delta:
        """What its numbers do to the map outputs of a version."""
        span, content = self.span, self.content if self.range or self.is_version else _NOTHING
        jobs = content.jobs if self.range else partial(jobs_of, self)
        return Delta(
            content.added,
            content.removed,
            span.clears,
            span.released,
            content.totals,
            jobs,
        )


def jobs_of(entry: LogEntry) -> pa.Table:
    """Return the jobs that an entry commits or gives up."""
    given_up = given_up_at(entry.version, entry.gives_up)
    if entry.job_id is None:
        return given_up
    committed = committed_at(entry.version, entry.job_id, entry.own_sums, entry.transaction)
    return join_jobs([committed, given_up]) if entry.gives_up else committed


def blank_of(entry: LogEntry) -> LogEntry:
    """Return what is left of an entry when it is made blank."""
    num_outputs, num_rows, num_bytes = entry.own_sums  # what says which are its own will be gone
    return replace(
        entry,
        operation=BLANK,
        state=LogState(),
        pending_shape=None,
        content=_NOTHING,
        num_outputs=num_outputs,
        num_rows=num_rows,
        num_bytes=num_bytes,
    )


def end_of_job(entry: LogEntry, job_id: str) -> JobEnd | None:
    """Return how a job ended by an entry, or in the range of a checkpoint; None if it did not."""
    if entry.range is not None:
        return end_in(decoded(entry.content.jobs), job_id)
    is_fenced = job_id in entry.gives_up
    return JobEnd(entry.version, is_fenced) if is_fenced or entry.job_id == job_id else None


def join(entries: Sequence[LogEntry], applications: Mapping[str, LastCommit]) -> LogEntry:
    """Return the last of adjacent entries or checkpoints with what all of them do together.

    ``applications`` are the last commits of all applications at its end.
    """
    first, last = entries[0].span, entries[-1]
    return with_range(
        replace(last, state=replace(last.state, applications=dict(applications), jobs={})),
        compose([entry.delta for entry in entries]),
        first.after,
        first.parent,
    )


def with_range(
    entry: LogEntry, delta: Delta, after: int = 0, parent: str | None = None
) -> LogEntry:
    """Return an entry with what all numbers after another do, by default all numbers."""
    span = Range(after, parent, delta.clears, delta.released)
    return replace(entry, range=span, content=delta, receipt=None)


def encode_entry(entry: LogEntry) -> bytes:
    """Encode an entry, or a checkpoint, as the bytes of its file."""
    content = entry.content
    removed, totals, jobs = decoded(content.removed), decoded(content.totals), decoded(content.jobs)
    sections = {}
    if len(content.added):
        sections["added"] = encode_outputs(content.added)
    if len(removed):
        sections["removed"] = encode_keys(removed)
    if totals is not None:
        sections["totals"] = encode_totals(totals)
    if len(jobs):
        sections["jobs"] = encode_table(jobs)
    return to_frame(replace(entry, content=_NOTHING), sections)


def encode_keys(keys: pa.Array) -> bytes:
    """Encode keys of map outputs."""
    return encode_table(pa.Table.from_arrays([keys], schema=_KEY_SCHEMA))


def decode_entry(data: bytes, where: str = "log entry") -> LogEntry:
    """Verify and parse an entry or checkpoint; its sections when they are needed.

    Raises CorruptShuffleError where any byte differs from what was written, and FormatVersionError
    where a newer release wrote it, or it needs what this one does not know. ``where`` is for the
    CorruptShuffleError that a section raises if it is not one of such an entry.
    """
    entry, sections = from_frame(data, LogEntry)
    if entry.operation not in _ALL:
        raise unknown_error(f"operation {entry.operation!r}")
    with corrupt_if_malformed("log entry"):
        for problem in _problems(entry, sections):
            raise ValueError(problem)
        for shape in filter(None, (entry.state.shape, entry.pending_shape)):
            check_shape(shape)

    content: dict[str, Any] = {
        name: partial(_decoded, name, entry, data, where)
        for name, data in sections.items()
        if name in _DECODERS  # the others are of a newer release, and not needed
    }
    if "added" in content:
        content["added"] = MapOutputs(content["added"], partial(_check_outputs, where))
    return replace(entry, content=Delta(**content))


def check_entry(data: bytes) -> None:
    """Verify and parse an entry with all of its sections; raises as :func:`decode_entry`."""
    check_sections(decode_entry(data))


def check_sections(entry: LogEntry) -> None:
    """Decode all sections of an entry that was decoded; raises as :func:`decode_entry`."""
    outputs, totals = entry.map_outputs, entry.totals
    len(outputs)
    decoded(entry.content.removed)
    decoded(entry.content.jobs)
    if entry.range is not None or entry.operation not in _OF_ONE_JOB:
        return
    n = entry.num_subpartitions
    if totals is not None:
        read, _ = outputs.apart()
        sums = read.delivered_rows(n), read.num_bytes
        problem = problem_of_totals(sum_totals([totals], n), n, sums)
    else:
        problem = "there are no totals" if len(outputs) else None
    if problem is not None:
        msg = f"log entry is not of this format ({problem})"
        raise CorruptShuffleError(msg)


def _decoded(name: str, entry: LogEntry, data: bytes, where: str) -> object:
    """Decode a section of an entry."""
    with corrupt_if_malformed(where):
        return _DECODERS[name](entry, data)


def _added(entry: LogEntry, data: bytes) -> pa.Table:
    table = decode_table(data, OUTPUT_SCHEMA)
    for problem in _problems_of_outputs(entry, MapOutputs.of_table(table)):
        raise ValueError(problem)
    return table


def _check_outputs(where: str, table: pa.Table) -> None:
    with corrupt_if_malformed(where):
        check_outputs(table)


def _removed(_: LogEntry, data: bytes) -> pa.Array:
    return check_keys(decode_table(data, _KEY_SCHEMA).column(0).combine_chunks())


def _totals(entry: LogEntry, data: bytes) -> Totals:
    totals = decode_totals(data)
    # Those of a range may be of entries that had another number than its version.
    n = 1 if entry.range else entry.num_subpartitions
    if not len(totals[0]) or len(totals[0]) % n:
        msg = f"there are totals of {len(totals[0])} subpartitions, expected {n} or a multiple"
        raise ValueError(msg)
    return totals


def _jobs(entry: LogEntry, data: bytes) -> pa.Table:
    return decode_jobs(data, entry.span.after, entry.version)


_DECODERS = {"added": _added, "removed": _removed, "totals": _totals, "jobs": _jobs}


def _problems(entry: LogEntry, sections: Mapping[str, bytes]) -> Iterator[str]:
    """Yield what is wrong with an entry besides what is in its sections, if anything."""
    state, number = entry.state, entry.version
    yield from problems_of_state(state, number)
    if (entry.parent is None) != (number == 1):
        yield f"number {number} must name the commit before it, unless it is the first"
    if entry.receipt is not None and (
        entry.transaction is None
        or entry.range is not None
        or entry.operation not in ("delete", ERASE, BLANK)
    ):
        yield f"number {number} ({entry.operation}) has a receipt, and deletes in no transaction"
    if entry.operation == BLANK:
        if sections or entry.range is not None or entry.pending_shape or state != LogState():
            yield "a blank entry has what it may not have"
        return
    if state.checkpoint >= number:
        yield f"number {number} cannot name checkpoint {state.checkpoint} as one before it"
    if (entry.pending_shape is not None) != entry.is_pending:
        yield "pending map outputs have a shape, and no others have one of their own"
    if entry.is_pending != any(last == number for _, last in state.pending.ranges[-1:]):
        yield f"number {number} is pending by its operation or by its state alone"
    if entry.is_version != (state.version == number):
        yield f"version {state.version} cannot be the newest after operation {entry.operation}"
    if entry.adds_rows and state.content != number:
        yield f"version {number} ({entry.operation}) cannot have content {state.content}"
    if entry.num_outputs and not (entry.is_version or entry.is_pending):
        yield f"operation {entry.operation} adds map outputs"
    released = entry.released
    if entry.operation == "release" and (
        released is None or entry.num_outputs or released.through >= number
    ):
        yield "a release names what was released, and adds nothing"
    if (state.ended == number) != (released is not None and released.ended):
        yield f"result {state.ended} ended, and not by operation {entry.operation} alone"
    if entry.range is not None:
        yield from _problems_of_range(entry.range, number)
        return
    if ("added" in sections) != (entry.num_outputs > 0):
        yield f"there are {entry.num_outputs} map outputs, and sections {', '.join(sections)}"
    if "removed" in sections and entry.operation not in ("merge", "delete", UPSERT):
        yield f"operation {entry.operation} removes map outputs"
    if "jobs" in sections:
        yield "an entry has the jobs of others"


def _problems_of_range(span: Range, number: int) -> Iterator[str]:
    if span.after >= number or (span.parent is None) != (span.after == 0):
        yield f"it cannot be of the numbers after {span.after} to {number}"
    if span.released > number:
        yield f"version {span.released} is released and does not exist"


def _problems_of_outputs(entry: LogEntry, outputs: MapOutputs) -> Iterator[str]:
    """Yield what is wrong with the map outputs of an entry, if anything."""
    versions, last = outputs.versions, outputs.last_versions
    if np.any((versions < 1) | (versions > last) | (last > entry.version)):
        yield "a map output was added after its own entry, or before it began"
    if outputs.has_masks:
        puts = outputs.of_files("mask_number")[outputs.of_files("mask_rows") > 0]
        if MASKS not in entry.state.readers or puts.min() < 1 or puts.max() > entry.version:
            yield "rows are masked by no entry up to its own, or without the feature of readers"
    lists = (column_in(outputs.table, name) for name in ("files", "column_ids"))
    has_files, has_ids = (lengths_of(each) > 0 for each in lists)
    if np.any(has_files > has_ids):
        yield "a map output has files, and no ids of their columns"
    if entry.range is not None:
        return
    stated = entry.num_outputs, entry.num_rows, entry.num_bytes
    if (len(outputs), outputs.num_rows, outputs.num_bytes) != stated:
        yield "totals differ from the sum over map outputs"
    if entry.operation not in _OF_ONE_JOB:
        return
    tasks, orders = (to_numpy(column_in(outputs.table, name)) for name in ("map_task", "order"))
    num_tasks = len(outputs.apart()[0])  # tombstones come behind the others
    are_each = np.array_equal(tasks[:num_tasks], np.arange(num_tasks))
    if not are_each or np.any(np.diff(tasks) <= 0) or outputs.job_ids - {entry.job_id}:
        yield f"map outputs are not those of job {entry.job_id}, each once and in order"
    if np.any(versions != entry.version) or not np.array_equal(orders, np.arange(len(orders))):
        yield "a map output of an append was added by another entry, or in another order"
