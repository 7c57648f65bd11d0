"""Run the loads and print what came of them; exit status 1 when rows were lost or wrong."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from integration.load.crowd import run_crowd
from integration.load.lane import run_lane
from integration.load.outputs import run_outputs
from integration.load.versions import run_versions
from integration.programs.demo import spark_session

PARTS = ("crowd", "outputs", "versions", "lane")


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m integration.load", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="may be given again")
    parser.add_argument("--seconds", type=float, default=180, help="of the crowd")
    parser.add_argument("--readers", type=int, default=20)
    parser.add_argument("--rows", type=int, default=200_000_000, help="through the lane")
    parser.add_argument("--outputs", type=int, default=2_000, help="map outputs of one version")
    parser.add_argument("--subpartitions", type=int, default=2_000, help="of those map outputs")
    parser.add_argument("--versions", type=int, default=3_000, help="appended one by one")
    parser.add_argument("--scratch", type=Path, help="directory for what is written")
    options = parser.parse_args()
    problems = 0
    with tempfile.TemporaryDirectory(prefix="arrow-shuffle-load-", dir=options.scratch) as where:
        for part in options.only or PARTS:
            directory = Path(where) / part
            directory.mkdir()
            if part == "crowd":
                crowd = run_crowd(directory, seconds=options.seconds, readers=options.readers)
                problems += len(crowd.problems)
                found = asdict(crowd)
            elif part == "outputs":
                found = asdict(
                    run_outputs(
                        directory,
                        map_outputs=options.outputs,
                        subpartitions=options.subpartitions,
                    )
                )
            elif part == "versions":
                found = asdict(run_versions(directory, versions=options.versions))
            else:
                with spark_session(directory) as spark:
                    found = asdict(run_lane(spark, directory, rows=options.rows))
            print(part, json.dumps(found, indent=2), flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
