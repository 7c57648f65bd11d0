"""Joins against a plain Python model: nulls, NaN, zeros, repeated keys, empty sides, all kinds."""

import datetime as dt
import math
from collections import Counter
from contextlib import suppress
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format import (
    BROADCAST,
    BroadcastPartitioner,
    HashPartitioner,
    OptionError,
    RangePartitioner,
    RoundRobinPartitioner,
    SchemaError,
    WriteOptions,
)
from arrow_format.arrays.batches import rebatched
from arrow_format.operators import join as range_join
from arrow_format.operators.hash_join import Indexed, join_blocks
from arrow_format.operators.join import join_range
from arrow_format.operators.join_plan import JoinedColumn, JoinPlan, plan_join
from arrow_format.operators.key_index import NO_ROW, KeyIndex
from arrow_format.read.selection import LEAST_SHARE
from tests.support.exhaustive import exhaustive
from tests.support.known_shuffle import KnownShuffle
from tests.support.own_partitioner import OwnPartitioner
from tests.support.small_shuffles import shuffle_of
from tests.support.spark_order_model import as_key

KINDS = ["inner", "left", "right", "full", "semi", "anti"]

KEY_TYPES = {
    pa.int64(): st.integers(-2, 2),
    pa.float64(): st.sampled_from([0.0, -0.0, math.nan, -math.nan, 1.5]),
    pa.float32(): st.sampled_from([0.0, -0.0, math.nan, 1.5]),
    pa.string(): st.sampled_from(["", "a", "A", "é"]),
    pa.binary(): st.sampled_from([b"", b"a", b"\x00"]),
    pa.bool_(): st.booleans(),
    pa.decimal128(20, 2): st.sampled_from([Decimal("0.00"), Decimal("-7.25"), Decimal("1.00")]),
    pa.date32(): st.sampled_from([dt.date(1969, 1, 1), dt.date(2020, 2, 29)]),
    pa.timestamp("us", "UTC"): st.sampled_from([dt.datetime(2000, 1, 1, tzinfo=dt.UTC)]),
    pa.duration("us"): st.sampled_from([dt.timedelta(0), dt.timedelta(1)]),
    pa.time64("ns"): st.sampled_from([dt.time(0), dt.time(23, 59)]),
}


def modelled(left, right, how):
    """Pairs (left row, right row) of a join; None where a side is missing."""
    pairs = [
        (i, j)
        for i, a in enumerate(left)
        for j, b in enumerate(right)
        if None not in a and [*map(as_key, a)] == [*map(as_key, b)]
    ]
    lefts, rights = {i for i, _ in pairs}, {j for _, j in pairs}
    if how == "semi":
        return [(i, None) for i in lefts]
    if how == "anti":
        return [(i, None) for i in range(len(left)) if i not in lefts]
    if how in ("left", "full"):
        pairs += [(i, None) for i in range(len(left)) if i not in lefts]
    if how in ("right", "full"):
        pairs += [(None, j) for j in range(len(right)) if j not in rights]
    return pairs


@st.composite
def sides(draw):
    types = draw(st.lists(st.sampled_from(list(KEY_TYPES)), min_size=1, max_size=3))
    key = st.tuples(*(st.none() | KEY_TYPES[type_] for type_ in types))
    rows = st.lists(key, max_size=12)
    return types, draw(rows), draw(rows)


def batch_of(types, rows, number):
    columns = [pa.array([row[i] for row in rows], type_) for i, type_ in enumerate(types)]
    names = [f"k{i}" for i in range(len(types))]
    return pa.record_batch(
        [*columns, pa.array(range(len(rows)), pa.int64())], names=[*names, number]
    )


