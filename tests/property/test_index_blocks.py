"""What is read by any blocks of the index is what was written: rows, counts, extremes, merges."""

import pickle
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from arrow_format import (
    ColumnPartitioner,
    HashPartitioner,
    delete_rows,
    merge_shuffle,
    open_shuffle,
    write_shuffle,
)
from arrow_format.errors import CorruptShuffleError
from arrow_format.format import codec_zstd, index_file
from arrow_format.keys.partitioner import can_be_asked
from arrow_format.log import carried
from arrow_format.log.delta import Delta
from arrow_format.log.entry import decode_entry, encode_entry
from arrow_format.log.names import entry_path
from arrow_format.model import BROADCAST
from arrow_format.options import MERGE_BY, WriteOptions
from arrow_format.read import partitioned_file
from arrow_format.read.chunk_plan import adjacent_ranges
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.read.shuffle import Shuffle
from arrow_format.storage.local import PosixStorage
from arrow_format.write.merge_policy import MergePolicy
from tests.support.exhaustive import examples
from tests.support.merges import FROM_COLUMN, numbered_batches
from tests.support.small_shuffles import SCHEMA, write_tasks

OPTIONS = st.builds(
    WriteOptions,
    sync=st.just(False),
    codec=st.sampled_from(["zstd", "none"]),
    sort_buffer_bytes=st.sampled_from([1 << 10, 1 << 20]),
    chunk_bytes=st.sampled_from([1, 200, 1 << 16]),
    statistics=st.just("all"),
)
BLOCKS = st.sampled_from([1, 100, 400, index_file.BLOCK_BYTES])
SMALL = st.sampled_from([0, partitioned_file.SMALL_BYTES])
"""Where 0, each block is a request of its own."""


FRAMES = st.sampled_from([1, 100, codec_zstd.MIN_FRAME_BYTES])
"""Bytes from which on a column has a frame of its own."""
PARTITIONERS = st.sampled_from([FROM_COLUMN, ColumnPartitioner("p"), HashPartitioner("p")])
"""One that nobody can ask where a row belongs, and two that are asked."""
GAPS = st.sampled_from([0, 1, 50, 300, PosixStorage.gap_bytes])
"""Bytes between frames that are read although nobody wants them."""


def commit(path, n, tasks, options, sort_by, partitioner):
    batches = [numbered_batches(ids, 100 * number) for number, ids in enumerate(tasks)]
    write_tasks(
        path, batches, n, mode="append", partitioner=partitioner, options=options, sort_by=sort_by
    )


def rows_of(n, tasks, partitioner):
    """Every `(subpartition, p, v, s)` that a reader must find."""
    found = []
    for number, ids in enumerate(tasks):
        for batch in numbered_batches(ids, 100 * number):
            places = partitioner.bind(SCHEMA, n, number)(batch).tolist()
            for place, row in zip(places, batch.to_pylist(), strict=True):
                everyone = range(n) if place == BROADCAST else [place]
                found += [(subpartition, *row.values()) for subpartition in everyone]
    return sorted(found)


def masked(path, written, data):
    """Mark the rows of some keys as gone, and return those that are left."""
    keys = data.draw(st.lists(st.integers(0, 40), max_size=6, unique=True))
    if keys:
        keys_of_rows = {"p": pa.array(keys, SCHEMA.field("p").type)}
        delete_rows(path, keys_of_rows, erase=False, options=WriteOptions(sync=False))
    return [row for row in written if row[1] not in keys]


@contextmanager
def of_any_blocks(data):
    """Give a path, where blocks of an index, frames and gaps are small or as they are in use."""
    with tempfile.TemporaryDirectory() as path, pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_file, "BLOCK_BYTES", data.draw(BLOCKS))
        patch.setattr(partitioned_file, "SMALL_BYTES", data.draw(SMALL))
        patch.setattr(codec_zstd, "MIN_FRAME_BYTES", data.draw(FRAMES))
        patch.setattr(PosixStorage, "gap_bytes", data.draw(GAPS))
        yield path


