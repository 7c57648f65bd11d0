"""Operations without Spark, in threads and in processes: results, errors, and what they leave."""

import datetime as dt
import gc
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import types
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrow_format
from arrow_format import (
    ArithmeticOverflowError,
    BroadcastPartitioner,
    ClosedError,
    HashPartitioner,
    OptionError,
    ReadOptions,
    SchemaError,
    ShuffleError,
    StorageError,
    WriteOptions,
    aggregate_shuffle,
    join_shuffles,
    map_subpartitions,
    open_shuffle,
    write_shuffle,
)
from arrow_format.operators import local_run
from arrow_format.operators.local_run import Workers
from arrow_format.storage.scratch import PREFIX
from tests.support.exhaustive import exhaustive
from tests.support.forked import is_closed_in_a_child
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import FAST, files_below

N = 6
ITEMS = pa.table({"order": [i * i % 50 for i in range(400)], "price": list(range(400))})
ORDERS = pa.table({"order": list(range(50)), "who": [f"w{i % 7}" for i in range(50)]})
SCHEMA = ITEMS.schema
SMALL = {"target_partition_bytes": 1}
"""A task for each subpartition."""


@pytest.fixture
def items(tmp_path):
    write_shuffle(ITEMS, tmp_path / "items", num_subpartitions=N, keys="order", options=FAST)
    return tmp_path / "items"


@pytest.fixture
def orders(tmp_path):
    write_shuffle(ORDERS, tmp_path / "orders", num_subpartitions=N, keys="order", options=FAST)
    return tmp_path / "orders"


@pytest.fixture(scope="module")
def processes():
    # Not by fork: this process has threads.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["arrow_format.operators.join_shuffles"])
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        yield executor


pytestmark = exhaustive(but="executor")


@pytest.fixture(params=["own", "threads", "processes"])
def executor(request):
    if request.param == "own":
        yield None
    elif request.param == "threads":
        with ThreadPoolExecutor(3) as threads:
            yield threads
    else:
        yield request.getfixturevalue("processes")


@pytest.fixture(autouse=True)
def leaves_nothing(tmp_path_factory, monkeypatch):
    """No thread, and no file of results."""
    # A short path: processes put sockets there, whose names have at most 107 bytes.
    temporary = tmp_path_factory.mktemp("t")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield
    gc.collect()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and (own_threads() or list(temporary.glob(f"{PREFIX}*"))):
        time.sleep(0.02)
    assert not own_threads()
    assert not list(temporary.glob(f"{PREFIX}*"))


def own_threads():
    return [each.name for each in threading.enumerate() if each.name.startswith("arrow-shuffle")]


def rows_of(result):
    return sorted(map(str, result.read_all().to_pylist()))


def doubled(_, reader):
    for batch in reader:
        yield batch.set_column(1, "price", pc.multiply(batch["price"], 2))


def numbered(subpartition, reader):
    yield pa.record_batch({"n": pa.array([subpartition], pa.int32()), "rows": [len_of(reader)]})


def len_of(reader):
    return sum(batch.num_rows for batch in reader)


NUMBERED = pa.schema({"n": pa.int32(), "rows": pa.int64()})


@exhaustive()
@pytest.mark.parametrize("how", [{}, SMALL])
def test_a_function_per_subpartition_in_their_order(items, executor, how):
    reader = map_subpartitions(items, numbered, NUMBERED, executor=executor, **how)
    assert reader.schema.equals(NUMBERED)
    expected = open_shuffle(items).subpartition_rows.to_pylist()
    assert reader.read_all().to_pydict() == {"n": list(range(N)), "rows": expected}


def test_a_join(items, orders, executor):
    reader = join_shuffles(items, orders, executor=executor, **SMALL)
    expected = ITEMS.join(ORDERS, "order", join_type="inner").select(reader.schema.names)
    assert rows_of(reader) == sorted(map(str, expected.to_pylist()))


