"""What an as-of join gives, in thirty lines: the rule of the guide, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    Row = tuple[Any, Any]
    """Key and time."""


def as_of(
    labels: Sequence[Row],
    features: Sequence[Row],
    *,
    direction: str = "backward",
    allow_exact_matches: bool = True,
    tolerance: Any = None,
    ties: Sequence[Any] | None = None,
) -> list[int | None]:
    """Return for each label the position of its feature, of those in the order of the shuffle.

    Times are numbers.
    """
    found: list[int | None] = []
    for key, time in labels:
        best: tuple[Any, ...] = ()
        rank: tuple[Any, ...]
        for place, (other, at) in enumerate(features):
            if None in (key, time, other, at) or key != other or not (at <= time or at >= time):
                continue  # a time that is NaN is neither
            if at == time and not allow_exact_matches:
                continue
            if at != time and tolerance is not None and abs(at - time) > tolerance:
                continue
            tie = () if ties is None else (ties[place] is not None, ties[place])
            is_before = at <= time
            if direction == "nearest":
                distance = 0 if at == time else abs(at - time)
                rank = (-distance, is_before, at if is_before else -at, tie, place)
            elif is_before and direction == "backward":
                rank = (at, tie, place)
            elif at >= time and direction == "forward":
                rank = (-at, tie, -place)
            else:
                continue
            best = max(best, (rank, place))
        found.append(best[1] if best else None)
    return found
