"""Facts about a shuffle, as plain values: versions, sizes, layout and skew. Nothing prints here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from arrow_format.arrays.buffers import to_numpy
from arrow_format.errors import ShuffleError
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.consumers import ConsumerRegistry
from arrow_format.log.pending import pending_outputs
from arrow_format.options import ResultPartitionType
from arrow_format.read.index_cache import IndexCache
from arrow_format.read.presentation import count_of, format_bytes
from arrow_format.read.shuffle import check_there
from arrow_format.report import Report
from arrow_format.storage.open import open_storage
from arrow_format.write.counters import sum_counters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from arrow_format.keys.sort_keys import SortBy
    from arrow_format.log.reader import LogView
    from arrow_format.model import Int64Array
    from arrow_format.read.shuffle import Shuffle

T = TypeVar("T")

MAX_INDEX_BYTES = 32 << 20
"""Chunks are counted only while the indexes together are no larger than this."""

NUM_LARGEST = 5
"""Largest subpartitions that are named."""


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """One column as it is stored."""

    name: str
    type: str
    nullable: bool


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """One entry of the commit log; or a fence, which holds no rows and cannot be opened."""

    version: int
    operation: str
    num_rows: int
    """Rows of the map outputs that it adds; a merge adds those that replace others."""
    num_bytes: int
    """Bytes of their data files."""
    num_map_outputs: int
    committed_at: str
    """ISO 8601, UTC, by the committing machine's clock."""
    live: bool
    """Whether its rows are part of the inspected version."""
    problem: str | None = None
    """Why the entry could not be read; then all numbers are 0."""


@dataclass(frozen=True, slots=True)
class SizeFacts:
    """Bytes of a version."""

    raw_bytes: int
    """Arrow bytes before compression."""
    data_bytes: int
    """Bytes of the data files."""
    index_bytes: int
    """Bytes of the index files."""


@dataclass(frozen=True, slots=True)
class LayoutFacts:
    """Files, regions and chunks of a version."""

    num_map_outputs: int
    num_files: int
    num_regions: int
    num_chunks: int | None
    """None when the indexes exceed :data:`MAX_INDEX_BYTES`, or one cannot be read."""
    num_masked_rows: int = 0
    """Rows in these files that masks took; a merge that rewrites leaves them out."""
    problem: str | None = None
    """Why an index could not be read."""


@dataclass(frozen=True, slots=True)
class LargeSubpartition:
    """One of the largest subpartitions."""

    subpartition: int
    num_bytes: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class SkewFacts:
    """How unevenly bytes are spread over subpartitions."""

    num_empty: int
    median_bytes: float
    """Median over the subpartitions that have rows; 0 when none has."""
    largest_over_median: float | None
    """None when all subpartitions are empty."""
    largest: tuple[LargeSubpartition, ...]
    """The largest by bytes, descending; no empty ones."""


@dataclass(frozen=True, slots=True, eq=False)
class ShuffleFacts:
    """Everything ``arrow-shuffle inspect`` shows of one version."""

    path: str
    version: int
    format_version: int
    shuffle_id: str
    num_rows: int
    num_subpartitions: int
    partitioner: Mapping[str, Any]
    sort_by: SortBy
    combine: Mapping[str, str]
    unique: tuple[str, ...]
    result_type: str
    consumers: Mapping[str, int]
    """Version up to which each consumer has consumed; empty where that cannot be read."""
    tags: Mapping[str, int]
    """Versions by the names of their tags; empty where that cannot be read."""
    num_pending: int
    """Commits that are not flushed; 0 where that cannot be read."""
    directories: tuple[str, ...]
    """Further directories that hold files of this version, absolute."""
    counters: Mapping[str, int]
    """What the map tasks of the version did, added up; all 0 of one that no write made."""
    columns: tuple[ColumnFacts, ...]
    versions: tuple[VersionFacts, ...]
    sizes: SizeFacts
    layout: LayoutFacts
    skew: SkewFacts
    subpartition_rows: Int64Array
    subpartition_bytes: Int64Array