def test_an_aggregation(items, executor):
    asked = {"n": ("*", "count"), "most": ("price", "max")}
    reader = aggregate_shuffle(
        items, "order", asked, filter="price < 300", executor=executor, **SMALL
    )
    some = ITEMS.slice(0, 300).group_by("order").aggregate([([], "count_all"), ("price", "max")])
    assert rows_of(reader) == sorted(map(str, some.rename_columns(["order", *asked]).to_pylist()))


def priced(joined):
    for batch in joined:
        yield pa.record_batch({"price": batch["price"]})


def test_what_is_done_then(items, orders, executor):
    schema = pa.schema({"price": pa.int64()})
    reader = join_shuffles(items, orders, then=priced, schema=schema, executor=executor, **SMALL)
    assert sorted(reader.read_all()["price"].to_pylist()) == ITEMS["price"].to_pylist()


def test_rows_of_other_libraries_and_types_of_outer_joins(items, orders):
    write_shuffle(ORDERS.slice(0, 9), orders, num_subpartitions=N, keys="order", mode="overwrite")
    joined = join_shuffles(items, orders, how="left")
    assert joined.schema.equals(
        pa.schema([("order", pa.int64()), ("price", pa.int64()), ("who", pa.string())])
    )
    assert duckdb.sql("SELECT count(*), count(who) FROM joined").fetchall() == [
        (400, sum(order < 9 for order in ITEMS["order"].to_pylist()))
    ]
    frame = pl.DataFrame(aggregate_shuffle(items, "order", {"price": "sum"}))
    assert frame["price_sum"].sum() == sum(range(400))


def test_nullability_of_a_join_is_that_of_the_rows(tmp_path):
    fields = [pa.field("k", pa.int64(), nullable=False), pa.field("a", pa.int64(), nullable=False)]
    for name in "ab":
        schema = pa.schema([fields[0], fields[1].with_name(name)])
        rows = pa.table([[1, 2 + (name == "b")], [1, 2]], schema=schema)
        write_shuffle(rows, tmp_path / name, num_subpartitions=2, keys="k", options=FAST)
    for how, nullable in {
        "inner": [False, False, False], "left": [False, False, True],
        "right": [False, True, False], "full": [False, True, True], "semi": [False, False],
    }.items():  # fmt: skip
        reader = join_shuffles(tmp_path / "a", tmp_path / "b", how=how)
        assert [field.nullable for field in reader.schema] == nullable, how
        assert reader.read_all().num_rows == {"inner": 1, "full": 3, "semi": 1}.get(how, 2)


@guarantee("results that stay partitioned")
def test_results_are_written_as_a_shuffle(tmp_path, items, executor):
    receipt = map_subpartitions(
        items, doubled, SCHEMA, into=tmp_path / "out", options=FAST, executor=executor, **SMALL
    )
    out = open_shuffle(tmp_path / "out")
    assert receipt.num_rows == 400
    assert receipt.num_map_outputs == N
    assert out.partitioner == HashPartitioner("order")
    assert out.subpartition_rows.equals(open_shuffle(items).subpartition_rows)
    assert sum(out.to_table()["price"].to_pylist()) == 2 * sum(range(400))


def test_results_by_other_keys_and_appended(tmp_path, items, orders, executor):
    how = {"into": tmp_path / "out", "keys": "who", "num_subpartitions": 3, "options": FAST}
    join_shuffles(items, orders, executor=executor, **how)
    join_shuffles(items, orders, executor=executor, mode="append", **how)
    out = open_shuffle(tmp_path / "out")
    assert (out.num_subpartitions, out.num_rows, out.version) == (3, 800, 2)
    before = receipt = join_shuffles(items, orders, mode="ignore", **how)
    assert before.version == receipt.version == 2


def other_keys(_, reader):
    for batch in reader:
        yield pa.record_batch({"order": pc.add(batch["order"], 1), "price": batch["price"]})