@given(
    sides(), st.sampled_from(KINDS), st.booleans(), st.integers(1, 12), st.integers(1, 9),
    st.integers(1, 400),
)  # fmt: skip
def test_blocks_join_as_the_model_says(case, how, held_is_left, block_rows, most, max_bytes):
    types, lefts, rights = case
    names = [f"k{i}" for i in range(len(types))]
    is_filter = how in ("semi", "anti")
    columns = [JoinedColumn("i", "i", None)]
    if not is_filter:
        columns.append(JoinedColumn("j", None, "j"))
        columns += [JoinedColumn(f"both {name}", name, name) for name in names]
    plan = JoinPlan(how, tuple(zip(names, names, strict=True)), tuple(columns))
    left, right = batch_of(types, lefts, "i"), batch_of(types, rights, "j")
    held, other = (left, right) if held_is_left else (right, left)
    blocks = [other.slice(at, block_rows) for at in range(0, other.num_rows, block_rows)]

    index = Indexed(held, plan, is_left=held_is_left)
    result = list(
        join_blocks(index, other.schema, blocks, plan, max_rows=most, max_bytes=max_bytes)
    )  # fmt: skip

    assert all(0 < batch.num_rows <= most for batch in result)
    rows = [row for batch in result for row in batch.to_pylist()]
    pairs = [(row["i"], row.get("j")) for row in rows]
    assert Counter(pairs) == Counter(modelled(lefts, rights, how))
    for row in rows if not is_filter else ():
        key = lefts[row["i"]] if row["i"] is not None else rights[row["j"]]
        assert [as_key(row[f"both {name}"]) for name in names] == [*map(as_key, key)]
    for batch in result:
        assert [batch.schema.field(f"both {n}").type for n in names if not is_filter] == (
            [] if is_filter else types
        )


@pytest.mark.slow
def test_a_key_repeated_on_both_sides_costs_no_memory():
    """Ten thousand times ten thousand pairs, one piece at a time."""
    zeros = pa.array(np.zeros(10_000, np.int64))
    index = KeyIndex([zeros])
    before = pa.total_allocated_bytes()
    pieces = index.pairs(index.look_up([zeros]), unmatched=False, max_pairs=1_000_000)
    total = 0
    for number, (rows, others) in enumerate(pieces):
        total += len(rows)
        assert rows[0] == number * 100
        assert others[-1] == 9_999
    assert total == 100_000_000
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_an_index_of_nothing():
    index = KeyIndex([pa.array([], pa.int64()), pa.array([], pa.string())])
    keys = index.look_up([pa.array([1, None]), pa.array(["a", "b"])])
    assert keys.tolist() == [NO_ROW, NO_ROW]
    assert list(index.pairs(keys, unmatched=False, max_pairs=5)) == []
    ((rows, others),) = index.pairs(keys, unmatched=True, max_pairs=5)
    assert (rows.tolist(), others.tolist()) == ([0, 1], [NO_ROW, NO_ROW])


LINK = JoinPlan(
    "inner", (("k", "k"),), (JoinedColumn("v", "v", None), JoinedColumn("d", None, "d"))
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "documents",
    [
        [b"x" * 40_000],
        [b"x", b"x" * 400_000, b"", None],
        [["x" * 20_000] * 2, None, [], [None, "x"]],
        [{"a": [b"x" * 39_000], "b": 1}],
    ],
)
def test_wide_rows_are_put_together_a_few_at_a_time(documents):
    """Sixty thousand rows that each take a document: 2 GiB and more in all."""
    number = len(documents)
    right = pa.record_batch({"k": range(number), "d": documents})
    left = pa.record_batch({"k": np.arange(60_000) % number, "v": np.arange(60_000)})
    num_rows = least = 0
    held = Indexed(right, LINK, is_left=False)
    for batch in join_blocks(held, left.schema, [left], LINK):
        assert batch.nbytes < (17 << 20)
        assert batch["v"].to_pylist() == list(range(num_rows, num_rows + batch.num_rows))
        num_rows += batch.num_rows
        least = max(least, batch.nbytes)
    assert num_rows == 60_000
    assert least > (15 << 20)


def allocated(value):
    """Half a million numbers in memory that Arrow counts."""
    return pc.add(pa.array(np.zeros(500_000, np.int64)), value)


