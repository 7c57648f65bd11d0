"""How a range partitioner that was given without bounds gets them when a shuffle is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format.keys.partitioner import Partitioner, partitioner_from_description
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.log.commit_log import CommitLog
from arrow_format.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrow_format.log.entry import LogEntry
    from arrow_format.storage.open import Place


def newest_entry(path: Place) -> LogEntry | None:
    """Newest log entry at a path; None when there is no shuffle, or it was released."""
    storage = open_storage(path)
    stat = storage.stat("")
    if stat is None or not stat.is_directory:
        return None
    snapshot = CommitLog(storage).snapshot()
    return None if snapshot is None or snapshot.ended is not None else snapshot.newest


def inherit_bounds(partitioner: Partitioner, there: LogEntry | None) -> Partitioner:
    """Give a range partitioner without bounds those of the shuffle that is there.

    Parameters
    ----------
    partitioner
        Any; only a range partitioner without bounds is changed.
    there
        Newest log entry of the shuffle.

    Returns
    -------
    Partitioner
        As it was when there is no shuffle, or it has no ranges of the same keys in the same order.
    """
    if not isinstance(partitioner, RangePartitioner) or partitioner.bounds is not None:
        return partitioner
    old = None if there is None else partitioner_from_description(there.partitioner)
    if isinstance(old, RangePartitioner) and old.keys == partitioner.keys:
        return old
    return partitioner


def settle_bounds(
    partitioner: Partitioner,
    path: Place,
    mode: str,
    sample: Callable[[RangePartitioner], RangePartitioner],
) -> Partitioner:
    """Give a range partitioner its bounds before a write: those that are there, or from a sample.

    Parameters
    ----------
    partitioner
        Any; only a range partitioner without bounds is changed.
    path
        Where the shuffle will be written.
    mode
        The write mode. An append takes the bounds of the shuffle that is there.
    sample
        Called at most once, and only if the write can go on: gives the partitioner its bounds.

    Raises
    ------
    CorruptShuffleError, FormatVersionError
        The commit log at the path cannot be read.
    """
    if not isinstance(partitioner, RangePartitioner) or partitioner.bounds is not None:
        return partitioner
    there = newest_entry(path)
    if there is not None and mode in ("errorifexists", "ignore"):
        # Nothing will be written: whoever checks the mode says so, and needs no sample for it.
        return RangePartitioner(keys=partitioner.keys, bounds=[])
    inherited = inherit_bounds(partitioner, there if mode == "append" else None)
    return sample(partitioner) if inherited is partitioner else inherited
