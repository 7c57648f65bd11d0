"""Reads the index of a partitioned file and checks that it is the one that was committed.

The directory first, then the blocks of the subpartitions that are wanted. Alone so that reading
never loads the writer, which is :mod:`arrow_format.write.partitioned_file`.
Source: FLIP-148, ``PartitionedFileReader``, ``getIndexEntry``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from arrow_format.arrays.column_ids import renamed
from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.format.codecs import codec_of_file
from arrow_format.format.index_blocks import StoredBlock, decode_blocks
from arrow_format.format.index_file import (
    TAIL_BYTES,
    check_other,
    check_part,
    decode_directory,
    whole_regions,
)
from arrow_format.format.masks import RowMask, masked_subpartitions
from arrow_format.format.part_table import PartTable
from arrow_format.format.regions import Region, RegionKind, folded_parts
from arrow_format.format.statistics import ColumnStatistics
from arrow_format.format.statistics_section import decode_section
from arrow_format.format.totals import rows_of_subpartitions, subpartition_totals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from arrow_format.model import Int64Array, PartitionedFile, PartitionedFileMetadata
    from arrow_format.options import Codec
    from arrow_format.storage.open import Storage

SMALL_BYTES = 64 << 10
"""An index of this many bytes is read in one request."""

_RUN_BYTES = 256 << 10
"""Of blocks that are decoded together, compressed: so that what they become is a few megabytes."""


@dataclass(frozen=True, slots=True)
class UnfinishedFile:
    """What a reader needs for the complete regions of a file that has no index yet."""

    storage: Storage
    file: PartitionedFile
    metadata: PartitionedFileMetadata
    regions: tuple[Region, ...]
    statistics: Mapping[str, ColumnStatistics]
    """Of all chunks, in file order."""
    mask: None = None
    """None of its rows is gone."""


def broadcast_rows(regions: Iterable[Region]) -> int:
    """Count the rows of ``regions`` that every subpartition reads."""
    return sum(region.num_rows for region in regions if region.kind is RegionKind.BROADCAST)


class _Block(NamedTuple):
    table: PartTable | None
    """Parts of it and of others, which were decoded together; None where none has any."""
    rows: range
    """Of these, its own."""
    section: memoryview | None
    """Its statistics as they are stored; None where they were not read."""
    num_bytes: int

    def with_section(self, section: memoryview) -> _Block:
        """Return it with its statistics."""
        return self._replace(section=section, num_bytes=self.num_bytes + len(section))

    @property
    def chunks(self) -> tuple[Int64Array, Int64Array]:
        """Offset and rows of each chunk of its parts."""
        if self.table is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        of_parts = slice(*self.table.chunk_edges[[self.rows.start, self.rows.stop]])
        chunks = self.table.chunks
        return chunks.offset[of_parts], chunks.num_rows[of_parts].astype(np.int64)


def _as_stored(blocks: Sequence[_Block]) -> tuple[PartTable, range] | None:
    """Return a table of parts and which of them those of blocks are; None where some are joined."""
    if len(blocks) != 1 or (table := blocks[0].table) is None:
        return None
    rows = blocks[0].rows
    return None if table.goes_on[rows.start : rows.stop].any() else (table, rows)


def _joined_blocks(blocks: Sequence[_Block]) -> list[Region]:
    """Return the parts of blocks, joined."""
    stored = _as_stored(blocks)
    if stored is not None:
        table, rows = stored
        return [*map(table.at, rows)]
    found: list[tuple[PartTable, range]] = []
    for block in blocks:
        rows = block.rows
        if block.table is None or not rows:
            continue
        if found and found[-1][0] is block.table and found[-1][1].stop == rows.start:
            rows = range(found.pop()[1].start, rows.stop)
        found.append((block.table, rows))
    tables = [table.between(rows.start, rows.stop) for table, rows in found]
    return PartTable.together(tables).joined() if tables else []


class _Held(NamedTuple):
    """Bytes of an index that may still be needed."""

    first: int
    """The byte at which they begin."""
    content: bytes


@dataclass(slots=True)
class _Joined:
    """What some blocks have together, as their reader keeps it.

    It refers to no reader: so all goes with its last user, not when Python next looks for cycles.
    """

    numbers: tuple[int, ...]
    num_subpartitions: int
    """By which the parts have rows."""
    blocks: Sequence[_Block]
    is_folded: bool
    """Whether the file has more subpartitions than that."""
    in_table: tuple[PartTable, range] | None
    """A table of parts and which of them are the regions; None where they are not as there."""
    regions: tuple[Region, ...] | None = None
    """Made of the parts when they are needed."""
    statistics: Mapping[str, ColumnStatistics] | None = None


class IndexPart:
    """What some blocks of an index say: the rows of some subpartitions, and perhaps of others."""

    def __init__(self, reader: PartitionedFileReader, joined: _Joined) -> None:
        self.reader = reader
        self.storage = reader.storage
        self.file = reader.file
        self.metadata = reader.metadata
        if joined.num_subpartitions != self.metadata.num_subpartitions:
            self.metadata = replace(self.metadata, num_subpartitions=joined.num_subpartitions)
        self._joined = joined

    @property
    def regions(self) -> tuple[Region, ...]:
        """Parts of regions, by region and row; adjacent ones are joined."""
        joined = self._joined
        if joined.regions is None:  # several threads may do this: they make equal ones
            with self.reader.located():
                parts = _joined_blocks(joined.blocks)
            if joined.is_folded:
                n = joined.num_subpartitions
                parts = [piece for part in parts for piece in folded_parts(part, n)]
            joined.regions = tuple(parts)
        return joined.regions

    @property
    def in_table(self) -> tuple[PartTable, range] | None:
        """A table of parts and which of them are the regions; None where they are not as there."""
        return self._joined.in_table

    @property
    def mask(self) -> RowMask | None:
        """Rows of the file that are gone; see :attr:`PartitionedFileReader.mask`."""
        return self.reader.mask

    @property
    def statistics(self) -> Mapping[str, ColumnStatistics]:
        """Of the chunks of all regions, in their order, as they are stored; decoded when needed.

        Raises CorruptShuffleError where they cannot be those of this file.
        """
        joined = self._joined
        if joined.statistics is None:  # several threads may do this: they make equal ones
            names, schema = self.metadata.statistics, self.metadata.data_schema
            offsets, known = [np.empty(0, np.int64)], []
            for block in self.reader._open(joined.numbers, with_statistics=True):
                (offset, num_rows), section = block.chunks, block.section or memoryview(b"")
                offsets.append(offset)
                with self.reader.located():
                    known.append(decode_section(section, names, schema, num_rows))
            stored = np.concatenate(offsets)
            wanted = np.concatenate([offsets[0], *(part.chunks.offset for part in self.regions)])
            order = np.argsort(stored, kind="stable")
            rows = order[np.searchsorted(stored, wanted, sorter=order)]
            if not known:  # no block has a subpartition of the range
                none = np.empty(0, np.int64)
                types = {name: schema.field(name).type for name in names}
                known = [{name: ColumnStatistics.all_null(types[name], none) for name in names}]
            joined.statistics = {
                name: ColumnStatistics.joined([each[name] for each in known]).at(rows)
                for name in names
            }
        return joined.statistics

    def chunk_statistics(
        self, names: Iterable[str], schema: pa.Schema
    ) -> dict[str, ColumnStatistics]:
        """Return what is known of columns in each chunk of all regions; others are left out.

        Parameters
        ----------
        names
            Columns of ``schema``.
        schema
            The data schema as which rows are read, that of the file or a later one: bounds have its
            types, and a column that the file lacks is null in all rows.

        Raises
        ------
        CorruptShuffleError
            The index has other statistics than it says.
        """
        stored = self.metadata.data_schema.names
        columns = {}
        for name in names:
            type_ = schema.field(name).type
            if name in self.metadata.statistics:
                columns[name] = self.statistics[name].of_type(type_)
            elif name not in stored:
                columns[name] = ColumnStatistics.all_null(type_, chunk_rows(self.regions))
        return columns


class PartitionedFileReader:
    """The index of one partitioned file, verified as far as it is read.

    Parameters
    ----------
    storage
        Storage that holds the file.
    file
        The file as its map status or log entry describes it.
    masks
        Storage that holds its mask, if that is not in ``file``: the shuffle. None: ``storage``.

    Raises
    ------
    CorruptShuffleError
        The index is missing, damaged, or not the one that was committed.
    FormatVersionError
        A newer version wrote it.
    """

    def __init__(
        self, storage: Storage, file: PartitionedFile, masks: Storage | None = None
    ) -> None:
        self.storage = storage
        self.file = file
        self._masks = storage if masks is None else masks
        self._mask: RowMask | None = None
        self._held: _Held | None = None
        """Of a small index, so that neither blocks nor statistics are asked for again."""
        self._blocks: dict[int, _Block] = {}
        self._last: _Joined | None = None
        self._regions: tuple[Region, ...] | None = None
        start = file.index_bytes - TAIL_BYTES - file.directory_bytes
        if file.index_bytes <= SMALL_BYTES or start < 0:
            self._held = _Held(0, storage.read(file.index_path, num_bytes=file.index_bytes))
        with self.located():
            (stored,) = self._read([(max(start, 0), file.directory_bytes)], self._held)
            self.directory = decode_directory(
                check_part(stored, file.directory_crc32, "the directory of the index")
            )
        self.metadata = self.directory.metadata
        self.num_subpartitions = self.metadata.num_subpartitions
        """By which parts have rows: those of the file, or fewer of which these are a multiple."""
        self.check_data_bytes()

    def check_data_bytes(self) -> None:
        """Raise CorruptShuffleError where the index is of a data file of another length."""
        if self.metadata.data_bytes != self.file.data_bytes:
            raise self._not_committed()

    @property
    def num_columns(self) -> int:
        """Columns of the file."""
        return len(self.metadata.data_schema)

    def rename_columns(self, names: Mapping[str, str]) -> None:
        """Call the columns other names, wherever this file's metadata name one."""
        metadata = self.metadata
        self.metadata = replace(
            metadata,
            data_schema=renamed(metadata.data_schema, names),
            sort_by=tuple((names.get(name, name), order) for name, order in metadata.sort_by),
            statistics=tuple(names.get(name, name) for name in metadata.statistics),
        )

    def _not_committed(self) -> CorruptShuffleError:
        return CorruptShuffleError(
            f"{self._where}: is not the index that was committed; it was replaced afterwards"
        )

    @property
    def _where(self) -> str:
        return f"{self.storage.root}/{self.file.index_path}"

    @contextmanager
    def located(self) -> Iterator[None]:
        """Add to errors of the block which index they are about."""
        try:
            yield
        except (CorruptShuffleError, FormatVersionError) as error:
            msg = str(error) if self._where in str(error) else f"{self._where}: {error}"
            raise type(error)(msg) from error

    def _read(self, ranges: Sequence[tuple[int, int]], held: _Held | None) -> list[memoryview]:
        if held is not None:
            view = memoryview(held.content)
            return [view[start - held.first :][:length] for start, length in ranges]
        found = self.storage.get_ranges(self.file.index_path, ranges)
        return [memoryview(buffer) for buffer in found]

    def _open(self, numbers: Sequence[int], *, with_statistics: bool = False) -> list[_Block]:
        """Return blocks, and read those that are not there, adjacent ones together."""
        fetched = self._fetch(numbers, with_statistics=with_statistics)
        with self.located():
            decode_fetched(fetched)
        return [self._blocks[number] for number in numbers]

    def fetch(
        self, ranges: Iterable[tuple[int, int]] | None, columns: Iterable[str] = ()
    ) -> list[FetchedBlock]:
        """Read the blocks that :meth:`of_ranges` needs and that are not there; all when None.

        They are for :func:`decode_fetched`, with those of other files.
        """
        return self._fetch(self._numbers_of(ranges), with_statistics=self._has_any(columns))

    def _fetch(self, numbers: Sequence[int], *, with_statistics: bool) -> list[FetchedBlock]:
        held = self._held  # before: another thread drops it of blocks that are there
        missing = [number for number in numbers if number not in self._blocks]
        lacking = []
        if with_statistics:
            known = ((number, self._blocks.get(number)) for number in numbers)
            lacking = [number for number, block in known if block and block.section is None]
        if not missing and not lacking:
            return []
        places = self.directory.blocks
        of_sections = [*missing, *lacking] if with_statistics else []
        ranges = [places[number].ranges[0] for number in missing]
        ranges += [places[number].ranges[1] for number in of_sections]
        of_file = self.metadata.data_bytes, self.metadata.num_subpartitions
        fetched = []
        with self.located():
            found = iter(self._read_adjacent(ranges, held))
            frames = [next(found) for _ in missing]
            sections = dict(zip(of_sections, found, strict=True))
            for number, section in sections.items():
                check_part(section, places[number].statistics_crc32, "statistics")
            for number, frame in zip(missing, frames, strict=True):
                place = places[number]
                check_part(frame, place.crc32, "a block of the index")
                stored = StoredBlock(frame, place.first, place.end, *of_file)
                fetched.append(FetchedBlock(self, number, stored, sections.get(number)))
        for number in lacking:
            self._blocks[number] = self._blocks[number].with_section(sections[number])
        return fetched

    def _read_adjacent(
        self, ranges: Sequence[tuple[int, int]], held: _Held | None
    ) -> list[memoryview]:
        """Read ranges, of which those that are adjacent are read together."""
        joined: list[tuple[int, int]] = []
        at = []
        for start, length in ranges:
            if joined and sum(joined[-1]) == start:
                at.append((len(joined) - 1, joined[-1][1], length))
                joined[-1] = (joined[-1][0], joined[-1][1] + length)
            else:
                at.append((len(joined), 0, length))
                joined.append((start, length))
        wanted = [place for place in joined if place[1]]
        found = dict(zip(wanted, self._read(wanted, held), strict=True))
        return [
            found[joined[i]][start : start + length] if length else memoryview(b"")
            for i, start, length in at
        ]

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that it keeps, about."""
        blocks = sum(block.num_bytes for block in list(self._blocks.values()))
        mask = 0 if self._mask is None else self._mask.nbytes
        held = 0 if self._held is None else len(self._held.content)
        return self.file.directory_bytes + blocks + held + mask

    def add(self, number: int, block: _Block) -> None:
        """Keep a block; when all are there, a small index is needed for statistics alone."""
        known = self._blocks.get(number)
        if known is None or known.section is None:  # another thread may have asked for more
            self._blocks[number] = block
        if self._held is not None and len(self._blocks) == len(self.directory.blocks):
            places = [place.ranges[1] for place in self.directory.blocks]
            first = min((start for start, length in places if length), default=0)
            end = max((sum(place) for place in places if place[1]), default=0)
            before, content = self._held
            self._held = _Held(first, content[first - before : end - before])

    @property
    def mask(self) -> RowMask | None:
        """Rows that are gone, verified; None where there are none.

        Raises CorruptShuffleError where the mask is missing or damaged.
        """
        described = self.file.mask
        if described and self._mask is None:  # several threads may do this: they make equal ones
            frame: bytes | memoryview = described.frame
            try:
                if described.path:
                    place = described.offset, described.length
                    (buffer,) = self._masks.get_ranges(described.path, [place])
                    frame = memoryview(buffer)
                frame = check_part(memoryview(frame), described.crc32, "the mask")
                rows = described.num_rows, self.file.num_regions, self.file.stored_rows
                self._mask = RowMask.decode(frame, *rows)
            except (CorruptShuffleError, ValueError) as error:
                where = f"{self._masks.root}/{described.path}" if described.path else "the log"
                msg = (
                    f"{where}: the mask of {self.file.data_path}, from byte {described.offset} on, "
                    f"cannot be used, so that rows which were deleted would be read: {error}"
                )
                raise CorruptShuffleError(msg) from error
        return self._mask

    def of_ranges(
        self, ranges: Iterable[tuple[int, int]], columns: Iterable[str] = ()
    ) -> IndexPart:
        """Return what the index says of ranges of subpartitions ``[first, end)``.

        Parameters
        ----------
        ranges
            Without a subpartition in common, in any order; of :attr:`num_subpartitions`.
        columns
            Of these, statistics are read with the same requests, if the index has any.

        Raises
        ------
        CorruptShuffleError
            A block is missing or damaged.
        FormatVersionError
            A newer version wrote it.
        """
        return self._part(self._numbers_of(ranges), self.num_subpartitions, columns)

    def _numbers_of(self, ranges: Iterable[tuple[int, int]] | None) -> tuple[int, ...]:
        """Return the blocks that may have rows of ranges of subpartitions; of all when None."""
        blocks = self.directory.blocks
        if ranges is None:
            return tuple(range(len(blocks)))
        n, ascending = self.num_subpartitions, sorted(ranges)
        shifts = range(0, self.metadata.num_subpartitions, n)
        firsts = [first + shift for shift in shifts for first, _ in ascending]
        ends = [end + shift for shift in shifts for _, end in ascending]
        # Some of the ascending ranges begins before the block ends, and ends after it begins.
        return tuple(
            number
            for number, block in enumerate(blocks)
            if bisect_left(firsts, block.end) > bisect_right(ends, block.first)
        )

    def _has_any(self, columns: Iterable[str]) -> bool:
        return not set(columns).isdisjoint(self.metadata.statistics)

    def _part(
        self, numbers: tuple[int, ...], num_subpartitions: int, columns: Iterable[str] = ()
    ) -> IndexPart:
        """Return what blocks say, with the rows of their parts by a number of subpartitions."""
        joined = self._last
        if joined is None or (joined.numbers, joined.num_subpartitions) != (
            numbers,
            num_subpartitions,
        ):
            blocks = self._open(numbers, with_statistics=self._has_any(columns))
            is_folded = num_subpartitions < self.metadata.num_subpartitions
            in_table = None if is_folded else _as_stored(blocks)
            self._last = joined = _Joined(numbers, num_subpartitions, blocks, is_folded, in_table)
        return IndexPart(self, joined)

    def load(self) -> PartitionedFileReader:
        """Read all blocks that were not read yet, and return the reader."""
        self.regions  # noqa: B018
        return self

    @property
    def _whole(self) -> IndexPart:
        return self._part(self._numbers_of(None), self.metadata.num_subpartitions)

    @property
    def regions(self) -> tuple[Region, ...]:
        """All regions, whole, in file order; of all blocks. Raises as :meth:`of_ranges`."""
        if self._regions is None:
            with self.located():
                regions = whole_regions(self._whole.regions, self.metadata)
            file = self.file
            num_broadcast = broadcast_rows(regions) - self._masked_broadcast(regions)
            if (len(regions), sum(r.num_rows for r in regions), num_broadcast) != (
                file.num_regions,
                file.stored_rows,
                file.num_broadcast_rows,
            ):
                raise self._not_committed()
            self._regions = regions
        return self._regions

    def is_masked(self, region: int) -> bool:
        """Whether rows of a region are gone; raises as :attr:`mask`."""
        return self.mask is not None and self.mask.has_rows_of(region)

    def _masked_broadcast(self, regions: Sequence[Region]) -> int:
        """Return how many stored broadcast rows are gone; no region lacks a row that is."""
        try:
            return 0 if self.mask is None else self.mask.broadcast_rows(regions)
        except ValueError as error:
            raise CorruptShuffleError(f"{self._where}: {error}") from error

    def _masked(self) -> Int64Array | int:
        """Return how many rows of each subpartition are gone."""
        if self.mask is None:
            return 0
        n = self.metadata.num_subpartitions
        return masked_subpartitions(self.mask.rows(), self.regions, n)[0]

    @property
    def subpartition_rows(self) -> Int64Array:
        """Rows that are left of each subpartition; raises as :attr:`regions`."""
        rows = rows_of_subpartitions(self.regions, self.metadata.num_subpartitions)
        return rows - self._masked()

    @property
    def totals(self) -> tuple[Int64Array, Int64Array]:
        """Rows that are left, and stored bytes, of each subpartition; raises as :attr:`regions`.

        The bytes sum to the length of the data file.
        """
        n = self.metadata.num_subpartitions
        rows, sizes = subpartition_totals(self.regions, n, self.file.data_bytes)
        return rows - self._masked(), sizes

    @property
    def statistics(self) -> Mapping[str, ColumnStatistics]:
        """Of all chunks in file order, as they are stored; raises as that of a part."""
        return self._whole.statistics

    @property
    def codec(self) -> Codec:
        """That of its chunks, by name; see :func:`codec_of_file`."""
        return codec_of_file(self.encodings).name

    @property
    def encodings(self) -> set[int]:
        """Those of its chunks."""
        return set().union(*(region.chunks.encoding.tolist() for region in self.regions))

    def check(self) -> None:
        """Read all of the index and check it; CorruptShuffleError where a byte differs."""
        whole = self.storage.read(self.file.index_path, num_bytes=self.file.index_bytes)
        with self.located():
            check_other(whole, self.directory, self.file.directory_bytes)
        self.regions  # noqa: B018
        self._whole.statistics  # noqa: B018


class FetchedBlock(NamedTuple):
    """A block of an index that was read, and whose CRC is right."""

    reader: PartitionedFileReader
    number: int
    stored: StoredBlock
    section: memoryview | None
    """Its statistics as they are stored, if these were asked for."""


def decode_fetched(fetched: Iterable[FetchedBlock]) -> None:
    """Decode blocks of some indexes, several together, for the readers that they come from.

    Raises CorruptShuffleError or FormatVersionError where one of them cannot be used, which does
    not say which: open the readers one by one.
    """
    run: list[FetchedBlock] = []
    num_bytes = 0
    for block in fetched:
        size = len(block.stored.frame)
        if run and (
            num_bytes + size > _RUN_BYTES or block.reader.num_columns != run[0].reader.num_columns
        ):
            _decode_run(run)
            run, num_bytes = [], 0
        run.append(block)
        num_bytes += size
    if run:
        _decode_run(run)


def _decode_run(run: Sequence[FetchedBlock]) -> None:
    table, counts = decode_blocks([block.stored for block in run], run[0].reader.num_columns)
    ends = [*accumulate(counts, initial=0)]
    sizes = [0] * len(run) if table is None else table.sizes(ends)
    for (reader, number, _, section), rows, size in zip(
        run, map(range, ends, ends[1:]), sizes, strict=False
    ):
        reader.add(number, _Block(table, rows, section, size + len(section or b"")))


def chunk_rows(regions: Iterable[Region]) -> Int64Array:
    """Return the number of rows of each chunk of all regions, in file order."""
    rows = [region.chunks.num_rows for region in regions]
    return np.concatenate([np.zeros(0, np.int64), *rows])
