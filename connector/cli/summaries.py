"""Lines and tables of the command: plans, merges, collections, consumers, work, pending files."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from arrow_format.log.commit_log import CommitLog
from arrow_format.log.pending import pending_outputs
from arrow_format.read.presentation import count_of, format_bytes
from arrow_format.read.read_plan import plan_lines
from arrow_format.read.shuffle import check_there
from arrow_format.storage.open import open_storage
from arrow_format.write.merge_policy import SPARK_BYTES
from connector.cli.output import printable
from connector.options.text import duration_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from arrow_format.jobs.gc_files import GcReport
    from arrow_format.jobs.merge import MergePlan, MergeReport
    from arrow_format.read.explanation import ReadExplanation
    from arrow_format.streaming.consumption import ConsumerState
    from arrow_format.write.merge_policy import Facts, PlannedMerge


MAX_LINES = 200
"""Lines of a plan that are shown; ``--json`` has all."""


def read_plan_lines(explanation: ReadExplanation, shuffle_bytes: int) -> list[str]:
    """Describe the reads, their total of the version's ``shuffle_bytes``, and what is skipped.

    Only a filter skips anything.
    """
    plan = explanation.plan
    all_lines = plan_lines(plan)
    lines = [printable(line) for line in islice(all_lines, MAX_LINES)]
    left = sum(1 for _ in all_lines)
    if left:
        lines.append(f"... and {left:,} more lines; --json has all")
    total = (
        f"{count_of(len(plan.reads), 'read')} of {count_of(plan.num_chunks, 'chunk')}, "
        f"{format_bytes(plan.num_bytes)} of {format_bytes(shuffle_bytes)}"
    )
    why = [] if explanation.filter is None else ["", *str(explanation).splitlines()]
    return [*lines, total, *map(printable, why)]


def read_plan_as_json(explanation: ReadExplanation) -> dict[str, Any]:
    """Return reads, and what is kept and skipped, as values that ``json.dumps`` takes."""
    plan = explanation.plan
    return {
        "filter": explanation.filter,
        "steps": [asdict(step) for step in explanation.steps],
        "num_reads": len(plan.reads),
        "num_chunks": plan.num_chunks,
        "num_bytes": plan.num_bytes,
        "groups": [
            {
                "first": group.first,
                "end": group.end,
                "files": [
                    {
                        "path": file.path,
                        "map_task": file.map_task,
                        "attempt": file.attempt,
                        "reads": [
                            {
                                "ranges": [list(place) for place in read.ranges],
                                "chunks": [[c.region, c.chunk] for c in read.chunks],
                            }
                            for read in file.reads
                        ],
                    }
                    for file in group.files
                ],
            }
            for group in plan.groups
        ],
    }


MAX_MERGES = 20
"""Merges of a plan that are listed; ``--json`` lists all."""


def merge_plan_lines(plan: MergePlan) -> list[str]:
    """Describe what would be merged, a line for each merge."""
    where = f"{printable(plan.path)} version {plan.version}"
    if not plan.merges:
        return [f"{where}: nothing is worth merging"]
    lines = [f"{where}: {count_of(len(plan.merges), 'merge')} of {format_bytes(plan.num_bytes)}"]
    if plan.pieces is not None:
        lines[0] += f" by subpartition, into {count_of(plan.num_tasks, 'file')}"
    merges = list(zip(plan.merges, plan.facts, strict=True))
    lines += [_merge_line(merge, facts) for merge, facts in merges[:MAX_MERGES]]
    if len(merges) > MAX_MERGES:
        lines.append(f"  ... and {len(merges) - MAX_MERGES:,} more; --json lists all")
    return [*lines, *_advice(plan)]


def _advice(plan: MergePlan) -> list[str]:
    """Say where a job of Spark would do it better than this process."""
    if plan.num_bytes < SPARK_BYTES or plan.num_tasks == 1:
        return []
    by = "map_output" if plan.pieces is None else "subpartition"
    return [
        f"  This is {count_of(plan.num_tasks, 'task')} in one process; Spark does them "
        f"concurrently: arrow_shuffle.merge_shuffle(spark, path, by={by!r})"
    ]


def _merge_line(merge: PlannedMerge, facts: Facts) -> str:
    which = (
        f"map output {merge.first:,}"
        if merge.end - merge.first == 1
        else f"map outputs {merge.first:,} to {merge.end - 1:,}"
    )
    return (
        f"  {'rewrite' if merge.rewrite else 'append'} {which}: "
        f"{count_of(facts.num_files, 'file')}, {count_of(facts.num_regions, 'region')}, "
        f"{format_bytes(facts.data_bytes)}"
        + (
            f", {facts.masked_rows:,} of {facts.num_rows:,} rows masked"
            if facts.masked_rows
            else ""
        )
    )


def report_lines(report: MergeReport, seconds: float) -> list[str]:
    """Describe what was merged."""
    if not report.plan.merges:
        return merge_plan_lines(report.plan)
    first, *rest = report.lines
    return [f"{printable(report.plan.path)}: {first} ({seconds:.1f} s)", *rest]


def plan_as_json(plan: MergePlan) -> dict[str, Any]:
    """Return a plan as values that ``json.dumps`` takes."""
    return {
        "path": plan.path,
        "version": plan.version,
        "num_bytes": plan.num_bytes,
        "num_tasks": plan.num_tasks,
        "merges": [
            {**asdict(merge), **asdict(facts)}
            for merge, facts in zip(plan.merges, plan.facts, strict=True)
        ],
    }


def report_as_json(report: MergeReport) -> dict[str, Any]:
    """Return a report as values that ``json.dumps`` takes."""
    before, after = report.num_map_outputs
    return {
        "path": report.plan.path,
        "version": report.version,
        "merges": plan_as_json(report.plan)["merges"],
        "before": {"num_map_outputs": before, **asdict(report.before)},
        "after": {"num_map_outputs": after, **asdict(report.after)},
    }


MAX_FILES = 20
"""Files that are listed; ``--json`` lists all."""

MAX_JOBS = 8


def gc_lines(report: GcReport) -> list[str]:
    """Describe what was removed, or would be."""
    would = "would be " if report.dry_run else ""
    where = f"{printable(report.path)} (retention {duration_text(report.retention)})"
    lines = [
        f"{where}: {count_of(report.num_files, 'file')} of {format_bytes(report.num_bytes)} "
        f"{would}removed"
    ]
    if report.newest_version:
        lines.append(f"  versions  {_versions(report, would)}")
    else:
        lines.append("  versions  none committed yet")
    if report.released:
        lines.append(f"  result    {would}released: {printable(report.released)}")
        if report.dry_run:
            lines.append("            versions that this lets expire are not counted here")
    if report.fenced_jobs:
        lines.append(f"  jobs      {would}given up: {_listed(report.fenced_jobs)}")
    if report.running_jobs:
        lines.append(f"  jobs      unfinished, and left alone: {_listed(report.running_jobs)}")
    lines += [
        f"  {'kept by' if at == 0 else '':<8}  {printable(line)}"
        for at, line in enumerate(hold_lines(report))
    ]
    lines += [
        f"  {format_bytes(file.num_bytes):>9}  {printable(file.path)}"
        for file in report.files[:MAX_FILES]
    ]
    if report.num_files > MAX_FILES:
        lines.append(f"  ... and {report.num_files - MAX_FILES:,} more; --json lists all")
    return lines


def _versions(report: GcReport, would: str) -> str:
    oldest, newest = report.oldest_version, report.newest_version
    stay = f"{oldest:,}" if oldest == newest else f"{oldest:,} to {newest:,}"
    if not report.expired_versions:
        return f"{stay}; none expired"
    return f"{stay}; {would}expired: {count_of(len(report.expired_versions), 'version')}"


_REMEDIES = {
    "retention": "collect with a shorter --retention",
    "consumer": "'arrow-shuffle consumers --forget' one that will not come back",
    "tag": "'arrow-shuffle tag --remove' removes it",
    "pending": "'arrow-shuffle flush' makes a version of them",
}


def hold_lines(report: GcReport) -> list[str]:
    """Describe what keeps versions or entries of the log, and what would let go of them."""
    return [
        f"{hold}; {_REMEDIES[hold.by]}" if hold.by in _REMEDIES else str(hold)
        for hold in report.holds
    ]


def _listed(job_ids: tuple[str, ...]) -> str:
    shown = ", ".join(job_ids[:MAX_JOBS])
    return shown if len(job_ids) <= MAX_JOBS else f"{shown} and {len(job_ids) - MAX_JOBS:,} more"


def gc_as_json(report: GcReport) -> dict[str, Any]:
    """Return a report as values that ``json.dumps`` takes."""
    return {
        "path": report.path,
        "dry_run": report.dry_run,
        "retention_seconds": report.retention.total_seconds(),
        "oldest_version": report.oldest_version,
        "newest_version": report.newest_version,
        "expired_versions": list(report.expired_versions),
        "released": report.released,
        "fenced_jobs": list(report.fenced_jobs),
        "running_jobs": list(report.running_jobs),
        "holds": [asdict(hold) for hold in report.holds],
        "num_files": report.num_files,
        "num_bytes": report.num_bytes,
        "files": [{"path": file.path, "num_bytes": file.num_bytes} for file in report.files],
    }


def consumers_lines(path: str, consumers: Sequence[ConsumerState]) -> list[str]:
    """Describe the consumers of a shuffle, a line each."""
    lines = [f"{printable(path)}: {count_of(len(consumers), 'consumer')}"]
    name_width = max((len(consumer.name) for consumer in consumers), default=0)
    for consumer in consumers:
        left = (
            f"{count_of(consumer.unconsumed_versions, 'version')} of "
            f"{format_bytes(consumer.unconsumed_bytes)} before it"
            if consumer.unconsumed_versions
            else "nothing before it"
        )
        state = f"running, {printable(consumer.held_by)}" if consumer.held_by else "not running"
        lines.append(
            f"  {consumer.name:<{name_width}}  version {consumer.version:,}; {left}; {state}"
        )
    return lines


def consumers_as_json(path: str, consumers: Sequence[ConsumerState]) -> dict[str, Any]:
    """Return the consumers as values that ``json.dumps`` takes."""
    return {"path": path, "consumers": [asdict(consumer) for consumer in consumers]}


_STEPS = {
    "partition_ns": "finding subpartitions",
    "gather_ns": "collecting and gathering",
    "encode_ns": "encoding",
    "write_ns": "writing",
    "merge_ns": "merging",
}
_CAUSES = {
    "full_buffer_flushes": "full buffer",
    "switch_flushes": "change between one and all",
    "final_flushes": "end of a task",
    "large_row_flushes": "a row larger than the buffer",
}


def work_lines(counters: Mapping[str, int]) -> list[str]:
    """Describe where map tasks spent their time, and why they wrote regions.

    ``counters`` are sums of :class:`~arrow_format.write.counters.MapCounters`, some maybe missing.
    """
    lines = []
    times = {what: counters.get(name, 0) for name, what in _STEPS.items()}
    if total := sum(times.values()):
        shares = [f"{what} {ns / total:.0%}" for what, ns in times.items() if ns]
        lines.append(f"{total / 1e9:.1f} s in all: {', '.join(shares)}")
    flushes = [f"{what} {counters[name]:,}" for name, what in _CAUSES.items() if counters.get(name)]
    if flushes:
        lines.append(f"buffers written because of: {', '.join(flushes)}")
    if large := counters.get("large_batches", 0):
        lines.append(f"batches larger than the buffer: {large:,}")
    if failed := counters.get("failed_rewrites", 0):
        lines.append(f"map outputs whose regions could not be joined: {failed:,}")
    if failed := counters.get("failed_directories", 0):
        lines.append(f"directories given up, full or broken: {failed:,}")
    return lines


@dataclass(frozen=True, slots=True)
class PendingFacts:
    """What a stream with a flush interval has pending."""

    path: str
    num_commits: int
    num_rows: int
    """Rows written; a flush keeps the latest of each key."""
    num_bytes: int
    """Bytes of their data files."""


def pending_facts(path: str) -> PendingFacts:
    """Count the pending commits.

    Raises
    ------
    ShuffleError
        The path holds nothing, or the log cannot be read.
    """
    storage = open_storage(path)
    check_there(storage)
    log = CommitLog(storage)
    entries = log.read(partial(pending_outputs, log)).entries
    return PendingFacts(
        storage.root,
        len(entries),
        sum(entry.num_rows for entry in entries),
        sum(entry.num_bytes for entry in entries),
    )


def pending_text(facts: PendingFacts) -> str:
    """Describe what is pending in a few words."""
    return (
        f"{count_of(facts.num_commits, 'pending commit')} of {count_of(facts.num_rows, 'row')}, "
        f"{format_bytes(facts.num_bytes)}"
    )


def pending_lines(facts: PendingFacts) -> list[str]:
    """Describe a path that has pending commits and no version."""
    return [
        printable(facts.path),
        f"  no version yet; {pending_text(facts)}: 'arrow-shuffle flush' makes one",
    ]


def pending_as_json(facts: PendingFacts) -> dict[str, Any]:
    """Return the facts as values that ``json.dumps`` takes."""
    return {
        "path": facts.path,
        "version": None,
        "num_pending": facts.num_commits,
        "num_pending_rows": facts.num_rows,
        "num_pending_bytes": facts.num_bytes,
    }
