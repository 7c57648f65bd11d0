"""Results that the tasks write as a shuffle: where rows are, and that a failure leaves nothing."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrow_format.errors import OptionError, SchemaError, ShuffleExistsError
from arrow_format.operators.join import ThenOfGroup
from arrow_shuffle import (
    BroadcastPartitioner,
    HashPartitioner,
    RangePartitioner,
    WriteOptions,
    open_shuffle,
    write_shuffle,
)
from tests.support.operations import made, written
from tests.support.session_in_process import SessionInProcess
from tests.support.small_shuffles import FAST, files_below, write_rows

SPARK = SessionInProcess()
N = 6
ITEMS = pa.table({"order": [i * i % 50 for i in range(400)], "price": list(range(400))})
ORDERS = pa.table({"o": list(range(50)), "who": [f"w{i % 7}" for i in range(50)]})
SPARKS = {"spark": SPARK, "options": FAST}
SMALL = {"target_partition_bytes": 1}
"""A task for each subpartition."""


@pytest.fixture
def items(tmp_path):
    return written(tmp_path / "items", ITEMS, "order", n=N)


@pytest.fixture
def orders(tmp_path):
    return written(tmp_path / "orders", ORDERS, "o", n=N)


def rows_with_subpartitions(shuffle):
    rows = shuffle.read(with_subpartition=True).read_all()
    return sorted(map(str, rows.to_pylist()))


def doubled(_, reader):
    for batch in reader:
        yield batch.set_column(1, "price", pc.multiply(batch["price"], 2))


SCHEMA = pa.schema([("order", pa.int64()), ("price", pa.int64())])


@pytest.mark.parametrize("rows_each", [1, 12_000])
@pytest.mark.parametrize("with_into", [False, True])
def test_a_function_may_use_one_buffer_for_all_batches(tmp_path, items, rows_each, with_into):
    """NumPy's memory becomes that of a batch without a copy; as in ``mapInArrow``."""
    block = np.zeros(rows_each, np.int64)
    text = bytearray(rows_each)
    ends = pa.py_buffer(np.arange(rows_each + 1, dtype=np.int32))
    schema = pa.schema({"n": pa.int64(), "l": pa.list_(pa.int64()), "t": pa.string()})

    def batches(*_readers):
        for number in range(5):
            block[:] = number
            text[:] = b"%d" % number * rows_each
            numbers = pa.array(block)
            columns = [
                numbers,
                pa.ListArray.from_buffers(
                    schema.types[1], rows_each, [None, ends], children=[numbers]
                ),
                pa.StringArray.from_buffers(rows_each, ends, pa.py_buffer(text)),
            ]
            yield pa.record_batch(columns, schema=schema)
        block[:] = -1

    asked = items.select(subpartitions=0).map_subpartitions(batches, schema)
    how = {"into": tmp_path / "out", "keys": "n"} if with_into else {}
    mapped = made(asked, spark=SPARK, **how)
    expected = [{"n": n, "l": [n], "t": str(n)} for n in range(5) for _ in range(rows_each)]
    assert mapped.sort_by("n").to_pylist() == expected
    joined = ThenOfGroup(lambda _: (row for row in ()), schema, batches, schema, "/a and /b")([0])
    assert pa.Table.from_batches(list(joined)).to_pylist() == expected


@pytest.mark.parametrize("how", [{}, SMALL])
def test_rows_stay_where_they_are(tmp_path, items, how):
    receipt = items.map_subpartitions(doubled, SCHEMA).write(tmp_path / "out", **SPARKS, **how)
    out = open_shuffle(tmp_path / "out")
    assert out.partitioner == HashPartitioner("order")
    assert receipt.num_rows == out.num_rows == 400
    assert receipt.num_map_outputs == len(out.map_outputs) == (N if how else 2 * SPARK.cores)
    twice = ITEMS.set_column(1, "price", pc.multiply(ITEMS["price"], 2))
    expected = written(tmp_path / "expected", twice, "order", n=N)
    assert rows_with_subpartitions(out) == rows_with_subpartitions(expected)


