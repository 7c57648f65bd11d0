"""A batch in a zstd frame: of known columns, in memory that is known before."""

from __future__ import annotations

import pyarrow as pa
import pytest
import zstandard

from arrow_format.format.batch_frame import (
    MALFORMED,
    content_size,
    decode_batch,
    decode_batches,
    encode_batch,
)
from tests.support.chunks import compressed_message

NESTED = pa.schema(
    [
        pa.field("a", pa.int64(), nullable=False),
        pa.field("m", pa.map_(pa.string(), pa.field("value", pa.list_(pa.int8()), False))),
        pa.field("s", pa.struct([pa.field("x", pa.bool_()), pa.field("y", pa.string(), False)])),
    ]
)
ROWS = [
    {"a": 1, "m": [("k", [1, None])], "s": {"x": True, "y": "é"}},
    {"a": 2, "m": None, "s": {"x": None, "y": ""}},
]
BATCH = pa.RecordBatch.from_pylist(ROWS, schema=NESTED)


def test_a_batch_comes_back():
    frame = encode_batch(BATCH)
    assert content_size(frame) == len(zstandard.decompress(frame))
    assert decode_batch(memoryview(frame), NESTED) == BATCH
    nothing = BATCH.slice(0, 0)
    assert decode_batch(encode_batch(nothing), NESTED) == nothing
    table, counts = decode_batches([frame, encode_batch(nothing), frame], NESTED)
    assert (table, counts) == (pa.Table.from_batches([BATCH] * 2), [2, 0, 2])


@pytest.mark.parametrize("schema", [pa.schema([*NESTED][:2]), NESTED.append(pa.field("b", "int8"))])
def test_a_batch_of_fewer_or_more_columns_is_refused(schema):
    with pytest.raises(ValueError, match=r"a batch of 9 arrays, expected (6|10)"):
        decode_batch(encode_batch(BATCH), schema)


def _inside(frame: bytes) -> bytes:
    return bytes(zstandard.decompress(frame))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"no frame",
        encode_batch(BATCH)[:-1],
        encode_batch(BATCH)[4:],
        zstandard.ZstdCompressor(write_content_size=False).compress(_inside(encode_batch(BATCH))),
        zstandard.compress(b""),
        zstandard.compress(b"no message"),
        zstandard.compress(NESTED.serialize().to_pybytes()),
        zstandard.compress(compressed_message(BATCH)),
        encode_batch(BATCH)[:5] + b"\xff\x00" + encode_batch(BATCH)[7:],
    ],
)
def test_what_is_no_frame_of_a_batch_is_refused(frame):
    with pytest.raises(MALFORMED):
        decode_batch(frame, NESTED)
