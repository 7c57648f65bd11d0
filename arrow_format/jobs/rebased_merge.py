"""What is left of a merge when others were faster: masks are carried over, lost inputs left out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from arrow_format.arrays.buffers import to_numpy
from arrow_format.format.masks import rows_beyond
from arrow_format.format.moved_rows import are_copies, moved_rows, rows_at
from arrow_format.jobs.mask_rows import MaskedRows, mask_rows
from arrow_format.jobs.placed_again import PlacedAgain
from arrow_format.keys.partitioner import HashPartitioner, partitioner_from_description
from arrow_format.log.outputs import MapOutputs, key_of
from arrow_format.log.totals import sum_totals
from arrow_format.read.index_cache import IndexCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.jobs.replacement import Replacement
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.log.totals import Totals
    from arrow_format.model import Int64Array, MapOutput
    from arrow_format.read.partitioned_file import PartitionedFileReader


class RebasedMerge:
    """Fits the replacements of a merge of a version to what has become of that.

    A mask that was put on an input meanwhile becomes one of the outputs, since a merge keeps the
    order of rows; where these got another number of subpartitions, their keys say which they share.
    A replacement is left out of which an input is gone; or, of sorted rows that were joined,
    masked: where they are now only their sort keys say.
    """

    def __init__(self, version: Snapshot, job: ShuffleJob) -> None:
        self._version = version.newest
        self._job = job
        self._indexes = IndexCache(job.storage)
        self._placed_again: dict[int, PlacedAgain] = {}
        """By the position of a replacement."""

    def fitted(
        self, changes: Sequence[Replacement], added: Totals, now: MapOutputs
    ) -> tuple[Sequence[Replacement], Totals]:
        """Return those that can be committed, and what they add to totals.

        ``now`` are the map outputs of the newest version. Where none can be, all are returned.
        Raises CorruptShuffleError where a mask or an index cannot be read, and StorageError where a
        mask could not be put.
        """
        inputs = MapOutputs.of(each for change in changes for each in change.inputs)
        if to_numpy(pc.is_in(inputs.places, now.places)).all():
            return changes, added
        there = {key_of(output): output for output in now.among(inputs.keys)}
        n = self._job.num_subpartitions
        added = sum_totals([added], n)  # by those of the version, where others are to come
        fitted = []
        for number, change in enumerate(changes):
            known = [there.get(key_of(each)) for each in change.inputs]
            carried = self._carried(number, change, known)
            if carried is None:
                lost = self._totals(change.outputs), self._totals(change.inputs)
                added = sum_totals([added, lost[1]], n)
                added = added[0] - lost[0][0], added[1] - lost[0][1]
            else:
                fitted.append(carried[0])
                added = added[0], added[1] + carried[1]
        return (fitted, added) if fitted else (changes, added)

    def _carried(
        self, number: int, change: Replacement, known: Sequence[MapOutput | None]
    ) -> tuple[Replacement, Int64Array | int] | None:
        """Return a replacement of inputs as they are now; None where it cannot be one.

        Also what that adds to the bytes of each subpartition: no row is left of some new files.
        """
        now = [output for output in known if output is not None]
        if len(now) < len(known) or [each.position for each in now] != [
            each.position for each in change.inputs
        ]:
            return None
        if now == [*change.inputs]:
            return change, 0
        before, later = self._opened(change.inputs), self._opened(now)
        after = self._opened(change.outputs)
        regions = [index.regions for index in after]
        stored = [(index.regions, index.mask) for index in before]
        numbers = {index.metadata.num_subpartitions for index in (*before, *after)}
        n = max((index.metadata.num_subpartitions for index in after), default=min(numbers))
        if self._version.sort_by and (len(numbers) > 1 or not are_copies(stored, regions, n)):
            return None
        rows = [rows_beyond(new.mask, old.mask) for old, new in zip(before, later, strict=True)]
        if len(numbers) == 1:
            moved = moved_rows(rows, stored, regions, n)
        else:
            again = self._placed_again.get(number) or self._scaled(before, n)
            if again is None:
                return None
            self._placed_again[number] = again
            moved = rows_at(*again.ordinals(rows), regions, n)
        masked = []
        for output in change.outputs:
            count = len(output.files)
            masked.append(MaskedRows(output, after[:count], moved[:count]))
            after, moved = after[count:], moved[count:]
        # Totals are without these rows already.
        replaced, (_, sizes) = mask_rows(self._job, masked)
        outputs = tuple(output for each in replaced for output in each.outputs)
        return replace(change, inputs=now, outputs=outputs), sizes

    def _scaled(self, inputs: Sequence[PartitionedFileReader], n: int) -> PlacedAgain | None:
        """Return what finds rows that were placed by n; None where their keys do not say it."""
        partitioner = partitioner_from_description(self._version.partitioner)
        is_placed = all(index.file.placed for index in inputs)
        if not isinstance(partitioner, HashPartitioner) or not is_placed:
            return None
        return PlacedAgain(self._version, inputs, partitioner, n)

    def _opened(self, outputs: Sequence[MapOutput]) -> list[PartitionedFileReader]:
        files = [(output, file) for output in outputs for file in output.files]
        return [*self._indexes.indexes_of(self._version, files)]

    def _totals(self, outputs: Sequence[MapOutput]) -> Totals:
        n = self._job.num_subpartitions
        with_rows = [output for output in outputs if output.num_rows]  # tombstones have none
        return sum_totals([index.totals for index in self._opened(with_rows)], n)
