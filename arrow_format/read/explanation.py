"""What a read keeps and what it skips, step by step, and why; for people."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.read.presentation import count_of, scaled_note
from arrow_format.read.read_plan import PlannedGroup, ReadPlan, plan_group
from arrow_format.read.subpartition_reader import files_of
from arrow_format.report import Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from arrow_format.log.outputs import MapOutputs
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.read.chunk_plan import ChunkRead
    from arrow_format.read.chunk_reader import ChunkReader
    from arrow_format.read.selection import Selection
    from arrow_format.read.subpartition_reader import SortMergeSubpartitionReader

MOST_SHOWN = 5
"""Numbers of subpartitions that are shown of a file."""


@dataclass(frozen=True, slots=True)
class Kept:
    """How many of some units a read keeps, of all that it would read without a filter."""

    what: str
    """``subpartitions``, ``versions``, ``files``, ``regions``, ``chunks`` or ``bytes``."""
    kept: int
    total: int
    why: str
    """What decides; empty without a filter."""


@dataclass(frozen=True, slots=True)
class ReadExplanation(Report):
    """What a read keeps, what it skips, and why; ``str`` shows it as a table."""

    filter: str | None
    """The condition; None where all rows are read."""
    latest_by: str | None
    """The column by which the last row of each key is chosen before the condition; None: all rows
    are delivered that it is true for. To choose, it and the keys of all rows are read besides."""
    columns: tuple[str, ...]
    """Columns that are delivered."""
    deciding: tuple[str, ...]
    """Columns of the filter, decoded first; the others only of chunks in which a row is kept."""
    num_columns: int
    """Columns that the shuffle has."""
    steps: tuple[Kept, ...]
    """From the coarse to the fine."""
    plan: ReadPlan
    """The byte ranges that are read."""
    scaled: str | None = None
    """By how many subpartitions a version is read whose files have several numbers, or others than
    what it is joined with; None where all have the one that was asked for."""

    def _lines(self) -> Iterator[str]:
        if self.scaled is not None:
            yield self.scaled
        if self.latest_by is not None:
            yield f"the last row of each key by {self.latest_by}, which is read with the keys first"
        if self.filter is not None:
            yield f"where {self.filter}"
        yield f"{len(self.columns):,} of {self.num_columns:,} columns"
        if self.deciding:
            yield f"decoded first: {', '.join(self.deciding)}"
        width = max(len(f"{step.total:,}") for step in self.steps)
        for step in self.steps:
            count = f"{step.kept:>{width},} of {step.total:>{width},}"
            yield f"{step.what:<13} {count}  {step.why}".rstrip()


class Counts:
    """Counts what readers plan."""

    def __init__(self, num_files: int) -> None:
        self.files: NDArray[np.bool_] = np.zeros(num_files, np.bool_)
        """Whether each file, in reading order, has a chunk to read."""
        self.regions: set[tuple[int, int]] = set()
        self.chunks: dict[tuple[int, int], int] = {}
        """Bytes by file and offset."""
        self.of_opened: set[tuple[int, int]] = set()
        """Chunks that a read without a filter would read of the files that were opened."""

    def planned(
        self, reader: SortMergeSubpartitionReader
    ) -> Iterable[tuple[ChunkReader, list[ChunkRead]]]:
        """Yield the chunks of a reader by file, and count them."""
        for source, planned in reader.planned():
            chunks, file = list(planned), source.order
            self.files[file] |= bool(chunks)
            self.regions |= {(file, chunk.region) for chunk in chunks}
            self.chunks |= {(file, chunk.offset): chunk.num_bytes for chunk in chunks}
            every = source.every(reader.first, reader.end)
            self.of_opened |= {(file, chunk.offset) for chunk in every}
            yield source, chunks


def explain(
    snapshot: Snapshot,
    selection: Selection | None,
    asked: list[int] | None,
    columns: Sequence[str],
    readers: Iterable[SortMergeSubpartitionReader],
) -> ReadExplanation:
    """Explain a read; opens the indexes of the files that it reads.

    ``asked`` are the subpartitions asked for, ascending, all when None; ``readers`` read what
    ``selection`` leaves of them, in order.
    """
    newest, outputs = snapshot.newest, snapshot.map_outputs
    files = list(files_of(outputs))
    counts = Counts(len(files))
    groups: list[PlannedGroup] = [
        plan_group(reader.first, reader.end, counts.planned(reader)) for reader in readers
    ]
    wanted = np.arange(newest.num_subpartitions) if asked is None else np.array(asked, np.int64)
    first, end = (outputs.of_files(f"{side}_subpartition") for side in ("first", "end"))
    asked_of = np.searchsorted(wanted, end) > np.searchsorted(wanted, first)
    asked_of |= outputs.of_files("num_subpartitions") > newest.num_subpartitions
    version_of = np.array([file.output.position.version for file in files if file.output.position])
    left = wanted if selection is None else selection.among(wanted.tolist()) or ()

    def in_asked(of_file: str) -> int:
        return int(outputs.of_files(of_file)[asked_of].sum())

    def num_versions(is_in: NDArray[np.bool_]) -> int:
        return len(np.unique(version_of[is_in]))

    counted = {
        "subpartitions": (len(left), len(wanted)),
        "versions": (num_versions(counts.files), num_versions(asked_of)),
        "files": (int(counts.files.sum()), int(asked_of.sum())),
        "regions": (len(counts.regions), in_asked("num_regions")),
        "chunks": (len(counts.chunks), len(counts.of_opened)),
        "bytes": (sum(counts.chunks.values()), in_asked("data_bytes")),
    }
    why = {} if selection is None or selection.where is None else _deciding(selection)
    return ReadExplanation(
        filter=None if selection is None or selection.where is None else str(selection.where),
        latest_by=None if selection is None or selection.last is None else selection.last.of.by,
        columns=tuple(columns),
        deciding=() if selection is None else selection.columns,
        num_columns=len(newest.data_schema),
        steps=tuple(Kept(what, *kept, why.get(what, "")) for what, kept in counted.items()),
        plan=ReadPlan(tuple(groups), snapshot.num_bytes),
        scaled=_scaled(newest.num_subpartitions, outputs, newest.shape.rescaled_to),
    )


def _scaled(n: int, outputs: MapOutputs, rescaled_to: int | None) -> str | None:
    """Return by which number files of others are read, and what that means of one subpartition."""
    numbers = np.unique(outputs.of_files("num_subpartitions")).tolist()
    if not numbers or numbers == [n]:
        return scaled_note(n, rescaled_to)
    one = min(1, n - 1)
    parts = []
    for number in numbers:
        shown = [f"{i:,}" for i in range(one, number, n)]
        if len(shown) > MOST_SHOWN:
            shown[MOST_SHOWN - 1 :] = ["..."]
        parts.append(f"{', '.join(shown)} of {number:,}")
    note = scaled_note(n, rescaled_to) if gcd(*numbers) == n else None
    said = note or f"read by {count_of(n, 'subpartition')}"
    return f"{said}: {one} reads {' and '.join(parts)}"


def _deciding(selection: Selection) -> dict[str, str]:
    """Return what decides which units of each kind a filter keeps."""
    keys = "the filter asks for keys"
    if selection.of_keys is None:
        keys = "the filter asks for no keys"
    elif selection.subpartitions is None:
        keys = "the filter asks for keys, but not all files are marked as placed"
    columns = ", ".join(selection.columns)
    statistics = f"statistics of {columns}" if columns else "the filter itself"
    return {
        "subpartitions": keys,
        "versions": "those of the files",
        "files": statistics,
        "regions": "those of the chunks",
        "chunks": f"{statistics}; of the files that were opened",
    }
