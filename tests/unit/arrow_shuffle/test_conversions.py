"""A shuffle in the hands of other tools: what they get, and what they ask for."""

import datetime as dt
import gc
import pickle
import weakref
from dataclasses import dataclass, field
from itertools import pairwise

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.arrays.batch_stream import BatchReader
from arrow_format.arrays.batches import in_batches_of
from arrow_format.errors import ClosedError, CorruptShuffleError, OptionError, SchemaError
from arrow_format.filters.filter import bind_filter
from arrow_format.integrations.dataset import ShuffleDataset
from arrow_format.integrations.polars_source import lazy_frame
from arrow_format.integrations.pushdown import FIRST_ROWS, small_at_first
from arrow_shuffle import WriteOptions, open_shuffle, write_shuffle
from tests.support.operations import written
from tests.support.small_shuffles import numbered, write_rows, write_tasks

N = 8
IDS = [[5, 1, 1, 7, 5], [1, 0, 5], [], [7, 7, 0, 1]]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("hand") / "x<y>"
    starts = np.cumsum([0, *map(len, IDS)]).tolist()
    write_tasks(path, [[numbered(i, s)] for i, s in zip(IDS, starts, strict=False)], N)
    return path


@pytest.fixture
def shuffle(path):
    return open_shuffle(path)


# In memory ----------------------------------------------------------------------------------------


def test_a_table_and_a_frame(shuffle):
    read = shuffle.read([1, 7], ["v"], with_subpartition=True).read_all()
    assert shuffle.to_table([1, 7], ["v"], with_subpartition=True).equals(read)
    frame = shuffle.to_pandas([1, 7], ["v"], with_subpartition=True)
    pd.testing.assert_frame_equal(frame, read.to_pandas())
    assert shuffle.to_table().num_rows == len(shuffle.to_pandas()) == 12


def test_a_container_of_its_subpartitions(shuffle):
    assert shuffle
    assert len(shuffle) == N
    readers = list(shuffle)
    assert [
        reader.read_all().num_rows for reader in readers
    ] == shuffle.subpartition_rows.to_pylist()
    with pytest.raises(ClosedError):
        readers[1].read_all()


def test_consumers_of_streams_still_take_it_as_one(shuffle, tmp_path):
    expected = shuffle.to_table()
    assert pa.table(shuffle).equals(expected)
    assert pa.RecordBatchReader.from_stream(shuffle).read_all().equals(expected)
    assert pl.DataFrame(shuffle).to_dict(as_series=False) == expected.to_pydict()
    assert duckdb.sql("SELECT * FROM shuffle").fetchall() == list(
        zip(*expected.to_pydict().values(), strict=True)
    )
    write_rows(tmp_path / "y", shuffle, "p", n=2)
    assert open_shuffle(tmp_path / "y").num_rows == expected.num_rows


@given(sizes=st.lists(st.integers(0, 9), max_size=8), batch_size=st.integers(1, 12))
def test_batches_of_a_size(sizes, batch_size):
    ends = np.cumsum([0, *sizes]).tolist()
    batches = [
        pa.record_batch({"v": pa.array(range(*ends[i : i + 2]), pa.int64())})
        for i in range(len(sizes))
    ]
    found = list(in_batches_of(batches, batch_size))
    assert {batch.num_rows for batch in found[:-1]} <= {batch_size}
    assert all(0 < batch.num_rows <= batch_size for batch in found[-1:])
    assert [v for batch in found for v in batch["v"].to_pylist()] == list(range(ends[-1]))


def test_batch_size_of_a_read(shuffle):
    batches = list(shuffle.read(batch_size=5))
    assert [batch.num_rows for batch in batches] == [5, 5, 2]
    assert pa.Table.from_batches(batches).equals(shuffle.to_table())


@pytest.mark.parametrize("size", [0, -1, True, 1.0, "1"])
def test_a_batch_size_that_is_none(shuffle, size):
    with pytest.raises(
        OptionError, match=r"batch_size=.*: expected a whole number of rows, from 1"
    ):
        shuffle.read(batch_size=size)


# A part of it -------------------------------------------------------------------------------------


