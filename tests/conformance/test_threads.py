"""CONFORMANCE, group "Threads": a write with several leaves what a write with one leaves."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import OutOfDiskError, SchemaError, WriteOptions, open_shuffle
from arrow_format.format.codec_zstd import FrameEncoder
from arrow_format.storage.local import PosixWriter
from tests.support.broken_methods import break_method
from tests.support.guarantees import guarantee
from tests.support.open_files import open_files
from tests.support.small_shuffles import write_rows

THREADS = [1, 2, 3]


def options(threads):
    return WriteOptions(threads=threads, sort_buffer_bytes=256 << 10, sync=False)


def batches(count=60):
    for i in range(count):
        numbers = np.arange(i * 5_000, (i + 1) * 5_000)
        yield pa.record_batch({"k": numbers, "s": [f"row {n % 97} of some" for n in numbers]})


def write(rows, path, threads, **more):
    return write_rows(path, rows, "k", n=50, options=options(threads), **more)


def files(path):
    return [each for each in Path(path).rglob("*") if each.is_file()]


@contextmanager
def leaving_nothing(path):
    """Check that the block leaves no thread, no open file and nothing at the path."""

    gc.collect()  # what tests before left open would close in the block
    threads, before = set(threading.enumerate()), open_files()
    yield
    assert set(threading.enumerate()) == threads
    assert open_files() - before == set()
    assert files(path) == []


def test_all_rows_arrive_and_no_thread_stays(tmp_path):
    before = set(threading.enumerate())
    working = set()

    def observed():
        for batch in batches():
            working.update(threading.enumerate())
            yield batch

    receipt = write(observed(), tmp_path / "x", 3)
    assert receipt.counters["num_regions"] > 10
    assert len(working - before) == 2, "threads worked, so that none stays means something"
    assert set(threading.enumerate()) == before
    found = open_shuffle(tmp_path / "x").read().read_all().sort_by("k")
    assert found == pa.Table.from_batches(batches())


def fails():
    yield from batches(30)
    raise ZeroDivisionError


def does_not_fit():
    yield from batches(30)
    yield pa.record_batch({"k": [1]})


def is_interrupted():
    yield from batches(40)
    signal.raise_signal(signal.SIGINT)
    yield from batches(20)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (fails, ZeroDivisionError, None),
        (does_not_fit, SchemaError, "lacks 's'"),
        (is_interrupted, KeyboardInterrupt, None),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_a_source_that_ends_in_an_error(tmp_path, threads, source, error, message):
    with leaving_nothing(tmp_path), pytest.raises(error, match=message):
        write(source(), tmp_path / "x", threads)


@guarantee("disk full at any step")
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("at", [0, 5, 11])
def test_an_error_of_the_storage(tmp_path, monkeypatch, threads, at):
    calls, full = count(), OutOfDiskError("no space left on device")
    break_method(monkeypatch, PosixWriter, "writev", full, lambda *_: next(calls) >= at)
    with leaving_nothing(tmp_path), pytest.raises(OutOfDiskError, match="no space left"):
        write(batches(), tmp_path / "x", threads)


def test_the_source_is_not_read_to_its_end_after_an_error_of_the_storage(tmp_path, monkeypatch):
    full = OutOfDiskError("no space left on device")
    break_method(monkeypatch, PosixWriter, "writev", full)
    taken = []

    def endless():
        for number, batch in enumerate(batches(100_000)):
            taken.append(number)
            yield batch

    with leaving_nothing(tmp_path), pytest.raises(OutOfDiskError):
        write(endless(), tmp_path / "x", 2)
    assert len(taken) < 1_000


def test_an_interrupt_while_the_main_thread_waits_for_a_region(tmp_path, monkeypatch):
    plain = PosixWriter.writev

    def slow(writer, buffers):
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.2)
        plain(writer, buffers)

    monkeypatch.setattr(PosixWriter, "writev", slow)
    alarm = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    before = set(threading.enumerate())
    alarm.start()
    with pytest.raises(KeyboardInterrupt):
        write(batches(), tmp_path / "x", 2)
    alarm.join()
    assert set(threading.enumerate()) == before
    assert files(tmp_path) == []


def test_an_interrupt_while_the_main_thread_encodes_for_another(tmp_path, monkeypatch):
    plain, interrupted = FrameEncoder.encode, []

    def slow(encoder, chunks):
        if threading.current_thread() is threading.main_thread():
            interrupted.append(1)
            signal.raise_signal(signal.SIGINT)
        time.sleep(0.01)
        return plain(encoder, chunks)

    monkeypatch.setattr(FrameEncoder, "encode", slow)
    with leaving_nothing(tmp_path), pytest.raises(KeyboardInterrupt):
        write(batches(), tmp_path / "x", 2)
    assert interrupted


def test_batches_are_pulled_by_the_calling_thread(tmp_path):
    pulled = set()

    def observed():
        for batch in batches():
            pulled.add(threading.current_thread())
            yield batch

    write(observed(), tmp_path / "x", 3)
    assert pulled == {threading.current_thread()}


def test_a_process_that_was_forked_after_a_write_writes_with_threads(tmp_path):
    write(batches(), tmp_path / "x", 3)
    fork = multiprocessing.get_context("fork")
    child = fork.Process(target=write, args=(list(batches()), tmp_path / "y", 3))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert open_shuffle(tmp_path / "y").num_rows == 300_000


KILLED = """
import os, signal, sys
from tests.conformance.test_threads import batches, write
from tests.support.small_shuffles import write_rows

def until():
    for number, batch in enumerate(batches()):
        if number == 45:
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch

write(until(), sys.argv[1], int(sys.argv[2]), mode="append")
"""


@pytest.mark.parametrize("threads", [1, 3])
def test_a_writer_that_is_killed_changes_nothing(tmp_path, threads):
    write(batches(3), tmp_path / "x", 1)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path / "x", str(threads)], check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(files(tmp_path / "x" / "map_outputs")) == 3, "the killed writer left a data file"
    shuffle = open_shuffle(tmp_path / "x")
    assert (shuffle.version, shuffle.num_rows) == (1, 15_000)
    assert write(batches(1), tmp_path / "x", threads, mode="append").version == 2
