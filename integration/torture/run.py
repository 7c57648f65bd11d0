"""Many rounds, one after the other, and the account of them."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from arrow_format import ShuffleError
from integration.programs.cluster import ClusterError
from integration.torture.checks import TortureError
from integration.torture.rounds import ROUNDS_PER_SHUFFLE, Round, plan_round, shuffle_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from integration.torture.harness import Harness


class RoundError(Exception):
    """A round that failed: something was lost, mixed or left behind."""

    def __init__(self, planned: Round, error: Exception) -> None:
        super().__init__(f"{planned}\n{type(error).__name__}: {error}")
        self.number = planned.number


def run_rounds(
    harness: Harness,
    seed: int,
    num_rounds: int,
    *,
    only: int | None = None,
    say: Callable[[str], None],
) -> str:
    """Run rounds from the first on; return the account.

    Parameters
    ----------
    only
        Run one alone, after those of its shuffle that come before it.
    say
        Called with a line for each round.

    Raises
    ------
    RoundError
        One failed; what it left is left.
    """
    first, end = 0, num_rounds
    if only is not None:
        first, end = only - only % ROUNDS_PER_SHUFFLE, only + 1
    started = time.monotonic()
    harness.calibrate(f"{harness.path(0)}-for-calibration")
    for number in range(first, end):
        if number % ROUNDS_PER_SHUFFLE == 0:
            _start_shuffle(harness, shuffle_of(number))
        planned = plan_round(seed, number, spark=harness.has_cluster, local_dirs=harness.local_dirs)
        began = time.monotonic()
        try:
            hit = harness.run(planned, harness.path(shuffle_of(number)))
        except (TortureError, ShuffleError, ClusterError, TimeoutError) as error:
            raise RoundError(planned, error) from error
        say(f"{planned}; hit: {hit}; {time.monotonic() - began:.1f} s")
    return _account(harness, seed, end - first, time.monotonic() - started)


def _start_shuffle(harness: Harness, number: int) -> None:
    """Remove what the one before left, which was found sound, and what an earlier run left."""
    for one in (harness.path(number - 1), harness.path(number), *harness.local_dirs):
        shutil.rmtree(one, ignore_errors=True)
    for one in harness.local_dirs:
        Path(one).mkdir(parents=True)
    harness.start_shuffle()


def _account(harness: Harness, seed: int, num_rounds: int, seconds: float) -> str:
    of_spark = sum(count for key, count in harness.hits.items() if key[0] == "Spark")
    lines = [
        f"{num_rounds} rounds of seed {seed} in {seconds:.0f} s: {num_rounds - of_spark} of the "
        f"engine alone, {of_spark} through Spark on a cluster. Killed:"
    ]
    lines += [
        f"  {count:5d} x  {where:6}  {victim:13}  in {kind}: {phase}"
        for (where, victim, kind, phase), count in sorted(harness.hits.items())
    ]
    there, not_there = harness.kept[True], harness.kept[False]
    lines.append(
        f"Of {there + not_there} versions that were being written at a death, {there} were there, "
        "whole, and the others not at all."
    )
    if harness.collects:
        lines.append(f"{harness.collected} files and directories left behind were collected.")
    lines.append("Nothing was lost, nothing mixed, no orphan.")
    return "\n".join(lines)
