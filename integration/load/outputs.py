"""A shuffle of very many map outputs: how long it takes to open, to plan and to read at points."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from arrow_format import HashPartitioner, WriteOptions, open_shuffle
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.jobs.target import open_target
from connector.map_status import status_to_row, statuses_from_rows
from tests.support.memory import forget_peak, resident_bytes

OPTIONS = WriteOptions(sync=False, sort_buffer_bytes=4 << 20)
POINTS = 10


@dataclass(frozen=True)
class ManyOutputs:
    """Times in seconds, memory in bytes."""

    map_outputs: int
    subpartitions: int
    rows: int
    status_bytes: int
    """Of all map statuses, as Spark's driver gets them."""
    commit: float
    commit_bytes: int
    """Memory that the commit takes besides the statuses."""
    entry_bytes: int
    """Of the entry in the log."""
    index_bytes: int
    """Of all indexes."""
    open: float
    open_bytes: int
    plan_one: float
    read_one: float
    """Of one subpartition at random, its indexes loaded for it; the median of several."""
    read_again: float
    """Of others, with the indexes that are kept."""
    peak_bytes: int


def run_outputs(
    directory: Path, *, map_outputs: int = 2_000, subpartitions: int = 2_000, rows: int = 4_000
) -> ManyOutputs:
    """Write ``map_outputs`` files of ``rows`` rows each in this process, and read."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.float64())])
    path = str(directory / "outputs")
    job = begin_job(
        path, schema, num_subpartitions=subpartitions, partitioner=HashPartitioner("k"),
        options=OPTIONS,
    )  # fmt: skip
    open_target(job, "errorifexists")
    values = np.random.default_rng(0).random(rows)
    statuses = [
        status_to_row(
            run_map_task(
                job,
                task,
                0,
                [pa.record_batch({"k": np.arange(task * rows, (task + 1) * rows), "v": values})],
            )
        )
        for task in range(map_outputs)
    ]
    before = forget_peak()
    started = time.perf_counter()
    commit_job(job, statuses_from_rows(statuses))
    committed = time.perf_counter()
    commit_bytes = resident_bytes() - before
    status_bytes = sum(
        len(row["map_output"]) + len(row["counters"]) + len(row["totals"] or b"")
        for row in statuses
    )
    del statuses
    before = forget_peak()
    opening = time.perf_counter()
    shuffle = open_shuffle(path)
    assert shuffle.num_rows == map_outputs * rows
    opened = time.perf_counter()
    open_bytes = resident_bytes() - before
    shuffle.plan(7)
    planned = time.perf_counter()
    random = np.random.default_rng(1)
    first, again = [], []
    for seconds, one_shuffle in ((first, None), (again, shuffle)):
        for subpartition in random.integers(0, subpartitions, POINTS).tolist():
            begun = time.perf_counter()
            reader = (one_shuffle or open_shuffle(path)).subpartition(subpartition)
            found = reader.read_all().num_rows
            seconds.append(time.perf_counter() - begun)
            assert found == shuffle.subpartition_rows[subpartition].as_py()
    return ManyOutputs(
        map_outputs=map_outputs,
        subpartitions=subpartitions,
        rows=map_outputs * rows,
        status_bytes=status_bytes,
        commit=committed - started,
        commit_bytes=commit_bytes,
        entry_bytes=sum(one.stat().st_size for one in Path(path).rglob("*.entry")),
        index_bytes=sum(
            file.index_bytes for output in shuffle.map_outputs for file in output.files
        ),
        open=opened - opening,
        open_bytes=open_bytes,
        plan_one=planned - opened,
        read_one=float(np.median(first)),
        read_again=float(np.median(again)),
        peak_bytes=resident_bytes() - before,
    )
