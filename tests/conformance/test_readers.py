"""CONFORMANCE, group "Reading": readers that stop, meet damage, or live when a process forks."""

import gc
import threading

import pyarrow.compute as pc
import pytest

from arrow_format import (
    CorruptShuffleError,
    ReadOptions,
    WriteOptions,
    open_shuffle,
    write_shuffle,
)
from tests.conformance.test_read_memory import rows_of
from tests.support.forked import is_closed_in_a_child
from tests.support.open_files import open_files
from tests.support.small_shuffles import flip, write_rows
from tests.support.waiting import wait_until

N = 40
WAYS = {
    "all": {},
    "some": {"subpartitions": [3, 4, 17], "columns": ["v"], "with_subpartition": True},
    "filter": {"filter": pc.field("v") > 1 << 61},
}


@pytest.fixture(scope="module", params=["zstd", "none", "sorted"])
def path(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("threads") / "x"
    codec = "none" if request.param == "none" else "zstd"
    options = WriteOptions(
        codec=codec, sync=False, codec_level=-5, chunk_bytes=16 << 10, sort_buffer_bytes=8 << 20
    )
    sort_by = "v" if request.param == "sorted" else ()
    write_rows(path, rows_of(300_000, text_bytes=10), "k", n=N, sort_by=sort_by, options=options)
    return path


def opened(path):
    return open_shuffle(path, options=ReadOptions(memory_bytes=96 << 20))


def is_clean(path):
    """Whether no thread and no data file of a shuffle is left."""
    gc.collect()
    is_open = any(link.startswith(str(path)) for _, link in open_files())
    return not is_open and not any("arrow-shuffle" in one.name for one in threading.enumerate())


@pytest.mark.parametrize("way", WAYS)
def test_the_same_batches_again(path, way):
    shuffle = opened(path)
    first, again = ([*shuffle.read(**WAYS[way])] for _ in range(2))
    assert [batch.num_rows for batch in again] == [batch.num_rows for batch in first]
    assert all(a.equals(b) for a, b in zip(again, first, strict=True))
    wait_until(lambda: is_clean(path))


def test_readers_of_one_shuffle_interleaved_and_stopped_early(path):
    expected = opened(path).read().read_all()
    shuffle = opened(path)
    first, dropped, closed = shuffle.read(), shuffle.read(), shuffle.read()
    next(dropped), next(closed)
    batches = [next(first)]
    del dropped
    closed.close()
    batches += first
    assert expected.equals(expected.from_batches(batches))
    wait_until(lambda: is_clean(path))


def test_damage_is_found_where_it_is_and_what_comes_before_is_read(tmp_path):
    write_shuffle(
        rows_of(100_000, text_bytes=10), tmp_path / "x", num_subpartitions=N, keys="k",
        options=WriteOptions(sync=False, codec_level=-5, chunk_bytes=8 << 10),
    )  # fmt: skip
    (file,) = (tmp_path / "x").rglob("*.shuffle.data")
    flip(file)

    runs = []
    with pytest.raises(CorruptShuffleError, match=r"region \d+, chunk \d+ at byte") as raised:
        runs += (run.batch for run in opened(tmp_path / "x").reader(0, N))
    assert len(runs) > 1
    runs_again = []
    with pytest.raises(CorruptShuffleError) as again:
        runs_again += (run.batch for run in opened(tmp_path / "x").reader(0, N))
    assert (runs_again, str(again.value)) == (runs, str(raised.value))
    wait_until(lambda: is_clean(tmp_path / "x"))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_reader_that_was_begun_before_a_fork_is_read_by_the_parent_alone(path):
    """A child would wait for ever for what its parent's thread reads ahead."""
    shuffle = opened(path)
    reader = shuffle.read()
    num_rows = next(reader).num_rows
    assert is_closed_in_a_child(reader)
    assert num_rows + sum(batch.num_rows for batch in reader) == shuffle.num_rows
