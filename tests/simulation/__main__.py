"""Explore schedules: ``python -m tests.simulation --seconds 120``.

First every scenario of two or three actors, with more and more preemptions, then groups at random
until the time is over. A failure is printed with what ``--replay`` needs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from fnmatch import fnmatch

from tests.simulation.campaign import replayed, run
from tests.simulation.scenarios import GROUPS, SCENARIOS

SHARE_OF_GROUPS = 0.3
"""Of the time; what the scenarios of two or three actors leave over is theirs too."""


def main() -> int:
    """Run what the arguments ask for; 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="how long, in all")
    parser.add_argument("--seed", type=int, default=0, help="of the schedules at random")
    parser.add_argument("--only", default="*", help="scenarios, as a pattern of names")
    parser.add_argument(
        "--preemptions", type=int, default=2, help="most of them; -1 for any number"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--replay", metavar="NAME: SCHEDULE", help="run one schedule")
    arguments = parser.parse_args()
    if arguments.replay:
        name, _, schedule = arguments.replay.partition(": ")
        wrong, _ = replayed(name, schedule)
        print(wrong or "nothing is wrong")
        return 1 if wrong else 0
    names = [name for name in (*SCENARIOS, *GROUPS) if fnmatch(name, arguments.only)]
    spawn = multiprocessing.get_context("spawn")
    started, schedules, wrongs = time.time(), 0, 0
    with ProcessPoolExecutor(arguments.jobs, mp_context=spawn) as pool:
        for part in (SCENARIOS, GROUPS):
            chosen = [name for name in names if name in part]
            end = started + arguments.seconds
            if part is SCENARIOS and any(name in GROUPS for name in names):
                end -= SHARE_OF_GROUPS * arguments.seconds
            # Some need little of it.
            factor = 3 if part is SCENARIOS else 1
            most = factor * (end - time.time()) * arguments.jobs / max(len(chosen), 1)
            work = {
                pool.submit(run, name, most, end, arguments.seed, arguments.preemptions): name
                for name in chosen
            }
            for done in as_completed(work):
                name, (found, took) = work[done], done.result()
                schedules += found.schedules
                print(f"{name}: {found.text(name)} in {took:.1f} s", flush=True)
                wrongs += bool(found.wrong)
    took = time.time() - started
    print(f"{schedules:,} schedules in {took:.0f} s, {schedules / took:,.0f} in a second")
    print(f"{wrongs} scenarios went wrong" if wrongs else "nothing went wrong")
    return 1 if wrongs else 0


if __name__ == "__main__":
    sys.exit(main())
