"""Chunks to bytes and back; damage is noticed before anything is decoded or allocated."""

import random
import zlib

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.arrays.stored_types import data_schema, normalise
from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.format.chunk_codec import ChunkDecoder, ZstdEncoder
from arrow_format.format.packed_encoder import PackedRows
from arrow_format.model import Encoding
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import SCHEMA, numbered
from tests.support.tables import tables

FORMS = pytest.mark.parametrize("packed", [False, True], ids=["IPC", "packed"])


def encoded(batch, level=1, *, packed=True):
    encoder = ZstdEncoder(level, 256 << 10)
    if packed:
        return encoder.encode(PackedRows(batch).message(0, batch.num_rows), Encoding.PACKED)
    return encoder.encode(batch.serialize(), Encoding.IPC)


def decode(chunk, rows, schema=SCHEMA, columns=None, **changes):
    said = {
        "encoding": chunk.encoding,
        "raw_length": chunk.raw_length,
        "crc32": zlib.crc32(chunk.payload),
        "num_rows": rows,
    }
    decoder = ChunkDecoder(schema, columns)
    return decoder.decode(pa.py_buffer(chunk.payload), **{**said, **changes})


@FORMS
@pytest.mark.parametrize("level", [-7, 1, 3, 19])
def test_round_trip(level, packed):
    batch = numbered(range(1000))
    chunk = encoded(batch, level, packed=packed)
    assert chunk.encoding is (Encoding.PACKED_ZSTD if packed else Encoding.ZSTD)
    assert len(chunk.payload) < chunk.raw_length
    assert decode(chunk, 1000).equals(batch)


@FORMS
def test_a_slice_is_stored_without_the_rest(packed):
    piece = numbered(range(1_000)).slice(500, 3)
    assert encoded(piece, packed=packed).raw_length < 1_000
    assert decode(encoded(piece, packed=packed), 3).equals(piece)


@FORMS
def test_a_chunk_that_does_not_shrink_is_stored_raw_and_marked(packed):
    schema = pa.schema([("b", pa.binary())])
    batch = pa.record_batch([[random.Random(1).randbytes(200_000)]], schema=schema)
    chunk = encoded(batch, packed=packed)
    assert chunk.encoding is (Encoding.PACKED if packed else Encoding.IPC)
    assert len(memoryview(chunk.payload)) == chunk.raw_length
    assert decode(chunk, 1, schema).equals(batch)


@FORMS
@given(data=st.data())
def test_decoding_some_columns_is_decoding_all_and_selecting(packed, data):
    table = data.draw(tables())
    schema = data_schema(table.schema)
    for stored in table.to_batches():
        batch = normalise(stored, schema)
        columns = data.draw(st.lists(st.integers(0, batch.num_columns - 1), max_size=6))
        chunk = encoded(batch, packed=packed)
        expected = decode(chunk, batch.num_rows, schema).select(columns)
        found = decode(chunk, batch.num_rows, schema, columns)
        found.validate(full=True)
        assert found.num_rows == batch.num_rows
        assert found.schema.equals(expected.schema)
        assert found.schema.equals(ChunkDecoder(schema, columns).schema)
        assert repr([c.to_pylist() for c in found]) == repr([c.to_pylist() for c in expected])


@FORMS
def test_what_is_not_wanted_is_not_kept_in_memory(packed):
    batch = pa.record_batch({"text": [f"{i:04}" for i in range(1000)], "rest": ["x" * 500] * 1000})
    chunk = encoded(batch, packed=packed)
    found = decode(chunk, 1000, batch.schema, [0])
    assert found.equals(batch.select([0]))
    # The buffer of a slice says what it is part of.
    for buffer in found.column(0).buffers():
        assert buffer is None or buffer.parent is None or buffer.parent.size < 20_000


