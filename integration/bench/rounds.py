"""Measure contenders round by round, in alternating order."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from integration.bench.results import Timing, turns

if TYPE_CHECKING:
    from pathlib import Path

    from integration.bench.results import Part

Measure = Callable[[], Mapping[str, Any]]
"""Runs a contender once. Its answer has ``seconds``, and of :class:`Timing` what else there is."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a part measures, and where."""

    scale: float
    """TPC-H scale factor."""
    numbers: tuple[int, ...]
    """Numbers of subpartitions."""
    codecs: tuple[str, ...]
    repeat: int
    slow: bool
    """Include what takes minutes at 2,000 subpartitions."""
    memory_bytes: int
    """Bytes streamed through the map task whose memory is measured."""
    scratch: Path
    """An existing directory for what is written; removed afterwards."""
    report: Callable[[str], None]
    """Called with what is measured next."""

    def measure(
        self,
        part: Part,
        case: str,
        measures: Mapping[str, Measure],
        *,
        warm_up: bool = False,
        goes_on: Callable[[str, Sequence[float]], bool] = lambda *_: True,
    ) -> dict[str, Timing]:
        """Run every contender once per round; the timings are also kept in ``part``.

        Parameters
        ----------
        part, case
            Where they are kept.
        measures
            How to run each contender, by label.
        warm_up
            Run each once more before, which does not count.
        goes_on
            Whether a contender runs again, from its label and the seconds of its rounds.
        """
        answers: dict[str, list[Mapping[str, Any]]] = {label: [] for label in measures}
        for number, order in enumerate(turns(list(measures), self.repeat + warm_up), not warm_up):
            for label in order:
                if goes_on(label, [answer["seconds"] for answer in answers[label]]):
                    self.report(f"{part.name}, {case}, round {number}: {label}")
                    answer = measures[label]()
                    if number:
                        answers[label].append(answer)
        timings = {label: timing_of(label, answers[label]) for label in measures}
        part.timings[case] = tuple(timings.values())
        return timings


def installed(part: Part, peers: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return the peers whose module is there, by label; notes in ``part`` name the others.

    Each has the names of its module and of its package.
    """
    found = []
    for label, (module, package) in peers.items():
        if importlib.util.find_spec(module) is None:
            part.notes.append(f"{label} is left out: install {package} to compare with it")
        else:
            found.append(label)
    return found


def timing_of(label: str, answers: Sequence[Mapping[str, Any]]) -> Timing:
    """Make a timing of what one contender answered, round after round."""
    return Timing(
        label,
        tuple(answer["seconds"] for answer in answers),
        answers[0].get("num_bytes"),
        answers[0].get("num_files"),
        tuple(answer["cpu_seconds"] for answer in answers if "cpu_seconds" in answer),
        answers[0].get("num_rows"),
        min(answers, key=lambda answer: answer["seconds"]).get("counters", {}),
    )


def check_rows(num_rows: int, expected: int) -> None:
    """Raise RuntimeError if a contender lost or added rows."""
    if num_rows != expected:
        msg = f"{num_rows:,} rows came out of {expected:,}"
        raise RuntimeError(msg)
