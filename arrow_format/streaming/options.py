"""Options of buffered outputs, and the operator attributes that allow buffering (FLIP-365).

They are apart from the buffer since flushes and the connector read them without one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from arrow_format.errors import OptionError
from arrow_format.options import check_integer
from arrow_format.streaming.latest_spilling import DEFAULT_BYTES, LEAST_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushOptions:
    """Options of buffered outputs; bad values raise :class:`OptionError` at construction.

    Source: FLIP-365, ``execution.flush.*``.

    Parameters
    ----------
    max_interval
        Longest time between two flushes; None: outputs are not buffered. Flink:
        ``execution.flush.max-interval``.
    memory_buffer_only
        Whether an output flushes when its memory is full, instead of spilling to disk. Flink:
        ``execution.flush.memory-buffer-only``.
    max_buffered_bytes
        Memory of an output, in bytes, in addition to the largest batch: a third each for records,
        for numbering their keys, and for sorting them.
    """

    max_interval: timedelta | None = None
    memory_buffer_only: bool = False
    max_buffered_bytes: int = DEFAULT_BYTES

    def __post_init__(self) -> None:
        """Check every value."""
        if self.max_interval is not None and (
            not isinstance(self.max_interval, timedelta) or self.max_interval <= timedelta()
        ):
            msg = f"max_interval={self.max_interval!r}: expected a timedelta above zero, or None"
            raise OptionError(msg)
        if not isinstance(self.memory_buffer_only, bool):
            msg = f"memory_buffer_only={self.memory_buffer_only!r}: expected True or False"
            raise OptionError(msg)
        check_integer("max_buffered_bytes", self.max_buffered_bytes, LEAST_BYTES, 1 << 50, "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAttributes:
    """Attributes of an operator that decide how it may run; bad ones raise OptionError.

    Parameters
    ----------
    is_output_idempotent
        Whether the last record that it emits for a key, or the last of all where it has no keys,
        makes the earlier ones superfluous.
    """

    is_output_idempotent: bool = False

    def __post_init__(self) -> None:
        """Check the value."""
        if not isinstance(self.is_output_idempotent, bool):
            msg = f"is_output_idempotent={self.is_output_idempotent!r}: expected True or False"
            raise OptionError(msg)


class OperatorAttributesBuilder:
    """Builder of :class:`OperatorAttributes`; an attribute that is not set has its default."""

    def __init__(self) -> None:
        self._is_output_idempotent = False

    def set_output_idempotent(self, is_output_idempotent: bool) -> OperatorAttributesBuilder:
        """Set whether the last record for a key is enough; returns the builder."""
        self._is_output_idempotent = is_output_idempotent
        return self

    def build(self) -> OperatorAttributes:
        """Return the attributes.

        Raises
        ------
        OptionError
            A value has the wrong type.
        """
        return OperatorAttributes(is_output_idempotent=self._is_output_idempotent)


def is_output_buffered(
    attributes: OperatorAttributes,
    *,
    max_interval: timedelta | None,
    is_keyed: bool,
    parallelism: int | None,
) -> bool:
    """Return whether the output of an operator is buffered.

    That takes an interval, an idempotent output, and keys (``is_keyed``) or ``parallelism`` 1:
    without keys the last record of all would be the last of each subtask. ``parallelism`` is None
    where it is not known. Raises OptionError for malformed arguments.
    """
    if not isinstance(attributes, OperatorAttributes):
        msg = f"attributes={attributes!r}: expected arrow_format.OperatorAttributes"
        raise OptionError(msg)
    if parallelism is not None:
        check_integer("parallelism", parallelism, 1, 1 << 31, "subtasks")
    return (
        max_interval is not None
        and attributes.is_output_idempotent
        and (is_keyed or parallelism == 1)
    )
