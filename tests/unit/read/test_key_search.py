"""Lookups read the key columns first, and the others of those chunks alone that have a key."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrow_format import (
    RangePartitioner,
    WriteOptions,
    append_shuffle,
    delete_rows,
    merge_shuffle,
    open_shuffle,
)
from arrow_format.read import key_search
from arrow_format.storage.local import PosixReader, PosixStorage
from tests.support.small_shuffles import shuffle_of, write_rows

ROWS, N = 6_000, 7
OPTIONS = WriteOptions(sync=False, chunk_bytes=1 << 14, sort_buffer_bytes=1 << 20)


def batch_of(seed, num_columns=12):
    random = np.random.default_rng(seed)
    numbers = random.integers(0, 4_000, ROWS)
    text = pa.array([None if i % 97 == 0 else f"t{i % 3}" for i in numbers.tolist()])
    others = {f"c{i}": random.random(ROWS) for i in range(num_columns)}
    return pa.record_batch({"c": random.random(ROWS), "k": numbers, "t": text, **others})


@pytest.fixture(scope="module", params=["appended", "masked", "merged", "sorted"])
def path(request, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("shuffle"))
    for seed in range(3):
        write_rows(
            path,
            [batch_of(seed)],
            ("k", "t"),
            n=N,
            mode="append",
            options=OPTIONS,
            sort_by=("c",) if request.param == "sorted" else (),
        )
    if request.param in ("masked", "merged"):
        gone = batch_of(1).select(["k", "t"]).slice(0, 40)
        delete_rows(path, gone, erase=False)
    if request.param == "merged":
        merge_shuffle(path, by="map_output")
    return path


@pytest.fixture
def read(monkeypatch):
    """Return the bytes of each read of data."""
    lengths = []
    real = PosixReader.get_ranges

    def counted(self, ranges):
        if self._path.endswith(".data"):
            lengths.extend(length for _, length in ranges)
        return real(self, ranges)

    monkeypatch.setattr(PosixReader, "get_ranges", counted)
    return lengths


@pytest.fixture(scope="module")
def sought(path):
    """Keys, and their rows in the order of the whole read."""
    whole = open_shuffle(path).read().read_all()
    keys = pa.concat_tables(
        [whole.select(["k", "t"]).slice(start, 3) for start in (5, 900, 8_000, 14_000)]
        + [pa.table({"k": [97, -5], "t": [None, "none has it"]}, whole.select(["k", "t"]).schema)]
    )
    wanted = {tuple(row.values()) for row in keys.to_pylist()}
    rows = [i for i, row in enumerate(whole.select(["k", "t"]).to_pylist())
            if tuple(row.values()) in wanted]  # fmt: skip
    return keys, whole.take(rows)


@pytest.mark.slow
@pytest.mark.parametrize(("gap", "together"), [(0, 256), (0, 5), (3_000, 1), (1 << 20, 256)])
@pytest.mark.parametrize("columns", [None, ["c5", "k"], ["t", "k"], []])
def test_a_lookup_is_the_whole_read_filtered(path, sought, gap, together, columns, monkeypatch):
    monkeypatch.setattr(PosixStorage, "gap_bytes", gap)
    monkeypatch.setattr(key_search, "LOOKED_AT_CHUNKS", together)
    shuffle = open_shuffle(path)
    keys, expected = sought
    found = shuffle.lookup(keys, columns=columns).read_all()
    assert found.equals(expected if columns is None else expected.select(columns))
    where = pc.field("c1") < 0.5
    found = shuffle.where(where).lookup(keys).read_all()
    assert found.equals(expected.filter(where))


def test_what_has_no_key_is_not_read_whole(path, read, monkeypatch):
    monkeypatch.setattr(PosixStorage, "gap_bytes", 0)
    shuffle = open_shuffle(path)
    absent = {"k": 3, "t": "none has it"}
    assert shuffle.lookup(absent).read_all().num_rows == 0
    of_keys = sum(read)
    read.clear()
    shuffle.subpartition(shuffle.subpartition_of(**absent)).read_all()
    assert 0 < 5 * of_keys < sum(read)


def test_what_is_beyond_the_bounds_of_keys_is_not_read(path, read):
    assert open_shuffle(path).lookup({"k": -1, "t": "t1"}).read_all().num_rows == 0
    assert not read


@pytest.mark.slow
def test_files_of_different_columns_are_looked_up_each_by_its_own(tmp_path):
    """As many columns, the key in another place."""
    options = WriteOptions(sync=False, schema_evolution=True)
    first = pa.table({"k": [1], "a": [10], "b": [11]})
    write_rows(tmp_path, first, "k", n=2, options=options)
    for i in range(5):
        appended = pa.table({"b": [20 + i], "k": [1], "c": [30 + i]})
        append_shuffle(appended, tmp_path, options=options)
        appended = pa.table({"k": [1], "a": [40 + i], "b": [50 + i]})
        append_shuffle(appended, tmp_path, options=options)
    found = pa.Table.from_batches(open_shuffle(tmp_path).lookup({"k": [1]}))
    assert found["k"].to_pylist() == [1] * 11
    assert found["b"].to_pylist() == [11, *(b + i for i in range(5) for b in (20, 50))]
    assert found["c"].to_pylist() == [None, *(c for i in range(5) for c in (30 + i, None))]


@pytest.mark.parametrize(
    ("condition", "num_rows"), [("1 = 1", 5), ("(NULL = k) IS NULL", 5), ("1 = 2", 0)]
)
def test_a_filter_of_no_column(tmp_path, condition, num_rows):
    ranges = RangePartitioner(
        keys=(("k", "ascending"),), bounds=pa.record_batch({"k": pa.array([], pa.int64())})
    )
    rows = pa.table({"k": range(5), "v": range(5)})
    shuffle = shuffle_of(tmp_path, rows, n=2, partitioner=ranges, options=OPTIONS)
    for ordered in (True, False):
        found = shuffle.read(filter=condition, ordered=ordered).read_all()
        assert found.num_rows == num_rows
    assert shuffle.count_rows(filter=condition) == num_rows
