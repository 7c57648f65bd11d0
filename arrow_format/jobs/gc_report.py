"""What a garbage collection did, or would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.jobs.receipt import format_bytes

if TYPE_CHECKING:
    from datetime import timedelta


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A file that was removed, or would be.

    Parameters
    ----------
    path
        Absolute path or URI.
    num_bytes
        Its size; 0 where the store does not say it.
    """

    path: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GcReport:
    """What :func:`arrow_format.collect_garbage` did, or would do.

    Parameters
    ----------
    path
        Absolute path or URI of the shuffle.
    dry_run
        Whether nothing was changed, and the rest says what would be.
    retention
        How long a version can be read after another took its place.
    oldest_version
        The oldest version that can be opened from now on; 0 when nothing was ever committed.
    newest_version
        The newest, which never expires; 0 when nothing was ever committed.
    expired_versions
        Versions that could be opened before, ascending.
    fenced_jobs
        Unfinished jobs that were given up: they can never commit.
    running_jobs
        Unfinished jobs that wrote something within the retention; their files stay.
    files
        What was removed, in that order.
    released
        What was released before, of a result that was consumed or whose application has ended, and
        why, for people; None: nothing. A dry run does not count what it would let expire and
        remove.
    """

    path: str
    dry_run: bool
    retention: timedelta
    oldest_version: int
    newest_version: int
    expired_versions: tuple[int, ...]
    fenced_jobs: tuple[str, ...]
    running_jobs: tuple[str, ...]
    files: tuple[RemovedFile, ...]
    released: str | None = None

    @property
    def num_files(self) -> int:
        """How many files were removed."""
        return len(self.files)

    @property
    def num_bytes(self) -> int:
        """Bytes of the files that were removed."""
        return sum(file.num_bytes for file in self.files)

    def __str__(self) -> str:
        removed = "would be removed" if self.dry_run else "removed"
        released = ""
        if self.released:
            released = f"; {'would be ' if self.dry_run else ''}released: {self.released}"
        return (
            f"{self.path}: {self.num_files:,} files of {format_bytes(self.num_bytes)} {removed}; "
            f"{len(self.expired_versions):,} versions expired, {len(self.fenced_jobs):,} "
            f"unfinished jobs given up{released}"
        )
