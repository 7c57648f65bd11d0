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
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrow_format.errors import (
    ArithmeticOverflowError,
    ClosedError,
    OptionError,
    SchemaError,
    ShuffleError,
    StorageError,
)
from arrow_format.operators import local_run
from arrow_format.operators.local_run import Capacity
from arrow_format.storage.scratch import PREFIX
from arrow_shuffle import (
    BroadcastPartitioner,
    HashPartitioner,
    ReadOptions,
    WriteOptions,
    open_shuffle,
    write_shuffle,
)
from tests.support.exhaustive import exhaustive
from tests.support.forked import is_closed_in_a_child
from tests.support.guarantees import guarantee
from tests.support.operations import made, written
from tests.support.small_shuffles import FAST, files_below
from tests.support.waiting import wait_until

N = 6
ITEMS = pa.table({"order": [i * i % 50 for i in range(400)], "price": list(range(400))})
ORDERS = pa.table({"order": list(range(50)), "who": [f"w{i % 7}" for i in range(50)]})
SCHEMA = ITEMS.schema
SMALL = {"target_partition_bytes": 1}
"""A task for each subpartition."""


@pytest.fixture
def items(tmp_path):
    return written(tmp_path / "items", ITEMS, "order", n=N)


@pytest.fixture
def orders(tmp_path):
    return written(tmp_path / "orders", ORDERS, "order", n=N)


@pytest.fixture(scope="module")
def processes():
    # Not by fork: this process has threads.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["arrow_format.operators.description"])
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


@pytest.fixture(params=[False, True])
def into(tmp_path, request):
    """Where results are written, or None: they are read."""
    return tmp_path / "out" if request.param else None


@pytest.fixture(autouse=True)
def leaves_nothing(tmp_path_factory, monkeypatch):
    """No thread, and no file of results."""
    # A short path: processes put sockets there, whose names have at most 107 bytes.
    temporary = tmp_path_factory.mktemp("t")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield
    gc.collect()
    wait_until(lambda: not own_threads() and not list(temporary.glob(f"{PREFIX}*")))


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


@pytest.mark.slow
@exhaustive()
@pytest.mark.parametrize("how", [{}, SMALL])
def test_a_function_per_subpartition_in_their_order(items, executor, how):
    reader = items.map_subpartitions(numbered, NUMBERED).read(executor=executor, **how)
    assert reader.schema.equals(NUMBERED)
    expected = items.subpartition_rows.to_pylist()
    assert reader.read_all().to_pydict() == {"n": list(range(N)), "rows": expected}


def priced(joined):
    for batch in joined:
        yield pa.record_batch({"price": batch["price"]})


def test_what_is_done_then(items, orders, executor):
    schema = pa.schema({"price": pa.int64()})
    reader = items.join(orders, then=priced, schema=schema).read(executor=executor, **SMALL)
    assert sorted(reader.read_all()["price"].to_pylist()) == ITEMS["price"].to_pylist()


def test_rows_of_other_libraries_and_types_of_outer_joins(tmp_path, items):
    joined = items.join(written(tmp_path / "few", ORDERS.slice(0, 9), "order", n=N), how="left")
    assert joined.schema.equals(
        pa.schema([("order", pa.int64()), ("price", pa.int64()), ("who", pa.string())])
    )
    assert duckdb.sql("SELECT count(*), count(who) FROM joined").fetchall() == [
        (400, sum(order < 9 for order in ITEMS["order"].to_pylist()))
    ]
    frame = items.aggregate("order", {"price": "sum"}).to_polars()
    assert frame["price_sum"].sum() == sum(range(400))


def test_nullability_of_a_join_is_that_of_the_rows(tmp_path):
    fields = [pa.field("k", pa.int64(), nullable=False), pa.field("a", pa.int64(), nullable=False)]
    sides = []
    for name in "ab":
        schema = pa.schema([fields[0], fields[1].with_name(name)])
        rows = pa.table([[1, 2 + (name == "b")], [1, 2]], schema=schema)
        sides.append(written(tmp_path / name, rows, "k"))
    for how, nullable in {
        "inner": [False, False, False], "left": [False, False, True],
        "right": [False, True, False], "full": [False, True, True], "semi": [False, False],
    }.items():  # fmt: skip
        joined = sides[0].join(sides[1], how=how)
        assert [field.nullable for field in joined.schema] == nullable, how
        assert joined.to_table().num_rows == {"inner": 1, "full": 3, "semi": 1}.get(how, 2)