def test_a_block_is_let_go_before_the_next_is_made():
    held = Indexed(pa.record_batch({"k": [1], "d": ["x"]}), LINK, is_left=False)
    schema = pa.schema({"k": pa.int64(), "v": pa.int64()})
    before, alive = pa.total_allocated_bytes(), []

    def blocks():
        for number in range(5):
            alive.append(pa.total_allocated_bytes() - before)
            yield pa.record_batch([allocated(number % 2), allocated(number)], schema=schema)

    for batch in join_blocks(held, schema, blocks(), LINK):
        del batch
    assert max(alive) < 1 << 20


COUNTING = pa.proxy_memory_pool(pa.default_memory_pool())
"""Knows its own peak; lives as long as what was allocated in it."""


def small_batches():
    for _ in range(4):
        yield pa.record_batch({name: allocated(1) for name in "abcd"})


def test_joined_batches_are_not_kept_beside_what_they_came_from():
    before, size = pa.total_allocated_bytes(), next(small_batches()).nbytes
    num_rows = []
    for batch in rebatched(small_batches(), min_rows=1 << 62, max_bytes=2 * size):
        assert pa.total_allocated_bytes() - before < 1.1 * batch.nbytes
        num_rows.append(batch.num_rows)
    assert num_rows == [1_000_000, 1_000_000]


def test_the_held_side_is_there_once_and_a_column_twice():
    usual = pa.default_memory_pool()
    pa.set_memory_pool(COUNTING)
    try:
        schema = next(small_batches()).schema
        before = COUNTING.bytes_allocated()
        whole = range_join.joined_rows(list(small_batches()), schema)
        most = COUNTING.max_memory() - before
    finally:
        pa.set_memory_pool(usual)
    assert whole.num_rows == 2_000_000
    assert most < 1.4 * whole.nbytes
    assert range_join.joined_rows([], schema).schema == schema


# Plans -------------------------------------------------------------------------------------------

PAYLOAD = pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.list_(pa.int8()))])


@pytest.fixture(scope="module")
def shuffles(tmp_path_factory):
    """Orders and items, partitioned alike, with payloads of every awkward kind."""
    directory = tmp_path_factory.mktemp("joins")
    rng = np.random.default_rng(11)
    orders = pa.table(
        {
            "id": pa.array([*rng.permutation(150)[:100], None, None], pa.int64()),
            "who": pa.array([f"customer {i % 97}" for i in range(102)]),
            "paid": pa.array([Decimal(i) / 100 for i in range(102)], pa.decimal128(20, 2)),
            "at": pa.array(range(102), pa.timestamp("us", "UTC")),
            "more": pa.array([{"x": i, "y": [i % 100] * (i % 3)} for i in range(102)], PAYLOAD),
        }
    )
    items = pa.table(
        {
            "order": pa.array([*rng.integers(0, 200, 400), None], pa.int64()),
            "tags": pa.array([[("a", i)] for i in range(401)], pa.map_(pa.string(), pa.int64())),
            "who": pa.array([f"customer {i % 89}" for i in range(401)]),
        }
    )
    everyone = {"n": 3, "partitioner": BroadcastPartitioner()}
    return {
        "orders": shuffle_of(directory / "orders", orders, "id", n=50),
        "items": shuffle_of(directory / "items", items, "order", n=50),
        "all orders": shuffle_of(directory / "all orders", orders, **everyone),
        "all items": shuffle_of(directory / "all items", items, **everyone),
    }


def rows_of(table):
    return Counter(str(row) for row in table.to_pylist())


def expected_rows(orders, items, how):
    left, right = orders.read().read_all().to_pylist(), items.read().read_all().to_pylist()
    empty = [dict.fromkeys(orders.schema.names), dict.fromkeys(items.schema.names)]
    rows = Counter()
    for i, j in modelled([(r["id"],) for r in left], [(r["order"],) for r in right], how):
        row = left[i] if i is not None else empty[0]
        if how not in ("semi", "anti"):
            right_row = right[j] if j is not None else empty[1]
            row = {f"{name}{'_l' * (name == 'who')}": value for name, value in row.items()}
            row |= {f"{name}{'_r' * (name == 'who')}": value for name, value in right_row.items()}
        rows[str(row)] += 1
    return rows


