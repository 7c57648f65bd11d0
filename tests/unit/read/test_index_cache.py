"""Indexes are opened once, kept up to a bound, and checked against the log entry."""

import threading
from dataclasses import replace
from itertools import chain

import pyarrow as pa
import pytest
from msgspec import structs

from arrow_format.errors import CorruptShuffleError
from arrow_format.format.index_file import encode_index
from arrow_format.read import index_cache
from arrow_format.read.index_cache import IndexCache
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.storage.open import PosixStorage
from tests.support.indexes import said_of
from tests.support.small_shuffles import SCHEMA, entry_of, write_file

N = 5


class CountingStorage(PosixStorage):
    opened = 0
    together = None

    def read(self, path, *, num_bytes=None):
        self.opened += 1
        if self.together is not None:
            self.together.wait()
        return super().read(path, num_bytes=num_bytes)


@pytest.fixture
def storage(tmp_path):
    return CountingStorage(str(tmp_path))


def written(storage, names):
    return [write_file(storage, [([1, 2], 0)], N, path=name)[0] for name in names]


def open_all(cache, files):
    for file in files:
        entry = entry_of(file, N)
        assert cache.index_of(entry, entry.map_outputs[0], file).file == file


def test_an_index_that_is_gone_is_told_with_its_map_task(storage):
    (file,) = written(storage, "a")
    entry = entry_of(file, N)
    storage.delete(file.index_path)
    message = r"not there.*index of map task 3, attempt 1\)\. Restore the file"
    with pytest.raises(CorruptShuffleError, match=message):
        IndexCache(storage).index_of(entry, entry.map_outputs[0], file)


def test_an_index_is_opened_once(storage):
    files = written(storage, "abc")
    cache = IndexCache(storage)
    for _ in range(3):
        open_all(cache, files)
    assert storage.opened == 3


def test_those_used_last_are_kept_up_to_the_bound(storage):
    a, b, c = written(storage, "abc")
    each = [PartitionedFileReader(storage, file).load().num_bytes for file in (a, b, c)]
    storage.opened = 0
    cache = IndexCache(storage, max_bytes=2 * max(each))
    open_all(cache, [a, b, a, c])
    assert storage.opened == 3
    open_all(cache, [a, c])
    assert storage.opened == 3
    open_all(cache, [b])
    assert storage.opened == 4


def test_indexes_are_loaded_at_once_where_each_costs_a_round_trip(storage):
    files = written(storage, "abcde")
    version = entry_of(files[0], N)
    wanted = [(version.map_outputs[0], file) for file in files]
    assert [one.file for one in IndexCache(storage).indexes_of(version, iter(wanted))] == files
    storage.opened, storage.max_requests = 0, 2
    storage.together = threading.Barrier(2, timeout=30)
    indexes = IndexCache(storage).indexes_of(version, iter(wanted[:4]))
    assert next(indexes).file == files[0]
    assert storage.opened == 2, "no more than are read at once are loaded before they are wanted"
    assert [one.file for one in indexes] == files[1:4]
    storage.together = None
    small = IndexCache(storage, max_bytes=files[0].index_bytes)
    next(small.indexes_of(version, iter(wanted)))
    assert storage.opened == 5, "nor more than are kept"


@pytest.mark.parametrize("max_requests", [1, 4])
def test_of_indexes_that_are_decoded_together_the_damaged_one_is_named(storage, max_requests):
    files = written(storage, "abcd")
    version = entry_of(files[0], N)
    reader = PartitionedFileReader(storage, files[2])
    index = encode_index(replace(reader.metadata, data_bytes=8), reader.regions)
    storage.replace(files[2].index_path, index, sync=False)
    files[2] = replace(files[2], data_bytes=8, **said_of(index))
    storage.max_requests = max_requests
    wanted = [(version.map_outputs[0], file, [(0, N)], ()) for file in files]
    parts = chain.from_iterable(IndexCache(storage).parts_of(version, iter(wanted)))
    for file in files[:2]:
        part = next(parts)
        assert part.file == file
        assert sum(region.num_rows for region in part.regions) == 2
    message = (
        r"c\.shuffle\.index: region 0 of the index contradicts itself or its data file's length"
    )
    with pytest.raises(CorruptShuffleError, match=message):
        next(parts)


def test_more_and_more_small_indexes_are_opened_together(storage, monkeypatch):
    files = written(storage, "abcdefgh")
    version = entry_of(files[0], N)
    wanted = [(version.map_outputs[0], file) for file in files]
    storage.opened = 0
    opened = [storage.opened for _ in IndexCache(storage).indexes_of(version, iter(wanted))]
    assert opened == [1, 3, 3, 7, 7, 7, 7, 8]
    monkeypatch.setattr(index_cache, "WINDOW_BYTES", 2 * max(file.index_bytes for file in files))
    storage.opened = 0
    opened = [storage.opened for _ in IndexCache(storage).indexes_of(version, iter(wanted))]
    assert opened == [1, 3, 3, 5, 5, 7, 7, 8]


def test_the_one_asked_for_is_kept_whatever_its_size(storage):
    (a,) = written(storage, "a")
    cache = IndexCache(storage, max_bytes=1)
    open_all(cache, [a, a])
    assert storage.opened == 1


@pytest.mark.parametrize("change", [{"job_id": "other"}, {"map_task": 4}, {"attempt": 0}])
def test_an_index_of_another_map_output_is_refused(storage, change):
    (file,) = written(storage, "a")
    entry = entry_of(file, N)
    output = replace(entry.map_outputs[0], **change)
    message = r"a\.shuffle\.index: is of job the-job, map task 3, attempt 1; the commit log expects"
    with pytest.raises(CorruptShuffleError, match=message):
        IndexCache(storage).index_of(entry, output, file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_subpartitions": 6}, "has 5 subpartitions; its version has 6"),
        (
            {"data_schema": SCHEMA.set(1, pa.field("v", pa.int32()))},
            "columns p: int32, v: int64, s: string; its version",
        ),
        ({"sort_by": (("v", "ascending"),)}, "has no sort order; its version has v ascending"),
    ],
)
def test_an_index_that_differs_from_its_version_is_refused(storage, change, message):
    (file,) = written(storage, "a")
    entry = entry_of(file, N)
    shape = structs.replace(entry.shape, **change)
    entry = structs.replace(entry, state=structs.replace(entry.state, shape=shape))
    with pytest.raises(CorruptShuffleError, match=rf"a\.shuffle\.index: .*{message}"):
        IndexCache(storage).index_of(entry, entry.map_outputs[0], file)


@pytest.mark.parametrize("ids", [(1, 2), (1, 2, 3, 4), (1, 2, 2)])
def test_ids_that_are_not_those_of_the_columns_are_refused(storage, ids):
    (file,) = written(storage, "a")
    entry = entry_of(file, N)
    output = replace(entry.map_outputs[0], column_ids=ids)
    with pytest.raises(CorruptShuffleError, match="ids that are not those of its columns"):
        IndexCache(storage).index_of(entry, output, file)


@pytest.mark.parametrize("change", [b"\0", -1])
def test_an_index_of_another_length_is_refused(storage, tmp_path, change):
    (file,) = written(storage, "a")
    path = tmp_path / file.index_path
    whole = path.read_bytes()
    path.write_bytes(whole + change if isinstance(change, bytes) else whole[:change])
    found, expected = path.stat().st_size, file.index_bytes
    message = rf"a\.shuffle\.index: has {found} bytes, expected {expected};"
    with pytest.raises(CorruptShuffleError, match=message):
        open_all(IndexCache(storage), [file])
