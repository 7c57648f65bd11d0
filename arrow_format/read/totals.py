"""Rows and bytes of each subpartition of a version, or of some map outputs by their indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format.errors import CorruptShuffleError
from arrow_format.log.totals import problem_of_totals, sum_totals, without_negatives

if TYPE_CHECKING:
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.outputs import MapOutputs
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.log.totals import Totals
    from arrow_format.read.index_cache import IndexCache


def totals_in_indexes(version: LogEntry, outputs: MapOutputs, indexes: IndexCache) -> Totals:
    """Return rows and bytes of each subpartition of map outputs of a version, by their indexes."""
    files = [(output, file) for output in outputs for file in output.files]
    parts = [index.totals for index in indexes.indexes_of(version, files)]
    return sum_totals(parts, version.num_subpartitions)


def totals_of(snapshot: Snapshot, root: str) -> Totals:
    """Return rows and bytes of each subpartition of a version (two int64 arrays).

    Of a part of one, those of its subpartitions, and 0. Raises CorruptShuffleError where those of
    the log do not add up to its map outputs.
    """
    outputs, n = snapshot.readable().map_outputs, snapshot.newest.num_subpartitions
    rows, sizes = sum_totals([snapshot.totals], n)
    totals = rows, without_negatives(sizes)
    if snapshot.ranges is not None:  # who made the part has checked the whole
        return totals
    problem = problem_of_totals(totals, n, (outputs.delivered_rows(n), outputs.num_bytes))
    if problem is not None:
        msg = f"{root}: of version {snapshot.version} {problem}. Restore the log from a copy"
        raise CorruptShuffleError(msg)
    return totals
