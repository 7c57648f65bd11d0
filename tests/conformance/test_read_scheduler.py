"""CONFORMANCE, group "Read scheduler and pool": the scheduler."""

import gc
import itertools
import threading

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrow_format.errors import ClosedError, CorruptShuffleError, StorageError
from arrow_format.options import WriteOptions
from arrow_format.read.buffer_pool import ReadBufferPool
from arrow_format.read.chunk_plan import ChunkRead, plan_chunks
from arrow_format.read.open_files import MAX_OPEN_FILES
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.read.read_queue import ReadQueue
from arrow_format.read.scheduler import ReadScheduler, next_to_serve
from arrow_format.storage.open import PosixStorage
from tests.conformance.test_read_buffer_pool import in_thread
from tests.support.guarantees import guarantee
from tests.support.open_files import open_files
from tests.support.recording_storage import RecordingStorage
from tests.support.small_shuffles import write_file
from tests.support.waiting import wait_until

N = 10


class Source:
    """A data file with what is written in it."""

    described = "map task 3, attempt 1"

    def __init__(self, storage, number):
        self.storage, self.order = storage, number
        regions = [([s for s in range(N) for _ in range(30)], first) for first in (0, 3, 0)]
        options = WriteOptions(sync=False, codec="none", chunk_bytes=1)
        file, _ = write_file(storage, regions, N, path=f"file-{number}", options=options)
        self.path = file.data_path
        self.content = (storage._root / self.path).read_bytes()
        self.regions = PartitionedFileReader(storage, file).regions

    def plan(self, first=0, end=N, regions=slice(None)):
        chosen = self.regions[regions]
        at = self.regions.index(chosen[0])
        return list(plan_chunks(chosen, first, end, N, first_region=at))

    def stored(self, chunk):
        return self.content[chunk.offset : chunk.offset + chunk.length]


@pytest.fixture
def storage(tmp_path):
    return RecordingStorage(str(tmp_path))


@pytest.fixture
def source(storage):
    return Source(storage, 0)


@pytest.fixture
def sources(storage):
    return [Source(storage, number) for number in range(3)]


def allocated():
    gc.collect()
    return pa.total_allocated_bytes()


def failing(source):
    """Fail when that is read."""

    def before(path):
        if path == source.path:
            raise StorageError("Input/output error")

    return before


def check(found, *expected):
    """Every chunk came, in order, with its bytes."""
    assert [(file, chunk) for file, chunk, _ in found] == [
        (file, chunk) for file, plan in expected for chunk in plan
    ]
    for file, chunk, stored in found:
        assert stored.to_pybytes() == file.stored(chunk)


def read_ahead_threads():
    return [t for t in threading.enumerate() if t.name == "arrow-shuffle-read-ahead"]


# One reader --------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_ahead", [True, False])
def test_reads_are_in_file_order_and_deliver_the_bytes_of_each_chunk(storage, sources, read_ahead):
    plans = [(one, one.plan(1, 7)) for one in sources]
    with ReadScheduler(read_ahead=read_ahead).add_reader(plans) as reader:
        check(list(reader), *plans)
    assert [path for path, _ in storage.rounds] == sorted(path for path, _ in storage.rounds)
    for one in sources:
        of_file = [r for path, ranges in storage.rounds if path == one.path for r in ranges]
        assert of_file == sorted(of_file)


def test_neighbours_are_read_together_up_to_a_bound(storage, source):
    plan = source.plan()
    whole = plan[-1].offset + plan[-1].length - plan[0].offset
    list(ReadScheduler().fetch(source, plan))
    assert storage.ranges == [(plan[0].offset, whole)]

    storage.rounds.clear()
    bound = 3 * max(chunk.length for chunk in plan)
    list(ReadScheduler(max_round_bytes=bound, read_ahead=False).fetch(source, plan))
    lengths = [length for _, length in storage.ranges]
    assert max(lengths) <= bound
    assert len(lengths) < len(plan)


@pytest.mark.parametrize("gap", [0, 1 << 20])
def test_a_gap_wider_than_allowed_is_not_read(storage, source, gap):
    plan = source.plan(5, 6)
    list(ReadScheduler(max_gap_bytes=gap).fetch(source, plan))
    assert len(storage.ranges) == (len(plan) if gap == 0 else 1)
    assert len(storage.rounds) == 1  # all of a file that fits is asked for at once


