"""A shuffle of very many versions: what an append, an opening and a collection take at its end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format import WriteOptions, collect_garbage, open_shuffle, write_shuffle
from tests.support.memory import forget_peak, resident_bytes

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = WriteOptions(sync=False, statistics=())
ROUNDS = 20


@dataclass(frozen=True)
class ManyVersions:
    """Times in seconds, memory and files in bytes."""

    versions: int
    append_at_first: float
    """The median of appends 10 to 110."""
    append_at_last: float
    """The median of the last hundred."""
    seconds: float
    """Of all appends."""
    log_bytes: int
    log_files: int
    open: float
    """The median of several."""
    plan_one: float
    read_one: float
    """Of one subpartition, which each version has a row of."""
    peak_bytes: int
    """Of opening, planning and reading one subpartition, over what the process had."""
    collect: float
    """Of a collection that has nothing to remove."""


def run_versions(directory: Path, *, versions: int = 100_000) -> ManyVersions:
    """Append a row at a time, each a version, in this process."""
    path = directory / "versions"
    seconds = []
    began = time.perf_counter()
    for version in range(versions):
        rows = pa.table({"k": [0], "v": [version]})
        started = time.perf_counter()
        write_shuffle(rows, path, keys="k", num_subpartitions=4, mode="append", options=OPTIONS)
        seconds.append(time.perf_counter() - started)
    took = time.perf_counter() - began
    log = [one for one in (path / "commit_log").rglob("*") if one.is_file()]
    before = forget_peak()
    opening = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        shuffle = open_shuffle(path)
        opening.append(time.perf_counter() - started)
    started = time.perf_counter()
    subpartition = shuffle.subpartition_of(k=0)
    shuffle.plan(subpartition)
    planned = time.perf_counter()
    found = shuffle.subpartition(subpartition).read_all()
    read = time.perf_counter()
    assert found["v"].to_numpy().tolist() == list(range(versions))
    peak = resident_bytes() - before
    collecting = time.perf_counter()
    collect_garbage(path)
    return ManyVersions(
        versions=versions,
        append_at_first=float(np.median(seconds[10:110])),
        append_at_last=float(np.median(seconds[-100:])),
        seconds=took,
        log_bytes=sum(one.stat().st_size for one in log),
        log_files=len(log),
        open=float(np.median(opening)),
        plan_one=planned - started,
        read_one=read - planned,
        peak_bytes=peak,
        collect=time.perf_counter() - collecting,
    )
