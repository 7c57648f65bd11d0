"""Chunks to bytes and back; damage is noticed before anything is decoded or allocated."""

import random
import zlib
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.arrays.stored_types import data_schema, normalise
from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.format.chunk_table import ChunkFrames
from arrow_format.format.codec import EncodedChunk, StoredChunk
from arrow_format.format.codec_none import message_frames
from arrow_format.format.codec_zstd import FrameEncoder, ZstdCodec
from arrow_format.format.codecs import CODECS, ChunkDecoder
from arrow_format.format.packed_encoder import PackedRows
from tests.support.chunks import decoded, places_of
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import SCHEMA, numbered
from tests.support.tables import tables

FORMS = pytest.mark.parametrize("frames", [False, True], ids=["IPC", "frames"])


def encoded(batch, level=1, *, frames=True):
    if frames:
        columns = PackedRows(batch).columns(0, batch.num_rows)
        return FrameEncoder(level, 256 << 10).encode([columns])[0]
    message = batch.serialize()
    crc32 = zlib.crc32(message)
    return EncodedChunk(message, message_frames(batch.num_columns, message.size, crc32))


def decode(chunk, rows, schema=SCHEMA, columns=None, **changes):
    decoder = ChunkDecoder(schema, columns)
    frames = replace(chunk.frames, **changes)
    return decoded(decoder, pa.py_buffer(chunk.payload), frames, rows)


def test_chunks_encoded_together_are_those_encoded_alone():
    encoder = FrameEncoder(1, 256 << 10)
    chunks = [[bytes([i]) * 5_000, b"some", bytes(range(i, 99)) * 90] for i in range(1, 9)]
    assert encoder.encode(chunks) == [encoder.encode([chunk])[0] for chunk in chunks]
    assert encoder.encode([]) == []


@pytest.mark.parametrize("level", [-7, 1, 3, 19])
def test_round_trip(level):
    batch = numbered(range(1000))
    chunk = encoded(batch, level)
    assert chunk.frames.encoding is ZstdCodec.encoding
    assert len(chunk.payload) < chunk.frames.raw_length
    assert decode(chunk, 1000).equals(batch)


@FORMS
def test_a_slice_is_stored_without_the_rest(frames):
    piece = numbered(range(1_000)).slice(500, 3)
    assert encoded(piece, frames=frames).frames.raw_length < 1_000
    assert decode(encoded(piece, frames=frames), 3).equals(piece)


def test_a_chunk_that_does_not_shrink_grows_by_little():
    schema = pa.schema([("b", pa.binary())])
    batch = pa.record_batch([[random.Random(1).randbytes(200_000)]], schema=schema)
    chunk = encoded(batch)
    assert chunk.frames.raw_length <= len(chunk.payload) < chunk.frames.raw_length + 100
    assert decode(chunk, 1, schema).equals(batch)


def opened(chunk, rows, schema, columns=None):
    stored = pa.py_buffer(chunk.payload)
    decoder = ChunkDecoder(schema, columns)
    places = places_of(chunk.frames, decoder.columns, rows)
    return decoder.open_chunks([StoredChunk(stored, places, (0, rows))])


@FORMS
def test_an_open_chunk_decodes_columns_in_steps_and_in_any_order(frames):
    batch = numbered(range(1_000)).append_column("w", pa.array(range(1_000)))
    chunk = opened(encoded(batch, frames=frames), 1_000, batch.schema, [1, 0])
    assert chunk.num_rows == 1_000
    assert chunk.columns([]) == []
    for positions in ([0], [1], [1, 0], [0, 1], [0]):
        expected = [batch.column([1, 0][i]) for i in positions]
        assert [*map(pa.Array.to_pylist, chunk.columns(positions))] == [
            column.to_pylist() for column in expected
        ]


