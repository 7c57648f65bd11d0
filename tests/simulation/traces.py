"""Looks for a deleted row in every byte of a storage, however it is written there.

What is read here is what the bytes say, not what the format says of them: a value may be in a
section of the log that is compressed, or in base64 in the middle of JSON, and whoever reads the
disk would find it there. So nothing of the library decodes anything here.
"""

from __future__ import annotations

import base64
import re
import struct
from functools import lru_cache
from typing import TYPE_CHECKING

import zstandard

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.simulation.files import Files

_BASE64 = re.compile(rb"[A-Za-z0-9+/]{24,}={0,2}")
_ZSTD = zstandard.FRAME_HEADER


def name_of(row: int) -> str:
    """Return the text that goes with a row, in the column ``name``."""
    return f"~ the name that goes with row {row:x} ~"


def size_of(row: int) -> float:
    """Return the number that goes with a row, in the column ``size``: larger for larger rows."""
    return row + 0.140625


def traces_of(row: int) -> tuple[bytes, ...]:
    """Return how a row may be written: its number, the text and the number that go with it."""
    return (
        struct.pack("<q", row),
        struct.pack(">q", row),
        str(row).encode(),
        name_of(row).encode(),
        # What is kept of a text may be its first bytes.
        name_of(row).encode()[:-2],
        struct.pack("<d", size_of(row)),
        repr(size_of(row)).encode(),
    )


def files_with(files: Files, rows: Sequence[int], above: str = "") -> Iterator[tuple[str, int]]:
    """Yield path and row of each file that has a trace of one of some rows."""
    traces = [(trace, row) for row in rows for trace in traces_of(row)]
    for path in files.paths():
        data = files.entries[path].data
        if not data or not path.startswith(above):
            continue
        for layer in layers(data):
            found = next((row for trace, row in traces if trace in layer), None)
            if found is not None:
                yield path, found
                break


@lru_cache(maxsize=2_000)
def layers(data: bytes) -> tuple[bytes, ...]:
    """Return bytes, and all that is encoded or compressed in them, at any depth."""
    found, left = [data], [data]
    while left:
        inner = [*_decoded(left.pop())]
        found += inner
        left += inner
    return tuple(found)


def _decoded(data: bytes) -> Iterator[bytes]:
    for text in _BASE64.findall(data):
        # A run of letters may be longer than what was encoded, at its end.
        length = len(text) if text.endswith(b"=") else len(text) - len(text) % 4
        if length % 4 == 0:
            yield base64.b64decode(text[:length])
    start = data.find(_ZSTD)
    while start >= 0:
        try:
            frame = zstandard.ZstdDecompressor().decompressobj()
            yield frame.decompress(data[start:])
        except zstandard.ZstdError:
            pass  # four bytes that begin no frame
        start = data.find(_ZSTD, start + 1)