@settings(max_examples=examples(25, 400))
@given(st.data())
def test_rows_of_any_ranges_columns_and_filters(data):
    n = data.draw(st.integers(1, 40))
    one = st.integers(0, n - 1)
    partitioner = data.draw(PARTITIONERS)
    may_be_for_all = partitioner is FROM_COLUMN and data.draw(st.booleans())
    ids = st.lists(one | st.just(BROADCAST) if may_be_for_all else one, max_size=60)
    tasks = data.draw(st.lists(ids, min_size=1, max_size=3))
    sort_by = data.draw(st.sampled_from([(), (("v", "descending"),)]))
    with of_any_blocks(data) as path:
        commit(path, n, tasks, data.draw(OPTIONS), sort_by, partitioner)
        written = rows_of(n, tasks, partitioner)
        if isinstance(partitioner, HashPartitioner):
            written = masked(path, written, data)
        shuffle = open_shuffle(path)
        check(shuffle, written, data)
        merge_shuffle(
            path, by=data.draw(st.sampled_from(MERGE_BY)), options=data.draw(OPTIONS),
            policy=MergePolicy(rewrite="always"),
        )  # fmt: skip
        merged = open_shuffle(path)
        assert (
            merged.read(with_subpartition=True).read_all()
            == shuffle.read(with_subpartition=True).read_all()
        )
        check(merged, written, data)
        assert merged.verify().num_rows == shuffle.num_rows


@settings(max_examples=examples(25, 300))
@given(st.data())
def test_rows_of_files_of_more_subpartitions_than_their_version(data):
    """The log says of a version that it has a divisor of them, as no writer does yet."""
    n = data.draw(st.integers(1, 8))
    of_files = n * data.draw(st.integers(1, 5))
    partitioner = data.draw(st.sampled_from([FROM_COLUMN, HashPartitioner("p")]))
    ids = st.lists(st.integers(0, of_files - 1), max_size=60)
    tasks = data.draw(st.lists(ids, min_size=1, max_size=3))
    sort_by = data.draw(st.sampled_from([(), (("v", "descending"),)]))
    with of_any_blocks(data) as path:
        commit(path, of_files, tasks, data.draw(OPTIONS), sort_by, partitioner)
        written = rows_of(of_files, tasks, partitioner)
        if isinstance(partitioner, HashPartitioner):
            written = masked(path, written, data)
        file = Path(path) / entry_path(open_shuffle(path).version)
        entry = decode_entry(file.read_bytes())
        shape = structs.replace(entry.shape, num_subpartitions=n)
        state = structs.replace(entry.state, shape=shape)
        file.write_bytes(encode_entry(structs.replace(entry, state=state)))

        shuffle = open_shuffle(path)
        written = [(row[0] % n, *row[1:]) for row in written]
        check(shuffle, written, data)
        assert shuffle.verify().num_rows == len(written)
        found = shuffle.read(with_subpartition=True).read_all().to_pylist()
        if sort_by:
            assert found == sorted(found, key=lambda row: (row["_subpartition"], -row["v"]))
        counts = Counter(row["_subpartition"] for row in found)
        assert shuffle.subpartition_rows.to_pylist() == [counts[of] for of in range(n)]


def test_files_of_no_multiple_of_a_version_are_damage(tmp_path):
    commit(tmp_path, 3, [[0, 1, 2]], WriteOptions(sync=False), (), FROM_COLUMN)
    one = decode_entry((tmp_path / entry_path(1)).read_bytes())
    shape = structs.replace(one.shape, num_subpartitions=2)
    two = structs.replace(
        one, version=2, operation="alter", parent=one.commit_id, commit_id="two", job_id=None,
        state=structs.replace(one.state, version=2, changed=2, shape=shape),
        content=Delta(), num_outputs=0, num_rows=0, num_bytes=0,
    )  # fmt: skip
    (tmp_path / entry_path(2)).write_bytes(encode_entry(two))
    with pytest.raises(CorruptShuffleError, match="has 2 subpartitions, and a file of 3"):
        open_shuffle(tmp_path)


