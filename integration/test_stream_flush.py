"""The flush interval of a stream's sink: batches wait unseen, and become one version together.

No test waits: an interval of an hour is never over, and one of a millisecond is when the next query
has begun.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from arrow_format import ShuffleNotFoundError, flush_pending, open_shuffle
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.pending import pending_outputs
from arrow_format.storage.open import PosixStorage
from integration.test_streams import Pipe, put_newest
from tests.support.exhaustive import exhaustive
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

NEW = {"numSubpartitions": 3, "keys": "k"}
HELD = {"flush.maxInterval": "1h"}
DUE = {"flush.maxInterval": "1ms"}


class Values(Pipe):
    """A streaming query over files of keys and values, each a micro-batch."""

    def put(self, *rows: tuple[int, int]) -> None:
        """Add a file, which is newer than those before: rows of one key and value each."""
        keys, values = zip(*rows, strict=True)
        table = pa.table({"k": pa.array(keys, pa.int64()), "v": list(values)})
        put_newest(self.directory / "values", table)

    def values(self) -> DataFrame:
        """Return the files, in order."""
        reader = self.spark.readStream.schema("k bigint, v bigint")
        return reader.option("maxFilesPerTrigger", 1).parquet(str(self.directory / "values"))

    def totals(self) -> DataFrame:
        """Return the sum of each key so far."""
        return self.values().groupBy("k").agg(F.sum("v").alias("v"))


@pytest.fixture
def values(spark: SparkSession, tmp_path: Path) -> Values:
    return Values(spark, tmp_path)


def rows_in(path: Path) -> list[tuple[int, int]]:
    rows = open_shuffle(path).read(columns=["k", "v"]).read_all().to_pylist()
    return sorted((row["k"], row["v"]) for row in rows)


def batches_pending(path: Path) -> list[int]:
    """Number of each micro-batch that waits, as the log says."""
    log = CommitLog(PosixStorage(str(path)))
    entries = log.read(partial(pending_outputs, log)).entries
    return [one.transaction.number for one in entries if one.transaction is not None]


def num_versions(path: Path) -> int:
    """From how many versions the rows are that readers see."""
    return len(set(open_shuffle(path).map_outputs.versions.tolist()))


@guarantee("flush on Spark")
def test_batches_become_one_version_with_the_latest_row_of_each_key(values: Values) -> None:
    for rows in [((1, 1), (2, 1)), ((1, 2), (3, 2)), ((1, 3), (1, 4))]:
        values.put(*rows)
    assert values.run(values.values(), **NEW, **HELD) == [0, 1, 2]
    assert batches_pending(values.sink) == [0, 1, 2]
    with pytest.raises(ShuffleNotFoundError):
        open_shuffle(values.sink)

    values.put((3, 5))
    values.run(values.values(), **NEW, **DUE)
    assert batches_pending(values.sink) == []
    # What was overdue was flushed before the first batch, and that batch after its own interval.
    assert num_versions(values.sink) == 2
    assert rows_in(values.sink) == [(1, 4), (2, 1), (3, 2), (3, 5)]

    for value in (6, 7):
        values.put((1, value), (4, value))
    values.run(values.values(), **NEW, **HELD)
    assert batches_pending(values.sink) == [4, 5]
    # The interval begins with a flush.
    assert rows_in(values.sink) == [(1, 4), (2, 1), (3, 2), (3, 5)]

    reader = Values(values.spark, values.directory / "reader")
    (seen,) = reader.follow(values.sink)
    # Nor does a stream see them.
    assert sorted(map(tuple, seen)) == [(1, 4), (2, 1), (3, 2), (3, 5)]

    assert flush_pending(values.sink) is not None
    assert num_versions(values.sink) == 3
    (seen,) = reader.follow(values.sink)
    assert sorted(map(tuple, seen)) == [(1, 7), (4, 7)]
    assert open_shuffle(values.sink).verify().ok


@guarantee("flush on Spark")
def test_a_complete_result_takes_the_place_of_the_one_before(values: Values) -> None:
    values.put((1, 1), (2, 1))
    values.put((1, 10))
    values.run(values.totals(), "complete", **NEW, **HELD)
    assert batches_pending(values.sink) == [0, 1]
    for value, expected in ((100, 111), (1000, 1111)):
        values.put((1, value))
        values.run(values.totals(), "complete", **NEW, **DUE)
        assert rows_in(values.sink) == [(1, expected), (2, 1)]
        assert num_versions(values.sink) == 1


def test_a_batch_that_runs_again_is_pending_once_and_makes_its_flush_good(values: Values) -> None:
    """As after a kill behind the commit of a batch, and before its flush."""
    values.put((1, 1))
    values.put((1, 2), (2, 2))
    values.run(values.values(), **NEW, **HELD)
    before = sorted(values.sink.rglob("*"))
    assert values.forget_last_commit() == 1
    assert values.run(values.values(), **NEW, **HELD) == [1]
    assert sorted(values.sink.rglob("*")) == before
    values.forget_last_commit()
    assert values.run(values.values(), **NEW, **DUE) == [1]
    assert rows_in(values.sink) == [(1, 2), (2, 2)]
    assert batches_pending(values.sink) == []
    values.forget_last_commit()
    values.run(values.values(), **NEW, **DUE)
    assert rows_in(values.sink) == [(1, 2), (2, 2)]


@guarantee("flush on Spark")
@pytest.mark.parametrize("mode", ["append", "complete"])
def test_what_is_pending_comes_before_a_batch_that_does_not_wait(values: Values, mode: str) -> None:
    """The query is started again without an interval: what it has is not flushed behind that."""
    values.put((1, 1))
    rows = values.values() if mode == "append" else values.totals()
    values.run(rows, mode, **NEW, **HELD)
    values.put((1, 10))
    values.run(rows, mode, **NEW)
    assert flush_pending(values.sink) is None
    assert rows_in(values.sink) == ([(1, 1), (1, 10)] if mode == "append" else [(1, 11)])


@pytest.mark.parametrize(
    "options",
    [
        NEW | {"isOutputIdempotent": "false"},
        {"numSubpartitions": 3, "partitioner": "roundrobin"},
        {"numSubpartitions": 3, "keys": "k", "partitioner": "range", "rangeBounds": "[[1],[2]]"},
    ],
    ids=["not idempotent", "without keys", "by ranges"],
)
def test_each_batch_is_a_version_where_rows_cannot_wait(
    values: Values, options: dict[str, object]
) -> None:
    for value in (1, 2):
        values.put((1, value))
    values.run(values.values(), **options, **HELD)
    assert num_versions(values.sink) == 2
    assert rows_in(values.sink) == [(1, 1), (1, 2)]
    assert flush_pending(values.sink) is None


def test_a_buffer_in_memory_alone_is_flushed_when_it_is_full(values: Values) -> None:
    """Each batch has 3,000 rows of 16 bytes, so that the second fills 64 KiB."""
    for value in (1, 2, 3):
        values.put(*((key, value) for key in range(3000)))
    full = {"flush.memoryBufferOnly": "true", "flush.maxBufferedBytes": "64k"}
    values.run(values.values(), **NEW, **HELD, **full)
    assert num_versions(values.sink) == 1
    assert rows_in(values.sink) == [(key, 2) for key in range(3000)]
    assert batches_pending(values.sink) == [2]


@exhaustive(but="options, message", least=2)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flush.maxInterval": "often"}, "flush.maxInterval='often': expected a whole number"),
        ({"flush.maxInterval": "0s"}, "option flush.maxInterval='0s': expected a"),
        (HELD | {"flush.memoryBufferOnly": "perhaps"}, "flush.memoryBufferOnly='perhaps'"),
        (HELD | {"flush.maxBufferedBytes": "1k"}, "flush.maxBufferedBytes='1k': expected a whole"),
        ({"flush.memoryBufferOnly": "true"}, "has no effect without flush.maxInterval"),
        ({"flush.interval": "1h"}, "option 'flush.interval' is not known"),
        (HELD | {"sortBy": "v"}, "option sortBy: with flush.maxInterval rows wait"),
    ],
)
def test_bad_options(values: Values, options: dict[str, object], message: str) -> None:
    values.put((1, 1))
    with pytest.raises(StreamingQueryException, match=message):
        values.run(values.values(), **NEW, **options)
    assert not values.sink.exists()
