"""Which columns of a chunk share a zstd frame; pure.

Source: ``docs/adr/0011-column-frames.md``. What is stored of it is in
:mod:`arrow_format.format.chunk_table`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_FRAME_BYTES = 4096
"""Columns of fewer raw bytes share frames: a frame costs some microseconds and some bytes."""


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
