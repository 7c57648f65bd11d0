"""Publishing map outputs in the place of others, as a version: for merges and deletions.

What another writer appended meanwhile stays, behind the rest. A failure leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from arrow_format.errors import CommitConflictError, CorruptShuffleError, OptionError, ShuffleError
from arrow_format.jobs.cleanup import abort_after, append_entry, remove_losers
from arrow_format.jobs.job import ShuffleJob
from arrow_format.log.commit_log import CommitLog, draft
from arrow_format.log.conflicts import Claims, check_needs
from arrow_format.log.delta import compose
from arrow_format.log.outputs import MapOutputs
from arrow_format.log.reader import has_expired
from arrow_format.log.snapshot import Snapshot
from arrow_format.storage.local_dirs import check_local_dirs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from arrow_format.keys.partitioner import Assign
    from arrow_format.log.delta import Totals
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogView
    from arrow_format.model import Int32Array, MapOutput
    from arrow_format.options import WriteOptions
    from arrow_format.read.shuffle import Shuffle


@dataclass(frozen=True, slots=True)
class Replacement:
    """Map outputs of a version, and what replaces them."""

    inputs: Sequence[MapOutput]
    """Of a merge adjacent, in reading order."""
    outputs: tuple[MapOutput, ...]
    """From the position of the first input on, in reading order; none where no row is left."""


@dataclass(frozen=True, slots=True)
class _Described:
    """The partitioner as the log describes it: rows that are kept stay where they are."""

    description: Mapping[str, Any]

    def describe(self) -> dict[str, Any]:
        return dict(self.description)

    def check(self, schema: pa.Schema) -> None:
        del schema

    def bind(self, schema: pa.Schema, num_subpartitions: int, map_task: int) -> Assign:
        del schema, num_subpartitions, map_task
        return _refuse


def _refuse(batch: pa.RecordBatch) -> Int32Array:
    del batch
    msg = "rows that are kept are assigned already"
    raise OptionError(msg)


def replacing_job(shuffle: Shuffle, options: WriteOptions) -> ShuffleJob:
    """Return a job whose map outputs replace some of a shuffle."""
    newest = shuffle.snapshot.newest
    storage = shuffle.storage
    check_local_dirs(storage.root, options.local_dirs)
    return ShuffleJob(
        storage=storage,
        job_id=uuid.uuid4().hex,
        shuffle_id=newest.shuffle_id,
        data_schema=newest.data_schema,
        spark_schema=newest.spark_schema,
        num_subpartitions=newest.num_subpartitions,
        partitioner=_Described(newest.partitioner),
        options=options,
        makes_root=False,
        base_version=newest.version,
        sort_by=newest.sort_by,
        has_directory=True,
    )


@contextlib.contextmanager
def expiry_is_conflict(operation: str, shuffle: Shuffle) -> Iterator[None]:
    """Replace a CorruptShuffleError by CommitConflictError where the version has expired."""
    try:
        yield
    except CorruptShuffleError as error:
        if not has_expired(shuffle.storage, shuffle.version):
            raise
        msg = (
            f"{shuffle.path}: version {shuffle.version} was superseded, and removed by garbage "
            f"collection meanwhile. Nothing was changed; {operation} again"
        )
        raise CommitConflictError(msg) from error


def replace_outputs(
    operation: str,
    shuffle: Shuffle,
    options: WriteOptions,
    write: Callable[[ShuffleJob], tuple[list[Replacement], Totals]],
    expected_version: int | None,
    complete: Callable[[LogEntry, LogView, Snapshot], LogEntry] | None = None,
) -> tuple[Snapshot, Snapshot]:
    """Write map outputs, and publish them in the place of others, as a version.

    ``write`` returns them, and the rows and bytes per subpartition that the new files have more
    than those they replace. What another writer appended meanwhile is part of the new version,
    behind the rest. ``expected_version`` is the version after which no other writer may have
    changed rows, if any. ``complete`` adds to the entry what is known once the version is that it
    replaces. Returns the version that was replaced, and the new one.

    On any failure what was written is removed. Raises CommitConflictError where an input is not
    part of the newest version any more, or rows were changed after the expected version;
    StorageError where the entry could not be written, or may not survive a power failure; and
    UnsettledCommitError where the store did not answer: the new files are kept, since the entry may
    still appear.
    """
    job = replacing_job(shuffle, options)
    try:
        job.make_directories()
        replacements, added = write(job)
        replaced, committed = _commit(
            operation, job, replacements, added, expected_version, complete
        )
    except BaseException as error:
        abort_after(job, error)
        raise
    # The version is published: a failure from here on must not look like a failed one.
    with contextlib.suppress(ShuffleError):
        remove_losers(job, committed.newest.map_outputs)
    return replaced, committed


def _commit(
    operation: str,
    job: ShuffleJob,
    replacements: Sequence[Replacement],
    added: Totals,
    expected_version: int | None,
    complete: Callable[[LogEntry, LogView, Snapshot], LogEntry] | None,
) -> tuple[Snapshot, Snapshot]:
    log = CommitLog(job.storage)
    replaced: Snapshot | None = None
    inputs = MapOutputs.of(chain.from_iterable(change.inputs for change in replacements))
    outputs = MapOutputs.of(chain.from_iterable(change.outputs for change in replacements))
    claims = Claims(expected_version, inputs)

    def decide(view: LogView) -> LogEntry:
        nonlocal replaced
        replaced = log.snapshot_of(view)
        check_needs(operation, log, view, claims, replaced.map_outputs if replaced else None)
        entry = draft(
            view,
            operation,
            job_id=job.job_id,
            map_outputs=outputs,
            removed=inputs.keys,
            totals=added,
        )
        assert replaced is not None  # else the above has raised
        return entry if complete is None else complete(entry, view, replaced)

    entry = append_entry(job, log, decide)
    assert entry is not None  # since decide returns an entry, or raises
    assert replaced is not None  # and has run before
    # Not read from the log, which may have been removed since.
    return replaced, Snapshot.of(entry, compose([replaced.whole, entry.delta]))
