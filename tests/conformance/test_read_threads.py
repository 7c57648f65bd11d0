"""CONFORMANCE, group "Reading": any number of threads reads what one reads."""

import gc
import os
import pickle
import threading
import time

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrow_format import (
    ClosedError,
    CorruptShuffleError,
    OptionError,
    ReadOptions,
    WriteOptions,
    open_shuffle,
    write_shuffle,
)
from tests.conformance.test_read_memory import rows_of

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


def opened(path, threads):
    return open_shuffle(path, options=ReadOptions(threads=threads, memory_bytes=96 << 20))


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


@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize("way", WAYS)
def test_the_same_batches(path, way, threads):
    one = list(opened(path, 1).read(**WAYS[way]))
    shuffle = opened(path, threads)
    for _ in range(2):
        several = list(shuffle.read(**WAYS[way]))
        assert [batch.num_rows for batch in several] == [batch.num_rows for batch in one]
        assert all(a.equals(b) for a, b in zip(several, one, strict=True))
    assert is_clean(path)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_readers_of_one_shuffle_interleaved_and_stopped_early(path, threads):
    expected = opened(path, 1).read().read_all()
    shuffle = opened(path, threads)
    first, dropped, closed = shuffle.read(), shuffle.read(), shuffle.read()
    next(dropped), next(closed)
    batches = [next(first)]
    del dropped
    closed.close()
    batches += first
    assert expected.equals(expected.from_batches(batches))
    assert is_clean(path)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_lookups(path, threads):
    keys = {"k": [5, 77_777, 299_999]}
    rows = opened(path, 1).read().read_all()
    expected = rows.filter(pc.is_in(rows["k"], pa.array(keys["k"])))
    assert opened(path, threads).lookup(keys).read_all().equals(expected)
    assert expected.num_rows == 3


def test_damage_is_found_at_the_same_chunk(tmp_path):
    write_shuffle(
        rows_of(100_000, text_bytes=10), tmp_path / "x", num_subpartitions=N, keys="k",
        options=WriteOptions(sync=False, codec_level=-5, chunk_bytes=8 << 10),
    )  # fmt: skip
    (file,) = (tmp_path / "x").rglob("*.shuffle.data")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)

    def outcome(threads):
        runs = []
        with pytest.raises(CorruptShuffleError) as raised:
            runs += (run.batch for run in opened(tmp_path / "x", threads).reader(0, N))
        return runs, str(raised.value)

    runs, message = outcome(1)
    assert len(runs) > 1
    for threads in (2, 5):
        assert outcome(threads) == (runs, message)
    assert is_clean(path)


def test_a_child_forked_after_a_read_reads(path):
    shuffle = opened(path, 3)
    expected = shuffle.read().read_all()
    child = os.fork()
    if not child:
        os._exit(0 if shuffle.read().read_all().equals(expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("threads", [1, 3])
def test_a_reader_that_was_begun_before_a_fork_is_read_by_the_parent_alone(path, threads):
    """A child would wait for ever for what its parent's threads decode."""
    shuffle = opened(path, threads)
    reader = shuffle.read()
    num_rows = next(reader).num_rows
    child = os.fork()
    if not child:
        try:
            next(reader)
        except ClosedError:
            reader.close()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert num_rows + sum(batch.num_rows for batch in reader) == shuffle.num_rows


def test_one_thread_decodes_unless_a_number_was_given(path):
    def helpers(shuffle):
        running = (threading.enumerate() for _ in shuffle.reader(0, N))
        return {t.name for threads in running for t in threads if "decode" in t.name}

    assert not helpers(open_shuffle(path))
    assert not helpers(pickle.loads(pickle.dumps(open_shuffle(path))))
    assert helpers(opened(path, 3))
    assert helpers(pickle.loads(pickle.dumps(opened(path, 3))))


@pytest.mark.parametrize("threads", [0, -1, True, "2", 1 << 20])
def test_bad_numbers_of_threads(threads):
    with pytest.raises(OptionError, match=r"threads=.*expected a whole number of threads"):
        ReadOptions(threads=threads)
