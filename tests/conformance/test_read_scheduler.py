"""CONFORMANCE, group "Read scheduler and pool", as far as one reader goes."""

import os

import pyarrow as pa
import pytest

from arrow_format.errors import CorruptShuffleError
from arrow_format.options import WriteOptions
from arrow_format.partitioned_file import PartitionedFileReader
from arrow_format.read_plan import plan_chunks
from arrow_format.read_scheduler import ReadScheduler
from arrow_format.storage import PosixStorage
from tests.unit.small_shuffles import write_file

N = 10


class RecordingStorage(PosixStorage):
    """Remembers what was read, round by round."""

    def __init__(self, root):
        super().__init__(root)
        self.rounds = []

    def get_ranges(self, path, ranges):
        if path.endswith(".data"):
            self.rounds.append(list(ranges))
        return super().get_ranges(path, ranges)


@pytest.fixture
def storage(tmp_path):
    return RecordingStorage(str(tmp_path))


@pytest.fixture
def written(storage):
    regions = [([s for s in range(N) for _ in range(30)], first) for first in (0, 3, 0)]
    file, _ = write_file(
        storage, regions, N, options=WriteOptions(sync=False, codec="none", chunk_bytes=1)
    )
    return file, PartitionedFileReader(storage, file).regions


def open_files():
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_reads_are_in_file_order_and_deliver_the_bytes_of_each_chunk(storage, written):
    file, regions = written
    data = (storage._root / file.data_path).read_bytes()
    plan = list(plan_chunks(regions, 1, 7, N))
    found = list(ReadScheduler(storage).fetch(file.data_path, plan))
    assert [chunk for chunk, _ in found] == plan
    for chunk, stored in found:
        assert bytes(stored) == data[chunk.offset : chunk.offset + chunk.length]
    ranges = [one for ranges in storage.rounds for one in ranges]
    assert ranges == sorted(ranges)


def test_neighbours_are_read_together_up_to_a_bound(storage, written):
    file, regions = written
    plan = list(plan_chunks(regions, 0, N, N))
    whole = plan[-1].offset + plan[-1].length - plan[0].offset
    list(ReadScheduler(storage).fetch(file.data_path, plan))
    assert storage.rounds == [[(plan[0].offset, whole)]]

    storage.rounds.clear()
    bound = 3 * max(chunk.length for chunk in plan)
    list(ReadScheduler(storage, max_bytes=bound).fetch(file.data_path, plan))
    lengths = [length for ranges in storage.rounds for _, length in ranges]
    assert max(lengths) <= bound
    assert len(lengths) < len(plan)


@pytest.mark.parametrize("gap", [0, 1 << 20])
def test_a_gap_wider_than_allowed_is_not_read(storage, written, gap):
    file, regions = written
    plan = list(plan_chunks(regions, 5, 6, N))
    list(ReadScheduler(storage, max_gap_bytes=gap).fetch(file.data_path, plan))
    (ranges,) = storage.rounds
    assert len(ranges) == (3 if gap == 0 else 1)


def test_one_round_opens_the_file_once_and_keeps_to_the_bound(storage, written):
    file, regions = written
    plan = list(plan_chunks(regions, 0, N, N))
    bound = 2 * max(chunk.length for chunk in plan)
    scheduler = ReadScheduler(storage, max_bytes=bound, max_gap_bytes=0)
    before = pa.total_allocated_bytes()
    for _ in scheduler.fetch(file.data_path, plan):
        assert pa.total_allocated_bytes() - before <= bound + 1_000
    for ranges in storage.rounds:
        assert sum(length for _, length in ranges) <= bound


def test_a_chunk_larger_than_the_bound_is_read_alone(storage, written):
    file, regions = written
    plan = list(plan_chunks(regions, 0, N, N))
    found = list(ReadScheduler(storage, max_bytes=1).fetch(file.data_path, plan))
    assert [chunk for chunk, _ in found] == plan
    assert storage.rounds == [[(chunk.offset, chunk.length)] for chunk in plan]


def test_nothing_is_read_before_it_is_asked_for(storage, written):
    file, regions = written
    plan = list(plan_chunks(regions, 0, N, N))
    fetched = ReadScheduler(storage, max_bytes=1).fetch(file.data_path, plan)
    assert storage.rounds == []
    next(fetched)
    assert len(storage.rounds) == 1


def test_a_consumer_that_stops_early_leaves_nothing_open(storage, written):
    file, regions = written
    files, memory = open_files(), pa.total_allocated_bytes()
    fetched = ReadScheduler(storage).fetch(file.data_path, plan_chunks(regions, 0, N, N))
    next(fetched)
    assert open_files() == files
    fetched.close()
    del fetched
    assert pa.total_allocated_bytes() == memory


def test_an_error_surfaces_and_leaves_nothing_open(storage, written):
    file, regions = written
    data = storage._root / file.data_path
    data.write_bytes(data.read_bytes()[:-2_000])
    files, memory = open_files(), pa.total_allocated_bytes()
    with pytest.raises(CorruptShuffleError, match="truncated or replaced"):
        list(ReadScheduler(storage).fetch(file.data_path, plan_chunks(regions, 0, N, N)))
    data.unlink()
    with pytest.raises(CorruptShuffleError, match="not there"):
        list(ReadScheduler(storage).fetch(file.data_path, plan_chunks(regions, 0, N, N)))
    assert (open_files(), pa.total_allocated_bytes()) == (files, memory)
