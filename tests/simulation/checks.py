"""Checks of scenarios: each kind of storage has a file of its own, so that several processes share
them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation.campaign import explored, walked
from tests.simulation.conftest import SCHEDULES
from tests.simulation.scenarios import GROUPS, SCENARIOS
from tests.support.exhaustive import times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.simulation.explorer import Found

WHOLE_STATES, MOST_STATES = times(100, 200), times(140, 280)
"""Per scenario, with any number of preemptions, and in all; `make simulate` goes on."""

LEAST_SCHEDULES = 50_000
"""In all scenarios of one kind of storage."""


class Interleavings:
    """Interleavings of two or three actors, and groups at random, on one kind of storage."""

    on_stores: bool
    simulated: dict[str, int]
    """Schedules that the tests of a class went through, by scenario."""

    def __init_subclass__(cls) -> None:
        cls.simulated = {}

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Give each test the scenarios or groups of this kind of storage."""
        for argument, names in (("scenario", SCENARIOS), ("group", GROUPS)):
            if argument in metafunc.fixturenames:
                metafunc.parametrize(argument, self._of_this_kind(names))

    def _of_this_kind(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if ("on a store" in name) == self.on_stores]

    def test_no_interleaving_goes_wrong(
        self, scenario: str, record_property: Callable[[str, object], None]
    ) -> None:
        """Go through the interleavings of a scenario, as far as the time of the tests allows.

        Where none comes to an end in it, schedules at random do.
        """
        found = explored(scenario, most_states=MOST_STATES, whole_states=WHOLE_STATES)
        if not found.ends and not found.wrong:  # its actors do more than that
            found = walked(scenario, most=_few(SCENARIOS[scenario].walks))
        record_property(SCHEDULES, found.schedules)
        _check(scenario, found)
        assert found.schedules or not found.is_whole
        self.simulated[scenario] = found.schedules

    def test_no_schedule_at_random_goes_wrong(
        self, group: str, record_property: Callable[[str, object], None]
    ) -> None:
        """Run some schedules of a group of five and more actors."""
        found = walked(group, most=_few(GROUPS[group].walks))
        record_property(SCHEDULES, found.schedules)
        _check(group, found)

    def test_these_are_many_schedules(self) -> None:
        """Most scenarios are gone through in part, and these count little."""
        if self.simulated.keys() != {*self._of_this_kind(SCENARIOS)}:
            pytest.skip("only a part of the scenarios was run")
        counted = (min(count, LEAST_SCHEDULES // 10) for count in self.simulated.values())
        assert sum(counted) > LEAST_SCHEDULES


def _few(walks: int) -> int:
    """Return how many of these schedules are run now."""
    return times(-(-walks // 4), walks)


def _check(name: str, found: Found) -> None:
    assert found.wrong is None, found.text(name)
