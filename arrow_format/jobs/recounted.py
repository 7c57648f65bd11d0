"""Totals of some map outputs, where those of the log are of others, or by fewer subpartitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from arrow_format.log.entry import UPSERT
from arrow_format.log.totals import sum_totals
from arrow_format.read.totals import totals_in_indexes

if TYPE_CHECKING:
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.outputs import MapOutputs
    from arrow_format.log.reader import LogReader
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.log.totals import Totals
    from arrow_format.read.index_cache import IndexCache


def totals_of_outputs(
    log: LogReader, version: LogEntry, outputs: MapOutputs, indexes: IndexCache
) -> Totals:
    """Return rows and bytes of each subpartition of some map outputs of a version.

    They are those of the entries that added them, where these say it, else those of the indexes.
    """
    n, left = version.num_subpartitions, outputs
    parts: list[Totals | None] = []
    for number in np.unique(left.versions).tolist():
        if number >= version.state.oldest:
            entry = log.record(number)
            keys = entry.map_outputs.keys
            held = left.among(keys)
            # Totals of an upsert are less what it masked, and masks of later entries took more.
            is_whole = len(held) == len(keys) and bool((held.mask_numbers == 0).all())
            counts = entry.adds_rows and entry.operation != UPSERT and is_whole
            counted = entry.totals
            if counts and counted is not None and not len(counted[0]) % n:
                parts.append(counted)
                left = left.without(keys)
    parts.append(totals_in_indexes(version, left, indexes))
    return sum_totals(parts, n)


def more_than(totals: Totals, version: Snapshot) -> Totals:
    """Return what totals have more than those of a version, which may be less than 0."""
    rows, sizes = sum_totals([version.totals], len(totals[0]))
    return totals[0] - rows, totals[1] - sizes
