"""What the tests on object stores said of each store, for the table in the guide.

``make stores`` records it; the rows are the docstrings of tests that have a parameter ``store``.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from tests.support.stores import STORES

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class StoreOutcomes:
    """Counts how the tests of each row ended, by store."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._places: dict[str, tuple[str, str]] = {}
        self._counts: defaultdict[str, defaultdict[str, Counter[str]]] = defaultdict(
            lambda: defaultdict(Counter)
        )

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Note the row and the store of a test that has both."""
        callspec = getattr(item, "callspec", None)
        row = getattr(item, "function", item).__doc__
        store = callspec.params.get("store") if callspec else None
        if row and store in STORES:
            self._places[item.nodeid] = (row, store)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once: at its call, or where it failed or was skipped before."""
        place = self._places.get(report.nodeid)
        if place is not None and (report.when == "call" or report.outcome != "passed"):
            row, store = place
            self._counts[row][store][report.outcome] += 1

    def pytest_sessionfinish(self) -> None:
        """Write the counts. Rows that were not run now keep theirs."""
        rows = json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}
        for row, stores in self._counts.items():
            counted = {store: dict(sorted(counts.items())) for store, counts in stores.items()}
            rows[row] = {**rows.get(row, {}), **counted}
        text = json.dumps(rows, indent=1, ensure_ascii=False, sort_keys=True)
        self._file.write_text(f"{text}\n", encoding="utf-8")
