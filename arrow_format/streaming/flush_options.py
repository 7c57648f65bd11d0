"""When an output flushes, and how much it may hold until then: the validated options. Pure."""

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
