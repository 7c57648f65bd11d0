"""Merging the map outputs of a committed shuffle into a new version of the same rows.

The files of earlier versions are kept, and their readers go on. A merge that fails or dies leaves
the shuffle unchanged. It is planned and committed here; :mod:`arrow_format.jobs.merge_work` has
what its tasks do, wherever they run.
Source: FLIP-148, ``PartitionedFileMerger``; here after the commit as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from arrow_format.arrays.buffers import to_numpy
from arrow_format.errors import OptionError
from arrow_format.format.regions import RegionKind
from arrow_format.format.statistics import chosen_columns
from arrow_format.jobs.job import only_hashed
from arrow_format.jobs.merge_work import MapOutputMerges, SubpartitionMerge
from arrow_format.jobs.rebased_merge import RebasedMerge
from arrow_format.jobs.replacement import (
    Replacement,
    expiry_is_conflict,
    open_to_replace,
    replace_outputs,
)
from arrow_format.jobs.rescale import rescale_shuffle
from arrow_format.jobs.tombstones import merged as merged_tombstones
from arrow_format.jobs.tombstones import plan_tombstones
from arrow_format.keys.partitioner import partitioner_from_description
from arrow_format.log.conflicts import check_version_number
from arrow_format.options import (
    MERGE_BY,
    MIN_MEMORY_BYTES,
    MergeBy,
    ReadOptions,
    WriteOptions,
    check_choice,
    check_type,
    ignore,
)
from arrow_format.read.index_cache import IndexCache
from arrow_format.read.presentation import count_of, format_bytes
from arrow_format.report import Report, first_of
from arrow_format.storage.open import open_storage
from arrow_format.write.merge_policy import SPARK_BYTES, Facts, MergePolicy, PlannedMerge
from arrow_format.write.range_plan import Piece, plan_pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.jobs.merge_work import MergeWork
    from arrow_format.log.totals import Totals
    from arrow_format.model import MapOutput, MapStatus
    from arrow_format.read.shuffle import Shuffle
    from arrow_format.storage.open import Place


MAX_MERGES = 20
"""Merges of a plan that its text lists."""


@dataclass(frozen=True, slots=True)
class MergePlan(Report):
    """What merging the newest version would do."""

    path: str
    """Absolute path or URI of the shuffle."""
    version: int
    merges: tuple[PlannedMerge, ...]
    """Ranges of its map outputs, in reading order; empty when no merge is worth it."""
    facts: tuple[Facts, ...]
    """Of the inputs of each merge."""
    pieces: tuple[Piece, ...] | None = None
    """Of a merge by subpartition, which is one merge of all map outputs: the files that it makes
    of their rows. None of a merge by map output: one file for each."""
    num_tombstones: int = 0
    """Map outputs of keys that changes deleted, which it joins, or leaves out as expired."""

    @property
    def num_tasks(self) -> int:
        """Tasks that carry it out; each writes a file."""
        return len(self.merges) if self.pieces is None else len(self.pieces)

    @property
    def num_bytes(self) -> int:
        """Bytes of data to be merged."""
        return sum(facts.data_bytes for facts in self.facts)

    def _lines(self) -> Iterator[str]:
        where = f"{self.path} version {self.version}"
        if not self.merges and not self.num_tombstones:
            yield f"{where}: nothing is worth merging"
            return
        what = f"{count_of(len(self.merges), 'merge')} of {format_bytes(self.num_bytes)}"
        if self.pieces is not None:
            what += f" by subpartition, into {count_of(self.num_tasks, 'file')}"
        yield f"{where}: {what}"
        yield from first_of(map(_merge_line, self.merges, self.facts), MAX_MERGES)
        if self.num_tombstones:
            of_keys = count_of(self.num_tombstones, "map output")
            yield f"  join {of_keys} of deleted keys, and drop those that have expired"
        if self.num_bytes >= SPARK_BYTES and self.num_tasks > 1:
            by = "map_output" if self.pieces is None else "subpartition"
            yield (
                f"  This is {count_of(self.num_tasks, 'task')} in one process; Spark does them "
                f"concurrently: arrow_shuffle.open_shuffle(path).merge({by!r}, spark=spark)"
            )


def _merge_line(merge: PlannedMerge, facts: Facts) -> str:
    first, last = merge.first, merge.end - 1
    which = f"map output {first:,}" if first == last else f"map outputs {first:,} to {last:,}"
    masked = ""
    if facts.masked_rows:
        masked = f", {facts.masked_rows:,} of {facts.num_rows:,} rows masked"
    return (
        f"  {'rewrite' if merge.rewrite else 'append'} {which}: "
        f"{count_of(facts.num_files, 'file')}, {count_of(facts.num_regions, 'region')}, "
        f"{format_bytes(facts.data_bytes)}{masked}"
    )


@dataclass(frozen=True, slots=True)
class MergeReport(Report):
    """What a merge did.

    .. code-block:: python

        report = orders.merge(by="map_output")
        print(report.version, report.before.num_files, report.after.num_files)

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

    def _lines(self) -> Iterator[str]:
        if self.version == self.plan.version:
            yield str(self.plan)
            return
        yield f"{self.plan.path}: merged into version {self.version}"
        (outputs, new_outputs), old, new = self.num_map_outputs, self.before, self.after
        yield f"  map outputs  {outputs:,} -> {new_outputs:,}"
        yield f"  files        {old.num_files:,} -> {new.num_files:,}"
        yield f"  regions      {old.num_regions:,} -> {new.num_regions:,}"
        yield f"  data         {format_bytes(old.data_bytes)} -> {format_bytes(new.data_bytes)}"
        yield f"  index        {format_bytes(old.index_bytes)} -> {format_bytes(new.index_bytes)}"
        yield "  The files of versions before stay on disk until they expire; see arrow-shuffle gc."


