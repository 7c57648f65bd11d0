"""Whether the last byte of deleted rows is gone: no version names their files, and none exists."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from arrow_format.concurrency import run_concurrently
from arrow_format.errors import OptionError
from arrow_format.jobs.deletion_receipt import DeletionReceipt
from arrow_format.log.changes import entries_of
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.delta import Delta, compose
from arrow_format.log.pending import pending_outputs
from arrow_format.log.version_names import first_version
from arrow_format.model import DATA_SUFFIX, INDEX_SUFFIX
from arrow_format.options import check_type
from arrow_format.read.presentation import count_of
from arrow_format.read.shuffle import check_there
from arrow_format.storage.open import Place, open_made_directory, open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from arrow_format.jobs.deletion_receipt import HoldingFile
    from arrow_format.log.reader import LogReader, LogView
    from arrow_format.storage.open import Storage


@dataclass(frozen=True, slots=True)
class ErasureStatus:
    """What still holds the rows that a deletion took out of a shuffle.

    Parameters
    ----------
    path
        Absolute path or URI of the shuffle.
    versions
        Versions that name a file of the receipt and can be opened, ascending.
    tags
        Tags of versions that name such a file.
    pending
        Pending commits of the receipt that were not flushed.
    flushed
        Pending commits of the receipt that were flushed since: a version may have their rows again.
    unsearched_version
        As in the receipt: versions up to this one were appended while the deletion ran.
    bound_columns
        As in the receipt, while the shuffle still has range bounds.
    statistics_columns
        As in the receipt.
    files
        Absolute paths or URIs of files of the receipt that exist.
    unreachable
        Directories of files that cannot be seen from this machine.
    """

    path: str
    versions: tuple[int, ...]
    tags: tuple[str, ...]
    pending: tuple[int, ...]
    flushed: tuple[int, ...]
    unsearched_version: int
    bound_columns: tuple[str, ...]
    statistics_columns: tuple[str, ...]
    files: tuple[str, ...]
    unreachable: tuple[str, ...]

    @property
    def is_gone(self) -> bool:
        """Whether the last byte of the rows is gone, but for bounds of ranges and in the log."""
        return not (
            self.versions
            or self.tags
            or self.pending
            or self.flushed
            or self.unsearched_version
            or self.files
            or self.unreachable
        )

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        is_gone = "the last byte of the deleted rows is gone"
        yield f"{self.path}: {is_gone if self.is_gone else 'the deleted rows are not gone'}"
        if self.versions:
            named = ", ".join(map(str, self.versions[:8])) + (" ..." if self.versions[8:] else "")
            yield f"  versions   {named}; run arrow-shuffle gc {self.path} when they may expire"
        if self.tags:
            yield f"  tags       {', '.join(self.tags)}; remove them, and collect garbage"
        if self.pending:
            numbers = ", ".join(map(str, self.pending))
            yield f"  pending    commits {numbers}; flush them, and delete again"
        if self.flushed:
            numbers = ", ".join(map(str, self.flushed))
            yield f"  flushed    commits {numbers}, after the deletion; delete again"
        if self.unsearched_version:
            yield (
                f"  unsearched versions up to {self.unsearched_version}, appended while the "
                "deletion ran; delete again"
            )
        if self.files:
            count = count_of(len(self.files), "file")
            yield f"  on disk    {count}, such as {self.files[0]}; run arrow-shuffle gc {self.path}"
        if self.unreachable:
            yield f"  unseen     {', '.join(self.unreachable)}; check where these directories exist"
        if self.bound_columns:
            yield (
                f"  bounds     values of {', '.join(self.bound_columns)} are range bounds; "
                "overwrite the shuffle with other bounds"
            )
        if self.statistics_columns:
            yield (
                f"  statistics values of {', '.join(self.statistics_columns)} were bounds of "
                "files, and are in old entries of the log until their segment is removed"
            )


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
        ``is_gone`` once no version, tag or pending commit names a file that held the rows, and
        these files do not exist any more.

    Raises
    ------
    OptionError
        The receipt is not one, or of a deletion of versions that this shuffle does not have.
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
    state = view.state
    if state.version < receipt.version:
        msg = (
            f"{log.root}: the newest version is {state.version}, and the receipt is of version "
            f"{receipt.version}; give the shuffle that the rows were deleted from"
        )
        raise OptionError(msg)
    keys = pa.array({f"{file.job_id}/{file.map_task}" for file in receipt.files}, pa.string())
    tags = (
        name
        for name, tag in state.tags.items()
        if len(log.version_at(view, tag.version).map_outputs.among(keys))
    )
    waiting = pending_outputs(log, view).numbers if receipt.pending else ()
    has_bounds = state.shape is not None and state.shape.partitioner.get("kind") == "range"
    return ErasureStatus(
        path=log.root,
        versions=tuple(_versions_with(log, view, keys)) if len(keys) else (),
        tags=tuple(tags),
        pending=tuple(number for number in receipt.pending if number in waiting),
        flushed=tuple(number for number in receipt.pending if number not in waiting),
        unsearched_version=receipt.unsearched_version,
        bound_columns=receipt.bound_columns if has_bounds else (),
        statistics_columns=receipt.statistics_columns,
        files=(),
        unreachable=(),
    )


def _versions_with(log: LogReader, view: LogView, keys: pa.Array) -> Iterator[int]:
    """Yield the versions, ascending, that have a map output of these keys."""
    first = first_version(log, view)
    if first is None:
        return
    held = Delta(log.content_at(view, first).map_outputs.among(keys))
    if len(held.added):
        yield first.version
    for entry in entries_of(log, range(first.version + 1, view.newest + 1)):
        held = Delta(compose([held, entry.delta]).added.among(keys))
        if len(held.added):
            yield entry.version


def _existing(
    storage: Storage, files: Sequence[HoldingFile]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the paths of files that exist, and local directories that cannot be seen."""
    opened = {file.root: open_made_directory(file.root) for file in files if file.root}
    unreachable = {
        root
        for root, directory in opened.items()
        if directory.stat("") is None
        and open_made_directory(posixpath.dirname(root)).stat("") is None
    }
    named = [
        (opened.get(file.root, storage), file.path + suffix)
        for file in files
        if file.root not in unreachable
        for suffix in (DATA_SUFFIX, INDEX_SUFFIX)
    ]
    calls = [partial(directory.stat, path) for directory, path in named]
    stats = run_concurrently(calls, storage.max_requests)
    existing = (
        f"{directory.root}/{path}"
        for (directory, path), stat in zip(named, stats, strict=True)
        if stat is not None
    )
    return tuple(existing), tuple(sorted(unreachable))
