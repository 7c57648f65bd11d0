"""Plans which bytes to read for a range of subpartitions, and groups subpartitions. Pure.

Adjacent subpartitions are adjacent rows of every region, so a range is one extent of chunks per
region, two where the range crosses the region's rotation. Source: FLIP-148, "I/O scheduler".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, compress, groupby, islice, pairwise, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from arrow_format.arrays.row_sizes import runs_within
from arrow_format.errors import OptionError
from arrow_format.format.chunk_table import MESSAGE, ChunkPlaces
from arrow_format.format.regions import RegionKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from arrow_format.format.part_table import PartTable
    from arrow_format.format.regions import Region
    from arrow_format.model import Int64Array
    from arrow_format.read.partitioned_file import IndexPart


class ChunkRead(NamedTuple):
    """Rows wanted from one chunk."""

    region: int
    """Number of the region in its file."""
    chunk: int
    """Number of the chunk in its region, or in the part of it that is read."""
    first_row: int
    """First row wanted, counted from the start of the chunk."""
    end_row: int
    """Row after the last one wanted."""
    offset: int
    length: int
    part: int = 0
    """Position of that region or part in what is known of the file."""
    pieces: tuple[tuple[int, int], ...] | None = None
    """Bytes ``(offset, length)`` of the file that are wanted of it; all of the chunk when None."""
    places: ChunkPlaces | None = None
    """Where the columns of its reader are in what is fetched, if that was looked up."""
    before: tuple[Any, ...] = ()
    """What comes before it in the plan and is not fetched: of :class:`KeptRead`."""

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Bytes ``(offset, length)`` of the file that are wanted of it, ascending."""
        return ((self.offset, self.length),) if self.pieces is None else self.pieces

    @property
    def num_bytes(self) -> int:
        """Bytes that are wanted of it."""
        return sum(length for _, length in self.ranges)


