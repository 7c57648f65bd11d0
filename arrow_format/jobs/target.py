"""Whether a job may write to its path: the write modes, and what may be appended to what."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from arrow_format.arrays.schema_evolution import is_appendable, same_spark_type
from arrow_format.errors import (
    OptionError,
    SchemaError,
    ShuffleError,
    ShuffleExistsError,
    StorageError,
)
from arrow_format.keys.partitioner import Partitioner, partitioner_from_description
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.log.commit_log import CommitLog, Snapshot
from arrow_format.log.names import CONSUMER_DIRECTORY, LOG_DIRECTORY, MAP_OUTPUT_DIRECTORY
from arrow_format.log.pending import last_pending
from arrow_format.log.result import describe_result
from arrow_format.storage.local_dir_removal import clear_roots, remove_root_list
from arrow_format.storage.open import Place, open_storage
from arrow_format.storage.protocol import ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.log.entry import LogEntry


def check_target(job: ShuffleJob, mode: str, *, pending: bool = False) -> Snapshot | None:
    """Check the path against the write mode; return the newest version at it, if any.

    ``pending`` says whether the job will commit as pending. Raises ShuffleExistsError where the
    path is a file, or holds something else than a shuffle, or a shuffle that the mode refuses;
    SchemaError or OptionError where the job does not fit the shuffle it is appended to, or what is
    pending.
    """
    storage = job.storage
    stat = storage.stat("")
    if stat is not None and not stat.is_directory:
        msg = f"{storage.root}: is a file; give a directory for the shuffle"
        raise ShuffleExistsError(msg)
    log = CommitLog(storage)
    snapshot = log.snapshot()
    check_mode_allows(job, mode, snapshot)
    if pending or is_added_to(mode, snapshot):
        check_fits_pending(job, log, pending=pending)
    return snapshot


def check_mode_allows(job: ShuffleJob, mode: str, snapshot: Snapshot | None) -> None:
    """Check a write mode against the newest version; raises what :func:`check_target` raises."""
    storage = job.storage
    if snapshot is not None and snapshot.ended is not None:
        return
    if snapshot is None:
        own = {LOG_DIRECTORY, MAP_OUTPUT_DIRECTORY, CONSUMER_DIRECTORY}
        foreign = set(storage.list("")) - own
        if foreign:
            msg = (
                f"{storage.root}: holds {min(foreign)!r} and is not a shuffle; nothing was "
                "changed. Give a new or empty directory"
            )
            raise ShuffleExistsError(msg)
    elif mode == "errorifexists":
        msg = (
            f"{storage.root}: there is a shuffle already (version {snapshot.version}); choose "
            "another path, or mode append, overwrite or ignore"
        )
        raise ShuffleExistsError(msg)
    elif mode == "append":
        _check_appendable(job, snapshot.newest)


def is_added_to(mode: str, snapshot: Snapshot | None) -> bool:
    """Whether a job starts the shuffle again, so that what is pending will be added to it."""
    return mode == "overwrite" or snapshot is None or snapshot.ended is not None


def check_fits_pending(job: ShuffleJob, log: CommitLog, *, pending: bool) -> None:
    """Check that pending map outputs, if any, can be flushed together with a job, or after it.

    ``pending`` says whether the job is to be pending itself; otherwise it starts the shuffle again.
    Raises SchemaError or OptionError.
    """
    waiting = last_pending(log)
    if waiting is None:
        return
    try:
        _check_appendable(job, waiting)
        if not pending:
            _check_result_of_first(job, waiting)
    except (SchemaError, OptionError) as error:
        msg = (
            f"{error}. Rows that wait to be flushed have these: write with the same, or flush them "
            f"(arrow-shuffle flush {job.storage.root}) and overwrite the shuffle"
        )
        raise type(error)(msg) from error


def _check_result_of_first(job: ShuffleJob, waiting: LogEntry) -> None:
    """Check that the first version has the result type of what is pending."""
    made, kind = describe_result(job.options, job.owners, None).type, waiting.result.type
    if made is not kind:
        msg = f"{job.storage.root}: result type {made.name} is not {kind.name}"
        raise OptionError(msg)


def _check_appendable(job: ShuffleJob, existing: LogEntry) -> None:
    for difference in _differences(job, existing):
        msg = f"{job.storage.root}: {difference}"
        raise SchemaError(msg)
    try:
        describe_result(job.options, job.owners, existing.result)
    except OptionError as error:
        msg = f"{job.storage.root}: {error}"
        raise OptionError(msg) from error


def _differences(job: ShuffleJob, existing: LogEntry) -> Iterator[str]:
    """Yield why the rows of a job cannot be appended, if anything."""
    if not is_appendable(existing.data_schema, job.data_schema):
        types = {
            name: (_type_of(existing.data_schema, name), _type_of(job.data_schema, name))
            for name in (*existing.data_schema.names, *job.data_schema.names)
        }
        differing = "; ".join(
            f"{name}: {theirs} there, {ours} here"
            for name, (theirs, ours) in types.items()
            if theirs != ours
        )
        yield (
            "cannot append rows of another schema: "
            f"{differing or 'the columns are in another order'}"
        )
    if existing.spark_schema and job.spark_schema:
        ours, theirs = json.loads(job.spark_schema), json.loads(existing.spark_schema)
        if not same_spark_type(theirs, ours):
            yield (
                f"cannot append rows of other Spark types: {theirs['fields']} there, "
                f"{ours['fields']} here"
            )
    if existing.num_subpartitions != job.num_subpartitions:
        yield (
            f"has {existing.num_subpartitions} subpartitions; cannot append with "
            f"{job.num_subpartitions}"
        )
    # As the log gives it back: JSON knows no tuples.
    ours, theirs = json.loads(json.dumps(job.partitioner.describe())), existing.partitioner
    if dict(theirs) != ours and not _same_ranges(theirs, job.partitioner):
        yield (
            f"is partitioned by {_shown(theirs)}; cannot append rows partitioned by {_shown(ours)}"
        )
    if existing.sort_by != job.sort_by:
        yield (
            f"is sorted by {list(existing.sort_by)}; cannot append rows sorted by "
            f"{list(job.sort_by)}. Give the same sort_by"
        )


def _same_ranges(described: Mapping[str, Any], partitioner: Partitioner) -> bool:
    """Whether bounds are equal, though another release of a library compressed them otherwise."""
    return (
        isinstance(partitioner, RangePartitioner)
        and partitioner_from_description(described) == partitioner
    )


def _shown(described: Mapping[str, Any]) -> str:
    """Show a partitioner without the bounds' bytes."""
    if described.get("kind") == "range":
        return repr(partitioner_from_description(described))
    return repr(dict(described))


