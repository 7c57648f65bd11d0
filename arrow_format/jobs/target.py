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
from arrow_format.options import check_mode
from arrow_format.storage.local_dir_removal import clear_roots, remove_root_list
from arrow_format.storage.open import open_storage
from arrow_format.storage.protocol import ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.log.entry import LogEntry
    from arrow_format.storage.open import Place


def check_target(job: ShuffleJob, mode: str, *, pending: bool = False) -> Snapshot | None:
    """Check the path against the write mode; return the newest version there, if any.

    Parameters
    ----------
    job, mode
        Who writes, and how.
    pending
        Whether it is to be pending when it is committed, with what is so already.

    Raises
    ------
    ShuffleExistsError
        The path is a file, holds something that is no shuffle, or a shuffle where the mode wants
        none.
    SchemaError
        Mode append, or what is pending, with this or to be added to it: schema, partitioner or
        number of subpartitions differ.
    """
    check_mode(mode)
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
        foreign = set(storage.list("")) - {
            LOG_DIRECTORY,
            MAP_OUTPUT_DIRECTORY,
            CONSUMER_DIRECTORY,
        }
        if foreign:
            msg = (
                f"{storage.root}: holds {min(foreign)!r} and is no shuffle; nothing was touched. "
                "Give a new or empty directory"
            )
            raise ShuffleExistsError(msg)
    elif mode == "errorifexists":
        msg = (
            f"{storage.root}: there is a shuffle already (version {snapshot.version}); choose "
            "another path, or mode append, overwrite or ignore"
        )
        raise ShuffleExistsError(msg)
    elif mode == "append":
        _check_appendable(job, snapshot)


def is_added_to(mode: str, snapshot: Snapshot | None) -> bool:
    """Whether what is pending is to be added to what a job makes: all that is there then."""
    return mode == "overwrite" or snapshot is None or snapshot.ended is not None


def check_fits_pending(job: ShuffleJob, log: CommitLog, *, pending: bool) -> None:
    """Check that what is pending, if anything is, can be flushed together with a job, or after it.

    Parameters
    ----------
    job, log
        The job and the log.
    pending
        Whether it is to be pending itself; otherwise it makes all that is there.

    Raises
    ------
    SchemaError, OptionError
        Its schema, partitioner, number of subpartitions or result type is another.
    """
    there = last_pending(log)
    if there is None:
        return
    try:
        _check_appendable(job, Snapshot((there,)))
        if not pending:
            _check_result_of_first(job, there)
    except (SchemaError, OptionError) as error:
        msg = (
            f"{error}. That is what waits to be flushed: write as it was written, or flush it "
            f"(arrow-shuffle flush {job.storage.root}) and overwrite the shuffle"
        )
        raise type(error)(msg) from error


def _check_result_of_first(job: ShuffleJob, waiting: LogEntry) -> None:
    """Check that the first version is of the type that what waits is to be added to."""
    made, kind = describe_result(job.options, job.owners, None).type, waiting.result.type
    if made is not kind:
        msg = f"{job.storage.root}: result type {made.name} is not {kind.name}"
        raise OptionError(msg)


