"""What a part of the log does to the map outputs of a version: pure.

An entry is a delta, a checkpoint the delta of many entries, and a version the delta of all entries
up to it. Deltas compose: :func:`compose` is associative.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from arrow_format.log.job_ends import NO_JOBS, join_jobs
from arrow_format.log.outputs import NO_KEYS, NO_OUTPUTS, MapOutputs
from arrow_format.log.totals import Totals, sum_totals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

T = TypeVar("T")
Lazy: TypeAlias = "T | Callable[[], T]"


@dataclass(frozen=True, slots=True)
class Delta:
    """A change of the map outputs of a version, and the ends of jobs that come with it.

    Some fields may be functions, for :func:`made`: a reader keeps the deltas of many entries, and
    decodes what they have when it is needed.
    """

    added: MapOutputs = NO_OUTPUTS
    """In reading order."""
    removed: Lazy[pa.Array] = field(default_factory=lambda: NO_KEYS, compare=False)
    """Keys of map outputs that were added before, see :attr:`MapOutputs.keys`; one that is among
    those of :attr:`added` too is removed first."""
    clears: bool = False
    """Whether nothing of what was before is left; then ``removed`` is empty."""
    released: int = 0
    """Map outputs all of whose rows were added by versions up to this one are dropped."""
    totals: Lazy[Totals | None] = field(default=None, compare=False)
    """What it adds to the rows and bytes of each subpartition, which may be negative; None for
    nothing."""
    jobs: Lazy[pa.Table] = field(default_factory=lambda: NO_JOBS, compare=False)
    """How jobs ended, as :mod:`arrow_format.log.job_ends` has it."""


def decoded(value: Lazy[T]) -> T:
    """Return the value of a field of a delta."""
    return value() if callable(value) else value


def compose(parts: Sequence[Delta]) -> Delta:
    """Return the delta of several, one after the other."""
    first = max((at for at, part in enumerate(parts) if part.clears), default=0)
    kept = parts[first:]
    clears = bool(kept) and kept[0].clears
    added, removed = MapOutputs.composed(
        [part.added for part in kept], [decoded(part.removed) for part in kept]
    )
    released = max((part.released for part in kept), default=0)
    added = added.added_after(released)
    if clears:
        removed = NO_KEYS
    totals = _sum([decoded(part.totals) for part in kept])
    return Delta(added, removed, clears, released, totals, partial(_join_jobs, parts))


def _join_jobs(parts: Sequence[Delta]) -> pa.Table:
    return join_jobs([decoded(part.jobs) for part in parts])


def _sum(totals: Sequence[Totals | None]) -> Totals | None:
    known = [pair for pair in totals if pair is not None]
    if not known:
        return None
    # As long as the longest: a later entry may count by more than those before it.
    return sum_totals(known, max(len(rows) for rows, _ in known))
