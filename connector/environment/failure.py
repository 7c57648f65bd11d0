"""Why a job failed that found another Python than it needs: what the doctor says of it.

Apart from the doctor, which does not depend on jobs: they ask it, where they fail.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

from arrow_format.errors import MissingPackageError, OptionError
from connector.environment.collection import facts_without_session, with_session
from connector.environment.findings import findings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from connector.environment.findings import Finding

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


def cause_among(found: list[Finding]) -> Finding | None:
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
    facts = with_session(facts_without_session(needs_java=False), spark, None, None)
    finding = cause_among(findings(facts))
    if finding is not None:
        _raise(finding, error)


def _raise(finding: Finding, error: Exception) -> NoReturn:
    kind = MissingPackageError if finding.code in _OF_PACKAGES else OptionError
    raise kind(str(finding)) from error
