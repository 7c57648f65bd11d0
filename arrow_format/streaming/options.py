"""Options of buffered outputs, and the operator attributes that allow buffering (FLIP-365).

They are apart from the buffer since flushes and the connector read them without one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from arrow_format.errors import OptionError
from arrow_format.option_fields import DURATION, check_fields, option
from arrow_format.options import FLAG, LATEST_ROWS_BYTES, check_integer, num_bytes
from arrow_format.streaming.latest_spilling import LEAST_BYTES


def _check_interval(name: str, value: object) -> timedelta:
    if not isinstance(value, timedelta) or value <= timedelta():
        raise OptionError.of(name, value, "expected a timedelta above zero, or None")
    return value


INTERVAL = replace(
    DURATION,
    check=_check_interval,
    expected="a whole number above zero with a unit, as 500ms, 90s, 2min or 1h",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushOptions:
    """Options of buffered outputs; bad values raise :class:`OptionError` at construction.

    .. code-block:: python

        options = arrow_format.FlushOptions(max_interval=timedelta(minutes=2))

    Source: FLIP-365, ``execution.flush.*``.

    Parameters
    ----------
    max_interval
        Longest time between two flushes. A stream's sink commits micro-batches as pending, and once
        this long has passed since the last flush publishes all of them as one version with the
        latest row of each key. Flink: ``execution.flush.max-interval``. By default none: outputs
        are not buffered, and each micro-batch is a version.
    memory_buffer_only
        Whether an output flushes when its memory is full, instead of spilling to disk. A stream's
        sink flushes as soon as ``max_buffered_bytes`` are pending, instead of reading them in
        several passes. Flink: ``execution.flush.memory-buffer-only``.
    max_buffered_bytes
        Memory of an output, in bytes, in addition to the largest batch: a third each for records,
        for numbering their keys, and for sorting them. That of a stream's flush is on the driver's
        machine.
    """

    max_interval: timedelta | None = option(None, INTERVAL, name="flush.maxInterval")
    memory_buffer_only: bool = option(False, FLAG, name="flush.memoryBufferOnly")
    max_buffered_bytes: int = option(
        LATEST_ROWS_BYTES, num_bytes(LEAST_BYTES, 1 << 50), name="flush.maxBufferedBytes"
    )

    def __post_init__(self) -> None:
        """Check every value."""
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAttributes:
    """Attributes of an operator that decide how it may run; bad ones raise OptionError.

    Parameters
    ----------
    is_output_idempotent
        Whether the last record that it emits for a key, or the last of all where it has no keys,
        makes the earlier ones superfluous.
    """

    is_output_idempotent: bool = option(False, FLAG)

    def __post_init__(self) -> None:
        """Check the value."""
        check_fields(self)


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
        raise OptionError.of("attributes", attributes, "expected OperatorAttributes")
    if parallelism is not None:
        check_integer("parallelism", parallelism, 1, 1 << 31, "subtasks")
    return (
        max_interval is not None
        and attributes.is_output_idempotent
        and (is_keyed or parallelism == 1)
    )
