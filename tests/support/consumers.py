"""Consumers that are not at work: their progress is recorded, and read, without a lease."""

from __future__ import annotations

from dataclasses import replace

from arrow_format.log import consumers
from arrow_format.log.consumers import check_consumer
from arrow_format.process_identity import this_process


class ConsumerRegistry(consumers.ConsumerRegistry):
    """The consumers of one shuffle, which need not exist yet."""

    def progress(self, name: str) -> int | None:
        """Return the version up to which a consumer has consumed; None if it is not registered."""
        return self.newest(name).version

    def register(self, name: str, version: int) -> int:
        """Register a consumer after ``version``, unless it is registered; return its version."""
        consumed = self.progress(check_consumer(name))
        if consumed is None:
            self.advance(name, version)
        return version if consumed is None else consumed

    def advance(self, name: str, version: int) -> None:
        """Record that a consumer which is not at work has consumed everything up to ``version``.

        A process that holds the name loses it. A consumer never goes back: an older version changes
        nothing.
        """
        taken = self.newest(check_consumer(name)).taken_by(this_process())
        self.put(name, replace(taken.consumed(version), holder=None))
