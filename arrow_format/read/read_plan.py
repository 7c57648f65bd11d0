"""Read plans for people: what reading some subpartitions will read, byte range by byte range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.read.chunk_plan import ChunkRead, RangeRead, merge_reads
from arrow_format.read.scheduler import MAX_ROUND_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from arrow_format.read.chunk_reader import ChunkReader


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """The reads of one data file for one group of subpartitions."""

    path: str
    """Absolute path or URI."""
    map_task: int
    attempt: int
    reads: tuple[RangeRead, ...]
    """By offset."""


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """Adjacent subpartitions that are read together."""

    first: int
    end: int
    files: tuple[PlannedFile, ...]
    """Those with rows of the group, in reading order."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What :meth:`~arrow_format.read.shuffle.Shuffle.read` will read, in its order."""

    groups: tuple[PlannedGroup, ...]

    @property
    def reads(self) -> tuple[RangeRead, ...]:
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


def plan_group(
    first: int, end: int, planned: Iterable[tuple[ChunkReader, Iterable[ChunkRead]]]
) -> PlannedGroup:
    """Return the plan of reading the subpartitions ``[first, end)``, given their chunks by file."""
    files = []
    for source, chunks in planned:
        gap = source.storage.gap_bytes
        reads = tuple(merge_reads(chunks, max_gap_bytes=gap, max_read_bytes=MAX_ROUND_BYTES))
        if reads:
            metadata = source.index.metadata
            path = f"{source.storage.root}/{source.path}"
            files.append(PlannedFile(path, metadata.map_task, metadata.attempt, reads))
    return PlannedGroup(first, end, tuple(files))


def plan_lines(plan: ReadPlan) -> Iterable[str]:
    """Yield a description of a plan, a line for each read."""
    for group in plan.groups:
        which = (
            f"subpartition {group.first:,}"
            if group.end - group.first == 1
            else f"subpartitions {group.first:,} to {group.end - 1:,}"
        )
        yield which if group.files else f"{which}: nothing to read"
        for file in group.files:
            yield f"  map task {file.map_task}, attempt {file.attempt}: {file.path}"
            for read in file.reads:
                yield f"    {_where(read)}: {_what(read)}"


def _where(read: RangeRead) -> str:
    if not read.ranges:
        return "no bytes"
    where = f"bytes {read.ranges[0][0]:,} to {sum(read.ranges[-1]):,}"
    return where if len(read.ranges) == 1 else f"{read.num_bytes:,} of {where}"


def _what(read: RangeRead) -> str:
    parts: dict[int, list[int]] = {}
    for chunk in read.chunks:
        parts.setdefault(chunk.region, []).append(chunk.chunk)
    return ", ".join(
        f"region {region} chunk{'' if len(chunks) == 1 else 's'} {chunks[0]}"
        + ("" if len(chunks) == 1 else f"-{chunks[-1]}")
        for region, chunks in parts.items()
    )
