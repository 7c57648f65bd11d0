"""``check_environment``: the facts, the findings, and how they read; and what a failed job asks."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from arrow_format.errors import MissingPackageError, OptionError
from arrow_format.report import Report
from connector.environment.facts import collect
from connector.environment.findings import Finding, findings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from connector.environment.facts import EnvironmentFacts, ProcessFacts

__all__ = ["EnvironmentReport", "check_before_session", "check_environment", "raise_cause"]


@dataclass(frozen=True, slots=True)
class EnvironmentReport(Report):
    """What is wrong where Spark runs; ``str()`` is for people, :meth:`as_json` for programs.

    .. code-block:: python

        report = arrow_shuffle.check_environment(spark)
        if not report.ok:
            print(report)

    Attributes
    ----------
    findings
        Causes before what follows from them; empty where nothing was found.
    facts
        What was seen, see :mod:`connector.environment.facts`.
    """

    findings: tuple[Finding, ...]
    facts: EnvironmentFacts

    @staticmethod
    def of(facts: EnvironmentFacts) -> EnvironmentReport:
        """Return facts with what is wrong."""
        return EnvironmentReport(tuple(findings(facts)), facts)

    @property
    def ok(self) -> bool:
        """Whether no finding is a problem; notes may be there."""
        return all(finding.severity == "note" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return all of it as values that JSON can hold."""
        return {"ok": self.ok, **asdict(self)}  # without msgspec: a driver may lack it

    def _lines(self) -> Iterator[str]:
        facts, session = self.facts, self.facts.session
        yield f"driver: {_process_line(facts.driver)}"
        if session is not None:
            kind = "Spark Connect" if session.is_connect else "classic"
            yield f"session: Spark {session.spark}, {kind}"
            if session.lookup is not None:
                yield f"data sources: {session.lookup.executable} ({session.lookup.said_by})"
            yield f"reader in the JVM: {session.jvm.version or 'none'}"
        for line, count in Counter(map(_process_line, facts.executors)).items():
            yield f"executors: {line}, {count} tasks"
        if facts.path is not None:
            yield f"path: {facts.path.path}"
        for finding in self.findings:
            yield ""
            yield f"{finding.severity}: {finding.what}"
            yield f"  where: {finding.where}"
            yield f"  do: {finding.remedy}"
        yield ""
        problems = sum(finding.severity == "problem" for finding in self.findings)
        found = f"{problems} problem{'' if problems == 1 else 's'} found"
        yield found if problems else "nothing wrong was found"


def _process_line(process: ProcessFacts) -> str:
    ours = process.version("arrow_format") or "missing"
    others = (
        f"{name} {process.version(name) or 'missing'}"
        for name in ("pyspark", "pyarrow", "pandas", "numpy")
    )
    python = f"{process.host}, {process.executable} (Python {process.python})"
    return ", ".join([python, f"arrow-shuffle {ours}", *others])


def check_environment(
    spark: SparkSession,
    path: str | os.PathLike[str] | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
) -> EnvironmentReport:
    """Find out what of driver, executors, session and storage hinders this package.

    .. code-block:: python

        print(arrow_shuffle.check_environment(spark, path="/data"))

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
        Options of an object store, as :func:`~arrow_shuffle.write_shuffle` takes them.

    Returns
    -------
    EnvironmentReport
        Each finding says what was found, where, and what to do. What is wrong is no error here.
    """
    text = None if path is None else os.fspath(path)
    return EnvironmentReport.of(collect(spark, text, storage_options))


def check_before_session(
    start: Callable[[], SparkSession], path: str | None, *, is_remote: bool
) -> EnvironmentReport:
    """Check what a session needs, start it with ``start``, check it, and stop it.

    Where something is wrong before that, none is started: what follows from it would be found too.
    """
    report = EnvironmentReport.of(collect(needs_java=not is_remote))
    if not report.ok:
        return report
    try:
        spark = start()
    except Exception as error:  # whatever Spark, py4j and grpc raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = f"no session started: {next(iter(lines), type(error).__name__)}"
        return EnvironmentReport.of(replace(collect(path=path), session_error=said))
    try:
        return EnvironmentReport.of(collect(spark, path))
    finally:
        spark.stop()


# Why a job failed that found another Python than it needs -----------------------------------------

_SIGNS = re.compile(
    r"ModuleNotFoundError|ImportError|No module named|PYTHON_VERSION_MISMATCH|different version: "
    r"|Cannot run program|Python worker (failed to connect back|exited unexpectedly)"
)
"""What Spark says where its Python lacks something; a user's function may say some of it too."""

_OF_PACKAGES = ("package-missing", "package-broken", "package-old", "package-version")
_OF_PYTHON = ("python-version", "no-python")


def may_be_of_python(text: str) -> bool:
    """Whether the Python of the executors may be why a job failed."""
    return _SIGNS.search(text) is not None


def cause_among(found: Iterable[Finding]) -> Finding | None:
    """Return the first finding that keeps functions of ours from running on executors."""
    of_python = (
        finding
        for finding in found
        if finding.severity == "problem"
        and finding.where.startswith("executors")
        and finding.code in (*_OF_PACKAGES, *_OF_PYTHON)
    )
    return next(of_python, None)


def raise_cause(spark: SparkSession, error: Exception) -> None:
    """Raise what the doctor says of a failed job, if the Python of the executors is the cause.

    Asks them by a job of a few tasks, and only where the error looks like it.

    Raises
    ------
    OptionError
        What is wrong, where, and what to do; MissingPackageError where a package is missing.
    """
    if not may_be_of_python(str(error)):
        return
    finding = cause_among(check_environment(spark).findings)
    if finding is not None:
        kind = MissingPackageError if finding.code in _OF_PACKAGES else OptionError
        raise kind(str(finding)) from error