class Piece(NamedTuple):
    """A run of the order in which the rows of a subpartition were written, one of several.

    They have about as many bytes each. Each chunk is in one: the rows of one are not divided.
    """

    number: int
    """From 0, in that order."""
    of: int
    """How many there are."""

    def shares(self, sizes: Sequence[int]) -> Iterator[tuple[float, float]]:
        """Yield of each file, in reading order, the part that is in the piece.

        It begins and ends at parts of the file, 0 to 1, or before or behind it. ``sizes`` are bytes
        of the files, as which the rows are taken to be spread over them.
        """
        total, start = sum(sizes), 0
        first, end = (total * edge // self.of for edge in (self.number, self.number + 1))
        for size in sizes:
            yield (first - start) / size, (end - start) / size
            start += size


def chunks_within(chunks: Iterable[ChunkRead], share: tuple[float, float]) -> Iterable[ChunkRead]:
    """Return those of the chunks of a file whose middle is in a part of it; see :class:`Piece`."""
    first, end = share
    if first <= 0 and end >= 1:
        return chunks
    planned = list(chunks)
    ends = np.cumsum([chunk.end_row - chunk.first_row for chunk in planned])
    middles = (ends + np.append(0, ends[:-1])) / (2 * ends[-1]) if planned else ends
    return [*compress(planned, ((middles >= first) & (middles < end)).tolist())]


@dataclass(frozen=True, slots=True)
class RangeRead:
    """Ranges of a data file that are read together, and the chunks they have, in file order."""

    ranges: tuple[tuple[int, int], ...]
    """``(offset, length)``, ascending; where there are several, each ends inside of a chunk."""
    chunks: tuple[ChunkRead, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes to read, also those between what is wanted."""
        return sum(length for _, length in self.ranges)


def plan_chunks(
    regions: Sequence[Region],
    first: int,
    end: int,
    num_subpartitions: int,
    *,
    first_region: int = 0,
) -> Iterator[ChunkRead]:
    """Yield the chunks that hold rows of the subpartitions ``[first, end)``, by offset.

    ``regions`` are adjacent regions of one file, or parts of some, in file order; there are
    ``first_region`` others before them.
    """
    for part, region in enumerate(regions, first_region):
        chunks = region.chunks
        for lo, hi in region.row_extents(first, end, num_subpartitions):
            begin, stop = region.chunk_extent(lo, hi)
            starts = chunks.first_row[begin:stop]
            yield from map(
                ChunkRead,
                repeat(region.number),
                range(begin, stop),
                np.maximum(lo - starts, 0).tolist(),
                np.minimum(hi - starts, chunks.num_rows[begin:stop]).tolist(),
                chunks.offset[begin:stop].tolist(),
                chunks.length[begin:stop].tolist(),
                repeat(part),
            )


def chunks_of_ranges(
    regions: Sequence[Region],
    ranges: Sequence[tuple[int, int]],
    num_subpartitions: int,
    *,
    first_region: int = 0,
) -> Iterable[ChunkRead]:
    """Return the chunks that hold rows of ascending ranges of subpartitions, by offset.

    Each comes once; the rows wanted of it may include those of subpartitions between the ranges.
    """
    if not ranges:
        return ()
    if len(ranges) == 1:
        (first, end), n = ranges[0], num_subpartitions
        return plan_chunks(regions, first, end, n, first_region=first_region)
    is_wanted = np.zeros(num_subpartitions, np.bool_)
    for first, end in ranges:
        is_wanted[first:end] = True
    return plan_wanted(regions, is_wanted, first_region=first_region)


def plan_wanted(
    regions: Sequence[Region], is_wanted: NDArray[np.bool_], *, first_region: int = 0
) -> Iterator[ChunkRead]:
    """Yield the chunks that hold rows of wanted subpartitions, as :func:`chunks_of_ranges` does.

    ``is_wanted`` says it of each subpartition.
    """
    for part, region in enumerate(regions, first_region):
        table, first, end = region.chunks, np.zeros(1, np.int64), np.array([region.num_rows])
        if region.kind is RegionKind.UNICAST:
            ids, counts = region.subpartition_rows(len(is_wanted))
            at = np.flatnonzero(is_wanted[ids] & (counts > 0))
            first, end = region.row_offsets[at], region.row_offsets[at + 1]
        # Of the extents, which ascend: the first that ends in a chunk, and the last that begins.
        starts, stops = table.first_row, table.first_row + table.num_rows
        least = np.searchsorted(end, starts, side="right")
        most = np.searchsorted(first, stops, side="left") - 1
        for chunk in np.flatnonzero(least <= most).tolist():
            start, stop = int(starts[chunk]), int(stops[chunk])
            yield ChunkRead(
                region.number,
                chunk,
                max(int(first[least[chunk]]) - start, 0),
                min(int(end[most[chunk]]), stop) - start,
                int(table.offset[chunk]),
                int(table.length[chunk]),
                part,
            )


def plan_together(
    indexes: Sequence[IndexPart],
    ranges: Sequence[Sequence[tuple[int, int]]],
    num_subpartitions: int,
) -> Iterator[Iterable[ChunkRead]]:
    """Yield of each of some files the chunks of its ranges, as :func:`chunks_of_ranges` does.

    Those whose indexes were decoded together are planned together where one range is wanted.
    """
    known = [
        (index.in_table if len(of) == 1 else None, index, of)
        for index, of in zip(indexes, ranges, strict=True)
    ]
    for _, run in groupby(known, lambda one: one[0] and (id(one[0][0]), one[2][0])):
        files = [*run]
        tables = [table for table, _, _ in files if table is not None]
        if tables:
            ((first, end),) = files[0][2]
            yield from _plan_parts(tables[0][0], [parts for _, parts in tables], first, end)
        else:
            yield from (
                chunks_of_ranges(one.regions, of, num_subpartitions) for _, one, of in files
            )


def _plan_parts(
    table: PartTable, files: Sequence[range], first: int, end: int
) -> Iterator[Iterable[ChunkRead]]:
    """Yield the chunks of one range of subpartitions, of each file, which has a range of parts."""
    starts = np.array([of.start for of in files])
    counts = np.array([len(of) for of in files])
    file_ends = counts.cumsum()
    of_file = np.arange(file_ends[-1]) - np.repeat(file_ends - counts, counts)
    parts = np.repeat(starts, counts) + of_file
    wanted = table.wanted(parts, first, end)
    chunks = map(
        ChunkRead,
        table.region[parts[wanted.part]].tolist(),
        wanted.chunk.tolist(),
        wanted.first_row.tolist(),
        wanted.end_row.tolist(),
        table.chunks.offset[wanted.row].tolist(),
        table.chunks.length[wanted.row].tolist(),
        of_file[wanted.part].tolist(),
    )
    edges = wanted.part.searchsorted(file_ends).tolist()
    for before, after in pairwise([0, *edges]):
        yield [*islice(chunks, after - before)]


def subpartitions_of_chunks(
    chunks: Sequence[ChunkRead], regions: Sequence[Region], num_subpartitions: int
) -> tuple[Int64Array, Int64Array]:
    """Return the subpartitions ``[first, end)`` that the rows wanted of each chunk are in.

    ``chunks`` are of these regions, or parts of some, one after the other.
    """
    firsts, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for part, run in groupby(chunks, lambda one: one.part):
        region, of_part = regions[part], [*run]
        first, end = np.zeros(len(of_part), np.int64), np.full(len(of_part), num_subpartitions)
        if region.kind is RegionKind.UNICAST:
            ids, _ = region.subpartition_rows(num_subpartitions)
            start = region.chunks.first_row[[one.chunk for one in of_part]]
            rows = (
                start + [one.first_row for one in of_part],
                start + [one.end_row - 1 for one in of_part],
            )
            edges = region.row_offsets
            low, high = (ids[edges.searchsorted(of, "right") - 1] for of in rows)
            ascends = low <= high
            first[ascends], end[ascends] = low[ascends], high[ascends] + 1
        firsts.append(first)
        ends.append(end)
    return np.concatenate(firsts), np.concatenate(ends)


def with_places(chunk: ChunkRead, places: ChunkPlaces, max_gap_bytes: int) -> ChunkRead:
    """Return a chunk of which the frames of some places are wanted, with these.

    It is wanted whole where no gap between them, nor before and behind, is more than
    ``max_gap_bytes``: to cut it into its frames would gain nothing.
    """
    unwanted = chunk.length - sum(places.length)
    if (places.length and unwanted <= max_gap_bytes) or places.encoding == MESSAGE:
        return ChunkRead(*chunk[:7], None, places)
    pieces: list[tuple[int, int]] = []
    end = most = 0
    for start, length in zip(places.offset, places.length, strict=True):
        if start > end or not pieces:
            most = max(most, start - end)
            pieces.append((chunk.offset + start, length))
        else:
            pieces[-1] = (pieces[-1][0], pieces[-1][1] + length)
        end = start + length
    if pieces and max(most, chunk.length - end) <= max_gap_bytes:
        return ChunkRead(*chunk[:7], None, places)
    fetched = [*accumulate(places.length[:-1], initial=0)] if pieces else []
    return ChunkRead(*chunk[:7], tuple(pieces), places._replace(offset=fetched))


def without_places(chunk: ChunkRead) -> ChunkRead:
    """Return a chunk before its places were looked up: these take more than all else of a plan."""
    return chunk._replace(pieces=None, places=None)


def bytes_to_read(chunk: ChunkRead, end: int, max_gap_bytes: int) -> tuple[int, int]:
    """Return the bytes that a chunk adds to what is read up to ``end``, and where it ends."""
    num_bytes = 0
    for offset, length in chunk.ranges:
        gap = offset - end
        num_bytes += length + (gap if 0 < gap <= max_gap_bytes else 0)
        end = offset + length
    return num_bytes, end


def merge_reads(
    chunks: Iterable[ChunkRead], *, max_gap_bytes: int, max_read_bytes: int
) -> Iterator[RangeRead]:
    """Merge what is wanted of chunks, given by offset, into reads where it lies close together.

    What has at most ``max_gap_bytes`` unwanted bytes between is read together. No read is of more
    than ``max_read_bytes``, unless one chunk is.
    """
    held: list[ChunkRead] = []
    ranges: list[tuple[int, int]] = []
    num_bytes = 0
    for chunk in chunks:
        wanted = joined_reads(chunk.ranges, max_gap_bytes)
        num_wanted = sum(length for _, length in wanted)
        gap = wanted[0][0] - sum(ranges[-1]) if wanted and ranges else 0
        is_near = 0 <= gap <= max_gap_bytes
        if held and not (is_near and num_bytes + gap + num_wanted <= max_read_bytes):
            yield RangeRead(tuple(ranges), tuple(held))
            held, ranges, num_bytes, gap = [], [], 0, 0
        if wanted and ranges:
            start, before = ranges.pop()
            (_, length), *wanted = wanted
            ranges.append((start, before + gap + length))
        ranges += wanted
        num_bytes += gap + num_wanted
        held.append(chunk)
    if held:
        yield RangeRead(tuple(ranges), tuple(held))


def joined_reads(ranges: Iterable[tuple[int, int]], max_gap_bytes: int) -> list[tuple[int, int]]:
    """Return ranges ``(offset, length)``, joined with the one before where the gap is small."""
    joined: list[tuple[int, int]] = []
    for offset, length in ranges:
        if joined and 0 <= offset - sum(joined[-1]) <= max_gap_bytes:
            offset, length = joined[-1][0], offset + length - joined.pop()[0]
        joined.append((offset, length))
    return joined


def check_subpartitions(
    subpartitions: int | Iterable[int] | None, num_subpartitions: int
) -> list[int] | None:
    """Return subpartitions ascending without repetition; None for all.

    Raises :class:`OptionError` for one that is not a whole number, or out of range.
    """
    if subpartitions is None:
        return None
    if isinstance(subpartitions, range) and len(subpartitions) > num_subpartitions:
        subpartitions = [subpartitions[0], subpartitions[-1]]  # its first or last is out of range
    wanted = list(subpartitions) if isinstance(subpartitions, Iterable) else [subpartitions]
    for subpartition in wanted:
        if isinstance(subpartition, bool) or not isinstance(subpartition, (int, np.integer)):
            msg = f"subpartition {subpartition!r}: expected a whole number"
            raise OptionError(msg)
        if not 0 <= subpartition < num_subpartitions:
            msg = (
                f"subpartition {subpartition} is out of range; the shuffle has "
                f"{num_subpartitions}, 0 to {num_subpartitions - 1}"
            )
            raise OptionError(msg)
    return sorted({int(subpartition) for subpartition in wanted})


def extent_of(subpartitions: Sequence[int] | None, num_subpartitions: int) -> range:
    """Return the fewest adjacent subpartitions that have all of some ascending ones.

    None are all. What a task does for each of these it does not do for all of the shuffle: there
    may be as many tasks as subpartitions allow.
    """
    if subpartitions is None:
        return range(num_subpartitions)
    return range(subpartitions[0], subpartitions[-1] + 1) if len(subpartitions) else range(0)


def group_adjacent(
    weights: Int64Array,
    max_weight: int,
    subpartitions: Sequence[int] | None = None,
    *,
    origin: int = 0,
) -> list[tuple[int, int]]:
    """Group adjacent subpartitions into ascending ranges ``[first, end)`` of limited weight.

    A single subpartition heavier than ``max_weight`` is a range of its own. ``weights`` has one
    value for each subpartition from ``origin`` on; ``subpartitions`` are those wanted of them,
    ascending without repetition, all when None.
    """
    if subpartitions is None:
        subpartitions = range(origin, origin + len(weights))
    return [
        (first + start, first + stop)
        for first, end in adjacent_ranges(subpartitions)
        for start, stop in runs_within(
            np.cumsum(weights[first - origin : end - origin]), max_weight
        )
    ]


def adjacent_ranges(subpartitions: Sequence[int] | Int64Array) -> tuple[tuple[int, int], ...]:
    """Return ascending subpartitions as the fewest ranges ``[first, end)``, in order."""
    if len(subpartitions) == 0:
        return ()
    if isinstance(subpartitions, range) and subpartitions.step == 1:
        return ((subpartitions[0], subpartitions[-1] + 1),)
    numbers = np.asarray(subpartitions, np.int64)
    gaps = np.flatnonzero(np.diff(numbers) != 1)
    firsts = numbers[np.append(0, gaps + 1)]
    lasts = numbers[np.append(gaps, len(numbers) - 1)]
    return tuple(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))


def coalesce_adjacent(
    weights: Int64Array, max_weight: int, subpartitions: Int64Array
) -> list[tuple[tuple[int, int], ...]]:
    """Group subpartitions, in their order, by limited weight, adjacent or not.

    Parameters as for :func:`group_adjacent`. A group is one range ``[first, end)`` where its
    subpartitions are adjacent, otherwise several.
    """
    return [
        adjacent_ranges(subpartitions[start:stop])
        for start, stop in runs_within(np.cumsum(weights[subpartitions]), max_weight)
    ]


def cut_evenly(weights: Int64Array, num_groups: int) -> Iterator[tuple[int, int]]:
    """Yield the fewest extents ``[start, stop)`` of weights, in order, of about equal weight.

    There are at most ``num_groups``, and none is empty; each may be heavier than the average by
    half a weight at either end. ``weights`` are 1 or more.
    """
    ends = np.cumsum(weights)
    if not len(ends):
        return
    # By the middle of each, in floats: bytes times groups may exceed 2**63.
    group = np.floor((ends - weights / 2) * (num_groups / ends[-1]))
    edges = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(ends)]
    yield from pairwise(edges)
