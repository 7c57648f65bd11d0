"""Marks rows of map outputs as gone, without writing a file again.

A frame that is small is in the log; all others of one entry are in one object of its job.
"""

from __future__ import annotations

import secrets
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.format.masks import RowMask, masked_subpartitions
from arrow_format.jobs.replacement import Replacement
from arrow_format.log.totals import sum_totals
from arrow_format.model import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.log.totals import Totals
    from arrow_format.model import Int64Array, MapOutput, PartitionedFile
    from arrow_format.read.partitioned_file import PartitionedFileReader

MAX_INSIDE_BYTES = 4 << 10
"""A larger frame of a mask is not inside of an entry, which many read for other reasons."""

MAX_INSIDE_TOGETHER = 1 << 20
"""Nor are those beyond this many bytes of one entry."""

MASKS_SUFFIX = ".shuffle.masks"


@dataclass(frozen=True, slots=True)
class MaskedRows:
    """Rows of a map output that are to be gone: of each file and region, ascending, each once."""

    output: MapOutput
    indexes: Sequence[PartitionedFileReader]
    """Of each file, whole."""
    rows: Sequence[Mapping[int, Int64Array]]


def mask_rows(job: ShuffleJob, masked: Iterable[MaskedRows]) -> tuple[list[Replacement], Totals]:
    """Return map outputs with masks in the place of those without, and what that adds to totals.

    Nothing is in the place of a map output of which no row is left. Raises CorruptShuffleError
    where a mask of now cannot be read, and StorageError where the object could not be put.
    """
    totals = np.zeros(job.num_subpartitions, np.int64), np.zeros(job.num_subpartitions, np.int64)
    kept: list[tuple[MapOutput, list[tuple[PartitionedFile, RowMask | None]]]] = []
    for each in masked:
        files = [
            _masked(file, index, rows, totals)
            for file, index, rows in zip(each.output.files, each.indexes, each.rows, strict=True)
        ]
        if not any(file.num_rows for file, _ in files):
            lost = sum_totals([index.totals for index in each.indexes], job.num_subpartitions)
            totals[1][:] -= lost[1]
            files = []
        kept.append((each.output, files))
    masks = [mask for _, files in kept for _, mask in files if mask is not None]
    put = iter(put_masks(job, masks))
    changes = []
    for output, files in kept:
        named = tuple(
            file if mask is None else replace(file, mask=replace(next(put), num_rows=mask.num_rows))
            for file, mask in files
        )
        changes.append(Replacement((output,), (replace(output, files=named),) if named else ()))
    return changes, totals


def _masked(
    file: PartitionedFile,
    index: PartitionedFileReader,
    rows: Mapping[int, Int64Array],
    totals: Totals,
) -> tuple[PartitionedFile, RowMask | None]:
    """Return a file without some rows, and its mask, if that is another; add to totals."""
    if not rows:
        return file, None
    n = index.metadata.num_subpartitions
    gone, num_broadcast = masked_subpartitions(rows, index.regions, n)
    totals[0][:] -= sum_totals([(gone, gone)], len(totals[0]))[0]
    left = replace(
        file,
        num_rows=file.num_rows - sum(map(len, rows.values())),
        num_broadcast_rows=file.num_broadcast_rows - num_broadcast,
    )
    return left, RowMask.of(rows) if index.mask is None else index.mask.united(rows)


def put_masks(job: ShuffleJob, masks: Sequence[RowMask]) -> list[Mask]:
    """Return where the frames of masks are, having put those that an entry does not have.

    Raises StorageError where they could not be put.
    """
    frames = [mask.encode() for mask in masks]
    inside = 0
    path = f"{job.directory}/{secrets.token_hex(6)}{MASKS_SUFFIX}"
    described, outside, offset = [], [], 0
    for frame in frames:
        length, crc32 = len(frame), zlib.crc32(frame)
        if length <= MAX_INSIDE_BYTES and inside + length <= MAX_INSIDE_TOGETHER:
            described.append(Mask(frame=frame, length=length, crc32=crc32))
            inside += length
        else:
            described.append(Mask(path=path, offset=offset, length=length, crc32=crc32))
            outside.append(frame)
            offset += length
    if outside:
        job.storage.put_if_absent(path, b"".join(outside), sync=job.options.sync)
    return described
