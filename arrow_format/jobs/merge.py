"""Merging the map outputs of a committed shuffle into a new version of the same rows.

The files of earlier versions are kept, and their readers go on. A merge that fails or dies leaves
the shuffle unchanged. Source: FLIP-148, ``PartitionedFileMerger``; here after the commit as well.
"""

from __future__ import annotations

import contextlib
import secrets
import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from arrow_format.errors import CommitConflictError, CorruptShuffleError, OptionError, ShuffleError
from arrow_format.jobs.cleanup import abort_after, clean_up, remove_losers
from arrow_format.jobs.decision import decide_commit
from arrow_format.jobs.job import ShuffleJob
from arrow_format.log.commit_log import CommitLog, Snapshot
from arrow_format.log.entry import LogEntry, TotalsFile
from arrow_format.log.names import totals_path
from arrow_format.log.reader import has_expired
from arrow_format.log.snapshot import PlacedOutputs, Replacement, join_outputs, replace_outputs
from arrow_format.log.totals_file import encode_totals, put_totals
from arrow_format.model import FORMAT_VERSION, Int64Array, MapOutput
from arrow_format.options import WriteOptions
from arrow_format.read.index_cache import IndexCache
from arrow_format.read.shuffle import Shuffle, open_shuffle
from arrow_format.storage.local_dirs import WriteRoots, check_local_dirs
from arrow_format.write.counters import sum_counters
from arrow_format.write.merge_policy import Facts, MergePolicy, PlannedMerge
from arrow_format.write.merger import ignore, merge_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from arrow_format.keys.partitioner import Assign
    from arrow_format.storage.open import Place


