"""The frame of a mask: which rows of a partitioned file are gone, by region and row. Pure.

See ``docs/format/masks.md``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import binary_array, to_arrow, to_numpy
from arrow_format.arrays.selection import ascending
from arrow_format.format.batch_frame import MALFORMED, decode_batch, encode_batch
from arrow_format.format.regions import RegionKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from arrow_format.format.regions import Region
    from arrow_format.model import Int64Array

PIECE_ROWS = 1 << 16
"""Rows of a region that a bitmap is of: one for each stretch of so many that has a masked row."""

_SCHEMA = pa.schema(
    [
        pa.field("region", pa.int32(), nullable=False),
        pa.field("first_row", pa.int64(), nullable=False),
        pa.field("rows", pa.binary(), nullable=False),
    ]
)
Stretch: TypeAlias = "tuple[int, int, NDArray[np.uint8]]"
"""A region, the first row of a stretch of it, and which of its rows are gone, as a bitmap."""

_REGION_BITS = 31
"""A region has fewer rows than this many bits can count."""


class RowMask:
    """Rows of a file that are gone, held as bitmaps of the stretches of regions that have some."""

    def __init__(self, places: Int64Array, bitmaps: Sequence[NDArray[np.uint8]]) -> None:
        self._places = places
        """Region and first row of each bitmap, as one ascending number."""
        self._sorted_places: list[int] = places.tolist()
        self._bitmaps = bitmaps

    @staticmethod
    def of(rows: Mapping[int, Int64Array]) -> RowMask:
        """Return the mask of some rows of regions, each once and ascending, by the region."""
        places, bitmaps = [], []
        for region in sorted(rows):
            positions = rows[region]
            pieces = positions // PIECE_ROWS
            starts = np.flatnonzero(np.diff(pieces, prepend=-1))
            for start, stop in pairwise([*starts.tolist(), len(positions)]):
                first = int(pieces[start]) * PIECE_ROWS
                is_gone = np.zeros(int(positions[stop - 1]) - first + 1, np.bool_)
                is_gone[positions[start:stop] - first] = True
                places.append((region << _REGION_BITS) + first)
                bitmaps.append(np.packbits(is_gone, bitorder="little"))
        return RowMask(np.array(places, np.int64), bitmaps)

    @staticmethod
    def of_stretches(stretches: Iterable[Stretch]) -> RowMask:
        """Return the mask of stretches of which no two have a row in common, to be asked alone.

        The last byte of one may reach into the next: a frame has no such stretches.
        """
        by_place = sorted(
            (((region << _REGION_BITS) + first), number, bitmap)
            for number, (region, first, bitmap) in enumerate(stretches)
        )
        places = np.array([place for place, _, _ in by_place], np.int64)
        return RowMask(places, [bitmap for _, _, bitmap in by_place])

    @staticmethod
    def all_but(kept: Mapping[int, Int64Array], lengths: Sequence[int]) -> RowMask:
        """Return the mask of all rows of regions of some lengths but those that are kept."""
        places, bitmaps = [], []
        for region, num_rows in enumerate(lengths):
            positions = kept.get(region, np.empty(0, np.int64))
            for first in range(0, num_rows, PIECE_ROWS):
                is_gone = np.ones(min(PIECE_ROWS, num_rows - first), np.bool_)
                low, high = np.searchsorted(positions, (first, first + PIECE_ROWS))
                is_gone[positions[low:high] - first] = False
                places.append((region << _REGION_BITS) + first)
                bitmaps.append(np.packbits(is_gone, bitorder="little"))
        return RowMask(np.array(places, np.int64), bitmaps)

    def encode(self) -> bytes:
        """Return the frame of the mask."""
        regions = self._places >> _REGION_BITS
        columns = [
            to_arrow(regions.astype(np.int32)),
            to_arrow(self._places - (regions << _REGION_BITS)),
            binary_array([bitmap.tobytes() for bitmap in self._bitmaps], pa.binary()),
        ]
        return encode_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))

    @staticmethod
    def decode(
        frame: bytes | memoryview, num_rows: int, num_regions: int, stored_rows: int
    ) -> RowMask:
        """Inverse of :meth:`encode`; of a file of so many regions, of which so many rows are gone.

        ``stored_rows`` are all that the file has. Raises ValueError for a frame that is none of
        such a mask. A row that only its region lacks is not seen here: a reader of a part of the
        index does not know how many the region has.
        """
        try:
            batch = decode_batch(frame, _SCHEMA)
        except MALFORMED as error:
            msg = f"it is no mask ({error})"
            raise ValueError(msg) from error
        regions, firsts = (to_numpy(batch.column(i)).astype(np.int64) for i in (0, 1))
        bitmaps = [np.frombuffer(each.as_buffer(), np.uint8) for each in batch.column(2)]
        ends = firsts + 8 * np.array([len(each) for each in bitmaps], np.int64)
        if np.any((regions < 0) | (regions >= num_regions) | (firsts < 0)) or np.any(
            firsts >> _REGION_BITS
        ):
            msg = "it has rows of no region"
            raise ValueError(msg)
        is_same = regions[1:] == regions[:-1]
        if np.any(regions[1:] < regions[:-1]) or np.any(is_same & (firsts[1:] < ends[:-1])):
            msg = "its pieces are not in order"
            raise ValueError(msg)
        most = stored_rows - num_regions + 1  # each of the other regions has a row
        for at in np.flatnonzero(ends > most).tolist():
            bits = np.unpackbits(bitmaps[at], bitorder="little")
            if bits[max(most - int(firsts[at]), 0) :].any():
                msg = f"it has a row of region {regions[at]} that cannot be there"
                raise ValueError(msg)
        mask = RowMask((regions << _REGION_BITS) + firsts, bitmaps)
        if mask.num_rows != num_rows:
            msg = f"it has {mask.num_rows} rows, and the log says {num_rows}"
            raise ValueError(msg)
        return mask

    @property
    def num_rows(self) -> int:
        """How many rows are gone."""
        return sum(int(np.bitwise_count(bitmap).sum()) for bitmap in self._bitmaps)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes, about."""
        return self._places.nbytes + sum(bitmap.nbytes for bitmap in self._bitmaps)

    def gone(self, region: int, first: int, end: int) -> NDArray[np.bool_] | None:
        """Return of each row ``[first, end)`` of a region whether it is gone; None: none is.

        It is asked for each chunk that is read, of which most have no such row.
        """
        at = region << _REGION_BITS
        places = self._sorted_places
        is_gone = None
        for number in range(
            max(bisect_right(places, at + first) - 1, 0), bisect_left(places, at + end)
        ):
            begin, bitmap = places[number] - at, self._bitmaps[number]
            low, high = max(first, begin), min(end, begin + 8 * len(bitmap))
            if begin < 0 or low >= high:  # it is of the region before, or ends before the rows
                continue
            of_bytes = bitmap[(low - begin) // 8 : -(-(high - begin) // 8)]
            if not of_bytes.any():
                continue
            bits = np.unpackbits(of_bytes, bitorder="little")[(low - begin) % 8 :][: high - low]
            if bits.any():
                if is_gone is None:
                    is_gone = np.zeros(end - first, np.bool_)
                is_gone[low - first : high - first] = bits
        return is_gone

    def has_rows_of(self, region: int) -> bool:
        """Whether any row of a region is gone."""
        return bool(np.any(self._places >> _REGION_BITS == region))

    def rows(self) -> dict[int, Int64Array]:
        """Return the rows that are gone, ascending, by their region."""
        found: dict[int, list[Int64Array]] = {}
        for place, bitmap in zip(self._places.tolist(), self._bitmaps, strict=True):
            region = place >> _REGION_BITS
            first = place - (region << _REGION_BITS)
            rows = np.flatnonzero(np.unpackbits(bitmap, bitorder="little")) + first
            found.setdefault(region, []).append(rows)
        return {region: np.concatenate(rows) for region, rows in found.items()}

    def united(self, rows: Mapping[int, Int64Array]) -> RowMask:
        """Return the mask of these rows and others, which are ascending."""
        others = RowMask.of(rows)
        bitmaps = dict(zip(self._sorted_places, self._bitmaps, strict=True))
        most_bytes = max(map(len, self._bitmaps), default=0)
        if np.any(self._places % PIECE_ROWS) or most_bytes > PIECE_ROWS // 8:
            own = self.rows()  # another writer has other pieces
            for region, more in rows.items():
                own[region] = ascending(np.concatenate([own.get(region, more[:0]), more]))
            return RowMask.of(own)
        for place, bitmap in zip(others._sorted_places, others._bitmaps, strict=True):
            shorter, longer = sorted((bitmaps.get(place, bitmap[:0]), bitmap), key=len)
            either = longer.copy()
            either[: len(shorter)] |= shorter
            bitmaps[place] = either
        places = sorted(bitmaps)
        return RowMask(np.array(places, np.int64), [bitmaps[place] for place in places])

    def broadcast_rows(self, regions: Sequence[Region]) -> int:
        """Return how many of the stored broadcast rows of a file are gone.

        ``regions`` are all that it has, whole. Raises ValueError where a region lacks a row.
        """
        num_broadcast = 0
        for place, bitmap in zip(self._sorted_places, self._bitmaps, strict=True):
            number = place >> _REGION_BITS
            region, first = regions[number], place - (number << _REGION_BITS)
            left = max(region.num_rows - first, 0)
            behind = np.unpackbits(bitmap[left // 8 :], bitorder="little")[left % 8 :]
            if behind.any():
                raise _lacks(number, first + left + int(np.flatnonzero(behind)[-1]), region)
            if region.kind is RegionKind.BROADCAST:
                num_broadcast += int(np.bitwise_count(bitmap).sum())
        return num_broadcast


def _lacks(number: int, row: int, region: Region) -> ValueError:
    return ValueError(f"a mask has row {row} of region {number}, of {region.num_rows} rows")


def rows_beyond(mask: RowMask | None, before: RowMask | None) -> dict[int, Int64Array]:
    """Return the rows of a file that are gone by a mask and were not by another, by region."""
    old = {} if before is None else before.rows()
    rows = {} if mask is None else mask.rows()
    new = {
        region: np.setdiff1d(gone, old[region], assume_unique=True) if region in old else gone
        for region, gone in rows.items()
    }
    return {region: gone for region, gone in new.items() if len(gone)}


def masked_subpartitions(
    gone: Mapping[int, Int64Array], regions: Sequence[Region], num_subpartitions: int
) -> tuple[Int64Array, int]:
    """Return how many rows of each subpartition are gone, and how many stored broadcast rows.

    ``gone`` are the rows of each region, ascending, and ``regions`` all of the file, whole. A
    broadcast row counts for each subpartition. Raises ValueError where a region lacks a row.
    """
    counts = np.zeros(num_subpartitions, np.int64)
    num_broadcast = 0
    for number, rows in gone.items():
        region = regions[number]
        if len(rows) and rows[-1] >= region.num_rows:
            raise _lacks(number, int(rows[-1]), region)
        if region.kind is RegionKind.BROADCAST:
            counts += len(rows)
            num_broadcast += len(rows)
            continue
        ranks, edges = region.ranks_of_rows(0, region.num_rows)
        of_ranks = np.bincount(
            np.searchsorted(edges, rows, side="right") - 1, minlength=len(ranks)
        )[: len(ranks)]
        np.add.at(counts, (ranks + region.first_subpartition) % num_subpartitions, of_ranks)
    return counts, num_broadcast
