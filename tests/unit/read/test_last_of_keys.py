"""The last row of each key: chosen before every filter, and obeyed by every way to read."""

import pickle

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrow_shuffle
from arrow_format.epochs.batches import EpochBatches
from arrow_format.epochs.options import Epochs
from arrow_format.errors import OptionError, SchemaError
from arrow_format.keys import hash_passes
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.options import ReadOptions
from arrow_format.read import last_of_keys
from arrow_format.read.version_reader import VersionReader
from arrow_format.storage.local import PosixStorage
from arrow_shuffle import BroadcastPartitioner, RoundRobinPartitioner, WriteOptions
from tests.support.guarantees import guarantee
from tests.support.operations import written
from tests.support.small_shuffles import FAST

N = 4
KEYS = 50


def generation(rev, status, keys=range(KEYS)):
    """Rows of keys, ten that are open to each that is not, unless ``status`` says which."""
    keys = list(keys)
    return pa.table(
        {
            "k": pa.array(keys, pa.int64()),
            "rev": pa.array([rev] * len(keys), pa.int64()),
            "status": [status or ("closed" if key % 10 == 0 else "open") for key in keys],
            "v": pa.array([1000 * rev + key for key in keys], pa.int64()),
        }
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Three generations of each key: all are open in two of them, a tenth closed in the last."""
    path = tmp_path_factory.mktemp("last") / "s"
    shuffle = written(path, generation(1, "open"), keys="k", n=N)
    shuffle.append(generation(3, None), options=FAST)
    shuffle.append(generation(2, "open"), options=FAST)  # late
    return path


@pytest.fixture
def latest(path):
    return arrow_shuffle.open_shuffle(path).latest_by("rev")


OPEN = sorted(3000 + key for key in range(KEYS) if key % 10)
ALL = sorted(3000 + key for key in range(KEYS))


def values(rows):
    return sorted(rows["v"].to_pylist())


@guarantee("latest rows")
def test_a_filter_comes_after_it(tmp_path):
    shuffle = written(tmp_path / "s", generation(1, "open", [1]), keys="k", n=N)
    shuffle.append(generation(2, "closed", [1]), options=FAST)
    shuffle = shuffle.newest()
    asked = shuffle.select(latest_by="rev", filter="status = 'open'")
    assert asked.to_table().num_rows == 0
    assert shuffle.count_rows(filter="status = 'open'") == 1
    assert shuffle.latest_by("rev").count_rows(filter="status = 'open'") == 0
    assert shuffle.latest_by("rev").count_rows() == 1
    assert shuffle.select(latest_by="rev").to_table()["status"].to_pylist() == ["closed"]
    assert shuffle.select(latest_by="rev").select(filter="v < 2000").to_table().num_rows == 0


@guarantee("latest rows")
def test_all_ways_to_read_are_equal(latest, path):
    where, text = pc.field("status") == "open", "status = 'open'"
    opened = latest.where(text)
    dataset, lazy = latest.to_dataset(), latest.to_polars()
    assert duckdb.sql("SELECT count(*) FROM dataset").fetchall() == [(KEYS,)]
    found = {
        "read": values(opened.to_table()),
        "unordered": values(opened.to_table(ordered=False)),
        "filter of the read": values(latest.to_table(filter=where)),
        "batches": values(pa.Table.from_batches(list(opened.read(batch_size=7)))),
        "subpartitions": sorted(v for part in opened for v in part.read_all()["v"].to_pylist()),
        "pandas": sorted(opened.to_pandas()["v"]),
        "lookups": values(latest.where(text).lookup({"k": list(range(KEYS))}).read_all()),
        "select": values(
            arrow_shuffle.open_shuffle(path).select(latest_by="rev", filter=text).to_table()
        ),
        "DuckDB": sorted(
            v for (v,) in duckdb.sql("SELECT v FROM dataset WHERE status = 'open'").fetchall()
        ),
        "dataset": values(dataset.to_table(filter=where)),
        "Polars": sorted(lazy.filter(pl.col("status") == "open").collect()["v"]),
        "pickled": values(pickle.loads(pickle.dumps(opened)).to_table()),
        "checked": values(opened.checking().to_table()),
        "runs": sorted(v for run in opened.reader(0, N) for v in run.batch["v"].to_pylist()),
        "less memory": values(
            opened.with_options(ReadOptions(memory_bytes=96 << 20)).to_table(),
        ),
    }
    assert {name: rows for name, rows in found.items() if rows != OPEN} == {}


@guarantee("latest rows")
def test_all_ways_to_count_are_equal(latest):
    text, dataset = "status = 'open'", latest.to_dataset()
    opened = latest.where(text)
    assert latest.count_rows() == KEYS == dataset.count_rows()
    assert opened.count_rows() == latest.count_rows(filter=text) == len(OPEN)
    assert dataset.count_rows(pc.field("status") == "open") == len(OPEN)
    assert opened.to_table(columns=[]).num_rows == len(OPEN)
    assert latest.to_polars().select(pl.len()).collect().item() == KEYS
    assert latest.min_max(["v"])["v"] == (pa.scalar(3000), pa.scalar(3000 + KEYS - 1))
    assert opened.min_max(["v"])["v"] == (pa.scalar(3001), pa.scalar(3000 + KEYS - 1))
    assert latest.count_rows(filter="v < 3000") == 0
    assert latest.count_rows(filter="k < 5") == 5
    assert latest.count_rows(filter="k < 5 AND status = 'closed'") == 1


def test_the_first_rows_are_of_these(latest):
    assert set(latest.to_dataset().head(7)["v"].to_pylist()) < set(ALL)
    assert set(latest.to_polars().head(7).collect()["v"]) < set(ALL)
    found = duckdb.from_arrow(latest.to_dataset()).limit(7).fetchall()
    assert {row[3] for row in found} < set(ALL)
    assert set(next(iter(latest.read(batch_size=7)))["v"].to_pylist()) < set(ALL)


def test_an_epoch_has_each_of_them_once(latest):
    opened = latest.where("status = 'open'")
    for rows, expected in ((latest, ALL), (opened, OPEN)):
        numbers = EpochBatches(rows, ["v"], Epochs(batch_size=8))
        assert numbers.num_rows == len(expected)
        assert values(pa.Table.from_batches(list(numbers))) == expected


def test_operations_of_them(latest, path, tmp_path):
    shuffle = arrow_shuffle.open_shuffle(path)
    asked = shuffle.select(latest_by="rev", filter="status = 'open'")
    summed = asked.aggregate("k", {"n": ("*", "count"), "v": ("v", "sum")}).to_table()
    assert summed["n"].to_pylist() == [1] * len(OPEN)
    assert values(summed) == OPEN
    joined = asked.select("k", "v").join(shuffle.select("k", "rev")).to_table()
    assert joined.num_rows == 3 * len(OPEN)
    assert sorted(set(values(joined))) == OPEN

    def own(rows: pa.Table) -> pa.Table:
        return rows.select(["k", "v"])

    assert values(asked.map_groups(own, "k bigint, v bigint").to_table()) == OPEN
    asked.write(tmp_path / "kept", options=FAST)
    assert values(arrow_shuffle.open_shuffle(tmp_path / "kept").to_table()) == OPEN
    assert values(latest.select(filter="status = 'open'").to_table()) == OPEN


def test_conditions_on_keys_leave_out_what_is_compared(latest):
    looked_up = latest.where(latest.bound_keys({"k": [7]}))
    assert looked_up._selection.last.among.subpartitions is not None
    assert values(looked_up.to_table()) == [3007]
    both = latest.where("k = 7 AND status = 'open' AND k < 100")
    assert str(both._selection.last.among.where) == "k = 7 AND k < 100"
    assert latest.where("status = 'open'")._selection.last.among is None
    assert latest.where("k = 7 OR status = 'open'")._selection.last.among is None
    assert values(both.to_table()) == [3007]


def test_a_shuffle_of_ranges(tmp_path):
    bounds = pa.record_batch({"k": pa.array([10, 30], pa.int64())})
    ranges = RangePartitioner(keys="k", bounds=bounds)
    shuffle = written(tmp_path / "s", generation(2, "open"), n=3, partitioner=ranges)
    shuffle.append(generation(1, "closed"), options=FAST)
    assert values(shuffle.newest().latest_by("rev").to_table()) == [2000 + k for k in range(KEYS)]


def test_what_identifies_a_row_is_the_key(tmp_path):
    rows = generation(1, "open", [1, 1, 2]).append_column("o", pa.array([10, 11, 10]))
    shuffle = written(tmp_path / "s", rows, "k", n=N, unique=["k", "o"])
    shuffle.upsert(rows.slice(1, 1).set_column(1, "rev", pa.array([2])), options=FAST)
    latest = shuffle.newest().latest_by("rev")
    assert sorted(latest.to_table()["o"].to_pylist()) == [10, 10, 11]
    assert latest.where("o = 11").to_table()["rev"].to_pylist() == [2]
    assert shuffle.where("o = 11 AND k = 1").latest_by("rev").count_rows() == 1


def test_ties_are_decided_by_the_order_of_the_shuffle(tmp_path):
    tables = [generation(7, "open", [1, 2]), generation(7, "closed", [2])]
    shuffle = written(tmp_path / "s", tables[0], keys="k", n=N)
    shuffle.append(tables[1], options=FAST)
    asked = shuffle.newest().select("status", latest_by="rev", key_values={"k": 2})
    assert asked.to_table()["status"].to_pylist() == ["closed"]
    # Sorted, the last of equal ``rev`` is the last by the sort keys.
    ordered = written(tmp_path / "o", tables[0], keys="k", n=N, sort_by="status")
    ordered.append(tables[1], options=FAST)
    asked = ordered.newest().select("status", latest_by="rev", key_values={"k": 2})
    assert asked.to_table()["status"].to_pylist() == ["open"]


def test_several_passes_where_memory_is_short(tmp_path, monkeypatch):
    shuffle = written(tmp_path / "s", generation(1, "open", range(5_000)), keys="k", n=1)
    shuffle.append(generation(2, "closed", range(4_000)), options=FAST)
    latest = shuffle.newest().latest_by("rev")
    whole = latest.to_table()
    assert whole.num_rows == 5_000
    passes = []

    def in_passes(read, keys, *, max_bytes, **how):
        for one in hash_passes.in_passes(read, keys, max_bytes=1 << 16, **how):
            passes.append(one[0])
            yield one

    monkeypatch.setattr(last_of_keys, "in_passes", in_passes)
    assert latest.to_table().equals(whole)
    assert len(passes) > 3


def test_a_few_subpartitions_at_a_time(tmp_path, monkeypatch):
    shuffle = written(tmp_path / "s", generation(1, "open", range(5_000)), keys="k", n=16)
    shuffle.append(generation(2, "closed", range(4_000)), options=FAST)
    latest = shuffle.newest().latest_by("rev")
    monkeypatch.setattr(ReadOptions, "group_bytes", 1 << 16)
    ranges = []
    original = VersionReader._passed_over

    def passed_over(self, first, end, last):
        ranges.append((first, end))
        return original(self, first, end, last)

    monkeypatch.setattr(VersionReader, "_passed_over", passed_over)
    ways = [
        lambda: latest.to_table().num_rows,
        lambda: latest.to_table(ordered=False).num_rows,
        lambda: latest.count_rows(filter="v < 0 OR k IS NOT NULL"),
    ]
    for read in ways:
        ranges.clear()
        assert read() == 5_000
        assert len(ranges) > 2
        assert [first for first, _ in ranges[1:]] == [end for _, end in ranges[:-1]]


def test_what_it_is_described_as(latest):
    text = str(latest.where("status = 'open'").explain())
    assert text.startswith(
        "the last row of each key by rev, which is read with the keys first\nwhere status = 'open'"
    )
    assert "latest by rev, where status = 'open'" in repr(latest.where("status = 'open'"))
    assert "latest by" in latest._repr_html_()
    assert latest.latest_by("rev") is latest
    assert latest.latest_by(None) is latest
    assert not latest.is_whole


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda s: s.where("status = 'open'").latest_by("rev"), OptionError, "ask for latest_by"),
        (lambda s: s.latest_by("rev").latest_by("v"), OptionError, "latest by 'rev'"),
        (lambda s: s.latest_by("rev").added(since=2), OptionError, r"is of all rows; ask what"),
        (lambda s: s.latest_by("rev").changes(since=2), OptionError, "of a whole version"),
        (lambda s: s.latest_by("nothing"), SchemaError, "latest_by: column 'nothing'"),
        (lambda s: s.latest_by(3), OptionError, "expected the name of one column"),
        (lambda s: s.select("v").select(latest_by="rev"), SchemaError, "left out by an earlier"),
        (
            lambda s: s.select(filter="v > 3").select(latest_by="rev"),
            OptionError,
            "ask for latest_by first",
        ),
        (
            lambda s: s.aggregate("k", {"rev": ("rev", "max")}).select(latest_by="rev"),
            OptionError,
            "makes rows",
        ),
    ],
)
def test_what_it_refuses(path, ask, error, message):
    with pytest.raises(error, match=message):
        ask(arrow_shuffle.open_shuffle(path))


def test_conditions_on_keys_may_be_asked_for_before(path):
    shuffle = arrow_shuffle.open_shuffle(path)
    assert values(shuffle.where("k = 7").latest_by("rev").to_table()) == [3007]
    asked = shuffle.select(key_values={"k": 7}).select(latest_by="rev")
    assert values(asked.to_table()) == [3007]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"partitioner": RoundRobinPartitioner()}, "without keys"),
        ({"partitioner": BroadcastPartitioner()}, "without keys"),
        ({"keys": "k", "combine": {"rev": "max", "v": "sum"}}, "combined"),
    ],
)
def test_shuffles_that_have_none(tmp_path, how, message):
    rows = generation(1, "open").select(["k", "rev", "v"])
    shuffle = written(tmp_path / "s", rows, n=N, **how)
    with pytest.raises(OptionError, match=message):
        shuffle.latest_by("rev")


def test_values_without_an_order(tmp_path):
    rows = pa.table({"k": [1], "tags": pa.array([[1]], pa.list_(pa.int64()))})
    shuffle = written(tmp_path / "s", rows, keys="k", n=1)
    with pytest.raises(SchemaError, match="latest_by: column 'tags'"):
        shuffle.select(latest_by="tags")


def test_of_what_versions_added(path):
    shuffle = arrow_shuffle.open_shuffle(path)
    added = shuffle.added(since=2).latest_by("rev")
    assert values(added.to_table()) == [2000 + key for key in range(KEYS)]


@pytest.mark.parametrize("max_requests", [1, 4])
def test_small_chunks_and_many_regions(tmp_path, monkeypatch, max_requests):
    monkeypatch.setattr(PosixStorage, "max_requests", max_requests)  # several: as of a store
    small = WriteOptions(sync=False, chunk_bytes=4096, sort_buffer_bytes=1 << 20)
    keys = range(20_000)
    shuffle = written(tmp_path / "s", generation(1, "open", keys), keys="k", n=16, options=small)
    shuffle.append(generation(2, None, range(0, 20_000, 2)), options=small)
    latest = shuffle.newest().latest_by("rev")
    expected = sorted(2000 + k if k % 2 == 0 else 1000 + k for k in keys)
    assert values(latest.to_table()) == expected
    opened = latest.where("status = 'open'")
    assert opened.count_rows() == opened.to_table().num_rows == 20_000 - 2_000
    some = latest.to_table(subpartitions=[3, 4, 9], with_subpartition=True)
    assert set(some["_subpartition"].to_pylist()) == {3, 4, 9}


def test_rows_that_an_upsert_replaced_do_not_return(tmp_path):
    """A chunk of which a mask took all rows has none that is passed over besides."""
    options = WriteOptions(sync=False, chunk_bytes=4096)

    def rows(ids, rev):
        keys = [number // 4 for number in ids]
        return pa.table({"k": keys, "id": ids, "rev": [rev] * len(ids)})

    how = {"keys": "k", "num_subpartitions": 4, "options": options}
    arrow_shuffle.write_shuffle(rows(range(40_000), 1), tmp_path, unique=["k", "id"], **how)
    arrow_shuffle.write_shuffle(rows([0, *range(24, 40_000)], 2), tmp_path, mode="upsert", **how)
    shuffle = arrow_shuffle.open_shuffle(tmp_path)
    latest = shuffle.latest_by("rev")
    assert latest.count_rows() == 40_000
    assert latest.to_table().num_rows == 40_000
    assert latest.lookup({"k": list(range(100, 400))}).read_all().num_rows == 1200
