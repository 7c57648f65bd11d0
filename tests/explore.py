"""Look for what the fixed examples do not show: ``python -m tests.explore --minutes 60``.

Each round runs every test that has examples with others, then the simulator with other schedules,
and has a seed of its own. What a round finds is printed with the command that finds it again; make
it an explicit example of its test, or a scenario's known fault.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import subprocess
import sys
import time

SHARE_OF_SCHEDULES = 0.5
"""What the simulator may take of the time that the tests of a round took."""

LEAST_SECONDS = 20.0


def commands(seed: int, seconds: float) -> list[list[str]]:
    """Return what a round runs; with the same seed, the same.

    Parameters
    ----------
    seed
        Of the examples and of the schedules.
    seconds
        How long the simulator takes.
    """
    return [
        [sys.executable, "-m", "pytest", "tests", "-m", "hypothesis", "--quiet",
         f"--hypothesis-seed={seed}", "--numprocesses=auto", "--maxprocesses=4", "--dist=loadfile"],
        [sys.executable, "-m", "tests.simulation", "--seconds", f"{seconds:.0f}",
         "--seed", str(seed)],
    ]  # fmt: skip


def explored(seed: int, end: float) -> list[str]:
    """Run one round; return the commands that failed.

    The simulator is given no time after ``end``, in seconds of :func:`time.monotonic`.
    """
    started, failed = time.monotonic(), []
    for number in range(2):
        took = time.monotonic() - started
        seconds = min(SHARE_OF_SCHEDULES * took, end - time.monotonic())
        command = commands(seed, max(seconds, LEAST_SECONDS))[number]
        done = subprocess.run(
            command, env=os.environ | {"HYPOTHESIS_PROFILE": "explore"}, check=False
        )
        if done.returncode:
            failed.append(shlex.join(["HYPOTHESIS_PROFILE=explore", *command]))
    return failed


def main() -> int:
    """Run rounds until the time is over; 1 where one found something."""
    parser = argparse.ArgumentParser(prog="python -m tests.explore", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="no round begins after them")
    parser.add_argument("--seed", type=int, help="of the first round; the next ones follow")
    arguments = parser.parse_args()
    first = secrets.randbelow(10**9) if arguments.seed is None else arguments.seed
    end, seed, failed = time.monotonic() + 60 * arguments.minutes, first, []
    while seed == first or time.monotonic() < end:
        print(f"==== seed {seed} ====", flush=True)
        failed += explored(seed, end)
        seed += 1
    runs = 2 * (seed - first)
    print(f"seeds {first} to {seed - 1}: {len(failed)} of {runs} runs found something")
    for command in failed:
        print(f"  {command}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
