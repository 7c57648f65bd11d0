"""CONFORMANCE, group "Reading": readers that stop, meet damage, or live when a process forks."""

import gc
import os
import threading
import time

import pyarrow as pa
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
    write_shuffle(
        rows_of(300_000, text_bytes=10), path, num_subpartitions=N, keys="k", sort_by=sort_by,
        options=options,
    )  # fmt: skip
    return path


def opened(path):
    return open_shuffle(path, options=ReadOptions(memory_bytes=96 << 20))


def is_clean(path):
    """No thread and no data file of a shuffle is left, after a moment."""
    deadline = time.monotonic() + 10
    while True:
        gc.collect()
        links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]  # noqa: PTH208
        names = [thread.name for thread in threading.enumerate()]
        if not any(link.startswith(str(path)) for link in links) and not any(
            "arrow-shuffle" in name for name in names
        ):
            return True
        assert time.monotonic() < deadline, (links, names)
        time.sleep(0.01)


@pytest.mark.parametrize("way", WAYS)
def test_the_same_batches_again(path, way):
    shuffle = opened(path)
    first, again = ([*shuffle.read(**WAYS[way])] for _ in range(2))
    assert [batch.num_rows for batch in again] == [batch.num_rows for batch in first]
    assert all(a.equals(b) for a, b in zip(again, first, strict=True))
    assert is_clean(path)


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
    assert is_clean(path)


def test_lookups(path):
    keys = {"k": [5, 77_777, 299_999]}
    rows = opened(path).read().read_all()
    expected = rows.filter(pc.is_in(rows["k"], pa.array(keys["k"])))
    assert opened(path).lookup(keys).read_all().equals(expected)
    assert expected.num_rows == 3


def test_damage_is_found_where_it_is_and_what_comes_before_is_read(tmp_path):
    write_shuffle(
        rows_of(100_000, text_bytes=10), tmp_path / "x", num_subpartitions=N, keys="k",
        options=WriteOptions(sync=False, codec_level=-5, chunk_bytes=8 << 10),
    )  # fmt: skip
    (file,) = (tmp_path / "x").rglob("*.shuffle.data")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)

    runs = []
    with pytest.raises(CorruptShuffleError, match=r"region \d+, chunk \d+ at byte") as raised:
        runs += (run.batch for run in opened(tmp_path / "x").reader(0, N))
    assert len(runs) > 1
    runs_again = []
    with pytest.raises(CorruptShuffleError) as again:
        runs_again += (run.batch for run in opened(tmp_path / "x").reader(0, N))
    assert (runs_again, str(again.value)) == (runs, str(raised.value))
    assert is_clean(tmp_path / "x")


def test_a_child_forked_after_a_read_reads(path):
    shuffle = opened(path)
    expected = shuffle.read().read_all()
    child = os.fork()
    if not child:
        os._exit(0 if shuffle.read().read_all().equals(expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_reader_that_was_begun_before_a_fork_is_read_by_the_parent_alone(path):
    """A child would wait for ever for what its parent's thread reads ahead."""
    shuffle = opened(path)
    reader = shuffle.read()
    num_rows = next(reader).num_rows
    assert is_closed_in_a_child(reader)
    assert num_rows + sum(batch.num_rows for batch in reader) == shuffle.num_rows