def inspect_shuffle(shuffle: Shuffle) -> ShuffleFacts:
    """Collect the facts of a committed version from the log and, if small, the indexes.

    Raises
    ------
    ShuffleError
        The log or its totals cannot be read. A damaged index, or a damaged entry this version
        does not need, is a ``problem`` of the result instead.
    """
    entry = shuffle.snapshot.newest
    log = CommitLog(shuffle.storage)
    nothing: tuple[dict[str, int], int] = ({}, 0)
    tags, num_pending = _if_readable(partial(log.read, _tags_and_pending), nothing)
    rows, sizes = map(to_numpy, (shuffle.subpartition_rows, shuffle.subpartition_bytes))
    files = [file for output in shuffle.map_outputs for file in output.files]
    return ShuffleFacts(
        path=shuffle.path,
        version=shuffle.version,
        format_version=entry.format_version,
        shuffle_id=entry.shuffle_id,
        num_rows=shuffle.num_rows,
        num_subpartitions=shuffle.num_subpartitions,
        partitioner=dict(entry.partitioner),
        sort_by=shuffle.sort_by,
        combine=shuffle.combine,
        unique=shuffle.unique,
        result_type=shuffle.result.type.name,
        consumers=_if_readable(ConsumerRegistry(shuffle.storage).all_progress, {}),
        tags=tags,
        num_pending=num_pending,
        directories=tuple(dict.fromkeys(file.root for file in files if file.root)),
        counters=sum_counters([entry.counters]),
        columns=tuple(
            ColumnFacts(field.name, str(field.type), field.nullable) for field in shuffle.schema
        ),
        versions=log.read(partial(_versions, log, shuffle)),
        sizes=SizeFacts(
            raw_bytes=sum(file.raw_bytes for file in files),
            data_bytes=sum(file.data_bytes for file in files),
            index_bytes=sum(file.index_bytes for file in files),
        ),
        layout=_layout(shuffle),
        skew=measure_skew(rows, sizes),
        subpartition_rows=rows,
        subpartition_bytes=sizes,
    )


def _tags_and_pending(view: LogView) -> tuple[dict[str, int], int]:
    tags = sorted(view.state.tags.items())
    return {name: tag.version for name, tag in tags}, len(view.state.pending.numbers)


def _if_readable(read: Callable[[], T], otherwise: T) -> T:
    try:
        return read()
    except ShuffleError:
        return otherwise


def _versions(log: CommitLog, shuffle: Shuffle, view: LogView) -> tuple[VersionFacts, ...]:
    live = {*shuffle.snapshot.map_outputs.versions.tolist(), shuffle.version}
    return tuple(
        _version(log, number, live=number in live) for number in range(view.oldest, view.newest + 1)
    )


def _version(log: CommitLog, number: int, *, live: bool) -> VersionFacts:
    try:
        entry = log.record(number)
    except ShuffleError as error:
        return VersionFacts(number, "unreadable", 0, 0, 0, "", False, str(error))
    moment = datetime.fromtimestamp(entry.committed_at_ms / 1000, UTC)
    return VersionFacts(
        version=number,
        operation=entry.operation,
        num_rows=entry.num_rows,
        num_bytes=entry.num_bytes,
        num_map_outputs=entry.num_outputs,
        committed_at=moment.isoformat(timespec="milliseconds"),
        live=live,
    )


def _layout(shuffle: Shuffle) -> LayoutFacts:
    files = [file for output in shuffle.map_outputs for file in output.files]
    num_chunks: int | None = None
    problem = None
    if sum(file.index_bytes for file in files) <= MAX_INDEX_BYTES:
        try:
            regions = region_bytes(shuffle)
            num_chunks = sum(len(chunks) for output in regions for chunks in output)
        except ShuffleError as error:
            problem = str(error)
    return LayoutFacts(
        num_map_outputs=len(shuffle.map_outputs),
        num_files=len(files),
        num_regions=sum(file.num_regions for file in files),
        num_chunks=num_chunks,
        num_masked_rows=sum(file.mask.num_rows for file in files),
        problem=problem,
    )


def region_bytes(shuffle: Shuffle) -> list[list[Int64Array]]:
    """Return the stored bytes of every chunk: map output, then region, then an int64 per chunk.

    Opens every index of the version.

    Raises
    ------
    CorruptShuffleError
        An index is damaged or missing.
    """
    indexes, version = IndexCache(shuffle.storage), shuffle.snapshot.newest
    return [
        [
            region.chunks.length
            for file in output.files
            for region in indexes.index_of(version, output, file).regions
        ]
        for output in shuffle.map_outputs
    ]


def measure_skew(rows: Int64Array, sizes: Int64Array) -> SkewFacts:
    """Measure how unevenly rows and bytes, one value per subpartition, are spread."""
    filled = sizes[rows > 0]
    if len(filled) == 0:
        return SkewFacts(len(rows), 0.0, None, ())
    median = float(np.median(filled))
    order = np.argsort(-sizes, kind="stable")[: min(NUM_LARGEST, len(filled))]
    return SkewFacts(
        num_empty=int(len(rows) - len(filled)),
        median_bytes=median,
        largest_over_median=float(filled.max()) / max(median, 1.0),
        largest=tuple(LargeSubpartition(int(i), int(sizes[i]), int(rows[i])) for i in order),
    )


