"""What the tests on object stores said of each store, for the table in the guide.

``make stores`` records it; the rows are the docstrings of tests that have a parameter ``store``.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, cast

from tests.support.stores import STORES

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


_PLACE = "row and store"


class StoreOutcomes:
    """Counts how the tests of each row ended, by store."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._counts: defaultdict[str, defaultdict[str, Counter[str]]] = defaultdict(
            lambda: defaultdict(Counter)
        )

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Note the row and the store of a test that has both, for its report."""
        callspec = getattr(item, "callspec", None)
        row = getattr(item, "function", item).__doc__
        store = callspec.params.get("store") if callspec else None
        if row and store in STORES:
            item.user_properties.append((_PLACE, (row, store)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once: at its call, or where it failed or was skipped before."""
        place = dict(report.user_properties).get(_PLACE)
        if place is not None and (report.when == "call" or report.outcome != "passed"):
            row, store = cast("tuple[str, str]", place)
            self._counts[row][store][report.outcome] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the counts, from one process of several. Rows that were not run keep theirs."""
        if hasattr(session.config, "workerinput"):
            return
        rows = json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}
        for row, stores in self._counts.items():
            counted = {store: dict(sorted(counts.items())) for store, counts in stores.items()}
            rows[row] = {**rows.get(row, {}), **counted}
        text = json.dumps(rows, indent=1, ensure_ascii=False, sort_keys=True)
        self._file.write_text(f"{text}\n", encoding="utf-8")