def test_a_row_that_belongs_elsewhere_leaves_nothing(tmp_path, items, executor):
    with pytest.raises(SchemaError, match=r"a row of the result with order=\d+ came from"):
        map_subpartitions(
            items, other_keys, SCHEMA, into=tmp_path / "out", executor=executor, **SMALL
        )
    assert not (tmp_path / "out").exists()


class Refusal(Exception):
    """Cannot be made of its arguments, as unpickling does."""

    def __init__(self, number, why):
        super().__init__(f"{number}: {why}")


def failing_at_3(subpartition, reader):
    yield from reader
    if subpartition == 3:
        raise KeyError("mine")


def refusing_at_3(subpartition, reader):
    yield from reader
    if subpartition == 3:
        raise Refusal(3, "mine")


@pytest.mark.parametrize("into", [False, True])
def test_an_error_comes_as_itself_and_names_its_subpartition(tmp_path, items, executor, into):
    how = {"executor": executor, **SMALL} | ({"into": tmp_path / "out"} if into else {})
    with pytest.raises(KeyError, match="mine") as caught:
        map_subpartitions(items, failing_at_3, SCHEMA, **how).read_all()
    assert f"in map_subpartitions, subpartition 3 of {items}" in caught.value.__notes__
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("into", [False, True])
def test_an_error_that_cannot_be_sent_comes_as_text(tmp_path, items, executor, into):
    how = {"executor": executor, **SMALL} | ({"into": tmp_path / "out"} if into else {})
    kind = RuntimeError if isinstance(executor, ProcessPoolExecutor) else Refusal
    with pytest.raises(kind, match="3: mine") as caught:
        map_subpartitions(items, refusing_at_3, SCHEMA, **how).read_all()
    assert f"in map_subpartitions, subpartition 3 of {items}" in caught.value.__notes__


def test_results_come_before_the_error_of_a_later_task(items, executor):
    reader = map_subpartitions(items, failing_at_3, SCHEMA, executor=executor, **SMALL)
    sizes = open_shuffle(items).subpartition_rows.to_pylist()
    rows = []
    with pytest.raises(KeyError):
        rows.extend(batch.num_rows for batch in reader)
    # Of what the failed task yielded before, as much as makes a batch.
    assert sum(rows) == sum(sizes[:3])
    with pytest.raises(ClosedError, match="KeyError"):
        next(reader)


def test_an_overflow_names_its_group(tmp_path, executor):
    rows = pa.table({"k": [1, 1], "v": [1 << 62] * 2})
    write_shuffle(rows, tmp_path / "s", num_subpartitions=2, keys="k", options=FAST)
    with pytest.raises(ArithmeticOverflowError, match=r"sum\(v\) of the group k=1"):
        aggregate_shuffle(tmp_path / "s", "k", {"v": "sum"}, executor=executor).read_all()


def killed(_, reader):
    del reader
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("into", [False, True])
def test_a_killed_process_is_an_error_of_ours(tmp_path, items, into):
    context = multiprocessing.get_context("forkserver")
    how = {"into": tmp_path / "out"} if into else {}
    with (
        ProcessPoolExecutor(2, mp_context=context) as executor,
        pytest.raises(ShuffleError, match=rf"a process of the executor died .* {items}: it was"),
    ):
        map_subpartitions(items, killed, SCHEMA, executor=executor, **how).read_all()
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_sent_is_refused_at_once(tmp_path, items, processes):
    for how in ({}, {"into": tmp_path / "out"}):
        with pytest.raises(OptionError, match=r"cannot be sent to the processes .* top level"):
            map_subpartitions(items, lambda _, r: r, SCHEMA, executor=processes, **how)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("end", ["close", "drop"])