@dataclass(frozen=True, slots=True)
class PendingFacts(Report):
    """What a stream with a flush interval has pending at a path."""

    path: str
    num_commits: int
    num_rows: int
    """Rows written; a flush keeps the latest of each key."""
    num_bytes: int
    """Bytes of their data files."""

    @property
    def counts(self) -> str:
        """All of it in a few words."""
        return (
            f"{count_of(self.num_commits, 'pending commit')} of {count_of(self.num_rows, 'row')}, "
            f"{format_bytes(self.num_bytes)}"
        )

    def _lines(self) -> Iterator[str]:
        yield self.path
        yield f"  no version yet; {self.counts}: 'arrow-shuffle flush' makes one"


def pending_facts(path: str) -> PendingFacts:
    """Count the pending commits.

    Raises
    ------
    ShuffleError
        The path holds nothing, or the log cannot be read.
    """
    storage = open_storage(path)
    check_there(storage)
    log = CommitLog(storage)
    entries = log.read(partial(pending_outputs, log)).entries
    return PendingFacts(
        storage.root,
        len(entries),
        sum(entry.num_rows for entry in entries),
        sum(entry.num_bytes for entry in entries),
    )


_STEPS = {
    "partition_ns": "finding subpartitions",
    "gather_ns": "collecting and gathering",
    "encode_ns": "encoding",
    "write_ns": "writing",
    "merge_ns": "merging",
}
_CAUSES = {
    "full_buffer_flushes": "full buffer",
    "switch_flushes": "change between one and all",
    "final_flushes": "end of a task",
    "large_row_flushes": "a row larger than the buffer",
}
_OTHERS = {
    "large_batches": "batches larger than the buffer",
    "failed_rewrites": "map outputs whose regions could not be joined",
    "failed_directories": "directories given up, full or broken",
}


def work_lines(counters: Mapping[str, int]) -> list[str]:
    """Describe where map tasks spent their time, and why they wrote regions.

    ``counters`` are sums of :class:`~arrow_format.write.counters.MapCounters`, some maybe missing.
    """
    lines = []
    times = {what: counters.get(name, 0) for name, what in _STEPS.items()}
    if total := sum(times.values()):
        shares = [f"{what} {ns / total:.0%}" for what, ns in times.items() if ns]
        lines.append(f"{total / 1e9:.1f} s in all: {', '.join(shares)}")
    flushes = [f"{what} {counters[name]:,}" for name, what in _CAUSES.items() if counters.get(name)]
    if flushes:
        lines.append(f"buffers written because of: {', '.join(flushes)}")
    others = [f"{what}: {counters[name]:,}" for name, what in _OTHERS.items() if counters.get(name)]
    return lines + others


def result_lines(facts: ShuffleFacts) -> list[str]:
    """Describe the consumers of a result, its tags and its pending commits, if any."""
    lines = []
    if facts.consumers or facts.result_type != ResultPartitionType.BLOCKING_PERSISTENT.name:
        known = [f"{name} (version {version:,})" for name, version in facts.consumers.items()]
        lines.append(f"{facts.result_type}, consumers: {', '.join(known) or 'none'}")
    if facts.tags:
        tags = ", ".join(f"{name} (version {version:,})" for name, version in facts.tags.items())
        lines.append(f"tags: {tags}")
    if facts.num_pending:
        waiting = count_of(facts.num_pending, "pending commit")
        lines.append(f"{waiting} of a stream: a version at its next flush")
    return lines


def order_text(keys: Iterable[tuple[str, str]]) -> str:
    """Describe sort keys in a few words."""
    return ", ".join(name if order == "ascending" else f"{name} {order}" for name, order in keys)


def partitioner_text(partitioner: Mapping[str, Any]) -> str:
    """Describe a partitioner in a few words."""
    kind = partitioner.get("kind")
    if kind == "hash":
        return "hash of " + ", ".join(partitioner["keys"])
    if kind == "roundrobin":
        return "round robin"
    if kind == "column":
        return f"ids in column {partitioner['column']}"
    if kind == "range":
        return "ranges of " + order_text(partitioner["keys"])
    settings = ", ".join(f"{name}={value}" for name, value in partitioner.items() if name != "kind")
    return f"{kind} ({settings})" if settings else str(kind)
