"""Removes a shuffle for good: a release that no writer goes on after, then all files, the log last.

The release is one entry of the log. With it every version is gone for readers, whatever kept it,
and writers are refused by a feature of the log. It is found as long as any file is there, since it
goes last. So a removal that was killed anywhere is finished by the next, and until then readers do
not get fewer rows, but an error that says why.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from arrow_format.errors import (
    ConsumerError,
    CorruptShuffleError,
    ShuffleNotFoundError,
    StorageError,
)
from arrow_format.jobs.gc_files import (
    Denied,
    Hold,
    JobFiles,
    ListedFiles,
    garbage_of_jobs,
    holds_in_roots,
    remove_groups,
    stored,
)
from arrow_format.jobs.job_files import job_of
from arrow_format.jobs.reader_holds import reader_holds
from arrow_format.log.commit_log import DROPPED, CommitLog, draft
from arrow_format.log.consumers import ConsumerRegistry
from arrow_format.log.entry import EXPIRE
from arrow_format.log.identity import claim_of
from arrow_format.log.names import (
    CONSUMER_DIRECTORY,
    DAMAGED_DIRECTORY,
    EXPIRED_DIRECTORY,
    IDENTITY_DIRECTORY,
    LOG_DIRECTORY,
    MAP_OUTPUT_DIRECTORY,
    TEMPORARY,
    entry_path,
)
from arrow_format.log.pending import last_pending
from arrow_format.log.result import Released
from arrow_format.log.state import PendingNumbers
from arrow_format.model import SAFE_NAME
from arrow_format.options import check_flag, ignore
from arrow_format.read.presentation import count_of, format_bytes
from arrow_format.read.shuffle import check_there
from arrow_format.report import Report
from arrow_format.storage.open import Place, open_storage
from arrow_format.storage.put_probe import PROBE_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from arrow_format.jobs.gc_files import StoredFile
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogView
    from arrow_format.log.state import LogState
    from arrow_format.storage.open import ObjectStat, Storage

_DIRECTORIES = (MAP_OUTPUT_DIRECTORY, CONSUMER_DIRECTORY, LOG_DIRECTORY)
"""All that a shuffle has, in the order of their removal."""

_DEPTH = 3
"""Of the files in each, at most."""

_FILE = re.compile(
    rf"{CONSUMER_DIRECTORY}/{SAFE_NAME.pattern}/[0-9]{{20}}\.json"
    rf"|{LOG_DIRECTORY}/[0-9]{{18}}/[0-9]{{20}}\.(entry|range)"
    rf"|{EXPIRED_DIRECTORY}/[0-9]{{18}}"
    rf"|{IDENTITY_DIRECTORY}/[0-9]{{20}}\.json"
    rf"|({DAMAGED_DIRECTORY}|{PROBE_DIRECTORY})/[^/]+"
)
"""Those of no job."""

_ROUNDS = 3
"""How often files are looked for that tasks and consumers put meanwhile."""


@dataclass(frozen=True, slots=True)
class DropReceipt(Report):
    """What :func:`~arrow_shuffle.drop_shuffle` removed.

    .. code-block:: python

        receipt = arrow_shuffle.drop_shuffle("/data/orders")
        print(receipt.num_files, receipt.num_bytes)

    Parameters
    ----------
    path
        Absolute path or URI of the shuffle.
    last_version
        The newest version that had rows or could be read; 0 for none.
    tags
        Versions by the tags that they had. Only of the call that began the removal.
    consumers
        Names of the consumers that are forgotten.
    num_files, num_bytes
        What this call removed; an earlier one, which was killed, may have removed more.
    left
        Files and directories at the path that are none of a shuffle, absolute: they stay.
    holds
        What keeps files in local directories. While there is any, the log stays too: do what it
        says, and drop the shuffle again.
    """

    path: str
    last_version: int
    tags: Mapping[str, int]
    consumers: tuple[str, ...]
    num_files: int = 0
    num_bytes: int = 0
    left: tuple[str, ...] = ()
    holds: tuple[Hold, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether nothing of the shuffle is there any more."""
        return not self.holds

    def _lines(self) -> Iterator[str]:
        removed = f"{count_of(self.num_files, 'file')} of {format_bytes(self.num_bytes)} removed"
        last = f"last version {self.last_version}" if self.last_version else "no version"
        ended = "dropped" if self.is_complete else "not dropped to its end"
        yield f"{self.path}: {ended} ({last}); {removed}"
        for name, version in self.tags.items():
            yield f"  tag {name}: version {version}"
        for name in self.consumers:
            yield f"  consumer {name}"
        for path in self.left:
            yield f"  left, as none of a shuffle: {path}"
        for hold in self.holds:
            yield f"  kept by {hold}; then drop it again"


