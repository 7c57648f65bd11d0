"""What ``make quick`` leaves to ``make test``, and the line that says how many tests that are.

They are marked ``spark``, which need a JVM, or ``slow``: a test that takes a tenth of a second of
a processor, or a second, by nature: it walks all steps of a job, starts programs, waits, or needs a
long log. Those that use a server of a store are marked here. ``make test`` knows neither
mark, so that it runs all of them, by turns.
"""

from __future__ import annotations

from typing import Any

import pytest

SERVERS = {"s3", "gs", "azure"}
"""Fixtures that start a server, which takes longer than most tests."""

_left_out = pytest.StashKey[int]()


def mark_slow(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what uses a server of a store, and count what is left out of the tests of this turn."""
    for item in items:
        if SERVERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("slow")
    if "not slow" in config.option.markexpr:
        config.stash[_left_out] = sum(
            any(item.get_closest_marker(mark) for mark in ("slow", "spark")) for item in items
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that started this one to run tests for it."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(_left_out, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what such a process found: each of them finds the same."""
    node.config.stash[_left_out] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how many tests are left to ``make test``."""
    count = config.stash.get(_left_out, 0)
    if count:
        terminalreporter.write_line(f"{count} tests are slow or use Spark: left to `make test`")
