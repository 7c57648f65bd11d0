"""What a version becomes when some of its map outputs are replaced by merged ones: pure.

The list of map outputs is settled anew whenever another writer was faster: what was appended
meanwhile stays, behind; what was overwritten cannot be replaced any more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from arrow_format.errors import CommitConflictError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from arrow_format.log.entry import LogEntry
    from arrow_format.model import MapOutput


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


def join_outputs(several: Sequence[PlacedOutputs]) -> PlacedOutputs:
    """One list of map outputs, their roots numbered alike; roots of no file are left out."""
    numbers: dict[str, int] = {}

    def placed(output: MapOutput, roots: tuple[str, ...]) -> MapOutput:
        files = tuple(
            replace(file, root=numbers.setdefault(roots[file.root - 1], len(numbers) + 1))
            if file.root
            else file
            for file in output.files
        )
        return replace(output, files=files)

    outputs = tuple(placed(output, one.roots) for one in several for output in one.outputs)
    return PlacedOutputs(outputs, tuple(numbers))


@dataclass(frozen=True, slots=True)
class Replacement:
    """Adjacent map outputs of a version, and the one that takes their place."""

    inputs: PlacedOutputs
    output: PlacedOutputs
    """Exactly one."""


def replace_outputs(current: PlacedOutputs, replacements: Sequence[Replacement]) -> PlacedOutputs:
    """Put merged map outputs in the place of their inputs.

    Parameters
    ----------
    current
        All map outputs of the newest version.
    replacements
        Disjoint, in reading order; each with at least one input.

    Raises
    ------
    CommitConflictError
        The inputs are not there any more as they were, side by side.
    """
    outputs = list(current.outputs)
    # The same file of the same directory must compare equal, whatever numbers its roots had.
    parts = [one for change in replacements for one in (change.inputs, change.output)]
    joined = join_outputs([current, *parts])
    known = list(joined.outputs)
    outputs, rest = known[: len(outputs)], known[len(outputs) :]
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
                "newest version any more: the shuffle was overwritten or merged meanwhile. Nothing "
                "was changed; merge again if that is still wanted"
            )
            raise CommitConflictError(msg)
        result += [*outputs[start:at], merged]
        start = at + count
    result += outputs[start:]
    return join_outputs([PlacedOutputs(tuple(result), joined.roots)])
