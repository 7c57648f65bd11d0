"""A checkpoint: what all entries of the commit log up to one of them say together, in one file.

It makes opening a long log short, and it is what remains of entries that garbage collection
removed. It holds one whole entry in the place of many, their totals, how every job ended, what each
application committed last, and what was pending.
See ``docs/format/v1.md``.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import zstandard

from arrow_format.errors import CorruptShuffleError, OptionError, SchemaError
from arrow_format.log.entry import (
    LogEntry,
    TotalsFile,
    entry_from_json,
    entry_to_json,
    safe_name,
)
from arrow_format.log.names import checkpoint_path
from arrow_format.log.record import JobEnd, LastCommit, PendingNumbers
from arrow_format.log.replacement import PlacedOutputs
from arrow_format.log.totals_file import decode_totals, encode_totals
from arrow_format.model import FORMAT_VERSION
from arrow_format.strict_json import check_format_version, natural, parse_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from arrow_format.model import Int64Array

MAGIC = b"ASHFCHK1"
_HEADER = struct.Struct("<8sQII")
HEADER_BYTES = _HEADER.size

NOTHING_PENDING = PendingNumbers()

_LEVEL = 3

_MOST_BYTES, _MOST_TIMES = 64 << 20, 1000
"""A frame opens to no more than this, or than so many times its length. JSON of map outputs, whose
names are random, compresses to a tenth; of those without files to a 250th."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the log says up to and including one number."""

    number: int
    """Of the last entry, or fence, that it stands for."""
    entry: LogEntry | None
    """All map outputs of that version; None when only fences had been put by then."""
    jobs: Mapping[str, JobEnd]
    """How each job ended that ended by then."""
    applications: Mapping[str, LastCommit] = field(default_factory=dict)
    """The newest commit of each application that had any by then."""
    pending: PendingNumbers | None = NOTHING_PENDING
    """What was pending then; None where whoever wrote it did not know of that."""


def compose(entries: Sequence[LogEntry]) -> LogEntry:
    """Return one whole entry for those that make up a version, totals still missing.

    Parameters
    ----------
    entries
        From the entry that started the version to the one that completed it.
    """
    placed = PlacedOutputs.of(entries)
    last = entries[-1]
    # That the result was given up tells who had not consumed all of it where to go on.
    has_ended = last.released is not None and last.released.ended
    return replace(
        last,
        operation="release" if has_ended else "replace",
        transaction=None,
        map_outputs=placed.outputs,
        roots=placed.roots,
        totals=TotalsFile("", 0, 0),
        released=last.released if has_ended else None,
        flushed=None,
    )


def encode_checkpoint(
    checkpoint: Checkpoint, totals: tuple[Int64Array, Int64Array] | None
) -> bytes:
    """Bytes of a checkpoint.

    Parameters
    ----------
    checkpoint
        Its entry's :attr:`LogEntry.totals` plays no part.
    totals
        Rows and bytes per subpartition (int64); None when it has no entry.
    """
    stored = b"" if totals is None else encode_totals(*totals)
    entry: dict[str, Any] | None = None
    if checkpoint.entry is not None:
        path = checkpoint_path(checkpoint.number)
        described = TotalsFile(path, len(stored), zlib.crc32(stored))
        entry = entry_to_json(replace(checkpoint.entry, totals=described))
    ends: dict[bool, list[list[Any]]] = {False: [], True: []}
    for job_id, end in checkpoint.jobs.items():
        ends[end.fenced].append([end.version, job_id])
    last = [[one.version, name, one.number] for name, one in checkpoint.applications.items()]
    # Left out where there are none: such checkpoints have the bytes they always had. Only
    # applications have anything pending, so that both say what there is, or neither.
    later: dict[str, Any] = {}
    if last:
        later["applications"] = last
    if checkpoint.pending is not None and (last or checkpoint.pending != NOTHING_PENDING):
        later["pending"] = _pending_to_json(checkpoint.pending)
    value = {
        "format_version": FORMAT_VERSION,
        "number": checkpoint.number,
        "entry": entry,
        "committed": ends[False],
        "fenced": ends[True],
        **later,
    }
    body = json.dumps(value, separators=(",", ":")).encode()
    frame = zstandard.ZstdCompressor(level=_LEVEL).compress(body)
    return _HEADER.pack(MAGIC, len(frame), zlib.crc32(frame), 0) + frame + stored


