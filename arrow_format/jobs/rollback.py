"""Rollback: a new version with the map outputs of an earlier one. No file is written or moved."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from msgspec.structs import replace

from arrow_format.jobs.cleanup import publish
from arrow_format.jobs.commit import receipt_of
from arrow_format.jobs.map_outputs import check_files
from arrow_format.log.commit_log import CommitLog, draft
from arrow_format.log.conflicts import Claims, check_needs, check_version_number
from arrow_format.log.pending import no_version_error
from arrow_format.log.state import Undone
from arrow_format.log.version_names import parse_version_name, resolve_version
from arrow_format.options import check_flag
from arrow_format.read.shuffle import check_there
from arrow_format.read.totals import totals_of
from arrow_format.storage.open import Place, open_storage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogView
    from arrow_format.log.version_names import VersionName


def rollback_shuffle(
    path: Place,
    version: VersionName,
    *,
    expected_version: int | None = None,
    undo_deletions: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> ShuffleReceipt:
    """Commit a new version with the rows of an earlier one: what came after it is undone.

    Parameters, result and errors are those of :meth:`arrow_shuffle.Shuffle.rollback`.
    """
    check_version_number(expected_version)
    check_flag("undo_deletions", undo_deletions)
    wanted = parse_version_name(version)
    storage = open_storage(path, storage_options)
    check_there(storage)
    log = CommitLog(storage)
    source = log.read(lambda view: resolve_version(log, view, wanted) or 0)
    are_checked = False

    def decide(view: LogView) -> LogEntry:
        nonlocal are_checked
        if not view.state.version:
            raise no_version_error(log)
        claims = Claims(expected_version, source=source, undo_deletions=undo_deletions)
        check_needs("rollback", log, view, claims)
        snapshot = log.version_at(view, source)
        if not are_checked:  # they are removed after the version has expired, which is seen above
            advice = "it is needed for the rollback; nothing was changed. Restore it from a copy"
            check_files(storage, snapshot.map_outputs, advice)
            are_checked = True
        # An overwrite is recognised by its new shuffle id.
        shape = replace(snapshot.newest.shape, shuffle_id=uuid.uuid4().hex)
        return draft(
            view,
            "rollback",
            state={"shape": shape, "undone": _undone(view, source)},
            map_outputs=snapshot.map_outputs.without_positions(),
            totals=totals_of(snapshot, storage.root),
        )

    entry = publish(log, decide, f"version {source} was rolled back to")
    return receipt_of(storage, entry)


def _undone(view: LogView, source: int) -> Undone | None:
    """Return what is undone of deletions after a rollback to a version."""
    before = view.state.undone
    if source >= view.state.deleted:
        return before
    after = source if before is None else min(source, before.after)
    return Undone(after, view.newest + 1)
