"""Rows and bytes of each subpartition of a version: by the log, or else by the indexes.

Apart from both, since a release drops map outputs whose totals only their indexes have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format.errors import CorruptShuffleError
from arrow_format.format.totals import subpartition_totals
from arrow_format.log.totals import problem_of_totals, sum_totals, without_negatives

if TYPE_CHECKING:
    from arrow_format.log.delta import Totals
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.read.index_cache import IndexCache


def totals_of(snapshot: Snapshot, root: str, indexes: IndexCache) -> Totals:
    """Return rows and bytes of each subpartition of a version (two int64 arrays).

    Raises CorruptShuffleError where those of the log do not add up to its map outputs.
    """
    version, outputs = snapshot.newest, snapshot.map_outputs
    n = version.num_subpartitions
    if snapshot.totals is None:
        files = [(output, file) for output in outputs for file in output.files]
        parts = [
            subpartition_totals(index.regions, n, file.data_bytes)
            for (_, file), index in zip(files, indexes.indexes_of(version, files), strict=True)
        ]
        return sum_totals(parts, n)
    rows, sizes = snapshot.totals
    totals = rows, without_negatives(sizes)
    problem = problem_of_totals(totals, n, (outputs.delivered_rows(n), outputs.num_bytes))
    if problem is not None:
        msg = f"{root}: of version {snapshot.version} {problem}. Restore the log from a copy"
        raise CorruptShuffleError(msg)
    return totals
