"""A file that is read whole: chunks are decoded several at a time, and told apart in errors."""

import numpy as np
import pytest

from arrow_format.errors import CorruptShuffleError
from arrow_format.format.codecs import ChunkDecoder
from arrow_format.options import WriteOptions
from arrow_format.read.chunk_reader import ChunkReader
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.read.whole_file import check_file
from arrow_format.storage.open import open_storage
from tests.support.small_shuffles import SCHEMA, flip, write_file


@pytest.fixture(params=["none", "zstd"])
def source(tmp_path, request):
    """A file of two regions of several chunks, of which the second begins in the middle."""
    storage = open_storage(tmp_path)
    options = WriteOptions(codec=request.param, sync=False, chunk_bytes=1_000)
    ids = np.repeat(np.arange(50), 40)
    file, _ = write_file(storage, [(ids, 0), (ids, 20)], 50, options=options, path="f")
    found = ChunkReader(PartitionedFileReader(storage, file), ChunkDecoder(SCHEMA))
    assert all(len(region.chunks) > 3 for region in found.index.regions)
    return found


def test_each_chunk_comes_with_its_rows(source):
    expected = [*source.decoded(source.plan(0, 2))]
    found = []
    check_file(source, on_rows=lambda *one: found.append(one))
    assert found == expected


def test_copies_are_not_decoded(source):
    found = []
    check_file(
        source,
        is_copy=lambda chunk: chunk.chunk != 2,
        on_rows=lambda chunk, _: found.append((chunk.region, chunk.chunk)),
    )
    assert found == [(0, 2), (1, 2)]


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("region", [0, 1])
def test_the_error_says_which_of_several_is_damaged(source, tmp_path, region, copied):
    third = next(each for each in source.plan(region, region + 1) if each.chunk == 2)
    flip(tmp_path / source.path, third.offset + third.length // 2)
    with pytest.raises(CorruptShuffleError, match=rf"region {region}, chunk 2 at byte"):
        check_file(source, is_copy=lambda _: copied)


def test_bytes_between_chunks_are_verified(source, tmp_path):
    file = tmp_path / source.path
    flip(file, -1)
    with pytest.raises(CorruptShuffleError, match="header, padding or footer differ"):
        check_file(source)
    content = file.read_bytes()[:-1]
    file.write_bytes(content)
    with pytest.raises(CorruptShuffleError, match=rf"has {len(content)} bytes, expected"):
        check_file(source)
