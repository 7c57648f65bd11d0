"""Which versions name files of deleted rows, by few reads of the log.

Before the deletion these are some of those that can be opened; after it none, unless it was rolled
back. Then files that a merge or another deletion made of those that held the rows hold them too.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrow_format.arrays.buffers import text_array
from arrow_format.log.delta import Delta, compose, decoded
from arrow_format.log.names import checkpoints_after
from arrow_format.log.version_names import first_version
from arrow_format.storage.open import ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Collection

    from arrow_format.log.entry import LogEntry
    from arrow_format.log.outputs import MapOutputs
    from arrow_format.log.reader import LogReader, LogView


def first_holding(
    log: LogReader, view: LogView, keys: pa.Array, before: int, pending: Collection[int]
) -> int | None:
    """Return the first version before a number that has a map output of these keys, if any.

    ``pending`` are numbers of the log that have some, and are no versions.
    """
    first = first_version(log, view)
    if first is None or first.version >= before or not len(keys):
        return None
    if len(log.content_at(view, first).map_outputs.among(keys)):
        return first.version
    after = first.version
    restored = (number for number in view.state.restored if after < number < before)
    holding = [number for number in restored if len(log.record(number).map_outputs.among(keys))]
    ends = log.ended_jobs(view)
    jobs = text_array({key.rpartition("/")[0] for key in keys.to_pylist()})
    ended = ends.filter(pc.is_in(ends.column("job_id"), jobs)).column("number").to_pylist()
    holding += [number for number in ended if after < number < before and number not in pending]
    return min(holding, default=None)


def ranges_after(
    log: LogReader, view: LogView, keys: pa.Array, after: int
) -> tuple[list[tuple[int, int]], pa.Array]:
    """Return first and last of each range of versions from a number on that have such map outputs.

    Also the keys with those of the map outputs that were made of such ones.
    """
    first = first_version(log, view, after)
    if first is None:
        return [], keys
    held = Delta(log.content_at(view, first).map_outputs.among(keys))
    last, ranges = first, []
    begin = first.version if len(held.added) else None
    while last.version < view.newest:
        piece = _quiet_checkpoint(log, view, last, held.added) or log.record(last.version + 1)
        delta = piece.delta
        if len(held.added.among(decoded(delta.removed))):
            keys = pa.concat_arrays([keys, delta.added.keys])
        held = Delta(compose([held, delta]).added.among(keys))
        if begin is None and len(held.added):
            begin = piece.version
        elif begin is not None and not len(held.added):
            ranges.append((begin, last.state.version))
            begin = None
        last = piece
    return ranges if begin is None else [*ranges, (begin, view.state.version)], keys


def _quiet_checkpoint(
    log: LogReader, view: LogView, last: LogEntry, held: MapOutputs
) -> LogEntry | None:
    """Return the widest checkpoint that begins after an entry and leaves what is held as it is.

    None where there is none: the next entry may change it.
    """
    after = last.version
    for end in checkpoints_after(after, view.checkpoint):
        if any(after < number <= end for number in view.state.restored):
            continue
        with contextlib.suppress(ObjectNotFoundError):  # its writers died
            piece = log.checkpoint(end)
            span = piece.span
            kept = held.without(decoded(piece.delta.removed)).added_after(span.released)
            is_as_before = len(kept) == len(held) and not (span.clears and len(held))
            if (span.after, span.parent) == (after, last.commit_id) and is_as_before:
                return piece
    return None
