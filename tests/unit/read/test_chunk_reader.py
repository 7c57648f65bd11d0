"""Chunks that are opened before their columns are decoded."""

import pytest

from arrow_format.errors import CorruptShuffleError
from arrow_format.format.chunk_codec import ChunkDecoder
from arrow_format.options import WriteOptions
from arrow_format.read.chunk_reader import ChunkReader
from arrow_format.read.fetched_chunks import FetchedChunk, open_run
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.storage.open import open_storage
from tests.support.small_shuffles import SCHEMA, write_file


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_an_open_chunk_is_verified_and_its_errors_say_which_it_is(tmp_path, codec):
    storage = open_storage(tmp_path)
    options = WriteOptions(codec=codec, sync=False)
    file, _ = write_file(storage, [([0, 1, 1, 2], 0)], 3, options=options, path="f")
    source = ChunkReader(PartitionedFileReader(storage, file), ChunkDecoder(SCHEMA, [1]))
    ((chunk, batch),) = source.decoded(source.plan(0, 1))
    (stored,) = storage.get_ranges(source.path, [(chunk.offset, chunk.length)])
    opened = open_run([FetchedChunk(source, chunk, source.to_decode(chunk, stored))])
    with source.located(chunk):
        (column,) = opened.columns([0])
    assert opened.schema.equals(batch.schema)
    assert column.equals(batch.column(0))
    with pytest.raises(CorruptShuffleError, match=r"f\.shuffle\.data .*region 0, chunk 0 at byte"):
        source.decode(chunk, stored.slice(1))
    with (
        pytest.raises(CorruptShuffleError, match=r"chunk 0 at byte .*: torn"),
        source.located(chunk),
    ):
        raise CorruptShuffleError("torn")
