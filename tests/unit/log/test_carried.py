"""What a task carries of a version: the same rows, without a look at the log."""

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from arrow_format import ColumnPartitioner, open_shuffle, open_shuffle_changes, rename_columns
from arrow_format import write_shuffle as write
from arrow_format.errors import ShuffleNotFoundError
from arrow_format.log import carried
from arrow_format.log.carried import Carried
from arrow_format.log.entry import decode_entry, encode_entry
from arrow_format.log.names import entry_path
from arrow_format.log.outputs import MapOutputs
from arrow_format.log.snapshot import Snapshot
from tests.support.exhaustive import examples
from tests.support.small_shuffles import FAST
from tests.unit.log.test_outputs import map_outputs

N = 12
ROWS = pa.table({"k": np.arange(600) % 50, "v": np.arange(600)})


def arrived(shuffle):
    return pickle.loads(pickle.dumps(shuffle))


@pytest.fixture
def path(tmp_path):
    for start in range(0, 600, 200):
        write(
            ROWS.slice(start, 200), tmp_path, keys="k", num_subpartitions=N, options=FAST,
            mode="append",
        )  # fmt: skip
    return tmp_path


@pytest.fixture
def by_name(monkeypatch):
    monkeypatch.setattr(carried, "CARRIED_BYTES", 0)


def without_log(path):
    """Move the log away: who asks for anything of it fails."""
    (path / "commit_log").rename(path / "elsewhere")


@pytest.mark.parametrize(
    "of",
    [
        open_shuffle,
        lambda path: open_shuffle(path, 2),
        lambda path: open_shuffle(path).where("v < 250 and k in (3, 4)"),
        lambda path: open_shuffle(path).checking(),
        lambda path: open_shuffle_changes(path, 1),
    ],
    ids=["newest", "older", "filtered", "checking", "changes"],
)
def test_the_rows_are_the_same_and_the_log_is_not_asked(path, of):
    shuffle = of(path)
    rows = shuffle.read(with_subpartition=True).read_all()
    sent = pickle.dumps(shuffle)
    without_log(path)
    with pytest.raises(ShuffleNotFoundError):
        open_shuffle(path)
    found = pickle.loads(sent)
    assert found.read(with_subpartition=True).read_all() == rows
    assert (found.version, found.span, found.num_rows) == (
        shuffle.version, shuffle.span, shuffle.num_rows,
    )  # fmt: skip
    assert found.subpartition_rows == shuffle.subpartition_rows
    assert str(found.filter) == str(shuffle.filter)
    assert arrived(found).read().read_all() == found.read().read_all(), "a task may send it on"


def test_names_of_columns_are_those_of_the_version(path):
    before = open_shuffle(path)
    rename_columns(path, {"v": "w"})
    rows = open_shuffle(path).read().read_all()
    assert rows.column_names == ["k", "w"]
    sent = pickle.dumps(open_shuffle(path)), pickle.dumps(before)
    without_log(path)
    assert pickle.loads(sent[0]).read().read_all() == rows
    assert pickle.loads(sent[1]).read().read_all().column_names == ["k", "v"]


def test_tasks_of_one_process_share_what_they_read_of_indexes(path):
    sent = pickle.dumps(open_shuffle(path))
    first, second = pickle.loads(sent), pickle.loads(sent)
    first.read().read_all()
    assert first is second


def test_a_large_version_goes_by_name(path, by_name):
    shuffle = open_shuffle(path)
    sent = pickle.dumps(shuffle)
    assert len(sent) < 2_000
    assert pickle.loads(sent).read().read_all() == shuffle.read().read_all()
    without_log(path)
    with pytest.raises(ShuffleNotFoundError, match="version 3 is not there"):
        pickle.loads(sent)


def test_what_is_carried_is_at_most_64_kib(path):
    snapshot = open_shuffle(path).snapshot
    assert len(Carried.of(snapshot).data) < 3_000
    (output, *_) = snapshot.map_outputs
    totals = np.arange(40_000) ** 2 % 1_000_003
    assert Carried.of(Snapshot(snapshot.newest, snapshot.map_outputs, (totals, totals))) is None
    many = MapOutputs.of([output] * 10_000)
    assert Carried.of(Snapshot(snapshot.newest, many)) is None


