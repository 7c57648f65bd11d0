"""Which transactions the log has: an application's numbers, each of which is committed once.

The state of the log has the largest number of each application, for ever, so that the newest entry
says whether a number is new. Whether a smaller one was committed is searched for: in entries and
checkpoints, and in the lists of removed segments, which outlive everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from arrow_format.errors import CommitConflictError, CorruptShuffleError
from arrow_format.log.delta import decoded
from arrow_format.log.entry import BLANK
from arrow_format.log.job_ends import end_of_transaction
from arrow_format.log.names import expired_path, segment_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogReader, LogView
    from arrow_format.model import Transaction


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    """What the log has of a transaction."""

    version: int
    """Number of its entry; a version, unless it is pending."""
    num_rows: int
    num_bytes: int
    num_outputs: int
    entry: LogEntry | None
    """None where its segment was removed, long after its version expired."""
    receipt: Mapping[str, Any] | None
    """Of a deletion, what was returned."""


def find_transaction(
    log: LogReader, transaction: Transaction, *, deletes: bool = False
) -> CommittedTransaction | None:
    """Return what the log has of a transaction, by a read of its own; see :func:`committed_by`."""
    return log.read(lambda view: committed_by(log, view, transaction, deletes=deletes))


def committed_by(
    log: LogReader, view: LogView, transaction: Transaction, *, deletes: bool = False
) -> CommittedTransaction | None:
    """Return what the log has of a transaction; None if it may be committed.

    Raises CommitConflictError where a larger number of its application is committed, and it is not;
    and where it is a deletion and the caller writes, or ``deletes`` and it is none.
    """
    found = _committed_by(log, view, transaction)
    if found is not None and (found.receipt is not None) != deletes:
        did, does = ("written", "deletes") if deletes else ("deleted", "writes")
        msg = (
            f"{log.root}: as number {transaction.number} of application "
            f"{transaction.application_id!r} rows were {did} (entry {found.version} of the log); "
            f"nothing was changed. Give what {does} rows a number or an application of its own"
        )
        raise CommitConflictError(msg)
    return found


def _committed_by(
    log: LogReader, view: LogView, transaction: Transaction
) -> CommittedTransaction | None:
    application, number = transaction.application_id, transaction.number
    last = log.last_commit(view, application)
    if last is None or last.number < number:
        return None
    if last.number == number:
        return _at(log, view, last.version, transaction)
    for ends in _all_ends(log, view):
        found = end_of_transaction(ends, application, number)
        if found is not None:
            return _at(log, view, found["number"], transaction)
    msg = (
        f"{log.root}: number {number} of application {application!r} is not in the log, and "
        f"{last.number}, which comes after it, is (version {last.version}); nothing was committed. "
        "Numbers of an application ascend: write what was left out as an application of its own, "
        f"such as {application[:80]}-{number}"
    )
    raise CommitConflictError(msg)


def _at(
    log: LogReader, view: LogView, number: int, transaction: Transaction
) -> CommittedTransaction:
    """Return the transaction that a number of the log committed."""
    segment = segment_of(number)
    removed = log.removed(segment) if segment < segment_of(view.state.base) else None
    if removed is None:
        entry = log.named(number)
        kept = None if entry.operation == BLANK else entry
        return CommittedTransaction(
            number, entry.num_rows, entry.num_bytes, entry.num_outputs, kept, entry.receipt
        )
    end = end_of_transaction(removed.jobs, transaction.application_id, transaction.number)
    if end is None:
        msg = f"{log.root}/{expired_path(segment)}: lacks the transaction of number {number}"
        raise CorruptShuffleError(msg)
    sums = end["num_rows"], end["num_bytes"], end["num_outputs"]
    return CommittedTransaction(number, *sums, None, removed.receipts.get(number))


def _all_ends(log: LogReader, view: LogView) -> Iterator[pa.Table]:
    """Yield how all jobs ended, the latest first."""
    for piece in reversed(log.pieces(view, view.newest)):
        yield decoded(piece.delta.jobs)
    # A base forgets jobs that the list of a removed segment has.
    for segment in reversed(range(segment_of(view.state.base))):
        removed = log.removed(segment)
        if removed is not None:
            yield removed.jobs