@dataclass
class Asked:
    """Rows in memory that note what is read of them; a filter on ``s`` is refused."""

    table: pa.Table
    reads: list = field(default_factory=list)
    condition: str | None = None

    def schema_of(self, columns=None):
        return self.table.select(columns or self.table.column_names).schema

    def bound(self, condition, settings):
        bound = bind_filter(condition, self.table.schema, settings=settings)
        if "s" in bound.columns:
            msg = "not on s"
            raise SchemaError(msg)
        return bound

    def where(self, bound):
        columns = [self.table[name].combine_chunks() for name in bound.columns]
        rows = self.table.filter(pa.array(bound.mask(columns, self.table.num_rows)))
        return Asked(rows, self.reads, str(bound))

    def read(self, subpartitions=None, columns=None, *, ordered=True):
        assert not ordered
        rows = self.table if columns is None else self.table.select(columns)
        read = {"columns": columns, "where": self.condition, "of": subpartitions, "batches": 0}
        self.reads.append(read)

        def batches():
            for batch in rows.to_batches(max_chunksize=10):
                read["batches"] += 1
                yield batch

        return BatchReader(rows.schema, batches())


@pytest.fixture
def asked():
    values = range(100)
    return Asked(pa.table({"i": values, "s": [f"t{v}" for v in values], "w": values}))


def test_polars_asks_for_columns_and_rows(asked):
    lazy = lazy_frame(asked, range(3))
    assert lazy.filter(pl.col("i") >= 97).select("w").collect().rows() == [(97,), (98,), (99,)]
    (read,) = asked.reads
    assert set(read.pop("columns")) == {"i", "w"}
    assert read == {"where": "i >= 97", "of": range(3), "batches": 1}


def test_polars_applies_what_the_shuffle_does_not_take(asked):
    test = (pl.col("i") >= 90) & (pl.col("s") > "t95") & pl.col("s").str.ends_with("7")
    assert lazy_frame(asked, None).filter(test).collect()["i"].to_list() == [97]
    assert asked.reads[0]["where"] == "i >= 90"


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_polars_stops_early(asked, engine):
    lazy = lazy_frame(asked, None)
    assert lazy.head(15).collect(engine=engine)["i"].to_list() == list(range(15))
    assert asked.reads[0]["batches"] == 2
    assert lazy.head(0).collect(engine=engine).schema == pl.DataFrame(asked.table).schema


@pytest.mark.parametrize("sizes", [[], [0], [5], [FIRST_ROWS + 1, 3], [300_000, 7], [900] * 80])
def test_the_first_batches_are_small_and_none_is_lost(sizes):
    ends = np.cumsum([0, *sizes]).tolist()
    batches = [pa.record_batch({"v": np.arange(start, end)}) for start, end in pairwise(ends)]
    found = list(small_at_first(batches))
    assert [v for batch in found for v in batch["v"].to_pylist()] == list(range(ends[-1]))
    assert all(batch.num_rows <= FIRST_ROWS for batch in found[:40])
    assert len(found) <= len(batches) + 64


def test_the_first_rows_are_counted_before_a_filter(asked):
    lazy = lazy_frame(asked, None).head(15).filter(pl.col("i") >= 10)
    assert lazy.collect()["i"].to_list() == list(range(10, 15))


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_polars_sorts_groups_and_joins(shuffle, engine):
    lazy, frame = shuffle.to_polars(), pl.DataFrame(shuffle.to_table(ordered=False))
    for query in (
        lambda rows: rows.filter(pl.col("p") > 0).sort("v", descending=True).head(3),
        lambda rows: rows.group_by("p").agg(pl.col("v").sum(), pl.len()).sort("p"),
        lambda rows: rows.join(rows, on="v").select("v", "s_right").sort("v"),
        lambda rows: rows.tail(2),
        lambda rows: rows.slice(3, 4).select("s"),
        lambda rows: rows.select(pl.len()),
    ):
        assert query(lazy).collect(engine=engine).equals(query(frame.lazy()).collect())
    assert shuffle.to_polars([1, 7]).collect().equals(pl.DataFrame(shuffle.read([1, 7])))


def test_the_first_batches_for_polars_and_pyarrow_are_small(tmp_path):
    rows = pa.table({"k": pa.array(np.arange(40_000) % 2), "v": np.arange(40_000)})
    shuffle = written(tmp_path / "x", rows, "k", n=1)
    first = next(shuffle.to_dataset().to_batches())
    assert first.num_rows == FIRST_ROWS < next(iter(shuffle.read())).num_rows
    assert shuffle.to_polars().collect()["v"].sum() == sum(range(40_000))


def test_polars_finds_damage(tmp_path):
    write_tasks(tmp_path / "x", [[numbered([1, 2])]], N)
    (file,) = (tmp_path / "x").rglob("*.shuffle.data")
    file.write_bytes(bytes(len(file.read_bytes())))
    lazy = open_shuffle(tmp_path / "x").to_polars()
    # Before 2.0 Polars makes an error of its own of it, with our text.
    errors = CorruptShuffleError, pl.exceptions.ComputeError
    with pytest.raises(errors, match=r"CRC-32 of \d+ bytes is not"):
        lazy.collect()


