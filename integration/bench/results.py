"""Timings and what follows from them: ratios, spreads, verdicts. Pure.

A ratio is always of two things measured in the same run, round by round in turns, so that a machine
that slows down slows both. It is taken between medians; its spread is the smallest and the largest
ratio of one round.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PASS, SHORT, NO_TARGET = "pass", "short", ""


@dataclass(frozen=True, slots=True)
class Target:
    """The ratio to reach: one of the two bounds, inclusive."""

    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        """Check that there is one bound."""
        if (self.at_least is None) == (self.at_most is None):
            msg = f"a target has one bound, found {self.at_least} and {self.at_most}"
            raise ValueError(msg)

    def __str__(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return f"<= {self.at_most:g}"

    def met_by(self, ratio: float) -> bool:
        """Whether ``ratio`` is on the right side."""
        if self.at_least is not None:
            return ratio >= self.at_least
        return self.at_most is not None and ratio <= self.at_most


@dataclass(frozen=True, slots=True)
class Timing:
    """One thing, measured once per round."""

    label: str
    seconds: tuple[float, ...]
    """Wall time of each round, in round order."""
    num_bytes: int | None = None
    """Bytes of the files written; None when nothing was."""
    num_files: int | None = None
    cpu_seconds: tuple[float, ...] = ()
    """Processor time of each round, user and system; empty where it was not taken."""

    def __post_init__(self) -> None:
        """Check that there is a round."""
        if not self.seconds or min(self.seconds) <= 0:
            msg = f"{self.label}: rounds take more than no time, found {self.seconds}"
            raise ValueError(msg)

    @property
    def median(self) -> float:
        """Median of the rounds, in seconds."""
        return statistics.median(self.seconds)

    @property
    def best(self) -> float:
        """The fastest round, in seconds."""
        return min(self.seconds)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a table: ours, what it is held against, and the ratio of the two."""

    case: str
    """What the lines around it have in common, such as ``n = 200``."""
    what: str
    """What the ratio says, such as ``speed, fastest peer = 1``."""
    ours: str
    """Label of what is ours."""
    other: str
    """Label of what it is held against."""
    ours_value: float
    other_value: float
    unit: str
    """Of both values: s, MB, MiB or files."""
    ratio: float
    cpu_ratio: float | None = None
    """The ratio of the medians of processor time, which a busy machine disturbs less."""
    best_ratio: float | None = None
    """The ratio of the fastest rounds, for timings."""
    spread: tuple[float, float] | None = None
    """Smallest and largest ratio of one round, for timings."""
    target: Target | None = None

    @property
    def verdict(self) -> str:
        """``pass``, ``short``, or nothing where there is no target."""
        if self.target is None:
            return NO_TARGET
        return PASS if self.target.met_by(self.ratio) else SHORT


@dataclass(frozen=True, slots=True)
class Part:
    """All results of one part of the benchmarks."""

    name: str
    title: str
    lines: tuple[Line, ...]
    timings: Mapping[str, tuple[Timing, ...]]
    """All that was timed, by case."""
    notes: tuple[str, ...] = ()


def speed_line(
    case: str, what: str, ours: Timing, other: Timing, target: Target | None = None
) -> Line:
    """How many times as fast as ``other`` ours is."""
    return _timing_line(case, what, ours, other, target, faster_is_more=True)


def cost_line(
    case: str, what: str, ours: Timing, other: Timing, target: Target | None = None
) -> Line:
    """How many times as long as ``other`` ours takes."""
    return _timing_line(case, what, ours, other, target, faster_is_more=False)


def _timing_line(
    case: str,
    what: str,
    ours: Timing,
    other: Timing,
    target: Target | None,
    *,
    faster_is_more: bool,
) -> Line:
    def ratio(our_seconds: float, other_seconds: float) -> float:
        return other_seconds / our_seconds if faster_is_more else our_seconds / other_seconds

    # A round in which only one side ran has no ratio.
    rounds = [ratio(a, b) for a, b in zip(ours.seconds, other.seconds, strict=False)]
    return Line(
        case,
        what,
        ours.label,
        other.label,
        ours.median,
        other.median,
        "s",
        ratio(ours.median, other.median),
        (
            ratio(statistics.median(ours.cpu_seconds), statistics.median(other.cpu_seconds))
            if ours.cpu_seconds and other.cpu_seconds
            else None
        ),
        ratio(ours.best, other.best),
        (min(rounds), max(rounds)),
        target,
    )


def amount_line(
    case: str,
    what: str,
    ours: tuple[str, float],
    other: tuple[str, float],
    unit: str,
    target: Target | None = None,
) -> Line:
    """How large our amount is as a multiple of the other; both are (label, amount)."""
    return Line(
        case, what, ours[0], other[0], ours[1], other[1], unit, ours[1] / other[1], target=target
    )


def fastest(timings: Iterable[Timing]) -> Timing | None:
    """Return the one with the smallest median; None when there is none."""
    return min(timings, key=lambda timing: timing.median, default=None)


def turns(labels: Sequence[str], num_rounds: int) -> list[list[str]]:
    """Who runs when: every label once a round, each round starting with the next one.

    So that no two always run one after the other and none always runs first.
    """
    if not labels:
        return []
    starts = [number % len(labels) for number in range(num_rounds)]
    return [[*labels[start:], *labels[:start]] for start in starts]
