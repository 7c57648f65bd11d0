"""Statistics of keys that are only hashed: indexes have them, and the log does not."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrow_format import (
    MergePolicy,
    WriteOptions,
    delete_rows,
    merge_shuffle,
    open_shuffle,
    write_shuffle,
)
from tests.support.small_shuffles import write_rows

ROWS, N = 40_000, 16
OPTIONS = WriteOptions(sync=False, chunk_bytes=1 << 14, sort_buffer_bytes=1 << 18)


def arriving(first=0):
    """Return rows whose keys ascend as they arrive, and a null of each thousand."""
    numbers = np.arange(first, first + ROWS)
    keys = pa.array(numbers, mask=numbers % 1_000 == 999)
    return pa.record_batch({"k": keys, "v": np.random.default_rng(first).random(ROWS)})


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("own") / "shuffle")
    write_rows(path, [arriving()], "k", n=N, options=OPTIONS)
    return path


def logged(path):
    snapshot = open_shuffle(path).snapshot
    names = {id_: name for name, id_ in snapshot.newest.columns.by_name.items()}
    return {names[id_] for id_ in snapshot.map_outputs.columns_with_statistics}


def indexed(path):
    shuffle = open_shuffle(path)
    snapshot = shuffle.snapshot
    files = [(output, file) for output in snapshot.map_outputs for file in output.files]
    indexes = shuffle._reader.indexes.indexes_of(snapshot.newest, files)
    return {name for index in indexes for name in index.metadata.statistics}


@pytest.mark.parametrize("keys", [[17], [17, 20_000, 39_998, None], [*range(0, ROWS, 400)], [-4]])
def test_of_many_chunks_those_that_can_have_a_key_of_their_own_are_read(path, keys):
    shuffle = open_shuffle(path)
    whole = shuffle.read().read_all()
    expected = whole.filter(pc.is_in(whole["k"], pa.array(keys, pa.int64())))
    rows = shuffle.lookup({"k": pa.array(keys, pa.int64())})
    assert rows.read_all().equals(expected)
    keep = " OR ".join("k IS NULL" if key is None else f"k = {key}" for key in keys)
    for where in (shuffle.bound_keys({"k": pa.array(keys, pa.int64())}), keep):
        filtered = shuffle.where(where)
        assert filtered.read().read_all().equals(expected)
        chunks = next(x for x in filtered.explain().steps if x.what == "chunks")
        assert chunks.kept < chunks.total
        if None not in keys:  # any chunk may have a null
            assert chunks.kept <= len(keys)


def test_the_log_has_no_bounds_of_keys_that_are_only_hashed(path, tmp_path):
    assert logged(path) == {"v"}
    assert indexed(path) == {"k", "v"}
    chosen = str(tmp_path / "chosen")
    options = WriteOptions(sync=False, statistics=("k",))
    write_rows(chosen, [arriving()], "k", n=N, options=options)
    assert logged(chosen) == indexed(chosen) == {"k"}
    is_sorted = str(tmp_path / "sorted")
    write_shuffle([arriving()], is_sorted, num_subpartitions=N, keys="k", sort_by="k")
    assert logged(is_sorted) == {"k", "v"}


@pytest.mark.slow
@pytest.mark.parametrize("statistics", [None, ("k",), ()])
@pytest.mark.parametrize("layout", [{}, {"by": "subpartition"}])
def test_deletions_and_merges_log_no_more_than_was(tmp_path, statistics, layout):
    path = str(tmp_path / "shuffle")
    options = WriteOptions(sync=False, statistics=statistics)
    for first in (0, ROWS):
        write_rows(path, [arriving(first)], "k", n=N, mode="append", options=options)
    before = logged(path), indexed(path)
    delete_rows(path, {"k": [5, ROWS + 7]})
    assert (logged(path), indexed(path)) == before
    merge_shuffle(path, policy=MergePolicy(rewrite="always"), **{"by": "map_output", **layout})
    assert (logged(path), indexed(path)) == before
    assert open_shuffle(path).lookup({"k": [5, 6, ROWS + 7]}).read_all()["k"].to_pylist() == [6]


@pytest.mark.parametrize("layout", [None, {}, {"by": "subpartition"}])
def test_where_one_append_logs_its_keys_those_of_others_are_not_logged(tmp_path, layout):
    path = str(tmp_path / "shuffle")
    for first, statistics in ((0, None), (ROWS, ("k",))):
        write_rows(
            path,
            [arriving(first)],
            "k",
            n=N,
            mode="append",
            options=WriteOptions(sync=False, statistics=statistics),
        )
    ids = open_shuffle(path).snapshot.newest.columns.by_name
    before = open_shuffle(path).snapshot.map_outputs.bounds()[ids["k"]].to_pylist()
    if layout is None:
        delete_rows(path, {"k": [5]})
    else:
        merge_shuffle(path, policy=MergePolicy(rewrite="always"), **{"by": "map_output", **layout})
    bounds = open_shuffle(path).snapshot.map_outputs.bounds().get(ids["k"], pa.array([]))
    assert {*bounds.to_pylist()} <= {*before}


def test_of_a_key_alone_merged_files_have_statistics_too(tmp_path):
    path = str(tmp_path / "shuffle")
    rows = arriving().select(["k"])
    for _ in range(2):
        write_rows(path, [rows], "k", n=N, mode="append", options=OPTIONS)
    merge_shuffle(path, by="subpartition")
    assert (logged(path), indexed(path)) == (set(), {"k"})
