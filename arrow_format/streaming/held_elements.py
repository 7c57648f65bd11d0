"""Watermark, status and latency markers that wait for a flush, and where they stand in it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format.streaming.elements import LatencyMarker, Watermark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from arrow_format.streaming.elements import Control, WatermarkStatus


class HeldElements:
    """The latest watermark, the latest status, and the earliest marker of each subtask.

    Source: FLIP-365, ``BufferOutput``.
    """

    def __init__(self) -> None:
        # By kind; one that is replaced moves to the end, as if only the latest had come.
        self._latest: dict[type, Watermark | WatermarkStatus] = {}
        self._markers: dict[tuple[str, int], LatencyMarker] = {}

    def hold(self, element: Control) -> None:
        """Keep an element, or of two that exclude each other the one that counts."""
        if isinstance(element, LatencyMarker):
            subtask = element.operator, element.subtask
            held = self._markers.get(subtask)
            if held is None or element.marked_time < held.marked_time:
                self._markers[subtask] = element
            return
        self._latest.pop(type(element), None)
        self._latest[type(element)] = element

    @property
    def watermark(self) -> Watermark | None:
        """The watermark that is held."""
        found = self._latest.get(Watermark)
        return found if isinstance(found, Watermark) else None

    def take_latest(self) -> Iterator[Watermark | WatermarkStatus]:
        """Give out watermark and status, in the order in which they came."""
        held, self._latest = self._latest, {}
        yield from held.values()

    def take_markers(self) -> Iterator[LatencyMarker]:
        """Give out the markers."""
        held, self._markers = self._markers, {}
        yield from held.values()

    def clear(self) -> None:
        """Forget all of them."""
        self._latest.clear()
        self._markers.clear()