def part_of(shuffle, asked, data):
    """Return what a task carries to read subpartitions, as it arrives: whole, a part, or a name."""
    way = data.draw(st.sampled_from(["here", "whole", "part", "part by name"]))
    if way == "here":
        return shuffle
    if way == "whole":
        return pickle.loads(pickle.dumps(shuffle))
    wanted = range(shuffle.num_subpartitions) if asked is None else sorted(asked)
    fresh = Shuffle(shuffle.storage, shuffle.snapshot, shuffle.options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(carried, "CARRIED_BYTES", 0)
        (part,) = fresh.for_tasks([adjacent_ranges(wanted)])
        if way == "part by name":
            return pickle.loads(pickle.dumps(part))
    return pickle.loads(pickle.dumps(Shuffle(part.storage, part.snapshot, part.options)))


def check(shuffle, written, data):
    """Read some of it in several ways, of one open shuffle, so that blocks are kept in between."""
    n, can_check = shuffle.num_subpartitions, can_be_asked(shuffle.partitioner)
    for _ in range(3):
        asked = data.draw(st.none() | st.lists(st.integers(0, n - 1), max_size=8, unique=True))
        columns = data.draw(st.sampled_from([None, ["v"], ["s", "p"], []]))
        least = data.draw(st.none() | st.integers(0, 260))
        key = data.draw(st.none() | st.integers(0, n - 1))
        condition = None if least is None else pc.field("v") >= least
        if key is not None:
            has_key = pc.field("p") == key
            condition = has_key if condition is None else has_key & condition
        wanted = [
            row
            for row in written
            if (asked is None or row[0] in asked)
            and (least is None or row[2] >= least)
            and key in (None, row[1])
        ]
        source = part_of(shuffle, asked, data)
        if can_check and data.draw(st.booleans()):
            source = source.checking()
        found = source.read(asked, columns, filter=condition, with_subpartition=True).read_all()
        names = SCHEMA.names if columns is None else columns
        places = [0, *(1 + SCHEMA.get_field_index(name) for name in names)]
        rows = [tuple(row[name] for name in ("_subpartition", *names)) for row in found.to_pylist()]
        assert sorted(rows) == sorted(tuple(row[i] for i in places) for row in wanted)
        assert found["_subpartition"].to_pylist() == sorted(row[0] for row in wanted)
        if asked is None:
            assert shuffle.count_rows(filter=condition) == len(wanted)
            values = [row[2] for row in wanted]
            ends = (min(values), max(values)) if values else (None, None)
            (extremes,) = shuffle.min_max(["v"], filter=condition).values()
            assert tuple(end.as_py() for end in extremes) == ends


@settings(max_examples=examples(25, 400))
@given(st.data())
def test_damage_of_a_frame_is_seen_by_who_reads_its_columns_and_by_nobody_else(data):
    ids = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=60))
    with of_any_blocks(data) as path:
        options = WriteOptions(sync=False, sort_buffer_bytes=1 << 10, chunk_bytes=200)
        rows = numbered_batches(ids, 0)
        write_shuffle(rows, path, num_subpartitions=5, keys="p", options=options)
        (output,) = open_shuffle(path).map_outputs
        (file,) = output.files
        regions = PartitionedFileReader(PosixStorage(path), file).regions
        region = data.draw(st.sampled_from(regions))
        chunk = data.draw(st.integers(0, len(region.chunks) - 1))
        frames = region.chunks.frames(chunk)
        frame = data.draw(st.integers(0, len(frames.length) - 1))
        damaged = {SCHEMA.names[i] for i in frames.columns_of(frame)}
        byte = data.draw(st.integers(0, frames.length[frame] - 1))
        stored = bytearray(Path(path, file.data_path).read_bytes())
        stored[int(region.chunks.offset[chunk]) + frames.edges[frame] + byte] ^= 1 << data.draw(
            st.integers(0, 7)
        )
        Path(path, file.data_path).write_bytes(stored)
        shuffle = open_shuffle(path)
        columns = data.draw(st.lists(st.sampled_from(SCHEMA.names), unique=True))
        checks = data.draw(st.booleans())
        if checks:
            shuffle = shuffle.checking()
        if damaged.isdisjoint(columns) and not (checks and "p" in damaged):
            assert shuffle.read(columns=columns).read_all().num_rows == len(ids)
            return
        with pytest.raises(CorruptShuffleError) as raised:
            shuffle.read(columns=columns).read_all()
        for what in (file.data_path, f"region {region.number}", f"chunk {chunk}", *damaged):
            assert what in str(raised.value)
