"""Read plans for people: what reading some subpartitions will read, byte range by byte range."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from arrow_format.read.chunk_plan import ChunkRead, merge_reads
from arrow_format.read.presentation import count_of, format_bytes
from arrow_format.read.scheduler import MAX_ROUND_BYTES
from arrow_format.report import Report, first_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from arrow_format.read.chunk_reader import ChunkReader

MAX_LINES = 200
"""Lines of a plan that its text has."""


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """Ranges of a data file that are read together, and the chunks they have."""

    ranges: tuple[tuple[int, int], ...]
    """``(offset, length)``, ascending; where there are several, each ends inside of a chunk."""
    chunks: tuple[tuple[int, int], ...]
    """Region, and number of the chunk in it, in file order."""

    @property
    def num_bytes(self) -> int:
        """Bytes to read, also those between what is wanted."""
        return sum(length for _, length in self.ranges)

    def __str__(self) -> str:
        where = "no bytes"
        if self.ranges:
            where = f"bytes {self.ranges[0][0]:,} to {sum(self.ranges[-1]):,}"
        if len(self.ranges) > 1:
            where = f"{self.num_bytes:,} of {where}"
        parts: dict[int, list[int]] = {}
        for region, chunk in self.chunks:
            parts.setdefault(region, []).append(chunk)
        what = (
            f"region {region} chunk {chunks[0]}"
            if len(chunks) == 1
            else f"region {region} chunks {chunks[0]}-{chunks[-1]}"
            for region, chunks in parts.items()
        )
        return f"{where}: {', '.join(what)}"


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """The reads of one data file for one group of subpartitions."""

    path: str
    """Absolute path or URI."""
    map_task: int
    attempt: int
    reads: tuple[PlannedRead, ...]
    """By offset."""


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """Adjacent subpartitions that are read together."""

    first: int
    end: int
    files: tuple[PlannedFile, ...]
    """Those with rows of the group, in reading order."""

    def lines(self) -> Iterator[str]:
        """Describe it, a line for each read."""
        which = (
            f"subpartition {self.first:,}"
            if self.end - self.first == 1
            else f"subpartitions {self.first:,} to {self.end - 1:,}"
        )
        yield which if self.files else f"{which}: nothing to read"
        for file in self.files:
            yield f"  map task {file.map_task}, attempt {file.attempt}: {file.path}"
            for read in file.reads:
                yield f"    {read}"


@dataclass(frozen=True, slots=True)
class ReadPlan(Report):
    """What :meth:`~arrow_format.read.shuffle.Shuffle.read` will read, in its order."""

    groups: tuple[PlannedGroup, ...]
    version_bytes: int
    """Bytes of all data files of the version."""

    @property
    def num_reads(self) -> int:
        """Number of reads."""
        return len(self.reads)

    @property
    def reads(self) -> tuple[PlannedRead, ...]:
        """All reads."""
        return tuple(read for group in self.groups for file in group.files for read in file.reads)

    @property
    def num_files(self) -> int:
        """Number of data files to open; a file counts once for each group."""
        return sum(len(group.files) for group in self.groups)

    @property
    def num_chunks(self) -> int:
        """Number of chunks to decode."""
        return sum(len(read.chunks) for read in self.reads)

    @property
    def num_bytes(self) -> int:
        """Number of bytes to read, gaps between chunks included."""
        return sum(read.num_bytes for read in self.reads)

    def _lines(self) -> Iterator[str]:
        yield from first_of(chain.from_iterable(group.lines() for group in self.groups), MAX_LINES)
        yield (
            f"{count_of(self.num_reads, 'read')} of {count_of(self.num_chunks, 'chunk')}, "
            f"{format_bytes(self.num_bytes)} of {format_bytes(self.version_bytes)}"
        )


def plan_group(
    first: int, end: int, planned: Iterable[tuple[ChunkReader, Iterable[ChunkRead]]]
) -> PlannedGroup:
    """Return the plan of reading the subpartitions ``[first, end)``, given their chunks by file."""
    files = []
    for source, chunks in planned:
        gap = source.storage.gap_bytes
        merged = merge_reads(chunks, max_gap_bytes=gap, max_read_bytes=MAX_ROUND_BYTES)
        reads = tuple(
            PlannedRead(read.ranges, tuple((one.region, one.chunk) for one in read.chunks))
            for read in merged
        )
        if reads:
            metadata = source.index.metadata
            path = f"{source.storage.root}/{source.path}"
            files.append(PlannedFile(path, metadata.map_task, metadata.attempt, reads))
    return PlannedGroup(first, end, tuple(files))
