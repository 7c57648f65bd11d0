"""Chunks that are opened before their columns are decoded."""

import gc
import sys

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import open_shuffle
from arrow_format.errors import CorruptShuffleError
from arrow_format.format.chunk_table import MANY_CHUNKS, ChunkPlaces
from arrow_format.format.codecs import ChunkDecoder
from arrow_format.options import WriteOptions
from arrow_format.read import chunk_reader
from arrow_format.read.chunk_plan import with_places, without_places
from arrow_format.read.chunk_reader import ChunkReader, looked_up
from arrow_format.read.fetched_chunks import FetchedChunk, open_run
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.storage.open import open_storage
from tests.support.small_shuffles import SCHEMA, write_file, write_rows


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


def test_rows_that_a_filter_keeps_of_a_message_do_not_keep_it(tmp_path):
    """Most of a chunk, one behind the other, of a small column beside large ones"""
    rows = np.arange(4_000)
    wide = {f"c{i}": rows.astype(float) for i in range(20)}
    table = pa.table({"r": rows, "small": rows.astype(np.int8), **wide})
    options = WriteOptions(codec="none", sync=False)
    write_rows(tmp_path / "s", table, "r", n=1, options=options)
    reader = open_shuffle(tmp_path / "s").where("r < 3000").reader(0, 1, ["small"])
    kept = [run.batch.column(0) for run in reader]
    assert sum(map(len, kept)) == 3_000
    for column in kept:
        (_, values) = column.buffers()
        whole = values if values.parent is None else values.parent
        assert whole.size < 8 * len(column)


def _places_held():
    gc.collect()
    return sum(isinstance(each, ChunkPlaces) for each in gc.get_objects())


@pytest.mark.slow
def test_places_of_few_chunks_are_held_however_many_are_planned(tmp_path, monkeypatch):
    """Those of a wide file of 10 GB would be a gigabyte"""
    rows = np.arange(20_000)
    options = WriteOptions(chunk_bytes=1_000, sync=False)
    table = pa.table({"r": rows, "s": rows})
    write_rows(tmp_path / "s", table, "r", n=500, options=options)
    monkeypatch.setattr(chunk_reader, "PLACES_TOGETHER", 1)
    reader = open_shuffle(tmp_path / "s").reader(0, 500)
    before = _places_held()
    ((source, planned),) = reader.planned()
    assert next(iter(planned)).places is not None
    assert _places_held() == before + MANY_CHUNKS
    assert sum(1 for _ in planned) > 2 * MANY_CHUNKS
    del source, planned
    for max_bytes in (1 << 30, 1):  # read ahead, and in slices
        runs = reader.runs(max_bytes)
        assert _places_held() == before
        assert sum(rows.batch.num_rows for run in runs for rows in run) == len(rows)
        assert _places_held() <= before + MANY_CHUNKS


@pytest.mark.parametrize("columns", [["small"], None])
def test_chunks_of_several_files_are_looked_up_as_those_of_each(tmp_path, columns):
    """Files of other numbers of chunks"""
    options = WriteOptions(chunk_bytes=4_000, sync=False)
    for start, num_rows in ((0, 3_000), (1, 700), (2, 5_000)):
        rows = np.arange(start, start + num_rows)
        wide = {f"c{i}": rows * float(i) for i in range(9)}
        table = pa.table({"r": rows, "small": rows.astype(np.int8), **wide})
        write_rows(tmp_path, table, "r", n=40, mode="append", options=options)
    files = [
        (source, [without_places(one) for one in chunks])
        for source, chunks in open_shuffle(tmp_path).reader(3, 9, columns).planned()
    ]
    assert len({id(source.table_of(0)[0]) for source, _ in files}) < len(files) == 3
    for (source, chunks), found in zip(files, looked_up(files), strict=True):
        assert [one._replace(pieces=None, places=None) for one in found] == chunks
        alone = source.index.regions
        for one in found:
            (wanted,) = alone[one.part].chunks.places([one.chunk], source.decoder.columns)
            wanted = with_places(one, wanted, source.storage.gap_bytes if columns else sys.maxsize)
            skipped = dict(table=None, chunk=0)
            assert wanted.places._replace(**skipped) == one.places._replace(**skipped)
            assert one.places.described == wanted.places.described
            assert one.pieces == wanted.pieces
            assert source.is_unicast(one.part)
