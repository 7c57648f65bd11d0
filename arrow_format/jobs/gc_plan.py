"""What garbage collection may give up: pure decisions about versions, jobs and names in the log."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from arrow_format.log.names import (
    LOG_DIRECTORY,
    TEMPORARY,
    LogIndex,
    checkpoint_path,
    entry_path,
    job_of_totals,
    oldest_path,
)
from arrow_format.log.record import LogRecord, entry_of
from arrow_format.storage.local_dirs import is_root_of, root_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from arrow_format.log.entry import LogEntry


def oldest_live(versions: Sequence[tuple[int, int]], cutoff_ms: int) -> int:
    """Return the oldest version to keep; those that were superseded by ``cutoff_ms`` expire.

    ``versions`` has number and time of the commit (ms since 1970) of each version, ascending, at
    least one; the newest never expires. Clocks of writers may differ: a version that is superseded
    "before" it was committed counts as superseded when it was committed, and no version expires
    before an older one.
    """
    latest = versions[0][1]
    for (version, _), (_, superseded) in pairwise(versions):
        latest = max(latest, superseded)
        if latest > cutoff_ms:
            return version
    return versions[-1][0]


def live_files(entries: Iterable[LogEntry]) -> set[tuple[str, str]]:
    """Return name of the root ("" is the shuffle itself) and path of each file that entries name.

    Not its directory: two local directories may be one, reached by different names.
    """
    return {
        (root_name(entry.roots[file.root - 1]) if file.root else "", path)
        for entry in entries
        for output in entry.map_outputs
        for file in output.files
        for path in (file.data_path, file.index_path)
    }


def roots_of_jobs(
    records: Iterable[LogRecord], job_ids: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """Return the local roots of each job that entries of the log name."""
    entries = filter(None, map(entry_of, records))
    roots: dict[str, list[str]] = {job_id: [] for job_id in job_ids}
    for root in sorted({root for entry in entries for root in entry.roots}):
        job_id = root_name(root).removeprefix("arrow-shuffle-")
        if job_id in roots and is_root_of(root, job_id):
            roots[job_id].append(root)
    return {job_id: tuple(paths) for job_id, paths in roots.items()}


@dataclass(frozen=True, slots=True)
class LogGarbage:
    """Files of the log that are no longer needed, relative to the shuffle."""

    totals: tuple[str, ...]
    entries: tuple[str, ...]
    """Entries and fences from before the oldest version."""
    checkpoints: tuple[str, ...]
    markers: tuple[str, ...]
    temporaries: tuple[str, ...]
    """Of puts, which may still be under way."""


def log_garbage(
    names: Iterable[str],
    index: LogIndex,
    records: Mapping[int, LogRecord],
    oldest: int,
    ended: Collection[str],
) -> LogGarbage:
    """Find what may be removed from the log once all versions before ``oldest`` have expired.

    ``names`` and ``index`` are a listing of the log's directory. ``records`` may lack those before
    the oldest version. ``ended`` jobs, committed or fenced, put no more totals.
    """
    live: set[str] = set()
    expired: set[str] = set()
    for number, record in records.items():
        entry = entry_of(record)
        if entry is None:
            continue
        if number >= oldest:
            live.add(entry.totals.path)
        elif entry.job_id in ended:
            # Any other was put under a number that was free again; its writer takes it back, and
            # commits the same totals under the next.
            expired.add(entry.totals.path)
    totals, temporaries = [], []
    for name in names:
        path = f"{LOG_DIRECTORY}/{name}"
        if name.startswith(TEMPORARY):
            temporaries.append(path)
        elif path not in live and (path in expired or job_of_totals(name) in ended):
            totals.append(path)
    return LogGarbage(
        tuple(totals),
        tuple(entry_path(number) for number in sorted(index.entries) if number < oldest),
        # The last one replaces all entries before the oldest version.
        tuple(checkpoint_path(at) for at in sorted(index.checkpoints) if at < oldest - 1),
        tuple(oldest_path(number) for number in sorted(index.markers) if number < oldest),
        tuple(temporaries),
    )
