"""What the tasks of a merge write, in this process or in tasks of Spark, and what replaces what."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import to_arrow, to_numpy
from arrow_format.arrays.selection import keep
from arrow_format.errors import CorruptShuffleError
from arrow_format.format.regions import RegionKind
from arrow_format.jobs.job import run_map_task
from arrow_format.jobs.map_outputs import complete_outputs, in_task_order
from arrow_format.jobs.replacement import Replacement
from arrow_format.log.totals import sum_totals
from arrow_format.model import MapOutput, MapStatus
from arrow_format.options import WriteOptions, ignore
from arrow_format.read.index_cache import IndexCache
from arrow_format.storage.local_dirs import ReadRoots, WriteRoots, first_root
from arrow_format.write.checked_file import read_back
from arrow_format.write.clustering import region_chunk_bytes
from arrow_format.write.merge_check import (
    MAX_COMPARED_BYTES,
    MAX_COMPARED_ROWS,
    NUM_COMPARED,
    by_subpartition,
    chosen,
    compare,
    rows_at_ends,
)
from arrow_format.write.merger import merge_files
from arrow_format.write.region_file import check_whole, write_region_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.log.totals import Totals
    from arrow_format.model import Position
    from arrow_format.read.partitioned_file import PartitionedFileReader
    from arrow_format.read.rows import Rows
    from arrow_format.read.shuffle import Shuffle
    from arrow_format.write.merge_policy import PlannedMerge
    from arrow_format.write.range_plan import Piece


class MergeWork(Protocol):
    """The tasks of a merge of a version; travels to them by pickle."""

    @property
    def num_tasks(self) -> int:
        """How many there are; each writes one file, or none without rows, or few large ones."""

    def write(
        self, job: ShuffleJob, number: int, attempt: int, on_bytes: Callable[[int], None] = ignore
    ) -> MapStatus:
        """Write and check the map output of a task, from 0; ``on_bytes`` as for a whole merge.

        Attempts of a task never share a file. What a failed one leaves is removed with the job.
        """

    def replacements(
        self, job: ShuffleJob, statuses: Iterable[MapStatus]
    ) -> tuple[list[Replacement], Totals]:
        """Return what replaces what, and the rows and bytes per subpartition that this adds.

        Statuses are taken one by one, and their totals not kept.

        Raises ShuffleError where the statuses are not one of each task, CorruptShuffleError where
        the new files have other rows.
        """


@dataclass(frozen=True)
class MapOutputMerges:
    """Merges of adjacent map outputs, one task for each; a status has what it adds to totals."""

    shuffle: Shuffle
    merges: tuple[PlannedMerge, ...]
    max_fan_in: int

    @property
    def num_tasks(self) -> int:
        """One for each new file."""
        return len(self.merges)

    def _inputs(self, number: int) -> Sequence[MapOutput]:
        planned = self.merges[number]
        return self.shuffle.snapshot.map_outputs[planned.first : planned.end]

    def write(
        self, job: ShuffleJob, number: int, attempt: int, on_bytes: Callable[[int], None] = ignore
    ) -> MapStatus:
        """Copy or join the regions of some map outputs."""
        inputs, version = self._inputs(number), self.shuffle.snapshot.newest
        files = [(output, file) for output in inputs for file in output.files]
        numbers = {file.num_subpartitions for _, file in files}
        if self.merges[number].rewrite and numbers != {job.num_subpartitions}:
            return self._scaled(job, number, attempt, on_bytes)
        indexes = IndexCache(job.storage)
        # The policy merges files of one number, which may be a multiple of the version's.
        n = next((file.num_subpartitions for _, file in files), job.num_subpartitions)
        reported = 0

        def report(num_bytes: int) -> None:
            nonlocal reported
            reported += num_bytes
            on_bytes(num_bytes)

        merged = merge_files(
            [*indexes.indexes_of(version, files)],
            rewrite=self.merges[number].rewrite,
            max_fan_in=self.max_fan_in,
            roots=_roots(job, number, attempt),
            path_in=partial(job.path_in, number, _name(number, attempt)),
            metadata=replace(job.metadata(number, attempt), num_subpartitions=n),
            options=job.options,
            on_bytes=report,
        )
        # Bytes between chunks, and what the bytes of regions lost to rounding.
        on_bytes(sum(output.num_bytes for output in inputs) - reported)
        output = MapOutput(job.job_id, number, attempt, (merged.file,))
        return MapStatus(output, np.zeros_like(merged.added_bytes), merged.added_bytes)

    def _scaled(
        self, job: ShuffleJob, number: int, attempt: int, on_bytes: Callable[[int], None]
    ) -> MapStatus:
        """Write the rows of some map outputs by the number of subpartitions of new files."""
        snapshot, planned = self.shuffle.snapshot, self.merges[number]
        first, end = (
            sum(file.num_regions for output in snapshot.map_outputs[:at] for file in output.files)
            for at in (planned.first, planned.end)
        )
        known = snapshot.map_outputs.columns_with_statistics
        names = (name for name, id_ in snapshot.newest.columns.by_name.items() if id_ in known)
        status = _write_scaled(
            self.shuffle,
            replace(job, statistics=tuple(names)),
            number,
            attempt,
            (0, self.shuffle.num_subpartitions),
            range(first, end),
        )
        on_bytes(sum(output.num_bytes for output in self._inputs(number)))
        counted = replace(status, subpartition_rows=None, subpartition_bytes=None)
        added = self._added(job, counted)
        if sum_totals([added], self.shuffle.num_subpartitions)[0].any():
            msg = (
                f"{self.shuffle.path}: a file that was written by {job.num_subpartitions:,} "
                f"subpartitions has other rows than its inputs in version {self.shuffle.version}, "
                "which are unharmed; nothing was merged. Please report this"
            )
            raise CorruptShuffleError(msg)
        return MapStatus(status.output, *added, status.counters)

    def replacements(
        self, job: ShuffleJob, statuses: Iterable[MapStatus]
    ) -> tuple[list[Replacement], Totals]:
        """Return a replacement for each merge."""
        outputs, added = [], sum_totals((), job.num_subpartitions)
        for status in statuses:
            outputs.append(status.output)
            added = sum_totals((added, self._added(job, status)), job.num_subpartitions)
        changes = []
        for output in in_task_order(job, outputs, self.num_tasks):
            inputs = self._inputs(output.map_task)
            changes.append(Replacement(inputs, (replace(output, position=_position(inputs)),)))
        return changes, added

    def _added(self, job: ShuffleJob, status: MapStatus) -> Totals:
        """Return what a map output adds to the totals: by its status, or else by the indexes."""
        if status.subpartition_rows is not None and status.subpartition_bytes is not None:
            return status.subpartition_rows, status.subpartition_bytes
        version, n = self.shuffle.snapshot.newest, job.num_subpartitions
        indexes = IndexCache(job.storage)

        def totals(outputs: Sequence[MapOutput]) -> Totals:
            files = [(output, file) for output in outputs for file in output.files]
            return sum_totals([each.totals for each in indexes.indexes_of(version, files)], n)

        after, before = totals([status.output]), totals(self._inputs(status.output.map_task))
        return after[0] - before[0], after[1] - before[1]


@dataclass(frozen=True)
class SubpartitionMerge:
    """A merge of all map outputs into files of adjacent subpartitions, one task for each."""

    shuffle: Shuffle
    """Opened with the memory that a task may take to read."""
    pieces: tuple[Piece, ...]
    statistics: tuple[str, ...]
    """Columns that have statistics in some input."""

    @property
    def num_tasks(self) -> int:
        """One for each new file."""
        return len(self.pieces)

    def write(
        self, job: ShuffleJob, number: int, attempt: int, on_bytes: Callable[[int], None] = ignore
    ) -> MapStatus:
        """Read a range of subpartitions from all map outputs, and write it as one region."""
        piece, shuffle = self.pieces[number], self.shuffle
        if job.num_subpartitions != shuffle.num_subpartitions:
            within = piece.first, piece.end
            most = max(NUM_COMPARED // self.num_tasks, 1)
            scaling = replace(job, statistics=self.statistics)
            status = _write_scaled(shuffle, scaling, number, attempt, within, piece.regions, most)
            on_bytes(piece.num_bytes)
            return status
        if piece.kind is RegionKind.UNICAST and self._has_many_regions(piece):
            status = self._write_sorted(job, number, attempt)
            on_bytes(piece.num_bytes)
            return status
        written = write_region_file(
            lambda: shuffle.rows(range(piece.first, piece.end), regions=piece.regions),
            piece.kind,
            piece.first,
            roots=_roots(job, number, attempt),
            path_in=partial(job.path_in, number, _name(number, attempt)),
            metadata=replace(job.metadata(number, attempt), statistics=self.statistics),
            options=job.options,
            num_bytes=piece.num_bytes,
            raw_bytes=self._raw_bytes(piece),
            placed=self._is_placed,
        )
        on_bytes(piece.num_bytes)
        self._compare(piece, [written])
        files = (written.file,) if written.regions else ()  # the commit removes an empty file
        return MapStatus(MapOutput(job.job_id, number, attempt, files), *written.totals)

    def _raw_bytes(self, piece: Piece) -> int:
        return piece.num_bytes * self.shuffle.snapshot.raw_bytes // max(self.shuffle.num_bytes, 1)

    def _has_many_regions(self, piece: Piece) -> bool:
        """Whether a reader that orders the rows would decode most chunks several times.

        It orders a group of subpartitions at a time, and keeps a bounded part of the chunks that
        have rows of the next.
        """
        shuffle, group_bytes = self.shuffle, self.shuffle.options.group_bytes
        num_regions = int(shuffle.snapshot.map_outputs.of_files("num_regions").sum())
        region_bytes = shuffle.snapshot.raw_bytes // max(num_regions, 1)
        chunk_bytes = region_chunk_bytes(region_bytes, WriteOptions().chunk_bytes)
        return (
            len(piece.regions) * chunk_bytes > 4 * group_bytes
            and self._raw_bytes(piece) > 2 * group_bytes
        )

    def _write_sorted(self, job: ShuffleJob, number: int, attempt: int) -> MapStatus:
        """Write a range as a map task does: regions of full sort buffers, joined at its end.

        So each input is read once, from its start to its end.
        """
        piece, shuffle = self.pieces[number], self.shuffle
        rows = shuffle.reader(piece.first, piece.end, regions=piece.regions)
        sorting = replace(job, statistics=self.statistics)
        status, written = _written(sorting, number, attempt, rows)
        self._compare(piece, written)
        files = tuple(replace(file, placed=self._is_placed) for file in status.output.files)
        return replace(status, output=replace(status.output, files=files))

    @property
    def _is_placed(self) -> bool:
        """Whether all rows are known to be where they belong: each file may have some of all."""
        return bool(self.shuffle.snapshot.map_outputs.placed.all())

    def _compare(self, piece: Piece, written: Sequence[PartitionedFileReader]) -> None:
        """Read some subpartitions from the inputs again, and compare their unicast rows.

        All tasks together compare as many as a merge into one file.
        """
        if piece.kind is RegionKind.BROADCAST or not written:
            return
        most = max(NUM_COMPARED // self.num_tasks, 1)
        some = _rows_to_compare(self.shuffle, (piece.first, piece.end), piece.regions, most)
        expected = {number: rows_at_ends(rows) for number, rows in some}
        compare(written[0], expected, written)

    def replacements(
        self, job: ShuffleJob, statuses: Iterable[MapStatus]
    ) -> tuple[list[Replacement], Totals]:
        """Return one replacement: of all map outputs."""
        outputs, (rows, sizes), *_ = complete_outputs(job, statuses, self.num_tasks)
        shuffle = self.shuffle
        n = shuffle.num_subpartitions
        rows, sizes = sum_totals([(rows, sizes)], n)  # new files may have a multiple
        before = to_numpy(shuffle.subpartition_rows), to_numpy(shuffle.subpartition_bytes)
        if not np.array_equal(rows, before[0]):
            which = int(np.flatnonzero(rows != before[0])[0])
            msg = (
                f"{shuffle.path}: merged files have {rows[which]:,} rows of subpartition "
                f"{which}, version {shuffle.version} has {before[0][which]:,}; its files are "
                "unharmed, and nothing was merged. Please report this"
            )
            raise CorruptShuffleError(msg)
        inputs = shuffle.snapshot.map_outputs
        position = _position(inputs)
        placed = tuple(
            replace(output, position=position._replace(order=order))
            for order, output in enumerate(outputs, position.order)
            if output.files
        )
        known = sum_totals([shuffle.snapshot.totals], n)
        return [Replacement(inputs, placed)], (rows - known[0], sizes - known[1])


def _write_scaled(
    shuffle: Shuffle,
    job: ShuffleJob,
    number: int,
    attempt: int,
    within: tuple[int, int],
    regions: range,
    num_compared: int = NUM_COMPARED,
) -> MapStatus:
    """Write rows of subpartitions ``[first, end)`` by another number of subpartitions.

    That is the job's, whose partitioner places the rows of these regions. Some are read again.
    """
    first, end = within
    runs = shuffle.reader(first, end, regions=regions)
    status, written = _written(job, number, attempt, (run.batch for run in runs))
    if written:
        place = job.partitioner.bind(job.data_schema, job.num_subpartitions, 0)
        expected = {}
        for _, rows in _rows_to_compare(shuffle, within, regions, num_compared):
            ids = np.concatenate([place(batch) for batch in rows.to_batches()])
            for i in np.unique(ids).tolist():
                expected[i] = rows_at_ends(keep(rows, to_arrow(ids == i)))
        compare(written[0], expected, written)
    return status


def _written(
    job: ShuffleJob, number: int, attempt: int, rows: Iterable[Rows | pa.RecordBatch]
) -> tuple[MapStatus, list[PartitionedFileReader]]:
    """Write rows as a map task does, and return what was written, read back.

    So each input is read once, from its start to its end.
    """
    options = replace(
        job.options,
        rewrite="always",
        write_order="natural",
        threads=job.options.threads or 1,  # it may be one of many tasks
    )
    status = run_map_task(replace(job, options=options), number, attempt, rows)
    roots = ReadRoots(job.storage)
    return status, [
        read_back(roots.storage_of(file, job.job_id), file, check_whole)
        for file in status.output.files
    ]


def _rows_to_compare(
    shuffle: Shuffle, within: tuple[int, int], regions: range, most: int
) -> Iterator[tuple[int, pa.Table]]:
    """Yield some of the subpartitions ``[first, end)``, with their rows in some regions."""
    first, end = within
    rows, raw = shuffle.weights(within=range(first, end))
    fit = (rows > 0) & (rows <= MAX_COMPARED_ROWS) & (raw <= MAX_COMPARED_BYTES)
    some = chosen(first + np.flatnonzero(fit), most, len(regions))
    read = map(by_subpartition, shuffle.rows(some, regions=regions))
    for number, several in groupby(chain.from_iterable(read), key=itemgetter(0)):
        yield number, pa.Table.from_batches([rows for _, rows in several], shuffle.schema)


def _name(number: int, attempt: int) -> str:
    return f"{number:05d}-{attempt}-{secrets.token_hex(6)}-0"


def _roots(job: ShuffleJob, number: int, attempt: int) -> WriteRoots:
    # A task that outlives an abort must not make the directory again: nothing would remove it.
    storage, local = job.storage.without_new_directories(), job.open_local_roots()
    return WriteRoots(storage, local, first_root(job.job_id, number + attempt, 1 + len(local)))


def _position(inputs: Sequence[MapOutput]) -> Position:
    """Return the position of the first input, with the version that added the last rows of all."""
    positions = [output.position for output in inputs if output.position is not None]
    return positions[0]._replace(last_version=max(each.last_version for each in positions))
