"""The last commit of each application, by which a commit that is repeated is recognised.

A restarted stream commits its last batch again, in another job. So not the job makes it happen
once, but the :class:`~arrow_format.model.Transaction` in the log entry. Entries expire; checkpoints
keep the last commit of each application for as long as the shuffle exists. Apart from
:mod:`~arrow_format.log.pending`, since most streams have transactions and no flush interval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format.log.checkpoint import Checkpoint
from arrow_format.log.record import LastCommit, LogRecord, entry_of

if TYPE_CHECKING:
    from arrow_format.log.names import LogIndex
    from arrow_format.log.reader import LogReader
    from arrow_format.model import Transaction


def find_transaction(log: LogReader, transaction: Transaction) -> LastCommit | None:
    """Return the commit of a transaction, or of a later one of its application, if any."""
    last = log.read(lambda index: last_commit(log, index, transaction.application_id))
    return last if last is not None and last.number >= transaction.number else None


def last_commit(log: LogReader, index: LogIndex, application_id: str) -> LastCommit | None:
    """Return the last commit of an application according to a listing, if any."""
    for record in log.walk_down(index, index.newest):
        if isinstance(record, Checkpoint):
            return record.applications.get(application_id)
        commit = _commit_of(record)
        if commit is not None and commit[0] == application_id:
            return commit[1]
    return None


def all_last_commits(log: LogReader, index: LogIndex, number: int) -> dict[str, LastCommit]:
    """Return the last commit of every application up to a number of the log."""
    last: dict[str, LastCommit] = {}
    for record in log.walk_down(index, number):
        if isinstance(record, Checkpoint):
            return {**record.applications, **last}
        commit = _commit_of(record)
        if commit is not None:
            last.setdefault(*commit)
    return last


def _commit_of(record: LogRecord) -> tuple[str, LastCommit] | None:
    """Return application and commit of an entry that belongs to a transaction."""
    entry = entry_of(record)
    if entry is None or entry.transaction is None:
        return None
    return entry.transaction.application_id, LastCommit(entry.version, entry.transaction.number)
