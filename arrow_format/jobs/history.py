"""The versions of a shuffle, as its log has them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from arrow_format.log.changes import entries_of
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.pending import no_version_error
from arrow_format.read.presentation import format_bytes
from arrow_format.read.shuffle import check_there
from arrow_format.report import Report
from arrow_format.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from arrow_format.log.reader import LogView
    from arrow_format.storage.open import Place


@dataclass(frozen=True, slots=True)
class CommittedVersion(Report):
    """A version, and what its commit did.

    .. code-block:: python

        newest = orders.history()[-1]
        print(newest.version, newest.operation, newest.num_rows)

    Attributes
    ----------
    version
        Its number.
    committed_at
        When, by the clock of the machine that committed it; in UTC.
    operation
        ``append``, ``overwrite``, ``merge``, ``delete``, ``rollback``, ``alter`` or ``release``.
    num_outputs
        Map outputs that it wrote.
    num_rows
        Rows in these; a broadcast row counts once.
    num_bytes
        Bytes of their data files.
    transaction
        Application and number of the transaction that it belongs to; None for none.
    tags
        Names under which it is kept.
    """

    version: int
    committed_at: datetime
    operation: str
    num_outputs: int
    num_rows: int
    num_bytes: int
    transaction: tuple[str, int] | None
    tags: tuple[str, ...]

    def _lines(self) -> Iterator[str]:
        named = f" ({', '.join(self.tags)})" if self.tags else ""
        wrote = ""
        if self.num_outputs:
            outputs = (
                "1 map output" if self.num_outputs == 1 else f"{self.num_outputs:,} map outputs"
            )
            wrote = f": {self.num_rows:,} rows in {outputs}, {format_bytes(self.num_bytes)}"
        at = f"{self.committed_at:%Y-%m-%d %H:%M:%S} UTC"
        yield f"version {self.version}{named} {at} {self.operation}{wrote}"


def history_of(
    path: Place, *, storage_options: Mapping[str, str] | None = None
) -> tuple[CommittedVersion, ...]:
    """Return the versions that can be opened, but for those that only a tag keeps, ascending.

    Parameters, result and errors are those of :meth:`arrow_shuffle.Shuffle.history`.
    """
    storage = open_storage(path, storage_options)
    check_there(storage)
    log = CommitLog(storage)
    found = log.read(lambda view: _history(log, view) if view.newest else None)
    if found is None:
        raise no_version_error(log)
    return found


def _history(log: CommitLog, view: LogView) -> tuple[CommittedVersion, ...]:
    tags: dict[int, list[str]] = {}
    for name, tag in sorted(view.state.tags.items()):
        tags.setdefault(tag.version, []).append(name)
    return tuple(
        CommittedVersion(
            version=entry.version,
            committed_at=datetime.fromtimestamp(entry.committed_at_ms / 1000, UTC),
            operation=entry.operation,
            num_outputs=entry.own_sums[0],
            num_rows=entry.own_sums[1],
            num_bytes=entry.num_bytes,
            transaction=(
                None
                if entry.transaction is None
                else (entry.transaction.application_id, entry.transaction.number)
            ),
            tags=tuple(tags.get(entry.version, ())),
        )
        for entry in entries_of(log, range(view.oldest, view.newest + 1))
    )
