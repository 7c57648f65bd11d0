"""PROPERTY: a write makes the same files, whatever the number of its threads."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.keys.partitioner import RoundRobinPartitioner
from arrow_format.model import BROADCAST
from arrow_format.options import WriteOptions
from arrow_format.read.rows import Rows

N = 5
LISTS = pa.list_(pa.struct([("a", pa.bool_()), ("b", pa.string())]))
MAKERS = {
    "i": lambda v: pa.array(v, pa.int64()),
    "n": lambda v: pa.array([None if n % 5 == 0 else n for n in v], pa.int64()),
    "f": lambda v: pa.array([n / 100 for n in v], pa.float64()),
    "e": lambda v: pa.array(["A"] * len(v), pa.string()),
    "s": lambda v: pa.array([f"text {n} " * (n % 7) for n in v], pa.string()),
    "v": lambda v: pa.array([f"a view {n}" for n in v], pa.string_view()),
    "l": lambda v: pa.array([[{"a": n > 3, "b": str(n)}] * (n % 4) for n in v], LISTS),
}
"""Columns of numbers from 0."""


@st.composite
def written(draw):
    """Rows with their subpartitions, sort keys, and options but for threads."""
    names = draw(st.lists(st.sampled_from(sorted(MAKERS)), min_size=1, unique=True))
    seed = draw(st.integers(0, 99))
    broadcasts = draw(st.sampled_from([0, 0, 0.02]))
    random = np.random.default_rng(seed)
    batches = []
    for num_rows in draw(st.lists(st.integers(0, 900), min_size=1, max_size=6)):
        numbers = random.integers(0, 1000, num_rows).tolist()
        places = random.integers(0, N, num_rows)
        places[random.random(num_rows) < broadcasts] = BROADCAST
        columns = {name: MAKERS[name](numbers) for name in names}
        batches.append(Rows(pa.record_batch(columns), places))
    sort_by = draw(st.sampled_from([(), *[(n,) for n in names if n != "l"]]))
    options = {
        "sort_buffer_bytes": draw(st.sampled_from([10_000, 50_000, 200_000, 1 << 20])),
        "chunk_bytes": draw(st.sampled_from([500, 4_000, 1 << 18])),
        "codec": draw(st.sampled_from(["zstd", "none"])),
        "rewrite": draw(st.sampled_from(["never", "never", "always"])),
        "sync": False,
    }
    return batches, sort_by, options


def contents(job, rows, threads):
    """Return the bytes of the files of a map task."""
    job = replace(job, options=replace(job.options, threads=threads))
    output = run_map_task(job, 3, 0, rows).output
    return [
        Path(job.storage.root, path).read_bytes()
        for file in output.files
        for path in (file.data_path, file.index_path)
    ]


@given(written())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_the_same_bytes_with_every_number_of_threads(write):
    rows, sort_by, options = write
    with tempfile.TemporaryDirectory() as path:
        job = begin_job(
            path, rows[0].batch.schema, num_subpartitions=N, partitioner=RoundRobinPartitioner(),
            sort_by=sort_by, options=WriteOptions(**options),
        )  # fmt: skip
        alone = contents(job, rows, 1)
        assert bool(alone) == any(each.batch.num_rows for each in rows)
        for threads in (2, 3):
            assert contents(job, rows, threads) == alone
