"""Listening to a process, and striking in the phase one wants."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from integration.torture.children import Message


class Source(Protocol):
    """Whatever says what it does."""

    def next(self) -> Message | None: ...


@dataclass(slots=True)
class Outcome:
    """What a process said until it ended or was done."""

    messages: list[Message] = field(default_factory=list)
    struck_at: float | None = None
    dying: list[int] = field(default_factory=list)
    """Processes that end because of the blow."""

    @property
    def value(self) -> object:
        """What it gave."""
        return self.messages[-1].value if self.done else None

    @property
    def done(self) -> bool:
        """Whether it said that it went through."""
        return bool(self.messages) and self.messages[-1].kind == "done"

    @property
    def failure(self) -> str:
        """What it failed with, or that it died."""
        last = self.messages[-1] if self.messages else None
        return str(last.value) if last and last.kind in ("failed", "silent") else "it died"

    @property
    def failed(self) -> bool:
        """Whether it said that it failed."""
        return bool(self.messages) and self.messages[-1].kind == "failed"

    @property
    def hit(self) -> str:
        """In which phase it was struck."""
        if self.struck_at is None:
            return "not hit"
        before = [m for m in self.messages if m.at <= self.struck_at]
        if not before:
            return "start"
        return before[-1].value if before[-1].kind == "phase" else "after the end"

    def lengths(self) -> dict[str, float]:
        """Return how long each phase took, in seconds."""
        steps = zip(self.messages, self.messages[1:], strict=False)
        return {one.value: other.at - one.at for one, other in steps if one.kind == "phase"}


def watch(
    source: Source,
    phase: str = "",
    delay_s: float = 0,
    strike: Callable[[], list[int] | None] = list,
) -> Outcome:
    """Listen until the end; some time after a phase began, strike (None: it missed)."""
    outcome = Outcome()
    while message := source.next():
        outcome.messages.append(message)
        if message.kind != "phase":
            break
        if message.value == phase and outcome.struck_at is None:
            time.sleep(max(0.0, message.at + delay_s - time.monotonic()))
            dying = strike()
            if dying is not None:
                outcome.dying = dying
                outcome.struck_at = time.monotonic()
    return outcome
