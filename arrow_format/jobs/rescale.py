"""Another number of subpartitions for a shuffle that is there: one entry, and no file.

New files have the new number, old ones keep theirs, and a version is read by the largest number
that divides all: subpartition i of 8 is i and i + 8 of 16. A merge writes files of another number
again, so that in the end a version has the number that was asked for.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from arrow_format.errors import OptionError
from arrow_format.jobs.cleanup import publish
from arrow_format.jobs.recounted import more_than, totals_of_outputs
from arrow_format.keys.partitioner import HashPartitioner, partitioner_from_description
from arrow_format.log.commit_log import CommitLog, draft
from arrow_format.log.conflicts import Claims, check_needs, check_version_number
from arrow_format.log.entry import RESCALE
from arrow_format.options import check_num_subpartitions
from arrow_format.read.index_cache import IndexCache
from arrow_format.read.presentation import count_of, scaled_note
from arrow_format.read.shuffle import check_there
from arrow_format.report import Report
from arrow_format.storage.open import Place, Storage, open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from arrow_format.log.entry import LogEntry
    from arrow_format.log.outputs import MapOutputs
    from arrow_format.log.reader import LogReader, LogView
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.log.state import VersionShape


@dataclass(frozen=True, slots=True)
class Rescaling(Report):
    """What a rescale did.

    .. code-block:: python

        rescaling = orders.rescale(16)
        print(rescaling.version, rescaling.num_subpartitions)

    Parameters
    ----------
    path
        Absolute path or URI of the shuffle.
    version
        The new version; the one that was there, where nothing had to be done.
    num_subpartitions
        By which it is read.
    rescaled_to
        Subpartitions of the files of writes from now on.
    is_new
        Whether there is a new version: files had this number already, if not.
    """

    path: str
    version: int
    num_subpartitions: int
    rescaled_to: int
    is_new: bool

    def _lines(self) -> Iterator[str]:
        asked = count_of(self.rescaled_to, "subpartition")
        if not self.is_new:
            yield f"{self.path}: new files have {asked} already; nothing was changed"
        else:
            yield f"{self.path}: version {self.version}: new files have {asked}"
        note = scaled_note(self.num_subpartitions, self.rescaled_to)
        if note is not None:
            yield f"  {note}"


def rescale_shuffle(
    path: Place, num_subpartitions: int, *, expected_version: int | None = None
) -> Rescaling:
    """Give the files of later writes another number of subpartitions, as one version.

    Parameters, result and errors are those of :meth:`arrow_shuffle.Shuffle.rescale`.
    """
    wanted = check_num_subpartitions(num_subpartitions)
    check_version_number(expected_version)
    storage = open_storage(path)
    check_there(storage)
    log = CommitLog(storage)
    newest: LogEntry | None = None

    def decide(view: LogView) -> LogEntry | None:
        nonlocal newest
        check_needs(RESCALE, log, view, Claims(expected_version))
        snapshot = log.snapshot_of(view)
        assert snapshot is not None  # since there is a version
        problem = _problem(snapshot)
        if problem is not None:
            msg = f"{storage.root}: {problem}; nothing was changed"
            raise OptionError(msg)
        newest = snapshot.newest
        shape = replace(newest.shape, rescaled_to=wanted)
        outputs = snapshot.map_outputs
        entry = rescaled(storage, log, draft(view, RESCALE), shape, outputs, snapshot)
        is_same = entry.shape.num_subpartitions == newest.num_subpartitions
        return None if is_same and newest.shape.new_subpartitions == wanted else entry

    entry = publish(log, decide, f"new files have {wanted} subpartitions")
    now = entry or newest
    assert now is not None  # what was decided last had a version
    return Rescaling(
        storage.root, now.version, now.num_subpartitions, wanted, is_new=entry is not None
    )


def rescaled(
    storage: Storage,
    log: LogReader,
    entry: LogEntry,
    shape: VersionShape,
    outputs: MapOutputs,
    before: Snapshot,
) -> LogEntry:
    """Return the draft of an entry with the number of subpartitions that its version is read by.

    That is the largest which divides those of all of its map outputs, ``outputs``, and of new
    files. ``before`` is the version before it. Where it rises, totals are counted again: those that
    are there are by fewer subpartitions.
    """
    n = outputs.divisor(shape.new_subpartitions)
    shape = replace(shape, num_subpartitions=n)
    entry = replace(entry, state=replace(entry.state, shape=shape))
    counted = entry.totals
    is_finer = counted is None or len(counted[0]) % n == 0
    if before.newest.num_subpartitions % n == 0 and is_finer:
        return entry
    with_rows, _ = outputs.apart()
    # Of each try: masks that were made for it differ from none once they are committed.
    indexes = IndexCache(storage)
    totals = more_than(totals_of_outputs(log, entry, with_rows, indexes), before)
    return replace(entry, content=dataclasses.replace(entry.content, totals=totals))


def _problem(version: Snapshot) -> str | None:
    """Return why a shuffle can have no other number of subpartitions; None where it can."""
    shape = version.newest.shape
    partitioner = partitioner_from_description(shape.partitioner)
    instead = "overwrite the shuffle with num_subpartitions=..."
    if not isinstance(partitioner, HashPartitioner):
        return (
            f"rows are placed by {shape.partitioner['kind']!r}, and only a hash of keys says where "
            f"they belong among more or fewer subpartitions: {instead}"
        )
    if version.num_broadcast_rows:
        return (
            f"{count_of(version.num_broadcast_rows, 'row')} of it are broadcast, to as many "
            f"subpartitions as there are: {instead}"
        )
    if not version.map_outputs.placed.all():
        return (
            "some rows do not lie where the hash of their keys places them, so that it does not "
            f"say where they belong among more or fewer subpartitions: {instead}"
        )
    return None
