"""What the integration tests said on one version of Spark, kept for the page of versions.

``make outcomes SPARK=4.1`` runs them and records how each file ended; the page is made from it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pyspark

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class Outcomes:
    """Counts how the tests of each file ended, and why those were skipped that were.

    One of several processes that run a part each: ``part`` names it.
    """

    def __init__(self, directory: Path, part: str) -> None:
        self._file = directory / f"{pyspark.__version__}-{part}.json"
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once: at its call, or where it failed or was skipped before."""
        if report.when == "call" or report.outcome != "passed":
            outcome: str = report.outcome
            if report.skipped and isinstance(report.longrepr, tuple):
                outcome = report.longrepr[2].removeprefix("Skipped: ")
            self._counts[report.nodeid.partition("::")[0]][outcome] += 1

    def pytest_sessionfinish(self) -> None:
        """Write the counts."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        counts = {file: dict(sorted(found.items())) for file, found in sorted(self._counts.items())}
        self._file.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
