"""Timings and what follows from them: ratios, spreads, verdicts. Pure.

A ratio is always of two things measured in the same run, round by round in turns, so that a
machine that slows down slows both. It is taken between the best rounds of both sides, or between
medians; its spread is the smallest and the largest ratio of one round.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

PASS, SHORT, NO_TARGET = "pass", "short", ""

LONG_ROUNDS = 2
"""Rounds of what takes long."""

STEPS = ("partition", "gather", "encode", "write", "merge")
"""Steps that a map task counts the time of."""


@dataclass(frozen=True, slots=True)
class Target:
    """The ratio to reach: one of the two bounds, inclusive."""

    at_least: float | None = None
    at_most: float | None = None
    aim: float | None = None
    """What is hoped for beyond the bound; no verdict depends on it."""

    def __post_init__(self) -> None:
        """Check that there is one bound."""
        if (self.at_least is None) == (self.at_most is None):
            msg = f"a target has one bound, found {self.at_least} and {self.at_most}"
            raise ValueError(msg)

    def __str__(self) -> str:
        bound = f"<= {self.at_most:g}" if self.at_least is None else f">= {self.at_least:g}"
        return bound if self.aim is None else f"{bound}, aim {self.aim:g}"

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
    num_rows: int | None = None
    """Rows written, where time per row is of interest."""

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
    """Of both values: s, ns, MB, MiB or files."""
    ratio: float
    """What is held against the target."""
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
        """``pass``, ``short``, or nothing where there is no target."""
        if self.target is None:
            return NO_TARGET
        return PASS if self.target.met_by(self.ratio) else SHORT


@dataclass(frozen=True, slots=True)
class Profile:
    """Where the time of our fastest round went."""

    case: str
    label: str
    seconds: float
    counters: Mapping[str, int]
    """As in the receipt: ``partition_ns`` and the like, and what was counted."""

    @property
    def steps(self) -> dict[str, float]:
        """Seconds by step; ``rest`` is what no step claims, such as reading batches and commit."""
        steps = {name: self.counters.get(f"{name}_ns", 0) / 1e9 for name in STEPS}
        return {**steps, "rest": self.seconds - sum(steps.values())}


@dataclass(frozen=True, slots=True)
class Part:
    """All results of one part of the benchmarks."""

    name: str
    title: str
    lines: tuple[Line, ...]
    timings: Mapping[str, tuple[Timing, ...]]
    """All that was timed, by case."""
    notes: tuple[str, ...] = ()
    profiles: tuple[Profile, ...] = ()


def speed_line(
    case: str,
    what: str,
    ours: Timing,
    other: Timing,
    target: Target | None = None,
    *,
    best: bool = False,
) -> Line:
    """How many times as fast as ``other`` ours is; of the ``best`` rounds, or of the medians."""
    return _timing_line(case, what, ours, other, target, best=best, faster_is_more=True)


def cost_line(
    case: str,
    what: str,
    ours: Timing,
    other: Timing,
    target: Target | None = None,
    *,
    best: bool = False,
) -> Line:
    """How many times as long as ``other`` ours takes; of the ``best`` rounds, or of the medians."""
    return _timing_line(case, what, ours, other, target, best=best, faster_is_more=False)


def row_cost_line(
    case: str, what: str, ours: Timing, other: Timing, target: Target | None = None
) -> Line:
    """How many times as long as ``other`` ours takes for a row, in the best rounds.

    Raises
    ------
    ValueError
        One of the two does not say how many rows it wrote.
    """
    return replace(
        cost_line(case, what, _per_row(ours), _per_row(other), target, best=True), unit="ns"
    )


def _per_row(timing: Timing) -> Timing:
    """Nanoseconds per row in the place of seconds."""
    if not timing.num_rows:
        msg = f"{timing.label}: time per row of an unknown number of rows"
        raise ValueError(msg)
    factor = 1e9 / timing.num_rows
    return replace(
        timing,
        seconds=tuple(seconds * factor for seconds in timing.seconds),
        cpu_seconds=tuple(seconds * factor for seconds in timing.cpu_seconds),
    )


def one_after_the_other(label: str, first: Timing, second: Timing) -> Timing:
    """Time of two things done one after the other: best with best, and so on."""

    def added(a: Iterable[float], b: Iterable[float]) -> tuple[float, ...]:
        return tuple(x + y for x, y in zip(sorted(a), sorted(b), strict=False))

    return Timing(
        label,
        added(first.seconds, second.seconds),
        cpu_seconds=added(first.cpu_seconds, second.cpu_seconds),
    )


def _timing_line(
    case: str,
    what: str,
    ours: Timing,
    other: Timing,
    target: Target | None,
    *,
    best: bool,
    faster_is_more: bool,
) -> Line:
    def ratio(our_seconds: float, other_seconds: float) -> float:
        return other_seconds / our_seconds if faster_is_more else our_seconds / other_seconds

    pick: Callable[[tuple[float, ...]], float] = min if best else statistics.median
    # A round in which only one side ran has no ratio.
    rounds = [ratio(a, b) for a, b in zip(ours.seconds, other.seconds, strict=False)]
    cpu = None
    if ours.cpu_seconds and other.cpu_seconds:
        cpu = ratio(pick(ours.cpu_seconds), pick(other.cpu_seconds))
    return Line(
        case,
        what,
        ours.label,
        other.label,
        pick(ours.seconds),
        pick(other.seconds),
        "s",
        ratio(pick(ours.seconds), pick(other.seconds)),
        cpu_ratio=cpu,
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


def fastest(timings: Iterable[Timing]) -> Timing | None:
    """Return the one with the fastest round; None when there is none."""
    return min(timings, key=lambda timing: timing.best, default=None)


def runs_again(seconds: Sequence[float], *, long_round: float) -> bool:
    """Whether another round is worth its time, after rounds of so many ``seconds``.

    Two always are, since one alone may have met a bad moment; more when they stay short.
    """
    return len(seconds) < LONG_ROUNDS or min(seconds) <= long_round


def turns(labels: Sequence[str], num_rounds: int) -> list[list[str]]:
    """Who runs when: every label once a round, each round starting with the next one.

    So that no two always run one after the other and none always runs first.
    """
    if not labels:
        return []
    starts = [number % len(labels) for number in range(num_rounds)]
    return [[*labels[start:], *labels[:start]] for start in starts]
