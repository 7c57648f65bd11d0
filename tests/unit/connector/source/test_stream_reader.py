"""The source of streams, called as Spark calls it, without a JVM."""

import json
import pickle
import shutil
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
)
from pyspark.sql.types import IntegerType, LongType, StructType

from arrow_format import (
    MergePolicy,
    append_shuffle,
    collect_garbage,
    drop_columns,
    flush_pending,
    forget_consumer,
    merge_shuffle,
    open_shuffle,
    release_shuffle,
    rename_columns,
)
from arrow_format.errors import (
    ConsumerError,
    CorruptShuffleError,
    OptionError,
    RequestTimeoutError,
    ResultReleasedError,
    SchemaError,
    ShuffleNotFoundError,
    ShuffleOverwrittenError,
)
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.version_names import first_version
from arrow_format.storage.open import open_storage
from connector.source.stream_reader import ShuffleStreamReader, StreamOffset
from tests.support.consumers import ConsumerRegistry
from tests.support.guarantees import guarantee
from tests.support.logs import add, fence, log_of, put
from tests.support.recording_storage import RecordingStorage
from tests.support.small_shuffles import FAST, collect, numbered, write_rows, write_tasks

N = 5
SCHEMA = StructType().add("v", LongType())
ALL = ReadAllAvailable()


@pytest.fixture(scope="module")
def five(tmp_path_factory):
    """Five versions of five rows each."""
    made = tmp_path_factory.mktemp("made")
    for start in range(0, 50, 10):
        add(made, start)
    return made


@pytest.fixture
def path(five, tmp_path):
    """A copy of them."""
    shutil.copytree(five, tmp_path, dirs_exist_ok=True)
    return tmp_path


def reader_of(path, schema=SCHEMA, **options):
    """As in Spark: names of options have lost their case, and values are texts."""
    given = {"path": str(path)} | {name.lower(): str(value) for name, value in options.items()}
    return ShuffleStreamReader(given, schema)


def as_json(offset):
    """Go through the checkpoint and back."""
    return json.loads(json.dumps(offset))


def whole(reader):
    """Offsets before and after all that is there."""
    start = reader.initialOffset()
    return start, reader.latestOffset(start, ALL)


def rows_of(reader, start, end):
    """Rows of a batch, read by tasks."""
    task = pickle.loads(pickle.dumps(reader))
    batches = [
        batch
        for partition in reader.partitions(as_json(start), as_json(end))
        for batch in task.read(pickle.loads(pickle.dumps(partition)))
    ]
    return [row for batch in batches for row in batch.to_pylist()]


def put_ten(path, start, **how):
    """Put a version with the rows of a ten, or let them wait for one."""
    put(path, [(start + i, start + i) for i in range(N)], result_type="PIPELINED", **how)


def run(reader, start=None, limit=None):
    """All batches until nothing is left: firsts of the appended tens."""
    start = reader.initialOffset() if start is None else start
    batches = []
    while True:
        end = reader.latestOffset(start, limit or reader.getDefaultReadLimit())
        if end == start:
            return batches, start
        values = sorted(row["v"] for row in rows_of(reader, start, end))
        firsts = sorted({value // 10 * 10 for value in values})
        assert values == [first + i for first in firsts for i in range(N)]
        batches.append(firsts)
        start = end


@guarantee("stream limits")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [[0, 10, 20, 30, 40]]),
        ({"maxVersionsPerTrigger": 2}, [[0, 10], [20, 30], [40]]),
        ({"maxVersionsPerTrigger": 5}, [[0, 10, 20, 30, 40]]),
        ({"maxRowsPerTrigger": 1}, [[0], [10], [20], [30], [40]]),
        ({"maxRowsPerTrigger": 14}, [[0, 10], [20, 30], [40]]),
        ({"maxRowsPerTrigger": 15}, [[0, 10, 20], [30, 40]]),
        ({"maxBytesPerTrigger": 1}, [[0], [10], [20], [30], [40]]),
        ({"maxBytesPerTrigger": "1g"}, [[0, 10, 20, 30, 40]]),
        ({"maxRowsPerTrigger": 15, "maxVersionsPerTrigger": 4}, [[0, 10, 20], [30, 40]]),
        ({"maxRowsPerTrigger": 20, "maxVersionsPerTrigger": 3}, [[0, 10, 20], [30, 40]]),
        (
            {"maxRowsPerTrigger": 20, "maxVersionsPerTrigger": 3, "maxBytesPerTrigger": 1},
            [[0], [10], [20], [30], [40]],
        ),
    ],
)
def test_limits_of_options(path, options, expected):
    assert run(reader_of(path, **options))[0] == expected