def drop_shuffle(
    path: Place,
    *,
    force: bool = False,
    storage_options: Mapping[str, str] | None = None,
    on_bytes: Callable[[int], None] = ignore,
) -> DropReceipt:
    """Remove a shuffle for good: its versions, tags, consumers, local directories, and its log.

    .. code-block:: python

        print(arrow_shuffle.drop_shuffle("/data/orders"))

    It cannot be undone. From its first step on readers get a ``ResultReleasedError``, jobs that run
    cannot commit, and nothing else can be written to the path until the end; then the path is free.
    A call that fails or is killed is finished by the next one.

    In an object store no directory says that a shuffle is gone: a task that still runs may put
    files afterwards, which another call or garbage collection removes, and a writer that stood
    still during all of the removal, between its last look at the log and its commit, makes a
    version that cannot be read.

    Parameters
    ----------
    path, storage_options
        As for :func:`~arrow_shuffle.open_shuffle`.
    force
        Even if a consumer or reader is at work, or has rows to consume: it gets an error.
    on_bytes
        Called with the bytes of each file that was removed.

    Returns
    -------
    DropReceipt
        What was removed, and what could not be.

    Raises
    ------
    ShuffleNotFoundError
        The path holds no shuffle; nothing was removed.
    ConsumerError
        A consumer is at work, or has rows to consume, or a reader holds a version; nothing was
        removed.
    CorruptShuffleError, FormatVersionError
        The log cannot be read, or only a newer release may write it; nothing was removed.
    StorageError
        Something could not be removed; call again.
    """
    check_flag("force", force)
    storage = open_storage(path, storage_options)
    check_there(storage)
    return _Drop(storage, on_bytes).run(force=force)