def plan_merge(shuffle: Shuffle, policy: MergePolicy, by: MergeBy = "map_output") -> MergePlan:
    """Decide what to merge, from the log alone, unless only an index says what is broadcast.

    Raises OptionError for a policy that joins no regions, where they are to be joined.
    """
    check_choice("by", by, MERGE_BY)
    if by == "subpartition" and policy.rewrite == "never":
        msg = (
            "by='subpartition' joins regions, and the policy says rewrite='never'; leave one of "
            "them out"
        )
        raise OptionError(msg)
    plan = (_plan_map_outputs if by == "map_output" else _plan_subpartitions)(shuffle, policy)
    tombstones = plan_tombstones(shuffle.snapshot)
    if policy.rewrite == "never" or not (plan.merges or tombstones.is_due):
        return plan
    return replace(plan, num_tombstones=tombstones.num_outputs)


def _plan_map_outputs(shuffle: Shuffle, policy: MergePolicy) -> MergePlan:
    outputs, n = shuffle.map_outputs, shuffle.num_subpartitions
    wanted = shuffle.snapshot.newest.shape.new_subpartitions
    merges = policy.plan_version(outputs, n, None if wanted == n else wanted)
    facts = tuple(_facts(outputs[merge.first : merge.end]) for merge in merges)
    return MergePlan(shuffle.path, shuffle.version, merges, facts)


def _plan_subpartitions(shuffle: Shuffle, policy: MergePolicy) -> MergePlan:
    outputs, n = shuffle.map_outputs, shuffle.num_subpartitions
    wanted = shuffle.snapshot.newest.shape.new_subpartitions
    whole = _facts(outputs)
    scales = wanted != n and len(outputs) > 0 and _has_other_files(shuffle, wanted)
    if not policy.should_merge_by_subpartition(whole, n, scales=scales):
        return MergePlan(shuffle.path, shuffle.version, (), (), ())
    pieces = plan_pieces(
        _regions_of(shuffle),
        to_numpy(shuffle.subpartition_rows),
        to_numpy(shuffle.subpartition_bytes),
        policy.range_bytes(whole),
    )
    merge = PlannedMerge(rewrite=True, first=0, end=len(outputs))
    return MergePlan(shuffle.path, shuffle.version, (merge,), (whole,), pieces)


def _has_other_files(shuffle: Shuffle, num_subpartitions: int) -> bool:
    """Whether some files have other numbers of subpartitions, those of tombstones too."""
    numbers = shuffle.snapshot.all_outputs.of_files("num_subpartitions")
    return bool((numbers != num_subpartitions).any())


def _regions_of(shuffle: Shuffle) -> Iterator[tuple[RegionKind, int]]:
    """Yield the regions of a version, in reading order, each with its share of the stored bytes."""
    indexes = IndexCache(shuffle.storage)
    for output in shuffle.map_outputs:
        for file in output.files:
            kinds = [RegionKind.UNICAST] * file.num_regions
            if file.num_broadcast_rows:
                index = indexes.index_of(shuffle.snapshot.newest, output, file)
                kinds = [region.kind for region in index.regions]
            for number, kind in enumerate(kinds):
                before, after = (
                    file.data_bytes * edge // file.num_regions for edge in (number, number + 1)
                )
                yield kind, after - before


