"""Batches left out of the footer of an Arrow IPC file."""

from __future__ import annotations

import pyarrow as pa
import pytest

from arrow_format.format.ipc import keep_batches

BATCHES = [
    pa.record_batch({"a": pa.array([i, None, -i]), "s": [f"row {i}", "", None]}) for i in range(5)
]


def _written() -> tuple[bytes, list[int]]:
    """Return the file and where it ends before each batch, and after the last."""
    sink = pa.BufferOutputStream()
    ends = []
    with pa.ipc.new_file(sink, BATCHES[0].schema) as writer:
        for batch in BATCHES:
            writer.write_batch(batch)
            ends.append(sink.tell())
    return sink.getvalue().to_pybytes(), ends


@pytest.mark.parametrize("kept", range(1, 6))
def test_arrow_reads_the_batches_that_are_left(kept):
    file, ends = _written()
    shortened = file[: ends[kept - 1]] + keep_batches(file[ends[-1] :], kept)
    with pa.ipc.open_file(pa.py_buffer(shortened)) as reader:
        assert reader.num_record_batches == kept
        assert [reader.get_batch(i) for i in range(kept)] == BATCHES[:kept]
    # The stream before the footer is whole as well.
    with pa.ipc.open_stream(pa.py_buffer(shortened[8:])) as stream:
        assert list(stream) == BATCHES[:kept]


@pytest.mark.parametrize("kept", [0, 6])
def test_more_than_there_are_or_none_is_refused(kept):
    file, ends = _written()
    with pytest.raises(ValueError, match=f"IPC file of {kept} batches"):
        keep_batches(file[ends[-1] :], kept)
