"""Results, consumers and what is pending in an object store: as on a disk."""

from datetime import timedelta

import pyarrow as pa
import pytest

from arrow_format import (
    WriteOptions,
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
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.model import Transaction
from arrow_format.storage.open import open_storage
from arrow_shuffle import consume
from tests.support.consumers import ConsumerRegistry
from tests.support.small_shuffles import write_rows

NONE = timedelta(0)


@pytest.fixture
def place(s3):
    """A storage on a new bucket, the bucket's name, and the server."""
    bucket = s3.new_bucket("results")
    return open_storage(f"s3://{bucket}/a", s3.options), bucket, s3


def write(storage, *values, **options):
    table = pa.table({"k": list(values)})
    write_rows(storage, table, "k", n=3, mode="append", options=WriteOptions(**options))


def take(storage, consumer="a", **options):
    with consume(storage, consumer=consumer, **options) as consumption:
        return sorted(consumption.shuffle.read().read_all()["k"].to_pylist())


def data_objects(server, bucket):
    return [key for key in server.keys(bucket) if "/map_outputs/" in key]


def test_a_bounded_result_from_its_producer_to_its_consumer(place):
    storage, bucket, server = place
    with pytest.raises(RequestTimeoutError):
        take(storage, request_timeout=0.01)
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
            take(storage)
    write(storage, 3)
    assert take(storage) == [3]
    assert [(state.name, state.version) for state in list_consumers(storage)] == [("a", 3)]
    collect_garbage(storage, retention=NONE)
    collect_garbage(storage, retention=NONE)
    assert not data_objects(server, bucket)


def test_a_blocking_result_goes_with_its_consumer(place):
    storage, bucket, server = place
    write(storage, 1, result_type="BLOCKING")
    assert take(storage) == [1]
    with pytest.raises(ResultReleasedError):
        open_shuffle(storage)
    assert not data_objects(server, bucket)
    write(storage, 2)
    assert release_shuffle(storage)
    assert not data_objects(server, bucket)


def test_what_is_pending_becomes_one_version(place):
    storage, bucket, server = place
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    for number in range(3):
        job = begin_job(storage, schema, num_subpartitions=3, partitioner=HashPartitioner("k"))
        rows = pa.record_batch([[1, 10 + number], [number, number]], schema=schema)
        commit_job(
            job,
            [run_map_task(job, 0, 0, [rows])],
            mode="append",
            pending=True,
            transaction=Transaction("query", number),
        )
    with pytest.raises(ShuffleNotFoundError):
        open_shuffle(storage)
    collect_garbage(storage, retention=NONE)
    assert flush_pending(storage).num_rows == 4
    rows = open_shuffle(storage).read().read_all().to_pylist()
    assert {row["k"]: row["v"] for row in rows} == {1: 2, 10: 0, 11: 1, 12: 2}
    collect_garbage(storage, retention=NONE)
    assert len(data_objects(server, bucket)) == 2