def test_a_reader_that_is_not_read_to_its_end(items, executor, end):
    reader = map_subpartitions(items, doubled, SCHEMA, executor=executor, **SMALL)
    next(reader)
    if end == "close":
        reader.close()
        assert not own_threads()
    del reader
    # What it leaves is looked for after every test.


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_process_neither_reads_on_nor_waits(items):
    reader = map_subpartitions(items, doubled, SCHEMA, **SMALL)
    num_rows = next(reader).num_rows
    assert is_closed_in_a_child(reader)
    assert num_rows + len_of(reader) == ITEMS.num_rows


def test_nothing_runs_before_it_is_read(items):
    called = []
    map_subpartitions(items, lambda *_: called.append(1) or [], SCHEMA)
    assert not own_threads()
    assert not called


def test_readers_of_one_executor_may_be_read_by_turns(items, orders):
    """No worker waits for a consumer: with one thread, two readers would wait for each other."""
    with ThreadPoolExecutor(1) as executor:
        first = map_subpartitions(items, doubled, SCHEMA, executor=executor, **SMALL)
        second = join_shuffles(items, orders, executor=executor, **SMALL)
        rows = [0, 0]
        for batches in zip(first, second, strict=False):
            rows = [a + b.num_rows for a, b in zip(rows, batches, strict=True)]
    assert all(rows)


def test_an_executor_that_was_shut_down(items):
    with ThreadPoolExecutor(1) as executor:
        reader = map_subpartitions(items, doubled, SCHEMA, executor=executor)
    with pytest.raises(ClosedError, match="keep the executor open"):
        reader.read_all()


@pytest.mark.parametrize("into", [False, True])
def test_an_executor_whose_tasks_are_cancelled(tmp_path, items, into):
    how = {"into": tmp_path / "out"} if into else {}
    with ThreadPoolExecutor(2) as executor:

        def shutting_down(subpartition, reader):
            if subpartition == 0:
                while not vars(executor)["_work_queue"].qsize():
                    time.sleep(0.001)
                executor.shutdown(wait=False, cancel_futures=True)
            yield from reader

        # The other thread is busy elsewhere, so that a task of ours is queued.
        free = threading.Event()
        executor.submit(free.wait, 30)
        try:
            with pytest.raises(ClosedError, match="keep the executor open"):
                map_subpartitions(
                    items, shutting_down, SCHEMA, executor=executor, **SMALL, **how
                ).read_all()
        finally:
            free.set()
    assert not (tmp_path / "out").exists()


def removing(path, subpartition, reader):
    batches = list(reader)
    if subpartition == 0:
        shutil.rmtree(path)
    yield from batches


@pytest.mark.parametrize("into", [False, True])
def test_what_fails_when_a_task_opens_a_shuffle_does_not_end_the_processes(
    tmp_path, items, processes, into
):
    how = {"into": tmp_path / "out"} if into else {}
    copy = shutil.copytree(items, tmp_path / "copy")
    with pytest.raises(ShuffleError, match=rf"^{copy}.*not there"):
        map_subpartitions(
            copy, partial(removing, copy), SCHEMA, executor=processes, **SMALL, **how
        ).read_all()
    assert not (tmp_path / "out").exists()
    reader = map_subpartitions(items, doubled, SCHEMA, executor=processes)
    assert reader.read_all().num_rows == ITEMS.num_rows


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("into", [False, True])
def test_a_pool_of_forks_says_why_it_cannot_use_a_store(s3, into):
    """What Linux starts by default up to Python 3.13."""
    place, store = f"s3://{s3.new_bucket()}", {"storage_options": s3.options}
    write_shuffle(ITEMS, f"{place}/a", num_subpartitions=N, keys="order", options=FAST, **store)
    how = store | ({"into": f"{place}/out"} if into else {})
    with (
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as executor,
        pytest.raises(StorageError, match="start processes by spawn"),
    ):
        map_subpartitions(f"{place}/a", doubled, SCHEMA, executor=executor, **how).read_all()