def _facts(outputs: Sequence[MapOutput]) -> Facts:
    return Facts.of(file for output in outputs for file in output.files)


def merge_shuffle(
    path: Place,
    *,
    by: MergeBy,
    policy: MergePolicy | None = None,
    options: WriteOptions | None = None,
    expected_version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    on_bytes: Callable[[int], None] = ignore,
) -> MergeReport:
    """Merge map outputs of the newest version in this process, where that is worth it.

    Parameters, result and errors are those of :meth:`arrow_shuffle.Shuffle.merge`.
    """

    def run(job: ShuffleJob, work: MergeWork) -> Iterator[MapStatus]:
        return (work.write(job, number, 0, on_bytes) for number in range(work.num_tasks))

    return merge_with(
        run,
        path,
        by=by,
        policy=policy,
        options=options,
        expected_version=expected_version,
        storage_options=storage_options,
    )


def merge_with(
    run: Callable[[ShuffleJob, MergeWork], Iterable[MapStatus]],
    path: Place,
    *,
    by: MergeBy,
    policy: MergePolicy | None,
    options: WriteOptions | None,
    expected_version: int | None,
    storage_options: Mapping[str, str] | None,
) -> MergeReport:
    """Merge as :func:`merge_shuffle`; ``run`` has every task of the work write its map output.

    It returns the status of one attempt of each.
    """
    policy, options = policy or MergePolicy(), options or WriteOptions()
    check_type("policy", policy, MergePolicy)
    check_type("options", options, WriteOptions)
    check_version_number(expected_version)
    reading = ReadOptions(memory_bytes=max(2 * options.sort_buffer_bytes, MIN_MEMORY_BYTES))
    shuffle = open_to_replace(open_storage(path, storage_options), expected_version, reading)
    plan = plan_merge(shuffle, policy, by)
    before = _facts(shuffle.map_outputs)
    wanted = shuffle.snapshot.newest.shape.new_subpartitions
    if not plan.merges and not plan.num_tombstones:
        count, version = len(shuffle.map_outputs), shuffle.version
        if wanted != shuffle.num_subpartitions and not _has_other_files(shuffle, wanted):
            # The last rows in files of another number were deleted, say.
            rescaling = rescale_shuffle(shuffle.storage, wanted, expected_version=expected_version)
            version = rescaling.version
        return MergeReport(plan, version, (count, count), before, before)
    nothing = MapOutputMerges(shuffle, (), policy.max_fan_in)
    work = _work_of(shuffle, plan, policy) if plan.merges else nothing

    def write(job: ShuffleJob) -> tuple[list[Replacement], Totals]:
        changes, added = work.replacements(job, run(job, work))
        if plan.num_tombstones:
            changes += merged_tombstones(shuffle.snapshot, job, work.num_tasks)
        return changes, added

    with expiry_is_conflict("merge", shuffle):
        replaced, merged = replace_outputs(
            "merge",
            shuffle,
            options,
            work.num_tasks,
            write,
            expected_version,
            fit=lambda job: RebasedMerge(shuffle.snapshot, job).fitted,
        )
    replaced, merged = replaced.readable(), merged.readable()
    return MergeReport(
        plan,
        merged.version,
        (len(replaced.map_outputs), len(merged.map_outputs)),
        _facts(replaced.map_outputs),
        _facts(merged.map_outputs),
    )


def _work_of(shuffle: Shuffle, plan: MergePlan, policy: MergePolicy) -> MergeWork:
    if plan.pieces is None:
        return MapOutputMerges(shuffle, plan.merges, policy.max_fan_in)
    outputs = shuffle.snapshot.map_outputs
    known = outputs.columns_with_statistics
    newest = shuffle.snapshot.newest
    by_name = newest.columns.by_name
    hashed = only_hashed(partitioner_from_description(newest.partitioner), newest.sort_by)
    numbers = {*chosen_columns(None, newest.data_schema, ())}
    if known.issuperset(by_name[name] for name in numbers.difference(hashed)):
        # As by default; of keys that are only hashed the log knows nothing.
        known = known | {by_name[name] for name in numbers.intersection(hashed)}
    statistics = tuple(name for name, id_ in by_name.items() if id_ in known)
    return SubpartitionMerge(shuffle, plan.pieces, statistics)