@pytest.mark.slow
@exhaustive(least=9)
@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("group_bytes", [100, 2_000, 48 << 20])
def test_ranges_join_as_the_model_says(shuffles, how, group_bytes):
    orders, items = shuffles["orders"], shuffles["items"]
    plan = plan_join(orders, items, on=[("id", "order")], how=how, suffixes=("_l", "_r"))
    result = pa.Table.from_batches(join_range(orders, items, plan, group_bytes=group_bytes))
    assert rows_of(result) == expected_rows(orders, items, how)
    assert result.schema.field("more").type == PAYLOAD
    assert result.schema.field("paid").type == pa.decimal128(20, 2)
    if how not in ("semi", "anti"):
        assert result.schema.field("tags").type == items.schema.field("tags").type


@pytest.fixture(scope="module")
def one_subpartition(tmp_path_factory):
    """Two shuffles of one subpartition; a tenth of the keys are null, some are NaN, most repeat."""
    directory = tmp_path_factory.mktemp("large")
    shuffles = []
    for seed, name in enumerate(("i", "j")):
        rng = np.random.default_rng(seed)
        numbers = rng.integers(0, 900, 3_000).astype(np.float64)
        numbers[rng.random(3_000) < 0.01] = -math.nan if seed else math.nan
        keys = pa.array(numbers, mask=rng.random(3_000) < 0.1)
        batches = pa.table({"k": keys, name: np.arange(3_000)}).to_batches(max_chunksize=400)
        small = WriteOptions(sync=False, chunk_bytes=4_000)
        shuffles.append(shuffle_of(directory / name, batches, "k", n=1, options=small))
    return shuffles


@pytest.mark.parametrize("how", KINDS)
def test_a_subpartition_too_large_to_hold_is_joined_in_passes(one_subpartition, how, monkeypatch):
    held = []
    monkeypatch.setattr(
        range_join, "Indexed", lambda batch, *a, **b: held.append(batch) or Indexed(batch, *a, **b)
    )
    left, right = one_subpartition
    plan = plan_join(left, right, how=how)
    at_once, in_passes = (
        rows_of(pa.Table.from_batches(join_range(left, right, plan, group_bytes=most)))
        for most in (1 << 30, 60_000)
    )
    assert in_passes == at_once
    assert held.pop(0).num_rows == 3_000
    assert len(held) > 5
    assert max(batch.num_rows for batch in held) < 600


@pytest.mark.parametrize("width", [8, 60, 90, 120, 1_000])
def test_small_subpartitions_are_read_once(tmp_path, width, monkeypatch):
    read = {}
    shuffles = []
    for seed, name in enumerate(("left", "right")):
        text = [f"{i:0{width}}" for i in range(20_000)]
        keys = np.random.default_rng(seed).permutation(20_000)
        table = pa.table({"k": keys, name: text})
        shuffle = shuffle_of(tmp_path / name, table, "k", n=100)
        counter = read[name] = Counter()

        def reader(first, end, *rest, counter=counter, usual=shuffle.reader, **how):
            counter.update(range(first, end))
            return usual(first, end, *rest, **how)

        monkeypatch.setattr(shuffle, "reader", reader)
        shuffles.append(shuffle)
    result = join_range(*shuffles, plan_join(*shuffles), group_bytes=1 << 20)
    assert sum(batch.num_rows for batch in result) == 20_000
    assert [set(counter.values()) for counter in read.values()] == [{1}, {1}]


def test_the_side_whose_rows_and_index_are_less_is_held(tmp_path):
    sides = []
    for name, rows, size in (("many", 40_000, 8), ("few", 500, 700)):
        table = pa.table({"k": np.arange(rows), name: ["x" * size] * rows})
        shuffle = shuffle_of(tmp_path / name, table, "k", n=1)
        sides.append(range_join._Side(shuffle, ["k", name], 1, range(1)))
    assert sides[0].weights.sum() < 3 * sides[1].weights.sum()
    ((held, *_),) = range_join._groups((sides[0], sides[1]), 1 << 20, 1 << 20, range(1), None)
    assert held == 1