class TestParts:
    def test_each_task_has_what_its_ranges_need(self, path, monkeypatch):
        path = path / "p"
        for first in range(0, N, 3):  # each file has rows of a few subpartitions
            rows = pa.table({"p": np.arange(60, dtype=np.int32) % 3 + first, "v": np.arange(60)})
            write(
                rows, path, partitioner=ColumnPartitioner("p"), num_subpartitions=N, options=FAST,
                mode="append",
            )  # fmt: skip
        shuffle = open_shuffle(path)
        files = sum(len(output.files) for output in shuffle.map_outputs)
        monkeypatch.setattr(carried, "CARRIED_BYTES", len(Carried.of(shuffle.snapshot).data) - 1)
        shuffle = open_shuffle(path)
        tasks = [((0, 2), (3, 4)), ((5, 6),), (), ((7, N),)]
        parts = shuffle.for_tasks(tasks)
        whole = shuffle.read(with_subpartition=True).read_all()
        sent = [pickle.dumps(part) for part in parts]
        without_log(path)
        for ranges, bytes_ in zip(tasks, sent, strict=True):
            part = pickle.loads(bytes_)
            asked = [number for first, end in ranges for number in range(first, end)]
            is_asked = np.isin(whole["_subpartition"].to_numpy(), asked)
            wanted = whole.filter(pa.array(is_asked))
            assert part.read(asked, with_subpartition=True).read_all() == wanted
            assert sum(part.subpartition_rows.to_pylist()) == len(wanted)
            assert sum(len(output.files) for output in part.map_outputs) < files

    def test_a_filter_and_a_check_go_with_it(self, path, monkeypatch):
        monkeypatch.setattr(carried, "CARRIED_BYTES", 1)
        shuffle = open_shuffle(path).checking().where("v < 250")
        (part,) = shuffle.for_tasks([((2, 5),)])
        assert part is not shuffle
        assert part.snapshot.ranges == ((2, 5),)
        found = arrived(part)
        assert found.snapshot.ranges == ((2, 5),)
        assert str(found.filter) == "v < 250"
        assert found.read(range(2, 5)).read_all() == shuffle.read(range(2, 5)).read_all()

    def test_a_file_of_more_subpartitions_has_rows_of_any(self, tmp_path, monkeypatch):
        rows = pa.table({"p": pa.array([6, 7, 7], pa.int32())})
        write(rows, tmp_path, partitioner=ColumnPartitioner("p"), num_subpartitions=8, options=FAST)
        file = tmp_path / entry_path(1)
        entry = decode_entry(file.read_bytes())
        shape = structs.replace(entry.shape, num_subpartitions=4)
        state = structs.replace(entry.state, shape=shape)
        file.write_bytes(encode_entry(structs.replace(entry, state=state)))
        monkeypatch.setattr(carried, "CARRIED_BYTES", 0)
        parts = open_shuffle(tmp_path).for_tasks([((2, 3),), ((3, 4),), ((0, 2),)])
        found = [
            part.read(at).read_all()["p"].to_pylist() for at, part in ((2, parts[0]), (3, parts[1]))
        ]
        assert found == [[6], [7, 7]]
        assert [sum(part.subpartition_rows.to_pylist()) for part in parts] == [1, 2, 0]

    def test_a_small_version_goes_whole(self, path):
        shuffle = open_shuffle(path)
        assert all(part is shuffle for part in shuffle.for_tasks([((0, 1),), ((1, N),)]))

    def test_where_each_would_repeat_nearly_all_it_goes_by_name(self, path, monkeypatch, by_name):
        monkeypatch.setattr(carried, "ALL_CARRIED_BYTES", 3 * N * carried._FILE_BYTES)
        shuffle = open_shuffle(path)
        one_each = [((number, number + 1),) for number in range(N)]
        assert all(part is shuffle for part in shuffle.for_tasks(one_each))
        assert shuffle.for_tasks(one_each[:2])[0] is not shuffle

    def test_where_parts_would_take_long_to_be_made_it_goes_by_name(
        self, path, monkeypatch, by_name
    ):
        shuffle = open_shuffle(path)
        looked_at = shuffle.snapshot.map_outputs.num_files + N
        monkeypatch.setattr(carried, "MAX_LOOKED_AT", 3 * looked_at)
        one_each = [((number, number + 1),) for number in range(4)]
        assert all(part is shuffle for part in shuffle.for_tasks(one_each))
        assert all(part is not shuffle for part in shuffle.for_tasks(one_each[:3]))


@pytest.mark.slow
@settings(max_examples=examples(200, 200))
@given(
    map_outputs(), st.lists(st.integers(0, 10), max_size=8, unique=True), st.sampled_from([0, 99])
)
def test_map_outputs_of_ranges_are_those_with_a_file_in_one(outputs, bounds, n):
    ends = sorted(bounds)[: len(bounds) // 2 * 2]
    ranges = tuple(zip(ends[::2], ends[1::2], strict=True))
    wanted = [
        output
        for output in outputs
        if any(
            file.num_subpartitions > n
            or max(first, file.first_subpartition) < min(end, file.end_subpartition)
            for file in output.files
            for first, end in ranges
        )
    ]
    assert list(MapOutputs.of(outputs).of_ranges(ranges, n)) == wanted
