"""Reads every byte of a version and checks it: chunks, gaps, counts, totals, statistics, places."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Literal

import numpy as np

from arrow_format.errors import CorruptShuffleError, FormatVersionError, ShuffleError, StorageError
from arrow_format.format.codecs import ChunkDecoder
from arrow_format.format.statistics import has_statistics
from arrow_format.keys.partitioner import partitioner_from_description
from arrow_format.log.totals import sum_totals
from arrow_format.read.chunk_reader import ChunkReader
from arrow_format.read.placement_check import PlacementCheck, placement_check
from arrow_format.read.presentation import count_of, format_bytes
from arrow_format.read.statistics_check import StatisticsCheck
from arrow_format.read.tombstones import opened, shape_of
from arrow_format.read.totals import totals_of
from arrow_format.read.unique_keys import problem_of_rows
from arrow_format.read.whole_file import check_file
from arrow_format.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from arrow_format.format.statistics import ColumnStatistics
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.model import Int64Array, MapOutput
    from arrow_format.read.chunk_plan import ChunkRead
    from arrow_format.read.index_cache import IndexCache
    from arrow_format.read.partitioned_file import PartitionedFileReader
    from arrow_format.storage.open import Storage


@dataclass(frozen=True, slots=True)
class VerifyReport(Report):
    """What :meth:`Shuffle.verify` read, and the problems it met.

    .. code-block:: python

        report = orders.verify()
        print(report.ok, *report.problems)

    Parameters
    ----------
    path
        Absolute path or URI of the shuffle.
    version
        Version that was read.
    num_files
        Number of data files that are sound.
    num_chunks, num_rows, num_bytes
        Chunks, rows and bytes of those files.
    problems
        One error for each file that is damaged, unreadable or has rows elsewhere than where they
        belong, in reading order; then one where two rows have the same ``unique`` key.
    placement
        ``checked``: the partitioner was asked where each row of a file belongs. ``unknown``: it
        does not say, as a user's own and round robin do not.
    """

    path: str
    version: int
    num_files: int
    num_chunks: int
    num_rows: int
    num_bytes: int
    problems: tuple[ShuffleError, ...] = ()
    placement: Literal["checked", "unknown"] = "unknown"

    @property
    def ok(self) -> bool:
        """Whether everything is sound."""
        return not self.problems

    def _lines(self) -> Iterator[str]:
        where = f"{self.path} version {self.version}"
        checked = (
            f"{count_of(self.num_files, 'file')}, {count_of(self.num_chunks, 'chunk')}, "
            f"{count_of(self.num_rows, 'row')}, {format_bytes(self.num_bytes)}, "
            f"placement: {self.placement}"
        )
        if self.ok:
            yield f"{where}: sound ({checked})"
            return
        yield f"{where}: {count_of(len(self.problems), 'problem')} found; sound are {checked}"
        for problem in self.problems:
            yield f"{type(problem).__name__}: {problem}"


def verify_snapshot(
    storage: Storage,
    snapshot: Snapshot,
    indexes: IndexCache,
    *,
    raise_on_damage: bool = True,
    on_output: Callable[[MapOutput], None] | None = None,
) -> VerifyReport:
    """Verify a version; see :meth:`arrow_format.read.shuffle.Shuffle.verify`."""
    version = snapshot.newest
    problems: list[ShuffleError] = []
    placement: PlacementCheck | None = None
    try:
        placement = placement_check(
            partitioner_from_description(version.partitioner) or version.partitioner,
            version.data_schema,
            version.num_subpartitions,
        )
    except CorruptShuffleError as error:
        if raise_on_damage:
            raise
        problems.append(error)
    how: Literal["checked", "unknown"] = "unknown" if placement is None else "checked"
    report = VerifyReport(storage.root, snapshot.version, 0, 0, 0, 0, placement=how)
    n = version.num_subpartitions
    indexed_rows = np.zeros(n, np.int64)
    numbers = count()
    logged = {}
    try:
        logged = snapshot.map_outputs.file_statistics(
            (field.name for field in version.data_schema if has_statistics(field.type)),
            version.columns,
        )
    except CorruptShuffleError as error:
        if raise_on_damage:
            raise
        problems.append(error)
    for output in snapshot.map_outputs:
        for file in output.files:
            number = next(numbers)
            try:
                index = indexes.index_of(version, output, file)
                of_file = {name: each.units(number, number + 1) for name, each in logged.items()}
                _check_file(index, of_file, placement)
            except (CorruptShuffleError, FormatVersionError, StorageError) as error:
                if raise_on_damage:
                    raise
                problems.append(error)
                continue
            report = replace(
                report,
                num_files=report.num_files + 1,
                num_chunks=report.num_chunks + sum(len(r.chunks) for r in index.regions),
                num_rows=report.num_rows + file.num_rows,
                num_bytes=report.num_bytes + file.data_bytes,
            )
            indexed_rows += sum_totals([index.totals], n)[0]
        if on_output is not None:
            on_output(output)
    for problem in _problems_of_tombstones(snapshot, indexes):
        if raise_on_damage:
            raise problem
        problems.append(problem)
    try:
        rows, _ = totals_of(snapshot, storage.root)
        if not problems:  # else not every index could be read
            _compare(storage, snapshot.version, rows, indexed_rows)
    except (CorruptShuffleError, StorageError) as error:
        if raise_on_damage:
            raise
        problems.append(error)
    if version.shape.unique and not problems:
        try:
            _check_keys(storage, snapshot, indexes, indexed_rows)
        except CorruptShuffleError as error:
            if raise_on_damage:
                raise
            problems.append(error)
    return replace(report, problems=tuple(problems))


def _problems_of_tombstones(snapshot: Snapshot, indexes: IndexCache) -> Iterator[ShuffleError]:
    """Yield what is wrong with tombstones, each of which is read."""
    version = snapshot.newest
    for output in snapshot.tombstones:
        try:
            placement = placement_check(
                partitioner_from_description(version.partitioner) or version.partitioner,
                shape_of(version.shape).data_schema,
                version.num_subpartitions,
            )
            for index in opened(version, [output], indexes):
                _check_file(index, {}, placement)
        except (CorruptShuffleError, FormatVersionError, StorageError) as error:
            yield error


def _check_keys(
    storage: Storage, snapshot: Snapshot, indexes: IndexCache, num_rows: Int64Array
) -> None:
    """Check that columns identify the rows of a version."""
    problem = problem_of_rows(snapshot.map_outputs, snapshot.newest, indexes, num_rows)
    if problem is not None:
        msg = (
            f"{storage.root}: {problem}, in version {snapshot.version}: a writer did not keep to "
            "it. Write the rows that are right to another shuffle"
        )
        raise CorruptShuffleError(msg)


def _check_file(
    index: PartitionedFileReader,
    logged: Mapping[str, ColumnStatistics],
    placement: PlacementCheck | None,
) -> None:
    """Read all of a file; what is damaged is raised before a row that is elsewhere."""
    index.check()
    statistics = StatisticsCheck(index, logged)
    chunks = ChunkReader(index, ChunkDecoder(index.metadata.data_schema))
    elsewhere: list[CorruptShuffleError] = []

    def check_rows(chunk: ChunkRead, rows: pa.RecordBatch) -> None:
        statistics.add(rows)
        if placement is not None and not elsewhere:
            try:
                placement.check_rows(chunks, chunk, rows)
            except CorruptShuffleError as error:
                elsewhere.append(error)

    check_file(chunks, on_rows=check_rows)
    statistics.finish()
    if elsewhere:
        raise elsewhere[0]


def _compare(storage: Storage, version: int, rows: Int64Array, indexed_rows: Int64Array) -> None:
    """Compare the rows per subpartition of totals with those of indexes.

    The writer may share bytes out among subpartitions as it likes, as long as they add up.
    """
    if not np.array_equal(rows, indexed_rows):
        msg = (
            f"{storage.root}: rows per subpartition of version {version} differ from its indexes; "
            "write the shuffle again"
        )
        raise CorruptShuffleError(msg)
