"""What compressing the chunks of a finished shuffle costs by itself; runs in a fresh process."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import zstandard

from arrow_format import WriteOptions, open_shuffle
from arrow_format.model import Encoding
from arrow_format.read.chunk_reader import ChunkReader
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.storage.open import open_storage

FRAMED = (Encoding.ZSTD, Encoding.PACKED_ZSTD)


def compress_again(scratch: str) -> dict[str, Any]:
    """Compress the raw messages of all chunks that ``write_once`` kept, as it did.

    Messages are taken out of their frames before the clock starts; one compressor with the same
    parameters is used for all.

    Returns
    -------
    dict
        ``seconds``, ``cpu_seconds``; ``num_bytes``: of the frames.
    """
    messages, stored_bytes = _messages(Path(scratch) / "out")
    options = WriteOptions()
    compressor = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters.from_level(
            options.codec_level, source_size=options.chunk_bytes, write_content_size=True
        )
    )
    num_bytes = sum(min(len(compressor.compress(m)), len(m)) for m in messages)
    if num_bytes != stored_bytes:
        msg = f"{scratch}: {num_bytes} bytes compressed, {stored_bytes} stored: not the same work"
        raise RuntimeError(msg)
    gc.collect()
    cpu_before, started = time.process_time(), time.perf_counter()
    for message in messages:
        compressor.compress(message)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_before
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "num_bytes": num_bytes}


def _messages(path: Path) -> tuple[list[bytes], int]:
    """Raw messages of all chunks, and the bytes they have as stored."""
    storage, dataset = open_storage(str(path)), open_shuffle(path)
    decompressor = zstandard.ZstdDecompressor()
    messages: list[bytes] = []
    stored_bytes = 0
    for file in (file for output in dataset.map_outputs for file in output.files):
        index = PartitionedFileReader(storage, file)
        for chunk in ChunkReader(index, dataset.schema).stored(0, len(index.regions)):
            payload = memoryview(chunk.payload)
            framed = chunk.encoding in FRAMED
            messages.append(decompressor.decompress(payload) if framed else payload.tobytes())
            stored_bytes += payload.nbytes
    return messages, stored_bytes
