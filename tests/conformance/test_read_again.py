"""CONFORMANCE, group "Read scheduler and pool": interrupted, forked and abandoned readers."""

import gc
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import CorruptShuffleError, OptionError, WriteOptions, open_shuffle
from arrow_format import write_shuffle as write
from arrow_format.read import version_reader
from tests.support.guarantees import guarantee
from tests.support.waiting import wait_until

ROWS = 300_000


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("again") / "s"
    table = pa.table({"k": np.arange(ROWS), "v": np.random.default_rng(0).integers(0, 9, ROWS)})
    options = WriteOptions(sync=False, sort_buffer_bytes=2 << 20, chunk_bytes=16 << 10)
    write(table, path, num_subpartitions=40, keys="k", options=options)
    return path


# A process of its own: in this one the signal could reach a callback of the garbage collector that
# a test library has set. It is raised only within the read: a batch that has already been handed
# over and is dropped by its receiver is no fault of the reader.
INTERRUPTED_READS = """
import signal, sys
from arrow_format import ClosedError, open_shuffle

path, total, delays = sys.argv[1], int(sys.argv[2]), [float(delay) for delay in sys.argv[3:]]
interrupts = 0


def interrupt(_, frame):
    global interrupts
    while frame is not None and not frame.f_globals["__name__"].startswith("arrow_format."):
        frame = frame.f_back
    if frame is None:
        signal.setitimer(signal.ITIMER_REAL, 1e-4)
    else:
        interrupts += 1
        raise KeyboardInterrupt


def how_it_ends(reader, rows=0):
    while True:
        try:
            rows += reader.read_next_batch().num_rows
        except KeyboardInterrupt:
            continue
        except ClosedError:
            return "told"
        except StopIteration:
            return "complete" if rows == total else f"as if complete after {rows} rows"


# Reads once in peace: what is imported on the way is not left half imported.
assert open_shuffle(path).read().read_all().num_rows == total
signal.signal(signal.SIGALRM, interrupt)
for delay in delays:
    reader = open_shuffle(path).read()
    signal.setitimer(signal.ITIMER_REAL, delay)
    print(how_it_ends(reader))
    signal.setitimer(signal.ITIMER_REAL, 0)
print(interrupts)
"""


@guarantee("interrupted read")
def test_an_interrupted_read_never_ends_as_if_complete(path):
    delays = np.linspace(0.001, 0.03, 15).tolist()
    program = [sys.executable, "-c", INTERRUPTED_READS, path, ROWS, *delays]
    ended = subprocess.run(
        [str(word) for word in program], capture_output=True, text=True, check=True, timeout=60
    )
    *ends, interrupts = ended.stdout.split("\n")[:-1]
    assert len(ends) == len(delays)
    assert set(ends) <= {"told", "complete"}
    assert int(interrupts) > 0


def rows_in_child(shuffle):
    """How many rows a process reads that is forked now."""
    fork = multiprocessing.get_context("fork")
    queue = fork.SimpleQueue()

    def read():
        queue.put(sum(batch.num_rows for batch in shuffle.read()))

    child = fork.Process(target=read, daemon=True)
    child.start()
    child.join(20)
    assert child.exitcode == 0
    return queue.get()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_child_forked_while_others_read_can_read(path):
    shuffle = open_shuffle(path)
    ended = threading.Event()

    def read_on():
        while not ended.is_set():
            for _ in shuffle.read():
                pass

    thread = threading.Thread(target=read_on)
    thread.start()
    try:
        for _ in range(8):
            assert rows_in_child(shuffle) == ROWS
    finally:
        ended.set()
        thread.join()


@contextmanager
def inside_of(hold):
    """Keep a thread within ``hold(inside, forked)``, which sets one and waits for the other."""
    inside, forked = threading.Event(), threading.Event()
    thread = threading.Thread(target=hold, args=(inside, forked))
    thread.start()
    try:
        assert inside.wait(20)
        yield
    finally:
        forked.set()
        thread.join()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_child_forked_while_another_looks_up_the_totals_can_read(path, monkeypatch):
    shuffle, looked_up, parent = open_shuffle(path), version_reader.totals_of, os.getpid()

    def hold(inside, forked):
        def look_up(*arguments):
            if os.getpid() == parent:
                inside.set()
                forked.wait()
            return looked_up(*arguments)

        monkeypatch.setattr(version_reader, "totals_of", look_up)
        assert shuffle.subpartition_rows is not None

    with inside_of(hold):
        assert rows_in_child(shuffle) == ROWS


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_child_forked_while_another_holds_the_lock_of_reads_can_read(path):
    shuffle = open_shuffle(path)
    assert sum(batch.num_rows for batch in shuffle.read()) == ROWS

    def hold(inside, forked):
        with shuffle._reader.scheduler.pool.changed:
            inside.set()
            forked.wait()

    with inside_of(hold):
        assert rows_in_child(shuffle) == ROWS


def test_readers_left_in_cycles_close_themselves_anywhere(path):
    shuffle = open_shuffle(path)
    threshold = gc.get_threshold()
    done = threading.Event()

    def leave_readers():
        for _ in range(300):
            reader = shuffle.subpartition(3)
            reader.read_next_batch()
            cycle = [reader]
            cycle.append(cycle)
        done.set()

    gc.set_threshold(3, 2, 2)
    try:
        threading.Thread(target=leave_readers, daemon=True).start()
        assert done.wait(60), "two of them wait for each other"
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    scheduler = shuffle._reader.scheduler
    wait_until(lambda: not scheduler.pool.used_bytes and not len(scheduler._files))


def test_without_threads_readers_read_for_themselves(path, monkeypatch):
    def refuse(_):
        msg = "can't start new thread"
        raise RuntimeError(msg)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    shuffle = open_shuffle(path)
    assert shuffle.read().read_all().num_rows == ROWS
    assert shuffle._reader.scheduler._thread is None


def test_another_shuffle_is_never_kept_under_a_pinned_name(path, tmp_path):
    first, second = tmp_path / "s", tmp_path / "put aside"
    shutil.copytree(path, first)
    pinned = pickle.dumps(open_shuffle(first))
    first.rename(second)
    write(pa.table({"k": [1]}), first, num_subpartitions=40, keys="k")
    for _ in range(2):
        with pytest.raises(CorruptShuffleError, match="the directory was replaced"):
            pickle.loads(pinned).read().read_all()
    shutil.rmtree(first)
    second.rename(first)
    assert pickle.loads(pinned).read().read_all().num_rows == ROWS
    assert pickle.loads(pinned) is pickle.loads(pinned)


@pytest.mark.parametrize("wanted", [range(10**15), range(-(10**15), 3), range(0, 10**15, 7)])
def test_a_range_is_checked_before_it_is_counted_out(path, wanted):
    with pytest.raises(OptionError, match="is out of range; the shuffle has 40"):
        open_shuffle(path).read(wanted)


def test_any_part_of_a_range_that_is_there_can_be_read(path):
    shuffle = open_shuffle(path)
    for wanted in (range(0), range(39, -1, -1), range(3, 4), range(0, 40, 13)):
        expected = sum(shuffle.subpartition_rows[i].as_py() for i in wanted)
        assert shuffle.read(wanted).read_all().num_rows == expected
