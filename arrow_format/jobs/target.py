"""Whether a job may write to its path: the write modes, and what may be appended to what."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from arrow_format.arrays.column_ids import renamed as renamed_schema
from arrow_format.arrays.schema_evolution import refusals
from arrow_format.arrays.spark_schema_evolution import (
    labelled_columns,
    rename_spark,
    spark_refusals,
)
from arrow_format.errors import (
    CommitConflictError,
    OptionError,
    SchemaError,
    ShuffleError,
    ShuffleExistsError,
    StorageError,
)
from arrow_format.jobs.cleanup import remove_files
from arrow_format.keys.partitioner import (
    HashPartitioner,
    Partitioner,
    key_columns,
    partitioner_from_description,
    renamed,
)
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.keys.row_identity import check_sequence
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.conflicts import check_expected, check_version_number
from arrow_format.log.names import CONSUMER_DIRECTORY, LOG_DIRECTORY, MAP_OUTPUT_DIRECTORY
from arrow_format.log.pending import last_pending
from arrow_format.log.result import describe_result
from arrow_format.options import keeps_rows, replaces_rows
from arrow_format.storage.protocol import ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.state import VersionShape


def check_target(
    job: ShuffleJob,
    mode: str,
    *,
    pending: bool = False,
    expected_version: int | None = None,
    has_bounds: bool = True,
) -> LogEntry | None:
    """Check the path against the write mode; return the newest version's entry, if any.

    ``pending`` says whether the job will commit as pending; without ``has_bounds`` it has none of
    its own yet, and is not compared with what is pending. Raises ShuffleExistsError where the
    path is a file, or holds something else than a shuffle, or a shuffle that the mode refuses;
    SchemaError or OptionError where the job does not fit the shuffle it is appended to, or what is
    pending; CommitConflictError where rows were changed after the expected version.
    """
    storage = job.storage
    check_version_number(expected_version)
    log = CommitLog(storage)
    view = job.view if job.view.last is not None else log.view()
    stat = None if view.last is not None else storage.stat("")
    if stat is not None and not stat.is_directory:
        msg = f"{storage.root}: is a file; give a directory for the shuffle"
        raise ShuffleExistsError(msg)
    check_expected(log, view, expected_version)
    try:
        newest = None if view.state.is_ended else log.newest_entry(view)
        waiting = last_pending(log, view)
    except ObjectNotFoundError as error:
        if log.view().newest == view.newest:
            raise
        msg = f"{storage.root}: the shuffle was removed while this job began; write again"
        raise CommitConflictError(msg) from error
    check_mode_allows(job, mode, newest)
    if has_bounds:
        check_fits_pending(job, waiting, mode, newest, pending=pending)
    check_can_wait(job, newest, pending=pending)
    return newest


def check_can_wait(job: ShuffleJob, newest: LogEntry | None, *, pending: bool) -> None:
    """Raise OptionError for a job that is to be pending where columns identify a row.

    What waits to be flushed is the latest row of each key of the partitioner, which is no identity.
    """
    unique = job.unique or (() if newest is None else newest.shape.unique_names)
    if pending and unique:
        msg = (
            f"{job.storage.root}: {', '.join(unique)} identify a row, and rows that wait to be "
            "flushed are reduced to one of each key of the partitioner; write without a flush "
            "interval"
        )
        raise OptionError(msg)


def check_mode_allows(job: ShuffleJob, mode: str, newest: LogEntry | None) -> None:
    """Check a write mode against the newest version; raises what :func:`check_target` raises.

    There is none where the result was released as a whole.
    """
    storage = job.storage
    unique = job.unique if newest is None else newest.shape.unique
    if mode == "upsert" and not unique:
        msg = (
            f"{storage.root}: mode='upsert': nothing identifies a row, so that none can be "
            "replaced; nothing was changed. Say which columns do at the first write "
            "(unique=[...])"
        )
        raise OptionError(msg)
    if mode == "upsert" and newest is not None:
        sequence = newest.shape.sequence_name
        if sequence is not None and sequence not in job.data_schema.names:
            msg = (
                f"{storage.root}: column {sequence!r} says which change of a row is the newest, "
                "and the rows have no such column; nothing was changed. Add it to them"
            )
            raise SchemaError(msg)
    if not keeps_rows(mode) or newest is None:
        check_sequence(job.data_schema, job.sequence_by, job.unique)
    if mode == "replace_groups" and not key_columns(job.partitioner):
        msg = (
            f"{storage.root}: mode='replace_groups': replaces rows by the keys of the partitioner, "
            f"and a {job.described_partitioner['kind']} has none; nothing was changed"
        )
        raise OptionError(msg)
    if newest is None:
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
            f"{storage.root}: there is a shuffle already (version {newest.version}); choose "
            "another path, or mode append, overwrite or ignore"
        )
        raise ShuffleExistsError(msg)
    elif keeps_rows(mode):
        if replaces_rows(mode) and newest.result.type.is_pipelined:
            msg = (
                f"{storage.root}: mode={mode!r}: is a {newest.result.type.name} result, whose "
                "consumers get the rows that are added, and never what replaces others; nothing "
                "was changed. Append to it, or keep what is replaced in a shuffle of its own"
            )
            raise OptionError(msg)
        _check_appendable(job, newest, newest)


def as_now_called(job: ShuffleJob, newest: LogEntry) -> ShuffleJob:
    """Return a job with the names that its columns have in the version it is appended to.

    It means the columns that had its names when it began. Raises CommitConflictError where one was
    dropped since, or where one of its new names was given to a column that was there then.
    """
    began, now = job.known.by_name, newest.columns.by_name
    called = {id_: name for name, id_ in now.items()}
    names = {}
    for name in job.data_schema.names:
        id_ = began.get(name)
        if id_ in called:
            names[name] = called[id_]
        elif id_ is not None:
            problem = "was dropped"
            break
        elif now.get(name) in began.values():
            problem = "became the name of another column"
            break
    else:
        if all(name == new for name, new in names.items()):
            return job
        return _renamed_job(job, names)
    msg = (
        f"{job.storage.root}: column {name!r} {problem} after this job began (version "
        f"{newest.version} is the newest now); nothing was committed. Write the rows again, with "
        "the columns that are there"
    )
    raise CommitConflictError(msg)


def _renamed_job(job: ShuffleJob, names: Mapping[str, str]) -> ShuffleJob:
    def of(name: str) -> str:
        return names.get(name, name)

    keys = key_columns(job.partitioner) or ()
    return replace(
        job,
        data_schema=renamed_schema(job.data_schema, names),
        spark_schema=rename_spark(job.spark_schema, names),
        partitioner=renamed(job.partitioner, {key: of(key) for key in keys}) or job.partitioner,
        sort_by=tuple((of(name), order) for name, order in job.sort_by),
        combine={of(name): function for name, function in job.combine.items()},
        unique=tuple(map(of, job.unique)),
        sequence_by=None if job.sequence_by is None else of(job.sequence_by),
        unlogged=tuple(map(of, job.unlogged)),
    )


def check_fits_pending(
    job: ShuffleJob,
    waiting: LogEntry | None,
    mode: str,
    newest: LogEntry | None,
    *,
    pending: bool,
) -> None:
    """Check that pending map outputs, if any, can be flushed together with a job, or after it.

    ``waiting`` is the entry of the last of them. That matters where the job is to be pending
    itself, starts the shuffle again, or may change its columns. Raises SchemaError or OptionError.
    """
    starts = mode == "overwrite" or newest is None
    if not (pending or starts or job.options.schema_evolution):
        return
    if waiting is None:
        return
    try:
        _check_appendable(job, waiting, None if starts else newest)
        if starts and not pending:
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


def _check_appendable(job: ShuffleJob, existing: LogEntry, newest: LogEntry | None) -> None:
    """Check that rows fit those of an entry; ``newest`` is the version that they are added to."""
    is_rescaled = newest is not None and newest.shape.rescaled_to is not None
    for difference in _differences(job, existing, any_number=is_rescaled):
        msg = f"{job.storage.root}: {difference}"
        raise SchemaError(msg)
    try:
        describe_result(job.options, job.owners, existing.result)
    except OptionError as error:
        msg = f"{job.storage.root}: {error}"
        raise OptionError(msg) from error


def _differences(job: ShuffleJob, existing: LogEntry, *, any_number: bool) -> Iterator[str]:
    """Yield why the rows of a job cannot be appended, if anything.

    With ``any_number`` files may have any number of subpartitions: a version is read by one that
    divides all, and a job may have begun before the shuffle was rescaled.
    """
    differing = list(
        refusals(
            existing.data_schema,
            job.data_schema,
            exact=_exact_columns(job, existing),
            evolves=job.options.schema_evolution,
        )
    )
    if differing:
        yield f"cannot append rows of another schema: {'; '.join(differing)}"
    differing = list(spark_refusals(existing.spark_schema, job.spark_schema))
    if differing:
        yield f"cannot append rows of other Spark types: {'; '.join(differing)}"
    if existing.num_subpartitions != job.num_subpartitions and not any_number:
        yield (
            f"has {existing.num_subpartitions} subpartitions; cannot append with "
            f"{job.num_subpartitions}; open_shuffle(path).rescale(n) gives new files another number"
        )
    ours, theirs = job.described_partitioner, existing.partitioner
    if dict(theirs) != ours and not _same_ranges(theirs, job.partitioner):
        yield (
            f"is partitioned by {_shown(theirs)}; cannot append rows partitioned by {_shown(ours)}"
        )
    if existing.sort_by != job.sort_by:
        yield (
            f"is sorted by {list(existing.sort_by)}; cannot append rows sorted by "
            f"{list(job.sort_by)}. Give the same sort_by"
        )
    identity = existing.shape.unique_names
    if job.unique and set(job.unique) != set(identity):
        yield (
            f"rows are identified by {', '.join(identity) or 'nothing'}; cannot append rows that "
            f"{', '.join(job.unique)} identify. Leave unique out; where another writer changed it "
            "meanwhile, write the rows again"
        )
    sequence = existing.shape.sequence_name
    if job.sequence_by is not None and sequence not in (None, job.sequence_by):
        yield (
            f"the newest change of a row is the one with the largest {sequence!r}, not with the "
            f"largest {job.sequence_by!r}. Leave sequence_by out"
        )
    if not _combines_alike(job, existing):
        yield (
            f"was written with combine={dict(existing.combine)}; cannot append rows with "
            f"combine={dict(job.combine)}. Give the same combine, or leave it to "
            "open_shuffle(path).append(source)"
        )


def _combines_alike(job: ShuffleJob, existing: LogEntry) -> bool:
    """Whether all columns of a job but the keys are combined as those of the existing shuffle."""
    if not existing.combine:
        return not job.combine
    keys = key_columns(job.partitioner) or ()
    functions = {name: job.combine.get(name) for name in job.data_schema.names if name not in keys}
    return functions.items() <= existing.combine.items()


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


def _exact_columns(job: ShuffleJob, existing: LogEntry) -> dict[str, str]:
    """Return the columns whose type no append may change, each with the reason."""
    partitioner = partitioner_from_description(existing.partitioner)
    keys = key_columns(partitioner)
    if keys is None:
        reason = f"the partitioner {_shown(existing.partitioner)} may place values of it otherwise"
        keys = tuple(existing.data_schema.names)
    elif isinstance(partitioner, HashPartitioner):
        reason = "it is a partition key, and equal values of other types have other hashes"
    else:
        reason = "it decides the subpartition of each row"
    labelled = labelled_columns(existing.spark_schema) | labelled_columns(job.spark_schema)
    return dict.fromkeys(labelled, "Spark has a type of its own for it") | dict.fromkeys(
        keys, reason
    )


def open_target(
    job: ShuffleJob, mode: str, *, expected_version: int | None = None
) -> LogEntry | None:
    """Check the target as :func:`check_target` does, and make the job's directories.

    A path that cannot be written then fails here, with StorageError, and not in every task.
    """
    newest = check_target(job, mode, expected_version=expected_version)
    if newest is None or mode != "ignore":
        try:
            job.make_directories()
        except BaseException as error:
            with contextlib.suppress(ShuffleError):
                remove_files(job)
            with contextlib.suppress(ShuffleError):
                job.storage.prune(job.directory, and_root=job.makes_root)
            if isinstance(error, ObjectNotFoundError):  # nothing committed is damaged
                raise StorageError(str(error)) from error
            raise
    return newest


def inherit_bounds(partitioner: Partitioner, existing: VersionShape | None) -> Partitioner:
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
    existing: VersionShape | None,
    mode: str,
    sample: Callable[[RangePartitioner], RangePartitioner],
) -> Partitioner:
    """Return a range partitioner without bounds with bounds for a write; others unchanged.

    An append takes the bounds of the existing shuffle. Otherwise ``sample`` gives the partitioner
    its bounds; it is called at most once, and only if the write can go on.
    """
    if not isinstance(partitioner, RangePartitioner) or partitioner.bounds is not None:
        return partitioner
    if existing is not None and mode in ("errorifexists", "ignore"):
        # Nothing will be written: the check of the mode says so, and needs no sample.
        return RangePartitioner(keys=partitioner.keys, bounds=[])
    inherited = inherit_bounds(partitioner, existing if keeps_rows(mode) else None)
    return sample(partitioner) if inherited is partitioner else inherited
