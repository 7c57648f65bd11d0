"""Results that the tasks write as a shuffle: where rows are, and that a failure leaves nothing."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrow_format
import connector
from arrow_format import (
    BroadcastPartitioner,
    HashPartitioner,
    OptionError,
    RangePartitioner,
    ReadOptions,
    SchemaError,
    ShuffleExistsError,
    WriteOptions,
    open_shuffle,
    write_shuffle,
)
from arrow_format.operators.join_shuffles import ThenOfGroup
from tests.support.session_in_process import SessionInProcess
from tests.support.small_shuffles import FAST, files_below

SPARK = SessionInProcess()
N = 6
ITEMS = pa.table({"order": [i * i % 50 for i in range(400)], "price": list(range(400))})
ORDERS = pa.table({"o": list(range(50)), "who": [f"w{i % 7}" for i in range(50)]})
SMALL = {"target_partition_bytes": 1}
"""A task for each subpartition."""


@pytest.fixture
def items(tmp_path):
    write_shuffle(ITEMS, tmp_path / "items", num_subpartitions=N, keys="order", options=FAST)
    return tmp_path / "items"


@pytest.fixture
def orders(tmp_path):
    write_shuffle(ORDERS, tmp_path / "orders", num_subpartitions=N, keys="o", options=FAST)
    return tmp_path / "orders"


def rows_with_subpartitions(path):
    rows = open_shuffle(path).read(with_subpartition=True).read_all()
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

    how = {"into": tmp_path / "out", "options": FAST} if with_into else {}
    by_n = how | {"keys": "n"} if with_into else how
    mapped = connector.map_subpartitions(SPARK, items, batches, schema, subpartitions=0, **by_n)
    mapped = open_shuffle(tmp_path / "out").to_table() if with_into else mapped.toArrow()
    expected = [{"n": n, "l": [n], "t": str(n)} for n in range(5) for _ in range(rows_each)]
    assert mapped.sort_by("n").to_pylist() == expected
    joined = ThenOfGroup(lambda _: (row for row in ()), schema, batches, schema, "/a and /b")([0])
    assert pa.Table.from_batches(list(joined)).to_pylist() == expected


@pytest.mark.parametrize("how", [{}, SMALL])
def test_rows_stay_where_they_are(tmp_path, items, how):
    receipt = connector.map_subpartitions(
        SPARK, items, doubled, SCHEMA, into=tmp_path / "out", options=FAST, **how
    )
    out = open_shuffle(tmp_path / "out")
    assert out.partitioner == HashPartitioner("order")
    assert receipt.num_rows == out.num_rows == 400
    assert receipt.num_map_outputs == len(out.map_outputs) == (N if how else 2 * SPARK.cores)
    twice = ITEMS.set_column(1, "price", pc.multiply(ITEMS["price"], 2))
    write_shuffle(twice, tmp_path / "expected", num_subpartitions=N, keys="order", options=FAST)
    assert rows_with_subpartitions(out.path) == rows_with_subpartitions(tmp_path / "expected")


def test_rows_are_partitioned_anew_by_keys(tmp_path, items):
    connector.map_subpartitions(
        SPARK, items, doubled, SCHEMA, into=tmp_path / "out", keys="price", num_subpartitions=9,
        options=[FAST, ReadOptions(memory_bytes=128 << 20)], **SMALL,
    )  # fmt: skip
    twice = ITEMS.set_column(1, "price", pc.multiply(ITEMS["price"], 2))
    write_shuffle(twice, tmp_path / "expected", num_subpartitions=9, keys="price", options=FAST)
    found, expected = (rows_with_subpartitions(tmp_path / name) for name in ("out", "expected"))
    assert found == expected


def test_a_chain_of_joins_and_an_aggregation_stay_in_their_subpartitions(tmp_path, items, orders):
    joined, summed = tmp_path / "joined", tmp_path / "summed"
    connector.join_shuffles(
        SPARK, items, orders, on=[("order", "o")], right_columns=["who"], into=joined, options=FAST
    )
    assert open_shuffle(joined).partitioner == HashPartitioner("order")
    connector.aggregate_shuffle(
        SPARK, joined, ["who", "order"], {"n": ("*", "count")}, into=summed, options=FAST, **SMALL
    )
    again = connector.join_shuffles(SPARK, orders, summed, on=[("o", "order"), "who"], how="left")
    expected = (
        ITEMS.join(ORDERS, "order", "o").group_by(["order", "who"]).aggregate([([], "count_all")])
    )
    found = [row for row in again.collect() if row["n"] is not None]
    assert len(again.collect()) == 50
    key = ("order", "who")
    assert sorted((row["order"], row["who"], row["n"]) for row in found) == sorted(
        (row[key[0]], row[key[1]], row["count_all"]) for row in expected.to_pylist()
    )
    assert sum(len(open_shuffle(summed).subpartition(i).read_all()) for i in range(N)) == len(found)


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
        write_shuffle(ITEMS, out, num_subpartitions=N, keys="order", options=FAST)
    before = files_below(out)
    with pytest.raises(error, match=message):
        connector.map_subpartitions(
            SPARK, items, function, SCHEMA, into=out, mode=mode, options=FAST, **SMALL
        )
    assert files_below(out) == before
    assert out.exists() == bool(before)


def test_modes(tmp_path, items):
    out = tmp_path / "out"

    def write(mode, **how):
        return connector.map_subpartitions(
            SPARK, items, doubled, SCHEMA, into=out, mode=mode, options=FAST, **how
        )

    def never(_, reader):
        pytest.fail("nothing is to be written")

    by_price = {"keys": "order", "sort_by": "price", "num_subpartitions": N, "options": FAST}
    write_shuffle(ITEMS, out, **by_price)
    assert write("append").version == 2  # in the order that is there
    assert open_shuffle(out).sort_by == (("price", "ascending"),)
    with pytest.raises(ShuffleExistsError):
        write("errorifexists")
    ignored = connector.map_subpartitions(
        SPARK, items, never, SCHEMA, into=out, mode="ignore", options=FAST
    )
    assert ignored.version == 2
    with pytest.raises(SchemaError, match="cannot append with 3"):
        write("append", num_subpartitions=3)
    assert write("overwrite").version == 3
    # From itself, of the version that was there when it began.
    connector.map_subpartitions(
        SPARK, out, doubled, SCHEMA, into=out, mode="append", options=FAST, **SMALL
    )
    assert open_shuffle(out).num_rows == 800


@pytest.mark.parametrize("of", ["nothing", "some", "a filter"])
def test_no_rows_at_all(tmp_path, items, of):
    how = {"some": {"subpartitions": 0}, "a filter": {"filter": "order = -1"}}.get(of, {})
    receipt = connector.map_subpartitions(
        SPARK, items, lambda _, reader: (b.slice(0, 0) for b in reader), SCHEMA,
        into=tmp_path / "out", options=FAST, **how,
    )  # fmt: skip
    assert (receipt.version, receipt.num_rows, receipt.num_subpartitions) == (1, 0, N)
    joined = connector.join_shuffles(
        SPARK, items, items, right_columns=[], left_filter="order = -1", into=tmp_path / "joined",
        options=FAST,
    )  # fmt: skip
    assert (joined.num_rows, open_shuffle(tmp_path / "joined").schema.names) == (
        0, ["order", "price"],
    )  # fmt: skip


def test_what_a_reader_of_joined_rows_yields_is_checked(tmp_path, items, orders):
    def write(then, name):
        return connector.join_shuffles(
            SPARK, items, orders, on=[("order", "o")], right_columns=["who"], then=then,
            schema=SCHEMA, into=tmp_path / name, options=FAST, **SMALL,
        )  # fmt: skip

    assert write(lambda joined: (b.select(["order", "price"]) for b in joined), "a").num_rows == 400
    with pytest.raises(SchemaError, match="belongs to subpartition"):
        write(lambda joined: moved(0, (b.select(["order", "price"]) for b in joined)), "b")


def test_a_join_by_ranges_with_a_broadcast_side(tmp_path):
    ranges = RangePartitioner("k", bounds=[3, 7])
    table = pa.table({"k": list(range(10)), "v": list(range(10))})
    few = pa.table({"k": [1, 5, 8], "w": ["a", "b", "c"]})
    write_shuffle(table, tmp_path / "t", num_subpartitions=3, partitioner=ranges, options=FAST)
    everyone = arrow_format.BroadcastPartitioner()
    write_shuffle(few, tmp_path / "few", num_subpartitions=1, partitioner=everyone, options=FAST)
    connector.join_shuffles(SPARK, tmp_path / "few", tmp_path / "t", on="k", how="right",
                            into=tmp_path / "out", options=FAST)  # fmt: skip
    out = open_shuffle(tmp_path / "out")
    assert out.partitioner == ranges
    assert out.subpartition_rows.to_pylist() == [4, 4, 2]


def test_arguments(tmp_path, items, orders):
    def run(**how):
        connector.map_subpartitions(SPARK, items, doubled, SCHEMA, **how)

    for how in ({"keys": "order"}, {"mode": "append"}, {"num_subpartitions": 3}, {"options": FAST}):
        with pytest.raises(OptionError, match=rf"^{next(iter(how))}.*: only with into="):
            run(**how)
    with pytest.raises(OptionError, match=r"^partition_by: only with into="):
        connector.aggregate_shuffle(
            SPARK, items, "order", {"price": "sum"}, partition_by="price_sum"
        )
    for how, message in [
        ({"mode": "upsert"}, "mode='upsert'"),
        ({"options": "fast"}, "options is str"),
        ({"keys": "nope"}, "'nope' is not there"),
        ({"keys": "order", "num_subpartitions": 0}, "num_subpartitions=0"),
    ]:
        with pytest.raises((OptionError, SchemaError), match=message):
            run(into=tmp_path / "out", **how)
    with pytest.raises(OptionError, match=r"^keys=None: not every row .* has the 'order'"):
        connector.join_shuffles(
            SPARK, items, orders, on=[("order", "o")], how="full", into=tmp_path / "out"
        )
    with pytest.raises(OptionError, match=r"^keys=None: the result lacks 'order'"):
        connector.map_subpartitions(
            SPARK, items, doubled, pa.schema([("price", pa.int64())]), into=tmp_path / "out"
        )
    assert not (tmp_path / "out").exists()


def test_options_of_both_kinds(tmp_path, items):
    options = [WriteOptions(sync=False, codec="none"), ReadOptions(memory_bytes=100 << 20)]
    receipt = connector.aggregate_shuffle(
        SPARK, items, "order", {"price": "sum"}, into=tmp_path / "out", options=options,
        partition_by="price_sum",
    )  # fmt: skip
    assert receipt.num_subpartitions == N
    assert open_shuffle(tmp_path / "out").partitioner == HashPartitioner("price_sum")


def test_a_nan_that_pandas_made_a_null_is_explained(tmp_path):
    rows = pa.table({"k": [1.5, float("nan"), None], "v": [1, 2, 3]})
    path = tmp_path / "s"
    write_shuffle(rows, path, num_subpartitions=200, keys="k", options=FAST)

    def same(rows: pa.Table):
        return rows

    into = {"into": tmp_path / "out", "options": FAST}
    with pytest.raises(SchemaError, match=r"with k=None came from .*If the key was NaN: pandas"):
        connector.map_groups(SPARK, path, lambda frame: frame, rows.schema, **into)
    for how in ({"function": same}, {"function": lambda f: f, "filter": "k < 2 OR k IS NULL"}):
        connector.map_groups(SPARK, path, schema=rows.schema, mode="overwrite", **how, **into)
    found = open_shuffle(tmp_path / "out").to_table()
    assert sorted(found["v"].to_pylist()) == [1, 3]


def test_a_result_of_broadcast_rows_is_stored_once(tmp_path):
    everyone = BroadcastPartitioner()
    path, into = tmp_path / "s", {"into": tmp_path / "out", "keys": "order", "options": FAST}
    write_shuffle(ITEMS, path, num_subpartitions=N, partitioner=everyone, options=FAST)
    for several in (None, [0, 1], range(2)):
        with pytest.raises(OptionError, match=r"would have them . times: add subpartitions=0"):
            connector.map_subpartitions(SPARK, path, doubled, SCHEMA, subpartitions=several, **into)
    receipt = connector.map_subpartitions(
        SPARK, path, doubled, SCHEMA, subpartitions=iter([0]), num_subpartitions=3, **into
    )
    assert receipt.num_rows == ITEMS.num_rows
    assert open_shuffle(into["into"]).num_subpartitions == 3