def test_a_side_weighs_what_is_decoded_of_it(tmp_path):
    table = pa.table({"k": np.arange(2_000), "v": np.arange(2_000), "t": ["x" * 300] * 2_000})
    shuffle = shuffle_of(tmp_path / "s", table, "k", n=4)
    (rows, whole), (_, narrow) = shuffle.weights(), shuffle.weights(["k", "v"])
    assert rows.sum() == 2_000
    assert 16 * 2_000 <= narrow.sum() < 20 * 2_000 < 300 * 2_000 < whole.sum()
    filtered = shuffle.where("k = 7")
    (subpartition,) = filtered.candidates()
    rows_left, left = filtered.weights(["v"])
    assert np.flatnonzero(rows_left).tolist() == np.flatnonzero(left).tolist() == [subpartition]
    # The key is decoded to be compared; one key is taken to have a part of its subpartition.
    assert 0 <= left[subpartition] - narrow[subpartition] * LEAST_SHARE < 2
    nothing, _ = shuffle.where("v < 0").weights()
    assert not nothing.any()
    for one in (shuffle, filtered):
        for within in (range(1, 3), range(4), range(subpartition, subpartition + 1), range(0)):
            part = one.weights(["v"], within=within)
            whole = one.weights(["v"])
            assert [of.tolist() for of in part] == [of[within].tolist() for of in whole]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("left", "right", "kinds"),
    [("orders", "all items", ["inner", "left", "semi", "anti"]),
     ("all orders", "items", ["inner", "right"]),
     ("all orders", "all items", [])],
)  # fmt: skip
def test_a_broadcast_side_never_gives_its_rows_twice(shuffles, left, right, kinds):
    orders, items = shuffles[left], shuffles[right]
    for how in KINDS:
        if how in kinds:
            plan = plan_join(
                orders, items, on=[("id", "order")], how=how, suffixes=("_l", "_r")
            )  # fmt: skip
            result = pa.Table.from_batches(join_range(orders, items, plan, group_bytes=2_000))
            assert rows_of(result) == expected_rows(shuffles["orders"], shuffles["items"], how)
        else:
            with pytest.raises(OptionError, match="broadcast"):
                plan_join(orders, items, on=[("id", "order")], how=how, suffixes=("_l", "_r"))


def some_to_all(batch, num_subpartitions):
    """Send rows to everyone where a column says so, and hash the others."""
    hashed = HashPartitioner("k").bind(batch.schema, num_subpartitions, 0)
    return np.where(batch["all"], BROADCAST, hashed(batch))


@pytest.fixture(scope="module")
def partly(tmp_path_factory):
    """The same rows with few of them broadcast, with none, and with all of them."""
    directory = tmp_path_factory.mktemp("partly")
    keys = np.arange(200) % 60
    result = {}
    for name, of_all in (("some", keys % 7 == 0), ("none", keys < 0)):
        table = pa.table({"k": keys, "all": of_all, name: range(200)})
        own = OwnPartitioner(some_to_all)
        result[name] = shuffle_of(directory / name, table, n=8, partitioner=own)
    table = pa.table({"k": keys, "every": range(200)})
    everyone = BroadcastPartitioner()
    result["every"] = shuffle_of(directory / "every", table, n=3, partitioner=everyone)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("group_bytes", [1, 48 << 20])
