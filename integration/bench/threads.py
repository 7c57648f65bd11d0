"""From Parquet files to partitioned data in one process, on one core and on two.

Each round is a fresh process. All read the same files inside the timed part, and find the
subpartition of each row there: ours as Spark does, the peers with the hash function they have.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq

from arrow_format import WriteOptions, write_shuffle
from integration.bench import targets
from integration.bench.child import run_in_child, timed
from integration.bench.inputs import KEY
from integration.bench.results import Part, compare, fastest
from integration.programs.datasets import lineitem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from integration.bench.rounds import Settings

CORES = (1, 2)
OURS = "ours zstd"


def _ours(files: Sequence[str], out: Path, n: int, cores: int) -> None:
    options = WriteOptions(threads=cores, sync=False)
    write_shuffle(ds.dataset(list(files)), out, num_subpartitions=n, keys=KEY, options=options)


def _polars(files: Sequence[str], out: Path, n: int, cores: int) -> None:
    import polars as pl

    del cores  # an environment variable says how many
    frame = pl.scan_parquet(list(files)).with_columns(pid=pl.col(KEY).hash() % n)
    by_id = pl.PartitionBy(out, key="pid", include_key=False)
    frame.sink_ipc(by_id, compression="zstd", mkdir=True)


def _duckdb(files: Sequence[str], out: Path, n: int, cores: int) -> None:
    import duckdb

    connection = duckdb.connect(config={"threads": cores, "temp_directory": f"{out}.tmp"})
    connection.execute(
        f"COPY (SELECT *, hash({KEY}) % {n} AS pid FROM read_parquet({list(files)})) TO '{out}' "
        "(FORMAT parquet, COMPRESSION zstd, PARTITION_BY (pid))"
    )


CONTENDERS: dict[str, Callable[[Sequence[str], Path, int, int], None]] = {
    OURS: _ours,
    "Polars IPC zstd": _polars,
    "DuckDB Parquet zstd": _duckdb,
}
"""Every way of writing, by label."""


def write_once(
    contender: str, files: Sequence[str], scratch: str, num_subpartitions: int, num_threads: int
) -> dict[str, Any]:
    """Let one of :data:`CONTENDERS` write Parquet files, and time it.

    ``scratch`` is a directory that does not exist. The first file is written once before, so that
    no contender's time has loading of code.
    """
    write, root = CONTENDERS[contender], Path(scratch)
    root.mkdir(parents=True)
    try:
        write(files[:1], root / "warm", num_subpartitions, num_threads)
        shutil.rmtree(root / "warm")
        with timed() as answer:
            write(files, root / "out", num_subpartitions, num_threads)
        written = [path for path in (root / "out").rglob("*") if path.is_file()]
        return {
            **answer,
            "num_bytes": sum(path.stat().st_size for path in written),
            "num_files": len(written),
            "num_rows": sum(pq.read_metadata(file).num_rows for file in files),
        }
    finally:
        shutil.rmtree(root)


def on(label: str, cores: int) -> str:
    """Label of a contender on some cores."""
    return f"{label}, {cores} core" + ("s" if cores > 1 else "")


def run(settings: Settings) -> Part:
    """Measure writing with threads."""
    settings.report("making the input")
    files = [str(path) for path in sorted(lineitem(settings.scale).glob("*.parquet"))]
    title = f"Threads, Parquet to partitions, lineitem SF {settings.scale:g} by {KEY}, no fsync"
    part = Part("threads", title)
    part.notes.append("a fresh process per round, bound to the cores; ratios of the best rounds")
    for n in settings.numbers:
        case = f"threads, n = {n:,}"
        measures = {
            on(label, cores): partial(
                run_in_child,
                write_once,
                cores=cores,
                contender=label,
                files=files,
                scratch=str(settings.scratch / "threads"),
                num_subpartitions=n,
                num_threads=cores,
            )
            for label in CONTENDERS
            for cores in CORES
        }
        timings = settings.measure(part, case, measures)
        alone, ours = (timings[on(OURS, cores)] for cores in CORES)
        goal = targets.TWO_CORES_AGAINST_ONE
        part.lines.append(compare(case, "speed", "one core", ours, alone, goal, best=True))
        for cores in CORES:
            peers = [timings[on(label, cores)] for label in CONTENDERS if label != OURS]
            first = fastest(peers)
            for peer in peers:
                target = targets.TWO_CORES_AGAINST_PEERS if cores > 1 and peer is first else None
                ours = timings[on(OURS, cores)]
                part.lines.append(compare(case, "speed", "peer", ours, peer, target, best=True))
    return part