def test_a_chunk_larger_than_the_bound_is_read_alone(storage, source):
    plan = source.plan()
    found = list(ReadScheduler(ReadBufferPool(1)).fetch(source, plan))
    assert [chunk for chunk, _ in found] == plan
    assert storage.ranges == [(chunk.offset, chunk.length) for chunk in plan]


def test_nothing_is_read_before_it_is_asked_for(storage, source):
    planned = []

    def files():
        planned.append(source)
        yield source, source.plan()

    with ReadScheduler().add_reader(files()) as reader:
        assert (storage.rounds, planned) == ([], [])
        next(reader)
        assert storage.rounds


@guarantee("bytes in flight")
def test_bytes_in_flight_never_exceed_the_bound(storage, sources):
    plans = [(one, one.plan()) for one in sources]
    bound = 7 * max(chunk.length for _, plan in plans for chunk in plan)
    pool = ReadBufferPool(bound)
    before = allocated()
    most = []
    storage.before = lambda _: most.append(pa.total_allocated_bytes() - before)
    with ReadScheduler(pool).add_reader(plans) as reader:
        while next(reader, None):
            most.append(pa.total_allocated_bytes() - before)
    assert 0 < pool.peak_bytes <= bound
    # Beside what waits, the range is there whose last chunk the loop holds; sizes are rounded up.
    assert max(most) <= 2 * bound + 10_000
    assert (pool.used_bytes, allocated()) == (0, before)


def test_reading_goes_ahead_of_the_consumer_and_stops_when_its_share_is_full(storage, source):
    plan = source.plan()
    length = max(chunk.length for chunk in plan)
    pool = ReadBufferPool(8 * length)
    with ReadScheduler(pool, max_round_bytes=length, max_gap_bytes=0).add_reader(
        [(source, plan)]
    ) as reader:
        next(reader)
        wait_until(lambda: not read_ahead_threads())
        ahead = len(storage.rounds) - 1
        assert 4 <= ahead <= 8
        assert pool.used_bytes <= 8 * length
        check([*reader], (source, plan[1:]))


def test_planning_is_done_ahead_too_and_its_error_comes_in_its_place(sources):
    first, second, _ = sources

    def files():
        yield first, first.plan()
        yield second, second.plan()
        msg = "the third index is damaged"
        raise CorruptShuffleError(msg)

    found = []
    with ReadScheduler().add_reader(files()) as reader:
        with pytest.raises(CorruptShuffleError, match="third index"):
            found.extend(iter(reader.__next__, None))
        with pytest.raises(CorruptShuffleError, match="third index"):
            next(reader)


@guarantee("nothing outlives its owner")
def test_a_consumer_that_stops_early_leaves_nothing_open(storage, source):
    handles, memory = len(open_files()), allocated()
    scheduler = ReadScheduler()
    fetched = scheduler.fetch(source, source.plan())
    next(fetched)
    fetched.close()
    del fetched
    wait_until(lambda: not read_ahead_threads())
    assert (len(open_files()), allocated()) == (handles, memory)
    assert (scheduler.pool.used_bytes, sum(storage.open.values())) == (0, 0)


def test_an_error_surfaces_and_leaves_nothing_open(storage, source):
    data = storage._root / source.path
    data.write_bytes(source.content[:-2_000])
    handles, memory = len(open_files()), allocated()
    scheduler = ReadScheduler()
    message = r"truncated or replaced.*wanted for regions 0 to 2 of map task 3, attempt 1"
    with pytest.raises(CorruptShuffleError, match=message):
        list(scheduler.fetch(source, source.plan()))
    data.unlink()
    with pytest.raises(CorruptShuffleError, match="not there"):
        list(scheduler.fetch(source, source.plan()))
    assert (len(open_files()), allocated()) == (handles, memory)
    assert scheduler.pool.used_bytes == 0


def test_a_read_that_was_interrupted_is_not_skipped(storage, source):
    def interrupt(_):
        raise KeyboardInterrupt

    storage.before = interrupt
    with ReadScheduler(read_ahead=False).add_reader([(source, source.plan())]) as reader:
        with pytest.raises(KeyboardInterrupt):
            next(reader)
        storage.before = lambda _: None
        with pytest.raises(ClosedError, match="interrupted"):
            next(reader)


# Several readers ---------------------------------------------------------------------------------


