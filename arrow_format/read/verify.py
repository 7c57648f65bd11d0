"""Reads every byte of a version and checks it: chunks, the gaps between them, counts, totals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.errors import CorruptShuffleError, FormatVersionError, ShuffleError, StorageError
from arrow_format.format.chunk_codec import ChunkDecoder
from arrow_format.format.totals import subpartition_totals
from arrow_format.log.commit_log import CommitLog
from arrow_format.read.chunk_reader import ChunkReader
from arrow_format.storage.open import ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrow_format.log.entry import LogEntry
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.model import Int64Array, MapOutput, PartitionedFile, Region
    from arrow_format.read.index_cache import IndexCache
    from arrow_format.storage.open import Storage


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What :meth:`Shuffle.verify` read, and the problems it met.

    Parameters
    ----------
    path
        Absolute path or URI of the shuffle.
    version
        Version that was read.
    num_files
        Number of data files that are sound.
    num_chunks, num_rows, num_bytes
        Chunks, rows and bytes of those files.
    problems
        One error for each damaged or unreadable file, in reading order.
    """

    path: str
    version: int
    num_files: int
    num_chunks: int
    num_rows: int
    num_bytes: int
    problems: tuple[ShuffleError, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything is sound."""
        return not self.problems


@dataclass(slots=True)
class _Tally:
    """What was verified so far."""

    num_files: int = 0
    num_chunks: int = 0
    num_rows: int = 0
    num_bytes: int = 0
    problems: list[ShuffleError] = field(default_factory=list)


def verify_snapshot(
    storage: Storage,
    snapshot: Snapshot,
    indexes: IndexCache,
    *,
    raise_on_damage: bool = True,
    on_output: Callable[[MapOutput], None] | None = None,
) -> VerifyReport:
    """Verify a version; see :meth:`arrow_format.read.shuffle.Shuffle.verify`."""
    tally = _Tally()
    total_rows = np.zeros(snapshot.newest.num_subpartitions, np.int64)
    missing_totals: ShuffleError | None = None
    for entry in snapshot.entries:
        n = entry.num_subpartitions
        num_rows = np.zeros(n, np.int64)
        num_problems = len(tally.problems)
        for output in entry.map_outputs:
            for file in output.files:
                try:
                    regions = _verify_file(entry, output, file, indexes, tally)
                except (CorruptShuffleError, FormatVersionError, StorageError) as error:
                    if raise_on_damage:
                        raise
                    tally.problems.append(error)
                    continue
                num_rows += subpartition_totals(regions, n, file.data_bytes)[0]
            if on_output is not None:
                on_output(output)
        try:
            # Totals can only be compared when every index of the entry could be read.
            if entry.map_outputs:
                is_whole = len(tally.problems) == num_problems
                rows, _ = CommitLog(storage).totals_of(entry)
                _compare(storage, entry.version, rows, num_rows if is_whole else None)
        except ObjectNotFoundError as error:
            missing_totals = missing_totals or error
        except (CorruptShuffleError, StorageError) as error:
            if raise_on_damage:
                raise
            tally.problems.append(error)
        total_rows += num_rows
    if missing_totals is not None:
        try:
            if not snapshot.is_version:
                raise missing_totals
            # A checkpoint may have the totals that the entries have lost.
            rows, _ = CommitLog(storage).totals(snapshot)
            _compare(storage, snapshot.version, rows, None if tally.problems else total_rows)
        except (CorruptShuffleError, StorageError) as error:
            if raise_on_damage:
                raise
            tally.problems.append(error)
    return VerifyReport(
        storage.root,
        snapshot.version,
        tally.num_files,
        tally.num_chunks,
        tally.num_rows,
        tally.num_bytes,
        tuple(tally.problems),
    )


def _verify_file(
    entry: LogEntry,
    output: MapOutput,
    file: PartitionedFile,
    indexes: IndexCache,
    tally: _Tally,
) -> tuple[Region, ...]:
    """Verify one data file; return its regions."""
    index = indexes.index_of(entry, output, file)
    ChunkReader(index, ChunkDecoder(entry.data_schema)).check()
    tally.num_files += 1
    tally.num_rows += file.num_rows
    tally.num_chunks += sum(len(region.chunks) for region in index.regions)
    tally.num_bytes += file.data_bytes
    return index.regions


def _compare(
    storage: Storage, version: int, rows: Int64Array, indexed_rows: Int64Array | None
) -> None:
    """Compare the rows per subpartition of totals with those of indexes, if all could be read.

    The writer may share bytes out among subpartitions as it likes, as long as they add up.
    """
    if indexed_rows is not None and not np.array_equal(rows, indexed_rows):
        msg = (
            f"{storage.root}: rows per subpartition of version {version} differ from its indexes; "
            "write the shuffle again"
        )
        raise CorruptShuffleError(msg)