@pytest.mark.parametrize(
    ("left", "right", "kinds"),
    [("none", "some", ["inner", "left", "semi", "anti"]),
     ("some", "none", ["inner", "right"]),
     ("some", "some", []), ("some", "every", []), ("every", "some", [])],
)  # fmt: skip
def test_rows_that_a_partitioner_broadcasts_are_never_given_twice(
    partly, left, right, kinds, group_bytes
):
    left_shuffle, right_shuffle = partly[left], partly[right]
    keys = [int(i) % 60 for i in range(200)]
    for how in KINDS:
        some = {"on": "k", "left_columns": [left], "right_columns": [right], "how": how}
        if left == right:
            some["suffixes"] = ("_l", "_r")
        if how in kinds:
            plan = plan_join(left_shuffle, right_shuffle, **some)
            result = join_range(left_shuffle, right_shuffle, plan, group_bytes=group_bytes)
            rows = [row for batch in result for row in batch.to_pylist()]
            pairs = [(row[left], row.get(right)) for row in rows]
            expected = modelled([(k,) for k in keys], [(k,) for k in keys], how)
            assert Counter(pairs) == Counter(expected)
        else:
            with pytest.raises(OptionError, match=r"broadcast rows, |have broadcast rows"):
                plan_join(left_shuffle, right_shuffle, **some)


def test_a_broadcast_side_is_looked_up_in_large_blocks(partly, monkeypatch):
    """However few adjacent subpartitions are wanted: each block builds the table of keys again."""
    none, every = partly["none"], partly["every"]
    plan = plan_join(none, every, on="k")
    asked, look_up = [], KeyIndex.look_up
    monkeypatch.setattr(
        KeyIndex, "look_up", lambda self, columns: asked.append(1) or look_up(self, columns)
    )
    result = pa.Table.from_batches(join_range(none, every, plan, [0, 2, 4, 6]))
    rows = none.read([0, 2, 4, 6], ["k"]).read_all()["k"].to_pylist()
    counts = Counter(int(i) % 60 for i in range(200))
    assert result.num_rows == sum(counts[k] for k in rows) > 0
    assert len(asked) == 1


def test_some_subpartitions(shuffles):
    orders, items = shuffles["orders"], shuffles["items"]
    plan = plan_join(
        orders, items, on=[("id", "order")], left_columns=["id"], right_columns=["order"]
    )
    some = [3, 4, 5, *range(20, 40)]
    result = pa.Table.from_batches(join_range(orders, items, plan, some))
    expected = orders.read(some, ["id"]).read_all().join(
        items.read(some, ["order"]).read_all(), "id", "order", "inner", coalesce_keys=False
    )  # fmt: skip
    assert rows_of(result) == rows_of(expected)


def side(path, partitioner, **types):
    return KnownShuffle(partitioner, pa.schema(types), path)


LEFT = side("/l", HashPartitioner("a", "b"), a=pa.int32(), b=pa.string(), v=pa.int8())
RIGHT = side("/r", HashPartitioner("a", "c"), a=pa.int32(), c=pa.string(), w=pa.int8())
ON = ["a", ("b", "c")]
MINE = side("/m", {"kind": "mine"}, a=pa.int32(), v=pa.list_(pa.int8()))