def test_duckdb_asks_a_dataset_for_columns_and_rows(asked):
    rows = ShuffleDataset(asked)  # noqa: F841 - DuckDB finds it by its name
    assert duckdb.sql("SELECT w FROM rows WHERE i >= 97").fetchall() == [(97,), (98,), (99,)]
    (read,) = asked.reads
    assert (read["columns"], read["where"], read["batches"]) == (["w"], "i >= 97", 1)


def test_a_dataset_filters_what_the_shuffle_does_not_take(asked):
    rows = ShuffleDataset(asked)
    query = "SELECT sum(w) FROM rows WHERE i >= 90 AND s = 't97'"
    assert duckdb.sql(query).fetchall() == [(97,)]
    assert rows.count_rows(filter=pc.field("s") == "t97") == 1
    assert rows.to_table(columns=["i"], filter=pc.field("s") == "t97").to_pydict() == {"i": [97]}
    wheres = [read["where"] for read in asked.reads]
    assert wheres == ["i >= 90", None, None]


def test_a_dataset_has_the_methods_of_pyarrow(shuffle):
    dataset, table = shuffle.to_dataset(), shuffle.to_table(ordered=False)
    assert isinstance(dataset, ds.Dataset)
    assert dataset.schema.equals(table.schema)
    assert dataset.to_table().equals(table)
    assert pa.Table.from_batches(dataset.to_batches(columns=["v"])).equals(table.select(["v"]))
    assert dataset.head(3).equals(table.slice(0, 3))
    assert dataset.count_rows() == table.num_rows
    doubled = dataset.to_table(columns={"twice": pc.field("v") + pc.field("v")})
    assert doubled["twice"].to_pylist() == [2 * v for v in table["v"].to_pylist()]
    assert pickle.loads(pickle.dumps(dataset)).to_table().equals(table)
    assert repr(dataset) == f"<ShuffleDataset of {shuffle!r}>"
    assert pl.scan_pyarrow_dataset(dataset).filter(pl.col("v") < 3).collect().height == 3
    with pytest.raises(SchemaError, match="column 'nope' is not there"):
        dataset.to_table(columns=["nope"])


def test_a_dataset_keeps_the_rows_that_pyarrow_keeps(tmp_path):
    rows = pa.table(
        {
            "k": [1, 2, 3, 4],
            "d": pa.array([1.0, None, float("nan"), 2.0]),
            "i": pa.array([1, None, 3, 4]),
            "f": pa.array([0.1, 0.0, None, -0.0], pa.float32()),
            "t": pa.array([0, 1, 2, None], pa.timestamp("us", "UTC")),
        }
    )
    write_shuffle(rows, tmp_path, num_subpartitions=2, keys="k")
    dataset = open_shuffle(tmp_path).to_dataset()
    plain = ds.dataset(open_shuffle(tmp_path).to_table())
    d, i, f, t, k = map(pc.field, "diftk")
    for condition in (
        ~pc.is_nan(d), d > 1.5, d >= 1.5, d != 1.0, d == float("nan"), ~(d < 2), ~(d > 1.5),
        ~i.isin([1]), i.isin([1, None]), ~i.isin([1, None]), (i.isin([1])).is_null(),
        d.isin([float("nan"), 1.0]), f.isin([0.1]), f.isin([0.0]), t > dt.date(1970, 1, 1),
        (d + 1 > 2) & (k < 4), (d + 1 > 2) | (k < 2),
    ):  # fmt: skip
        expected = plain.to_table(filter=condition)["k"].to_pylist()
        assert dataset.to_table(filter=condition)["k"].to_pylist() == expected, condition
    nulls = pl.col("i").is_in([1, None], nulls_equal=True)
    for predicate in (pl.col("d").is_not_nan(), ~pl.col("d").is_nan(), nulls, ~nulls):
        expected = pl.DataFrame(plain.to_table()).filter(predicate)["k"].to_list()
        found = pl.scan_pyarrow_dataset(dataset).filter(predicate).collect()["k"].to_list()
        assert found == expected, predicate
    for predicate in (pl.col("d") > 1.5, ~pl.col("i").is_in([1]), pl.col("d").is_not_nan(), ~nulls):
        expected = pl.DataFrame(plain.to_table()).filter(predicate)
        assert open_shuffle(tmp_path).to_polars().filter(predicate).collect().equals(expected)