def _type_of(schema: pa.Schema, name: str) -> str:
    index = schema.get_field_index(name)
    return "absent" if index < 0 else str(schema.field(index).type)


def open_target(job: ShuffleJob, mode: str) -> Snapshot | None:
    """Check the target as :func:`check_target` does, and make the job's directories.

    A path that cannot be written then fails here, with StorageError, and not in every task.
    """
    snapshot = check_target(job, mode)
    if snapshot is not None and snapshot.ended is not None:
        snapshot = None
    if snapshot is None or mode != "ignore":
        try:
            job.make_directories()
        except BaseException as error:
            with contextlib.suppress(ShuffleError):
                clear_roots(job.local_roots, job.job_id)
                remove_root_list(job.storage, job.directory, job.local_roots)
            with contextlib.suppress(ShuffleError):
                job.storage.prune(job.directory, and_root=job.makes_root)
            if isinstance(error, ObjectNotFoundError):  # nothing committed is damaged
                raise StorageError(str(error)) from error
            raise
    return snapshot


def newest_entry(path: Place) -> LogEntry | None:
    """Return the newest log entry at a path; None without a shuffle, or if it was released."""
    storage = open_storage(path)
    stat = storage.stat("")
    if stat is None or not stat.is_directory:
        return None
    snapshot = CommitLog(storage).snapshot()
    return None if snapshot is None or snapshot.ended is not None else snapshot.newest


def inherit_bounds(partitioner: Partitioner, existing: LogEntry | None) -> Partitioner:
    """Return a range partitioner without bounds with those of the existing shuffle.

    Any other partitioner is returned unchanged, as is one without a shuffle or where that has no
    ranges of the same keys in the same order.
    """
    if not isinstance(partitioner, RangePartitioner) or partitioner.bounds is not None:
        return partitioner
    old = None if existing is None else partitioner_from_description(existing.partitioner)
    if isinstance(old, RangePartitioner) and old.keys == partitioner.keys:
        return old
    return partitioner


def settle_bounds(
    partitioner: Partitioner,
    path: Place,
    mode: str,
    sample: Callable[[RangePartitioner], RangePartitioner],
) -> Partitioner:
    """Return a range partitioner without bounds with bounds for a write; others unchanged.

    An append takes the bounds of the existing shuffle. Otherwise ``sample`` gives the partitioner
    its bounds; it is called at most once, and only if the write can go on.
    """
    if not isinstance(partitioner, RangePartitioner) or partitioner.bounds is not None:
        return partitioner
    existing = newest_entry(path)
    if existing is not None and mode in ("errorifexists", "ignore"):
        # Nothing will be written: the check of the mode says so, and needs no sample.
        return RangePartitioner(keys=partitioner.keys, bounds=[])
    inherited = inherit_bounds(partitioner, existing if mode == "append" else None)
    return sample(partitioner) if inherited is partitioner else inherited
