"""What the rows of a version take, stored and in memory, where the log does not say it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from arrow_format.errors import CorruptShuffleError

if TYPE_CHECKING:
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.model import Int64Array

LARGEST_ESTIMATE = 1 << 48
"""Bytes; the sum over a million subpartitions still fits into 64 bits."""

MAX_REGIONS = 1 << 26
"""Regions a version may have to be cut by region: more would be petabytes."""


def estimate_read_bytes(snapshot: Snapshot, stored: Int64Array) -> Int64Array:
    """Return the stored bytes that a reader of each subpartition reads.

    More than its share of the data files where rows are broadcast: those are stored once, and each
    subpartition reads them all.

    Parameters
    ----------
    snapshot
        The version.
    stored
        Bytes of each subpartition: its share of the data files.
    """
    files = [file for output in snapshot.map_outputs for file in output.files]
    rows = sum(file.num_broadcast_rows for file in files)
    if rows == 0:
        return stored
    n = snapshot.newest.num_subpartitions
    return stored + snapshot.num_bytes * rows // snapshot.num_rows * (n - 1) // n


def estimate_raw_bytes(snapshot: Snapshot, rows: Int64Array, stored: Int64Array) -> Int64Array:
    """Return the bytes that the rows a reader of each subpartition gets take in Arrow.

    The larger of two estimates, from rows and from stored bytes: rows may be larger than the
    average, or compress better.

    Parameters
    ----------
    snapshot
        The version.
    rows, stored
        Rows of each subpartition, and its share of the data files in bytes.
    """
    raw = sum(output.raw_bytes for output in snapshot.map_outputs)
    by_rows = rows * (raw / max(snapshot.num_rows, 1))
    by_bytes = stored * (raw / max(snapshot.num_bytes, 1))
    larger = np.minimum(np.ceil(np.maximum(by_rows, by_bytes)), LARGEST_ESTIMATE)
    estimate: Int64Array = larger.astype(np.int64)
    return estimate


def estimate_region_bytes(snapshot: Snapshot, root: str) -> Int64Array:
    """Return the stored bytes of each region, numbered through the version in reading order.

    Every region of a file counts for the same.

    Parameters
    ----------
    snapshot
        The version.
    root
        Where it is, for messages.

    Raises
    ------
    CorruptShuffleError
        The log names more regions than there can be.
    """
    files = [file for output in snapshot.map_outputs for file in output.files]
    counts = np.array([file.num_regions for file in files], np.int64)
    sizes = np.array([file.data_bytes for file in files], np.int64)
    if int(counts.sum()) > MAX_REGIONS:
        msg = f"{root}: the log names {counts.sum():,} regions; restore it from a copy"
        raise CorruptShuffleError(msg)
    return np.repeat(sizes // np.maximum(counts, 1), counts)
