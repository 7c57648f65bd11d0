"""Timings and what follows from them: ratios, spreads, verdicts. Pure.

A ratio is always of two things measured in the same run, in alternating order, so that a machine
that slows down slows both. It is taken between the best rounds of both sides, or between medians;
its spread is the smallest and the largest ratio of one round.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

PASS, SHORT, NO_TARGET = "pass", "short", ""


@dataclass(frozen=True, slots=True)
class Target:
    """The ratio to reach: one of the two bounds, inclusive."""

    at_least: float | None = None
    at_most: float | None = None
    aim: float | None = None
    """What is hoped for beyond the bound; no verdict depends on it."""

    def __post_init__(self) -> None:
        """Check that exactly one bound is given."""
        if (self.at_least is None) == (self.at_most is None):
            msg = f"a target has one bound, found {self.at_least} and {self.at_most}"
            raise ValueError(msg)

    def __str__(self) -> str:
        bound = f"<= {self.at_most:g}" if self.at_least is None else f">= {self.at_least:g}"
        return bound if self.aim is None else f"{bound}, aim {self.aim:g}"

    def met_by(self, ratio: float) -> bool:
        """Whether ``ratio`` is within the bound."""
        if self.at_least is not None:
            return ratio >= self.at_least
        return self.at_most is not None and ratio <= self.at_most


@dataclass(frozen=True, slots=True)
class Timing:
    """One contender, measured once per round."""

    label: str
    seconds: tuple[float, ...]
    """Wall time of each round, in round order."""
    num_bytes: int | None = None
    """Bytes of the files written, or read where reading is measured."""
    num_files: int | None = None
    cpu_seconds: tuple[float, ...] = ()
    """Processor time of each round, user and system; empty where it was not measured."""
    num_rows: int | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    """What else the fastest round counted, such as ``gather_ns`` of the receipt."""

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
    """One line of the table: ours, what it is compared with, and the ratio of the two."""

    case: str
    """What several lines have in common, such as ``write, n = 200``."""
    what: str
    """What the ratio says, such as ``speed, fastest peer = 1``."""
    ours: str
    other: str
    ours_value: float
    other_value: float
    unit: str
    """Of both values: s, ms, ns, MB, MiB, rows or files."""
    ratio: float
    """What the target bounds."""
    cpu_ratio: float | None = None
    """The same ratio of processor time, which a busy machine disturbs less."""
    best_ratio: float | None = None
    """The ratio of the fastest rounds, for timings."""
    median_ratio: float | None = None
    """The ratio of the medians, for timings."""
    spread: tuple[float, float] | None = None
    """Smallest and largest ratio of one round, for timings."""
    target: Target | None = None

    @property
    def verdict(self) -> str:
        """``pass``, ``short``, or empty without a target."""
        if self.target is None:
            return NO_TARGET
        return PASS if self.target.met_by(self.ratio) else SHORT


@dataclass(slots=True)
class Part:
    """All results of one part of the benchmarks."""

    name: str
    title: str
    lines: list[Line] = field(default_factory=list)
    timings: dict[str, tuple[Timing, ...]] = field(default_factory=dict)
    """All that was timed, by case."""
    notes: list[str] = field(default_factory=list)


def compare(
    case: str,
    kind: str,
    unit: str,
    ours: Timing,
    other: Timing,
    target: Target | None = None,
    *,
    best: bool = False,
) -> Line:
    """Compare two timings, by their ``best`` rounds or by medians.

    ``kind`` is ``speed`` (how many times as fast as ``other``, called ``unit``, ours is) or
    ``time`` (how many times as long ours takes).
    """

    def ratio(our_seconds: float, other_seconds: float) -> float:
        is_speed = kind == "speed"
        return other_seconds / our_seconds if is_speed else our_seconds / other_seconds

    pick: Callable[[tuple[float, ...]], float] = min if best else statistics.median
    # A round in which only one side ran has no ratio.
    rounds = [ratio(a, b) for a, b in zip(ours.seconds, other.seconds, strict=False)]
    has_cpu = bool(ours.cpu_seconds and other.cpu_seconds)
    return Line(
        case,
        f"{kind}, {unit} = 1",
        ours.label,
        other.label,
        pick(ours.seconds),
        pick(other.seconds),
        "s",
        ratio(pick(ours.seconds), pick(other.seconds)),
        cpu_ratio=ratio(pick(ours.cpu_seconds), pick(other.cpu_seconds)) if has_cpu else None,
        best_ratio=ratio(ours.best, other.best),
        median_ratio=ratio(ours.median, other.median),
        spread=(min(rounds), max(rounds)),
        target=target,
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


def cpu_line(
    case: str, timings: Mapping[str, Timing], ours: str, other: str, target: Target | None
) -> Line:
    """Compare the processor time of the best rounds of two timings."""
    first, second = (1e3 * min(timings[label].cpu_seconds) for label in (ours, other))
    what = f"processor time, {other} = 1"
    return amount_line(case, what, (ours, first), (other, second), "ms", target)


def megabytes(timing: Timing) -> tuple[str, float]:
    """Label and megabytes of what was written or read, for :func:`amount_line`."""
    return timing.label, (timing.num_bytes or 0) / 1e6


def fastest(timings: Iterable[Timing]) -> Timing | None:
    """Return the timing with the fastest round; None for no timings."""
    return min(timings, key=lambda timing: timing.best, default=None)


def turns(labels: Sequence[str], num_rounds: int) -> list[list[str]]:
    """Order of the contenders in each round, each round starting with the next contender.

    So that no two always run in the same order, and none always runs first.
    """
    if not labels:
        return []
    starts = [number % len(labels) for number in range(num_rounds)]
    return [[*labels[start:], *labels[:start]] for start in starts]