def test_a_part_that_a_shuffle_does_not_take_stops_no_other(asked):
    dataset, table = ShuffleDataset(asked), asked.table
    odd = pc.starts_with(pc.field("s"), "t9") & (pc.field("w") < 95) & (pc.field("w") > 3)
    assert dataset.to_table(columns=["i"], filter=odd).equals(table.filter(odd).select(["i"]))
    twice = {"twice": pc.field("i") * 2}
    expected = [2 * value for value in table.filter(odd)["i"].to_pylist()]
    assert dataset.to_table(columns=twice, filter=odd)["twice"].to_pylist() == expected
    assert dataset.count_rows(odd) == len(expected) == 6
    wheres = "w < 95 AND w > 3"
    assert [(set(read["columns"]), read["where"]) for read in asked.reads] == [
        ({"i", "s", "w"}, wheres), ({"i", "s", "w"}, wheres), ({"s", "w"}, wheres),
    ]  # fmt: skip


def test_nothing_keeps_a_dataset(path):
    dataset = open_shuffle(path).to_dataset()
    dataset.to_table()
    kept = weakref.ref(dataset)
    del dataset
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize(
    "use",
    [
        lambda dataset: dataset.sort_by("v"),
        lambda dataset: dataset.join(dataset, "v"),
        lambda dataset: ds.dataset([dataset]).to_table(),
        lambda dataset: ds.Scanner.from_dataset(dataset).to_table(),
        lambda dataset: next(dataset.get_fragments()).to_table(),
        lambda dataset: dataset.replace_schema(dataset.schema).to_table(),
    ],
    ids=["sort", "join", "union", "scanner", "fragment", "schema"],
)
def test_nothing_takes_a_dataset_for_an_empty_one(shuffle, use):
    with pytest.raises(OptionError, match="a shuffle has none that it can read: take its to_table"):
        use(shuffle.to_dataset())


@pytest.mark.slow
def test_an_ordered_dataset_and_frame_have_the_order_of_the_read(tmp_path):
    rows = pa.table({"p": pa.array(np.arange(300_000) % 3, pa.int32()), "v": np.arange(300_000)})
    small = WriteOptions(sync=False, sort_buffer_bytes=1 << 20)
    shuffle = written(tmp_path / "x", rows, "p", n=5, options=small)
    whole = shuffle.to_table()
    assert shuffle.to_dataset(ordered=True).to_table().equals(whole)
    again = pickle.loads(pickle.dumps(shuffle.to_dataset(ordered=True))).filter(pc.field("v") > 5)
    assert again.to_table().equals(whole.filter(pc.field("v") > 5))
    assert shuffle.to_polars(ordered=True).collect().equals(pl.DataFrame(whole))
    assert not shuffle.to_dataset().to_table().equals(whole)
    assert shuffle.to_pandas(ordered=False).equals(shuffle.to_table(ordered=False).to_pandas())
    assert shuffle.to_dataset().to_table().sort_by("v").equals(whole.sort_by("v"))


# In a notebook ------------------------------------------------------------------------------------


def test_as_html(tmp_path):
    columns = {"<k>": pa.array([1, 1, 2], pa.int64()), "v": ["a", "b", "c"]}
    shuffle = written(
        tmp_path / "<x>", pa.table(columns), "<k>", n=4, sort_by=[("v", "descending")]
    )
    html = shuffle._repr_html_()
    assert "/&lt;x&gt;</td>" in html
    assert "<th>version</th><td>1</td>" in html
    assert "<th>rows</th><td>3</td>" in html
    assert "<th>sorted by</th><td>v descending</td>" in html
    assert "HashPartitioner" in html
    assert "<th>where</th>" not in html
    assert "<summary>2 columns</summary>" in html
    assert "<th>&lt;k&gt;</th><td>int64</td>" in html
    assert "<title>rows of 4 subpartitions, at most 2</title>" in html
    assert "<k>" not in html


def test_columns_by_position_are_left_to_pyarrow(tmp_path):
    """No form is known in which PyArrow writes them."""
    rows = pa.table({"k": [1, 2, 3], "v": [4, 5, 6]})
    write_rows(tmp_path / "s", rows, "k", n=1)
    dataset, plain = open_shuffle(tmp_path / "s").to_dataset(), ds.dataset(rows)
    for how in (
        {"filter": pc.field(0) > 1},
        {"filter": (pc.field(0) > 1) & (pc.field("v") < 6), "columns": ["v"]},
        {"columns": {"x": pc.field(1)}},
        {"columns": {"x": pc.field(1)}, "filter": pc.field("k") > 2},
    ):
        assert dataset.to_table(**how) == plain.to_table(**how)
