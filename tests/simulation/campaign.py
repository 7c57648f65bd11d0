"""Runs a scenario: all its interleavings, schedules at random, or one that was printed."""

from __future__ import annotations

import random
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulation.explorer import Found, Wrong, explore, walk
from tests.simulation.process import virtual_world
from tests.simulation.scenarios import GROUPS, SCENARIOS
from tests.simulation.schedule import run_words
from tests.support.small_log import small_segments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.explorer import State, World
    from tests.simulation.oracle import Oracle
    from tests.simulation.stage import Scenario


def scenario(name: str) -> Scenario:
    """Return a scenario by its name."""
    return SCENARIOS[name] if name in SCENARIOS else GROUPS[name]


@contextmanager
def staged(name: str) -> Iterator[tuple[World, Oracle]]:
    """Prepare a scenario, and end its threads afterwards."""
    sizes = scenario(name).sizes
    with virtual_world(), small_segments(*sizes) if sizes else nullcontext():
        world, oracle = scenario(name).stage()
        try:
            state = run_words(scenario(name).prelude, world, oracle.on_step)
            yield replace(world, prelude=state), oracle
        finally:
            oracle.close()
            for program in world.programs:
                program.close()


def explored(
    name: str,
    *,
    preemptions: int | None = None,
    most_states: int | None = None,
    whole_states: int = 0,
    seconds: float = float("inf"),
) -> Found:
    """Go through the interleavings of a scenario, those of few preemptions first.

    Parameters
    ----------
    name
        Of the scenario.
    preemptions
        Most of them; those of the scenario when None, any number when negative.
    most_states, seconds
        When to stop.
    whole_states
        States to spend before that on any number of preemptions: many scenarios have no more,
        since without a bound more schedules come to the same state.
    """
    if preemptions is None:
        preemptions = scenario(name).preemptions
    bounds = [*([None] if whole_states else []), *range(preemptions + 1)]
    end = time.perf_counter() + seconds
    found = Found(is_whole=False)
    with staged(name) as (world, oracle):
        for bound in bounds or [None]:
            most = None if most_states is None else most_states - found.states
            more = explore(
                world,
                oracle.on_step,
                oracle.on_end,
                crashes=scenario(name).crashes,
                only_log=scenario(name).only_log,
                preemptions=bound,
                most_states=whole_states if bound is None and whole_states else most,
                is_late=lambda: time.perf_counter() > end,
            )
            # Schedules of fewer preemptions are among those of more.
            found = replace(
                more,
                schedules=max(found.schedules, more.schedules),
                ends=max(found.ends, more.ends),
                states=found.states + more.states,
                steps=found.steps + more.steps,
            )
            if found.wrong or found.is_whole == (bound is None):
                break
    return found


def walked(
    name: str, *, seed: int = 0, most: int | None = None, seconds: float = float("inf")
) -> Found:
    """Run schedules of a scenario at random, each of its own seed."""
    found, end = Found(), time.perf_counter() + seconds
    with staged(name) as (world, oracle):
        while found.schedules != most and time.perf_counter() < end and not found.wrong:
            chance = random.Random(f"{seed}/{found.schedules}")
            crash = 0.3 if scenario(name).crashes else 0.0
            switch = chance.choice((0.03, 0.1, 0.3))
            found.schedule, found.wrong = walk(
                world, oracle.on_step, oracle.on_end, chance, crash=crash, switch=switch
            )
            found.schedules += 1
    return found


def replayed(name: str, schedule: str) -> tuple[str | None, State | None]:
    """Run one schedule; return what is wrong, and the state at its end."""
    with staged(name) as (world, oracle):
        try:
            state = run_words(schedule, world, oracle.on_step)
            oracle.on_end(state)
        except Wrong as wrong:
            return str(wrong), None
        return None, state


def run(
    name: str, most_s: float, end_s: float, seed: int, preemptions: int | None
) -> tuple[Found, float]:
    """Explore a scenario for some time, until a time since 1970; return how long it took too."""
    started = time.time()
    seconds = max(min(most_s, end_s - started), 0.5)
    if name in GROUPS:
        found = walked(name, seed=seed, seconds=seconds)
    else:
        found = explored(name, preemptions=preemptions, seconds=seconds)
    return found, time.time() - started
