"""Whether the last byte of deleted rows is gone: no version names their files, and none exists."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from arrow_format.concurrency import run_concurrently
from arrow_format.errors import OptionError
from arrow_format.jobs.deletion_receipt import DeletionReceipt, kept_by_store
from arrow_format.jobs.job_files import job_directory
from arrow_format.log.changes import has_commit
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.holding_versions import first_holding, ranges_after
from arrow_format.model import DATA_SUFFIX, INDEX_SUFFIX
from arrow_format.options import check_type
from arrow_format.read.presentation import count_of
from arrow_format.read.shuffle import check_there
from arrow_format.report import Report
from arrow_format.storage.local_dirs import known_roots
from arrow_format.storage.open import Place, open_made_directory, open_storage
from arrow_format.storage.root_owner import LocalRoot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from arrow_format.jobs.deletion_receipt import HoldingFile
    from arrow_format.log.reader import LogReader, LogView
    from arrow_format.storage.open import Storage


@dataclass(frozen=True, slots=True)
class ErasureStatus(Report):
    """What still holds the rows that a deletion took out of a shuffle.

    Parameters
    ----------
    path
        Absolute path or URI of the shuffle.
    versions
        First and last of each range of versions, ascending, that can be opened and name a file of
        the receipt, or one that a merge or a later deletion made of such files after
        :attr:`rolled_back`. Of those before the deletion some between the two may name none.
    rolled_back
        The last version that brought rows back which deletions had taken away, this one among them
        or one committed close to it; 0 for none. The rows may be in files of any name since.
    tags
        Tags of versions that name such a file.
    pending
        Pending commits of the receipt that were not flushed.
    flushed
        Pending commits of the receipt that were flushed since: a version may have their rows again.
    unsearched_version
        As in the receipt: versions up to this one were appended while the deletion ran.
    bound_columns
        As in the receipt, while the newest version, a tag or an entry of the log may have these
        bounds. Bounds of a later write are not among them, whatever values they are: only another
        deletion looks for its keys there.
    statistics_columns
        As in the receipt, while the log has anything from before the deletion.
    files
        Absolute paths or URIs of files of the receipt that exist.
    unreachable
        Local directories of files that cannot be seen from this machine: they do not hold the id
        that a job put there.
    files_with_dropped_columns
        Files of the newest version that have columns which were dropped: dropping erases nothing.
        Values of the rows that were not deleted; :attr:`is_gone` says nothing of them.
    masked
        Whether the deletion only marked the rows as gone (``erase=False``): nothing follows when
        their bytes go, so that they never count as gone.
    """

    path: str
    versions: tuple[tuple[int, int], ...]
    rolled_back: int
    tags: tuple[str, ...]
    pending: tuple[int, ...]
    flushed: tuple[int, ...]
    unsearched_version: int
    bound_columns: tuple[str, ...]
    statistics_columns: tuple[str, ...]
    files: tuple[str, ...]
    unreachable: tuple[str, ...]
    files_with_dropped_columns: int = 0
    masked: bool = False

    @property
    def is_gone(self) -> bool:
        """Whether the last byte of the rows is gone, as far as an object store lists it.

        Versioning and soft delete of a store keep bytes that no listing shows.
        """
        return not (
            self.versions
            or self.rolled_back
            or self.tags
            or self.pending
            or self.flushed
            or self.unsearched_version
            or self.bound_columns
            or self.statistics_columns
            or self.files
            or self.unreachable
            or self.masked
        )

    @property
    def _compact(self) -> str:
        return f"arrow-shuffle gc {self.path} --compact-log when earlier versions may expire"

    def _lines(self) -> Iterator[str]:
        if self.is_gone:
            listed = ", as far as the store lists it" if "://" in self.path else ""
            yield f"{self.path}: the last byte of the deleted rows is gone{listed}"
            yield from kept_by_store(self.path)
        else:
            yield f"{self.path}: the deleted rows are not gone"
        if self.masked:
            yield (
                "  masked     the rows were marked as gone, and not erased; delete the keys again "
                f"without --no-erase{_KEEP}"
            )
        if self.versions:
            named = ", ".join(map(_range_text, self.versions))
            yield f"  versions   {named}; run arrow-shuffle gc {self.path} when they may expire"
        if self.rolled_back:
            yield (
                f"  undone     version {self.rolled_back} was rolled back to one before the "
                f"deletion; delete again{_KEEP}"
            )
        if self.tags:
            yield f"  tags       {', '.join(self.tags)}; remove them, and collect garbage"
        if self.pending:
            numbers = ", ".join(map(str, self.pending))
            yield f"  pending    commits {numbers}; flush them, and delete again{_KEEP}"
        if self.flushed:
            numbers = ", ".join(map(str, self.flushed))
            yield f"  flushed    commits {numbers}, after the deletion; delete again{_KEEP}"
        if self.unsearched_version:
            yield (
                f"  unsearched versions up to {self.unsearched_version}, appended while the "
                f"deletion ran; delete again{_KEEP}"
            )
        if self.files:
            count = count_of(len(self.files), "file")
            yield f"  on disk    {count}, such as {self.files[0]}; run arrow-shuffle gc {self.path}"
        if self.unreachable:
            yield f"  unseen     {', '.join(self.unreachable)}; mount them, and look again"
        if self.bound_columns:
            yield (
                f"  bounds     values of {', '.join(self.bound_columns)} are range bounds; "
                f"overwrite the shuffle with other bounds, and run {self._compact}"
            )
        if self.statistics_columns:
            yield (
                f"  statistics values of {', '.join(self.statistics_columns)} in old entries of "
                f"the log may be of deleted rows; run {self._compact}"
            )
        if self.files_with_dropped_columns:
            count = count_of(self.files_with_dropped_columns, "file")
            yield (
                f"  note       {count} of the newest version have columns that were dropped, which "
                f"erases nothing; a merge that joins them does: arrow-shuffle merge {self.path} "
                "--rewrite always"
            )


_KEEP = ", and keep that receipt in the place of this one"


def _range_text(versions: tuple[int, int]) -> str:
    first, last = versions
    return str(first) if first == last else f"{first} to {last}"


def erasure_status(
    path: Place,
    receipt: DeletionReceipt,
    *,
    storage_options: Mapping[str, str] | None = None,
) -> ErasureStatus:
    """Return what still holds the rows that a deletion took out of a shuffle.

    Parameters
    ----------
    path
        Directory or URI of the shuffle.
    receipt
        What :func:`~arrow_format.delete_rows` returned.
    storage_options
        As for :func:`~arrow_format.open_shuffle`.

    Returns
    -------
    ErasureStatus
        ``is_gone`` once no version, tag or pending commit names a file that held the rows, these
        files do not exist any more, and the log has no bound that may be of one.

    Raises
    ------
    OptionError
        The receipt is not one, or of a deletion that the log of this shuffle does not have: it is
        another shuffle, or one that was restored, or repaired, to before the deletion.
    ShuffleNotFoundError
        The path holds no directory.
    CorruptShuffleError, FormatVersionError
        The log cannot be read.
    """
    check_type("receipt", receipt, DeletionReceipt)
    storage = open_storage(path, storage_options)
    check_there(storage)
    log = CommitLog(storage)
    status = log.read(partial(_status, log, receipt))
    files, unreachable = _existing(storage, receipt.files)
    return replace(status, files=files, unreachable=unreachable)


def _status(log: LogReader, receipt: DeletionReceipt, view: LogView) -> ErasureStatus:
    """Return what the log says of a status; the files are still to be looked for."""
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
    tags = (
        name
        for name, tag in state.tags.items()
        if (tag.version < version or rolled_back)
        and len(log.version_at(view, tag.version).map_outputs.among(keys))
    )
    waiting = {*state.pending.numbers}
    is_old = has_bounds = False
    if receipt.bound_columns or receipt.statistics_columns:
        is_old = _has_old(log, view, version)
        has_bounds = is_old or _has_bounds(log, view, version)
    return ErasureStatus(
        path=log.root,
        versions=tuple(versions),
        rolled_back=rolled_back,
        tags=tuple(tags),
        pending=tuple(number for number in receipt.pending if number in waiting),
        flushed=tuple(number for number in receipt.pending if number not in waiting),
        unsearched_version=receipt.unsearched_version,
        bound_columns=receipt.bound_columns if has_bounds else (),
        statistics_columns=receipt.statistics_columns if is_old else (),
        files=(),
        unreachable=(),
        files_with_dropped_columns=_num_with_dropped(log, view),
        masked=not receipt.erases,
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
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the paths of files that exist, and local directories that cannot be seen."""
    opened = {file.root: open_made_directory(file.root) for file in files if file.root}
    unseen = {root.path: root.directory for root in _roots(storage, files) if not root.is_seen}
    named = [
        (opened.get(file.root, storage), file.path + suffix)
        for file in files
        if file.root not in unseen
        for suffix in (DATA_SUFFIX, INDEX_SUFFIX)
    ]
    calls = [partial(directory.stat, path) for directory, path in named]
    stats = run_concurrently(calls, storage.max_requests)
    existing = (
        f"{directory.root}/{path}"
        for (directory, path), stat in zip(named, stats, strict=True)
        if stat is not None
    )
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
