"""Rows that have waited longer than their stream's interval: who makes a version of them."""

import time
from datetime import timedelta

import pytest

from arrow_format import (
    OptionError,
    RequestTimeoutError,
    ShuffleNotFoundError,
    collect_garbage,
    flush_pending,
    open_shuffle,
)
from arrow_format.errors import CorruptShuffleError
from arrow_format.log.commit_log import CommitLog
from arrow_format.storage.open import open_storage
from arrow_shuffle import consume
from connector.cli.main import main
from tests.support.guarantees import guarantee
from tests.support.logs import put
from tests.support.small_shuffles import collect, files_below

HOUR, MOMENT = timedelta(hours=1), timedelta(milliseconds=1)
LONG = timedelta(days=1)


def wait(path, value, interval):
    """Commit a row as pending, and let a moment pass."""
    put(path, [(1, value)], interval=interval, result_type="PIPELINED")
    time.sleep(0.005)


def rows(path):
    try:
        return [row["v"] for row in open_shuffle(path).read().read_all().to_pylist()]
    except ShuffleNotFoundError:
        return []


def state(path):
    return CommitLog(open_storage(path)).view().state.pending


FLUSHES = {
    "flush --due": lambda path: main(["flush", str(path), "--due"]),
    "flush_pending": lambda path: flush_pending(path, due=True),
    "collector": lambda path: collect_garbage(path, retention=LONG),
    "gc": lambda path: main(["gc", str(path)]),
}


@pytest.mark.slow
@guarantee("overdue rows")
@pytest.mark.parametrize("how", FLUSHES)
def test_what_is_overdue_becomes_a_version_and_what_is_not_waits(path, how):
    for value, interval, expected in [
        (1, HOUR, []), (2, None, []), (3, MOMENT, [3]), (4, HOUR, [3]), (5, MOMENT, [3, 5]),
    ]:  # fmt: skip
        wait(path, value, interval)
        FLUSHES[how](path)
        assert rows(path) == expected
        assert (state(path).numbers == ()) == (expected[-1:] == [value])
    there = files_below(path)
    FLUSHES["flush_pending"](path)
    assert files_below(path) == there


@guarantee("overdue rows")
def test_a_consumer_flushes_only_where_it_was_asked_to(path):
    wait(path, 1, MOMENT)
    with pytest.raises(ShuffleNotFoundError, match="holds no committed shuffle"):
        consume(path, consumer="a")
    assert rows(path) == []
    for timeout in (0.0, 5.0):
        wait(path, 2, MOMENT)
        with consume(path, consumer="a", flush=True, request_timeout=timeout) as consumption:
            assert consumption.shuffle.read().read_all()["v"].to_pylist() == [2]
    wait(path, 3, HOUR)
    with pytest.raises(RequestTimeoutError):
        consume(path, consumer="a", flush=True)


@guarantee("overdue rows")
def test_a_consumer_that_waits_flushes_when_the_time_has_come(path):
    wait(path, 1, timedelta(milliseconds=300))
    with consume(path, consumer="a", flush=True, request_timeout=30) as consumption:
        assert consumption.shuffle.num_rows == 1


@guarantee("overdue rows")
def test_readers_neither_write_nor_see_what_is_overdue(path):
    wait(path, 1, MOMENT)
    flush_pending(path)
    wait(path, 2, MOMENT)
    there = files_below(path)
    shuffle = open_shuffle(path)
    assert shuffle.read().read_all()["v"].to_pylist() == [1]
    assert shuffle.verify().ok
    with consume(path, consumer="a") as consumption:
        assert consumption.shuffle.num_rows == 1
    assert [name for name in files_below(path) if not name.startswith("consumers")] == there
    collect_garbage(path, dry_run=True)
    assert state(path).numbers


@pytest.mark.slow
def test_a_full_result_is_left_to_its_consumers_and_collected(path):
    bounds = {"result_type": "PIPELINED_BOUNDED", "max_unconsumed_versions": 1}
    put(path, [(1, 1)], interval=MOMENT, **bounds)
    flush_pending(path)
    with consume(path, consumer="a"):
        put(path, [(1, 2)], interval=MOMENT, **bounds)
    flush_pending(path)
    put(path, [(1, 3)], interval=MOMENT, **bounds)
    time.sleep(0.005)
    collect_garbage(path)
    assert state(path).numbers, "consumer a has not consumed the version before"
    with consume(path, consumer="a", flush=True):
        pass
    collect_garbage(path)
    assert not state(path).numbers


def test_a_collection_that_cannot_flush_collects_and_says_so(path):
    for value in (1, 2):
        put(path, [(1, value)], pending=False, mode="overwrite", result_type="PIPELINED")
    wait(path, 3, MOMENT)
    log = CommitLog(open_storage(path))
    (output,) = log.record(log.newest_version()).map_outputs
    (path / output.files[0].data_path).write_bytes(b"damaged")
    with pytest.raises(CorruptShuffleError):
        collect(path)
    assert CommitLog(open_storage(path)).view().oldest == 2, "it was collected all the same"
    assert state(path).numbers


def test_what_is_no_answer_is_refused_before_anything_is_flushed(path):
    wait(path, 1, MOMENT)
    with pytest.raises(OptionError, match="flush='yes'"):
        consume(path, consumer="a", flush="yes")
    with pytest.raises(OptionError, match="retention=7"):
        collect_garbage(path, retention=7)
    assert state(path).numbers