class _Drop:
    """One call; raises what :func:`drop_shuffle` does."""

    def __init__(self, storage: Storage, on_bytes: Callable[[int], None]) -> None:
        self._storage = storage
        self._log = CommitLog(storage, may_drop=True)
        self._consumers = ConsumerRegistry(storage)
        self._on_bytes = on_bytes
        self._denied = Denied()
        self._num_files = self._num_bytes = 0

    def run(self, *, force: bool) -> DropReceipt:
        view = self._log.view()
        self._check_is_shuffle(view)
        receipt = self._about(view.state)
        self._log.append(partial(self._release, force=force), sync=True)
        for _ in range(_ROUNDS):
            holds = self._remove_jobs()
            if not any(map(job_of, self._files())) or self._denied.error is not None:
                break
        if not holds and self._denied.error is None:
            self._remove_others()
        if self._denied.error is not None:
            num_left = count_of(self._denied.num_files, "file")
            msg = (
                f"{self._storage.root}: {num_left} may not be removed with these credentials "
                f"({self._denied.error}). Nobody reads or writes the shuffle any more; drop it "
                "again as someone who may delete"
            )
            raise StorageError(msg) from self._denied.error
        left, num_files, num_bytes = tuple(self._left()), self._num_files, self._num_bytes
        return replace(receipt, num_files=num_files, num_bytes=num_bytes, left=left, holds=holds)

    def _check_is_shuffle(self, view: LogView) -> None:
        """Raise ShuffleNotFoundError for any other directory; empty ones may be left of this."""
        found = {*self._storage.list("")}.intersection(_DIRECTORIES)
        files = self._files() if view.last is None else ()
        if not found or (files and not any(map(_is_ours, files))):
            msg = f"{self._storage.root}: holds no shuffle; nothing was removed"
            raise ShuffleNotFoundError(msg)

    def _files(self) -> dict[str, ObjectStat]:
        """Return what is in the directories of a shuffle, with the status of each."""
        found = [self._storage.files(name, depth=_DEPTH) for name in _DIRECTORIES]
        return {path: stat for files in found for path, stat in files.items()}

    def _left(self) -> Iterator[str]:
        """Yield what is none of a shuffle."""
        others = [path for path in self._files() if not _is_ours(path)]
        others += [name for name in self._storage.list("") if name not in _DIRECTORIES]
        return (f"{self._storage.root}/{path}" for path in others)

    def _about(self, state: LogState) -> DropReceipt:
        """Return what is to be removed."""
        ended = state.released if state.is_ended else None
        return DropReceipt(
            path=self._storage.root,
            last_version=state.version if ended is None else ended.through,
            tags={name: tag.version for name, tag in sorted(state.tags.items())},
            consumers=tuple(self._consumers.names()),
        )

    def _check_consumers(self, state: LogState) -> None:
        """Raise ConsumerError where a consumer or reader is at work, or has rows to consume."""
        last = 0 if state.is_ended else state.content
        for hold in reader_holds(self._storage):
            if hold.is_living:
                msg = (
                    f"{self._storage.root}: {hold} reads version {hold.version}; nothing was "
                    "removed. Let it end, or drop the shuffle with force"
                )
                raise ConsumerError(msg)
        for name in self._consumers.names():
            record = self._consumers.newest(name)
            if record.holder is not None and record.holder.is_alive() is not False:
                needs = f"is held by {record.holder}"
            elif record.version is not None and record.version < last:
                needs = f"has consumed version {record.version}, and version {last} has rows"
            else:
                continue
            msg = (
                f"{self._storage.root}: consumer {name!r} {needs}; nothing was removed. Let it "
                "end, forget it (arrow-shuffle consumers), or drop the shuffle with force"
            )
            raise ConsumerError(msg)

    def _release(self, view: LogView, *, force: bool) -> LogEntry | None:
        """Return the entry after which nothing can be read or written; None where it is there.

        It is a version, and none before it is kept: so readers need no other file of the log.
        """
        state = view.state
        if DROPPED in state.writers or (view.last is None and not self._files()):
            return None
        if not force:
            self._check_consumers(state)
        changes: dict[str, Any] = {
            "writers": (*state.writers, DROPPED),
            "tags": {},
            "pending": PendingNumbers.of((), state.pending.flushed_at_ms),
        }
        shape = state.shape
        with contextlib.suppress(CorruptShuffleError):  # of a log that was removed in part
            waiting = last_pending(self._log, view)
            if shape is None and waiting is not None:
                shape = waiting.shape
        if shape is None:
            return draft(view, EXPIRE, state=changes)
        changes |= {
            "released": Released(state.version, "removed by drop_shuffle", ended=True),
            "shape": shape,
            "oldest": view.newest + 1,
            "expired": state.content,
            "restored": (),
        }
        return draft(view, "release", state=changes)

    def _remove_jobs(self) -> tuple[Hold, ...]:
        """Remove the files of all jobs; return what keeps some in local directories."""
        files, claim = ListedFiles(self._storage), cache(partial(claim_of, self._storage))
        jobs = [JobFiles.of(files, job_id, (), claim) for job_id in sorted(files.jobs())]
        self._remove(garbage_of_jobs(jobs, (), dry_run=False))
        return tuple(holds_in_roots(jobs))

    def _remove_others(self) -> None:
        """Remove what is of no job, the entry that says so last, and the directories."""
        for _ in range(_ROUNDS):
            ours = {path: stat for path, stat in self._files().items() if _is_ours(path)}
            before = [path for path in ours if not path.startswith(LOG_DIRECTORY)]
            if not before:
                break
            self._remove([stored(self._storage, before, ours)])
        newest = entry_path(self._log.view().newest)
        log = [path for path in ours if path.startswith(LOG_DIRECTORY) and path != newest]
        self._remove([stored(self._storage, log, ours)])
        if self._denied.error is not None:
            return
        if newest in ours and not self._storage.keeps_what_it_shows:
            # Else a power failure may bring back entries before it, and not this one: that they are
            # gone is flushed with any other name in their directory.
            flushed = f"{newest.rpartition('/')[0]}/{TEMPORARY}{secrets.token_hex(8)}"
            self._storage.put_if_absent(flushed, b"", sync=True)
            self._storage.delete(flushed)
        self._remove([stored(self._storage, [newest], ours)])
        for directory in _DIRECTORIES:
            for name in self._storage.list(directory):
                self._storage.prune(f"{directory}/{name}", and_root=False)
            self._storage.prune(directory, and_root=True)

    def _remove(self, groups: Iterable[list[StoredFile]]) -> None:
        removed = remove_groups(groups, self._on_bytes, self._denied, dry_run=False)
        self._num_files += len(removed)
        self._num_bytes += sum(file.num_bytes for file in removed)


def _is_ours(path: str) -> bool:
    """Whether a path is that of a file of a shuffle, which a put may not have finished."""
    name = path.rpartition("/")[2]
    return name.startswith(TEMPORARY) or bool(job_of(path) or _FILE.fullmatch(path))
