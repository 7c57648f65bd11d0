"""Measure, print tables of ratios and save them as JSON; see ``docs/explanation/benchmarks.md``."""

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

from integration.bench.report import as_json, counts, profile_table, table_of
from integration.bench.results import PASS, SHORT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from integration.bench.results import Part

PARTS = ("engine", "read", "cost", "bytes", "spark", "lane", "joins", "memory", "buffer")
TABLES = ("lineitem", "narrow")
NUMBERS = {
    "engine": (200, 2_000, 20_000),
    "read": (200, 2_000, 20_000),
    "bytes": (200, 2_000, 20_000),
    "spark": (200, 2_000),
    "lane": (200, 2_000),
    "joins": (200, 2_000),
}
"""Numbers of subpartitions where the command line gives none."""

REPEAT = {"engine": 5, "read": 3, "cost": 3, "spark": 3, "lane": 3, "joins": 3, "buffer": 3}
"""Rounds where the command line says nothing."""

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
    add("--repeat", type=int, help="rounds; 5 for the engine, 3 others")
    add("--only", choices=PARTS, action="append", help="only this part; may be given again")
    add("--n", type=numbers, help="numbers of subpartitions: 200,2000")
    add("--table", choices=TABLES, action="append", help="only this table of engine and cost")
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
    parts: list[Part] = []
    try:
        with console.status("") as status:
            for name in options.only or PARTS:
                where = scratch / name
                where.mkdir()
                part = run_part(name, options, where, status.update)
                shutil.rmtree(where, ignore_errors=True)
                console.print(table_of(part))
                if part.profiles:
                    console.print(profile_table(part))
                for note in part.notes:
                    console.print(f"  {note}", style="dim", highlight=False)
                parts.append(part)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return parts


def run_part(
    name: str, options: argparse.Namespace, scratch: Path, step: Callable[[str], None]
) -> Part:
    """Measure one of :data:`PARTS`; ``step`` is told what comes next."""
    common: dict[str, Any] = {"scratch": scratch, "step": step}
    codecs = (options.codec,) if options.codec else ("none", "zstd")
    tables = tuple(dict.fromkeys(options.table or TABLES))
    repeat = options.repeat or REPEAT.get(name, 1)
    numbers = options.n or NUMBERS.get(name, ())
    if name == "engine":
        from integration.bench import engine

        return engine.run(
            options.scale,
            tables=tables,
            numbers=numbers,
            codecs=codecs,
            repeat=repeat,
            slow=options.slow,
            **common,
        )
    if name == "read":
        from integration.bench import engine_read

        return engine_read.run(
            options.scale, numbers=numbers, codecs=codecs, repeat=repeat, **common
        )
    if name == "lane":
        from integration.bench import lane

        return lane.run(options.scale, numbers=numbers, codecs=codecs, repeat=repeat, **common)
    if name == "joins":
        from integration.bench import joins

        return joins.run(options.scale, numbers=numbers, repeat=repeat, **common)
    if name == "cost":
        from integration.bench import cost

        return cost.run(options.scale, tables=tables, codecs=codecs, repeat=repeat, **common)
    if name == "bytes":
        from integration.bench import disk

        return disk.run(options.scale, numbers=numbers, **common)
    if name == "spark":
        from integration.bench import spark

        return spark.run(
            options.scale,
            numbers=numbers,
            codecs=codecs,
            repeat=repeat,
            slow=options.slow,
            **common,
        )
    if name == "buffer":
        from integration.bench import buffer

        return buffer.run(options.scale, repeat=repeat, **common)
    from integration.bench import memory

    size = int(options.memory_gb * 1e9)
    return memory.run(options.scale, codecs=codecs, num_bytes=size, **common)


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
