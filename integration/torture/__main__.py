"""``python -m integration.torture --rounds 300 --seed 1``: see :mod:`integration.torture`."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from arrow_format import ShuffleError
from integration.cluster import ClusterError, running_cluster
from integration.torture.checks import TortureError
from integration.torture.harness import Harness
from integration.torture.rounds import ROUNDS_PER_SHUFFLE, plan_round, shuffle_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run rounds; return the exit status."""
    given = _parser().parse_args(arguments)
    first, end = 0, given.rounds
    if given.round is not None:
        # A round starts from what those before it left in the same shuffle.
        first, end = given.round - given.round % ROUNDS_PER_SHUFFLE, given.round + 1
    directory = Path(given.directory or tempfile.mkdtemp(prefix="arrow-shuffle-torture-"))
    started = time.monotonic()
    number = first
    with ExitStack() as stack:
        cluster = None
        if given.spark:
            cluster = stack.enter_context(running_cluster(directory / "cluster"))
        harness = Harness(directory, cluster)
        stack.callback(harness.close)
        try:
            harness.calibrate(harness.path(end))
            for number in range(first, end):
                _run(harness, given.seed, number, spark=given.spark, verbose=given.verbose)
                if (number + 1 - first) % 25 == 0:
                    seconds = time.monotonic() - started
                    print(
                        f"{number + 1 - first} of {end - first} rounds, {seconds:.0f} s", flush=True
                    )
        except (TortureError, ShuffleError, ClusterError, TimeoutError) as error:
            print(f"\n{type(error).__name__}: {error}", file=sys.stderr)
            planned = plan_round(
                given.seed, number, spark=given.spark, local_dirs=harness.local_dirs
            )
            print(
                f"{planned}\nwhat it left is in {directory}; run it again with\n"
                f"  make torture SEED={given.seed} ROUND={number}",
                file=sys.stderr,
            )
            return 1
    _report(harness, end - first, given.seed, time.monotonic() - started)
    if given.directory is None:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m integration.torture", description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--round", type=int, help="only this one, and those it builds on")
    parser.add_argument("--directory", help="keep everything there (default: a temporary one)")
    parser.add_argument("--no-spark", dest="spark", action="store_false", help="engine alone")
    parser.add_argument("--verbose", action="store_true", help="a line for every round")
    return parser


def _run(harness: Harness, seed: int, number: int, *, spark: bool, verbose: bool) -> None:
    path = harness.path(shuffle_of(number))
    if number % ROUNDS_PER_SHUFFLE == 0:
        shutil.rmtree(harness.path(shuffle_of(number) - 1), ignore_errors=True)
        for one in harness.local_dirs:
            shutil.rmtree(one, ignore_errors=True)
            Path(one).mkdir(parents=True)
        harness.start_shuffle()
    planned = plan_round(seed, number, spark=spark, local_dirs=harness.local_dirs)
    started = time.monotonic()
    harness.run(planned, path)
    if verbose:
        print(f"{planned}: {time.monotonic() - started:.2f} s", flush=True)


def _report(harness: Harness, num_rounds: int, seed: int, seconds: float) -> None:
    of_spark = sum(n for key, n in harness.hits.items() if key[0] == "Spark")
    print(
        f"{num_rounds} rounds of seed {seed} in {seconds:.0f} s: {num_rounds - of_spark} of the "
        f"engine alone, {of_spark} through Spark on a cluster"
    )
    for (where, victim, kind, phase), count in sorted(harness.hits.items()):
        print(f"  {count:5d}  {where:6}  {victim:13}  killed in {kind}: {phase}")
    there, not_there = harness.kept[True], harness.kept[False]
    print(f"Of {there + not_there} versions being written at a death, {there} were there, whole.")
    if harness.collects:
        print(f"{harness.collected} files and directories left behind were collected.")
    print("Nothing was lost, nothing mixed, no orphan.")


if __name__ == "__main__":
    sys.exit(main())
