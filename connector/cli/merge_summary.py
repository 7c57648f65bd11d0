"""What ``arrow-shuffle merge`` tells: its plan and its result, as lines and as JSON. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from arrow_format.jobs.receipt import count_of, format_bytes
from connector.cli.charts import printable

if TYPE_CHECKING:
    from arrow_format.jobs.merge import MergePlan, MergeReport
    from arrow_format.write.merge_policy import Facts, PlannedMerge

MAX_MERGES = 20
"""Merges of a plan that are listed; ``--json`` lists all."""


def plan_lines(plan: MergePlan) -> list[str]:
    """Describe what would be merged, a line for each merge."""
    where = f"{printable(plan.path)} version {plan.version}"
    if not plan.merges:
        return [f"{where}: nothing is worth merging"]
    lines = [
        f"{where}: {count_of(len(plan.merges), 'merge')} of {format_bytes(plan.num_bytes)} in all"
    ]
    several = list(zip(plan.merges, plan.facts, strict=True))
    lines += [_merge_line(merge, facts) for merge, facts in several[:MAX_MERGES]]
    if len(several) > MAX_MERGES:
        lines.append(f"  ... and {len(several) - MAX_MERGES:,} more; --json lists all")
    return lines


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
    )


def report_lines(report: MergeReport, seconds: float) -> list[str]:
    """Describe what was merged."""
    if not report.plan.merges:
        return plan_lines(report.plan)
    outputs_before, outputs_after = report.num_map_outputs
    before, after = report.before, report.after
    return [
        f"{printable(report.plan.path)}: merged into version {report.version} ({seconds:.1f} s)",
        f"  map outputs  {outputs_before:,} -> {outputs_after:,}",
        f"  files        {before.num_files:,} -> {after.num_files:,}",
        f"  regions      {before.num_regions:,} -> {after.num_regions:,}",
        f"  data         {format_bytes(before.data_bytes)} -> {format_bytes(after.data_bytes)}",
        f"  index        {format_bytes(before.index_bytes)} -> {format_bytes(after.index_bytes)}",
        "  The files of versions before stay on disk until they expire; see arrow-shuffle gc.",
    ]


def plan_as_json(plan: MergePlan) -> dict[str, Any]:
    """Return a plan as values that ``json.dumps`` takes."""
    return {
        "path": plan.path,
        "version": plan.version,
        "num_bytes": plan.num_bytes,
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