def test_bytes_are_those_of_the_versions(path):
    sizes = [output.num_bytes for output in open_shuffle(path).map_outputs]
    for most, first in ((sum(sizes[:3]), [0, 10, 20]), (sum(sizes[:3]) - 1, [0, 10])):
        assert run(reader_of(path, maxBytesPerTrigger=most))[0][0] == first


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ALL),
        ({"maxVersionsPerTrigger": 2, "maxRowsPerTrigger": 9}, ReadMaxFiles(2)),
        ({"maxRowsPerTrigger": 9, "maxBytesPerTrigger": "1k"}, ReadMaxRows(9)),
        ({"maxBytesPerTrigger": "1k"}, ReadMaxBytes(1024)),
    ],
)
def test_spark_is_told_a_limit(path, options, limit):
    assert reader_of(path, **options).getDefaultReadLimit() == limit


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (ALL, [[0, 10, 20, 30, 40]]),
        (ReadMaxFiles(1), [[0], [10], [20], [30], [40]]),
        (ReadMaxFiles(9), [[0, 10, 20], [30, 40]]),
        (ReadMaxRows(10), [[0, 10], [20, 30], [40]]),
        (ReadMaxBytes(1), [[0], [10], [20], [30], [40]]),
        (ReadMinRows(99), [[0, 10, 20], [30, 40]]),
    ],
)
def test_what_spark_asks_for_holds_beside_the_options_or_is_everything(path, limit, expected):
    assert run(reader_of(path, maxVersionsPerTrigger=3), limit=limit)[0] == expected


@pytest.mark.parametrize(
    ("start", "offset", "expected"),
    [
        ("earliest", 0, [[0, 10, 20, 30, 40]]),
        ("1", 0, [[0, 10, 20, 30, 40]]),
        ("4", 3, [[30, 40]]),
        ("5", 4, [[40]]),
        ("Latest", 5, []),
    ],
)
def test_where_to_start(path, start, offset, expected):
    reader = reader_of(path, startingVersion=start)
    assert reader.initialOffset()["version"] == offset
    batches, end = run(reader)
    assert batches == expected
    add(path, 50)
    assert run(reader, end)[0] == [[50]]


@pytest.mark.slow
def test_merges_and_fences_are_no_batches(path):
    reader = reader_of(path, maxVersionsPerTrigger=2)
    _, end = run(reader)
    merge_shuffle(path, options=FAST, by="map_output")
    fence(path)
    assert reader.latestOffset(end, ReadMaxFiles(2)) == end
    assert reader.latestOffset(end, ALL) == end
    for start in (80, 90):
        add(path, start)
    merge_shuffle(path, options=FAST, by="map_output")
    assert run(reader, end)[0] == [[80, 90]]
    assert reader.reportLatestOffset()["version"] == 10


def test_a_query_with_an_end_reads_no_version_that_came_later(path):
    reader = reader_of(path, maxVersionsPerTrigger=3)
    reader.prepareForTriggerAvailableNow()
    add(path, 50)
    batches, end = run(reader)
    assert batches == [[0, 10, 20], [30, 40]]
    assert end["version"] == 5
    assert reader.reportLatestOffset()["version"] == 6