def queue_at(order, offset, *, ready=0, next_bytes=10):
    queue = ReadQueue([])
    queue.position, queue.ready_bytes, queue.next_bytes = (order, offset), ready, next_bytes
    return queue


def test_readers_are_served_by_queue_not_empty_then_file_then_offset():
    queues = {
        "third": queue_at(1, 500),
        "first": queue_at(0, 900),
        "fourth": queue_at(0, 0, ready=10),
        "second": queue_at(1, 100),
        "fifth": queue_at(0, 5, ready=10),
    }
    order = []
    while queue := next_to_serve(list(queues.values()), 100):
        name = next(name for name, one in queues.items() if one is queue)
        order.append(name)
        queue.ready_bytes = 100
    assert order == ["first", "second", "third", "fourth", "fifth"]


@pytest.mark.parametrize(
    "change",
    [
        {"is_served": True},
        {"is_closed": True},
        {"error": ClosedError("gone")},
        {"ready_bytes": 51},
        {"next_bytes": 101},
        {"next_bytes": 0},
    ],
    ids=str,
)
def test_who_is_not_served(change):
    queue = queue_at(0, 0)
    assert next_to_serve([queue], 100) is queue
    for name, value in change.items():
        setattr(queue, name, value)
    assert next_to_serve([queue], 100) is None


def test_the_thread_reads_for_those_that_have_begun_in_the_order_of_the_files(storage, sources):
    plans = [one.plan() for one in sources]
    length = max(chunk.length for plan in plans for chunk in plan)
    pool = ReadBufferPool(3 * 5 * length)
    scheduler = ReadScheduler(pool, max_round_bytes=length, max_gap_bytes=0, read_ahead=False)
    readers = [
        scheduler.add_reader([(one, plan)]) for one, plan in zip(sources, plans, strict=True)
    ]
    for reader in reversed(readers[:2]):
        next(reader)
    storage.rounds.clear()
    scheduler._read_ahead()  # what the thread does
    paths = [path for path, _ in storage.rounds]
    first, second, _ = (one.path for one in sources)
    # Both are empty: the first file is first. Then the second is empty, then offsets decide.
    assert paths[:2] == [first, second]
    assert set(paths) == {first, second}
    assert paths[2:] == sorted(paths[2:])
    for reader in readers:
        assert reader.queue.ready_bytes <= pool.average_bytes
        reader.close()
    assert pool.used_bytes == 0


def test_files_open_for_the_first_reader_and_close_after_the_last(storage, source):
    scheduler = ReadScheduler(max_round_bytes=1, read_ahead=False)
    a, b = (scheduler.add_reader([(source, source.plan())]) for _ in range(2))
    assert storage.open == {}
    next(a)
    next(b)
    assert storage.open == {source.path: 1}
    list(a)
    assert storage.open == {source.path: 1}
    next(b)
    b.close()
    assert storage.open == {source.path: 0}
    a.close()


@guarantee("few files")
def test_few_files_are_open_whatever_is_read(storage):
    sources = [Source(storage, number) for number in range(20)]
    scheduler = ReadScheduler(max_round_bytes=1)
    readers = [scheduler.add_reader([(one, one.plan())]) for one in sources]
    for found in itertools.zip_longest(*readers):
        assert None not in found
    assert storage.most_open <= 10
    for reader in readers:
        reader.close()
    assert set(storage.open.values()) == {0}


def test_one_readers_error_fails_that_reader_only(storage, sources):
    good, bad, _ = sources

    storage.before = failing(bad)
    scheduler = ReadScheduler()
    with (
        scheduler.add_reader([(good, good.plan())]) as reader,
        scheduler.add_reader([(bad, bad.plan())]) as broken,
    ):
        item = next(reader)
        with pytest.raises(StorageError, match="Input/output error"):
            next(broken)
        check([item, *reader], (good, good.plan()))
    assert scheduler.pool.used_bytes == 0


def test_a_failure_of_the_pool_fails_all(sources):
    pool = ReadBufferPool()
    schedulers = [ReadScheduler(pool) for _ in range(2)]
    readers = [
        s.add_reader([(one, one.plan())]) for s, one in zip(schedulers, sources, strict=False)
    ]
    for reader in readers:
        next(reader)
    pool.destroy("the task was cancelled")
    for reader in readers:
        with pytest.raises(ClosedError, match="the task was cancelled"):
            next(reader)
        reader.close()
    assert pool.used_bytes == 0


