"""What merging costs and what it saves: ``python -m integration.bench.merging``.

TPC-H ``lineitem`` is written by 23 map tasks of a region each, merged by appending and by
rewriting, and single subpartitions are read from all three. Times are CPU of one core, medians of
three rounds, on a file system in memory: what a disk or an object store adds follows the number of
reads.
"""

from __future__ import annotations

import random
import shutil
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from arrow_format import HashPartitioner, MergePolicy, WriteOptions, merge_shuffle, open_shuffle
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.storage.open import PosixStorage
from integration.bench.ipc import read_batches
from integration.bench.lineitem import KEY, ipc_stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from arrow_format.read.shuffle import Shuffle
    from arrow_format.storage.open import ObjectReader

NUM_TASKS = 23
POINTS = 60
ROUNDS = 3
DIRECTORY = Path("/dev/shm/arrow-shuffle-merging")
POLICIES = {
    "append": MergePolicy(rewrite="never"),
    "rewrite": MergePolicy(rewrite="always"),
}


class CountingStorage(PosixStorage):
    """Counts what is read of data files, by all instances."""

    reads = 0
    num_bytes = 0

    def open_reader(self, path: str, *, mapped: bool = False) -> ObjectReader:
        """See :meth:`arrow_format.storage.open.Storage.open_reader`."""
        reader = super().open_reader(path, mapped=mapped)
        return _CountingReader(reader) if path.endswith(".data") else reader


class _CountingReader:
    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader
        self.close = reader.close

    def get_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        CountingStorage.reads += len(ranges)
        CountingStorage.num_bytes += sum(length for _, length in ranges)
        return self._reader.get_ranges(ranges)


def write(batches: list[pa.RecordBatch], n: int, options: WriteOptions) -> Path:
    """Write and commit the table, a share of the batches per map task."""
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    job = begin_job(
        str(DIRECTORY),
        batches[0].schema,
        num_subpartitions=n,
        partitioner=HashPartitioner(KEY),
        options=options,
    )
    share = -(-len(batches) // NUM_TASKS)
    statuses = [
        run_map_task(job, task, 0, batches[task * share : (task + 1) * share])
        for task in range(NUM_TASKS)
    ]
    commit_job(job, statuses)
    return DIRECTORY


def point_reads(path: Path) -> tuple[float, float, float, float]:
    """Read single subpartitions: reads, bytes and ms for each, and ms of the first, cold one."""
    started = time.process_time()
    shuffle = open_shuffle(path)
    shuffle._indexes.roots._storage = CountingStorage(str(path))
    read_one(shuffle, 0)
    cold = time.process_time() - started
    chosen = random.Random(7).choices(range(shuffle.num_subpartitions), k=POINTS)
    CountingStorage.reads = CountingStorage.num_bytes = 0
    started = time.process_time()
    for one in chosen:
        read_one(shuffle, one)
    warm = (time.process_time() - started) / POINTS
    return (
        CountingStorage.reads / POINTS,
        CountingStorage.num_bytes / POINTS,
        warm * 1e3,
        cold * 1e3,
    )


def read_one(shuffle: Shuffle, subpartition: int) -> None:
    """Read a subpartition and drop it."""
    for _ in shuffle.reader(subpartition, subpartition + 1):
        pass


def rounds(batches: list[pa.RecordBatch], n: int, options: WriteOptions) -> Iterator[str]:
    """Yield a line for each layout."""
    spent: dict[str, list[float]] = {"write": [], "append": [], "rewrite": []}
    points: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in spent}
    shapes: dict[str, str] = {}
    for _ in range(ROUNDS):
        for name, policy in POLICIES.items():
            started = time.process_time()
            path = write(batches, n, options)
            spent["write"].append(time.process_time() - started)
            points["write"].append(point_reads(path))
            started = time.process_time()
            merge_shuffle(path, policy=policy, options=options)
            spent[name].append(time.process_time() - started)
            points[name].append(point_reads(path))
            for layout, version in (("write", 1), (name, 2)):
                shuffle = open_shuffle(path, version)
                files = [file for output in shuffle.map_outputs for file in output.files]
                shapes[layout] = (
                    f"{len(files)} | {sum(file.num_regions for file in files)} | "
                    f"{sum(file.data_bytes for file in files) / 1e6:.0f} | "
                    f"{sum(file.index_bytes for file in files) / 1e6:.2f}"
                )
    writing = statistics.median(spent["write"])
    for name, seconds in spent.items():
        cost = statistics.median(seconds)
        reads, num_bytes, warm, cold = (
            statistics.median(column) for column in zip(*points[name], strict=True)
        )
        yield (
            f"| {n:,} | {options.codec} | {name} | {cost:.2f} ({cost / writing:.2f}) | "
            f"{shapes[name]} | {reads:.1f} | {num_bytes / 1e3:,.0f} | {warm:.2f} | {cold:.1f} |"
        )


def main() -> None:
    """Print the table."""
    pa.set_cpu_count(1)
    batches = read_batches(ipc_stream(1))
    names = ("n", "codec", "layout", "s CPU (of write)", "files", "regions", "MB", "index MB")
    names += ("reads", "KB", "ms", "ms cold")
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for codec in ("zstd", "none"):
        for n in (200, 2_000, 20_000):
            for line in rounds(batches, n, WriteOptions(codec=codec, sync=False)):
                print(line, flush=True)
    shutil.rmtree(DIRECTORY, ignore_errors=True)


if __name__ == "__main__":
    main()