def body_bytes(header: bytes) -> int:
    """Return how many bytes follow the header, before the totals.

    Raises
    ------
    CorruptShuffleError
        It is no header.
    """
    magic, length, _, reserved = _HEADER.unpack(header)
    if magic != MAGIC or reserved:
        msg = "does not begin as a checkpoint"
        raise CorruptShuffleError(msg)
    return int(length)


def decode_checkpoint(header: bytes, body: bytes, num_bytes: int) -> Checkpoint:
    """Verify and parse a checkpoint, but for its totals.

    Parameters
    ----------
    header
        The first :data:`HEADER_BYTES` bytes of the file.
    body
        What follows, as many as :func:`body_bytes` says.
    num_bytes
        Length of the file.

    Raises
    ------
    CorruptShuffleError
        Any of these bytes differs from what was written, or the file is longer or shorter.
    FormatVersionError
        A newer version wrote it.
    """
    _, length, crc32, _ = _HEADER.unpack(header)
    if len(body) != length or zlib.crc32(body) != crc32:
        msg = "checkpoint does not match its own checksum"
        raise CorruptShuffleError(msg)
    try:
        value = parse_object(_opened(body))
        check_format_version(natural(value["format_version"]), "checkpoint")
        entry = None if value["entry"] is None else entry_from_json(value["entry"])
        jobs = {
            safe_name(job_id): JobEnd(natural(version), fenced)
            for name, fenced in (("committed", False), ("fenced", True))
            for version, job_id in value[name]
        }
        applications = {
            safe_name(name): LastCommit(natural(version), natural(batch))
            for version, name, batch in value.get("applications", ())
        }
        number = natural(value["number"])
        pending = None if applications else NOTHING_PENDING
        if "pending" in value:
            pending = _pending_from_json(value["pending"], number)
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        pa.ArrowException,
        OSError,
        OptionError,
        SchemaError,
        zstandard.ZstdError,
    ) as error:
        msg = f"checkpoint is not of this format ({type(error).__name__}: {error})"
        raise CorruptShuffleError(msg) from error
    end = HEADER_BYTES + len(body)
    if entry is not None:
        entry = replace(entry, totals=replace(entry.totals, offset=end))
        end += entry.totals.length
    if end != num_bytes:
        msg = f"checkpoint has {num_bytes} bytes, expected {end}"
        raise CorruptShuffleError(msg)
    return Checkpoint(number, entry, jobs, applications, pending)


def decode_with_totals(data: bytes) -> tuple[Checkpoint, tuple[Int64Array, Int64Array] | None]:
    """Verify and parse a checkpoint with its totals, given all its bytes.

    Raises
    ------
    CorruptShuffleError, FormatVersionError
        As :func:`decode_checkpoint` and :func:`~arrow_format.log.totals_file.decode_totals`.
    """
    header = data[:HEADER_BYTES]
    end = HEADER_BYTES + body_bytes(header)
    found = decode_checkpoint(header, data[HEADER_BYTES:end], len(data))
    totals = None if found.entry is None else decode_totals(pa.py_buffer(data[end:]), found.entry)
    return found, totals


def _pending_to_json(pending: PendingNumbers) -> dict[str, Any]:
    return {"numbers": list(pending.numbers), "flushed_at_ms": pending.flushed_at_ms}


def _pending_from_json(value: Mapping[str, Any], newest: int) -> PendingNumbers:
    """Inverse of :func:`_pending_to_json`, of a checkpoint of number ``newest``."""
    numbers = tuple(map(natural, value["numbers"]))
    bounds = (0, *numbers, newest + 1)
    if any(before >= after for before, after in pairwise(bounds)):
        msg = f"numbers that are pending do not ascend from 1 to {newest}"
        raise ValueError(msg)
    flushed_at_ms = value["flushed_at_ms"]
    return PendingNumbers(numbers, None if flushed_at_ms is None else natural(flushed_at_ms))


def _most(frame: bytes) -> int:
    return max(_MOST_BYTES, _MOST_TIMES * len(frame))


def _opened(frame: bytes) -> bytes:
    """Return what a frame holds; ValueError where that is more than any checkpoint would be."""
    num_bytes = zstandard.get_frame_parameters(frame).content_size
    if num_bytes > _most(frame):
        msg = f"{len(frame)} bytes would become {num_bytes}"
        raise ValueError(msg)
    return zstandard.ZstdDecompressor().decompress(frame)