@guarantee("results that stay partitioned")
def test_results_are_written_as_a_shuffle(tmp_path, items, executor):
    receipt = items.map_subpartitions(doubled, SCHEMA).write(
        tmp_path / "out", options=FAST, executor=executor, **SMALL
    )
    out = open_shuffle(tmp_path / "out")
    assert receipt.num_rows == 400
    assert receipt.num_map_outputs == N
    assert out.partitioner == HashPartitioner("order")
    assert out.subpartition_rows.equals(items.subpartition_rows)
    assert sum(out.to_table()["price"].to_pylist()) == 2 * sum(range(400))


def test_results_by_other_keys_and_appended(tmp_path, items, orders, executor):
    write = partial(
        items.join(orders).write, tmp_path / "out", keys="who", num_subpartitions=3, options=FAST
    )
    write(executor=executor)
    write(executor=executor, mode="append")
    out = open_shuffle(tmp_path / "out")
    assert (out.num_subpartitions, out.num_rows, out.version) == (3, 800, 2)
    assert write(mode="ignore").version == 2


def other_keys(_, reader):
    for batch in reader:
        yield pa.record_batch({"order": pc.add(batch["order"], 1), "price": batch["price"]})


@pytest.mark.slow
def test_a_row_that_belongs_elsewhere_leaves_nothing(tmp_path, items, executor):
    with pytest.raises(SchemaError, match=r"a row of the result with order=\d+ came from"):
        items.map_subpartitions(other_keys, SCHEMA).write(
            tmp_path / "out", executor=executor, **SMALL
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


def test_an_error_comes_as_itself_and_names_its_subpartition(tmp_path, items, executor, into):
    with pytest.raises(KeyError, match="mine") as caught:
        made(items.map_subpartitions(failing_at_3, SCHEMA), into, executor=executor, **SMALL)
    assert f"in map_subpartitions, subpartition 3 of {items.path}" in caught.value.__notes__
    assert not (tmp_path / "out").exists()


def test_an_error_that_cannot_be_sent_comes_as_text(tmp_path, items, executor, into):
    kind = RuntimeError if isinstance(executor, ProcessPoolExecutor) else Refusal
    with pytest.raises(kind, match="3: mine") as caught:
        made(items.map_subpartitions(refusing_at_3, SCHEMA), into, executor=executor, **SMALL)
    assert f"in map_subpartitions, subpartition 3 of {items.path}" in caught.value.__notes__


def test_results_come_before_the_error_of_a_later_task(items, executor):
    reader = items.map_subpartitions(failing_at_3, SCHEMA).read(executor=executor, **SMALL)
    sizes = items.subpartition_rows.to_pylist()
    rows = []
    with pytest.raises(KeyError):
        rows.extend(batch.num_rows for batch in reader)
    # Of what the failed task yielded before, as much as makes a batch.
    assert sum(rows) == sum(sizes[:3])
    with pytest.raises(ClosedError, match="KeyError"):
        next(reader)


def test_an_overflow_names_its_group(tmp_path, executor):
    rows = pa.table({"k": [1, 1], "v": [1 << 62] * 2})
    summed = written(tmp_path / "s", rows, "k").aggregate("k", {"v": "sum"})
    with pytest.raises(ArithmeticOverflowError, match=r"sum\(v\) of the group k=1"):
        made(summed, executor=executor)


def killed(_, reader):
    del reader
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_process_is_an_error_of_ours(tmp_path, items, into):
    context = multiprocessing.get_context("forkserver")
    with (
        ProcessPoolExecutor(2, mp_context=context) as executor,
        pytest.raises(
            ShuffleError, match=rf"a process of the executor died .* {items.path}: it was"
        ),
    ):
        made(items.map_subpartitions(killed, SCHEMA), into, executor=executor)
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_sent_is_refused_at_once(tmp_path, items, processes):
    asked = items.map_subpartitions(lambda _, r: r, SCHEMA)
    for run in (asked.read, partial(asked.write, tmp_path / "out")):
        with pytest.raises(OptionError, match=r"cannot be sent to the processes .* top level"):
            run(executor=processes)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("end", ["close", "drop"])
def test_a_reader_that_is_not_read_to_its_end(items, executor, end):
    reader = items.map_subpartitions(doubled, SCHEMA).read(executor=executor, **SMALL)
    next(reader)
    if end == "close":
        reader.close()
        assert not own_threads()
    del reader
    # What it leaves is looked for after every test.


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_process_neither_reads_on_nor_waits(items):
    reader = items.map_subpartitions(doubled, SCHEMA).read(**SMALL)
    num_rows = next(reader).num_rows
    assert is_closed_in_a_child(reader)
    assert num_rows + len_of(reader) == ITEMS.num_rows


def test_nothing_runs_before_it_is_read(items):
    called = []
    items.map_subpartitions(lambda *_: called.append(1) or [], SCHEMA).read()
    assert not own_threads()
    assert not called


def test_readers_of_one_executor_may_be_read_by_turns(items, orders):
    """No worker waits for a consumer: with one thread, two readers would wait for each other."""
    with ThreadPoolExecutor(1) as executor:
        first = items.map_subpartitions(doubled, SCHEMA).read(executor=executor, **SMALL)
        second = items.join(orders).read(executor=executor, **SMALL)
        rows = [0, 0]
        for batches in zip(first, second, strict=False):
            rows = [a + b.num_rows for a, b in zip(rows, batches, strict=True)]
    assert all(rows)


def test_an_executor_that_was_shut_down(items):
    with ThreadPoolExecutor(1) as executor:
        reader = items.map_subpartitions(doubled, SCHEMA).read(executor=executor)
    with pytest.raises(ClosedError, match="keep the executor open"):
        reader.read_all()


def test_an_executor_whose_tasks_are_cancelled(tmp_path, items, into):
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
        asked = items.map_subpartitions(shutting_down, SCHEMA)
        try:
            with pytest.raises(ClosedError, match="keep the executor open"):
                made(asked, into, executor=executor, **SMALL)
        finally:
            free.set()
    assert not (tmp_path / "out").exists()


def removing(path, subpartition, reader):
    batches = list(reader)
    if subpartition == 0:
        shutil.rmtree(path)
    yield from batches


def test_what_fails_when_a_task_opens_a_shuffle_does_not_end_the_processes(
    tmp_path, items, processes, into
):
    copy = written(tmp_path / "copy", ITEMS, "order", n=N)
    removed = copy.map_subpartitions(partial(removing, copy.path), SCHEMA)
    with pytest.raises(ShuffleError, match=rf"^{copy.path}.*not there"):
        made(removed, into, executor=processes, **SMALL)
    assert not (tmp_path / "out").exists()
    reader = items.map_subpartitions(doubled, SCHEMA).read(executor=processes)
    assert reader.read_all().num_rows == ITEMS.num_rows


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_pool_of_forks_says_why_it_cannot_use_a_store(s3, into):
    """What Linux starts by default up to Python 3.13."""
    path, store = f"s3://{s3.new_bucket()}", {"storage_options": s3.options}
    write_shuffle(ITEMS, path, keys="order", options=FAST, **store)
    asked = open_shuffle(path, **store).map_subpartitions(doubled, SCHEMA)
    with (
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as executor,
        pytest.raises(StorageError, match="start processes by spawn"),
    ):
        made(asked, into, executor=executor)


def test_what_a_process_cannot_import_is_named(tmp_path, items, processes, into):
    """A module that only this process has."""
    module = types.ModuleType("only_here")
    exec("def function(_, reader):\n    yield from reader", vars(module))
    sys.modules["only_here"] = module
    try:
        with pytest.raises(OptionError, match=r"cannot import the function .*only_here"):
            made(items.map_subpartitions(module.function, SCHEMA), into, executor=processes)
    finally:
        del sys.modules["only_here"]
    assert not (tmp_path / "out").exists()


def test_an_interrupt_ends_the_workers(tmp_path, items, into):
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

    timer = threading.Thread(target=interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        made(items.map_subpartitions(slow, SCHEMA), into, **SMALL)
    timer.join()
    assert not own_threads()
    assert not (tmp_path / "out").exists()


def test_timestamps_have_the_zone_that_is_asked_for(tmp_path):
    noon = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
    schema = pa.schema({"at": pa.timestamp("us", "UTC"), "k": pa.int64()})
    rows = pa.Table.from_pylist([{"at": noon, "k": 1}], schema)
    a, b = (written(tmp_path / name, rows, "k") for name in "ab")
    hours = []

    def function(*given):
        for batch in given[-1]:
            hours.extend(at.hour for at in batch["at"].to_pylist())
            yield batch

    for zone in (None, "Asia/Tokyo"):
        reader = a.map_subpartitions(function, schema).read(time_zone=zone)
        assert reader.read_all()["at"].to_pylist() == [noon]
        later = a.select(filter="at >= '2024-07-01 12:00Z'")
        made(later.join(b.select("k"), then=function, schema=schema), time_zone=zone)
    assert hours == [12, 12, 21, 21]


def test_a_broadcast_shuffle_is_read_with_any(tmp_path, items, executor):
    orders = written(tmp_path / "all", ORDERS, n=1, partitioner=BroadcastPartitioner())
    assert made(items.join(orders), executor=executor, **SMALL).num_rows == 400


@pytest.mark.parametrize("given", [5, "threads", Executor()])
def test_what_is_no_executor(items, given):
    with pytest.raises(OptionError, match=r"executor is .*: expected a ThreadPoolExecutor or Proc"):
        items.map_subpartitions(doubled, SCHEMA).read(executor=given)


def test_a_schema_may_be_text(items):
    asked = items.map_subpartitions(doubled, "order long, price bigint")
    assert asked.schema.equals(SCHEMA)
    assert pc.sum(asked.to_table()["price"]).as_py() == 2 * sum(range(400))
    with pytest.raises(SchemaError, match=r"schema is dict: expected a pyarrow schema, text"):
        items.map_subpartitions(doubled, {"order": "long"})


def test_workers_share_the_memory():
    with ThreadPoolExecutor(8) as executor:
        given = ReadOptions(memory_bytes=256 << 20)
        for num_shuffles, number in ((1, 8), (2, 6), (3, 3), (7, 1)):
            workers = Capacity.of(executor, given, num_shuffles)
            assert workers.number == number
            shuffles = [workers.share.shared_by(num_shuffles)] * num_shuffles * number
            used = sum(each.working_set_bytes + each.fetched_bytes for each in shuffles)
            assert used + workers.waiting_bytes <= given.memory_bytes
        with pytest.raises(OptionError, match=r"8 shuffles, and its results, need .* 288 MiB"):
            Capacity.of(executor, given, 8)
        assert Capacity.of(executor, given, 1, least_bytes=32 << 20).number == 6
        least = ReadOptions(memory_bytes=96 << 20)
        assert Capacity.of(executor, least, 1, least_bytes=64 << 20).number == 1
        own = Capacity.of(executor, None, 2)
        assert own.share.shared_by(2).working_set_bytes >= ReadOptions().working_set_bytes // 2


def test_tasks_do_not_run_far_ahead_of_the_consumer(tmp_path, monkeypatch, executor):
    """Results that nobody takes are bounded, and so are those of a task that is not next."""
    monkeypatch.setattr(local_run, "STEP_BYTES", 1 << 16)
    monkeypatch.setattr(Capacity, "waiting_bytes", 1 << 20)
    shuffle = written(tmp_path / "s", pa.table({"k": range(200)}), "k", n=50)
    files = tmp_path / "made"
    files.mkdir()
    asked = shuffle.map_subpartitions(Large(files), "x bigint")
    reader = asked.read(executor=executor, **SMALL)
    next(reader)
    time.sleep(0.3)
    next(reader)
    time.sleep(0.3)
    # Files are as large as a group makes them; in threads a group stops within.
    allowed = 24 if isinstance(executor, ProcessPoolExecutor) else 12
    assert 1 < len(list(files.iterdir())) <= allowed
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
    with pytest.raises(OptionError, match="target_partition_bytes=0"):
        items.aggregate("order").write(tmp_path / "out", target_partition_bytes=0)
    with pytest.raises(OptionError, match="then and schema"):
        items.join(items.select("order"), then=priced)
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
        writing = WriteOptions(sort_buffer_bytes=64 << 20, sync=False)
        items.map_subpartitions(doubled, SCHEMA).write(
            tmp_path / "out", executor=executor, options=writing
        )
    assert set(seen) == {16 << 20}


@pytest.mark.slow
def test_a_million_subpartitions_with_few_rows_cost_what_reading_them_costs(tmp_path):
    table = pa.table({"k": range(2_000), "v": range(2_000)})
    shuffle = written(tmp_path / "s", table, "k", n=1_000_000)

    def seconds(work):
        work()  # what is made once is not counted
        before = time.process_time()
        assert work().num_rows == 2_000
        return time.process_time() - before

    reading = seconds(lambda: open_shuffle(shuffle.path).read().read_all())
    joining = seconds(shuffle.join(shuffle, "k", "semi").to_table)
    counting = seconds(shuffle.aggregate("k", {"v": "count"}).to_table)
    # Two sides are read: 4 times as long, and 70 times where each task weighs all subpartitions.
    assert joining < 12 * reading
    assert counting < 8 * reading
