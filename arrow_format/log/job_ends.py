"""How jobs ended, as a table, and what remains of the entries of a removed segment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from arrow_format.arrays.buffers import text_array, to_arrow, to_numpy, to_scalar
from arrow_format.format.batch_frame import decode_table, encode_table
from arrow_format.log.framing import corrupt_if_malformed, from_frame, to_frame
from arrow_format.log.output_table import are_names
from arrow_format.model import MAX_INTEGER, Name, Natural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.model import Transaction


class JobEnd(Struct, frozen=True, array_like=True):
    """How a job ended, according to the log."""

    version: Natural
    """Number of the entry that committed it, or gave it up."""
    fenced: bool


_SCHEMA = pa.schema(
    [
        pa.field("job_id", pa.string(), False),
        pa.field("number", pa.int64(), False),
        pa.field("fenced", pa.bool_(), False),
        pa.field("num_outputs", pa.int64(), False),
        pa.field("num_rows", pa.int64(), False),
        pa.field("num_bytes", pa.int64(), False),
        pa.field("application", pa.string()),
        pa.field("transaction", pa.int64()),
    ]
)
NO_JOBS = pa.Table.from_batches([], _SCHEMA)


def committed_at(
    number: int,
    job_id: str,
    sums: tuple[int, int, int],
    transaction: Transaction | None,
) -> pa.Table:
    """Return the job that an entry commits: ``sums`` are its map outputs, rows and bytes."""
    of_transaction = [pa.nulls(1, field.type) for field in list(_SCHEMA)[6:]]
    if transaction is not None:
        name, its_number = transaction.application_id, transaction.number
        of_transaction = [text_array([name]), to_arrow(np.array([its_number]))]
    before, *after = [to_arrow(np.array([value], np.int64)) for value in (number, *sums)]
    columns = [text_array([job_id]), before, to_arrow(np.zeros(1, np.bool_)), *after]
    return pa.Table.from_arrays([*columns, *of_transaction], schema=_SCHEMA)


def given_up_at(number: int, job_ids: Sequence[str]) -> pa.Table:
    """Return the jobs that an entry gives up."""
    if not job_ids:
        return NO_JOBS
    zeros = to_arrow(np.zeros(len(job_ids), np.int64))
    columns = [
        text_array(job_ids),
        to_arrow(np.full(len(job_ids), number, np.int64)),
        to_arrow(np.ones(len(job_ids), np.bool_)),
        *[zeros] * 3,
        *(pa.nulls(len(job_ids), field.type) for field in list(_SCHEMA)[6:]),
    ]
    return pa.Table.from_arrays(columns, schema=_SCHEMA)


def end_in(jobs: pa.Table, job_id: str) -> JobEnd | None:
    """Return how a job ended according to a table of such; None if it did not."""
    at = pc.index(jobs.column("job_id"), text_array([job_id])[0]).as_py()
    if at < 0:
        return None
    return JobEnd(jobs.column("number")[at].as_py(), jobs.column("fenced")[at].as_py())


def end_of_transaction(jobs: pa.Table, application: str, number: int) -> dict[str, Any] | None:
    """Return the row of the job that committed a number of an application; None without one."""
    mine = pc.and_(
        pc.equal(jobs.column("application"), text_array([application])[0]),
        pc.equal(jobs.column("transaction"), to_scalar(number, pa.int64())),
    )
    at = pc.index(mine, to_scalar(True, pa.bool_())).as_py()
    return None if at < 0 else jobs.slice(at, 1).to_pylist()[0]


def join_jobs(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the jobs of several tables, one after the other."""
    return pa.concat_tables([NO_JOBS, *tables]).combine_chunks()


def decode_jobs(data: bytes, after: int, last: int) -> pa.Table:
    """Decode the jobs that ended in a range of numbers; raises ValueError or as Arrow does."""
    jobs = decode_table(data, _SCHEMA)
    numbers = to_numpy(jobs.column("number").combine_chunks())
    if len(numbers) and not after < int(numbers.min()) <= int(numbers.max()) <= last:
        msg = f"a job did not end after {after} and up to {last}"
        raise ValueError(msg)
    if not are_names(jobs.column("job_id").combine_chunks()):
        msg = "a job has no name of a job"
        raise ValueError(msg)
    application, number = jobs.column("application"), jobs.column("transaction")
    if not application.is_null().equals(number.is_null()):
        msg = "a job has an application and no number of it, or a number alone"
        raise ValueError(msg)
    if not are_names(application.combine_chunks().drop_null()):
        msg = "a job has no name of an application"
        raise ValueError(msg)
    return jobs


class _Removed(Struct, omit_defaults=True):
    commit_ids: tuple[Name, ...]
    receipts: Mapping[Natural, dict[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class RemovedSegment:
    """What remains of a segment whose entries were removed."""

    commit_ids: frozenset[str]
    """Of its entries: a writer whose own is not among them put it after the removal."""
    jobs: pa.Table
    """How each job ended that ended in it."""
    receipts: Mapping[int, Mapping[str, Any]]
    """Of deletions that are transactions, by the number of their entries."""


def encode_removed(
    commit_ids: Sequence[str],
    jobs: Sequence[pa.Table],
    receipts: Mapping[int, dict[str, Any]] | None = None,
) -> bytes:
    """Encode what remains of the entries of a segment, with the jobs that each ended.

    ``receipts`` are of deletions that are transactions, by the number of their entries.
    """
    value = _Removed(tuple(commit_ids), receipts or {})
    return to_frame(value, {"jobs": encode_table(join_jobs(jobs))})


def decode_removed(data: bytes) -> RemovedSegment:
    """Inverse of :func:`encode_removed`; raises CorruptShuffleError or FormatVersionError."""
    value, sections = from_frame(data, _Removed)
    with corrupt_if_malformed("list of removed entries"):
        jobs = decode_jobs(sections["jobs"], 0, MAX_INTEGER)
    return RemovedSegment(frozenset(value.commit_ids), jobs, value.receipts)
