"""The sink of streams, called as Spark calls it, without a JVM.

Spark plans a batch with one writer, whose copies write in the tasks, and makes another to commit.
"""

import pickle
from contextlib import contextmanager

import pytest
from pyspark import TaskContext
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from arrow_format import flush_pending, merge_shuffle, open_shuffle
from arrow_format.errors import (
    CommitConflictError,
    OptionError,
    SchemaError,
    ShuffleError,
    ShuffleExistsError,
)
from arrow_format.log.names import entry_path
from arrow_format.model import Transaction
from connector.source.stream_writer import BATCH_ID, QUERY_ID, ShuffleStreamWriter
from tests.support.guarantees import guarantee
from tests.support.logs import add, log_of
from tests.support.small_shuffles import FAST, collect, files_below, numbered, sorted_values

N = 5
SCHEMA = StructType().add("p", IntegerType()).add("v", LongType()).add("s", StringType())
NEW = {"keys": "p", "partitioner": "column", "numsubpartitions": str(N)}
PLAIN = {"keys": "p", "numsubpartitions": str(N)}
HELD = PLAIN | {"flush.maxinterval": "1h"}


def writer_of(path, *, overwrite=False, schema=SCHEMA, **options):
    """A writer made anew; the shuffle is partitioned by column p unless options say otherwise."""
    return ShuffleStreamWriter({"path": str(path)} | (options or NEW), schema, overwrite=overwrite)


@contextmanager
def task(partition, query, batch):
    """Be a task of a micro-batch."""
    context = TaskContext._getOrCreate()
    context._partitionId, context._attemptNumber = partition, 0
    context._localProperties = {QUERY_ID: query, BATCH_ID: None if batch is None else str(batch)}
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)


def write(writer, batch, start, *, count=N, tasks=2, query="a-query"):
    """Run the tasks of a batch; each writes rows of every subpartition."""
    messages = []
    for partition in range(tasks):
        rows = [numbered(range(count), start + partition * 5)]
        with task(partition, query, batch):
            messages.append(pickle.loads(pickle.dumps(writer)).write(iter(rows)))
    return [pickle.loads(pickle.dumps(message)) for message in messages]


def run(path, batch, start, *, overwrite=False, options=NEW, **how):
    """One run of a batch, whole."""
    messages = write(writer_of(path, overwrite=overwrite, **options), batch, start, **how)
    writer_of(path, overwrite=overwrite, **options).commit(messages, batch)


def test_batches_are_versions(tmp_path):
    for batch in range(3):
        run(tmp_path, batch, 10 * batch)
    assert sorted_values(tmp_path) == [*range(30)]
    entries = [log_of(tmp_path).entry(version) for version in range(1, 4)]
    assert [entry.transaction for entry in entries] == [Transaction("a-query", i) for i in range(3)]
    assert len({entry.job_id for entry in entries}) == 3


def test_two_runs_of_a_batch_at_once_are_one_version(tmp_path):
    """Two drivers run the same query, or one does whose predecessor is not quite dead."""
    run(tmp_path, 0, 0)
    both = [writer_of(tmp_path), writer_of(tmp_path)]
    messages = [write(writer, 1, 10) for writer in both]
    for message in messages:
        writer_of(tmp_path).commit(message, 1)
    assert sorted_values(tmp_path) == [*range(20)]
    jobs = open_shuffle(tmp_path).map_outputs.job_ids
    assert {path.name for path in (tmp_path / "map_outputs").iterdir()} == jobs, "of three that ran"


def test_a_batch_whose_version_has_expired_is_not_added_again(tmp_path):
    run(tmp_path, 3, 0)
    for start in (50, 60):
        add(tmp_path, start, mode="overwrite")
        collect(tmp_path)
    before = files_below(tmp_path)
    run(tmp_path, 3, 0)
    assert files_below(tmp_path) == before
    with pytest.raises(CommitConflictError, match=r"number 2 .* is not in the log, and 3"):
        run(tmp_path, 2, 0)
    run(tmp_path, 4, 10)
    assert sorted_values(tmp_path) == [*range(10, 20), *range(60, 65)]


def test_one_writer_for_several_batches_is_a_job_for_each(tmp_path):
    writer = writer_of(tmp_path)
    for batch in range(2):
        writer.commit(write(writer, batch, 10 * batch), batch)
    assert sorted_values(tmp_path) == [*range(20)]


