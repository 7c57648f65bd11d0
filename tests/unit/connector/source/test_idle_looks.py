"""A stream that finds nothing new in a store polls again after a while, not immediately."""

import threading
import time

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructType

from arrow_format.storage.open import open_storage
from connector.source import stream_reader
from connector.source.stream_reader import ShuffleStreamReader, seconds_until_poll
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import write_rows

SCHEMA = StructType().add("v", LongType())
ALL = ReadAllAvailable()


@pytest.mark.parametrize(
    ("now", "idle_at", "interval", "expected"),
    [(5, None, 1, 0), (5, 5, 1, 1), (5, 4.75, 1, 0.75), (5, 4, 1, 0), (5, 1, 1, 0), (5, 5, 0, 0)],
)
def test_how_long_to_wait(now, idle_at, interval, expected):
    assert seconds_until_poll(now, idle_at, interval) == expected


def add(storage, value):
    """Add a version."""
    rows = pa.table({"v": [value]})
    write_rows(storage, rows, "v", n=2, mode="append")


@pytest.fixture
def store(s3):
    """A storage on a new bucket, and what counts its requests."""
    bucket = s3.new_bucket("idle")
    storage = open_storage(f"s3://{bucket}/a", s3.options)
    add(storage, 0)
    return storage, lambda: s3.requests(bucket)


def following(storage):
    """A reader of a query that has read what is there."""
    options = {f"storage.secret.{name}": value for name, value in storage.options.items()}
    reader = ShuffleStreamReader({"path": storage.root, **options}, SCHEMA)
    return reader, reader.latestOffset(reader.initialOffset(), ALL)


def listings(requests):
    return [request for request in requests if "list-type=2" in request.path]


@pytest.mark.slow
@guarantee("idle streams")
def test_a_store_is_asked_for_the_next_number_once_per_interval(store, monkeypatch):
    monkeypatch.setattr(stream_reader, "IDLE_POLL_INTERVAL", 0.3)
    storage, requests = store
    reader, end = following(storage)
    with requests() as made:
        started = time.monotonic()
        for _ in range(3):
            assert reader.latestOffset(end, ALL) == end
        assert time.monotonic() - started >= 0.6
        assert reader.reportLatestOffset() == end
    assert len(listings(made)) <= 2, "by the first of them"
    assert len(made) <= 10
    with requests() as made:
        assert reader.latestOffset(end, ALL) == end
    assert [request.method for request in made] == ["GET"] * 2, "the newest entry, and the next"
    assert not listings(made)
    add(storage, 10)
    later = reader.latestOffset(end, ALL)
    assert later["version"] == 2
    started = time.monotonic()
    assert reader.latestOffset(later, ALL) == later
    assert time.monotonic() - started < 0.3, "something was found"


@pytest.mark.slow
@guarantee("idle streams")
def test_what_comes_while_it_waits_is_in_the_answer(store):
    storage, _ = store
    reader, end = following(storage)
    assert reader.latestOffset(end, ALL) == end
    coming = threading.Thread(target=add, args=(storage, 10))
    coming.start()
    assert reader.latestOffset(end, ALL)["version"] == 2
    coming.join()


def test_a_stop_ends_the_wait(store, monkeypatch):
    monkeypatch.setattr(stream_reader, "IDLE_POLL_INTERVAL", 60)
    reader, end = following(store[0])
    assert reader.latestOffset(end, ALL) == end
    threading.Timer(0.1, reader.stop).start()
    started = time.monotonic()
    assert reader.latestOffset(end, ALL) == end
    assert time.monotonic() - started < 30


def test_a_query_that_ends_with_what_is_there_does_not_wait(store, monkeypatch):
    monkeypatch.setattr(stream_reader, "IDLE_POLL_INTERVAL", 60)
    reader, end = following(store[0])
    reader.prepareForTriggerAvailableNow()
    started = time.monotonic()
    for _ in range(2):
        assert reader.latestOffset(end, ALL) == end
    assert time.monotonic() - started < 30


def test_a_local_disk_is_looked_at_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr(stream_reader, "IDLE_POLL_INTERVAL", 10)
    storage = open_storage(tmp_path)
    add(storage, 0)
    reader, end = following(storage)
    started = time.monotonic()
    for _ in range(3):
        assert reader.latestOffset(end, ALL) == end
    assert time.monotonic() - started < 8


def test_a_second_is_between_two_polls():
    assert stream_reader.IDLE_POLL_INTERVAL == 1.0
