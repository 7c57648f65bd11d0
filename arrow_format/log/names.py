"""What the commit log consists of, told from the names in its directory alone: pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LOG_DIRECTORY = "commit_log"

_NAME = re.compile(r"([0-9]{20})\.(json|checkpoint|oldest)")
_MOST_MISSING = 100


def entry_path(number: int) -> str:
    """Path of the log entry (or fence) of that number."""
    return f"{LOG_DIRECTORY}/{number:020d}.json"


def checkpoint_path(number: int) -> str:
    """Path of the checkpoint that stands for everything up to that number."""
    return f"{LOG_DIRECTORY}/{number:020d}.checkpoint"


def oldest_path(version: int) -> str:
    """Path of the marker that says that all versions before ``version`` have expired."""
    return f"{LOG_DIRECTORY}/{version:020d}.oldest"


def totals_path(job_id: str, commit_id: str) -> str:
    """Path of the totals of a commit; named after the job, so that its fence covers them."""
    return f"{LOG_DIRECTORY}/totals-{job_id}-{commit_id}.arrow"


@dataclass(frozen=True, slots=True)
class LogIndex:
    """Which entries, checkpoints and markers are there."""

    entries: frozenset[int]
    checkpoints: frozenset[int]
    markers: frozenset[int]

    @staticmethod
    def of(names: Iterable[str]) -> LogIndex:
        """Sort the names of a listing; what is none of the log's is left out."""
        found: dict[str, set[int]] = {"json": set(), "checkpoint": set(), "oldest": set()}
        for match in filter(None, map(_NAME.fullmatch, names)):
            found[match[2]].add(int(match[1]))
        return LogIndex(*(frozenset(numbers) for numbers in found.values()))

    @property
    def oldest(self) -> int:
        """The oldest version that has not expired; 1 when none ever did."""
        return max(self.markers, default=1)

    @property
    def newest(self) -> int:
        """Number of the newest entry or fence; 0 when there is none."""
        return max(self.entries | self.checkpoints | self.markers, default=0)

    def missing(self) -> list[int]:
        """Return numbers that should be there and are not, ascending; the first 100 at most."""
        return list(islice(self._missing(), _MOST_MISSING))

    def _missing(self) -> Iterator[int]:
        first, newest = self.oldest, self.newest
        expected = newest - first + 1
        if sum(number >= first for number in self.entries) == expected:
            return
        yield from (number for number in range(first, newest + 1) if number not in self.entries)
