"""Reads numbered objects before their turn, where each of them waits for a store most of its time.

Whoever walks down the log does not know where the walk ends, only where it ends at the latest.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from arrow_format.at_once import run_at_once
from arrow_format.errors import ShuffleError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


class ReadAhead:
    """Reads ahead of one walk down, more and more at once.

    The first comes alone, for most walks end there; then as many as go at once, then twice as many
    each time. What fails is left to the walk itself: an error counts only when its turn comes.

    Parameters
    ----------
    read
        Reads what is at a number and keeps it; called by several threads at once.
    max_requests
        How many at once; 1 to read nothing ahead.
    stops
        Numbers that the walk may end at, without reading what is there.
    floor
        The walk does not come to this number, nor below.
    width
        How many are read first.
    """

    def __init__(
        self,
        read: Callable[[int], object],
        max_requests: int,
        stops: Collection[int] = (),
        *,
        floor: int = 0,
        width: int = 1,
    ) -> None:
        self._read = read
        self._max_requests = max_requests
        self._stops = stops
        self._floor = floor
        self._width = width
        self._lowest: int | None = None

    def come_to(self, number: int) -> None:
        """Read what the walk needs next, unless it was read; it goes on with ``number``."""
        if self._max_requests == 1 or (self._lowest is not None and number >= self._lowest):
            return
        stop = max((one for one in self._stops if one < number), default=0)
        end = max(stop, self._floor, number - self._width)
        self._lowest = end + 1
        self._width = max(self._max_requests, 2 * self._width)
        if number - end > 1:
            reads = [partial(self._try, one) for one in range(number, end, -1)]
            run_at_once(reads, self._max_requests)

    def _try(self, number: int) -> None:
        with contextlib.suppress(ShuffleError):
            self._read(number)
