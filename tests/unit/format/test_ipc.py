"""Batches left out of the footer of an Arrow IPC file, and bounds of metadata that lies."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from arrow_format.format.ipc import check_stream, file_metadata, is_compressed, keep_batches

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


# Metadata that is not trusted ---------------------------------------------------------------------


@pytest.mark.parametrize("count", [1 << 20, (1 << 32) - 1])
@pytest.mark.parametrize("of", [b"key", b"value"])
def test_text_that_leads_out_of_the_metadata_is_refused(of, count):
    schema = pa.schema([("a", pa.int64())], metadata={b"key": b"value"})
    sink = pa.BufferOutputStream()
    pa.ipc.new_file(sink, schema).close()
    file = sink.getvalue().to_pybytes()
    assert file_metadata(pa.py_buffer(file)) == [(b"key", b"value")]
    forged = file.replace(struct.pack("<I", len(of)) + of, struct.pack("<I", count) + of)
    assert forged != file
    with pytest.raises(ValueError, match=f"{count} items do not fit into"):
        file_metadata(pa.py_buffer(forged))


def test_metadata_is_read_to_its_last_byte():
    # Root; its vtable, and table of the header's place; the header without fields; the type.
    metadata = struct.pack("<I5HiIHHiB", 14, 10, 17, 0, 16, 4, 10, 8, 4, 4, 4, 3)
    message = struct.pack("<II", 0xFFFFFFFF, len(metadata)) + metadata
    assert is_compressed(memoryview(message)) is False
    with pytest.raises(ValueError, match=f"message of {len(message) - 1} bytes that states"):
        is_compressed(memoryview(message)[:-1])


def test_what_follows_the_end_of_a_stream_is_not_read():
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BATCHES[0].schema) as writer:
        writer.write_batch(BATCHES[0])
    stream = sink.getvalue().to_pybytes()
    for more in (b"", b"x", b"x" * 40):
        check_stream(memoryview(stream + more), 1 << 20)
        assert pa.ipc.open_stream(stream + more).read_all().to_batches() == BATCHES[:1]
    with pytest.raises(ValueError, match="a message of 1 bytes is too short"):
        check_stream(memoryview(stream[:-8] + b"x"), 1 << 20)
