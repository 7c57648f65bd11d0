"""What a garbage collection did, or would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.receipt import format_bytes

if TYPE_CHECKING:
    from datetime import timedelta


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A file that was removed, or would be."""

    path: str
    """Absolute path or URI."""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GcReport:
    """What :func:`arrow_format.collect_garbage` did, or would do."""

    path: str
    dry_run: bool
    """Whether nothing was changed, and the rest says what would be."""
    retention: timedelta
    oldest_version: int
    """The oldest version that can be opened from now on; 0 when nothing was ever committed."""
    newest_version: int
    """The newest, which never expires; 0 when nothing was ever committed."""
    expired_versions: tuple[int, ...]
    """Versions that could be opened before, ascending."""
    fenced_jobs: tuple[str, ...]
    """Unfinished jobs that were given up: they can never commit."""
    running_jobs: tuple[str, ...]
    """Unfinished jobs that wrote something within the retention; their files stay."""
    files: tuple[RemovedFile, ...]
    """What was removed, in that order."""
    released: str | None = None
    """What was released before, of a result that was consumed or whose application has ended, and
    why, for people; None: nothing. A dry run does not count what it would let expire and remove."""

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
