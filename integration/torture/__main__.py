"""``python -m integration.torture --rounds 300 --seed 1``: see ``docs/explanation/testing.md``."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from integration.programs.cluster import running_cluster
from integration.torture.harness import Harness
from integration.torture.run import RoundError, run_rounds

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run rounds; return the exit status."""
    given = _parser().parse_args(arguments)
    directory = Path(given.directory or tempfile.mkdtemp(prefix="arrow-shuffle-torture-"))
    with ExitStack() as stack:
        cluster = None
        if given.spark:
            cluster = stack.enter_context(running_cluster(directory / "cluster"))
        harness = Harness(directory, cluster)
        stack.callback(harness.close)
        try:
            print(run_rounds(harness, given.seed, given.rounds, only=given.round, say=print))
        except RoundError as error:
            print(
                f"{error}\nWhat it left is in {directory}, what happened in its journal.txt; run "
                f"it again with\n  make torture SEED={given.seed} ROUND={error.number}",
                file=sys.stderr,
            )
            return 1
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
    return parser


if __name__ == "__main__":
    sys.exit(main())
