"""What a read with a filter opens and reads, and what it says of it."""

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrow_format import (
    ColumnPartitioner,
    RangePartitioner,
    WriteOptions,
    open_shuffle,
)
from arrow_format.errors import OptionError, SchemaError
from tests.support.guarantees import guarantee
from tests.support.recording_storage import RecordingStorage
from tests.support.small_shuffles import shuffle_of, write_rows

N = 8
DAYS = 5
ROWS = 400
OPTIONS = WriteOptions(sync=False, chunk_bytes=1024, statistics="all")


def day(number):
    """Rows of one day: keys 0 to 39, and numbers that ascend over all days."""
    return pa.record_batch(
        {
            "k": pa.array([i % 40 for i in range(ROWS)], pa.int64()),
            "day": pa.array([number] * ROWS, pa.int32()),
            "v": pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64()),
            "s": [f"text {i}" for i in range(ROWS)],
        }
    )


@pytest.fixture(scope="module", params=["zstd", "none"])
def path(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("days") / "shuffle"
    for number in range(DAYS):
        write_rows(
            path,
            [day(number)],
            "k",
            n=N,
            mode="append",
            options=WriteOptions(
                sync=False, codec=request.param, chunk_bytes=1024, statistics="all"
            ),
        )
    return path


@pytest.fixture
def storage(path):
    return RecordingStorage(str(path))


def steps(explanation):
    return {step.what: (step.kept, step.total) for step in explanation.steps}


def test_files_that_cannot_match_are_not_opened(storage):
    shuffle = open_shuffle(storage)
    storage.others.clear()
    rows = shuffle.read(filter="day = 3").read_all()
    assert rows.num_rows == ROWS
    assert len({path for path, _ in storage.rounds}) == 1
    assert len(storage.others) == 1  # one index


def test_a_second_lookup_reads_no_index(storage):
    shuffle = open_shuffle(storage)
    assert shuffle.lookup({"k": 17}).read_all().num_rows == DAYS * ROWS // 40
    storage.others.clear()
    assert shuffle.lookup({"k": [3, 17]}).read_all().num_rows == 2 * DAYS * ROWS // 40
    assert storage.others == []


def test_one_subpartition_is_read_without_the_totals_of_all(storage):
    shuffle = open_shuffle(storage)
    whole = shuffle.read(with_subpartition=True).read_all()
    for subpartition in (0, N - 1):
        expected = whole.filter(pc.field("_subpartition") == subpartition).drop(["_subpartition"])
        alone = open_shuffle(storage)
        assert alone.subpartition(subpartition).read_all().equals(expected)
        assert alone._reader._known_totals is None
    alone.lookup({"k": 17}).read_all()
    assert alone._reader._known_totals is None


@guarantee("lookups")
def test_a_lookup_of_more_keys_than_ranges_are_planned(tmp_path):
    n = 1_000
    table = pa.table({"k": np.arange(4_000)})
    options = WriteOptions(sync=False, chunk_bytes=1)
    shuffle = shuffle_of(tmp_path, table, "k", n=n, options=options)
    keys = np.arange(0, 4_000, 20)
    found = shuffle.lookup({"k": keys}).read_all()["k"].to_pylist()
    assert sorted(found) == keys.tolist()
    some = range(0, n, 10)
    rows = shuffle.subpartition_rows.to_numpy()[some.start : some.stop : some.step].sum()
    assert shuffle.read(some).read_all().num_rows == rows


def test_many_keys_that_are_close_together_do_not_read_all(tmp_path):
    n = 1_000
    table = pa.table({"p": np.arange(4_000) % n})
    options = WriteOptions(sync=False, chunk_bytes=1)
    write_rows(tmp_path, table, n=n, partitioner=ColumnPartitioner("p"), options=options)
    wanted = [*range(0, 160, 2), n - 1]
    shuffle = open_shuffle(tmp_path).where(f"p IN ({', '.join(map(str, wanted))})")
    kept, total = steps(shuffle.explain())["chunks"]
    assert kept <= 170 < total == n
    assert sorted(shuffle.read().read_all()["p"].to_pylist()) == sorted(wanted * 4)


def test_a_lookup_reads_the_subpartition_of_its_key_only(storage):
    shuffle = open_shuffle(storage)
    shuffle.lookup({"k": 17}).read_all()
    of_key = storage.ranges.copy()
    storage.rounds.clear()
    assert shuffle.subpartition(shuffle.subpartition_of(k=17)).read_all().num_rows
    assert sum(length for _, length in of_key) <= sum(length for _, length in storage.ranges)


@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_chunks_that_cannot_match_are_not_read(tmp_path, codec):
    numbers = pa.array(range(20_000))
    texts = [f"{number:0400}" for number in range(20_000)]  # 8 chunks of a MiB
    rows = pa.table({"k": pa.repeat(1, 20_000), "v": numbers, "s": texts})
    options = WriteOptions(sync=False, codec=codec)
    write_rows(tmp_path, rows, "k", n=2, sort_by="v", options=options)
    storage = RecordingStorage(str(tmp_path))
    shuffle = open_shuffle(storage)
    found = shuffle.read(filter=pc.field("v") < 20).read_all()
    assert found["v"].to_pylist() == list(range(20))
    assert 4 * sum(length for _, length in storage.ranges) < shuffle.num_bytes
    kept, total = steps(shuffle.explain(filter="v < 20"))["chunks"]
    assert kept == 1
    assert total >= 4


@pytest.mark.parametrize("filter_", [None, "k >= 0", "k < 39"])
def test_a_few_columns_do_not_pin_their_chunk(tmp_path, filter_):
    rows = pa.table({f"c{i}": range(20_000) for i in range(30)} | {"k": pa.repeat(7, 20_000)})
    options = WriteOptions(sync=False, codec="none")
    write_rows(tmp_path, rows, "k", n=1, options=options)
    (run, *_) = open_shuffle(tmp_path).where(filter_).reader(0, 1, ["c3"])
    buffer = run.batch.column(0).buffers()[1]
    while buffer.parent is not None:
        buffer = buffer.parent
    assert buffer.size < 2 * run.batch.nbytes


def test_ranges_are_planned_by_the_filter(tmp_path):
    partitioner = RangePartitioner("v", bounds=[100, 200, 300])
    shuffle = shuffle_of(tmp_path, [day(0)], n=4, partitioner=partitioner, options=OPTIONS)
    filtered = shuffle.where("v BETWEEN 120 AND 150")
    assert filtered.candidates() == [1]
    assert filtered.candidates([0, 2]) == []
    assert filtered.read([0, 2]).read_all().num_rows == 0
    assert filtered.read().read_all()["v"].to_pylist() == list(range(120, 151))


def test_explain_says_what_is_kept_and_skipped(storage):
    shuffle = open_shuffle(storage)
    found = shuffle.explain(filter="day = 3 AND k = 17", columns=["v"])
    kept = steps(found)
    assert kept["subpartitions"] == (1, N)
    assert kept["versions"] == (1, DAYS)
    assert kept["files"] == (1, DAYS)
    assert kept["regions"] == (1, DAYS)
    assert kept["bytes"][0] < kept["bytes"][1] == shuffle.num_bytes
    assert str(found).splitlines()[:3] == [
        "where day = 3 AND k = 17", "1 of 4 columns", "decoded first: k, day",
    ]  # fmt: skip
    whole = steps(shuffle.explain())
    assert all(kept == total for what, (kept, total) in whole.items() if what != "bytes")


def test_a_filter_that_nothing_matches_reads_nothing(storage):
    shuffle = open_shuffle(storage)
    storage.others.clear()
    assert shuffle.read(filter="day > 100").read_all().num_rows == 0
    assert storage.rounds == []
    assert storage.others == []
    assert steps(shuffle.explain(filter="false"))["files"][0] == 0


def test_two_filters_are_joined_by_and(path):
    shuffle = open_shuffle(path)
    day = shuffle.where("day = 3 OR day = 4")
    both = day.where("k IN (1, 2, 3)")
    expected = shuffle.read(filter="(day = 3 OR day = 4) AND k IN (1, 2, 3)").read_all()
    assert both.read().read_all().equals(expected)
    assert (
        both.read(filter="k = 2", columns=["day"])
        .read_all()
        .equals(shuffle.read(filter="day IN (3, 4) AND k = 2", columns=["day"]).read_all())
    )
    assert str(both.filter) == "(day IN (3, 4)) AND (k IN (1, 2, 3))"
    assert both.filter == pickle.loads(pickle.dumps(both)).filter
    files = [steps(each.explain())["files"][0] for each in (both, day, shuffle)]
    assert files[0] <= files[1] <= files[2]
    few = both.lookup({"k": 2}).read_all()
    assert few.num_rows == shuffle.read(filter="day IN (3, 4) AND k = 2").read_all().num_rows
    assert day.where("k = 1").where("k = 2").read().read_all().num_rows == 0
    assert day.where(None) is day


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"filter": "nope = 1"}, SchemaError, "column 'nope' is not there"),
        ({"filter": "k = 'x'"}, SchemaError, "the text 'x' it is compared with"),
        ({"filter": "k ="}, OptionError, "line 1, column 3"),
        ({"filter": 5}, OptionError, "filter=5 is int"),
        ({"batch_size": 0}, OptionError, "batch_size=0: expected a whole number of rows, from 1"),
    ],
)
def test_what_cannot_be_asked_for(path, given, error, says):
    with pytest.raises(error, match=says):
        open_shuffle(path).read(**given)
