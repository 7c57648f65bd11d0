"""The header of a chunk of column frames: which frame holds which column, and where; pure.

All numbers are uint32, little-endian:

.. code-block:: text

    num_rows | num_frames | frame of each column | raw length of each column | length of each frame

The frames follow. Each is one zstd frame of the packed columns that it holds, in their order. See
``docs/format/v1.md`` and ``docs/adr/0011-column-frames.md``.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

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
    """Bytes ``[start, stop)`` of the chunk, ascending and not adjacent: whole frames."""
    num_bytes: int
    """Raw bytes of those frames."""
    sections: list[tuple[int, int, int]]
    """For each column its position, and the raw bytes ``[start, stop)`` that hold it."""


class FrameTable:
    """The header of a stored chunk, checked: frames fill the chunk, and columns the frames.

    Raises ValueError for a header that says otherwise, or has other rows or raw bytes than the
    index. That frames have the raw bytes stated is left to the decompressor. Plain integers: for
    few columns they are much faster than arrays, and for many no slower.
    """

    def __init__(
        self, stored: pa.Buffer, num_columns: int, *, num_rows: int, raw_length: int
    ) -> None:
        head = 2 + 2 * num_columns
        most = stored.size // _NUMBER.itemsize
        if most < head:
            msg = f"{stored.size} bytes are too few for {num_columns} columns"
            raise ValueError(msg)
        found_rows, num_frames, *numbers = np.frombuffer(stored, _NUMBER, head).tolist()
        if found_rows != num_rows:
            msg = f"{found_rows} rows where the index says {num_rows}"
            raise ValueError(msg)
        if most - head < num_frames:
            msg = f"{stored.size} bytes are too few for {num_frames} frames"
            raise ValueError(msg)
        self._frame_of = numbers[:num_columns]
        self._raw_lengths = numbers[num_columns:]
        if num_columns and max(self._frame_of) >= num_frames:
            msg = f"a column is in frame {max(self._frame_of)} of {num_frames}"
            raise ValueError(msg)
        if sum(self._raw_lengths) != raw_length:
            msg = f"columns of {sum(self._raw_lengths)} bytes where the index says {raw_length}"
            raise ValueError(msg)
        lengths = np.frombuffer(stored, _NUMBER, num_frames, _NUMBER.itemsize * head).tolist()
        self._edges = [*accumulate(lengths, initial=_NUMBER.itemsize * (head + num_frames))]
        if self._edges[-1] != stored.size:
            msg = f"frames end at byte {self._edges[-1]} of {stored.size}"
            raise ValueError(msg)
        self._contents = [0] * num_frames
        self._starts = []
        for frame, length in zip(self._frame_of, self._raw_lengths, strict=True):
            self._starts.append(self._contents[frame])
            self._contents[frame] += length

    def select(self, columns: Sequence[int]) -> Selection:
        """Return what to decompress for the columns at some positions, and where they will be."""
        extents: list[tuple[int, int]] = []
        begins: dict[int, int] = {}
        num_bytes = 0
        for frame in sorted({self._frame_of[i] for i in columns}):
            start, stop = self._edges[frame : frame + 2]
            if extents and extents[-1][1] == start:
                start = extents.pop()[0]
            extents.append((start, stop))
            begins[frame] = num_bytes
            num_bytes += self._contents[frame]
        sections = []
        for i in columns:
            start = begins[self._frame_of[i]] + self._starts[i]
            sections.append((i, start, start + self._raw_lengths[i]))
        return Selection(extents, num_bytes, sections)
