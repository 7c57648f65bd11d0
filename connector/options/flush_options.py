"""Options of buffered outputs as Spark hands them over: text, under names that Flink users know."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from arrow_format.errors import OptionError
from arrow_format.streaming.flush_options import FlushOptions
from arrow_format.streaming.latest_by_key import DEFAULT_BYTES, LEAST_BYTES
from connector.options.duration import parse_duration
from connector.options.text import bad, boolean, num_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_INTERVAL = "flush.maxInterval"
"""Flink: ``execution.flush.max-interval``."""
MEMORY_BUFFER_ONLY = "flush.memoryBufferOnly"
"""Flink: ``execution.flush.memory-buffer-only``."""
MAX_BUFFERED_BYTES = "flush.maxBufferedBytes"

NAMES = (MAX_INTERVAL, MEMORY_BUFFER_ONLY, MAX_BUFFERED_BYTES)
"""Names of all of them."""

_PREFIX = "flush."
_INTERVALS = "500ms, 90s, 2min or 1h"


def parse_interval(value: object, name: str) -> timedelta | None:
    """Return a flush interval: None and timedeltas as they are, text as a duration above zero.

    Raises
    ------
    OptionError
        It is none of these.
    """
    if value is None or isinstance(value, timedelta):
        interval = value
    elif isinstance(value, str):
        interval = parse_duration(value, name, examples=_INTERVALS)
    else:
        msg = f"{name}={value!r}: expected text as {_INTERVALS}, or a timedelta"
        raise OptionError(msg)
    if interval is not None and interval <= timedelta():
        msg = f"{name}={value!r}: expected more than no time; leave it out to buffer nothing"
        raise OptionError(msg)
    return interval


def parse_flush_options(options: Mapping[str, str]) -> FlushOptions:
    """Read the options that begin with ``flush.``; others are left alone.

    Parameters
    ----------
    options
        As Spark hands them over: names in any case, values text.

    Raises
    ------
    OptionError
        A value is bad, or there is no such option; names it.
    """
    known = {name.lower(): name for name in NAMES}
    found: dict[str, str] = {}
    for key, value in options.items():
        if not key.lower().startswith(_PREFIX):
            continue
        name = known.get(key.lower())
        if name is None:
            msg = f"option {key!r} is not known; there are {', '.join(NAMES)}"
            raise OptionError(msg)
        found[name] = value
    text = found.get(MAX_BUFFERED_BYTES, str(DEFAULT_BYTES))
    most = num_bytes(MAX_BUFFERED_BYTES, text)
    if most < LEAST_BYTES:
        raise bad(MAX_BUFFERED_BYTES, text, f"at least {LEAST_BYTES >> 10}k")
    return FlushOptions(
        max_interval=parse_interval(found.get(MAX_INTERVAL), MAX_INTERVAL),
        memory_buffer_only=boolean(MEMORY_BUFFER_ONLY, found.get(MEMORY_BUFFER_ONLY, "false")),
        max_buffered_bytes=most,
    )
