"""When a buffered output flushes, and what its operator promises (FLIP-365)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from arrow_format.errors import OptionError
from arrow_format.options import check_integer
from arrow_format.streaming.latest_by_key import DEFAULT_BYTES, LEAST_BYTES


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
        Memory that an output may take, in bytes, beside the largest batch: a third each for
        records, for numbering their keys, and for putting them in order.
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
    """Attributes of an operator that decide how it may be run; bad ones raise OptionError.

    Parameters
    ----------
    is_output_idempotent
        Whether of several records that it emits for one key, or of all where there are no keys, the
        last alone gives the right result.
    """

    is_output_idempotent: bool = False

    def __post_init__(self) -> None:
        """Check the value."""
        if not isinstance(self.is_output_idempotent, bool):
            msg = f"is_output_idempotent={self.is_output_idempotent!r}: expected True or False"
            raise OptionError(msg)


class OperatorAttributesBuilder:
    """Puts :class:`OperatorAttributes` together; what is not set has its default."""

    def __init__(self) -> None:
        self._is_output_idempotent = False

    def set_output_idempotent(self, is_output_idempotent: bool) -> OperatorAttributesBuilder:
        """Say whether of several records for one key the last alone is enough."""
        self._is_output_idempotent = is_output_idempotent
        return self

    def build(self) -> OperatorAttributes:
        """Return the attributes.

        Raises
        ------
        OptionError
            A value is of the wrong type.
        """
        return OperatorAttributes(is_output_idempotent=self._is_output_idempotent)


def is_output_buffered(
    attributes: OperatorAttributes,
    *,
    max_interval: timedelta | None,
    is_keyed: bool,
    parallelism: int | None,
) -> bool:
    """Decide whether the output of an operator is buffered.

    Parameters
    ----------
    attributes
        What the operator says of itself.
    max_interval
        The flush interval; None when none is set.
    is_keyed
        Whether its records have keys.
    parallelism
        In how many places at once it runs; None when nobody knows. Without keys it has to be one:
        else the last record of all would be the last of each place.

    Raises
    ------
    OptionError
        ``attributes`` or ``parallelism`` is something else.
    """
    if not isinstance(attributes, OperatorAttributes):
        msg = f"attributes={attributes!r}: expected arrow_format.OperatorAttributes"
        raise OptionError(msg)
    if parallelism is not None:
        check_integer("parallelism", parallelism, 1, 1 << 31, "places")
    return (
        max_interval is not None
        and attributes.is_output_idempotent
        and (is_keyed or parallelism == 1)
    )