def test_no_partitions_where_there_are_no_rows(path):
    reader = reader_of(path)
    _, end = run(reader)
    assert reader.partitions(end, end) == []
    write_tasks(path, [[numbered([])]], N, mode="append")
    later = reader.latestOffset(end, ALL)
    assert later["version"] == 6
    assert reader.partitions(end, later) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"coalesce": "false"}, N), ({"targetPartitionBytes": 1}, N), ({}, 1),
     ({"splitSkewed": "true", "targetPartitionBytes": 1}, 2 * N),
     ({"coalesce": "false", "subpartitions": "0,2-3"}, 3)],
)  # fmt: skip
def test_partitions_are_as_those_of_a_batch_read(path, options, expected, monkeypatch):
    monkeypatch.setattr("arrow_format.read.estimates.MIN_PIECE_BYTES", 36)  # half of what one has
    for start in (50, 60, 70):  # more chunks to cut between
        add(path, start)
    reader = reader_of(path, startingVersion=5, **options)
    start, end = whole(reader)
    assert len(reader.partitions(start, end)) == expected
    wanted = {0, 2, 3} if "subpartitions" in options else set(range(N))
    assert sorted(row["v"] for row in rows_of(reader, start, end)) == sorted(
        first + i for first in (40, 50, 60, 70) for i in wanted
    )


def test_columns_and_the_subpartition(path):
    schema = StructType().add("_subpartition", IntegerType(), nullable=False).add("v", LongType())
    reader = reader_of(path, schema, subpartitions="3", withSubpartition="true", startingVersion=5)
    rows = rows_of(reader, *whole(reader))
    assert rows == [{"_subpartition": 3, "v": 43}]


@guarantee("overwritten streams")
@pytest.mark.parametrize("overwrites", ["fail", "deliver"])
def test_upserts_are_errors_that_name_their_version(tmp_path, overwrites):
    rows = pa.table({"k": range(5), "v": range(5)})
    write_rows(tmp_path, rows, "k", unique="k")
    _, end = run(reader_of(tmp_path))
    write_rows(tmp_path, rows.slice(2), "k", mode="upsert")
    write_rows(tmp_path, pa.table({"k": [7], "v": [70]}), "k", mode="append")
    reader = reader_of(tmp_path, onOverwrite=overwrites)
    message = r"version 2 replaced rows by an upsert, .*changes\(since=1\) says"
    with pytest.raises(ShuffleOverwrittenError, match=message):
        rows_of(reader, end, reader.latestOffset(end, ALL))
    later = reader_of(tmp_path, startingVersion=3)
    assert [row["v"] for row in rows_of(later, *whole(later))] == [70]


@guarantee("overwritten streams")
def test_overwrites(path):
    _, end = run(reader_of(path))
    add(path, 60, mode="overwrite")
    add(path, 70)
    reader = reader_of(path)
    later = reader.latestOffset(end, ALL)
    with pytest.raises(ShuffleOverwrittenError, match="version 6 overwrote"):
        reader.partitions(end, later)
    assert run(reader_of(path, onOverwrite="deliver"), end)[0] == [[60, 70]]
    assert run(reader_of(path, onOverwrite="Deliver"))[0] == [[0, 10, 20, 30, 40, 60, 70]]
    assert run(reader_of(path, startingVersion=6))[0] == [[60, 70]]
    limited = reader_of(path, startingVersion=6, maxVersionsPerTrigger=1)
    assert run(limited)[0] == [[60], [70]]
    with pytest.raises(ShuffleOverwrittenError, match="version 6 overwrote"):
        run(reader_of(path, startingVersion=5))


def test_each_version_must_fit_the_columns(path):
    _, end = run(reader_of(path))
    other = pa.record_batch({"p": pa.array([0], pa.int32()), "v": ["text"]})
    add(path, 0, mode="overwrite", batch=other)
    with pytest.raises(SchemaError, match="column 'v' is string, not bigint"):
        run(reader_of(path, onOverwrite="deliver"), end)
    with pytest.raises(SchemaError, match="column 'nope' is not there"):
        run(reader_of(path, StructType().add("nope", LongType()), onOverwrite="deliver"), end)


def test_an_altered_column_stops_a_query_which_goes_on_from_its_checkpoint(path):
    start, end = (StreamOffset(n, log_of(path).record(n).commit_id).to_json() for n in (1, 2))
    reader = reader_of(path)
    before = rows_of(reader, start, end)
    rename_columns(path, {"v": "number"})
    with pytest.raises(SchemaError, match="'v' was renamed or dropped since the query began"):
        reader.partitions(start, end)
    again = StructType().add("number", LongType())
    assert rows_of(reader_of(path, again), start, end) == [{"number": row["v"]} for row in before]
    # A column of the same name is another one.
    reader = reader_of(path, again)
    assert len(rows_of(reader, start, end)) == N
    drop_columns(path, "number")
    append_shuffle(pa.table({"p": pa.array([0], pa.int32()), "number": [1]}), path, options=FAST)
    with pytest.raises(SchemaError, match="'number' was renamed or dropped"):
        reader.partitions(start, end)
    assert rows_of(reader_of(path, again), start, end) == [{"number": None}] * N


