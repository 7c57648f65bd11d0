"""The frame of the log's files: a line of JSON, its length and CRC, and sections.

The JSON is declared: msgspec decodes it to the types of the value, checks them, and encodes it.
Apart from the log's entries, since the files of consumers have the same frame, without sections.
See ``docs/format/reading.md``.
"""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from arrow_format.errors import (
    CorruptShuffleError,
    FormatVersionError,
    OptionError,
    SchemaError,
    ShuffleError,
)
from arrow_format.format.batch_frame import MALFORMED as NO_BATCH
from arrow_format.format.batch_frame import content_size
from arrow_format.format.ipc import from_json, to_json
from arrow_format.model import FORMAT_VERSION, Natural, check_format_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T = TypeVar("T")
Bytes = TypeVar("Bytes")

MALFORMED: tuple[type[Exception], ...] = (
    *NO_BATCH, TypeError, AttributeError, RecursionError, OptionError, SchemaError,
)  # fmt: skip
"""What parsing a file of the log raises where its checksums fit and its content does not."""

MASKS = "masks"
"""Feature of readers: files may have masks."""

READER_FEATURES: tuple[str, ...] = (MASKS,)
"""Features of the format without which a log cannot be read, of those that this release knows."""

SECTIONS = frozenset(("added", "removed", "totals", "jobs"))
"""Names of those that this release knows; of others, of later ones, the CRC is checked alone."""

_Section: TypeAlias = tuple[str, Natural, Natural, Natural]
"""Name, length, CRC, and length of the content."""

_TRAILER = re.compile(rb"arrow-shuffle-log (\d+) ([0-9a-f]{8})\n")


class _Head(msgspec.Struct):
    """What every file says of itself; the types of all but the first are those of this version."""

    format_version: int
    state: Any = None
    sections: Any = ()


def to_frame(value: object, sections: Mapping[str, bytes] | None = None) -> bytes:
    """Encode a value, by its declared fields, with sections: frames that state their sizes."""
    fields: dict[str, Any] = {"format_version": FORMAT_VERSION}
    fields |= msgspec.to_builtins(value, enc_hook=to_json)
    if sections:
        fields["sections"] = [
            [name, len(data), zlib.crc32(data), content_size(data)]
            for name, data in sections.items()
        ]
    try:  # where msgspec would write null for a number that JSON does not have
        body = json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        msg = f"was not put, since it is no JSON ({error})"
        raise ShuffleError(msg) from error
    trailer = b"\narrow-shuffle-log %d %08x\n" % (len(body), zlib.crc32(body))
    return b"".join((body, trailer, *(sections or {}).values()))


def from_frame(data: bytes, type_: type[T]) -> tuple[T, dict[str, bytes]]:
    """Inverse of :func:`to_frame`: verify every byte, and check the types of the JSON.

    Raises CorruptShuffleError where any byte differs from what was written, and FormatVersionError
    where a newer release wrote it, or it needs a feature that this one does not know.
    """
    body, rest = _verified(data)
    with corrupt_if_malformed("log entry"):
        head = msgspec.json.decode(body, type=_Head)
        check_format_version(head.format_version, "log entry")
        needed = head.state.get("readers", ()) if isinstance(head.state, dict) else ()
        for feature in msgspec.convert(needed, tuple[str, ...]):
            if feature not in READER_FEATURES:
                raise unknown_error(f"feature {feature!r}")
        sections: dict[str, bytes] = {}
        described = msgspec.convert(
            head.sections, tuple[tuple[str, Natural, Natural, Natural], ...]
        )
        for name, length, crc32, size in described:
            section, rest = bytes(rest[:length]), rest[length:]
            if len(section) != length or zlib.crc32(section) != crc32 or name in sections:
                msg = f"section {name!r} of a log entry does not match its checksum"
                raise CorruptShuffleError(msg)
            if name in SECTIONS and content_size(section) != size:
                msg = f"section {name!r} of a log entry does not have {size} bytes decompressed"
                raise CorruptShuffleError(msg)
            sections[name] = section
        if rest:
            msg = f"log entry has {len(rest)} bytes after its end"
            raise CorruptShuffleError(msg)
        return msgspec.json.decode(body, type=type_, dec_hook=from_json), sections


def head_of(data: bytes) -> dict[str, Any]:
    """Verify the line of JSON alone and parse it, whatever its fields; raises as the above."""
    with corrupt_if_malformed("log entry"):
        return msgspec.json.decode(_verified(data)[0], type=dict[str, Any])


def _verified(data: bytes) -> tuple[memoryview, memoryview]:
    """Verify the line of JSON; return it, and the bytes after its trailer."""
    end = data.find(b"\n")
    after = data.find(b"\n", end + 1) + 1
    match = _TRAILER.fullmatch(data[end + 1 : after]) if 0 <= end < after else None
    if match is None:
        msg = f"log entry of {len(data)} bytes has no trailer"
        raise CorruptShuffleError(msg)
    if match[1] != b"%d" % end:
        msg = f"log entry has {end} bytes where its trailer says {match[1].decode()}"
        raise CorruptShuffleError(msg)
    body = memoryview(data)[:end]
    if int(match[2], 16) != zlib.crc32(body):
        msg = "log entry does not match its own checksum"
        raise CorruptShuffleError(msg)
    return body, memoryview(data)[after:]


def unknown_error(what: str) -> FormatVersionError:
    """Return the error of a file that has what only newer releases know."""
    return FormatVersionError(
        f"log entry has {what}, which this arrow-shuffle does not know; use a newer one"
    )


@contextlib.contextmanager
def corrupt_if_malformed(what: str) -> Iterator[None]:
    """Turn what parsing raises into CorruptShuffleError."""
    try:
        yield
    except MALFORMED as error:
        msg = f"{what} is not of this format ({type(error).__name__}: {error})"
        raise CorruptShuffleError(msg) from error


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
