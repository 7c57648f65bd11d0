"""Peak memory and open files of one map task that a long stream feeds, in a fresh process.

Needs Linux: memory and open files are those that ``/proc`` shows.
"""

from __future__ import annotations

import gc
import shutil
import time
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from arrow_format import WriteOptions, write_shuffle
from integration.bench import targets
from integration.bench.child import run_in_child
from integration.bench.inputs import BATCH_ROWS, KEY, as_over_ipc, ipc_stream, read_batches
from integration.bench.results import Line, Part, Timing, amount_line
from tests.support.memory import forget_peak, resident_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from integration.bench.rounds import Settings

NUM_SUBPARTITIONS, MANY_SUBPARTITIONS = 200, 20_000
WARM_ROWS = 1_000
SAMPLE_EVERY = 16
"""Batches between two counts of the open files."""

MIB = 1 << 20


def _narrow() -> pa.RecordBatch:
    numbers = np.random.default_rng(1).integers(0, 1 << 40, BATCH_ROWS)
    texts = [f"row {number % 10_007} of some" for number in numbers.tolist()]
    return pa.record_batch({KEY: numbers, "text": texts})


def _one_int32() -> pa.RecordBatch:
    numbers = np.random.default_rng(1).integers(0, 1 << 31, BATCH_ROWS, np.int32)
    return pa.record_batch({KEY: numbers})


def _long_texts() -> pa.RecordBatch:
    octets = np.random.default_rng(1).integers(32, 127, 1 << 20, np.uint8).tobytes().decode()
    texts = [octets[i:] + octets[:i] for i in range(10)]
    return pa.record_batch({KEY: np.arange(10, dtype=np.int64), "text": texts})


INPUTS = {"int64 + string": _narrow, "one int32": _one_int32, "1 MB strings": _long_texts}
"""Rows of a stream other than those of lineitem: a batch that is repeated over and over."""


def stream_once(
    rows_like: str,
    rows: str,
    scratch: str,
    num_subpartitions: int,
    codec: str,
    num_bytes: int,
) -> dict[str, Any]:
    """Write a stream of ``num_bytes`` (in Arrow) with default options and measure the memory.

    ``rows_like`` is a key of :data:`INPUTS`, or ``lineitem``: the first batches of the IPC stream
    ``rows``. ``scratch`` is a directory that does not exist.

    Returns
    -------
    dict
        ``seconds``; in bytes ``base_bytes`` (RSS after one tiny flush), ``peak_bytes`` (highest RSS
        since), ``largest_batch_bytes``, ``sort_buffer_bytes``, ``stored_bytes``; ``open_files``:
        the most seen while rows arrive, beyond those open before.
    """
    options = WriteOptions(codec=codec, sync=False)
    root = Path(scratch)
    root.mkdir(parents=True)
    batches = [INPUTS[rows_like]()] if rows_like in INPUTS else read_batches(Path(rows), 8)
    schema = batches[0].schema
    messages = [bytes(batch.serialize()) for batch in batches]
    tiny = batches[0].slice(0, WARM_ROWS)
    largest = max(batch.get_total_buffer_size() for batch in batches)
    count = -(-num_bytes // (sum(batch.nbytes for batch in batches) // len(batches)))
    batches.clear()
    how: dict[str, Any] = {"num_subpartitions": num_subpartitions, "keys": KEY, "options": options}
    try:
        write_shuffle([tiny], root / "tiny", **how)
        files_before, most_files = _open_files(), 0

        def arrive() -> Iterator[pa.RecordBatch]:
            nonlocal most_files
            for number, message in enumerate(islice(cycle(messages), count)):
                if number % SAMPLE_EVERY == 0:
                    most_files = max(most_files, _open_files())
                yield as_over_ipc(message, schema)

        # Memory that was freed but not given back would hide as much of what is taken later.
        del tiny
        gc.collect()
        pa.default_memory_pool().release_unused()
        base = forget_peak()
        started = time.perf_counter()
        receipt = write_shuffle(arrive(), root / "out", **how)
        return {
            "seconds": time.perf_counter() - started,
            "base_bytes": base,
            "peak_bytes": resident_bytes(),
            "largest_batch_bytes": largest,
            "sort_buffer_bytes": options.sort_buffer_bytes,
            "stored_bytes": receipt.num_bytes,
            "open_files": most_files - files_before,
        }
    finally:
        shutil.rmtree(root)


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def memory_limit(base_bytes: int, sort_buffer_bytes: int, largest_batch_bytes: int) -> int:
    """Bytes that a map task may take at most, as users are promised."""
    return base_bytes + sort_buffer_bytes * 5 // 4 + 64 * MIB + largest_batch_bytes


def memory_lines(case: str, answer: Mapping[str, Any]) -> list[Line]:
    """Lines of the table on one stream, from the answer of :func:`stream_once`."""
    base, open_files = answer["base_bytes"], answer["open_files"]
    limit = memory_limit(base, answer["sort_buffer_bytes"], answer["largest_batch_bytes"])
    peaks = ("peak", answer["peak_bytes"] / MIB), ("limit", limit / MIB)
    files = ("open", open_files), ("allowed", targets.MAX_OPEN_FILES)
    what = f"peak RSS, limit = 1 (base {base / MIB:.0f} MiB)"
    at_most_1 = targets.WITHIN_LIMIT
    return [
        amount_line(case, what, *peaks, "MiB", at_most_1),
        amount_line(case, "open files, most allowed = 1", *files, "files", at_most_1),
    ]


def run(settings: Settings) -> Part:
    """Measure memory; one round."""
    settings.report("making the input")
    rows = str(ipc_stream(settings.scale))
    size = f"{settings.memory_bytes / 1e9:g} GB"
    part = Part("memory", f"One map task, {size} streamed through it, default options")
    part.notes.append(
        "limit: base after one tiny flush + 1.25 x sort buffer + 64 MiB + the largest batch"
    )
    cases = [(rows_like, NUM_SUBPARTITIONS) for rows_like in ("lineitem", *INPUTS)]
    cases.append(("lineitem", MANY_SUBPARTITIONS))
    for codec in settings.codecs:
        for rows_like, n in cases:
            case = f"{rows_like}, {codec}, n = {n:,}"
            settings.report(f"memory: {case}")
            answer = run_in_child(
                stream_once,
                rows_like=rows_like,
                rows=rows,
                scratch=str(settings.scratch / "stream"),
                num_subpartitions=n,
                codec=codec,
                num_bytes=settings.memory_bytes,
            )
            part.lines += memory_lines(case, answer)
            part.timings[case] = (Timing("ours", (answer["seconds"],), answer["stored_bytes"]),)
    return part
