"""Results, consumers and what is pending in an object store: as on a disk."""

from datetime import timedelta

import pytest

from arrow_format import (
    collect_garbage,
    flush_pending,
    list_consumers,
    open_shuffle,
    release_shuffle,
)
from arrow_format.errors import (
    BackPressureTimeoutError,
    ConsumerError,
    RequestTimeoutError,
    ResultReleasedError,
    ShuffleNotFoundError,
)
from arrow_format.storage.open import open_storage
from arrow_shuffle import consume
from tests.support.consumers import ConsumerRegistry
from tests.support.logs import put
from tests.support.results import take, write

NONE = timedelta(0)


@pytest.fixture
def place(s3):
    """A storage on a new bucket, the bucket's name, and the server."""
    bucket = s3.new_bucket("results")
    return open_storage(f"s3://{bucket}/a", s3.options), bucket, s3


def data_objects(server, bucket):
    return [key for key in server.keys(bucket) if "/map_outputs/" in key]


@pytest.mark.slow
def test_a_bounded_result_from_its_producer_to_its_consumer(place):
    storage, bucket, server = place
    with pytest.raises(RequestTimeoutError):
        take(storage, "a", request_timeout=0.01)
    assert server.keys(bucket) == [], "of a request in vain"
    ConsumerRegistry(storage).register("a", 0)
    bounds = {"result_type": "PIPELINED_BOUNDED", "max_unconsumed_versions": 2}
    write(storage, 1, **bounds)
    write(storage, 2)
    with pytest.raises(BackPressureTimeoutError, match="for consumer 'a'"):
        write(storage, 3, back_pressure_timeout=0.05)
    with consume(storage, consumer="a") as consumption:
        assert consumption.shuffle.num_rows == 2
        with pytest.raises(ConsumerError):
            take(storage, "a")
    write(storage, 3)
    assert take(storage, "a") == [3]
    assert [(state.name, state.version) for state in list_consumers(storage)] == [("a", 3)]
    collect_garbage(storage, retention=NONE)
    collect_garbage(storage, retention=NONE)
    assert not data_objects(server, bucket)


def test_a_blocking_result_goes_with_its_consumer(place):
    storage, bucket, server = place
    write(storage, 1, result_type="BLOCKING")
    assert take(storage, "a") == [1]
    with pytest.raises(ResultReleasedError):
        open_shuffle(storage)
    assert not data_objects(server, bucket)
    write(storage, 2)
    assert release_shuffle(storage)
    assert not data_objects(server, bucket)


def test_what_is_pending_becomes_one_version(place):
    storage, bucket, server = place
    for number in range(3):
        put(storage, [(1, number), (10 + number, number)], batch=number)
    with pytest.raises(ShuffleNotFoundError):
        open_shuffle(storage)
    collect_garbage(storage, retention=NONE)
    assert flush_pending(storage).num_rows == 4
    rows = open_shuffle(storage).read().read_all().to_pylist()
    assert {row["k"]: row["v"] for row in rows} == {1: 2, 10: 0, 11: 1, 12: 2}
    collect_garbage(storage, retention=NONE)
    assert len(data_objects(server, bucket)) == 2