def test_who_starves_takes_back_at_once_what_another_has_fetched(sources, monkeypatch):
    plans = [(one, one.plan()) for one in sources]
    pool = ReadBufferPool(sum(chunk.length for chunk in plans[0][1]) + 500)
    monkeypatch.setattr(pool, "_wait", lambda _: pytest.fail("waits for bytes that are there"))
    scheduler = ReadScheduler(pool, max_gap_bytes=0, read_ahead=False)
    found = [[], []]
    with scheduler.add_reader(plans[:1]) as first:
        found[0].append(next(first))  # the pool is full of the rest
        with scheduler.add_reader(plans[1:2]) as second:
            found[1] += second
        found[0] += first
    check(found[0], plans[0])
    check(found[1], plans[1])


@pytest.mark.parametrize("whole", [True, False], ids=["scheduler", "reader"])
def test_release_while_reading_surfaces_and_loses_no_buffer(storage, source, whole):
    is_reading, may_go_on = threading.Event(), threading.Event()

    def wait(_):
        is_reading.set()
        assert may_go_on.wait(10)

    storage.before = wait
    scheduler = ReadScheduler()
    memory = allocated()
    reader = scheduler.add_reader([(source, source.plan())])
    thread, found = in_thread(next, reader)
    assert is_reading.wait(10)
    assert scheduler.pool.used_bytes > 0
    (scheduler.release if whole else reader.close)()
    may_go_on.set()
    thread.join(10)
    assert isinstance(found.pop(), ClosedError)
    with pytest.raises(ClosedError, match="closed while it was read"):
        next(reader)
    assert (scheduler.pool.used_bytes, allocated()) == (0, memory)
    assert set(storage.open.values()) == {0}


PLAN_PARTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, N - 1), st.integers(1, N)), min_size=1, max_size=5
)


@pytest.fixture(scope="module")
def shared_sources(tmp_path_factory):
    storage = RecordingStorage(str(tmp_path_factory.mktemp("shared")))
    return [Source(storage, number) for number in range(3)]


@settings(max_examples=150)
@given(
    parts=st.lists(PLAN_PARTS, min_size=1, max_size=6),
    chunks_in_pool=st.integers(1, 20),
    chunks_in_round=st.integers(1, 5),
    read_ahead=st.booleans(),
    order=st.randoms(use_true_random=False),
    shared=st.booleans(),
)
def test_no_consumption_order_deadlocks_and_each_reader_gets_its_chunks(
    shared_sources, parts, chunks_in_pool, chunks_in_round, read_ahead, order, shared
):
    plans = [
        [
            (shared_sources[number], shared_sources[number].plan(first, min(first + count, N)))
            for number, first, count in part
        ]
        for part in parts
    ]
    length = max(c.length for plan in plans for _, chunks in plan for c in chunks)
    pool = ReadBufferPool(chunks_in_pool * length, timeout_seconds=5)
    schedulers = [
        ReadScheduler(pool, max_round_bytes=chunks_in_round * length, read_ahead=read_ahead)
        for _ in range(2)
    ]
    readers = [schedulers[i % 2 if shared else 0].add_reader(plan) for i, plan in enumerate(plans)]
    found = [[] for _ in plans]
    open_readers = set(range(len(plans)))
    while open_readers:
        i = order.choice(sorted(open_readers))
        for _ in range(order.randrange(1, 8)):
            item = next(readers[i], None)
            if item is None:
                open_readers.discard(i)
                readers[i].close()
                break
            found[i].append(item)
    for items, plan in zip(found, plans, strict=True):
        check(items, *plan)
    assert pool.peak_bytes <= pool.max_bytes
    assert pool.used_bytes == 0


def test_many_threads_read_from_one_scheduler(sources):
    length = max(chunk.length for one in sources for chunk in one.plan())
    pool = ReadBufferPool(6 * length, timeout_seconds=20)
    scheduler = ReadScheduler(pool, max_round_bytes=2 * length)
    plans = [[(one, one.plan(first, N)) for one in sources] for first in range(8)]

    def read(plan):
        with scheduler.add_reader(plan) as reader:
            return list(reader)

    running = [in_thread(read, plan) for plan in plans]
    for (thread, found), plan in zip(running, plans, strict=True):
        thread.join(60)
        assert not thread.is_alive()
        check(found[0], *plan)
    assert pool.used_bytes == 0
    assert pool.peak_bytes <= pool.max_bytes