def test_rows_are_partitioned_anew_by_keys(tmp_path, items):
    items.map_subpartitions(doubled, SCHEMA).write(
        tmp_path / "out", keys="price", num_subpartitions=9, **SPARKS, **SMALL
    )
    twice = ITEMS.set_column(1, "price", pc.multiply(ITEMS["price"], 2))
    expected = written(tmp_path / "expected", twice, "price", n=9)
    out = open_shuffle(tmp_path / "out")
    assert rows_with_subpartitions(out) == rows_with_subpartitions(expected)


def moved(_, reader):
    for batch in reader:
        yield batch.set_column(0, "order", pc.add(batch["order"], 1))


def fails(subpartition, reader):
    yield from reader
    if subpartition == N - 1:
        raise KeyError(subpartition)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (moved, SchemaError, r"a row of the result with order=\d+ came from subpartition \d of "),
        (fails, KeyError, "5"),
    ],
)
@pytest.mark.parametrize("mode", ["errorifexists", "append", "overwrite"])
def test_a_task_that_fails_leaves_what_was_there(tmp_path, items, function, error, message, mode):
    out = tmp_path / "out"
    if mode != "errorifexists":
        write_rows(out, ITEMS, "order", n=N)
    before = files_below(out)
    with pytest.raises(error, match=message):
        items.map_subpartitions(function, SCHEMA).write(out, mode=mode, **SPARKS, **SMALL)
    assert files_below(out) == before
    assert out.exists() == bool(before)


def test_modes(tmp_path, items):
    out = tmp_path / "out"

    def write(mode, **how):
        return items.map_subpartitions(doubled, SCHEMA).write(out, mode=mode, **SPARKS, **how)

    def never(_, reader):
        pytest.fail("nothing is to be written")

    by_price = {"keys": "order", "sort_by": "price", "num_subpartitions": N, "options": FAST}
    write_shuffle(ITEMS, out, **by_price)
    assert write("append").version == 2  # in the order that is there
    assert open_shuffle(out).sort_by == (("price", "ascending"),)
    with pytest.raises(ShuffleExistsError):
        write("errorifexists")
    ignored = items.map_subpartitions(never, SCHEMA).write(out, mode="ignore", **SPARKS)
    assert ignored.version == 2
    with pytest.raises(SchemaError, match="cannot append with 3"):
        write("append", num_subpartitions=3)
    assert write("overwrite").version == 3
    # From itself, of the version that was there when it began.
    of_itself = open_shuffle(out).map_subpartitions(doubled, SCHEMA)
    of_itself.write(out, mode="append", **SPARKS, **SMALL)
    assert open_shuffle(out).num_rows == 800


@pytest.mark.parametrize("of", ["nothing", "some", "a filter"])
def test_no_rows_at_all(tmp_path, items, of):
    how = {"some": {"subpartitions": 0}, "a filter": {"filter": "order = -1"}}.get(of, {})
    none = items.select(**how).map_subpartitions(
        lambda _, reader: (b.slice(0, 0) for b in reader), SCHEMA
    )
    receipt = none.write(tmp_path / "out", **SPARKS)
    assert (receipt.version, receipt.num_rows, receipt.num_subpartitions) == (1, 0, N)
    joined = items.select(filter="order = -1").join(items.select("order"))
    assert joined.write(tmp_path / "joined", **SPARKS).num_rows == 0
    assert open_shuffle(tmp_path / "joined").schema.names == ["order", "price"]


def test_what_a_reader_of_joined_rows_yields_is_checked(tmp_path, items, orders):
    def write(then, name):
        joined = items.join(orders, on=[("order", "o")], then=then, schema=SCHEMA)
        return joined.write(tmp_path / name, **SPARKS, **SMALL)

    assert write(lambda joined: (b.select(["order", "price"]) for b in joined), "a").num_rows == 400
    with pytest.raises(SchemaError, match="belongs to subpartition"):
        write(lambda joined: moved(0, (b.select(["order", "price"]) for b in joined)), "b")


