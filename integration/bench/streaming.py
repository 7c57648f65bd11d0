"""One map task fed by an endless stream, and the memory it takes; runs in a fresh process."""

from __future__ import annotations

import gc
import resource
import shutil
import sys
import time
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from arrow_format import WriteOptions, write_shuffle
from integration.bench.ipc import BATCH_ROWS, as_over_ipc, read_batches
from integration.bench.lineitem import KEY

if TYPE_CHECKING:
    from collections.abc import Iterator

WARM_ROWS = 1_000
LOOK_EVERY = 16
"""Batches between two looks at the open files."""

_DESCRIPTORS = Path("/proc/self/fd")
_STATUS = Path("/proc/self/status")
_RESET_PEAK = Path("/proc/self/clear_refs")


def _lineitem(rows: str) -> list[pa.RecordBatch]:
    return read_batches(Path(rows), 8)


def _narrow(rows: str) -> list[pa.RecordBatch]:
    del rows
    numbers = np.random.default_rng(1).integers(0, 1 << 40, BATCH_ROWS)
    texts = [f"row {number % 10_007} of some" for number in numbers.tolist()]
    return [pa.record_batch({KEY: numbers, "text": texts})]


def _one_int32(rows: str) -> list[pa.RecordBatch]:
    del rows
    numbers = np.random.default_rng(1).integers(0, 1 << 31, BATCH_ROWS, np.int32)
    return [pa.record_batch({KEY: numbers})]


def _long_texts(rows: str) -> list[pa.RecordBatch]:
    del rows
    octets = np.random.default_rng(1).integers(32, 127, 1 << 20, np.uint8).tobytes().decode()
    texts = [octets[i:] + octets[:i] for i in range(10)]
    return [pa.record_batch({KEY: np.arange(10, dtype=np.int64), "text": texts})]


INPUTS = {
    "lineitem": _lineitem,
    "int64 + string": _narrow,
    "one int32": _one_int32,
    "1 MB strings": _long_texts,
}
"""What the rows of the stream look like, by label; a few batches are repeated over and over."""


def stream_once(
    rows_like: str,
    rows: str,
    scratch: str,
    num_subpartitions: int,
    codec: str,
    num_bytes: int,
) -> dict[str, Any]:
    """Write a stream of ``num_bytes`` with default options and look at the memory.

    Parameters
    ----------
    rows_like
        A key of :data:`INPUTS`.
    rows
        IPC stream of lineitem.
    scratch
        Directory to write to; it must not exist.
    num_subpartitions, codec
        How to write.
    num_bytes
        Bytes of the stream, in Arrow.

    Returns
    -------
    dict
        ``seconds``; in bytes ``base_bytes`` (RSS after one tiny flush), ``peak_bytes`` (highest RSS
        since), ``largest_batch_bytes``, ``sort_buffer_bytes``, ``stored_bytes``; ``open_files``:
        the most seen while rows arrive, beyond those open before; None where that cannot be seen.
    """
    options = WriteOptions(codec=codec, sync=False)
    root = Path(scratch)
    root.mkdir(parents=True)
    batches = INPUTS[rows_like](rows)
    schema = batches[0].schema
    messages = [bytes(batch.serialize()) for batch in batches]
    tiny = batches[0].slice(0, WARM_ROWS)
    largest = max(batch.get_total_buffer_size() for batch in batches)
    count = -(-num_bytes // (sum(batch.nbytes for batch in batches) // len(batches)))
    batches.clear()
    try:
        write_shuffle(
            [tiny], root / "tiny", num_subpartitions=num_subpartitions, keys=KEY, options=options
        )
        files_before, most_files = _open_files(), 0

        def arrive() -> Iterator[pa.RecordBatch]:
            nonlocal most_files
            for number, message in enumerate(islice(cycle(messages), count)):
                if number % LOOK_EVERY == 0:
                    most_files = max(most_files, _open_files())
                yield as_over_ipc(message, schema)

        # Memory that was freed but not given back would hide as much of what is taken later.
        del tiny
        gc.collect()
        pa.default_memory_pool().release_unused()
        _reset_peak()
        base = _resident_bytes()
        started = time.perf_counter()
        receipt = write_shuffle(
            arrive(),
            root / "out",
            num_subpartitions=num_subpartitions,
            keys=KEY,
            options=options,
        )
        seconds = time.perf_counter() - started
        return {
            "seconds": seconds,
            "base_bytes": base,
            "peak_bytes": _peak_bytes(),
            "largest_batch_bytes": largest,
            "sort_buffer_bytes": options.sort_buffer_bytes,
            "stored_bytes": receipt.num_bytes,
            "open_files": most_files - files_before if _DESCRIPTORS.exists() else None,
        }
    finally:
        shutil.rmtree(root)


def _open_files() -> int:
    return sum(1 for _ in _DESCRIPTORS.iterdir()) if _DESCRIPTORS.exists() else 0


def _reset_peak() -> None:
    """Forget the peak so far, where the system can; otherwise the peak includes the base's."""
    try:
        _RESET_PEAK.write_text("5")
    except OSError:
        return


def _resident_bytes() -> int:
    return _status("VmRSS") if _STATUS.exists() else _peak_bytes()


def _peak_bytes() -> int:
    if _STATUS.exists():
        return _status("VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    msg = f"{_STATUS} has no {name}"
    raise RuntimeError(msg)