# The queue ---------------------------------------------------------------------------------------


def chunks_at(*offsets, length=10):
    return [ChunkRead(0, i, 0, 1, offset, length) for i, offset in enumerate(offsets)]


def unwritten_source(order, max_requests=1):
    """A source to plan for, of a storage with so many requests at once."""
    source = object.__new__(Source)
    source.order, source.storage = order, PosixStorage("/")
    source.storage.max_requests = max_requests
    return source


def test_what_was_taken_back_is_planned_again_in_its_place():
    a, b = unwritten_source(0), unwritten_source(1)
    plan = [(a, chunks_at(0, 10, 20)), (b, chunks_at(0, 10))]
    queue = ReadQueue(plan)
    [(file, reads)] = queue.plan(30, max_gap_bytes=0)
    assert (file, [len(r.chunks) for r in reads]) == (a, [3])
    queue.add(file, reads[0], [pa.py_buffer(bytes(30))])
    queue.look_ahead()
    assert queue.position == (1, 0)
    assert queue.take()[0][1].offset == 0
    assert queue.take_back() == 30
    assert (queue.ready_bytes, queue.position, queue.next_bytes) == (0, (0, 10), 10)
    assert queue.take() is None
    [(file, reads)] = queue.plan(20, max_gap_bytes=0)
    assert (file, [c.offset for r in reads for c in r.chunks]) == (a, [10, 20])
    [(file, reads)] = queue.plan(1_000, max_gap_bytes=0)
    assert (file, [c.offset for r in reads for c in r.chunks]) == (b, [0, 10])
    with pytest.raises(StopIteration):
        queue.plan(1_000, max_gap_bytes=0)


@given(
    lengths=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), min_size=1, max_size=30),
    max_bytes=st.integers(1, 100),
    max_gap=st.integers(0, 20),
    max_requests=st.integers(1, MAX_OPEN_FILES + 1),
)
def test_a_round_keeps_to_its_bytes_and_takes_what_it_can(
    lengths, max_bytes, max_gap, max_requests
):
    offset, chunks = 0, []
    for number, (gap, length) in enumerate(lengths):
        offset += gap
        first = length // 3  # of each third chunk its ends alone are wanted
        pieces = ((offset, first), (offset + 2 * first, length - 2 * first))
        is_cut = number % 3 == 2 and first
        cut = {"pieces": pieces} if is_cut else {}
        chunks.append(ChunkRead(0, number, 0, 1, offset, length, **cut))
        offset += length
    files = [unwritten_source(number, max_requests) for number in range(MAX_OPEN_FILES + 2)]
    queue = ReadQueue([(file, chunks) for file in files])
    found = []
    while len(found) < len(files) * len(chunks):
        planned = queue.plan(max_bytes, max_gap_bytes=max_gap)
        taken = [(file, chunk) for file, rs in planned for r in rs for chunk in r.chunks]
        num_bytes = sum(read.num_bytes for _, reads in planned for read in reads)
        assert num_bytes <= max_bytes or len(taken) == 1
        assert len(planned) <= max(max_requests, MAX_OPEN_FILES)
        found += taken
    assert found == [(file, chunk) for file in files for chunk in chunks]


def test_files_are_read_at_once_where_each_costs_a_round_trip(storage, sources):
    storage.max_requests = 3
    together = threading.Barrier(3, timeout=30)
    storage.before = lambda _: together.wait()
    scheduler = ReadScheduler(read_ahead=False)
    plans = [(one, one.plan(1, 3)) for one in sources]
    with scheduler.add_reader(plans) as reader:
        check(list(reader), *plans)
    assert storage.most_open == 3
    assert not any(storage.open.values())


def test_an_error_in_one_of_several_files_read_at_once_surfaces(storage, sources):
    storage.max_requests = 3

    storage.before = failing(sources[1])
    scheduler = ReadScheduler(read_ahead=False)
    with (
        scheduler.add_reader([(one, one.plan()) for one in sources]) as reader,
        pytest.raises(StorageError, match="Input/output error"),
    ):
        list(reader)
    assert not any(storage.open.values())
    assert scheduler.pool.used_bytes == 0
