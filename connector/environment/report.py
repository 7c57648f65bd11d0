"""``check_environment``: the facts, the findings, and how they read."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from connector.environment.collection import facts_without_session, with_path, with_session
from connector.environment.findings import Finding, findings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from connector.environment.facts import EnvironmentFacts, ProcessFacts

__all__ = ["EnvironmentReport", "check_before_session", "check_environment"]


@dataclass(frozen=True, slots=True)
class EnvironmentReport:
    """What is wrong where Spark runs; ``str()`` is for people, :meth:`as_json` for programs.

    Attributes
    ----------
    findings
        Causes before what follows from them; empty where nothing was found.
    facts
        What was seen, see :mod:`connector.environment.facts`.
    """

    findings: tuple[Finding, ...]
    facts: EnvironmentFacts

    @property
    def ok(self) -> bool:
        """Whether no finding is a problem; notes may be there."""
        return all(finding.severity == "note" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return all of it as values that JSON can hold."""
        return {
            "ok": self.ok,
            "findings": [asdict(finding) for finding in self.findings],
            "facts": asdict(self.facts),
        }

    def lines(self) -> list[str]:
        """Return what was seen and what was found, as lines of text."""
        facts = self.facts
        lines = [f"driver: {_process_line(facts.driver)}"]
        session = facts.session
        if session is not None:
            kind = "Spark Connect" if session.is_connect else "classic"
            lines.append(f"session: Spark {session.spark}, {kind}")
            if session.lookup is not None:
                lookup = session.lookup
                lines.append(f"data sources: {lookup.executable} ({lookup.said_by})")
        counts: dict[str, int] = {}
        for process in facts.executors:
            line = _process_line(process)
            counts[line] = counts.get(line, 0) + 1
        lines += [f"executors: {line}, {count} tasks" for line, count in counts.items()]
        if facts.path is not None:
            lines.append(f"path: {facts.path.path}")
        for finding in self.findings:
            lines += ["", f"{finding.severity}: {finding.what}"]
            lines += [f"  where: {finding.where}", f"  do: {finding.remedy}"]
        return [*lines, "", _verdict(self.findings)]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def check_environment(
    spark: SparkSession,
    path: str | os.PathLike[str] | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
) -> EnvironmentReport:
    """Find out what of driver, executors, session and storage hinders this package.

    Runs one small job, in as many tasks as the session runs concurrently, which needs neither this
    package nor pyarrow on the executors. It sees the executors that these tasks reach.

    Parameters
    ----------
    spark
        A session, classic or of Spark Connect.
    path
        Directory or URI that driver and executors are to share. Each puts a small file there, or
        into the nearest directory above it that exists, which the other looks for; all are removed.
    storage_options
        Options of an object store, as :func:`~connector.write_shuffle` takes them.

    Returns
    -------
    EnvironmentReport
        Each finding says what was found, where, and what to do. What is wrong is no error here.
    """
    facts = facts_without_session(needs_java=False)
    text = None if path is None else os.fspath(path)
    facts = with_session(facts, spark, text, storage_options)
    return EnvironmentReport(tuple(findings(facts)), facts)


def check_before_session(
    start: Callable[[], SparkSession], path: str | None, *, is_remote: bool
) -> EnvironmentReport:
    """Check what a session needs, start it with ``start``, check it, and stop it.

    Where something is wrong before that, none is started: what follows from it would be found too.
    """
    facts = facts_without_session(needs_java=not is_remote)
    report = EnvironmentReport(tuple(findings(facts)), facts)
    if not report.ok:
        return report
    try:
        spark = start()
    except Exception as error:  # whatever Spark, py4j and grpc raise
        facts = replace(facts, session_error=f"no session started: {_first_line(error)}")
        facts = facts if path is None else with_path(facts, path, None)
        return EnvironmentReport(tuple(findings(facts)), facts)
    try:
        facts = with_session(facts, spark, path, None)
    finally:
        spark.stop()
    return EnvironmentReport(tuple(findings(facts)), facts)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next(iter(lines), type(error).__name__)


def _process_line(process: ProcessFacts) -> str:
    ours = process.packages["arrow_format"].version or "missing"
    others = (
        f"{name} {process.packages[name].version or 'missing'}"
        for name in ("pyspark", "pyarrow", "pandas", "numpy")
    )
    python = f"{process.host}, {process.executable} (Python {process.python})"
    return ", ".join([python, f"arrow-shuffle {ours}", *others])


def _verdict(found: tuple[Finding, ...]) -> str:
    problems = sum(finding.severity == "problem" for finding in found)
    if not problems:
        return "nothing wrong was found"
    return f"{problems} problem{'' if problems == 1 else 's'} found"
