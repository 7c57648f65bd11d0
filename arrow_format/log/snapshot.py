"""A version as the log entries that make it up, and its map outputs in reading order: pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from arrow_format.errors import CommitConflictError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from arrow_format.log.entry import LogEntry
    from arrow_format.log.result import Released
    from arrow_format.model import MapOutput


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Which rows to read: all of one version, and those that versions after another one added."""

    base: int
    """The version whose rows are all read; 0 for none."""
    start: int
    """Versions after this one, up to :attr:`end`, give the rows they added; a merge adds none."""
    end: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One committed version of a shuffle, pinned: later commits do not change it."""

    entries: tuple[LogEntry, ...]
    """From the entry that started this version, or a checkpoint that replaces the first of them,
    to the one that completed it. With a span: those that added its rows, and last the one of
    :attr:`VersionSpan.end`, without map outputs where it added none."""
    span: VersionSpan | None = None
    """Which rows of the log these are; None: all of a version."""

    @property
    def is_version(self) -> bool:
        """Whether these are all rows of a version, which a checkpoint may hold as one entry."""
        return self.span is None and self.entries[0].is_whole

    @property
    def oldest_needed(self) -> int:
        """The oldest version that must not expire while these rows are read."""
        if self.span is None:
            return self.version
        return self.span.base or self.entries[0].version

    @property
    def newest(self) -> LogEntry:
        """The entry of this version."""
        return self.entries[-1]

    @property
    def version(self) -> int:
        """Number of this version, from 1."""
        return self.newest.version

    @property
    def ended(self) -> Released | None:
        """How the result was released as a whole; None of a result that can be read."""
        released = self.newest.released
        return released if released is not None and released.ended else None

    @property
    def map_outputs(self) -> tuple[MapOutput, ...]:
        """All map outputs in reading order: by version, then map task."""
        return tuple(output for entry in self.entries for output in entry.map_outputs)

    @property
    def num_rows(self) -> int:
        """Rows of this version."""
        return sum(entry.num_rows for entry in self.entries)

    @property
    def num_bytes(self) -> int:
        """Bytes of its data files."""
        return sum(entry.num_bytes for entry in self.entries)


@dataclass(frozen=True, slots=True)
class PlacedOutputs:
    """Map outputs of several jobs, in reading order, with the directories they all refer to."""

    outputs: tuple[MapOutput, ...]
    roots: tuple[str, ...]
    """Directories of the roots 1, 2, ... of their files."""

    @staticmethod
    def of(entries: Iterable[LogEntry]) -> PlacedOutputs:
        """Map outputs of a version."""
        return join_outputs([PlacedOutputs(entry.map_outputs, entry.roots) for entry in entries])


def join_outputs(lists: Sequence[PlacedOutputs]) -> PlacedOutputs:
    """Concatenate map outputs and renumber their roots; roots without a file are dropped."""
    numbers: dict[str, int] = {}

    def placed(output: MapOutput, roots: tuple[str, ...]) -> MapOutput:
        files = tuple(
            replace(file, root=numbers.setdefault(roots[file.root - 1], len(numbers) + 1))
            if file.root
            else file
            for file in output.files
        )
        return replace(output, files=files)

    outputs = tuple(placed(output, part.roots) for part in lists for output in part.outputs)
    return PlacedOutputs(outputs, tuple(numbers))


@dataclass(frozen=True, slots=True)
class Replacement:
    """Adjacent map outputs of a version, and the merged one that replaces them."""

    inputs: PlacedOutputs
    output: PlacedOutputs
    """Exactly one."""


def replace_outputs(current: PlacedOutputs, replacements: Sequence[Replacement]) -> PlacedOutputs:
    """Replace map outputs of the newest version by merged ones: ``replacements`` in reading order.

    A merge calls this again whenever another writer was faster: what that writer appended stays,
    behind; what it overwrote cannot be replaced any more. Raises CommitConflictError where inputs
    are no longer in the newest version, unchanged and adjacent.
    """
    # The same file of the same directory must compare equal, whatever numbers its roots had.
    parts = [part for change in replacements for part in (change.inputs, change.output)]
    joined = join_outputs([current, *parts])
    outputs = list(joined.outputs[: len(current.outputs)])
    rest = list(joined.outputs[len(outputs) :])
    result: list[MapOutput] = []
    start = 0
    for change in replacements:
        count = len(change.inputs.outputs)
        inputs, (merged,), rest = rest[:count], rest[count : count + 1], rest[count + 1 :]
        try:
            at = outputs.index(inputs[0], start)
        except ValueError:
            at = -1
        if at < 0 or outputs[at : at + count] != inputs:
            msg = (
                f"map output {inputs[0].map_task} of job {inputs[0].job_id} is not part of the "
                "newest version any more: another writer overwrote or merged the shuffle "
                "meanwhile. Nothing was changed; merge again if that is still wanted"
            )
            raise CommitConflictError(msg)
        result += [*outputs[start:at], merged]
        start = at + count
    result += outputs[start:]
    return join_outputs([PlacedOutputs(tuple(result), joined.roots)])
