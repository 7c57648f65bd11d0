"""What a shuffle is to those who read it: result types, as Flink names them (FLINK-986).

A result is blocking or pipelined, persistent or ephemeral, bounded or not. In Flink these decide
how buffers travel between tasks. Here they decide who may read which version of the commit log,
and when its files go. See ``docs/streaming.md``.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal, TypeAlias

from arrow_format.errors import OptionError

ResultTypeName: TypeAlias = Literal[
    "BLOCKING_PERSISTENT", "BLOCKING", "PIPELINED", "PIPELINED_BOUNDED"
]


class ResultPartitionType(Enum):
    """When a result can be consumed, how often, and who releases it.

    Each value tells, in this order: whether it is pipelined, whether it is persistent, and whether
    it is bounded.
    """

    BLOCKING_PERSISTENT = (False, True, False)
    """Consumed from its commit on, by anyone and any number of times; kept until it is released
    explicitly."""
    BLOCKING = (False, False, False)
    """Consumed from its commit on; released when its consumers have committed, or when the
    application that made it has ended."""
    PIPELINED = (True, False, False)
    """Each version is consumed while the producer goes on, once by each consumer."""
    PIPELINED_BOUNDED = (True, False, True)
    """The same, and the producer waits while too much is unconsumed."""

    @property
    def is_pipelined(self) -> bool:
        """Whether versions are consumed one by one while the producer goes on."""
        return self.value[0]

    @property
    def is_blocking(self) -> bool:
        """Whether a version is consumed as a whole once it is committed."""
        return not self.is_pipelined

    @property
    def is_persistent(self) -> bool:
        """Whether it stays until somebody releases it by name."""
        return self.value[1]

    @property
    def is_bounded(self) -> bool:
        """Whether only so much of it may be unconsumed at a time."""
        return self.value[2]

    @property
    def has_back_pressure(self) -> bool:
        """Whether its producer waits for consumers; it does where the result is bounded."""
        return self.is_bounded

    @property
    def is_reconsumable(self) -> bool:
        """Whether a consumer may consume the same version again, until it is released."""
        return self.is_blocking

    @property
    def is_released_by_consumers(self) -> bool:
        """Whether it is released by being consumed; else only explicitly."""
        return not self.is_persistent


def check_result_type(value: object) -> ResultPartitionType:
    """Return the result type that ``value`` is or names, in any case of letters.

    Raises
    ------
    OptionError
        It is none.
    """
    if isinstance(value, ResultPartitionType):
        return value
    found = ResultPartitionType.__members__.get(value.upper()) if isinstance(value, str) else None
    if found is None:
        names = ", ".join(ResultPartitionType.__members__)
        msg = f"result_type={value!r}: expected one of {names}"
        raise OptionError(msg)
    return found