def test_a_join_by_ranges_with_a_broadcast_side(tmp_path):
    ranges = RangePartitioner("k", bounds=[3, 7])
    table = pa.table({"k": list(range(10)), "v": list(range(10))})
    few = pa.table({"k": [1, 5, 8], "w": ["a", "b", "c"]})
    left = written(tmp_path / "few", few, n=1, partitioner=BroadcastPartitioner())
    right = written(tmp_path / "t", table, n=3, partitioner=ranges)
    left.join(right, on="k", how="right").write(tmp_path / "out", **SPARKS)
    out = open_shuffle(tmp_path / "out")
    assert out.partitioner == ranges
    assert out.subpartition_rows.to_pylist() == [4, 4, 2]


def test_arguments(tmp_path, items, orders):
    asked = items.map_subpartitions(doubled, SCHEMA)
    for how in ({"time_zone": "UTC"}, {"executor": object()}):
        with pytest.raises(OptionError, match="are of this process: leave them out"):
            asked.write(tmp_path / "out", spark=SPARK, **how)
    for how, message in [
        ({"mode": "update"}, "mode='update'"),
        ({"mode": "upsert"}, "mode='upsert': nothing identifies a row"),
        ({"options": "fast"}, "options is str"),
        ({"keys": "nope"}, "'nope' is not there"),
        ({"keys": "order", "num_subpartitions": 0}, "num_subpartitions=0"),
    ]:
        with pytest.raises((OptionError, SchemaError), match=message):
            asked.write(tmp_path / "out", spark=SPARK, **how)
    joined = items.join(orders, on=[("order", "o")], how="full")
    with pytest.raises(OptionError, match=r"^keys=None: not every row .* has the 'order'"):
        joined.write(tmp_path / "out", spark=SPARK)
    with pytest.raises(OptionError, match=r"^keys=None: the result lacks 'order'"):
        items.map_subpartitions(doubled, "price bigint").write(tmp_path / "out", spark=SPARK)
    assert not (tmp_path / "out").exists()


def test_results_of_an_aggregation_by_another_key(tmp_path, items):
    receipt = items.aggregate("order", {"price": "sum"}).write(
        tmp_path / "out", keys="price_sum", spark=SPARK,
        options=WriteOptions(sync=False, codec="none"),
    )  # fmt: skip
    assert receipt.num_subpartitions == N
    assert open_shuffle(tmp_path / "out").partitioner == HashPartitioner("price_sum")


def test_a_nan_that_pandas_made_a_null_is_explained(tmp_path):
    rows = pa.table({"k": [1.5, float("nan"), None], "v": [1, 2, 3]})
    shuffle = written(tmp_path / "s", rows, "k", n=200)

    def same(rows: pa.Table):
        return rows

    with pytest.raises(SchemaError, match=r"with k=None came from .*If the key was NaN: pandas"):
        shuffle.map_groups(lambda frame: frame, rows.schema).write(tmp_path / "out", **SPARKS)
    for function, some in (
        (same, shuffle),
        (lambda f: f, shuffle.select(filter="k < 2 OR k IS NULL")),
    ):
        asked = some.map_groups(function, rows.schema)
        asked.write(tmp_path / "out", mode="overwrite", **SPARKS)
    found = open_shuffle(tmp_path / "out").to_table()
    assert sorted(found["v"].to_pylist()) == [1, 3]


def test_a_result_of_broadcast_rows_is_stored_once(tmp_path):
    shuffle = written(tmp_path / "s", ITEMS, n=N, partitioner=BroadcastPartitioner())
    how = {"keys": "order", **SPARKS}
    for several in (None, [0, 1], range(2)):
        asked = shuffle.select(subpartitions=several).map_subpartitions(doubled, SCHEMA)
        with pytest.raises(OptionError, match=r"would have them . times: select one, .select\(sub"):
            asked.write(tmp_path / "out", **how)
    asked = shuffle.select(subpartitions=iter([0])).map_subpartitions(doubled, SCHEMA)
    receipt = asked.write(tmp_path / "out", num_subpartitions=3, **how)
    assert receipt.num_rows == ITEMS.num_rows
    assert open_shuffle(tmp_path / "out").num_subpartitions == 3