def test_what_a_process_cannot_import_is_named(tmp_path, items, processes):
    """A module that only this process has."""
    module = types.ModuleType("only_here")
    exec("def function(_, reader):\n    yield from reader", vars(module))
    sys.modules["only_here"] = module
    try:
        for how in ({}, {"into": tmp_path / "out"}):
            with pytest.raises(OptionError, match=r"cannot import the function .*only_here"):
                map_subpartitions(
                    items, module.function, SCHEMA, executor=processes, **how
                ).read_all()
    finally:
        del sys.modules["only_here"]
    assert not (tmp_path / "out").exists()


def test_an_interrupt_ends_the_workers(tmp_path, items):
    waiting = threading.Event()
    go_on = threading.Event()

    def slow(_, reader):
        waiting.set()
        go_on.wait(30)
        yield from reader

    def interrupt():
        waiting.wait(30)
        time.sleep(0.1)  # until threads have started
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.1)
        go_on.set()

    for how in ({}, {"into": tmp_path / "out"}):
        waiting.clear()
        go_on.clear()
        timer = threading.Thread(target=interrupt)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            map_subpartitions(items, slow, SCHEMA, **SMALL, **how).read_all()
        timer.join()
        assert not own_threads()
        assert not (tmp_path / "out").exists()


def test_timestamps_have_the_zone_that_is_asked_for(tmp_path):
    noon = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
    schema = pa.schema({"at": pa.timestamp("us", "UTC"), "k": pa.int64()})
    rows = pa.Table.from_pylist([{"at": noon, "k": 1}], schema)
    for name in "ab":
        write_shuffle(rows, tmp_path / name, num_subpartitions=2, keys="k", options=FAST)
    hours = []

    def function(*given):
        for batch in given[-1]:
            hours.extend(at.hour for at in batch["at"].to_pylist())
            yield batch

    for zone in (None, "Asia/Tokyo"):
        reader = map_subpartitions(tmp_path / "a", function, schema, time_zone=zone)
        assert reader.read_all()["at"].to_pylist() == [noon]
        join_shuffles(
            *(tmp_path / name for name in "ab"), right_columns=[], then=function, schema=schema,
            time_zone=zone, left_filter="at >= '2024-07-01 12:00Z'",
        ).read_all()  # fmt: skip
    assert hours == [12, 12, 21, 21]


def test_a_broadcast_shuffle_is_read_with_any(tmp_path, items, executor):
    everyone = BroadcastPartitioner()
    write_shuffle(ORDERS, tmp_path / "all", num_subpartitions=1, partitioner=everyone)
    reader = join_shuffles(items, tmp_path / "all", executor=executor, **SMALL)
    assert reader.read_all().num_rows == 400


@pytest.mark.parametrize("given", [5, "threads", Executor()])
def test_what_is_no_executor(items, given):
    with pytest.raises(OptionError, match=r"executor is .*: expected a ThreadPoolExecutor or Proc"):
        map_subpartitions(items, doubled, SCHEMA, executor=given)


def test_a_schema_is_that_of_pyarrow(items):
    with pytest.raises(SchemaError, match=r"schema is str: expected a pyarrow schema"):
        map_subpartitions(items, doubled, "order long")


def test_workers_share_the_memory():
    with ThreadPoolExecutor(8) as executor:
        given = ReadOptions(memory_bytes=256 << 20)
        for num_shuffles, number in ((1, 8), (2, 6), (3, 3), (7, 1)):
            workers = Workers.of(executor, given, num_shuffles)
            assert workers.number == number
            shuffles = [workers.share.shared_by(num_shuffles)] * num_shuffles * number
            used = sum(each.working_set_bytes + each.fetched_bytes for each in shuffles)
            assert used + workers.waiting_bytes <= given.memory_bytes
        with pytest.raises(OptionError, match=r"8 shuffles, and its results, need .* 288 MiB"):
            Workers.of(executor, given, 8)
        assert Workers.of(executor, given, 1, least_bytes=32 << 20).number == 6
        least = ReadOptions(memory_bytes=96 << 20)
        assert Workers.of(executor, least, 1, least_bytes=64 << 20).number == 1
        own = Workers.of(executor, None, 2)
        assert own.share.shared_by(2).working_set_bytes >= ReadOptions().working_set_bytes // 2


