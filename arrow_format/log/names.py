"""Names of the directories and files of a shuffle: pure.

Entries lie in *segments*, directories of 512 numbers each, so that the newest entry is found by two
listings, however long the log is. Apart from readers and writers of the log, which all need them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LOG_DIRECTORY = "commit_log"
MAP_OUTPUT_DIRECTORY = "map_outputs"
CONSUMER_DIRECTORY = "consumers"
READER_PREFIX = "reader-"
"""What the name begins with by which a reader holds a version, see :func:`is_reader`."""

EXPIRED_DIRECTORY = f"{LOG_DIRECTORY}/expired"
"""Of the lists of what removed segments held."""
IDENTITY_DIRECTORY = f"{LOG_DIRECTORY}/identity"
"""Of what the shuffle says of itself, see :mod:`arrow_format.log.identity`."""

DAMAGED_DIRECTORY = f"{LOG_DIRECTORY}/damaged"
"""Of files that a repair moved aside; nothing reads them."""

TEMPORARY = ".tmp-"
"""What the names of files begin with that a put has not finished."""

JOB_ID = re.compile(r"[0-9a-f]{32}")

_READER = re.compile(rf"{READER_PREFIX}[0-9a-f]{{12}}")

SEGMENT_ENTRIES = 512
"""Numbers of one segment; with its checkpoints one page of a store's listing."""

CHECKPOINT_INTERVAL = 16
"""Numbers between two checkpoints; a power of two that divides :data:`SEGMENT_ENTRIES`."""

_SEGMENT = re.compile(r"[0-9]{18}")
_ENTRY = re.compile(r"([0-9]{20})\.entry")
_RANGE = re.compile(r"([0-9]{20})\.range")


def is_reader(name: str) -> bool:
    """Whether a directory of consumers is that of a reader's hold, which is no consumer."""
    return _READER.fullmatch(name) is not None


def segment_of(number: int) -> int:
    """Return the segment in which a number of the log lies, from 0."""
    return number // SEGMENT_ENTRIES


def numbers_of(segment: int) -> range:
    """Return the numbers of the log that lie in a segment."""
    first = segment * SEGMENT_ENTRIES
    return range(max(first, 1), first + SEGMENT_ENTRIES)


def last_checkpoint(number: int) -> int:
    """Return the last number up to another that has a checkpoint; 0 for none."""
    return number - number % CHECKPOINT_INTERVAL


def segment_path(segment: int) -> str:
    """Directory of a segment."""
    return f"{LOG_DIRECTORY}/{segment:018d}"


def entry_path(number: int) -> str:
    """Path of the entry of that number."""
    return f"{segment_path(segment_of(number))}/{number:020d}.entry"


def range_path(number: int) -> str:
    """Path of what several numbers up to that one do: all, or those after :func:`link_of`."""
    return f"{segment_path(segment_of(number))}/{number:020d}.range"


def expired_path(segment: int) -> str:
    """Path of the list of what a segment held, put before its entries are removed."""
    return f"{EXPIRED_DIRECTORY}/{segment:018d}"


def link_of(number: int) -> int:
    """Return the number after which the checkpoint of ``number`` begins.

    The lowest bit of the number is cleared. So each entry is in few checkpoints, few checkpoints
    hold a whole log (one for each bit of its length), and all checkpoints between a checkpoint and
    the next one of twice its size are based on it.
    """
    return number & (number - 1)


def checkpoints_after(after: int, last: int) -> Iterator[int]:
    """Yield the numbers up to ``last`` whose checkpoint may begin after a number, descending."""
    width = after & -after or 1 << last.bit_length()
    while width >= CHECKPOINT_INTERVAL:
        if after + width <= last:
            yield after + width
        width //= 2


def segments_in(names: Iterable[str]) -> list[int]:
    """Return the segments that a listing of the log shows, ascending."""
    return sorted(int(name) for name in names if _SEGMENT.fullmatch(name))


def entries_in(names: Iterable[str]) -> list[int]:
    """Return the numbers of the entries that a listing of a segment shows, ascending."""
    return sorted(int(match[1]) for match in map(_ENTRY.fullmatch, names) if match)


def ranges_in(names: Iterable[str]) -> list[int]:
    """Return the numbers up to which ranges are that a listing of a segment shows, ascending."""
    return sorted(int(match[1]) for match in map(_RANGE.fullmatch, names) if match)