def test_the_partition_keys_are_what_is_joined_on():
    assert plan_join(LEFT, LEFT, suffixes=("", "_r")).keys == (("a", "a"), ("b", "b"))
    plan = plan_join(LEFT, RIGHT, on=ON)
    assert plan.keys == (("a", "a"), ("b", "c"))
    assert [c.name for c in plan.columns] == ["a", "b", "v", "c", "w"]
    assert plan.columns[0] == JoinedColumn("a", "a", None)
    assert plan_join(LEFT, RIGHT, on=ON, how="right").columns[0] == JoinedColumn("a", None, "a")
    assert plan_join(LEFT, RIGHT, on=ON, how="fullOuter").columns[0] == JoinedColumn("a", "a", "a")
    semi = plan_join(LEFT, RIGHT, on=ON, how="left_semi", left_columns=["v"])
    assert [c.name for c in semi.columns] == ["a", "v"]
    assert semi.left_columns == ["a", "b", "v"]
    assert semi.right_columns == ["a", "c"]
    assert plan_join(LEFT, RIGHT, on=["a", ("b", "c"), ("v", "w")]).keys[2] == ("v", "w")
    assert plan_join(MINE, MINE, on="a", right_columns=[]).keys == (("a", "a"),)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"how": "cross"}, OptionError, "how='cross': expected inner, left"),
        ({"how": None}, OptionError, "how=None: expected inner"),
        ({"on": "a"}, OptionError, r'lacks the partition key\(s\) \("b", "c"\)'),
        ({"on": []}, OptionError, "expected column names or pairs"),
        ({"on": [1]}, OptionError, "on: 1 is neither a column name nor a pair"),
        ({"on": ["a", ("b", "c"), "x"]}, SchemaError, "column 'x' is not there"),
        ({"left_columns": ["x"]}, SchemaError, "left_columns: column 'x' is not there"),
        ({"right_columns": ["x"], "how": "semi"}, SchemaError, "right_columns: column 'x'"),
        ({"suffixes": ("_l",)}, OptionError, r"suffixes=\('_l',\): expected two strings"),
        ({"suffixes": "_l"}, OptionError, "suffixes='_l': expected two strings"),
        ({"suffixes": (1, 2)}, OptionError, "expected two strings"),
        ({"left_columns": 5}, OptionError, "left_columns=5: expected a list of column names"),
        ({"right_columns": [5]}, OptionError, r"right_columns=\[5\]: expected a list"),
        ({"left_columns": (c for c in "av")}, OptionError, "left_columns=.*generator.*expected a"),
        (
            {"on": ["a", ("b", "c"), ("v", "c")]},
            SchemaError,
            "key 'v' of the left is int8, 'c' of the right string: cast one of them",
        ),
    ],
)
def test_plans_that_do_not_work(arguments, error, message):
    with pytest.raises(error, match=message):
        plan_join(LEFT, RIGHT, **{"on": ON} | arguments)


def test_keys_that_differ_in_labels_alone():
    berlin = side("/r", HashPartitioner("t"), t=pa.timestamp("us", "Europe/Berlin"))
    utc = side("/l", HashPartitioner("t"), t=pa.timestamp("us", "UTC"))
    assert plan_join(utc, berlin).keys == (("t", "t"),)
    short = side("/r", HashPartitioner("a"), a=pa.int16())
    whole = side("/l", HashPartitioner("a"), a=pa.int32())
    with pytest.raises(SchemaError, match="key 'a' of the left is int32, 'a' of the right int16"):
        plan_join(whole, short)


FLAT = [
    *(pa.null(), pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()),
    *(pa.decimal32(5, 1), pa.decimal64(15, 2), pa.decimal128(38, 10), pa.decimal256(60, 3)),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.duration("us")),
    *(pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.month_day_nano_interval()),
    *(pa.string(), pa.binary(), pa.binary(4)),
]


@pytest.mark.parametrize("type_", FLAT, ids=str)
def test_a_key_of_any_type_is_joined_on_or_refused_by_the_plan(tmp_path, type_):
    table = pa.table({"k": pa.array([1, 2, 2]), "x": pa.nulls(3, type_)})
    left, right = (
        shuffle_of(tmp_path / name, table, "k", n=2, for_spark=False) for name in ("l", "r")
    )
    plan = None
    with suppress(SchemaError):
        plan = plan_join(left, right, on=["k", "x"], how="full")
    if plan is not None:
        result = pa.Table.from_batches(join_range(left, right, plan))
        assert result.num_rows == 6, "no null equals another"


@pytest.mark.parametrize("type_", [pa.decimal32(5, 1), pa.decimal64(15, 2)], ids=str)
def test_a_key_that_arrow_cannot_look_up_is_refused(type_):
    sides = [side(path, HashPartitioner("k"), k=pa.int8(), x=type_) for path in ("/l", "/r")]
    with pytest.raises(SchemaError, match=r"/l: key 'x' is decimal.*, which cannot be looked up"):
        plan_join(*sides, on=["k", "x"])


