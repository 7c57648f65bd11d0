"""What a shuffle of any size asks of a store, of disks and of memory, as arithmetic; pure.

Sizes that cannot be run here follow from those that can: ``integration/test_scale_model.py``
compares each formula with real shuffles, on a server that counts requests.
``docs/explanation/scale.md`` says what they mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from arrow_format.format.index_file import BLOCK_BYTES
from arrow_format.options import WriteOptions
from arrow_format.read.partitioned_file import SMALL_BYTES
from arrow_format.read.scheduler import MAX_ROUND_BYTES
from arrow_format.storage.object_store import MAX_REQUESTS, PART_BYTES
from arrow_format.write.clustering import SPLIT_CHUNK_BYTES, region_chunk_bytes
from arrow_format.write.merge_policy import MAX_FAN_IN, Facts, MergePolicy
from arrow_format.write.sort_buffer import ROW_OVERHEAD_BYTES
from connector.map_status import MAX_ALL_TOTALS_BYTES, MAX_TOTALS_BYTES

GB, TB, PB = 10**9, 10**12, 10**15

INDEX_BYTES = 900
"""Of an index without rows: directory, columns of a block. A schema of many columns has more."""
PLACE_BYTES = 30
"""Of a block in the directory."""
CHUNK_RAW_BYTES = 60
"""Of a chunk in the index, before compression."""
STATUS_BYTES = 600
"""Of a map status, without totals; statistics of many columns are more."""
OPEN_OUTPUT_BYTES = 450
"""Of a map output in the memory of a process that opens the shuffle."""
LOG_PUTS = 17
"""Listings and puts of a write that do not depend on its size; ten of them once in a process."""
MOST_PAGE = 1_000
"""Objects in an answer to a listing."""


DOLLARS_PER_PUT = 5e-6
"""Of PUT, POST and LIST: S3 Standard, us-east-1, list price. Traffic inside of a region is free."""
DOLLARS_PER_GET = 4e-7
"""Of GET and HEAD. DELETE is free."""
DOLLARS_PER_GB_MONTH = 0.023
"""Of storage, up to 50 TB; a tenth less above 500 TB."""


@dataclass(frozen=True)
class Shuffle:
    """A shuffle of evenly distributed rows.

    Parameters
    ----------
    stored_bytes
        Of all data files.
    map_outputs
        Map tasks that wrote it.
    subpartitions
        Their number.
    ratio
        Bytes in Arrow for each stored byte: 5.5 for TPC-H ``lineitem`` with zstd.
    row_bytes
        Bytes of a row in Arrow: 169 for ``lineitem``.
    options
        How it was written. Of ``rewrite`` it distinguishes ``never`` and ``always``.
    statistics_bytes
        Of a chunk in the index: some 8 for each column that has them.
    entry_bytes
        The same without statistics: some 3 for each column, and 7 for each frame.
    """

    stored_bytes: int
    map_outputs: int
    subpartitions: int
    ratio: float = 5.5
    row_bytes: float = 169
    options: WriteOptions = field(default_factory=WriteOptions)
    statistics_bytes: int = 60
    entry_bytes: int = 130

    @property
    def output_bytes(self) -> float:
        """Stored bytes of a map output."""
        return self.stored_bytes / self.map_outputs

    @property
    def regions(self) -> int:
        """Regions of a map output."""
        charged = self.output_bytes * self.ratio * (1 + ROW_OVERHEAD_BYTES / self.row_bytes)
        flushed = max(1, math.ceil(charged / self.options.region_bytes))
        return flushed if self.options.rewrite == "never" else math.ceil(flushed / MAX_FAN_IN)

    @property
    def region_bytes(self) -> float:
        """Bytes in Arrow of a region."""
        return self.output_bytes * self.ratio / self.regions

    @property
    def region_rows(self) -> float:
        """Rows of a region."""
        return self.region_bytes / self.row_bytes

    @property
    def chunks(self) -> int:
        """Chunks of a region."""
        closing = region_chunk_bytes(int(self.region_bytes), self.options.chunk_bytes)
        of_subpartition = self.region_bytes / self.subpartitions
        if of_subpartition > SPLIT_CHUNK_BYTES:
            return self.subpartitions * math.ceil(of_subpartition / SPLIT_CHUNK_BYTES)
        # It closes at the first boundary at or past the limit: half a subpartition later.
        steps = max(1, math.ceil(closing / of_subpartition))
        return max(1, math.ceil(self.subpartitions / steps))

    @property
    def chunk_bytes(self) -> float:
        """Stored bytes of a chunk."""
        return self.region_bytes / self.ratio / self.chunks

    @property
    def index_bytes(self) -> float:
        """Bytes of the index of a map output."""
        of_statistics = self.regions * self.chunks * self.statistics_bytes
        return INDEX_BYTES + PLACE_BYTES * self.blocks + self.block_bytes + of_statistics

    @property
    def present(self) -> float:
        """Subpartitions with rows in a region."""
        n = self.subpartitions
        return n * -math.expm1(-self.region_rows / n)

    @property
    def block_bytes(self) -> float:
        """Bytes of all blocks of an index, without their statistics."""
        # Distances are mostly 1, and compress to little; so do rows of which a byte says all.
        per_subpartition = 0.65 if self.region_rows / self.subpartitions < 256 else 1.1
        ranks = self.present * per_subpartition
        return self.regions * (ranks + self.chunks * self.entry_bytes)

    @property
    def blocks(self) -> int:
        """Blocks of an index."""
        raw = self.regions * (2 * self.present + self.chunks * CHUNK_RAW_BYTES)
        return math.ceil(raw / BLOCK_BYTES)

    def opened_bytes(self, tasks: int) -> tuple[float, int]:
        """Return what each of some tasks reads of an index, and the requests that takes."""
        if self.index_bytes <= SMALL_BYTES:
            return self.index_bytes, 1
        # One block more than the share: both sides of an edge read the block that it lies in.
        share = min(1.0, 1 / tasks + 1 / self.blocks)
        return INDEX_BYTES + PLACE_BYTES * self.blocks + self.block_bytes * share, 2

    @property
    def totals_bytes(self) -> float:
        """Bytes of the totals of a map output: rows and bytes of each subpartition, compressed."""
        n = self.subpartitions
        rows = self.output_bytes * self.ratio / self.row_bytes / n
        # Fitted to totals of 0.04 to 2,000 rows per subpartition.
        return 700 + n * (1 + 0.17 * math.log2(rows) if rows >= 1 else rows ** (2 / 3))

    @property
    def sent_totals_bytes(self) -> float:
        """Bytes of all totals that the driver gets in statuses."""
        if self.totals_bytes > MAX_TOTALS_BYTES:
            return 0
        return min(self.map_outputs * self.totals_bytes, MAX_ALL_TOTALS_BYTES)

    @property
    def driver_bytes(self) -> float:
        """Bytes of statuses that the driver gets; ``spark.driver.maxResultSize`` limits them."""
        return self.map_outputs * STATUS_BYTES + self.sent_totals_bytes


@dataclass(frozen=True)
class Cost:
    """What an operation asks of the store."""

    puts: float
    """PUT, POST and LIST."""
    gets: float
    """GET and HEAD."""
    read_bytes: float = 0
    tasks: int = 1
    """Over which its requests are spread."""

    @property
    def dollars(self) -> float:
        """What the requests cost."""
        return self.puts * DOLLARS_PER_PUT + self.gets * DOLLARS_PER_GET

    def waiting_seconds(self, round_trip: float = 0.03) -> float:
        """Return how long each task waits, with as many requests at a time as a reader makes."""
        return (self.puts + self.gets) / self.tasks * round_trip / MAX_REQUESTS


def write_cost(shuffle: Shuffle) -> Cost:
    """Return the requests of map tasks and commit."""
    m = shuffle.map_outputs
    unsent = m - min(m, shuffle.sent_totals_bytes / shuffle.totals_bytes)
    puts = m * (_upload(shuffle.output_bytes) + _upload(shuffle.index_bytes))
    listings = 2 * math.ceil((2 * m + 1) / MOST_PAGE)
    return Cost(puts + listings + LOG_PUTS, unsent + 5, unsent * shuffle.index_bytes, m)


def _upload(num_bytes: float) -> int:
    """Return the requests of an upload: besides parts, one that begins it and one that ends it."""
    parts = math.ceil(num_bytes / PART_BYTES)
    return 1 if parts == 1 else parts + 2


def read_cost(shuffle: Shuffle, tasks: int) -> Cost:
    """Return what it takes that ``tasks`` tasks read everything once, each a range.

    Each opens its part of every index, and reads a chunk of every region at least.
    """
    m, g = shuffle.map_outputs, shuffle.regions
    tasks = min(tasks, shuffle.subpartitions)
    touched = min(tasks, shuffle.region_rows)
    # Each of the edges between tasks lies in a chunk, which both sides read.
    chunk_reads = min(shuffle.chunks + touched - 1, touched * shuffle.chunks)
    rounds = max(1.0, shuffle.region_bytes / shuffle.ratio / touched / MAX_ROUND_BYTES)
    opened, requests = shuffle.opened_bytes(tasks)
    return Cost(
        2 * tasks,
        tasks * (requests * m + 3) + m * g * touched * rounds,
        tasks * m * opened + m * g * chunk_reads * shuffle.chunk_bytes,
        tasks,
    )


def merge_tasks(shuffle: Shuffle, policy: MergePolicy | None = None) -> int:
    """Return how many tasks a merge by subpartition has, of which each writes one file."""
    m, regions = shuffle.map_outputs, shuffle.map_outputs * shuffle.regions
    facts = Facts(
        num_files=m,
        num_regions=math.ceil(regions),
        data_bytes=math.ceil(shuffle.stored_bytes),
        index_bytes=math.ceil(m * shuffle.index_bytes),
        region_subpartitions=math.ceil(regions * shuffle.subpartitions),
    )
    task_bytes = (policy or MergePolicy()).range_bytes(facts)
    return min(shuffle.subpartitions, math.ceil(shuffle.stored_bytes / task_bytes))


def merged(shuffle: Shuffle) -> Shuffle:
    """Return one of the files that a merge by subpartition makes of a shuffle of many regions."""
    tasks = merge_tasks(shuffle)
    return replace(
        shuffle,
        stored_bytes=shuffle.stored_bytes // tasks,
        map_outputs=1,
        subpartitions=max(1, shuffle.subpartitions // tasks),
        options=replace(shuffle.options, rewrite="always"),
    )


def merge_cost(shuffle: Shuffle) -> Cost:
    """Return what a merge by subpartition takes, of a shuffle of many regions.

    Each task reads its range of all files, writes it as a map task does, and joins its regions: so
    all rows are written, read and written again.
    """
    tasks, file = merge_tasks(shuffle), merged(shuffle)
    reading, written = read_cost(shuffle, tasks), write_cost(file)
    again = file.stored_bytes / MAX_ROUND_BYTES
    return Cost(
        reading.puts + 2 * tasks * written.puts,
        reading.gets + tasks * again,
        reading.read_bytes + shuffle.stored_bytes,
        tasks,
    )


def read_merged_cost(shuffle: Shuffle, tasks: int) -> Cost:
    """Return what it takes that ``tasks`` tasks read all of a shuffle that was merged so."""
    files = merge_tasks(shuffle)
    per_file = read_cost(merged(shuffle), max(1, math.ceil(tasks / files)))
    # A file more for the tasks whose range begins in one file and ends in the next.
    gets = files * per_file.gets + 2 * min(tasks, files)
    return Cost(2 * tasks, gets, files * per_file.read_bytes, tasks)


def opened_bytes(shuffle: Shuffle) -> float:
    """Return the memory of a process that has opened the shuffle, before it reads."""
    return shuffle.map_outputs * OPEN_OUTPUT_BYTES + shuffle.subpartitions * 16