def test_nulls_where_the_query_has_been_promised_none(tmp_path):
    tight = pa.schema([("p", pa.int32()), pa.field("v", pa.int64(), nullable=False)])
    add(tmp_path, 0, n=1, batch=pa.record_batch([[0], [1]], schema=tight))
    loose = pa.schema([("p", pa.int32()), ("v", pa.int64())])
    add(tmp_path, 0, n=1, batch=pa.record_batch([[0], [None]], schema=loose))
    reader = reader_of(tmp_path, StructType().add("v", LongType(), nullable=False))
    with pytest.raises(SchemaError, match="null"):
        rows_of(reader, *whole(reader))


@guarantee("overwritten streams")
def test_what_expired_unread_is_an_error(path):
    reader = reader_of(path, maxVersionsPerTrigger=2)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxFiles(2))
    planned = reader.partitions(start, end)
    collect(path)
    for limit in (ALL, ReadMaxFiles(2)):
        with pytest.raises(ShuffleNotFoundError, match="versions 3 to 4 have expired"):
            reader.latestOffset(end, limit)
    # A batch that was planned is read while its files are there, as by any reader that is open.
    assert sum(batch.num_rows for part in planned for batch in reader.read(part)) == 2 * N
    assert run(reader)[0] == [[0, 10, 20, 30, 40]], "the oldest that is there is one step"
    add(path, 60, mode="overwrite")
    collect(path)
    with pytest.raises(ShuffleNotFoundError, match="version 2 has expired"):
        [*reader.read(planned[0])]


@guarantee("overwritten streams")
def test_who_has_read_what_was_merged_misses_nothing_when_the_merges_expire(path):
    _, end = run(reader_of(path))
    for policy in (MergePolicy(rewrite="never"), MergePolicy(rewrite="always")):
        assert merge_shuffle(path, policy=policy, by="map_output").version is not None
    collect(path)
    assert run(reader_of(path), end) == ([], end)
    add(path, 60)
    assert run(reader_of(path), end)[0] == [[60]]
    with pytest.raises(ShuffleNotFoundError, match="versions 5 to 6 have expired"):
        run(reader_of(path), {"version": 4})


@pytest.mark.slow
@guarantee("overwritten streams")
def test_a_shuffle_made_anew_is_an_error(path):
    reader = reader_of(path)
    start, end = whole(reader)
    planned = reader.partitions(start, end)
    for count in (7, 1, 5, 6):
        shutil.rmtree(path)
        for first in range(count):
            if count == 7 and first == 4:
                fence(path)  # at the number of the version that was read
            add(path, first)
        with pytest.raises(CorruptShuffleError, match="was removed and written again"):
            reader.latestOffset(end, ALL)
        with pytest.raises(CorruptShuffleError, match="was removed and written again"):
            reader.partitions(start, end)
    with pytest.raises(CorruptShuffleError, match="the directory was replaced"):
        list(reader.read(planned[0]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingVersion": "first"}, "option startingVersion='first': expected earliest, la"),
        ({"startingVersion": "0"}, "option startingVersion='0': expected earliest, latest or a v"),
        ({"startingVersion": "-1"}, "option startingVersion='-1': expected"),
        ({"onOverwrite": "ignore"}, "option onOverwrite='ignore': expected one of 'fail', 'd"),
        ({"maxVersionsPerTrigger": "0"}, "option maxVersionsPerTrigger='0': expected a whole num"),
        ({"maxRowsPerTrigger": "many"}, "option maxRowsPerTrigger='many': expected a whole numb"),
        ({"maxBytesPerTrigger": "0"}, "option maxBytesPerTrigger='0': expected a whole number of"),
        ({"coalesce": "no"}, "option coalesce='no': expected true or false"),
        ({"version": "1"}, "option 'version' is not known here: it is one of batch reads"),
        ({"emptyVersions": "true"}, "option 'emptyversions' is not known"),
        ({"keys": "v"}, "option 'keys' is not known"),
    ],
)
def test_bad_options(path, options, message):
    with pytest.raises(OptionError, match=message):
        reader_of(path, **options)


