"""What names a version: its number, a time, or a tag.

Times along the log never go back, so the newest version by a time is found by few reads. An entry
is not believed to be later than the storage's clock has it.
"""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from arrow_format.errors import OptionError, ShuffleNotFoundError
from arrow_format.model import SAFE_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import tzinfo

    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogReader, LogView

VersionName: TypeAlias = "int | str | datetime"
"""A number; a date and time, ``2026-11-20 12:00``; or the name of a tag."""

_MAX_DIGITS = 18

_ROUNDED_MS = 2_000
"""What storages take off a time at most: S3 and some file systems have whole seconds, or two."""


def parse_version_name(wanted: VersionName) -> VersionName:
    """Return an ``int``, a ``datetime``, or a name that may be a tag's; raises OptionError.

    A text of digits is a number, a date is the beginning of that day.
    """
    if isinstance(wanted, str):
        text = wanted.strip()
        if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
            return int(text)
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            if SAFE_NAME.fullmatch(text):
                return text
    elif isinstance(wanted, datetime) or (isinstance(wanted, int) and not isinstance(wanted, bool)):
        return wanted
    problem = "expected a number, a date and time as 2026-11-20 12:00, or the name of a tag"
    raise OptionError.of("version", wanted, problem)


def resolve_version(
    log: LogReader, view: LogView, wanted: VersionName | None, zone: tzinfo | None = None
) -> int | None:
    """Return the number of a version; None for None, which means the newest.

    A time without a zone is one of ``zone``, or else of the local zone of this process. Raises
    ShuffleNotFoundError where no version was committed by then that has not expired, or there is no
    such tag; OptionError where ``wanted`` is no name of a version.
    """
    if wanted is None:
        return None
    name = parse_version_name(wanted)
    if isinstance(name, int):
        return name
    if isinstance(name, datetime):
        return _version_by(log, view, with_zone(name, zone))
    tag = view.state.tags.get(name)
    if tag is not None:
        return tag.version
    names = ", ".join(sorted(view.state.tags)) or "none"
    msg = f"{log.root}: no version has the tag {name!r}; the tags are: {names}"
    raise ShuffleNotFoundError(msg)


def with_zone(time: datetime, zone: tzinfo | None) -> datetime:
    """Return a time with a zone: its own, the given one, or the local one of this process."""
    if time.tzinfo is not None:
        return time
    try:
        return time.astimezone() if zone is None else time.replace(tzinfo=zone)
    except (OverflowError, OSError, ValueError):  # before year 1 or after 9999 in UTC
        return time.replace(tzinfo=UTC)


def _committed_ms(log: LogReader, entry: LogEntry) -> int:
    """Return when an entry was committed, by its writer's clock unless that was ahead.

    An entry states no earlier time than its parent. Without the storage's clock, one writer that is
    years ahead would date all that follow, and no time would name any of these.
    """
    put_ms = log.put_at_ms(entry.version)
    if put_ms is None or entry.committed_at_ms <= put_ms + _ROUNDED_MS:
        return entry.committed_at_ms
    return put_ms


def _version_by(log: LogReader, view: LogView, time: datetime) -> int:
    """Return the newest version that was committed by a time."""
    limit_ms = (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)

    def is_later(number: int) -> bool:
        entry = log.record(number)
        return entry.committed_at_ms > limit_ms and _committed_ms(log, entry) > limit_ms

    after = first_true(view.oldest, view.newest + 1, is_later)
    version = log.record(after - 1).state.version if after > view.oldest else 0
    if version >= view.oldest:
        return version
    first = first_version(log, view)
    has = "there is no version yet"
    if first is not None:
        which = " is the oldest that has not expired, and" if first.version > 1 else ""
        committed = datetime.fromtimestamp(_committed_ms(log, first) / 1_000, time.tzinfo)
        shown = committed.isoformat(" ", timespec="milliseconds")
        has = f"version {first.version}{which} was committed at {shown}"
    msg = f"{log.root}: no version that can be opened was committed by {time.isoformat(' ')}; {has}"
    raise ShuffleNotFoundError(msg)


def first_true(first: int, end: int, is_true: Callable[[int], bool]) -> int:
    """Return the first number of ``[first, end)`` for which a condition holds; ``end`` if none.

    It holds for all numbers after the first. Few numbers are asked for.
    """
    return first + bisect_left(range(first, end), True, key=is_true)


def first_version(log: LogReader, view: LogView, start: int = 1) -> LogEntry | None:
    """Return the first version from a number on that has not expired, if any; few reads."""
    first, newest = max(start, view.oldest), view.state.version
    if first > newest:
        return None
    if log.record(first).is_version:  # as it mostly is
        return log.record(first)
    return log.record(
        first_true(first + 1, newest, lambda number: log.record(number).state.version > first)
    )
