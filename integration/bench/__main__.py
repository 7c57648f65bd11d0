"""Measure, print a table of ratios, save them as JSON; see ``docs/explanation/benchmarks.md``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from integration.bench.report import as_json, counts, table_of
from integration.bench.results import PASS, SHORT
from integration.bench.rounds import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from integration.bench.results import Part

NUMBERS: dict[str, tuple[int, ...]] = {
    "engine": (200, 2_000, 20_000),
    "threads": (200,),
    "read": (200, 2_000, 20_000),
    "reading": (200,),
    "select": (200,),
    "wide": (),
    "count": (200,),
    "lookup": (),
    "keys": (200,),
    "appends": (200,),
    "masks": (200,),
    "upserts": (200,),
    "rescale": (200,),
    "spark": (200, 2_000),
    "lane": (200, 2_000),
    "several": (200,),
    "joins": (200, 2_000),
    "asof": (64,),
    "in_process": (200,),
    "hot": (200,),
    "epochs": (200,),
    "groups": (200,),
    "since": (200,),
    "queries": (200,),
    "planner": (200,),
    "merge": (20_000,),
    "memory": (),
    "buffer": (),
    "combine": (),
}
"""Parts, and numbers of subpartitions where the command line gives none."""

REPEAT = {"engine": 5, "threads": 5, "hot": 5}
"""Rounds where the command line gives none; 3 for the other parts."""

PACKAGES = (
    "pyarrow", "numpy", "zstandard", "pyspark", "polars", "duckdb", "tpchgen-cli", "torch",
    "pylance", "deltalake", "mosaicml-streaming",
)  # fmt: skip
OUTPUT = Path(__file__).resolve().parents[2] / "bench-output"


def numbers(text: str) -> tuple[int, ...]:
    """Read ``200,2000``; raises ValueError for anything else."""
    given = tuple(int(number) for number in text.split(","))
    if min(given) < 1:
        msg = f"expected numbers from 1 on, found {text}"
        raise ValueError(msg)
    return given


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m integration.bench", description=__doc__)
    add = parser.add_argument
    add("--scale", type=float, default=1, help="TPC-H scale factor (1: six million rows)")
    add("--repeat", type=int, help="rounds; 5 for engine, threads and hot, 3 others")
    add("--only", choices=NUMBERS, action="append", help="only this part; may be given again")
    add("--n", type=numbers, help="numbers of subpartitions: 200,2000")
    add("--codec", choices=("none", "zstd"), help="only this codec")
    add("--slow", action="store_true", help="also what takes minutes at 2,000 subpartitions")
    add("--memory-gb", type=float, default=4, help="GB streamed through a map task")
    add("--scratch", type=Path, default=OUTPUT, help="where to write what is measured")
    add("--output", type=Path, default=OUTPUT, help="directory for the JSON")
    options = parser.parse_args(given)
    if options.repeat is not None and options.repeat < 1:
        parser.error(f"--repeat {options.repeat}: expected 1 or more")
    return options


def measure(options: argparse.Namespace, console: Console) -> Iterator[Part]:
    """Run the parts that were asked for, one after the other; yield each when it is measured."""
    options.scratch.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=options.scratch)).resolve()
    try:
        with console.status("") as status:
            for name in options.only or NUMBERS:
                directory = scratch / name
                directory.mkdir()
                settings = Settings(
                    scale=options.scale,
                    numbers=options.n or NUMBERS[name],
                    codecs=(options.codec,) if options.codec else ("none", "zstd"),
                    repeat=options.repeat or REPEAT.get(name, 3),
                    slow=options.slow,
                    memory_bytes=int(options.memory_gb * 1e9),
                    scratch=directory,
                    report=status.update,
                )
                yield import_module(f"integration.bench.{name}").run(settings)
                shutil.rmtree(directory, ignore_errors=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def versions(packages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the names and versions of those packages that are installed."""
    for name in packages:
        with contextlib.suppress(PackageNotFoundError):
            yield name, version(name)


def environment() -> dict[str, Any]:
    """Return what the figures depend on, in general words."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "packages": dict(versions(PACKAGES)),
    }


def main(given: Sequence[str] | None = None) -> int:
    """Run and return the exit status: 0 also when a target is missed, since it was measured."""
    options = arguments(given)
    console = Console(width=None if sys.stdout.isatty() else 180)
    started, described = datetime.now(UTC), environment()
    settings = {
        name: value for name, value in vars(options).items() if name not in {"scratch", "output"}
    }
    settings["started"] = started.isoformat(timespec="seconds")
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"bench-{started:%Y%m%d-%H%M%S}.json"
    parts: list[Part] = []
    for part in measure(options, console):
        parts.append(part)
        # Saved after each part: a later one that fails loses no figures.
        document = as_json(parts, settings=settings, environment=described)
        path.write_text(json.dumps(document, indent=1) + "\n")
        console.print(table_of(part))
        for note in part.notes:
            console.print(f"  {note}", style="dim", highlight=False)
    verdicts = counts(parts)
    console.print(f"{verdicts[PASS]} pass, {verdicts[SHORT]} short of their target; saved {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
