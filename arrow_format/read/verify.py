"""Reads every byte of a version and checks it: chunks, what lies between them, counts, totals."""

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
    """What :meth:`Shuffle.verify` read and what it found.

    Parameters
    ----------
    path
        Absolute path or URI of the shuffle.
    version
        Version that was read.
    num_files
        Data files that were read and found sound.
    num_chunks
        Chunks of those files.
    num_rows
        Rows of those files.
    num_bytes
        Bytes of those files.
    problems
        One error per damaged file, in reading order.
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
        """Whether nothing was found wrong."""
        return not self.problems


@dataclass(slots=True)
class _Tally:
    """What has been found sound so far."""

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
    whole = np.zeros(snapshot.newest.num_subpartitions, np.int64)
    gone: ShuffleError | None = None
    for entry in snapshot.entries:
        n = entry.num_subpartitions
        seen = np.zeros(n, np.int64)
        damaged = len(tally.problems)
        for output in entry.map_outputs:
            for file in output.files:
                try:
                    regions = _verify_file(entry, output, file, indexes, tally)
                except (CorruptShuffleError, FormatVersionError, StorageError) as error:
                    if raise_on_damage:
                        raise
                    tally.problems.append(error)
                    continue
                seen += subpartition_totals(regions, n, file.data_bytes)[0]
            if on_output is not None:
                on_output(output)
        try:
            # Totals can only be compared when every index of the entry could be read.
            _verify_totals(storage, entry, seen if len(tally.problems) == damaged else None)
        except ObjectNotFoundError as error:
            gone = gone or error
        except (CorruptShuffleError, StorageError) as error:
            if raise_on_damage:
                raise
            tally.problems.append(error)
        whole += seen
    if gone is not None:
        try:
            _verify_all_totals(storage, snapshot, None if tally.problems else whole, gone)
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
    """Read one data file whole; its regions, if all is sound."""
    index = indexes.index_of(entry, output, file)
    ChunkReader(index, ChunkDecoder(entry.data_schema)).check()
    tally.num_files += 1
    tally.num_rows += file.num_rows
    tally.num_chunks += sum(len(region.chunks) for region in index.regions)
    tally.num_bytes += file.data_bytes
    return index.regions


def _verify_totals(storage: Storage, entry: LogEntry, seen: Int64Array | None) -> None:
    """Check the totals of an entry, and compare its rows with what its indexes say.

    How bytes are shared out among subpartitions is the writer's affair, as long as they add up.
    """
    if not entry.map_outputs:
        return
    rows, _ = CommitLog(storage).totals_of(entry)
    if seen is not None and not np.array_equal(rows, seen):
        raise _differ(storage, entry.version)


def _verify_all_totals(
    storage: Storage, snapshot: Snapshot, seen: Int64Array | None, gone: ShuffleError
) -> None:
    """Check the totals of a version whose entries have lost theirs: a checkpoint may have them."""
    if not snapshot.is_version:
        raise gone
    rows, _ = CommitLog(storage).totals(snapshot)
    if seen is not None and not np.array_equal(rows, seen):
        raise _differ(storage, snapshot.version)


def _differ(storage: Storage, version: int) -> CorruptShuffleError:
    return CorruptShuffleError(
        f"{storage.root}: rows per subpartition of version {version} differ from its indexes; "
        "write the shuffle again"
    )