class TestAbort:
    def test_it_removes_what_the_tasks_wrote(self, path):
        messages = write(writer_of(path), 0, 0)
        writer_of(path).abort([*messages, None], 0)
        assert not list(path.rglob("*.shuffle.*"))
        assert (path / entry_path(1)).exists(), "a commit that is still under way must fail"
        with pytest.raises(CommitConflictError, match="was aborted"):
            writer_of(path).commit(messages, 0)
        run(path, 0, 10)
        assert sorted_values(path) == [*range(10, 20)]

    def test_it_does_so_when_the_first_task_failed(self, path):
        messages = write(writer_of(path), 0, 0)
        writer_of(path).abort([None, messages[1]], 0)
        assert not list(path.rglob("*.shuffle.*"))
        writer_of(path).abort([None, None], 0)

    @pytest.mark.parametrize("known", [0, 1])
    def test_after_a_commit_whose_answer_was_lost_it_removes_nothing(self, tmp_path, known):
        """The log has grown since the job began, and grows before the abort."""
        messages = write(writer_of(tmp_path), 0, 0)
        writer_of(tmp_path).commit(messages, 0)
        run(tmp_path, 0, 10, query="another")
        before = files_below(tmp_path)
        writer_of(tmp_path).abort([messages[known]], 0)
        assert files_below(tmp_path) == before
        assert open_shuffle(tmp_path).verify().ok


class TestEmpty:
    def test_no_rows_are_no_version_and_leave_nothing(self, tmp_path):
        run(tmp_path, 0, 0)
        before = files_below(tmp_path)
        run(tmp_path, 1, 0, count=0)
        assert files_below(tmp_path) == before

    def test_unless_asked(self, tmp_path):
        run(tmp_path, 0, 0, count=0, options=NEW | {"emptyversions": "true"})
        assert open_shuffle(tmp_path).version == 1

    def test_a_complete_result_that_is_empty_takes_the_place_of_one_with_rows(self, tmp_path):
        for batch, count, version in ((0, 0, 0), (1, 5, 1), (2, 0, 2), (3, 0, 2)):
            run(tmp_path, batch, 0, count=count, overwrite=True)
            assert log_of(tmp_path).newest_version() == version
        assert sorted_values(tmp_path) == []

    def test_so_it_does_of_one_that_is_pending(self, tmp_path):
        for batch, count in ((0, 5), (1, 0)):
            run(tmp_path, batch, 0, count=count, overwrite=True, options=HELD)
        flush_pending(tmp_path, options=FAST)
        assert sorted_values(tmp_path) == []

    def test_and_where_an_empty_one_is_pending_from_a_run_with_an_interval(self, tmp_path):
        for batch, count, options in ((0, 5, PLAIN), (1, 0, HELD), (2, 0, PLAIN)):
            run(tmp_path, batch, 0, count=count, overwrite=True, options=options)
        assert sorted_values(tmp_path) == []
        assert flush_pending(tmp_path, options=FAST) is None

    def test_no_rows_are_nothing_pending_where_none_are(self, tmp_path):
        for batch, count, number in ((0, 0, 0), (1, 5, 1), (2, 0, 2), (3, 0, 2)):
            run(tmp_path, batch, 0, count=count, overwrite=True, options=HELD)
            assert log_of(tmp_path).newest_version() == number


@guarantee("overdue rows")
def test_what_is_overdue_is_flushed_before_a_batch_runs(tmp_path, caplog):
    """As after a restart: the batch may take long, or fail."""

    def writer(interval):
        return writer_of(tmp_path, **PLAIN | {"flush.maxinterval": interval})

    for batch in range(2):
        held = writer("1h")
        held.commit(write(held, batch, 10 * batch), batch)
    assert log_of(tmp_path).view().state.pending.numbers == (1, 2)
    assert log_of(tmp_path).view().state.pending.interval_ms == 3_600_000
    assert [record.message.count("flush_when_done") for record in caplog.records] == [1]
    writer("1h")
    assert log_of(tmp_path).view().state.version == 0, "not yet"
    planned = writer("1ms")
    assert sorted_values(tmp_path) == [15, 16, 17, 18, 19], "the latest row of each key"
    planned.commit(write(planned, 2, 20), 2)
    assert log_of(tmp_path).view().state.pending.numbers in ((), (4,))


WIDER = StructType(SCHEMA.fields[:]).add("more", LongType())