def test_tasks_do_not_run_far_ahead_of_the_consumer(tmp_path, monkeypatch, executor):
    """Results that nobody takes are bounded, and so are those of a task that is not next."""
    monkeypatch.setattr(local_run, "STEP_BYTES", 1 << 16)
    monkeypatch.setattr(Workers, "waiting_bytes", 1 << 20)
    rows = pa.table({"k": range(200)})
    write_shuffle(rows, tmp_path / "s", num_subpartitions=50, keys="k", options=FAST)
    made = tmp_path / "made"
    made.mkdir()
    reader = map_subpartitions(
        tmp_path / "s", Large(made), pa.schema({"x": pa.int64()}), executor=executor, **SMALL
    )
    next(reader)
    time.sleep(0.3)
    next(reader)
    time.sleep(0.3)
    # Files are as large as a group makes them; in threads a group stops within.
    allowed = 24 if isinstance(executor, ProcessPoolExecutor) else 12
    assert 1 < len(list(made.iterdir())) <= allowed
    reader.close()


class Large:
    """Yields half a megabyte per subpartition in four batches, and leaves a file for each."""

    def __init__(self, made):
        self.made = made

    def __call__(self, subpartition, reader):
        reader.close()
        for i in range(4):
            (self.made / f"{subpartition}-{i}").touch()
            yield pa.record_batch({"x": np.zeros(1 << 14, np.int64)})


def test_bad_arguments_leave_no_job(tmp_path, items):
    before = files_below(Path(tempfile.gettempdir()))
    with pytest.raises(OptionError, match="only with into="):
        map_subpartitions(items, doubled, SCHEMA, keys="order")
    with pytest.raises(OptionError, match="target_partition_bytes=0"):
        aggregate_shuffle(items, "order", {}, into=tmp_path / "out", target_partition_bytes=0)
    with pytest.raises(OptionError, match="then and schema"):
        join_shuffles(items, items, right_columns=[], then=priced)
    assert not (tmp_path / "out").exists()
    assert files_below(Path(tempfile.gettempdir())) == before


def test_memory_of_writing_is_shared(tmp_path, items):
    seen = []
    real = local_run.run_map_task

    def recorded(job, *given):
        seen.append(job.options.sort_buffer_bytes)
        return real(job, *given)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(4) as executor:
        patch.setattr(local_run, "run_map_task", recorded)
        arrow_format.map_subpartitions(
            items, doubled, SCHEMA, into=tmp_path / "out", executor=executor,
            options=WriteOptions(sort_buffer_bytes=64 << 20, sync=False),
        )  # fmt: skip
    assert set(seen) == {16 << 20}


def test_a_million_subpartitions_with_few_rows_cost_what_reading_them_costs(tmp_path):
    n = 1_000_000
    table = pa.table({"k": range(2_000), "v": range(2_000)})
    write_shuffle(table, tmp_path / "s", num_subpartitions=n, keys="k", options=FAST)
    path = tmp_path / "s"

    def seconds(work):
        work()  # what is made once is not counted
        before = time.process_time()
        assert work().num_rows == 2_000
        return time.process_time() - before

    reading = seconds(lambda: open_shuffle(path).read().read_all())
    joining = seconds(lambda: join_shuffles(path, path, "k", "semi").read_all())
    counting = seconds(lambda: aggregate_shuffle(path, "k", {"v": "count"}).read_all())
    # Two sides are read: 4 times as long, and 70 times where each task weighs all subpartitions.
    assert joining < 12 * reading
    assert counting < 8 * reading