@dataclass(frozen=True, slots=True)
class MergePlan:
    """What merging the newest version would do."""

    path: str
    """Absolute path or URI of the shuffle."""
    version: int
    merges: tuple[PlannedMerge, ...]
    """Ranges of its map outputs, in reading order; empty when no merge is worth it."""
    facts: tuple[Facts, ...]
    """Of the inputs of each merge."""

    @property
    def num_bytes(self) -> int:
        """Bytes of data to be merged."""
        return sum(facts.data_bytes for facts in self.facts)


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What a merge did.

    Parameters
    ----------
    plan
        What was to be merged.
    version
        The version it committed; the one it found when there was nothing to do.
    num_map_outputs
        Before and after; as seen in the version that was committed, appends included.
    before
        Sums over the files of the version that was replaced.
    after
        Sums over the files of the version that was committed.
    """

    plan: MergePlan
    version: int
    num_map_outputs: tuple[int, int]
    before: Facts
    after: Facts


def plan_merge(shuffle: Shuffle, policy: MergePolicy) -> MergePlan:
    """Decide what to merge, from the log alone."""
    outputs = shuffle.map_outputs
    merges = policy.plan_version(outputs, shuffle.num_subpartitions)
    facts = tuple(_facts(outputs[merge.first : merge.end]) for merge in merges)
    return MergePlan(shuffle.path, shuffle.version, merges, facts)


def _facts(outputs: Sequence[MapOutput]) -> Facts:
    return Facts.of(file for output in outputs for file in output.files)


def merge_shuffle(
    path: Place,
    *,
    policy: MergePolicy | None = None,
    options: WriteOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
    on_bytes: Callable[[int], None] = ignore,
) -> MergeReport:
    """Merge map outputs of the newest version, where that is worth it, into a new version.

    Rows, subpartitions and order of rows are kept. Earlier versions stay readable, and their files
    are kept.

    Parameters
    ----------
    path
        Directory or URI of the shuffle.
    policy
        What is worth it; the default policy when None.
    options
        Memory, chunk size, level, sync, and local directories to spread the new files over;
        defaults when None. Its codec is not used: files keep theirs.
    storage_options
        Of an object store: credentials, region, endpoint, as obstore names them. They win over the
        environment, and are never shown.
    on_bytes
        Called now and then with the bytes of input data that were merged since the last call;
        they add up to those of the plan.

    Returns
    -------
    MergeReport
        What was done; nothing when no merge was worth it.

    Raises
    ------
    ShuffleNotFoundError
        There is no shuffle.
    CorruptShuffleError, FormatVersionError
        A file to be merged is damaged or missing; nothing was changed.
    CommitConflictError
        Another writer overwrote or merged the inputs meanwhile; nothing was changed.
    StorageError, OutOfDiskError
        The files could not be written; nothing was changed.
    """
    policy, options = policy or MergePolicy(), options or WriteOptions()
    _check_type("policy", policy, MergePolicy)
    _check_type("options", options, WriteOptions)
    shuffle = open_shuffle(path, storage_options=storage_options)
    plan = plan_merge(shuffle, policy)
    before = _facts(shuffle.map_outputs)
    if not plan.merges:
        count = len(shuffle.map_outputs)
        return MergeReport(plan, shuffle.version, (count, count), before, before)
    job = _job(shuffle, options)
    try:
        job.make_directories()
        merge = _Merge(job, Snapshot(shuffle.entries), policy, on_bytes)
        replacements = [merge.run(number, planned) for number, planned in enumerate(plan.merges)]
        replaced, entry = commit_replacements(job, replacements, merge.added_bytes)
    except BaseException as error:
        abort_after(job, error)
        if isinstance(error, CorruptShuffleError) and has_expired(job.storage, shuffle.version):
            msg = (
                f"{job.storage.root}: version {shuffle.version} was superseded while it was "
                "merged, and removed by garbage collection. Nothing was changed; merge again"
            )
            raise CommitConflictError(msg) from error
        raise
    # The version is published: a failure from here on must not look like a failed merge.
    with contextlib.suppress(ShuffleError):
        remove_losers(job, entry.map_outputs)
    return MergeReport(
        plan,
        entry.version,
        (len(replaced.map_outputs), len(entry.map_outputs)),
        _facts(replaced.map_outputs),
        _facts(entry.map_outputs),
    )


def _check_type(name: str, value: object, expected: type) -> None:
    if not isinstance(value, expected):
        msg = f"{name} is {type(value).__name__}: expected arrow_format.{expected.__name__}"
        raise OptionError(msg)


@dataclass(frozen=True, slots=True)
class _Described:
    """The partitioner as the log describes it: a merge assigns no row to a subpartition."""

    description: Mapping[str, Any]

    def describe(self) -> dict[str, Any]:
        return dict(self.description)

    def check(self, schema: pa.Schema) -> None:
        del schema

    def bind(self, schema: pa.Schema, num_subpartitions: int, map_task: int) -> Assign:
        del schema, num_subpartitions, map_task
        msg = "a merge assigns no rows"
        raise OptionError(msg)


def _job(shuffle: Shuffle, options: WriteOptions) -> ShuffleJob:
    """Return a job whose map tasks are the merges."""
    newest = shuffle.entries[-1]
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


class _Merge:
    """Carries out the merges of a plan, one after the other."""

    def __init__(
        self,
        job: ShuffleJob,
        snapshot: Snapshot,
        policy: MergePolicy,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._job = job
        self._outputs = [
            (entry, output) for entry in snapshot.entries for output in entry.map_outputs
        ]
        self._max_fan_in = policy.max_fan_in
        self._on_bytes = on_bytes
        self._indexes = IndexCache(job.storage)
        self._roots = WriteRoots([job.storage, *job.open_local_roots()])
        self.added_bytes = np.zeros(job.num_subpartitions, np.int64)
        """Bytes per subpartition that the merged files have more than their inputs."""

    def run(self, number: int, planned: PlannedMerge) -> Replacement:
        """Write the map output of one merge."""
        started = time.perf_counter_ns()
        job = self._job
        inputs = self._outputs[planned.first : planned.end]
        name = f"{number:05d}-0-{secrets.token_hex(6)}-0"
        reported = 0

        def report(num_bytes: int) -> None:
            nonlocal reported
            reported += num_bytes
            self._on_bytes(num_bytes)

        merged = merge_files(
            [
                self._indexes.index_of(entry, output, file)
                for entry, output in inputs
                for file in output.files
            ],
            rewrite=planned.rewrite,
            max_fan_in=self._max_fan_in,
            roots=self._roots,
            path_in=lambda root: name if root else f"{job.directory}/{name}",
            metadata=job.metadata(number, 0),
            options=job.options,
            on_bytes=report,
        )
        # Bytes between chunks, and what the bytes of regions lost to rounding.
        self._on_bytes(sum(output.num_bytes for _, output in inputs) - reported)
        self.added_bytes += merged.added_bytes
        counters = sum_counters(output.counters for _, output in inputs) | {
            "num_regions": merged.file.num_regions,
            "stored_bytes": merged.file.data_bytes,
            "merge_ns": time.perf_counter_ns() - started,
        }
        output = MapOutput(job.job_id, number, 0, (merged.file,), counters)
        return Replacement(
            join_outputs([PlacedOutputs((source,), entry.roots) for entry, source in inputs]),
            PlacedOutputs((output,), job.local_roots),
        )


def commit_replacements(
    job: ShuffleJob, replacements: Sequence[Replacement], added_bytes: Int64Array
) -> tuple[Snapshot, LogEntry]:
    """Publish merged map outputs in the place of their inputs, as a version of the same rows.

    What another writer appended meanwhile is part of the new version, behind the rest.
    ``added_bytes`` are the bytes per subpartition that the merged files have more than their
    inputs. Returns the version that was replaced, and the new entry.

    Raises CommitConflictError where an input is not part of the newest version any more,
    StorageError where the entry could not be written, or may not survive a power failure, and
    UnsettledCommitError where the store did not answer: the merged files are kept, since the entry
    may still appear.
    """
    log = CommitLog(job.storage)
    rounds: list[tuple[Snapshot, LogEntry]] = []

    def decide(newest: Snapshot | None) -> LogEntry:
        if newest is None:
            msg = f"{job.storage.root}: the shuffle was removed; nothing was committed"
            raise CommitConflictError(msg)
        outputs = replace_outputs(PlacedOutputs.of(newest.entries), replacements)
        rows, sizes = log.totals(newest)
        if rounds:
            # Another writer was faster, and its rows are part of the totals now.
            job.storage.delete(rounds[-1][1].totals.path)
        commit_id = uuid.uuid4().hex
        totals = encode_totals(rows, without_negatives(sizes + added_bytes))
        entry = replace(
            newest.newest,
            version=0,
            operation="replace",
            job_id=job.job_id,
            commit_id=commit_id,
            committed_at_ms=time.time_ns() // 1_000_000,
            map_outputs=outputs.outputs,
            totals=TotalsFile.of(totals_path(job.job_id, commit_id), totals),
            roots=outputs.roots,
            transaction=None,
            released=None,
            flushed=None,
            format_version=FORMAT_VERSION,
            content=newest.newest.content_version,
        )
        rounds.append((newest, entry))
        put_totals(job.storage, entry, totals, sync=job.options.sync)
        return entry

    try:
        # No other process commits this job. But where this one is interrupted while its put is
        # under way, an abort must not remove what that put may still publish: it asks the decision.
        decide_commit(job, job.job_id)
        committed = log.append(
            decide, sync=job.options.sync, job_id=job.job_id, after=job.base_version
        )
    except BaseException as error:
        clean_up(job, log, rounds[-1][1].totals if rounds else None, error)
        raise
    replaced, entry = rounds[-1]
    return replaced, committed or entry


def without_negatives(sizes: Int64Array) -> Int64Array:
    """Return bytes per subpartition of the same sum, none of them negative.

    Each writer shares out the bytes of its files in its own way, so that a merge may save more of
    one subpartition than another writer had counted for it.
    """
    missing = -int(np.minimum(sizes, 0).sum())
    shared: Int64Array = np.maximum(sizes, 0)
    shared -= np.diff(np.minimum(np.cumsum(shared), missing), prepend=0)
    return shared