@guarantee("refused batch")
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": "p,v"}, r"partitioned by {.*'keys': \['p'\]"),
        ({"numsubpartitions": "3"}, "has 5 subpartitions; cannot append with 3"),
        ({"schema": WIDER}, "column .more. .int64. is not in the shuffle"),
        ({"resulttype": "PIPELINED"}, "result_type=PIPELINED"),
    ],
)
def test_no_task_runs_for_what_does_not_fit_what_is_pending(
    tmp_path, overwrite, is_there, change, message
):
    for batch in range(2):
        run(tmp_path, batch, 0, options=HELD)
        if is_there and batch == 0:
            flush_pending(tmp_path, options=FAST)
    before = files_below(tmp_path)
    with pytest.raises((SchemaError, OptionError), match=message) as raised:
        writer_of(tmp_path, overwrite=overwrite, **HELD | change)
    if overwrite or not is_there:
        said = "wait to be flushed have these: write with the same, or flush them"
        assert said in str(raised.value)
    assert files_below(tmp_path) == before
    flush_pending(tmp_path, options=FAST)
    if overwrite:
        writer_of(tmp_path, overwrite=True, **HELD | change)


def test_complete_batches_overwrite(tmp_path):
    for batch in range(2):
        run(tmp_path, batch, 10 * batch, overwrite=True)
        run(tmp_path, batch, 50, overwrite=True)
    assert sorted_values(tmp_path) == [*range(10, 20)]
    assert open_shuffle(tmp_path).version == 2


def test_later_batches_are_partitioned_as_what_is_there(tmp_path):
    add(tmp_path, 0)
    run(tmp_path, 0, 10, options={"codec": "none"})
    assert sorted_values(tmp_path) == [*range(5), *range(10, 20)]
    merge_shuffle(tmp_path, options=FAST, by="map_output")
    run(tmp_path, 0, 50)
    assert open_shuffle(tmp_path).version == 3


def test_a_shuffle_that_was_overwritten_otherwise_meanwhile(tmp_path):
    """The job is that of the tasks, not one that the committing writer would begin."""
    add(tmp_path, 0)
    messages = write(writer_of(tmp_path, codec="none"), 0, 10)
    add(tmp_path, 50, mode="overwrite", n=4)
    with pytest.raises(SchemaError, match="has 4 subpartitions; cannot append with 5"):
        writer_of(tmp_path, codec="none").commit(messages, 0)
    assert open_shuffle(tmp_path).num_subpartitions == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda messages: messages[1:], "batch 0 cannot be committed with messages of 1 tasks"),
        (lambda messages: [None, None], "batch 0 cannot be committed with messages of 0 tasks"),
        (lambda messages: [messages[0], None], r"2 map tasks, found 1 \(missing: \[1\]"),
        (lambda messages: [*messages, messages[1]], r"more than once: \[1\]"),
    ],
)
def test_a_batch_that_is_not_whole_is_not_committed(tmp_path, change, message):
    messages = write(writer_of(tmp_path), 0, 0)
    with pytest.raises(ShuffleError, match=message):
        writer_of(tmp_path).commit(change(messages), 0)
    assert log_of(tmp_path).newest_version() == 0


def test_messages_of_other_batches_are_not_committed(tmp_path):
    messages = write(writer_of(tmp_path), 0, 0)
    for batch in (1, 2):
        with pytest.raises(ShuffleError, match=rf"batch {batch} cannot be committed .*\[0\]"):
            writer_of(tmp_path).commit(messages, batch)


@pytest.mark.parametrize(("query", "batch"), [(None, 1), ("q", None)])
def test_outside_of_a_stream(tmp_path, query, batch):
    with pytest.raises(OptionError, match=r"the sink of a stream runs in micro-batches"):
        write(writer_of(tmp_path), batch, 0, query=query)
    with pytest.raises(OptionError, match=r"the sink of a stream runs in micro-batches"):
        writer_of(tmp_path).write(iter([]))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"keys": "p"}, OptionError, "option numSubpartitions is missing"),
        ({"numSubpartitions": "3"}, OptionError, "option keys or partitioner is missing"),
        (NEW | {"keys": "nope"}, SchemaError, "nope"),
    ],
)
def test_bad_options(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        writer_of(tmp_path / "s", **options)
    assert not (tmp_path / "s").exists()


def test_a_path_that_is_something_else(tmp_path):
    (tmp_path / "mine.txt").touch()
    with pytest.raises(ShuffleExistsError, match=r"holds 'mine.txt' and is not a shuffle"):
        writer_of(tmp_path)