@FORMS
def test_without_columns_a_chunk_has_rows_and_is_verified(packed):
    chunk = encoded(numbered(range(20)), packed=packed)
    found = decode(chunk, 20, SCHEMA, [])
    assert (found.num_columns, found.num_rows) == (0, 20)
    with pytest.raises(CorruptShuffleError, match="20 rows where the index says 21"):
        decode(chunk, 21, SCHEMA, [])
    with pytest.raises(CorruptShuffleError, match="CRC-32"):
        decode(chunk, 20, SCHEMA, [], crc32=0)


def test_chunks_decode_independently_and_in_any_order():
    decoder = ChunkDecoder(SCHEMA)
    batches = [numbered(range(n), n) for n in range(1, 30)]
    chunks = [encoded(batch, packed=batch.num_rows % 2 == 0) for batch in batches]
    order = list(range(len(chunks)))
    random.Random(2).shuffle(order)
    for i in [*order, *order]:
        found = decoder.decode(
            pa.py_buffer(chunks[i].payload),
            encoding=chunks[i].encoding,
            raw_length=chunks[i].raw_length,
            crc32=zlib.crc32(chunks[i].payload),
            num_rows=i + 1,
        )
        assert found.equals(batches[i])


def test_every_flip_and_every_truncation_is_caught():
    chunk = encoded(numbered(range(20)))
    payload = bytes(chunk.payload)
    said = {
        "encoding": chunk.encoding,
        "raw_length": chunk.raw_length,
        "crc32": zlib.crc32(chunk.payload),
        "num_rows": 20,
    }
    decoder = ChunkDecoder(SCHEMA)
    for i in range(len(payload)):
        flipped = bytearray(payload)
        flipped[i] ^= 0xFF
        for damaged in (bytes(flipped), payload[:i]):
            with pytest.raises(CorruptShuffleError, match="CRC-32"):
                decoder.decode(pa.py_buffer(damaged), **said)


@guarantee("expansion limits")
def test_a_frame_that_states_another_length_is_refused_unopened():
    # A bomb: the frame's header promises 1 TiB. Only the comparison with the index stands before
    # the allocation.
    bomb = b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little") + b"\x01\x00\x00"
    assert zstandard.frame_content_size(bomb) == 1 << 40
    with pytest.raises(CorruptShuffleError, match=f"states {1 << 40} bytes where the index says 8"):
        ChunkDecoder(SCHEMA).decode(
            pa.py_buffer(bomb), encoding=1, raw_length=8, crc32=zlib.crc32(bomb), num_rows=1
        )


def test_a_frame_without_its_length_is_refused():
    batch = numbered(range(50))
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(batch.serialize())
    with pytest.raises(CorruptShuffleError, match="zstd frame states -1 bytes"):
        ChunkDecoder(SCHEMA).decode(
            pa.py_buffer(frame),
            encoding=1,
            raw_length=batch.serialize().size,
            crc32=zlib.crc32(frame),
            num_rows=50,
        )


def test_what_is_no_frame_and_what_is_no_message():
    for encoding, what in (
        (0, "not a record batch"),
        (1, "not a zstd frame"),
        (2, "not a record batch"),
        (3, "not a zstd frame"),
    ):
        with pytest.raises(CorruptShuffleError, match=what):
            ChunkDecoder(SCHEMA).decode(
                pa.py_buffer(b"no such thing"),
                encoding=encoding,
                raw_length=13,
                crc32=zlib.crc32(b"no such thing"),
                num_rows=1,
            )


@FORMS
def test_a_message_of_other_columns_is_refused(packed):
    chunk = encoded(pa.record_batch({"x": np.arange(9)}), packed=packed)
    with pytest.raises(CorruptShuffleError, match="not a record batch of the shuffle's schema"):
        decode(chunk, 9)


@FORMS
def test_number_of_rows_and_encoding_must_be_as_the_index_says(packed):
    chunk = encoded(numbered(range(20)), packed=packed)
    with pytest.raises(CorruptShuffleError, match="20 rows where the index says 21"):
        decode(chunk, 21)
    with pytest.raises(FormatVersionError, match="chunk encoding 4 is not known"):
        decode(chunk, 20, encoding=4)
