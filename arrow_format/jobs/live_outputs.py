"""Which map outputs the log still names: those of versions, of tags, and what is pending."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrow_format.arrays.buffers import to_numpy, to_scalar
from arrow_format.concurrency import run_concurrently
from arrow_format.log.names import numbers_of
from arrow_format.log.outputs import MapOutputs, key_of
from arrow_format.log.pending import pending_outputs
from arrow_format.log.version_names import first_version
from arrow_format.storage.open import ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogReader, LogView
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.model import Int64Array, MapOutput


def live_outputs(log: LogReader, view: LogView, oldest: int) -> MapOutputs:
    """Return the map outputs of the oldest version, of tags, and what else needs their files.

    What versions after it add is not among them. Each is there once, however many name it.
    """
    pending = (entry.map_outputs for entry in pending_outputs(log, view).entries)
    return MapOutputs.concat([*_of_versions(log, view, oldest, view.newest), *pending]).once()


def _of_versions(log: LogReader, view: LogView, oldest: int, newest: int) -> Iterator[MapOutputs]:
    """Yield the map outputs of the oldest version, of tags, and of rollbacks, up to ``newest``."""
    return (outputs for _, outputs in _entries_of_versions(log, view, oldest, newest))


def _entries_of_versions(
    log: LogReader, view: LogView, oldest: int, newest: int
) -> Iterator[tuple[LogEntry, MapOutputs]]:
    """Yield them with the entry that each is of."""
    versions = [tag.version for tag in view.state.tags.values()]
    first = first_version(log, view)
    if first is not None:
        versions.append(max(oldest, first.version))
    for version in versions:
        if version <= newest:
            snapshot = log.version_at(view, version)
            yield snapshot.newest, snapshot.map_outputs
    for number in view.state.restored:
        if oldest < number <= newest:
            entry = log.record(number)
            yield entry, entry.map_outputs


def superseded_outputs(log: LogReader, view: LogView, version: Snapshot) -> list[MapOutput]:
    """Return map outputs of earlier versions and of tags that a version does not have.

    Its tombstones may be apart. Only entries are read of which the version lacks a map output.
    """
    ends = log.ended_jobs(view)
    number, outputs, fenced = (
        to_numpy(ends.column(name).combine_chunks()) for name in ("number", "num_outputs", "fenced")
    )
    is_added = (number > view.oldest) & (number <= version.version) & ~np.asarray(fenced, bool)
    there = version.all_outputs
    chosen = np.unique(number[is_added & (num_among(ends, there) < outputs)])
    entries = log.records(chosen.tolist()).values()
    named = [
        *_of_versions(log, view, view.oldest, version.version),
        *(entry.map_outputs for entry in entries if entry.is_version),
    ]
    lacking = {
        key_of(output): output for outputs_ in named for output in outputs_.without(there.keys)
    }
    return list(lacking.values())


class LostBounds(NamedTuple):
    """Values that the log has of the past alone: of files, and of shapes, that a version lacks."""

    of_files: dict[int, pa.Array]
    """Smallest and largest values by column, as they are stored; none that a file of now has."""
    of_shapes: list[Mapping[str, Any]]
    """Descriptions of other partitioners."""


def lost_bounds(
    log: LogReader, view: LogView, now: MapOutputs, partitioner: Mapping[str, Any]
) -> LostBounds:
    """Return what entries, bases and tags have of what a version has not.

    ``now`` are the map outputs of that version, and ``partitioner`` describes its own.
    """
    ends = log.ended_jobs(view)
    number, outputs = (
        to_numpy(ends.column(name).combine_chunks()) for name in ("number", "num_outputs")
    )
    chosen = {*number[(num_among(ends, now) < outputs) | (outputs == 0)].tolist()}
    # What ended in these may be forgotten by the base already.
    chosen.update(*map(numbers_of, log.segments_before(view)))
    past: list[tuple[LogEntry | None, MapOutputs]] = [
        *_entries_of_versions(log, view, view.oldest, view.newest)
    ]
    kept = sorted(number for number in chosen if number >= view.state.blank)
    past += [(entry, entry.map_outputs) for entry in _records_left(log.apart(), kept)]
    if view.state.base:  # of entries that are gone, it alone has what they added
        base = log.base(view.state.base)
        past.append((base, base.map_outputs))
    return lost_among(past, now, partitioner)


def lost_among(
    past: Sequence[tuple[LogEntry | None, MapOutputs]],
    now: MapOutputs,
    partitioner: Mapping[str, Any],
) -> LostBounds:
    """Return what map outputs and shapes of the past have of what a version has not."""
    known = now.bounds()
    lost: dict[int, list[pa.Array]] = defaultdict(list)
    for bounds in (named.without(now.keys).bounds() for _, named in past):
        for id_, values in bounds.items():
            is_known = pc.is_in(values, known.get(id_, values.slice(0, 0)))
            lost[id_].append(values.filter(pc.invert(is_known)))
    joined = {id_: pa.concat_arrays(parts).unique() for id_, parts in sorted(lost.items())}
    shapes = [
        shape for entry, _ in past if entry for shape in (entry.state.shape, entry.pending_shape)
    ]
    others: list[Mapping[str, Any]] = []
    for shape in shapes:
        if shape and shape.partitioner not in (partitioner, *others):
            others.append(shape.partitioner)
    return LostBounds({id_: values for id_, values in joined.items() if len(values)}, others)


def _records_left(log: LogReader, numbers: Sequence[int]) -> Iterator[LogEntry]:
    """Read entries, concurrently where each waits for a store, but for those that were removed."""

    def read(number: int) -> LogEntry | None:
        with contextlib.suppress(ObjectNotFoundError):  # its segment was removed
            return log.record(number)
        return None

    for start in range(0, len(numbers), log.max_requests):
        reads = [partial(read, number) for number in numbers[start : start + log.max_requests]]
        yield from filter(None, run_concurrently(reads, log.max_requests))


def num_among(ends: pa.Table, outputs: MapOutputs) -> Int64Array:
    """Return how many map outputs of each ended job are among some."""
    counts = outputs.table.column("job_id").combine_chunks().value_counts()
    at = pc.index_in(ends.column("job_id"), counts.field("values")).combine_chunks()
    nought = to_scalar(0, pa.int64())  # a number would be converted by what imports pandas
    return to_numpy(pc.fill_null(counts.field("counts").take(at), nought))