def _check_appendable(job: ShuffleJob, snapshot: Snapshot) -> None:
    there = snapshot.newest
    if not is_appendable(there.data_schema, job.data_schema):
        differing = [
            f"{name}: {_field(there.data_schema, name)} there, {_field(job.data_schema, name)} here"
            for name in dict.fromkeys([*there.data_schema.names, *job.data_schema.names])
            if _field(there.data_schema, name) != _field(job.data_schema, name)
        ]
        found = "; ".join(differing) or "the columns stand in another order"
        msg = f"{job.storage.root}: cannot append rows of another schema: {found}"
        raise SchemaError(msg)
    if there.spark_schema and job.spark_schema:
        ours, theirs = json.loads(job.spark_schema), json.loads(there.spark_schema)
        if not same_spark_type(theirs, ours):
            msg = (
                f"{job.storage.root}: cannot append rows of other Spark types: {theirs['fields']} "
                f"there, {ours['fields']} here"
            )
            raise SchemaError(msg)
    if there.num_subpartitions != job.num_subpartitions:
        msg = (
            f"{job.storage.root}: has {there.num_subpartitions} subpartitions; cannot append with "
            f"{job.num_subpartitions}"
        )
        raise SchemaError(msg)
    # As the log gives it back: JSON knows no tuples.
    here = json.loads(json.dumps(job.partitioner.describe()))
    if dict(there.partitioner) != here and not _same_ranges(there.partitioner, job.partitioner):
        msg = (
            f"{job.storage.root}: is partitioned by {_shown(there.partitioner)}; cannot append "
            f"rows partitioned by {_shown(here)}"
        )
        raise SchemaError(msg)
    if there.sort_by != job.sort_by:
        msg = (
            f"{job.storage.root}: is sorted by {list(there.sort_by)}; cannot append rows sorted by "
            f"{list(job.sort_by)}. Give the same sort_by"
        )
        raise SchemaError(msg)
    try:
        describe_result(job.options, job.owners, there.result)
    except OptionError as error:
        msg = f"{job.storage.root}: {error}"
        raise OptionError(msg) from error


def _same_ranges(described: Mapping[str, Any], partitioner: Partitioner) -> bool:
    """Whether bounds are equal that another release of a library compressed otherwise."""
    return (
        isinstance(partitioner, RangePartitioner)
        and partitioner_from_description(described) == partitioner
    )


def _shown(described: Mapping[str, Any]) -> str:
    """Show a partitioner without the bounds' bytes."""
    if described.get("kind") == "range":
        return repr(partitioner_from_description(described))
    return repr(dict(described))


def _field(schema: pa.Schema, name: str) -> str:
    index = schema.get_field_index(name)
    return "absent" if index < 0 else str(schema.field(index).type)


def open_target(job: ShuffleJob, mode: str) -> Snapshot | None:
    """Check the target and make the job's directories.

    So that a path that cannot be written fails here and not in every task; raises what
    :func:`check_target` raises, and StorageError.
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
    """Newest log entry at a path; None when there is no shuffle, or it was released."""
    storage = open_storage(path)
    stat = storage.stat("")
    if stat is None or not stat.is_directory:
        return None
    snapshot = CommitLog(storage).snapshot()
    return None if snapshot is None or snapshot.ended is not None else snapshot.newest


def inherit_bounds(partitioner: Partitioner, there: LogEntry | None) -> Partitioner:
    """Give a range partitioner without bounds those of the shuffle that is there.

    Parameters
    ----------
    partitioner
        Any; only a range partitioner without bounds is changed.
    there
        Newest log entry of the shuffle.

    Returns
    -------
    Partitioner
        As it was when there is no shuffle, or it has no ranges of the same keys in the same order.
    """
    if not isinstance(partitioner, RangePartitioner) or partitioner.bounds is not None:
        return partitioner
    old = None if there is None else partitioner_from_description(there.partitioner)
    if isinstance(old, RangePartitioner) and old.keys == partitioner.keys:
        return old
    return partitioner


def settle_bounds(
    partitioner: Partitioner,
    path: Place,
    mode: str,
    sample: Callable[[RangePartitioner], RangePartitioner],
) -> Partitioner:
    """Give a range partitioner its bounds before a write: those that are there, or from a sample.

    Parameters
    ----------
    partitioner
        Any; only a range partitioner without bounds is changed.
    path
        Where the shuffle will be written.
    mode
        The write mode. An append takes the bounds of the shuffle that is there.
    sample
        Called at most once, and only if the write can go on: gives the partitioner its bounds.

    Raises
    ------
    CorruptShuffleError, FormatVersionError
        The commit log at the path cannot be read.
    """
    if not isinstance(partitioner, RangePartitioner) or partitioner.bounds is not None:
        return partitioner
    there = newest_entry(path)
    if there is not None and mode in ("errorifexists", "ignore"):
        # Nothing will be written: whoever checks the mode says so, and needs no sample for it.
        return RangePartitioner(keys=partitioner.keys, bounds=[])
    inherited = inherit_bounds(partitioner, there if mode == "append" else None)
    return sample(partitioner) if inherited is partitioner else inherited
