"""CONFORMANCE, group "Chunks and compression", in that order."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from arrow_format import ColumnPartitioner, WriteOptions, open_shuffle
from arrow_format.format.codec_zstd import ZstdCodec
from arrow_format.format.codecs import ChunkDecoder
from arrow_format.options import MAX_CHUNK_BYTES
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.storage.open import PosixStorage
from tests.support.chunks import decoded
from tests.support.guarantees import guarantee
from tests.support.merges import CODECS, files_of
from tests.support.small_shuffles import write_rows


def write(path, table, n, **options):
    options = WriteOptions(sync=False, **options)
    return write_rows(path, table, n=n, partitioner=ColumnPartitioner("p"), options=options)


def data_and_regions(path):
    """Pairs of a data file and the regions in it."""
    storage = PosixStorage(str(path))
    return [
        (path / file.data_path, PartitionedFileReader(storage, file).regions)
        for file in files_of(open_shuffle(path))
    ]


def chunk_edges(region):
    return region.chunks.row_edges.tolist()


@CODECS
@given(
    sizes=st.lists(st.integers(0, 60) | st.just(20_000), min_size=1, max_size=12),
    chunk_bytes=st.sampled_from([1, 200, 4_096, 1 << 20]),
    first=st.integers(0, 11),
)
def test_where_chunks_are_cut(tmp_path_factory, codec, sizes, chunk_bytes, first):
    n = len(sizes)
    ids = np.repeat(np.arange(n, dtype=np.int32), sizes)
    table = pa.table({"p": ids, "v": np.random.default_rng(first).random(len(ids))})
    path = tmp_path_factory.mktemp("cut") / "s"
    write(path, table, n, codec=codec, chunk_bytes=chunk_bytes)
    files = data_and_regions(path)
    assert len(files) == (1 if len(ids) else 0)
    for _, (region,) in files:
        edges = chunk_edges(region)
        # Every row is in exactly one chunk.
        assert edges[0] == 0
        assert edges[-1] == len(ids)
        assert edges == sorted(set(edges))
        boundaries = set(region.row_offsets.tolist())
        for start, stop in pairwise(edges):
            if start not in boundaries or stop not in boundaries:
                # Only inside of a subpartition that is too large for one chunk.
                owner = region.subpartitions_of_rows(start, stop, n)
                assert len(set(owner.tolist())) == 1
                assert sizes[owner[0]] * 12 > min(chunk_bytes, 1 << 20)


def test_a_chunk_that_does_not_shrink_grows_by_little(tmp_path):
    made = random.Random(1)
    noise = [made.randbytes(200_000) for _ in range(4)]
    table = pa.table({"p": pa.array([0, 0, 1, 1], pa.int32()), "noise": noise})
    write(tmp_path / "s", table, 2)
    ((data, (region,)),) = data_and_regions(tmp_path / "s")
    assert set(region.chunks.encoding.tolist()) == {ZstdCodec.encoding}
    assert (region.chunks.length < region.chunks.raw_length + 100).all()
    assert data.stat().st_size < table.nbytes * 1.05
    found = open_shuffle(tmp_path / "s").read().read_all()
    assert found.combine_chunks().equals(table.combine_chunks())


@CODECS
def test_chunks_decode_alone_and_in_any_order(tmp_path, codec):
    p = np.arange(30_000, dtype=np.int32) % 100
    table = pa.table({"p": p, "s": [f"text {i % 977}" for i in range(30_000)]})
    write(tmp_path / "s", table, 100, codec=codec, chunk_bytes=16 << 10)
    ((data, (region,)),) = data_and_regions(tmp_path / "s")
    stored, chunks = data.read_bytes(), region.chunks
    edges = chunk_edges(region)
    order = list(range(len(chunks)))
    assert len(order) > 5
    random.Random(3).shuffle(order)
    decoder = ChunkDecoder(table.schema)
    found = {}
    for i in [*order, *order[:3]]:
        start = int(chunks.offset[i])
        found[i] = decoded(
            decoder,
            pa.py_buffer(stored[start : start + int(chunks.length[i])]),
            chunks.frames(i),
            edges[i + 1] - edges[i],
        )
    rows = pa.Table.from_batches([found[i] for i in sorted(found)])
    expected = table.take(np.argsort(p, kind="stable"))
    assert rows.combine_chunks().equals(expected.combine_chunks())


@guarantee("plain Arrow")
def test_codec_none_is_read_by_plain_arrow(tmp_path):
    table = pa.table({"p": pa.array(range(1_000), pa.int32()), "s": ["é"] * 1_000})
    write(tmp_path / "s", table, 1_000, codec="none", chunk_bytes=1_000)
    ((data, _),) = data_and_regions(tmp_path / "s")
    with pa.ipc.open_file(str(data)) as reader:
        assert reader.num_record_batches >= 10
        assert reader.read_all().combine_chunks().equals(table.combine_chunks())


@guarantee("bytes on disk")
@CODECS
def test_bytes_on_disk_hardly_depend_on_n(tmp_path, codec):
    rng = np.random.default_rng(2)
    k = rng.integers(0, 1 << 40, 300_000)
    table = pa.table(
        {"k": k, "i": rng.integers(0, 1000, len(k)), "s": [f"{i % 5000:019d}" for i in k.tolist()]}
    )
    sizes = {}
    for n in (200, 20_000):
        receipt = write_rows(
            tmp_path / str(n), table, "k", n=n, options=WriteOptions(sync=False, codec=codec)
        )
        sizes[n] = receipt.num_bytes
    assert sizes[20_000] <= sizes[200] * 1.15


@CODECS
def test_encoded_columns_come_back_as_values(tmp_path, codec):
    values = ["red", None, "green", "red"]
    plain = pa.array(values)
    columns = {
        "dictionary": plain.dictionary_encode(),
        "view": plain.cast(pa.string_view()),
        "large": plain.cast(pa.large_string()),
        "runs": pa.RunEndEncodedArray.from_arrays([1, 2, 3, 4], plain),
        "extension": pa.ExtensionArray.from_storage(pa.opaque(pa.string(), "t", "v"), plain),
        "list view": pa.array([[v] for v in values], pa.list_view(pa.string())),
    }
    table = pa.table({"p": pa.array([0, 1, 0, 1], pa.int32()), **columns})
    write(tmp_path / "s", table, 2, codec=codec)
    found = open_shuffle(tmp_path / "s").read().read_all()
    in_order = [values[i] for i in (0, 2, 1, 3)]
    for name in columns:
        expected = [[v] for v in in_order] if name == "list view" else in_order
        assert found[name].to_pylist() == expected, name
        type_ = pa.list_(pa.string()) if name == "list view" else pa.string()
        assert found[name].type == type_, name


@CODECS
def test_no_chunk_unfolds_beyond_its_limit(tmp_path, codec):
    """However few bytes rows take when packed, a chunk of them fits into 4 MiB of memory."""
    rows = 3_000_000
    table = pa.table({"p": np.zeros(rows, np.int32), "same": np.full(rows, 7)})
    write(tmp_path / "s", table, 2, codec=codec, sort_buffer_bytes=1 << 30)
    for _, regions in data_and_regions(tmp_path / "s"):
        for region in regions:
            assert max(np.diff(chunk_edges(region))) * 12 <= MAX_CHUNK_BYTES
    assert open_shuffle(tmp_path / "s").verify().num_rows == rows


def test_higher_levels_are_smaller(tmp_path):
    table = pa.table(
        {"p": np.arange(50_000, dtype=np.int32) % 9, "v": np.arange(50_000) ** 2 % 977}
    )
    sizes = []
    for level in (-7, 1, 12):
        write(tmp_path / str(level), table, 9, codec_level=level)
        sizes.append(open_shuffle(tmp_path / str(level)).num_bytes)
    assert sizes == sorted(sizes, reverse=True)
