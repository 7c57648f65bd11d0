"""Whether the last byte of deleted rows is gone: no version names their files, and none exists."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from arrow_format.concurrency import run_concurrently
from arrow_format.errors import OptionError
from arrow_format.jobs.deletion_receipt import DeletionReceipt
from arrow_format.jobs.job_files import job_directory
from arrow_format.jobs.reader_holds import reader_holds
from arrow_format.log.changes import has_commit
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.holding_versions import first_holding, ranges_after
from arrow_format.model import DATA_SUFFIX, INDEX_SUFFIX
from arrow_format.options import check_type
from arrow_format.read.shuffle import check_there
from arrow_format.storage.local_dirs import known_roots
from arrow_format.storage.open import Place, open_made_directory, open_storage
from arrow_format.storage.root_owner import LocalRoot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from arrow_format.jobs.deletion_receipt import HoldingFile
    from arrow_format.log.reader import LogReader, LogView
    from arrow_format.storage.open import Storage


def erasure_status(
    path: Place,
    receipt: DeletionReceipt,
    *,
    storage_options: Mapping[str, str] | None = None,
) -> DeletionReceipt:
    """Return what still holds the rows that a deletion took out of a shuffle.

    Parameters, result and errors are those of :meth:`arrow_shuffle.Shuffle.erasure_status`.
    """
    check_type("receipt", receipt, DeletionReceipt)
    if receipt.is_looked_at:
        msg = (
            "the receipt is what erasure_status() returned, which no longer says all that held the "
            "rows; give the one that delete() returned"
        )
        raise OptionError(msg)
    storage = open_storage(path, storage_options)
    check_there(storage)
    log = CommitLog(storage)
    looked_at = log.read(partial(_looked_at, storage, log, receipt))
    files, unreachable = _existing(storage, receipt.files)
    return replace(looked_at, files=files, unreachable=unreachable)


def _looked_at(
    storage: Storage, log: LogReader, receipt: DeletionReceipt, view: LogView
) -> DeletionReceipt:
    """Return the receipt with what the log says; the files are still to be looked for."""
    state, version = view.state, receipt.version
    if state.version < version or not has_commit(log, view, version, receipt.commit_id):
        msg = (
            f"{log.root}: the receipt is of version {version}, commit {receipt.commit_id}, which "
            f"this log does not have; its newest version is {state.version}. Give the shuffle that "
            "the rows were deleted from. If its log was restored or repaired since, the rows may "
            "be back: delete them again"
        )
        raise OptionError(msg)
    keys = pa.array({f"{file.job_id}/{file.map_task}" for file in receipt.files}, pa.string())
    first = first_holding(log, view, keys, version, receipt.pending)
    versions = [] if first is None else [(first, version - 1)]
    rolled_back = 0
    if state.undone is not None and state.undone.after < version < state.undone.before:
        rolled_back = state.undone.before
        later, keys = ranges_after(log, view, keys, version)
        versions += later
    readers = {
        str(hold): hold.version
        for hold in (reader_holds(storage) if versions else ())
        if hold.version <= versions[-1][1] and hold.keeps(state)
    }
    tags = {
        name: tag.version
        for name, tag in state.tags.items()
        if (tag.version < version or rolled_back)
        and len(log.version_at(view, tag.version).map_outputs.among(keys))
    }
    waiting = {*state.pending.numbers}
    is_old = has_bounds = False
    if receipt.bound_columns or receipt.statistics_columns:
        is_old = _has_old(log, view, version)
        has_bounds = is_old or _has_bounds(log, view, version)
    return replace(
        receipt,
        path=log.root,
        is_looked_at=True,
        versions=tuple(versions),
        readers=readers,
        rolled_back=rolled_back,
        tags=tags,
        pending=tuple(number for number in receipt.pending if number in waiting),
        flushed=tuple(number for number in receipt.pending if number not in waiting),
        bound_columns=receipt.bound_columns if has_bounds else (),
        statistics_columns=receipt.statistics_columns if is_old else (),
        files_with_dropped_columns=_num_with_dropped(log, view),
    )


def _num_with_dropped(log: LogReader, view: LogView) -> int:
    """Count files of the newest version with columns that it does not have."""
    newest = log.snapshot_of(view)
    return 0 if newest is None else newest.map_outputs.num_files_beyond(newest.newest.columns.ids)


def _has_old(log: LogReader, view: LogView, version: int) -> bool:
    """Whether the log has anything from before a version."""
    return (
        log.first_kept(view) < version
        or any(tag.version < version for tag in view.state.tags.values())
        or log.has_leftovers()
    )


def _has_bounds(log: LogReader, view: LogView, version: int) -> bool:
    """Whether the log, which begins at a version or later, may have the range bounds of that."""
    first, newest = log.first_kept(view), view.state.shape
    if first < view.state.blank or newest is None:
        return True  # a late checkpoint
    entries = [log.version_at(view, tag.version).newest for tag in view.state.tags.values()]
    # In a segment that is being removed, perhaps. One that a collection which died made blank has
    # no shape.
    oldest = log.apart().named(first).state.shape
    if oldest is None or oldest.shuffle_id != newest.shuffle_id:
        return True  # in between there may be any
    shapes = [newest, *(entry.shape for entry in entries)]
    return any(0 < shape.bounds_since <= version for shape in shapes)


def _existing(
    storage: Storage, files: Sequence[HoldingFile]
) -> tuple[tuple[HoldingFile, ...], tuple[str, ...]]:
    """Return the files that exist, and local directories that cannot be seen."""
    opened = {file.root: open_made_directory(file.root) for file in files if file.root}
    unseen = {root.path: root.directory for root in _roots(storage, files) if not root.is_seen}
    seen = [file for file in files if file.root not in unseen]
    calls = [
        partial(opened.get(file.root, storage).stat, file.path + suffix)
        for file in seen
        for suffix in (DATA_SUFFIX, INDEX_SUFFIX)
    ]
    stats = run_concurrently(calls, storage.max_requests)
    pairs = zip(stats[::2], stats[1::2], strict=True)
    existing = (file for file, pair in zip(seen, pairs, strict=True) if pair != (None, None))
    return tuple(existing), tuple(sorted(set(unseen.values())))


def _roots(storage: Storage, files: Sequence[HoldingFile]) -> Iterator[LocalRoot]:
    """Yield the local roots that files are in, as the receipt knows them, or else their lists."""
    named: dict[str, set[str]] = {}
    for file in files:
        if file.directory_id:
            yield LocalRoot(file.root, file.directory_id)
        elif file.root:
            named.setdefault(file.job_id, set()).add(file.root)
    for job_id, roots in named.items():
        known = known_roots(storage, job_directory(job_id), roots)
        yield from (root for root in known if root.path in roots)
