"""The file next to a log entry that says how many rows and bytes each subpartition has.

See ``docs/format/v1.md``.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import pyarrow as pa

from arrow_format.arrays.buffers import to_arrow, to_numpy
from arrow_format.errors import CorruptShuffleError
from arrow_format.format.ipc import check_stream
from arrow_format.log.framing import readable

if TYPE_CHECKING:
    from arrow_format.log.entry import LogEntry
    from arrow_format.model import Int64Array
    from arrow_format.storage.protocol import Storage

_IPC_MAGIC = b"ARROW1\0\0"
_TOTALS_SCHEMA = pa.schema(
    [pa.field("num_rows", pa.int64(), False), pa.field("num_bytes", pa.int64(), False)]
)


def encode_totals(num_rows: Int64Array, num_bytes: Int64Array) -> bytes:
    """Encode rows and bytes per subpartition as an Arrow IPC file with zstd buffers."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, _TOTALS_SCHEMA, options=options) as writer:
        writer.write_batch(
            pa.RecordBatch.from_arrays(
                [to_arrow(num_rows), to_arrow(num_bytes)], schema=_TOTALS_SCHEMA
            )
        )
    return bytes(sink.getvalue().to_pybytes())


def read_totals(data: pa.Buffer, num_subpartitions: int) -> tuple[Int64Array, Int64Array]:
    """Inverse of :func:`encode_totals`; raises ValueError or an Arrow exception.

    A file that would take more memory than ``num_subpartitions`` rows is refused before it is read.
    """
    # A stream with a footer: read from its start, so that the footer cannot lead elsewhere.
    stream = memoryview(data)[len(_IPC_MAGIC) :]
    check_stream(stream, 1024 + 18 * num_subpartitions)
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        batches = list(reader)
    fits = len(batches) == 1 and batches[0].schema.equals(_TOTALS_SCHEMA)
    if not fits or batches[0].num_rows != num_subpartitions:
        msg = f"not one batch of {num_subpartitions} rows and bytes"
        raise ValueError(msg)
    batches[0].validate(full=True)
    rows, sizes = (to_numpy(column) for column in batches[0].columns)
    if int(rows.min()) < 0 or int(sizes.min()) < 0:
        msg = "a number of rows or bytes is below 0"
        raise ValueError(msg)
    return rows, sizes


def decode_totals(data: pa.Buffer, entry: LogEntry) -> tuple[Int64Array, Int64Array]:
    """Verify and parse the totals of ``entry``: rows and bytes per subpartition (int64).

    Raises CorruptShuffleError where they differ from what the entry says.
    """
    if data.size != entry.totals.length or zlib.crc32(data) != entry.totals.crc32:
        msg = f"totals of version {entry.version} differ from those that were committed"
        raise CorruptShuffleError(msg)
    try:
        rows, sizes = read_totals(data, entry.num_subpartitions)
    except (pa.ArrowException, OSError, ValueError) as error:
        msg = f"totals of version {entry.version} are not of this format ({error})"
        raise CorruptShuffleError(msg) from error
    expected = entry.delivered_rows, entry.num_bytes
    # Values too large to be summed in 64 bits are too large altogether.
    is_small = max(float(rows.sum(dtype=float)), float(sizes.sum(dtype=float))) < 1 << 62
    if not is_small or (int(rows.sum()), int(sizes.sum())) != expected:
        msg = (
            f"totals of version {entry.version} do not add up to its {entry.delivered_rows} rows "
            f"in {entry.num_bytes} bytes"
        )
        raise CorruptShuffleError(msg)
    return rows, sizes


def put_totals(storage: Storage, entry: LogEntry, totals: bytes, *, sync: bool) -> None:
    """Put the totals that an entry names, before the entry itself; durable with ``sync``.

    Raises ShuffleError where readers would refuse them: they do not add up to what the entry says.
    """
    path = entry.totals.path
    where = f"{storage.root}/{path}"
    readable(totals, lambda data: decode_totals(pa.py_buffer(data), entry), where)
    storage.put_if_absent(path, totals, sync=sync)
