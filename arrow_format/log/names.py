"""Names of the directories and files of a shuffle, and what a listing of its log shows: pure.

Apart from readers and writers of the log, which both need them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LOG_DIRECTORY = "commit_log"
MAP_OUTPUT_DIRECTORY = "map_outputs"
CONSUMER_DIRECTORY = "consumers"

TEMPORARY = ".tmp-"
"""What the names of files begin with that a put has not finished."""

JOB_ID = re.compile(r"[0-9a-f]{32}")

_NAME = re.compile(r"([0-9]{20})\.(json|checkpoint|oldest)")
_TOTALS = re.compile(rf"totals-({JOB_ID.pattern})-{JOB_ID.pattern}\.arrow")
_MAX_MISSING = 100


def entry_path(number: int) -> str:
    """Path of the log entry (or fence) of that number."""
    return f"{LOG_DIRECTORY}/{number:020d}.json"


def checkpoint_path(number: int) -> str:
    """Path of the checkpoint that replaces everything up to that number."""
    return f"{LOG_DIRECTORY}/{number:020d}.checkpoint"


def oldest_path(version: int) -> str:
    """Path of the marker that says that all versions before ``version`` have expired."""
    return f"{LOG_DIRECTORY}/{version:020d}.oldest"


def totals_path(job_id: str, commit_id: str) -> str:
    """Path of the totals of a commit; named after the job, so that its fence covers them."""
    return f"{LOG_DIRECTORY}/totals-{job_id}-{commit_id}.arrow"


def job_of_totals(name: str) -> str | None:
    """Return the job whose totals a file of the log holds; None of any other file."""
    match = _TOTALS.fullmatch(name)
    return None if match is None else match[1]


@dataclass(frozen=True, slots=True)
class LogIndex:
    """The numbers of the entries, checkpoints and markers that a listing shows."""

    entries: frozenset[int]
    checkpoints: frozenset[int]
    markers: frozenset[int]

    @staticmethod
    def of(names: Iterable[str]) -> LogIndex:
        """Sort the names of a listing; names that are not the log's are ignored."""
        numbers: dict[str, set[int]] = {"json": set(), "checkpoint": set(), "oldest": set()}
        for match in filter(None, map(_NAME.fullmatch, names)):
            numbers[match[2]].add(int(match[1]))
        return LogIndex(*map(frozenset, numbers.values()))

    @property
    def oldest(self) -> int:
        """The oldest version that has not expired; 1 when none ever did."""
        return max(self.markers, default=1)

    @property
    def newest(self) -> int:
        """Number of the newest entry or fence; 0 in an empty log."""
        return max(self.entries | self.checkpoints | self.markers, default=0)

    def missing(self) -> list[int]:
        """Return the numbers without an entry from oldest to newest, ascending; at most 100."""
        oldest, newest = self.oldest, self.newest
        if sum(number >= oldest for number in self.entries) == newest - oldest + 1:
            return []
        expected = range(oldest, newest + 1)
        return list(islice((n for n in expected if n not in self.entries), _MAX_MISSING))
