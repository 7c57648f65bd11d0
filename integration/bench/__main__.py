"""Measure, print tables of ratios and save them as JSON; see ``docs/benchmarks.md``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from integration.bench.report import as_json, counts, table_of
from integration.bench.results import PASS, SHORT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from integration.bench.results import Part

PARTS = ("engine", "spark", "memory")
ENGINE_REPEAT, SPARK_REPEAT = 5, 3
PACKAGES = ("pyarrow", "numpy", "zstandard", "pyspark", "polars", "duckdb", "tpchgen-cli")
OUTPUT = Path(__file__).resolve().parents[2] / "bench-output"


def numbers(text: str) -> tuple[int, ...]:
    """Read ``200,2000``; raises ValueError for anything else."""
    found = tuple(int(part) for part in text.split(","))
    if min(found) < 1:
        msg = f"expected numbers from 1 on, found {text}"
        raise ValueError(msg)
    return found


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m integration.bench", description=__doc__)
    add = parser.add_argument
    add("--scale", type=float, default=1, help="TPC-H scale factor (1: six million rows)")
    add("--repeat", type=int, help=f"rounds; {ENGINE_REPEAT} for the engine, {SPARK_REPEAT} Spark")
    add("--only", choices=PARTS, action="append", help="only this part; may be given again")
    add("--n", type=numbers, default=(200, 2_000), help="numbers of subpartitions: 200,2000")
    add("--codec", choices=("none", "zstd"), help="only this codec")
    add("--slow", action="store_true", help="also what takes minutes at 2,000 subpartitions")
    add("--memory-gb", type=float, default=4, help="GB streamed through a map task")
    add("--scratch", type=Path, default=OUTPUT, help="where to write what is measured")
    add("--output", type=Path, default=OUTPUT, help="directory for the JSON")
    options = parser.parse_args(given)
    if options.repeat is not None and options.repeat < 1:
        parser.error(f"--repeat {options.repeat}: expected 1 or more")
    return options


def measure(options: argparse.Namespace, console: Console) -> list[Part]:
    """Run the parts that were asked for, each table printed as soon as it is there."""
    options.scratch.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=options.scratch)).resolve()
    codecs = (options.codec,) if options.codec else ("none", "zstd")
    writing: dict[str, Any] = {"numbers": options.n, "codecs": codecs, "slow": options.slow}
    parts: list[Part] = []
    try:
        with console.status("") as status:
            for name in options.only or PARTS:
                common: dict[str, Any] = {"scratch": scratch / name, "step": status.update}
                common["scratch"].mkdir()
                if name == "engine":
                    from integration.bench import engine

                    repeat = options.repeat or ENGINE_REPEAT
                    part = engine.run(options.scale, repeat=repeat, **writing, **common)
                elif name == "spark":
                    from integration.bench import spark

                    repeat = options.repeat or SPARK_REPEAT
                    part = spark.run(options.scale, repeat=repeat, **writing, **common)
                else:
                    from integration.bench import memory

                    size = int(options.memory_gb * 1e9)
                    part = memory.run(options.scale, codecs=codecs, num_bytes=size, **common)
                console.print(table_of(part))
                for note in part.notes:
                    console.print(f"  {note}", style="dim", highlight=False)
                parts.append(part)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return parts


def environment() -> dict[str, Any]:
    """What the figures depend on, in general words."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "packages": {name: version(name) for name in PACKAGES},
    }


def main(given: Sequence[str] | None = None) -> int:
    """Run and return the exit status: 0 also when a target is missed, since it was measured."""
    options = arguments(given)
    console = Console(width=None if sys.stdout.isatty() else 160)
    started = datetime.now(UTC)
    described = environment()
    parts = measure(options, console)
    settings = {
        name: value for name, value in vars(options).items() if name not in {"scratch", "output"}
    }
    document = as_json(
        parts,
        settings={"started": started.isoformat(timespec="seconds"), **settings},
        environment=described,
    )
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"bench-{started:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    verdicts = counts(parts)
    console.print(f"{verdicts[PASS]} pass, {verdicts[SHORT]} short of their target; saved {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
