"""Streams through Spark: the sink and the source, option by option, and what happens to them."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import Row
from pyspark.sql import functions as F

import arrow_format
from arrow_format import WriteOptions, collect_garbage, merge_shuffle, open_shuffle
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.log.changes import entries_of
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.names import entry_path
from arrow_format.log.transactions import find_transaction
from arrow_format.storage.open import PosixStorage
from connector.spark_version import ADMISSION_CONTROL
from tests.support import spark_versions
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

FAST = WriteOptions(sync=False)
N = 4


def add(path: Path, first: int, count: int = 10, mode: str = "append", n: int = N) -> int:
    """Write ids from `first` on, without Spark; return the version."""
    ids = range(first, first + count)
    table = pa.table({"id": pa.array(ids, pa.int64()), "text": [f"row {one}" for one in ids]})
    return arrow_format.write_shuffle(
        table, path, num_subpartitions=n, keys="id", mode=mode, options=FAST
    ).version


def put_newest(directory: Path, table: pa.Table) -> None:
    """Add a Parquet file that is newer than those before: Spark takes the oldest first."""
    directory.mkdir(parents=True, exist_ok=True)
    number = len(list(directory.iterdir()))
    file = directory / f"{number}.parquet"
    pq.write_table(table, file)
    os.utime(file, (1_700_000_000 + number,) * 2)


def ids_in(path: Path) -> list[int]:
    return sorted(open_shuffle(path).read(columns=["id"]).read_all()["id"].to_pylist())


def numbers(*firsts: int, count: int = 10) -> list[int]:
    return sorted(first + i for first in firsts for i in range(count))


def transactions(path: Path) -> list[int | None]:
    """Batch of each version that is there."""
    log = CommitLog(PosixStorage(str(path)))
    entries = log.read(lambda view: [*entries_of(log, range(view.oldest, view.newest + 1))])
    return [None if one.transaction is None else one.transaction.number for one in entries]


@dataclass
class Pipe:
    """A streaming query that is run again and again on one checkpoint, until nothing is left."""

    spark: SparkSession
    directory: Path
    progress: list[dict[str, Any]] = field(default_factory=list)
    """Of the last run."""
    partitions: list[int] = field(default_factory=list)
    """How many Spark partitions with rows each batch of the last :meth:`follow` had."""

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    @property
    def sink(self) -> Path:
        return self.directory / "sink"

    def feed(self, first: int, count: int = 10) -> None:
        """Add a file to the input of :meth:`files`: one micro-batch."""
        table = pa.table({"id": pa.array(range(first, first + count), pa.int64())})
        put_newest(self.directory / "input", table)

    def files(self) -> DataFrame:
        """A stream of the files, each a batch of two Spark partitions."""
        (self.directory / "input").mkdir(exist_ok=True)
        reader = self.spark.readStream.schema("id bigint").option("maxFilesPerTrigger", "1")
        return reader.parquet(str(self.directory / "input")).repartition(2)

    def run(self, rows: DataFrame, mode: str = "append", **options: object) -> list[int]:
        """Write all there is to the sink; return the batches that had rows."""
        writer = rows.writeStream.format("arrow_shuffle").outputMode(mode).options(**options)
        return self._finish(writer, path=str(self.sink))

    def follow(self, path: Path, schema: str | None = None, **options: object) -> list[Any]:
        """Read all there is of a shuffle; return the rows of each batch."""
        batches: list[Any] = []
        reader = self.spark.readStream.format("arrow_shuffle").options(**options)
        if schema is not None:
            reader = reader.schema(schema)

        def keep(batch: DataFrame, _: int) -> None:
            found = batch.withColumn("p", F.spark_partition_id()).collect()
            rows = sorted(Row(**{name: row[name] for name in batch.columns}) for row in found)
            batches.append((len({row.p for row in found}), rows))

        self._finish(reader.load(str(path)).writeStream.foreachBatch(keep))
        self.partitions = [count for count, rows in batches if rows]
        return [rows for _, rows in batches if rows]

    def _finish(self, writer: Any, **start: str) -> list[int]:
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start(**start)
        query.awaitTermination(120)
        self.progress = [json.loads(one.json) for one in query.recentProgress]
        return [one["batchId"] for one in self.progress if one["numInputRows"]]

    def forget_last_commit(self) -> int:
        """Let Spark believe that the last batch was not completed, as after a kill."""
        commits = self.checkpoint / "commits"
        last = max(int(one.name) for one in commits.iterdir() if one.name.isdecimal())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)
        return last


@pytest.fixture
def pipe(spark: SparkSession, tmp_path: Path) -> Pipe:
    return Pipe(spark, tmp_path)


NEW = {"numSubpartitions": 3, "keys": "id"}


class TestSink:
    def test_a_version_for_each_micro_batch(self, pipe: Pipe) -> None:
        for first in (0, 10):
            pipe.feed(first)
        assert pipe.run(pipe.files(), **NEW) == [0, 1]
        assert transactions(pipe.sink) == [0, 1]
        pipe.feed(20)
        assert pipe.run(pipe.files()) == [2], "it is partitioned as what is there"
        assert ids_in(pipe.sink) == numbers(0, 10, 20)
        shuffle = open_shuffle(pipe.sink)
        assert (shuffle.version, shuffle.num_subpartitions) == (3, 3)
        assert len(shuffle.map_outputs) == 6
        assert shuffle.verify().ok

    @guarantee("repeated batch")
    def test_a_batch_that_runs_again_is_the_version_it_was(self, pipe: Pipe) -> None:
        pipe.feed(0)
        pipe.feed(10)
        pipe.run(pipe.files(), **NEW)
        before = sorted(pipe.sink.rglob("*"))
        assert pipe.forget_last_commit() == 1
        assert pipe.run(pipe.files()) == [1]
        assert sorted(pipe.sink.rglob("*")) == before, "and leaves nothing"
        pipe.forget_last_commit()
        pipe.feed(20)
        assert pipe.run(pipe.files()) == [1, 2]
        assert transactions(pipe.sink) == [0, 1, 2]
        assert ids_in(pipe.sink) == numbers(0, 10, 20)

    @guarantee("repeated batch")
    def test_it_is_known_when_its_version_has_expired(self, pipe: Pipe) -> None:
        pipe.feed(0)
        pipe.run(pipe.files(), **NEW)
        for first in (50, 60):
            rows = pipe.spark.range(first, first + 10)
            rows.write.format("arrow_shuffle").mode("overwrite").save(str(pipe.sink))
        collect_garbage(pipe.sink, retention=timedelta(0))
        assert transactions(pipe.sink) == [None]
        pipe.forget_last_commit()
        assert pipe.run(pipe.files()) == [0]
        assert ids_in(pipe.sink) == numbers(60)
        pipe.feed(10)
        pipe.run(pipe.files())
        assert ids_in(pipe.sink) == numbers(10, 60)

    @guarantee("killed batch")
    def test_what_a_killed_commit_left_is_no_obstacle_and_is_collected(self, pipe: Pipe) -> None:
        """A rerun is a new job, so that what the one before left is not in its way."""
        pipe.feed(0)
        pipe.run(pipe.files(), **NEW)
        (left,) = (pipe.sink / "map_outputs").iterdir()
        (pipe.sink / entry_path(1)).unlink()
        pipe.forget_last_commit()
        assert pipe.run(pipe.files(), **NEW) == [0]
        assert ids_in(pipe.sink) == numbers(0)
        assert left.exists()
        collect_garbage(pipe.sink, retention=timedelta(0))
        assert not left.exists()

    def test_batches_without_rows_add_no_version_unless_asked(self, pipe: Pipe) -> None:
        pipe.feed(0)
        none = pipe.files().where("id < 0")
        pipe.run(none, **NEW)
        assert not pipe.sink.exists()
        pipe.feed(10)
        pipe.run(none, emptyVersions="true", **NEW)
        assert transactions(pipe.sink) == [1]
        pipe.feed(20)
        pipe.run(none)
        assert (transactions(pipe.sink), ids_in(pipe.sink)) == ([1], [])

    def test_output_mode_complete_overwrites(self, pipe: Pipe) -> None:
        counts = pipe.files().groupBy((F.col("id") % 3).alias("k")).count()
        for first in (0, 10):
            pipe.feed(first)
            pipe.run(counts, "complete", numSubpartitions=2, keys="k")
        found = open_shuffle(pipe.sink)
        assert found.snapshot.newest.operation == "overwrite"
        rows = sorted(tuple(row.values()) for row in found.read().read_all().to_pylist())
        assert rows == [(0, 7), (1, 7), (2, 6)]
        pipe.forget_last_commit()
        pipe.run(counts, "complete")
        assert open_shuffle(pipe.sink).version == found.version

    def test_a_complete_result_that_becomes_empty_is_empty(self, pipe: Pipe) -> None:
        few = pipe.files().groupBy().count().where("count < 15")
        for version, first in ((1, 0), (2, 10), (2, 20)):
            pipe.feed(first)
            pipe.run(few, "complete", numSubpartitions=1, partitioner="roundrobin")
            assert open_shuffle(pipe.sink).version == version
        assert open_shuffle(pipe.sink).num_rows == 0

    def test_spark_has_no_output_mode_update_for_sinks_in_python(self, pipe: Pipe) -> None:
        pipe.feed(0)
        counts = pipe.files().groupBy().count()
        with pytest.raises(StreamingQueryException, match="does not support Update mode"):
            pipe.run(counts, "update", numSubpartitions=1, partitioner="roundrobin")
        assert not pipe.sink.exists()

    def test_a_batch_that_fails_leaves_nothing_to_see_and_runs_again(self, pipe: Pipe) -> None:
        pipe.feed(0)
        trap = pipe.directory / "trap"
        trap.touch()

        @F.udf("bigint")
        def checked(one):
            if one == 7 and trap.exists():
                msg = "it is a trap"
                raise ValueError(msg)
            return one

        rows = pipe.files().select(checked("id").alias("id"))
        with pytest.raises(StreamingQueryException, match="it is a trap"):
            pipe.run(rows, **NEW)
        with pytest.raises(arrow_format.ShuffleNotFoundError):
            open_shuffle(pipe.sink)
        trap.unlink()
        assert pipe.run(rows, **NEW) == [0]
        assert ids_in(pipe.sink) == numbers(0)
        collect_garbage(pipe.sink, retention=timedelta(0))
        (job,) = (pipe.sink / "map_outputs").iterdir()
        assert {job.name} == open_shuffle(pipe.sink).map_outputs.job_ids

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"keys": "id"}, "option numSubpartitions is missing"),
            (NEW | {"color": "red"}, "option 'color' is not known; options of a stream's sink are"),
        ],
    )
    def test_bad_options(self, pipe: Pipe, options: dict[str, object], message: str) -> None:
        pipe.feed(0)
        with pytest.raises(StreamingQueryException, match=message):
            pipe.run(pipe.files(), **options)
        assert not pipe.sink.exists()

    def test_rows_of_another_schema_are_refused(self, pipe: Pipe) -> None:
        pipe.feed(0)
        add(pipe.sink, 0)
        with pytest.raises(StreamingQueryException, match="cannot append rows of another schema"):
            pipe.run(pipe.files().withColumn("another", F.lit(1)))
        assert ids_in(pipe.sink) == numbers(0)


def ids_of(batches: list[Any]) -> list[list[int]]:
    return [[row["id"] for row in rows] for rows in batches]


class TestSource:
    def test_all_versions_from_the_beginning_and_then_what_is_new(self, pipe: Pipe) -> None:
        path = pipe.directory / "source"
        for first in (0, 10):
            add(path, first)
        assert ids_of(pipe.follow(path)) == [numbers(0, 10)]
        merge_shuffle(path, options=FAST, by="map_output")
        assert pipe.follow(path) == [], "a merge adds nothing"
        add(path, 20)
        merge_shuffle(path, options=FAST, by="map_output")
        assert ids_of(pipe.follow(path)) == [numbers(20)]
        (batch,) = [one for one in pipe.progress if one["numInputRows"]]
        (source,) = batch["sources"]
        assert source["endOffset"]["version"] == 5
        if ADMISSION_CONTROL:  # without, the merge was a batch of no rows
            assert source["startOffset"]["version"] == 2
            assert source["latestOffset"]["version"] == 5

    @pytest.mark.parametrize(("start", "expected"), [("latest", []), ("2", [10, 20])])
    def test_where_to_start(self, pipe: Pipe, start: str, expected: list[int]) -> None:
        path = pipe.directory / "source"
        for first in (0, 10, 20):
            add(path, first)
        found = ids_of(pipe.follow(path, startingVersion=start))
        assert found == ([numbers(*expected)] if expected else [])
        add(path, 30)
        assert ids_of(pipe.follow(path, startingVersion="earliest")) == [numbers(30)], (
            "where it goes on, the checkpoint says"
        )

    @guarantee("stream limits")
    @spark_versions.ADMISSION_CONTROL
    @pytest.mark.parametrize(
        ("limits", "expected"),
        [
            ({"maxVersionsPerTrigger": 2}, [[0, 10], [20, 30], [40]]),
            (
                {"maxBytesPerTrigger": "1g", "maxRowsPerTrigger": 39, "maxVersionsPerTrigger": 4},
                [[0, 10, 20], [30, 40]],
            ),
        ],
    )
    def test_limits(self, pipe: Pipe, limits: dict[str, object], expected: list[list[int]]) -> None:
        path = pipe.directory / "source"
        for first in (0, 10, 20, 30, 40):
            add(path, first)
        assert ids_of(pipe.follow(path, **limits)) == [numbers(*firsts) for firsts in expected]
        batches = [one for one in pipe.progress if one["numInputRows"]]
        assert [one["numInputRows"] for one in batches] == [10 * len(one) for one in expected]
        assert {one["sources"][0]["latestOffset"]["version"] for one in batches} == {5}

    @spark_versions.ADMISSION_CONTROL
    def test_a_trigger_for_all_there_is_knows_no_limits(self, pipe: Pipe) -> None:
        path = pipe.directory / "source"
        for first in (0, 10, 20):
            add(path, first)
        rows = pipe.spark.readStream.format("arrow_shuffle").option("maxVersionsPerTrigger", 1)
        writer = rows.load(str(path)).writeStream.format("arrow_shuffle").trigger(once=True)
        writer = writer.options(**NEW).option("checkpointLocation", str(pipe.checkpoint))
        writer.start(str(pipe.sink)).awaitTermination(120)
        assert transactions(pipe.sink) == [0]
        assert ids_in(pipe.sink) == numbers(0, 10, 20)

    def test_subpartitions_and_columns(self, pipe: Pipe) -> None:
        path = pipe.directory / "source"
        for first in (0, 10):
            add(path, first)
        (rows,) = pipe.follow(
            path,
            "text string, _subpartition int",
            subpartitions="1,3",
            withSubpartition="true",
            coalesce="false",
        )
        assert pipe.partitions == [2]
        expected = open_shuffle(path).read([1, 3], ["text"], with_subpartition=True).read_all()
        assert [tuple(row) for row in rows] == sorted(
            (row["text"], row["_subpartition"]) for row in expected.to_pylist()
        )

    def test_an_overwrite_is_an_error_unless_asked(self, pipe: Pipe) -> None:
        path = pipe.directory / "source"
        add(path, 0)
        assert ids_of(pipe.follow(path)) == [numbers(0)]
        add(path, 50, mode="overwrite")
        add(path, 60)
        with pytest.raises(StreamingQueryException, match="version 2 overwrote rows of which"):
            pipe.follow(path)
        assert ids_of(pipe.follow(path, onOverwrite="deliver")) == [numbers(50, 60)]
        fresh = Pipe(pipe.spark, pipe.directory / "fresh")
        assert ids_of(fresh.follow(path, startingVersion="2")) == [numbers(50, 60)]

    def test_versions_that_expired_unread_are_an_error(self, pipe: Pipe) -> None:
        path = pipe.directory / "source"
        add(path, 0)
        pipe.follow(path)
        for first in (10, 20, 30):
            add(path, first)
        collect_garbage(path, retention=timedelta(0))
        with pytest.raises(StreamingQueryException, match="versions 2 to 3 have expired"):
            pipe.follow(path)
        fresh = Pipe(pipe.spark, pipe.directory / "fresh")
        assert ids_of(fresh.follow(path)) == [numbers(0, 10, 20, 30)], "the beginning is whole"

    def test_a_shuffle_that_was_made_anew_is_an_error(self, pipe: Pipe) -> None:
        path = pipe.directory / "source"
        for first in (0, 10):
            add(path, first)
        pipe.follow(path)
        shutil.rmtree(path)
        for first in (10, 20, 30):
            add(path, first)
        with pytest.raises(StreamingQueryException, match="was removed and written again"):
            pipe.follow(path)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"startingVersion": "first"}, "option startingVersion='first': expected earliest, la"),
            ({"color": "red"}, "option 'color' is not known; options of"),
        ],
    )
    def test_bad_options(self, pipe: Pipe, options: dict[str, str], message: str) -> None:
        path = pipe.directory / "source"
        add(path, 0)
        with pytest.raises(Exception, match=message):
            pipe.follow(path, "id bigint, text string", **options)


def test_a_watermark_ends_with_its_query(pipe: Pipe) -> None:
    """A stream of what was written under one has none: Spark would wait for it for ever."""
    pipe.feed(0)
    rows = pipe.files().selectExpr("id", "timestamp_seconds(id) ts").withWatermark("ts", "1 hour")
    pipe.run(rows, **NEW)
    stored = open_shuffle(pipe.sink)
    assert stored.spark_schema is not None
    assert "watermark" not in stored.spark_schema
    earlier = pipe.directory / "earlier"  # as the sink stored it once
    job = begin_job(
        earlier,
        stored.schema,
        num_subpartitions=1,
        partitioner=HashPartitioner("id"),
        options=FAST,
        spark_schema=rows.schema.json(),
    )
    commit_job(job, [run_map_task(job, 0, 0, stored.read())])
    assert "watermark" in (open_shuffle(earlier).spark_schema or "")
    for path in (pipe.sink, earlier):
        read = pipe.spark.readStream.format("arrow_shuffle").load(str(path))
        assert read.schema["ts"].metadata == {}
        counts = read.groupBy(F.window("ts", "1 hour")).count()
        with pytest.raises(AnalysisException, match="without watermark"):
            counts.writeStream.format("memory").queryName("counts").outputMode("append").start()


@pytest.mark.skipif(ADMISSION_CONTROL, reason="this PySpark keeps limits")
def test_limits_are_refused_where_spark_cannot_keep_them(pipe: Pipe) -> None:
    add(pipe.directory / "source", 0)
    with pytest.raises(AnalysisException, match=r"maxRowsPerTrigger.*use PySpark 4.2 or newer"):
        pipe.follow(pipe.directory / "source", maxRowsPerTrigger=1)


def test_one_stream_behind_another(pipe: Pipe) -> None:
    """Source and sink together; the query id of each is what the log has."""
    path = pipe.directory / "source"
    for first in (0, 10, 20):
        add(path, first)

    def run() -> None:
        rows = pipe.spark.readStream.format("arrow_shuffle")
        if ADMISSION_CONTROL:
            rows = rows.option("maxVersionsPerTrigger", 1)
        pipe.run(rows.load(str(path)), **NEW)

    run()
    batches = [0, 1, 2] if ADMISSION_CONTROL else [0]
    assert transactions(pipe.sink) == batches
    pipe.forget_last_commit()
    add(path, 30)
    run()
    if not ADMISSION_CONTROL:
        run()  # a query with an end has one batch, which was the forgotten one
    assert transactions(pipe.sink) == [*batches, len(batches)]
    assert ids_in(pipe.sink) == ids_in(path)
    query = json.loads((pipe.checkpoint / "metadata").read_text())["id"]
    log = CommitLog(PosixStorage(str(pipe.sink)))
    one = log.entry(len(batches) + 1).transaction
    assert one is not None
    assert one.application_id == query
    assert find_transaction(log, one) is not None
