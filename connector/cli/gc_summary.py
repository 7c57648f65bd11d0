"""What ``arrow-shuffle gc`` tells: its result as lines and as JSON. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrow_format.jobs.receipt import count_of, format_bytes
from connector.cli.charts import printable
from connector.options.duration import duration_text

if TYPE_CHECKING:
    from arrow_format.jobs.gc_report import GcReport

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
        lines.append("  versions  nothing was ever committed")
    if report.released:
        lines.append(f"  result    {would}released: {printable(report.released)}")
        if report.dry_run:
            lines.append("            and what it would let expire is not counted here")
    if report.fenced_jobs:
        lines.append(f"  jobs      {would}given up: {_listed(report.fenced_jobs)}")
    if report.running_jobs:
        lines.append(f"  jobs      unfinished, and left alone: {_listed(report.running_jobs)}")
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
        "num_files": report.num_files,
        "num_bytes": report.num_bytes,
        "files": [{"path": file.path, "num_bytes": file.num_bytes} for file in report.files],
    }
