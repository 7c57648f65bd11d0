"""The header of a chunk of column frames: which frame holds which column, and where; pure.

All numbers are uint32, little-endian:

.. code-block:: text

    num_rows | num_frames | frame of each column | raw length of each column | length of each frame

The frames follow. Each is one zstd frame of the packed columns that it holds, in their order. See
``docs/format/v1.md`` and ``docs/adr/0011-column-frames.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from arrow_format.model import Int64Array

MIN_FRAME_BYTES = 4096
"""Columns of fewer raw bytes share frames: a frame costs some microseconds and some bytes."""

_NUMBER = np.dtype("<u4")


def group_columns(raw_lengths: Sequence[int]) -> list[list[int]]:
    """Return the columns of each frame, by the raw length of each column in a chunk.

    A large column has a frame of its own, so that nothing pays for it that does not need it. Small
    ones share: a frame is full at :data:`MIN_FRAME_BYTES`.
    """
    frames: list[list[int]] = []
    small: list[int] = []
    num_bytes = 0
    for column, raw_length in enumerate(raw_lengths):
        if raw_length >= MIN_FRAME_BYTES:
            frames.append([column])
            continue
        small.append(column)
        num_bytes += raw_length
        if num_bytes >= MIN_FRAME_BYTES:
            frames.append(small)
            small, num_bytes = [], 0
    if small:
        frames.append(small)
    return frames


def frame_header(
    num_rows: int,
    frames: Sequence[Sequence[int]],
    raw_lengths: Sequence[int],
    lengths: Sequence[int],
) -> bytes:
    """Return the header of a chunk whose frames hold ``frames`` and have ``lengths`` bytes."""
    frame_of = [0] * len(raw_lengths)
    for number, columns in enumerate(frames):
        for column in columns:
            frame_of[column] = number
    return np.array([num_rows, len(frames), *frame_of, *raw_lengths, *lengths], _NUMBER).tobytes()


class Selection(NamedTuple):
    """What to decompress for some columns, and where they are in the result."""

    extents: list[tuple[int, int]]
    """Bytes ``[start, stop)`` of the chunk; all of them together are whole frames."""
    num_bytes: int
    """Raw bytes of those frames."""
    sections: list[tuple[int, int, int]]
    """For each column its position, and the raw bytes ``[start, stop)`` that hold it."""


class FrameTable:
    """The header of a stored chunk, checked: frames fill the chunk, and columns the frames.

    Raises ValueError for a header that says otherwise, or has other rows or raw bytes than the
    index. That frames have the raw bytes stated is left to the decompressor.
    """

    def __init__(
        self, stored: pa.Buffer, num_columns: int, *, num_rows: int, raw_length: int
    ) -> None:
        self._stored_bytes: int = stored.size
        self._raw_length = raw_length
        head = 2 + 2 * num_columns
        numbers = np.frombuffer(stored, _NUMBER, stored.size // _NUMBER.itemsize)
        if len(numbers) < head:
            msg = f"{stored.size} bytes are too few for {num_columns} columns"
            raise ValueError(msg)
        found_rows, num_frames = numbers[:2].tolist()
        if found_rows != num_rows:
            msg = f"{found_rows} rows where the index says {num_rows}"
            raise ValueError(msg)
        if len(numbers) - head < num_frames:
            msg = f"{stored.size} bytes are too few for {num_frames} frames"
            raise ValueError(msg)
        self._first = _NUMBER.itemsize * (head + num_frames)
        self._frame_of = numbers[2 : 2 + num_columns]
        self._raw_lengths = numbers[2 + num_columns : head].astype(np.int64)
        self._lengths = numbers[head : head + num_frames]
        if num_columns and int(self._frame_of.max()) >= num_frames:
            msg = f"a column is in frame {self._frame_of.max()} of {num_frames}"
            raise ValueError(msg)
        raw_bytes = int(self._raw_lengths.sum())
        if raw_bytes != raw_length:
            msg = f"columns of {raw_bytes} bytes where the index says {raw_length}"
            raise ValueError(msg)
        end = self._first + int(self._lengths.sum(dtype=np.int64))
        if end != stored.size:
            msg = f"frames end at byte {end} of {stored.size}"
            raise ValueError(msg)

    def select(self, columns: Sequence[int]) -> Selection:
        """Return what to decompress for the columns at some positions, and where they will be."""
        if len(columns) == len(self._frame_of):
            extents = [(self._first, self._stored_bytes)]
            lengths = self._raw_lengths
        else:
            is_wanted = np.zeros(len(self._lengths), np.bool_)
            is_wanted[self._frame_of[columns]] = True
            ends = self._first + np.cumsum(self._lengths, dtype=np.int64)
            begins = ends - self._lengths
            extents = list(zip(begins[is_wanted].tolist(), ends[is_wanted].tolist(), strict=True))
            # Columns of other frames take no bytes of the result.
            lengths = np.where(is_wanted[self._frame_of], self._raw_lengths, 0)
        starts = _starts(self._frame_of, lengths)[columns]
        stops = starts + lengths[columns]
        sections = list(zip(columns, starts.tolist(), stops.tolist(), strict=True))
        return Selection(extents, int(lengths.sum()), sections)


def _starts(frame_of: npt.NDArray[np.uint32], lengths: Int64Array) -> Int64Array:
    """Byte at which each column begins, where frames follow each other."""
    order = np.argsort(frame_of, kind="stable")
    ordered = lengths[order]
    starts = np.empty_like(lengths)
    starts[order] = np.cumsum(ordered) - ordered
    return starts