def test_what_is_not_there(path, tmp_path_factory):
    with pytest.raises(ShuffleNotFoundError, match="version 6 is not there; there are versions"):
        reader_of(path, startingVersion=6).initialOffset()
    nothing = tmp_path_factory.mktemp("empty") / "nothing"
    for start in ("earliest", "latest", "1"):
        with pytest.raises(ShuffleNotFoundError, match="holds no committed shuffle"):
            reader_of(nothing, startingVersion=start).initialOffset()
    assert reader_of(nothing).reportLatestOffset() is None
    start, end = whole(reader_of(path))
    with pytest.raises(OptionError, match="subpartition 9 is out of range"):
        reader_of(path, subpartitions="9").partitions(start, end)


@pytest.mark.parametrize(
    "value",
    [None, 5, {}, {"version": "1"}, {"version": -1}, {"version": True}, {"version": 1.5},
     {"version": 1, "commitId": 7}, {"version": 1, "consumed": 1}, []],
)  # fmt: skip
def test_offsets_of_another_source(value):
    with pytest.raises(OptionError, match="is not of this source"):
        StreamOffset.from_json(value)
    for offset in (StreamOffset(0), StreamOffset(3, "id"), StreamOffset(3, consumed=True)):
        assert StreamOffset.from_json(as_json(offset.to_json())) == offset


@pytest.mark.parametrize("kind", ["BLOCKING", "PIPELINED"])
def test_a_consumer_has_consumed_what_was_read_when_nothing_more_is_there(tmp_path, kind):
    """Spark speaks of a batch that is committed with the next one alone."""
    options = replace(FAST, result_type=kind)
    for start in (0, 10):
        table = pa.table({"v": range(start, start + N)})
        write_rows(tmp_path, table, "v", n=2, mode="append", options=options)
    registry = ConsumerRegistry(open_storage(tmp_path))
    reader = reader_of(tmp_path, consumer="a")
    start, end = whole(reader)
    assert reader.partitions(start, end)
    assert registry.progress("a") == 0
    for _ in range(3):
        assert reader.latestOffset(end, ALL) == end
    assert registry.progress("a") == 2
    reader.reportLatestOffset()
    reader.stop()
    if kind == "BLOCKING":
        with pytest.raises(ResultReleasedError, match="consumed by a"):
            open_shuffle(tmp_path)


def test_a_query_with_an_end_waits_for_the_shuffle_too(tmp_path):
    """Where the schema is given, this is what Spark asks first."""
    with pytest.raises(RequestTimeoutError):
        reader_of(tmp_path, requestTimeout="10ms").prepareForTriggerAvailableNow()


@guarantee("absent results")
@pytest.mark.parametrize("consumed", [None, 0, 2, 5])
@pytest.mark.parametrize("options", [{}, {"requestTimeout": "10ms"}])
def test_a_query_does_not_begin_with_what_was_released(path, consumed, options):
    """Whether or not it consumes under a name that is known, and whatever that has consumed."""
    registry = ConsumerRegistry(open_storage(path))
    if consumed is not None:
        options = {**options, "consumer": "a"}
        registry.register("a", consumed)
    release_shuffle(path)
    for start in ("earliest", "latest", "1", "6"):
        reader = reader_of(path, startingVersion=start, **options)
        with pytest.raises(ResultReleasedError, match=r"was released .* version 5 was its last"):
            reader.initialOffset()
        reader.stop()
    add(path, 90)
    reader = reader_of(path, **options)
    start, end = whole(reader)
    reader.stop()
    rows = rows_of(reader_of(path), start, end)
    assert sorted(row["v"] for row in rows) == [90 + i for i in range(N)], "written in its place"


