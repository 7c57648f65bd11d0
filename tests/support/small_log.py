"""A log of small segments with many checkpoints, so that short tests see segments removed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st

from arrow_format.jobs import garbage
from arrow_format.log import names

if TYPE_CHECKING:
    from collections.abc import Iterator

SEGMENT = 8
INTERVAL = 4


@pytest.fixture
def small_log() -> Iterator[None]:
    """Segments of 8 numbers, a checkpoint every 4, and no delay before a segment is removed."""
    with small_segments():
        yield


@contextmanager
def small_segments(
    segment: int = SEGMENT, interval: int = INTERVAL, delay_ms: int = 0
) -> Iterator[None]:
    """As :func:`log_of_sizes`, until the block ends."""
    patch = log_of_sizes(segment, interval, delay_ms)
    try:
        yield
    finally:
        patch.undo()


LOG_SIZES = st.sampled_from([(4, 2), (8, 4), (names.SEGMENT_ENTRIES, names.CHECKPOINT_INTERVAL)])
"""Numbers of a segment and of a checkpoint, the last as they are in use."""


def log_of_sizes(segment: int, interval: int, delay_ms: int = 0) -> pytest.MonkeyPatch:
    """Set what a segment and a checkpoint hold, and for how long a segment waits to be removed.

    The caller takes it back by ``undo()``. Tests do not patch the delay besides: to take that back
    later would leave the delay of here to all tests that follow in the process.
    """
    patch = pytest.MonkeyPatch()
    patch.setattr(names, "SEGMENT_ENTRIES", segment)
    patch.setattr(names, "CHECKPOINT_INTERVAL", interval)
    patch.setattr(garbage, "REMOVAL_DELAY_MS", delay_ms)
    return patch
