"""A narrow table: a key, two numbers and a short text, made batch by batch from batch numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from integration.bench.ipc import BATCH_ROWS, as_over_ipc
from integration.programs.datasets import CACHE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY = "k"
MILLION = 1_000_000
ROWS_AT_SCALE_1 = 10 * MILLION
"""430 MB in Arrow."""

SCHEMA = pa.schema(
    {KEY: pa.int64(), "i": pa.int32(), "v": pa.float64(), "s": pa.string()},
)
_TEMPLATE = np.frombuffer(b"item-00000000-00000", np.uint8)
_DIGITS = np.flatnonzero(np.equal(_TEMPLATE, ord("0")))


def narrow_batch(number: int, num_rows: int = BATCH_ROWS) -> pa.RecordBatch:
    """Return batch ``number`` of the table, the same whenever it is made."""
    random = np.random.default_rng([7, number])
    texts = np.tile(_TEMPLATE, (num_rows, 1))
    texts[:, _DIGITS] += random.integers(0, 10, (num_rows, len(_DIGITS)), np.uint8)
    ends = np.arange(num_rows + 1, dtype=np.int32) * len(_TEMPLATE)
    columns = [
        pa.array(random.integers(0, 1 << 40, num_rows)),
        pa.array(random.integers(0, 100_000, num_rows, np.int32)),
        pa.array(random.normal(size=num_rows)),
        pa.StringArray.from_buffers(num_rows, pa.py_buffer(ends), pa.py_buffer(texts)),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def narrow_batches(num_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the first rows of the table, each batch one allocation as if it came over IPC."""
    for number, start in enumerate(range(0, num_rows, BATCH_ROWS)):
        batch = narrow_batch(number, min(BATCH_ROWS, num_rows - start))
        yield as_over_ipc(batch.serialize(), SCHEMA)


def narrow_stream(scale: float) -> Path:
    """Return an Arrow IPC stream of ten million rows times ``scale``, made on the first call."""
    path = CACHE / "bench" / f"narrow-sf{scale:g}.arrows"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(".part")
        with pa.OSFile(str(made), "wb") as file, pa.ipc.new_stream(file, SCHEMA) as writer:
            for batch in narrow_batches(max(BATCH_ROWS, round(ROWS_AT_SCALE_1 * scale))):
                writer.write_batch(batch)
        made.rename(path)
    return path
