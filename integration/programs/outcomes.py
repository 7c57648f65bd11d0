"""What the integration tests said on one version of Spark, kept for the page of versions.

``make outcomes SPARK=4.1`` runs them and records how each file ended; the page is made from it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

if TYPE_CHECKING:
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
        """Write the counts. Files of tests that were not run now keep theirs, if they are there."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        counts = {}
        if self._file.exists():
            recorded = json.loads(self._file.read_text(encoding="utf-8"))
            counts = {file: found for file, found in recorded.items() if Path(file).exists()}
        counts |= {file: dict(sorted(found.items())) for file, found in self._counts.items()}
        text = json.dumps(dict(sorted(counts.items())), indent=1)
        self._file.write_text(f"{text}\n", encoding="utf-8")