@pytest.mark.parametrize("start", ["latest", "2"])
def test_a_blocking_result_is_consumed_from_its_beginning(tmp_path, start):
    """A consumer that began later would release rows that nobody has read."""
    for value in range(2):
        put(tmp_path, [(value, value)], pending=False, result_type="BLOCKING")
    reader = reader_of(tmp_path, consumer="a", startingVersion=start)
    with pytest.raises(OptionError, match="startingVersion with a consumer of a BLOCKING result"):
        reader.initialOffset()
    reader.stop()
    collect(tmp_path)
    assert not ConsumerRegistry(open_storage(tmp_path)).records()
    assert open_shuffle(tmp_path).num_rows == 2
    assert reader_of(tmp_path, startingVersion=start).initialOffset()["version"] > 0
    reader = reader_of(tmp_path, consumer="a", startingVersion="1")
    start, end = whole(reader)
    reader.stop()
    assert len(rows_of(reader_of(tmp_path), start, end)) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, [[20, 30, 50]]), ({"maxVersionsPerTrigger": 1}, [[50], [20, 30]])],
)
def test_a_query_begins_after_what_all_others_have_consumed(tmp_path, options, expected):
    """What waits for a flush keeps its files alone, not the versions before it."""
    for start, pending in ((0, False), (20, True), (40, False), (50, False), (30, True)):
        put_ten(tmp_path, start, pending=pending)
    ConsumerRegistry(open_storage(tmp_path)).register("first", 3)
    assert collect_garbage(tmp_path).expired_versions == (1, 3)
    released = log_of(tmp_path).view().state.released
    version = flush_pending(tmp_path).version
    assert run(reader_of(tmp_path, **options))[0] == expected
    reader = reader_of(tmp_path, consumer="second", **options)
    first = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    reader.stop()
    assert first["version"] == (released.at if options else version)


@pytest.mark.slow
def test_a_first_version_behind_many_that_waited_for_it_takes_few_reads(tmp_path):
    for value in range(30):
        put(tmp_path, [(value, value)], result_type="PIPELINED")
    version = flush_pending(tmp_path).version
    storage = RecordingStorage(str(tmp_path))
    log = CommitLog(storage)
    assert log.read(partial(first_version, log)).version == version
    assert len([path for path in storage.others if path.endswith(".entry")]) < 10


@pytest.mark.parametrize("options", [{}, {"maxVersionsPerTrigger": 1}])
def test_what_all_others_have_consumed_is_not_delivered_behind_an_overwrite(tmp_path, options):
    for start in (0, 10, 20):
        put_ten(tmp_path, start, pending=False)
    registry = ConsumerRegistry(open_storage(tmp_path))
    registry.register("first", 2)
    collect_garbage(tmp_path)
    put_ten(tmp_path, 40, pending=False, mode="overwrite")
    batches, _ = run(reader_of(tmp_path, onOverwrite="deliver", **options))
    assert [first for batch in batches for first in batch] == [20, 40]


def test_a_consumer_that_cannot_go_on_is_told_what_it_takes(path):
    """A version to begin with plays no part for a name that is known."""
    add(path, 90, mode="overwrite")
    for options in ({}, {"startingVersion": "6"}):
        reader = reader_of(path, consumer="a", **options)
        start, end = whole(reader)
        with pytest.raises(ShuffleOverwrittenError, match=r"'a' resumes where .* --forget a\) and"):
            reader.partitions(start, end)
        reader.stop()
    assert forget_consumer(path, "a")
    reader = reader_of(path, consumer="a", startingVersion="6")
    assert reader.partitions(*whole(reader))
    reader.stop()


@pytest.mark.parametrize("options", [{}, {"requestTimeout": "10ms"}])
def test_a_consumer_of_what_never_was_there_leaves_nothing(tmp_path, options):
    reader = reader_of(tmp_path / "mistyped", consumer="a", **options)
    with pytest.raises(ShuffleNotFoundError):
        reader.initialOffset()
    reader.stop()
    assert list(tmp_path.iterdir()) == []


