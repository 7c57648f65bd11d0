"""What each application committed last: by this a commit that is repeated is known for what it is.

A stream that is restarted commits its last batch again, in another job. So what makes it happen
once is not the job but the :class:`~arrow_format.model.Transaction` in the log entry. Entries
expire; checkpoints keep the last commit of each application for as long as the shuffle is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format.concurrency import ReadAhead
from arrow_format.log.record import LastCommit, entry_of

if TYPE_CHECKING:
    from arrow_format.log.names import LogIndex
    from arrow_format.log.reader import LogReader
    from arrow_format.log.record import LogRecord
    from arrow_format.model import Transaction


def find_transaction(log: LogReader, transaction: Transaction) -> LastCommit | None:
    """Return the commit of a transaction, or of a later one of its application; None: neither."""

    def look(index: LogIndex) -> LastCommit | None:
        return last_commit(log, index, transaction.application_id)

    found = log.read(look)
    return found if found is not None and found.number >= transaction.number else None


def last_commit(log: LogReader, index: LogIndex, application_id: str) -> LastCommit | None:
    """Return what an application committed last according to a listing; None: nothing."""
    ahead = ReadAhead(log.record, log.max_requests, index.checkpoints)
    for number in range(index.newest, 0, -1):
        if number in index.checkpoints:
            return log.checkpoint(number).applications.get(application_id)
        ahead.come_to(number)
        found = _commit_of(log.record(number))
        if found is not None and found[0] == application_id:
            return found[1]
    return None


def all_last_commits(log: LogReader, index: LogIndex, number: int) -> dict[str, LastCommit]:
    """Return what every application had committed last up to a number of the log."""
    last: dict[str, LastCommit] = {}
    while number > 0:
        if number in index.checkpoints:
            return {**log.checkpoint(number).applications, **last}
        found = _commit_of(log.record(number))
        if found is not None:
            last.setdefault(*found)
        number -= 1
    return last


def _commit_of(record: LogRecord) -> tuple[str, LastCommit] | None:
    """Return application and commit of an entry that is part of a transaction."""
    entry = entry_of(record)
    if entry is None or entry.transaction is None:
        return None
    one = entry.transaction
    return one.application_id, LastCommit(entry.version, one.number)
