"""Merging the map outputs of a committed shuffle into a new version of the same rows.

The files of earlier versions are kept, and their readers go on. A merge that fails or dies leaves
the shuffle unchanged. Source: FLIP-148, ``PartitionedFileMerger``; here after the commit as well.
"""

from __future__ import annotations

import contextlib
import secrets
import time
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from arrow_format.errors import CommitConflictError, CorruptShuffleError, OptionError, ShuffleError
from arrow_format.jobs.cleanup import abort_after, append_entry, remove_losers
from arrow_format.jobs.job import ShuffleJob
from arrow_format.log.commit_log import CommitLog, draft
from arrow_format.log.conflicts import Claims, check_expected, check_needs, check_version_number
from arrow_format.log.delta import compose
from arrow_format.log.outputs import MapOutputs
from arrow_format.log.reader import has_expired
from arrow_format.log.snapshot import Snapshot
from arrow_format.model import MapOutput
from arrow_format.options import WriteOptions, check_type
from arrow_format.read.index_cache import IndexCache
from arrow_format.read.shuffle import Shuffle, open_shuffle
from arrow_format.storage.local_dirs import WriteRoots, check_local_dirs
from arrow_format.write.counters import sum_counters
from arrow_format.write.merge_policy import Facts, MergePolicy, PlannedMerge
from arrow_format.write.merger import ignore, merge_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from arrow_format.keys.partitioner import Assign
    from arrow_format.log.delta import Totals
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogView
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
    expected_version: int | None = None,
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
    expected_version
        Merge only if no rows were added or taken away after that version; None: do not ask.
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
        Another writer overwrote or merged the inputs meanwhile, or changed rows after the expected
        version; nothing was changed.
    StorageError, OutOfDiskError
        The files could not be written; nothing was changed.
    """
    policy, options = policy or MergePolicy(), options or WriteOptions()
    check_type("policy", policy, MergePolicy)
    check_type("options", options, WriteOptions)
    check_version_number(expected_version)
    shuffle = open_shuffle(path, storage_options=storage_options)
    if expected_version is not None:  # the commit asks again
        log = CommitLog(shuffle.storage)
        log.read(lambda view: check_expected(log, view, expected_version))
    plan = plan_merge(shuffle, policy)
    before = _facts(shuffle.map_outputs)
    if not plan.merges:
        count = len(shuffle.map_outputs)
        return MergeReport(plan, shuffle.version, (count, count), before, before)

    def write(job: ShuffleJob) -> tuple[list[Replacement], Totals]:
        merge = _Merge(job, shuffle.snapshot, policy, on_bytes)
        replacements = [merge.run(number, planned) for number, planned in enumerate(plan.merges)]
        return replacements, (np.zeros(job.num_subpartitions, np.int64), merge.added_bytes)

    with expiry_is_conflict("merge", shuffle):
        replaced, merged = replace_outputs("merge", shuffle, options, write, expected_version)
    return MergeReport(
        plan,
        merged.version,
        (len(replaced.map_outputs), len(merged.map_outputs)),
        _facts(replaced.map_outputs),
        _facts(merged.map_outputs),
    )


@dataclass(frozen=True, slots=True)
class Replacement:
    """Map outputs of a version, and what replaces them."""

    inputs: tuple[MapOutput, ...]
    """Of a merge adjacent, in reading order."""
    output: MapOutput | None
    """At the position of the first input; None where no row is left."""


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
        self._version = snapshot.newest
        self._outputs = snapshot.map_outputs
        self._max_fan_in = policy.max_fan_in
        self._on_bytes = on_bytes
        self._indexes = IndexCache(job.storage)
        self._roots = WriteRoots(job.storage, job.open_local_roots())
        self.added_bytes = np.zeros(job.num_subpartitions, np.int64)
        """Bytes per subpartition that the merged files have more than their inputs."""

    def run(self, number: int, planned: PlannedMerge) -> Replacement:
        """Write the map output of one merge."""
        started = time.perf_counter_ns()
        job = self._job
        inputs = tuple(self._outputs[planned.first : planned.end])
        name = f"{number:05d}-0-{secrets.token_hex(6)}-0"
        reported = 0

        def report(num_bytes: int) -> None:
            nonlocal reported
            reported += num_bytes
            self._on_bytes(num_bytes)

        merged = merge_files(
            [
                self._indexes.index_of(self._version, output, file)
                for output in inputs
                for file in output.files
            ],
            rewrite=planned.rewrite,
            max_fan_in=self._max_fan_in,
            roots=self._roots,
            path_in=partial(job.path_in, name),
            metadata=job.metadata(number, 0),
            options=job.options,
            on_bytes=report,
        )
        # Bytes between chunks, and what the bytes of regions lost to rounding.
        self._on_bytes(sum(output.num_bytes for output in inputs) - reported)
        self.added_bytes += merged.added_bytes
        counters = sum_counters(output.counters for output in inputs) | {
            "num_regions": merged.file.num_regions,
            "stored_bytes": merged.file.data_bytes,
            "merge_ns": time.perf_counter_ns() - started,
        }
        positions = [output.position for output in inputs if output.position is not None]
        position = positions[0]._replace(last_version=max(one.last_version for one in positions))
        output = MapOutput(job.job_id, number, 0, (merged.file,), counters, position)
        return Replacement(inputs, output)


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
) -> tuple[Snapshot, Snapshot]:
    """Write map outputs, and publish them in the place of others, as a version.

    ``write`` returns them, and the rows and bytes per subpartition that the new files have more
    than those they replace. What another writer appended meanwhile is part of the new version,
    behind the rest. ``expected_version`` is the version after which no other writer may have
    changed rows, if any. Returns the version that was replaced, and the new one.

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
        replaced, committed = _commit(operation, job, replacements, added, expected_version)
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
) -> tuple[Snapshot, Snapshot]:
    log = CommitLog(job.storage)
    replaced: Snapshot | None = None
    inputs = MapOutputs.of([output for change in replacements for output in change.inputs])
    claims = Claims(expected_version, inputs)

    def decide(view: LogView) -> LogEntry:
        nonlocal replaced
        replaced = log.snapshot_of(view)
        check_needs(operation, log, view, claims, replaced.map_outputs if replaced else None)
        outputs = MapOutputs.of([change.output for change in replacements if change.output])
        return draft(
            view,
            operation,
            job_id=job.job_id,
            map_outputs=outputs,
            removed=inputs.keys,
            totals=added,
        )

    entry = append_entry(job, log, decide)
    assert entry is not None  # since decide returns an entry, or raises
    assert replaced is not None
    # Not read from the log, which may have been removed since.
    return replaced, Snapshot.of(entry, compose([replaced.whole, entry.delta]))
