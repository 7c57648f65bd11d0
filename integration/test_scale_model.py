"""The model of ``docs/explanation/scale.md`` against shuffles of sizes that can be run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import WriteOptions, open_shuffle
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.jobs.target import open_target
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.read.partitioned_file import SMALL_BYTES
from arrow_format.storage.open import open_storage
from connector.map_status import status_to_row, statuses_from_rows
from integration.load.model import Shuffle, read_cost, write_cost
from integration.load.tables import TABLES
from tests.support.memory import PROJECT
from tests.support.recording_storage import RecordingStorage

if TYPE_CHECKING:
    from pathlib import Path

    from arrow_format.storage.open import Storage
    from tests.support.s3_server import S3Server

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def write(storage: Storage, map_outputs: int, n: int, rows: int, options: WriteOptions) -> int:
    """Write rows that hardly compress in so many tasks; return the bytes of all statuses."""
    job = begin_job(
        storage, SCHEMA, num_subpartitions=n, partitioner=HashPartitioner("k"), options=options
    )
    open_target(job, "errorifexists")
    random = np.random.default_rng(0)
    sent = []
    for task in range(map_outputs):
        batches = [
            pa.record_batch(
                [random.integers(0, 1 << 62, min(10_000, rows - start)) for _ in SCHEMA],
                schema=SCHEMA,
            )
            for start in range(0, rows, 10_000)
        ]
        sent.append(status_to_row(run_map_task(job, task, 0, batches)))
    commit_job(job, statuses_from_rows(sent))
    return sum(
        len(row["map_output"]) + len(row["counters"]) + len(row["totals"] or b"") for row in sent
    )


def model_of(storage: Storage, map_outputs: int, n: int, options: WriteOptions) -> Shuffle:
    shuffle = open_shuffle(storage)
    rows, stored = shuffle.num_rows, shuffle.num_bytes
    return Shuffle(
        stored, map_outputs, n, ratio=16 * rows / stored, row_bytes=16, options=options,
        statistics_bytes=24, entry_bytes=20,
    )  # fmt: skip


SIZES = [
    # Map outputs, subpartitions, rows of each, MiB of the sort buffer, KiB of a chunk, tasks.
    pytest.param(2, 50, 200_000, 2, 16, 10, id="several regions"),
    pytest.param(2, 2_000, 200_000, 2, 16, 50, id="more subpartitions than chunks"),
    pytest.param(3, 2_000, 400_000, 64, 64, 500, id="more tasks than chunks"),
    pytest.param(2, 20_000, 400_000, 4, 32, 20, id="large indexes"),
    pytest.param(2, 20_000, 30_000, 4, 32, 5, id="few rows of each"),
]


@pytest.mark.parametrize(("m", "n", "rows", "buffer", "chunk", "tasks"), SIZES)
def test_reads_indexes_and_statuses(tmp_path: Path, m, n, rows, buffer, chunk, tasks):
    options = WriteOptions(
        sync=False, sort_buffer_bytes=buffer << 20, chunk_bytes=chunk << 10, write_order="natural"
    )
    path = str(tmp_path / "s")
    sent = write(open_storage(path), m, n, rows, options)
    model = model_of(open_storage(path), m, n, options)
    files = [file for output in open_shuffle(path).map_outputs for file in output.files]
    assert sum(file.num_regions for file in files) == pytest.approx(m * model.regions, rel=0.35)
    regions = sum(file.num_regions for file in files) / m
    assert sum(file.index_bytes for file in files) / m == pytest.approx(
        model.index_bytes * regions / model.regions, rel=0.25
    )
    assert sent == pytest.approx(model.driver_bytes, rel=0.35)

    gets = read_bytes = 0
    for task in range(tasks):
        storage = RecordingStorage(path)
        edges = np.linspace(0, n, tasks + 1).astype(int)
        open_shuffle(storage).read(range(edges[task], edges[task + 1])).read_all()
        gets += len(storage.others) + len(storage.ranges)
        read_bytes += sum(length for _, length in storage.ranges)
        # Read whole; of larger ones the ranges are told.
        read_bytes += sum(f.index_bytes for f in files if f.index_bytes <= SMALL_BYTES)
    expected = read_cost(model, tasks)
    without_regions = tasks * (m * model.opened_bytes(tasks)[1] + 3)
    of_regions = (expected.gets - without_regions) * regions / model.regions
    assert gets == pytest.approx(without_regions + of_regions, rel=0.25)
    assert read_bytes == pytest.approx(expected.read_bytes, rel=0.35)


@pytest.mark.parametrize(("m", "rows"), [(2, 1_000), (20, 1_000), (2, 2_000_000)])
def test_requests_of_a_write(s3: S3Server, m, rows):
    options = WriteOptions(chunk_bytes=256 << 10)
    bucket = s3.new_bucket()
    storage = open_storage(f"s3://{bucket}/a", s3.options)
    with s3.requests(bucket) as requests:
        write(storage, m, 50, rows, options)
    # This server's pages are short.
    puts = sum(
        request.method in ("PUT", "POST") or "list-type" in request.path
        for request in requests
        if "continuation-token" not in request.path
    )
    expected = write_cost(model_of(storage, m, 50, options))
    assert puts == pytest.approx(expected.puts, abs=2)


@pytest.mark.parametrize("lines", TABLES)
def test_the_page_has_the_tables_of_the_model(lines):
    page = (PROJECT / "docs/explanation/scale.md").read_text()
    assert "\n".join(lines()) in page
