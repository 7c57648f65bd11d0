"""CONFORMANCE, group "Partitioning", as far as it needs no Spark; in that order.

That hash partitioning is Spark's stands in ``test_partitioning_against_spark.py``.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format import (
    OptionError,
    RangePartitioner,
    RoundRobinPartitioner,
    SchemaError,
    ShuffleExistsError,
    open_shuffle,
    sample_bounds,
    write_shuffle,
)
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.jobs.target import open_target
from arrow_format.keys.sort_keys import ORDERS
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import FAST, write_rows
from tests.support.spark_order_model import compare_rows
from tests.unit.keys.test_bound_search import keyed_rows


def subpartitions_of(path):
    table = open_shuffle(path).read(with_subpartition=True).read_all()
    return table, table["_subpartition"].to_pylist()


# Range bounds: every row lies between its bounds, ties do not straddle, nulls first --------------


@given(keyed_rows(), st.integers(1, 12))
def test_every_row_lies_between_its_bounds(tmp_path_factory, case, n):
    keys, orders = case
    names = [f"k{i}" for i in range(len(keys))]
    pairs = list(zip(names, orders, strict=True))
    path = tmp_path_factory.mktemp("range") / "x"

    write_shuffle(
        pa.table(keys, names=names), path, num_subpartitions=n, options=FAST,
        partitioner=RangePartitioner(keys=pairs), for_spark=False,
    )  # fmt: skip

    table, ids = subpartitions_of(path)
    partitioner = open_shuffle(path).partitioner
    bounds = [tuple(row.values()) for row in partitioner.bounds.to_pylist()]
    assert partitioner.keys == tuple(pairs)
    assert len(bounds) < n
    rows = list(zip(*(table[name].to_pylist() for name in names), strict=True))
    assert len(rows) == len(keys[0])
    for row, i in zip(rows, ids, strict=True):
        assert i == 0 or compare_rows(bounds[i - 1], row, orders) < 0
        assert i == len(bounds) or compare_rows(row, bounds[i], orders) <= 0


@guarantee("range bounds")
def test_ties_do_not_straddle(tmp_path):
    table = pa.table({"k": [5] * 500 + [1, 2, 3, 9] * 20})
    write_rows(tmp_path / "x", table, n=16, partitioner=RangePartitioner("k"))
    found, ids = subpartitions_of(tmp_path / "x")
    places = set(zip(found["k"].to_pylist(), ids, strict=True))
    assert len(places) == 5, "each key is in one subpartition"
    ids_by_key = [i for _, i in sorted(places)]
    assert ids_by_key == sorted(ids_by_key)


@guarantee("range bounds")
@pytest.mark.parametrize("order", ORDERS)
def test_nulls_stand_where_the_order_puts_them(tmp_path, order):
    table = pa.table({"k": [None, 4, None, 1, 3, 2, None, None]})
    write_rows(tmp_path / "x", table, n=4, partitioner=RangePartitioner(("k", order)))
    shuffle = open_shuffle(tmp_path / "x")
    nulls = [shuffle.subpartition(i).read_all()["k"].null_count for i in range(4)]
    first = order in ("ascending", "descending nulls first")
    assert nulls == ([4, 0, 0, 0] if first else [0, 0, 4, 0])


def test_special_values_have_their_places():
    bounds = [(-1.0,), (0.0,), (np.inf,)]
    values = [np.nan, -np.nan, np.inf, 0.0, -0.0, -np.inf, None, 1e-300, -1.0]
    assign = RangePartitioner("k", bounds=bounds).bind(pa.schema([("k", pa.float64())]), 4, 0)
    found = assign(pa.record_batch({"k": pa.array(values)}))
    assert found.tolist() == [3, 3, 2, 1, 1, 0, 0, 2, 0]


def test_text_is_compared_by_its_bytes():
    keys = ["", "Z", "a", "a\x00", "ab", "z", "é", "日本", "\U0001f986", "\uffff"]
    texts = sorted(keys, key=str.encode)
    partitioner = RangePartitioner("k", bounds=texts[:-1])
    assign = partitioner.bind(pa.schema([("k", pa.string())]), len(texts), 0)
    assert assign(pa.record_batch({"k": texts})).tolist() == list(range(len(texts)))


def test_many_bounds_are_found_by_every_row(tmp_path):
    random = np.random.default_rng(0)
    table = pa.table({"k": random.integers(0, 1 << 40, 100_000)})
    write_rows(tmp_path / "x", table, n=20_000, partitioner=RangePartitioner("k"), sort_by="k")
    shuffle = open_shuffle(tmp_path / "x")
    assert shuffle.read().read_all()["k"].to_pylist() == sorted(table["k"].to_pylist())
    assert shuffle.partitioner.bounds.num_rows == 19_999
    assert max(shuffle.subpartition_rows.to_pylist()) < 100


# Where bounds come from --------------------------------------------------------------------------

NUMBERS = pa.table({"k": np.random.default_rng(1).permutation(10_000)})


def write_ranges(path, source=NUMBERS, partitioner=None, n=8, **more):
    partitioner = partitioner or RangePartitioner("k")
    return write_rows(path, source, n=n, partitioner=partitioner, **more)


def test_a_table_is_sampled_by_the_write(tmp_path):
    write_ranges(tmp_path / "x")
    rows = open_shuffle(tmp_path / "x").subpartition_rows.to_pylist()
    assert max(rows) < 1.3 * 1_250
    assert min(rows) > 0.7 * 1_250
    assert open_shuffle(tmp_path / "x").partitioner == RangePartitioner.sampled(NUMBERS, "k", 8)


@pytest.mark.parametrize("kind", ["reader", "batches"])
def test_what_can_be_read_once_needs_bounds(tmp_path, kind):
    source = NUMBERS.to_reader() if kind == "reader" else NUMBERS.to_batches()
    with pytest.raises(OptionError, match=r"has no bounds, and source is .*give bounds=..., a py"):
        write_ranges(tmp_path / "x", source)
    assert not (tmp_path / "x").exists()
    write_ranges(tmp_path / "x", source, RangePartitioner("k", bounds=[2_500, 5_000]))
    assert open_shuffle(tmp_path / "x").subpartition_rows.to_pylist()[:3] == [2_501, 2_500, 4_999]


def test_bounds_from_a_sample_of_ones_own(tmp_path):
    ds.write_dataset(NUMBERS, tmp_path / "files", format="parquet")
    dataset = ds.dataset(tmp_path / "files")
    for partitioner in (
        RangePartitioner.sampled(dataset, "k", 8),
        RangePartitioner("k", bounds=sample_bounds(NUMBERS.slice(0, 2_000), "k", 8)),
    ):
        write_ranges(
            tmp_path / "x", dataset.scanner().to_reader(), partitioner, mode="overwrite"
        )  # fmt: skip
        assert max(open_shuffle(tmp_path / "x").subpartition_rows.to_pylist()) < 1_500


def test_an_append_takes_the_bounds_that_are_there(tmp_path):
    write_ranges(tmp_path / "x")
    before = open_shuffle(tmp_path / "x").partitioner
    write_ranges(tmp_path / "x", pa.table({"k": [1, 1 << 50]}), mode="append")
    write_ranges(tmp_path / "x", NUMBERS.to_reader(), mode="append")
    write_ranges(tmp_path / "x", NUMBERS, before, mode="append")
    after = open_shuffle(tmp_path / "x")
    assert after.partitioner == before
    assert after.num_rows == 30_002
    with pytest.raises(
        SchemaError, match=r"is partitioned by RangePartitioner\('k', 7 bounds from"
    ):
        write_ranges(tmp_path / "x", NUMBERS, RangePartitioner("k", bounds=[5]), mode="append")
    with pytest.raises(SchemaError, match=r"cannot append rows partitioned by .*descending"):
        write_ranges(
            tmp_path / "x", NUMBERS, RangePartitioner(("k", "descending")), mode="append"
        )  # fmt: skip


def test_nothing_is_sampled_for_a_write_that_will_not_be(tmp_path):
    first = write_ranges(tmp_path / "x")
    assert write_ranges(tmp_path / "x", NUMBERS.to_reader(), mode="ignore").version == first.version
    with pytest.raises(ShuffleExistsError):
        write_ranges(tmp_path / "x", NUMBERS.to_reader())


def test_keys_and_bounds_are_checked_before_anything_is_written(tmp_path):
    for partitioner, error, message in [
        (RangePartitioner("q"), SchemaError, "range keys: column 'q' is not there"),
        (RangePartitioner("k", bounds=["x"]), OptionError, "bounds of key 'k' are string"),
        (RangePartitioner("k", bounds=range(8)), OptionError, "8 bounds make 9 ranges"),
    ]:
        with pytest.raises(error, match=message):
            write_ranges(tmp_path / "x", NUMBERS, partitioner)
    assert not (tmp_path / "x").exists()


# Round robin: even within one row per task, deterministic for a retried task ---------------------


@guarantee("round robin")
def test_round_robin_is_even_and_the_same_when_retried(tmp_path):
    n, tasks = 7, [23, 7, 0, 1, 100]
    schema = pa.schema([("v", pa.int64())])
    job = begin_job(
        str(tmp_path / "x"), schema, num_subpartitions=n, options=FAST,
        partitioner=RoundRobinPartitioner(),
    )  # fmt: skip
    open_target(job, "errorifexists")
    statuses = []
    for task, num_rows in enumerate(tasks):
        batch = pa.record_batch({"v": pa.array(range(num_rows), pa.int64())}, schema=schema)
        cut = [batch.slice(start, 9) for start in range(0, num_rows, 9)]
        first, retried = (run_map_task(job, task, attempt, cut) for attempt in (0, 1))
        rows = first.subpartition_rows
        assert rows.max() - rows.min() <= 1
        assert rows.tolist() == retried.subpartition_rows.tolist()
        whole = run_map_task(job, task, 2, [batch])
        assert rows.tolist() == whole.subpartition_rows.tolist(), "however rows are batched"
        statuses.append(retried)
    commit_job(job, statuses)
    assert sum(open_shuffle(tmp_path / "x").subpartition_rows.to_pylist()) == sum(tasks)


def test_round_robin_gives_each_row_the_same_place_when_retried():
    schema = pa.schema([("v", pa.int64())])
    batch = pa.record_batch({"v": list(range(50))}, schema=schema)
    partitioner = RoundRobinPartitioner()
    one, other = (partitioner.bind(schema, 7, 3) for _ in range(2))
    places = np.concatenate([one(batch.slice(start, 13)) for start in range(0, 50, 13)])
    assert places.tolist() == other(batch).tolist()
    assert partitioner.bind(schema, 7, 4)(batch).tolist() != places.tolist()


# A user's partitioner in ten lines, as in the documentation --------------------------------------


@dataclass(frozen=True)
class ByWeekday:
    column: str

    def describe(self):
        return {"kind": "by_weekday", "column": self.column}

    def check(self, schema):
        schema.field(self.column)

    def bind(self, schema, num_subpartitions, map_task):
        return lambda batch: pc.day_of_week(batch[self.column]).to_numpy() % num_subpartitions


def test_a_partitioner_of_ones_own(tmp_path):
    days = pa.array(range(700), pa.int32()).cast(pa.date32())
    table = pa.table({"day": days, "v": range(700)})

    def write(**more):
        return write_shuffle(
            table, tmp_path / "x", num_subpartitions=7, partitioner=ByWeekday("day"),
            sort_by=[("day", "descending")], options=FAST, **more,
        )  # fmt: skip

    write()
    write(mode="append")
    shuffle = open_shuffle(tmp_path / "x")
    assert shuffle.subpartition_rows.to_pylist() == [200] * 7
    for i in range(7):
        found = shuffle.subpartition(i).read_all()["day"]
        assert pc.unique(pc.day_of_week(found)).to_pylist() == [i]
        assert found.to_pylist() == sorted(found.to_pylist(), reverse=True)
    assert shuffle.partitioner == {"kind": "by_weekday", "column": "day"}
    with pytest.raises(SchemaError, match=r"is partitioned by \{'kind': 'by_weekday'"):
        write_shuffle(table, tmp_path / "x", num_subpartitions=7, keys="day", mode="append")
