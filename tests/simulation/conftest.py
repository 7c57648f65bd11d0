"""Says at the end of a run how many schedules its tests went through."""

from __future__ import annotations

from typing import Any

SCHEDULES = "schedules of the simulation"
"""A property that tests record."""


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [
        report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)
    ]
    schedules = sum(
        value for report in reports for name, value in report.user_properties if name == SCHEDULES
    )
    if schedules:
        terminalreporter.write_line(f"{schedules:,} schedules were simulated")
