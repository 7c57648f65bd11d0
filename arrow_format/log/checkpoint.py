"""A checkpoint: what all entries of the commit log up to one of them say together, in one file.

It makes opening a long log short, and it is what remains of entries that garbage collection
removed. It holds one whole entry that replaces many, their totals, how every job ended, the last
commit of each application, and what was pending. See ``docs/format/v1.md``.
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

from arrow_format.errors import CorruptShuffleError
from arrow_format.log.entry import (
    MALFORMED,
    LogEntry,
    TotalsFile,
    entry_from_json,
    entry_to_json,
    safe_name,
)
from arrow_format.log.names import checkpoint_path
from arrow_format.log.record import JobEnd, LastCommit, PendingNumbers
from arrow_format.log.snapshot import PlacedOutputs
from arrow_format.log.totals_file import decode_totals, encode_totals
from arrow_format.model import FORMAT_VERSION, Int64Array
from arrow_format.strict_json import check_format_version, natural, parse_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


MAGIC = b"ASHFCHK1"
_HEADER = struct.Struct("<8sQII")
HEADER_BYTES = _HEADER.size

NOTHING_PENDING = PendingNumbers()

_LEVEL = 3
_MALFORMED: tuple[type[Exception], ...] = (*MALFORMED, zstandard.ZstdError)

_MAX_BYTES, _MAX_RATIO = 64 << 20, 1000
"""A frame decompresses to no more than this, or than so many times its length. JSON of map outputs,
whose names are random, compresses to a tenth; of those without files to a 250th."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the log says up to and including one number."""

    number: int
    """Of the last entry, or fence, that it replaces."""
    entry: LogEntry | None
    """All map outputs of that version; None when the log held only fences by then."""
    jobs: Mapping[str, JobEnd]
    """How each job ended that had ended by then."""
    applications: Mapping[str, LastCommit] = field(default_factory=dict)
    """The newest commit of each application that had any by then."""
    pending: PendingNumbers | None = NOTHING_PENDING
    """What was pending then; None where the release that wrote it did not know of that."""


def compose(entries: Sequence[LogEntry]) -> LogEntry:
    """Return one whole entry for those of a version, first to last; its totals are still unset."""
    placed = PlacedOutputs.of(entries)
    last = entries[-1]
    # A consumer that had not consumed all of an ended result learns from it where to go on.
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
    """Encode a checkpoint with the rows and bytes per subpartition (int64) of its entry, if any.

    Its entry's :attr:`LogEntry.totals` is not used.
    """
    stored = b"" if totals is None else encode_totals(*totals)
    entry: dict[str, Any] | None = None
    if checkpoint.entry is not None:
        described = TotalsFile.of(checkpoint_path(checkpoint.number), stored)
        entry = entry_to_json(replace(checkpoint.entry, totals=described))
    ends: dict[bool, list[list[Any]]] = {False: [], True: []}
    for job_id, end in checkpoint.jobs.items():
        ends[end.fenced].append([end.version, job_id])
    last = [[end.version, name, end.number] for name, end in checkpoint.applications.items()]
    # Left out where empty: such checkpoints have the bytes they always had. Only applications have
    # anything pending, so both fields are written, or neither.
    later: dict[str, Any] = {}
    if last:
        later["applications"] = last
    pending = checkpoint.pending
    if pending is not None and (last or pending != NOTHING_PENDING):
        later["pending"] = {
            "numbers": list(pending.numbers),
            "flushed_at_ms": pending.flushed_at_ms,
        }
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
    """Return how many bytes follow the header, before the totals; raises CorruptShuffleError."""
    magic, length, _, reserved = _HEADER.unpack(header)
    if magic != MAGIC or reserved:
        msg = "does not begin as a checkpoint"
        raise CorruptShuffleError(msg)
    return int(length)


def decode_checkpoint(header: bytes, body: bytes, num_bytes: int) -> Checkpoint:
    """Verify and parse a checkpoint of ``num_bytes``, but for its totals.

    ``header`` is the first :data:`HEADER_BYTES` bytes, ``body`` the :func:`body_bytes` after it.
    Raises CorruptShuffleError where any byte differs from what was written, or the file is longer
    or shorter, and FormatVersionError where a newer release wrote it.
    """
    _, length, crc32, _ = _HEADER.unpack(header)
    if len(body) != length or zlib.crc32(body) != crc32:
        msg = "checkpoint does not match its own checksum"
        raise CorruptShuffleError(msg)
    try:
        value = parse_object(_decompressed(body))
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
    except _MALFORMED as error:
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
    """Verify and parse a checkpoint with its totals, given all its bytes."""
    header = data[:HEADER_BYTES]
    end = HEADER_BYTES + body_bytes(header)
    checkpoint = decode_checkpoint(header, data[HEADER_BYTES:end], len(data))
    entry = checkpoint.entry
    return checkpoint, None if entry is None else decode_totals(pa.py_buffer(data[end:]), entry)


def _pending_from_json(value: Mapping[str, Any], newest: int) -> PendingNumbers:
    numbers = tuple(map(natural, value["numbers"]))
    bounds = (0, *numbers, newest + 1)
    if any(before >= after for before, after in pairwise(bounds)):
        msg = f"numbers that are pending do not ascend from 1 to {newest}"
        raise ValueError(msg)
    flushed_at_ms = value["flushed_at_ms"]
    return PendingNumbers(numbers, None if flushed_at_ms is None else natural(flushed_at_ms))


def _decompressed(frame: bytes) -> bytes:
    """Decompress a frame; ValueError where that takes more memory than any checkpoint would."""
    num_bytes = zstandard.get_frame_parameters(frame).content_size
    if num_bytes > max(_MAX_BYTES, _MAX_RATIO * len(frame)):
        msg = f"{len(frame)} bytes would become {num_bytes}"
        raise ValueError(msg)
    return zstandard.ZstdDecompressor().decompress(frame)