def test_a_damaged_frame_is_found_by_those_who_need_it_and_says_which_columns_it_has():
    batch = pa.record_batch(
        {"a": np.arange(5_000) ** 2, "few": np.zeros(5_000, np.bool_), "b": np.arange(5_000) ** 3}
    )
    chunk = encoded(batch)
    start, stop = chunk.frames.edges[1:3]
    payload = bytearray(chunk.payload)
    payload[(start + stop) // 2] ^= 1
    damaged = opened(EncodedChunk(bytes(payload), chunk.frames), 5_000, batch.schema)
    assert damaged.columns([0, 1])[0].equals(batch.column(0))
    with pytest.raises(CorruptShuffleError, match="frame 1, of the columns b: CRC-32"):
        damaged.columns([1, 2])


def test_a_frame_of_many_columns_names_some():
    batch = pa.record_batch({f"c{i}": [i] for i in range(20)})
    with pytest.raises(CorruptShuffleError, match=r"columns c0, .*, c7 and 12 more: CRC-32"):
        decode(encoded(batch), 1, batch.schema, crc32=[0])


def test_only_the_frames_of_wanted_columns_are_decompressed():
    columns = {f"c{i}": np.sqrt(np.arange(10_000) + i) for i in range(20)}  # views of what is there
    batch = pa.record_batch(columns)
    chunk = opened(encoded(batch), 10_000, batch.schema)
    before = pa.total_allocated_bytes()
    kept = [chunk.columns([3])]
    one = pa.total_allocated_bytes() - before
    kept.append(chunk.columns(range(20)))
    assert 80_000 <= one < 90_000
    assert pa.total_allocated_bytes() - before >= one + 1_600_000


@pytest.mark.slow
@FORMS
@given(data=st.data())
def test_decoding_some_columns_is_decoding_all_and_selecting(frames, data):
    table = data.draw(tables())
    schema = data_schema(table.schema)
    for stored in table.to_batches():
        batch = normalise(stored, schema)
        columns = data.draw(st.lists(st.integers(0, batch.num_columns - 1), max_size=6))
        chunk = encoded(batch, frames=frames)
        expected = decode(chunk, batch.num_rows, schema).select(columns)
        found = decode(chunk, batch.num_rows, schema, columns)
        found.validate(full=True)
        assert found.num_rows == batch.num_rows
        assert found.schema.equals(expected.schema)
        assert found.schema.equals(ChunkDecoder(schema, columns).schema)
        assert repr([c.to_pylist() for c in found]) == repr([c.to_pylist() for c in expected])


@pytest.mark.slow
@FORMS
@given(data=st.data())
def test_decoding_some_rows_is_decoding_all_and_slicing(frames, data):
    table = data.draw(tables())
    schema = data_schema(table.schema)
    for stored in table.to_batches():
        batch = normalise(stored, schema)
        num_rows = batch.num_rows
        first, end = sorted(data.draw(st.tuples(*[st.integers(0, num_rows)] * 2)))
        chunk = encoded(batch, frames=frames)
        payload = pa.py_buffer(chunk.payload)
        expected = decode(chunk, num_rows, schema).slice(first, end - first)
        places = places_of(chunk.frames, range(len(schema)), num_rows)
        found = ChunkDecoder(schema).decode([StoredChunk(payload, places, (first, end))])
        found.validate(full=True)
        assert found.schema.equals(expected.schema)
        assert found.num_rows == end - first
        assert repr([c.to_pylist() for c in found]) == repr([c.to_pylist() for c in expected])


@FORMS
def test_rows_that_are_not_wanted_are_not_kept_in_memory(frames):
    numbers = np.random.default_rng(1).random(4_000)
    batch = pa.record_batch(
        {
            "as it is": numbers,
            "text": [f"{number}" for number in numbers],
            "list": [[number, None] for number in numbers],
            "flag": pa.array([None if number < 0.1 else number < 0.5 for number in numbers]),
            "fixed": pa.array([b"0123456789abcdef"] * 4_000, pa.binary(16)),
        }
    )
    chunk = encoded(batch, frames=frames)
    payload = pa.py_buffer(chunk.payload)
    places = places_of(chunk.frames, range(batch.num_columns), 4_000)
    found = ChunkDecoder(batch.schema).decode([StoredChunk(payload, places, (1_001, 1_009))])
    assert found.equals(batch.slice(1_001, 8))
    for column in found.columns:
        for buffer in column.buffers():
            assert buffer is None or buffer.size < 1_000
            assert buffer is None or buffer.parent is None or buffer.parent.size < 1_000


@FORMS
def test_what_is_not_wanted_is_not_kept_in_memory(frames):
    batch = pa.record_batch({"text": [f"{i:04}" for i in range(1000)], "rest": ["x" * 500] * 1000})
    chunk = encoded(batch, frames=frames)
    found = decode(chunk, 1000, batch.schema, [0])
    assert found.equals(batch.select([0]))
    # The buffer of a slice says what it is part of.
    for buffer in found.column(0).buffers():
        assert buffer is None or buffer.parent is None or buffer.parent.size < 20_000


def test_frames_that_nobody_asks_for_are_not_looked_at():
    chunk = encoded(numbered(range(20)))
    assert decode(chunk, 20, SCHEMA, [], crc32=[0]).num_rows == 20


def test_chunks_decode_independently_and_in_any_order():
    decoder = ChunkDecoder(SCHEMA)
    batches = [numbered(range(n), n) for n in range(1, 30)]
    chunks = [encoded(batch, frames=batch.num_rows % 2 == 0) for batch in batches]
    order = list(range(len(chunks)))
    random.Random(2).shuffle(order)
    for i in [*order, *order]:
        found = decoded(decoder, pa.py_buffer(chunks[i].payload), chunks[i].frames, i + 1)
        assert found.equals(batches[i])


def test_every_flip_and_every_truncation_is_caught():
    chunk = encoded(numbered(range(20)))
    payload = bytes(chunk.payload)
    decoder = ChunkDecoder(SCHEMA)
    for i in range(len(payload)):
        flipped = bytearray(payload)
        flipped[i] ^= 0xFF
        for damaged in (bytes(flipped), payload[:i]):
            with pytest.raises(CorruptShuffleError, match="CRC-32"):
                decoded(decoder, pa.py_buffer(damaged), chunk.frames, 20)


@guarantee("expansion limits")
def test_a_frame_that_states_another_length_is_refused():
    """Only what the index states is allocated."""
    schema = pa.schema([("v", pa.int64())])
    batch = pa.record_batch([np.arange(50) ** 2], schema=schema)
    chunk = encoded(batch)
    raw = chunk.frames.raw_length
    bomb = b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little") + b"\x01\x00\x00"
    assert zstandard.frame_content_size(bomb) == 1 << 40
    frames = ChunkFrames(1, [0], [raw], [len(bomb)], [zlib.crc32(bomb)])
    with pytest.raises(CorruptShuffleError, match="not a record batch"):
        decode(EncodedChunk(bomb, frames), 50, schema)
    for size in (raw - 8, raw + 8):
        with pytest.raises(CorruptShuffleError, match="ZSTD"):
            decode(chunk, 50, schema, column_raw_length=[size])


def test_frames_that_are_wrong_by_as_much_are_refused_together():
    columns = {f"c{i}": np.sqrt(np.arange(2_000) + i) for i in range(6)}
    batch = pa.record_batch(columns)
    chunk = encoded(batch)
    raw = [*chunk.frames.column_raw_length]
    assert len(chunk.frames.length) == len(raw) == 6
    with pytest.raises(CorruptShuffleError, match="ZSTD"):
        decode(chunk, 2_000, batch.schema, column_raw_length=[raw[0] + 8, raw[1] - 8, *raw[2:]])


def test_what_is_no_chunk():
    noise = b"no such thing"
    for codec in CODECS.values():
        frames = replace(
            message_frames(len(SCHEMA), len(noise), zlib.crc32(noise)), encoding=codec.encoding
        )
        with pytest.raises(CorruptShuffleError, match="not a record batch"):
            decode(EncodedChunk(noise, frames), 1)


@FORMS
def test_a_message_of_other_columns_is_refused(frames):
    chunk = encoded(
        pa.record_batch({f"x{i}": np.arange(9) for i in range(len(SCHEMA))}), frames=frames
    )
    with pytest.raises(CorruptShuffleError, match="not a record batch of the shuffle's schema"):
        decode(chunk, 9)


@FORMS
def test_number_of_rows_and_encoding_must_be_as_the_index_says(frames):
    chunk = encoded(numbered(range(20)), frames=frames)
    with pytest.raises(CorruptShuffleError, match="not a record batch of the shuffle's schema"):
        decode(chunk, 50)
    with pytest.raises(FormatVersionError, match="chunk encoding 2 is not known"):
        decode(chunk, 20, encoding=2)
