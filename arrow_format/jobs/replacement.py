"""Publishing map outputs in the place of others, as a version: for merges and deletions.

What another writer appended meanwhile stays, behind the rest. A failure leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from arrow_format.errors import CommitConflictError, CorruptShuffleError, OptionError, ShuffleError
from arrow_format.jobs.cleanup import abort_after, append_entry, remove_losers
from arrow_format.jobs.job import ShuffleJob, only_hashed
from arrow_format.jobs.rescale import rescaled
from arrow_format.keys.partitioner import HashPartitioner, partitioner_from_description
from arrow_format.log.commit_log import CommitLog, draft
from arrow_format.log.conflicts import Claims, check_expected, check_inputs, check_needs
from arrow_format.log.delta import compose
from arrow_format.log.newest_version import NewestVersion
from arrow_format.log.outputs import NO_OUTPUTS, MapOutputs
from arrow_format.log.reader import has_expired
from arrow_format.log.snapshot import Snapshot
from arrow_format.read.shuffle import opened
from arrow_format.storage.credentials import check_end
from arrow_format.storage.local_dirs import check_local_dirs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from arrow_format.keys.partitioner import Assign, Partitioner
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogView
    from arrow_format.log.totals import Totals
    from arrow_format.model import Int32Array, MapOutput
    from arrow_format.options import ReadOptions, WriteOptions
    from arrow_format.read.shuffle import Shuffle
    from arrow_format.storage.open import Storage

    Fit = Callable[
        [Sequence["Replacement"], Totals, MapOutputs], tuple[Sequence["Replacement"], Totals]
    ]
    Complete = Callable[[LogEntry, LogView, Callable[[], Snapshot]], LogEntry]


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


def open_to_replace(
    storage: Storage, expected_version: int | None, options: ReadOptions | None = None
) -> Shuffle:
    """Open the newest version, and raise what is known already to keep a commit from following it.

    Raises as :func:`arrow_format.open_shuffle`, CommitConflictError after another version than the
    expected one, and FormatVersionError where only a newer release may write.
    """

    def look(log: CommitLog, view: LogView) -> Snapshot | None:
        newest = log.snapshot_of(view)
        if newest is not None and newest.ended is None:
            log.check_writers(view)
            check_expected(log, view, expected_version)
        return newest

    return opened(storage, look, options)


def replacing_job(
    shuffle: Shuffle, options: WriteOptions, num_map_tasks: int, *, scales: bool = False
) -> ShuffleJob:
    """Return a job whose map outputs replace some of a shuffle.

    With ``scales`` they have the number of subpartitions of new files, and where its version has
    another one, a partitioner places their rows.
    """
    newest = shuffle.snapshot.newest
    n = newest.shape.new_subpartitions if scales else newest.num_subpartitions
    partitioner: Partitioner = _Described(newest.partitioner)
    if n != newest.num_subpartitions:
        assert isinstance(shuffle.partitioner, HashPartitioner)  # or it was not rescaled
        partitioner = shuffle.partitioner
    storage = shuffle.storage
    check_end(storage.root, storage.options)
    check_local_dirs(storage.root, options.local_dirs)
    # Of a key of which the log has no bounds in a file that is replaced it is to have none.
    logged = shuffle.snapshot.map_outputs.columns_known_everywhere
    hashed = only_hashed(partitioner_from_description(newest.partitioner), newest.sort_by)
    return ShuffleJob(
        storage=storage,
        job_id=uuid.uuid4().hex,
        shuffle_id=newest.shuffle_id,
        data_schema=newest.data_schema,
        known=newest.columns,
        spark_schema=newest.spark_schema,
        num_subpartitions=n,
        partitioner=partitioner,
        options=replace(options, codec=newest.shape.codec),
        makes_root=False,
        base_version=newest.version,
        sort_by=newest.sort_by,
        unlogged=tuple(name for name in hashed if newest.columns.by_name[name] not in logged),
        num_map_tasks=num_map_tasks,
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
            f"{shuffle.path}: version {shuffle.version} was removed meanwhile: superseded, by "
            f"garbage collection, or with the shuffle. Nothing was changed; {operation} again"
        )
        raise CommitConflictError(msg) from error


def replace_outputs(
    operation: str,
    shuffle: Shuffle,
    options: WriteOptions,
    num_map_tasks: int,
    write: Callable[[ShuffleJob], tuple[list[Replacement], Totals]],
    expected_version: int | None,
    complete: Complete | None = None,
    fit: Callable[[ShuffleJob], Fit] | None = None,
) -> tuple[Snapshot, Snapshot]:
    """Write map outputs, and publish them in the place of others, as a version.

    ``write`` returns those of ``num_map_tasks``, and the rows and bytes per subpartition that the
    new files have more than those they replace. What another writer appended meanwhile is part of
    the new version, behind the rest. ``expected_version`` is the version after which no other
    writer may have changed rows, if any. ``complete`` adds to the draft of the entry what is known
    once its number is, of the log there and of the version that it replaces; to compose that takes
    time. ``fit`` makes of a job a function that fits replacements, and what they add to totals, to
    the map outputs of the newest version, where these are others. Returns the version that was
    replaced, and the new one.

    On any failure what was written is removed. Raises CommitConflictError where an input is not
    part of the newest version any more, or rows were changed after the expected version;
    StorageError where the entry could not be written, or may not survive a power failure; and
    UnsettledCommitError where the store did not answer: the new files are kept, since the entry may
    still appear.
    """
    job = replacing_job(shuffle, options, num_map_tasks, scales=operation == "merge")
    try:
        job.make_directories()
        replacements, added = write(job)
        replaced, committed = _commit(
            operation, job, replacements, added, expected_version, complete, fit
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
    complete: Complete | None,
    fit: Callable[[ShuffleJob], Fit] | None,
) -> tuple[Snapshot, Snapshot]:
    log = CommitLog(job.storage)
    current = NewestVersion(log)
    fitted = None if fit is None else fit(job)
    inputs = outputs = NO_OUTPUTS
    totals = added

    def decide(view: LogView) -> LogEntry:
        nonlocal inputs, outputs, totals
        check_needs(operation, log, view, Claims(expected_version))
        with current.look(view) as composed:
            if composed is not None:
                changes = replacements
                if fitted is not None:
                    changes, totals = fitted(replacements, added, composed.map_outputs)
                inputs = MapOutputs.of(chain.from_iterable(change.inputs for change in changes))
                outputs = MapOutputs.of(chain.from_iterable(change.outputs for change in changes))
                outputs = outputs.with_missing_columns(job.known, job.unlogged)
                check_inputs(log.root, composed.map_outputs, inputs)
            entry = draft(
                view,
                operation,
                job_id=job.job_id,
                map_outputs=outputs,
                removed=inputs.keys,
                totals=totals,
            )
            if operation == "merge" and entry.shape.rescaled_to is not None:
                before = current.version()
                left = MapOutputs.concat([before.map_outputs.without(inputs.keys), outputs])
                entry = rescaled(job.storage, log, entry, entry.shape, left, before)
            return entry if complete is None else complete(entry, view, current.version)

    entry = append_entry(job, log, decide)
    assert entry is not None  # since decide returns an entry, or raises
    # Not read from the log, which may have been removed since.
    replaced = current.version()
    return replaced, Snapshot.of(entry, compose([replaced.whole, entry.delta]))
