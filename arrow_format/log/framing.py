"""The frame of a small file: a line of JSON, and a trailer with its length and CRC.

Apart from the log's records, since the files of consumers and leases have the same frame. See
``docs/format/v1.md``.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import TYPE_CHECKING, Any, TypeVar

from arrow_format.errors import CorruptShuffleError, FormatVersionError, ShuffleError
from arrow_format.strict_json import check_format_version, natural, parse_object

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Bytes = TypeVar("Bytes")

_TRAILER = re.compile(rb"arrow-shuffle-log (\d+) ([0-9a-f]{8})\n")


def to_lines(value: Mapping[str, Any]) -> bytes:
    """Encode an object as a line of JSON and its trailer."""
    body = json.dumps(value, separators=(",", ":")).encode()
    return body + b"\narrow-shuffle-log %d %08x\n" % (len(body), zlib.crc32(body))


def from_lines(data: bytes) -> dict[str, Any]:
    """Verify the trailer and format version, and parse the JSON; its fields are not checked.

    Raises CorruptShuffleError where any byte differs from what was written, and FormatVersionError
    where a newer release wrote it.
    """
    body, newline, trailer = data.partition(b"\n")
    match = _TRAILER.fullmatch(trailer)
    if not newline or match is None:
        msg = f"log entry of {len(data)} bytes has no trailer"
        raise CorruptShuffleError(msg)
    if match[1] != b"%d" % len(body):
        msg = f"log entry has {len(body)} bytes where its trailer says {match[1].decode()}"
        raise CorruptShuffleError(msg)
    if int(match[2], 16) != zlib.crc32(body):
        msg = "log entry does not match its own checksum"
        raise CorruptShuffleError(msg)
    try:
        value = parse_object(body)
        check_format_version(natural(value["format_version"]), "log entry")
    except (KeyError, TypeError, ValueError) as error:
        msg = f"log entry is not of this format ({type(error).__name__}: {error})"
        raise CorruptShuffleError(msg) from error
    return value


def readable(data: Bytes, decode: Callable[[Bytes], object], where: str) -> Bytes:
    """Return the bytes of a file to be put, once the readers' parser has accepted them.

    A file in the log is permanent: one that readers refuse makes every later version unreadable.
    Raises ShuffleError, which names the path ``where``.
    """
    try:
        decode(data)
    except (CorruptShuffleError, FormatVersionError) as error:
        msg = f"{where}: was not put, since readers would refuse it ({error})"
        raise ShuffleError(msg) from error
    return data