@guarantee("consumed once")
def test_a_query_that_has_fallen_behind_its_consumer_is_refused(path):
    first = reader_of(path, consumer="a")
    start = first.initialOffset()
    first.latestOffset(start, ReadMaxFiles(2))
    first.commit(StreamOffset(2).to_json())
    first.stop()
    second = reader_of(path, consumer="a")
    assert StreamOffset.from_json(second.initialOffset()).version == 2
    end = second.latestOffset(StreamOffset(2).to_json(), ALL)
    second.partitions(StreamOffset(2).to_json(), end)
    second.commit(end)
    second.stop()
    for ask in (
        lambda reader: reader.latestOffset(StreamOffset(2).to_json(), ALL),
        lambda reader: reader.partitions(StreamOffset(2).to_json(), end),
    ):
        late = reader_of(path, consumer="a")
        with pytest.raises(ConsumerError, match=r"consumed up to version 5, and .* ends at 2"):
            ask(late)
        late.stop()
    assert ConsumerRegistry(open_storage(path)).progress("a") == 5


def consumed_up_to(path, version):
    """A path at which consumer ``a`` has consumed up to a version, as a query before this did."""
    registry = ConsumerRegistry(open_storage(path))
    registry.register("a", 0)
    registry.advance("a", version)


def first_batch(path, **options):
    """First batch of a new query of consumer ``a``; its tasks have readers of their own."""
    reader = reader_of(path, consumer="a", **options)
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(as_json(start), reader.getDefaultReadLimit())
        if end == start:
            return []
        planned = reader.partitions(as_json(start), as_json(end))
    finally:
        reader.stop()
    batches = [batch for partition in planned for batch in reader_of(path).read(partition)]
    return sorted({v // 10 * 10 for batch in batches for v in batch["v"].to_pylist()})


@pytest.mark.parametrize("start", ["earliest", "latest", "6", "1"])
@pytest.mark.parametrize("consumed", [2, 5])
def test_a_new_checkpoint_does_not_make_a_consumer_new(path, consumed, start):
    """It read rows under its name that an overwrite takes away: an error, as with the old one."""
    consumed_up_to(path, consumed)
    for value in (60, 70):
        add(path, value, mode="overwrite")
        with pytest.raises(ShuffleOverwrittenError, match=r"(?s)version 6 overwrote.*take another"):
            first_batch(path, startingVersion=start)
    found = first_batch(path, startingVersion=start, onOverwrite="deliver")
    assert found == [*range(10 * consumed, 50, 10), 60, 70]


def test_one_that_has_consumed_nothing_begins_with_an_overwrite(path):
    consumed_up_to(path, 0)
    add(path, 60, mode="overwrite")
    collect(path)
    assert first_batch(path) == [60]


@pytest.mark.parametrize("start", ["6", "latest"])
def test_a_new_consumer_may_begin_with_an_overwrite(path, start):
    add(path, 60, mode="overwrite")
    for _ in range(2):  # the query stops before its first batch, and begins again
        assert first_batch(path, startingVersion=start) == ([60] if start == "6" else [])


def test_an_overwrite_is_noticed_also_where_the_version_that_was_consumed_has_expired(path):
    """Nothing tells its commit id then."""
    consumed_up_to(path, 5)
    merge_shuffle(path, options=FAST, by="map_output")
    add(path, 60, mode="overwrite")
    collect(path)
    assert log_of(path).view().oldest == 7
    with pytest.raises(ShuffleOverwrittenError, match=r"version 7 overwrote"):
        first_batch(path)


@guarantee("consumed versions")
def test_a_batch_does_not_end_at_a_version_of_which_all_was_released(tmp_path):
    """Nothing would keep that version until the batch is read: found by the machine of streams."""
    path = tmp_path / "s"
    put(path, [(1, 1)], pending=False, result_type="PIPELINED")
    other = reader_of(path, consumer="b")
    start, end = whole(other)
    assert len(other.partitions(start, end)) == 1
    other.commit(end)
    other.stop()
    put(path, [(2, 2)], result_type="PIPELINED")
    collect(path)
    reader = reader_of(path, consumer="a", maxVersionsPerTrigger=1)
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset(start, limit) == start, "there is nothing to read yet"
    version = flush_pending(path, options=FAST).version
    end = reader.latestOffset(start, limit)
    assert end["version"] == version
    for _ in range(3):
        collect(path)
    assert [part.shuffle.version for part in reader.partitions(start, end)] == [version]
    reader.stop()