def test_keys_of_two_time_zones_are_one_column():
    plan = JoinPlan("full", (("t", "t"),), (JoinedColumn("t", "t", "t"),))
    left, right = (
        pa.record_batch([pa.array(times, pa.timestamp("us", zone))], names=["t"])
        for times, zone in (([1, 2, None], "UTC"), ([2, 3], "Europe/Berlin"))
    )
    for held, other, is_left in ((left, right, True), (right, left, False)):
        batches = join_blocks(Indexed(held, plan, is_left=is_left), other.schema, [other], plan)
        result = pa.Table.from_batches(batches)["t"].cast(pa.int64()).to_pylist()
        assert Counter(result) == Counter([1, 2, 3, None])


def test_names_of_both_sides():
    other = side("/r", HashPartitioner("a", "c"), a=pa.int32(), c=pa.string(), v=pa.int8())
    with pytest.raises(SchemaError, match="both sides have 'v': leave them out"):
        plan_join(LEFT, other, on=ON)
    plan = plan_join(LEFT, other, on=ON, suffixes=("", "_other"))
    assert [c.name for c in plan.columns] == ["a", "b", "v", "c", "v_other"]
    with pytest.raises(SchemaError, match="two columns v"):
        plan_join(LEFT, other, on=ON, suffixes=("", ""))


def test_keys_of_other_names_are_joined_on_only_where_that_is_said():
    """Equal types do not make an order number a customer number."""
    orders = side("/o", HashPartitioner("order_id"), order_id=pa.int64())
    customers = side("/c", HashPartitioner("customer_id"), customer_id=pa.int64())
    message = (
        "on=None: /o is partitioned by order_id, /c by customer_id: where names differ, say which "
        'columns are equal, on=[("order_id", "customer_id")] if these are'
    )
    with pytest.raises(OptionError) as caught:
        plan_join(orders, customers)
    assert str(caught.value) == message
    with pytest.raises(OptionError, match=r'on=\["a", \("b", "c"\)\] if these are'):
        plan_join(LEFT, RIGHT)
    assert plan_join(orders, customers, on=[("order_id", "customer_id")]).columns


@pytest.mark.parametrize("is_left", [True, False])
def test_a_broadcast_side_without_the_partition_keys(is_left):
    nations = side("/n", BroadcastPartitioner(), nation=pa.int64(), name=pa.string())
    customers = side("/c", HashPartitioner("nation_of"), nation_of=pa.int64())
    sides = (nations, customers) if is_left else (customers, nations)
    with pytest.raises(OptionError) as caught:
        plan_join(*sides)
    pair = '("...", "nation_of")' if is_left else '("nation_of", "...")'
    assert str(caught.value) == (
        "on=None: /n has no column 'nation_of', by which /c is partitioned: say which columns are "
        f"equal, on=[{pair}] with columns of /n, which are nation, name"
    )
    by_name = side("/c", HashPartitioner("nation"), nation=pa.int64(), v=pa.int8())
    sides = (nations, by_name) if is_left else (by_name, nations)
    assert plan_join(*sides).keys == (("nation", "nation"),)


def test_keys_that_nothing_is_known_of():
    with pytest.raises(OptionError, match="do not say which columns are equal"):
        plan_join(MINE, MINE)
    with pytest.raises(SchemaError, match="a nested column cannot be joined on"):
        plan_join(MINE, MINE, on="v")
    with pytest.raises(OptionError, match="not co-partitioned"):
        plan_join(LEFT, MINE)
    turns = side("/t", RoundRobinPartitioner(), a=pa.int32())
    with pytest.raises(OptionError, match="not co-partitioned"):
        plan_join(turns, turns, on="a")


@pytest.mark.slow
def test_ranges_of_dates_join(tmp_path):
    days = pa.array([dt.date(2024, 1, 1) + dt.timedelta(i % 30) for i in range(90)], pa.date32())
    ranges = RangePartitioner("day", bounds=[dt.date(2024, 1, 20 + i) for i in range(5)])
    a, b = (
        shuffle_of(
            tmp_path / name, pa.table({"day": days, name: range(90)}), n=7, partitioner=ranges
        )
        for name in "ab"
    )
    result = pa.Table.from_batches(join_range(a, b, plan_join(a, b), group_bytes=1))
    assert result.num_rows == 30 * 3 * 3
    assert result.schema.names == ["day", "a", "b"]
