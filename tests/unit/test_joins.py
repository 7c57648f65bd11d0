"""Joins against a plain Python model: nulls, NaN, zeros, repeated keys, empty sides, all kinds."""

import datetime as dt
import math
from collections import Counter
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format import (
    BroadcastPartitioner,
    HashPartitioner,
    OptionError,
    RangePartitioner,
    RoundRobinPartitioner,
    SchemaError,
    WriteOptions,
    open_shuffle,
    write_shuffle,
)
from arrow_format.block_join import Indexed, join_blocks
from arrow_format.join_plan import JoinedColumn, JoinPlan, plan_join
from arrow_format.key_index import NO_ROW, KeyIndex
from arrow_format.range_join import join_range

FAST = WriteOptions(sync=False)
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


def same(value):
    """A key as Spark compares it."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def modelled(left, right, how):
    """Pairs (left row, right row) of a join; None where a side is missing."""
    pairs = [
        (i, j)
        for i, a in enumerate(left)
        for j, b in enumerate(right)
        if None not in a and [*map(same, a)] == [*map(same, b)]
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


@given(sides(), st.sampled_from(KINDS), st.booleans(), st.integers(1, 12), st.integers(1, 9))
def test_blocks_join_as_the_model_says(case, how, held_is_left, block_rows, most):
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

    found = list(
        join_blocks(
            Indexed(held, plan, is_left=held_is_left), other.schema, blocks, plan, most=most
        )
    )

    assert all(0 < batch.num_rows <= most for batch in found)
    rows = [row for batch in found for row in batch.to_pylist()]
    pairs = [(row["i"], row.get("j")) for row in rows]
    assert Counter(pairs) == Counter(modelled(lefts, rights, how))
    for row in rows if not is_filter else ():
        key = lefts[row["i"]] if row["i"] is not None else rights[row["j"]]
        assert [same(row[f"both {name}"]) for name in names] == [*map(same, key)]
    for batch in found:
        assert [batch.schema.field(f"both {n}").type for n in names if not is_filter] == (
            [] if is_filter else types
        )


def test_a_key_repeated_on_both_sides_costs_no_memory():
    """Ten thousand times ten thousand pairs, one piece at a time."""
    zeros = pa.array(np.zeros(10_000, np.int64))
    index = KeyIndex([zeros])
    before = pa.total_allocated_bytes()
    pieces = index.pairs(index.look_up([zeros]), unmatched=False, most=1_000_000)
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
    assert list(index.pairs(keys, unmatched=False, most=5)) == []
    ((rows, others),) = index.pairs(keys, unmatched=True, most=5)
    assert (rows.tolist(), others.tolist()) == ([0, 1], [NO_ROW, NO_ROW])


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
    for name, table, key in (("orders", orders, "id"), ("items", items, "order")):
        write_shuffle(table, directory / name, num_subpartitions=50, keys=key, options=FAST)
        everyone = BroadcastPartitioner()
        write_shuffle(
            table, directory / f"all {name}", num_subpartitions=3, partitioner=everyone,
            options=FAST,
        )  # fmt: skip
    names = ("orders", "items", "all orders", "all items")
    return {name: open_shuffle(directory / name) for name in names}


def rows_of(table):
    return Counter(str(row) for row in table.to_pylist())


def expected_rows(orders, items, how):
    left, right = orders.read().read_all().to_pylist(), items.read().read_all().to_pylist()
    empty = [dict.fromkeys(orders.schema.names), dict.fromkeys(items.schema.names)]
    rows = []
    for i, j in modelled([(r["id"],) for r in left], [(r["order"],) for r in right], how):
        one, other = left[i] if i is not None else empty[0], right[j] if j is not None else empty[1]
        row = {f"{name}{'_l' * (name == 'who')}": value for name, value in one.items()}
        if how not in ("semi", "anti"):
            row |= {f"{name}{'_r' * (name == 'who')}": value for name, value in other.items()}
        else:
            row = one
        rows.append(str(row))
    return Counter(rows)


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("group_bytes", [2_000, 48 << 20])
def test_ranges_join_as_the_model_says(shuffles, how, group_bytes):
    orders, items = shuffles["orders"], shuffles["items"]
    plan = plan_join(orders, items, how=how, suffixes=("_l", "_r"))
    found = pa.Table.from_batches(join_range(orders, items, plan, group_bytes=group_bytes))
    assert rows_of(found) == expected_rows(orders, items, how)
    assert found.schema.field("more").type == PAYLOAD
    assert found.schema.field("paid").type == pa.decimal128(20, 2)
    if how not in ("semi", "anti"):
        assert found.schema.field("tags").type == items.schema.field("tags").type


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
            found = pa.Table.from_batches(join_range(orders, items, plan, group_bytes=2_000))
            assert rows_of(found) == expected_rows(shuffles["orders"], shuffles["items"], how)
        else:
            with pytest.raises(OptionError, match="broadcast"):
                plan_join(orders, items, on=[("id", "order")], how=how, suffixes=("_l", "_r"))


def test_some_subpartitions(shuffles):
    orders, items = shuffles["orders"], shuffles["items"]
    plan = plan_join(orders, items, left_columns=["id"], right_columns=["order"])
    some = [3, 4, 5, *range(20, 40)]
    found = pa.Table.from_batches(join_range(orders, items, plan, some))
    expected = orders.read(some, ["id"]).read_all().join(
        items.read(some, ["order"]).read_all(), "id", "order", "inner", coalesce_keys=False
    )  # fmt: skip
    assert rows_of(found) == rows_of(expected)


class Sides:
    """Plans need no files: only what is known of the two sides."""

    def __init__(self, path, partitioner, **types):
        self.path, self.num_subpartitions, self.partitioner = path, 4, partitioner
        self.schema = pa.schema(types)


LEFT = Sides("/l", HashPartitioner("a", "b"), a=pa.int32(), b=pa.string(), v=pa.int8())
RIGHT = Sides("/r", HashPartitioner("a", "c"), a=pa.int32(), c=pa.string(), w=pa.int8())
MINE = Sides("/m", {"kind": "mine"}, a=pa.int32(), v=pa.list_(pa.int8()))


def test_the_partition_keys_are_what_is_joined_on():
    plan = plan_join(LEFT, RIGHT)
    assert plan.keys == (("a", "a"), ("b", "c"))
    assert [c.name for c in plan.columns] == ["a", "b", "v", "c", "w"]
    assert plan.columns[0] == JoinedColumn("a", "a", None)
    assert plan_join(LEFT, RIGHT, how="right").columns[0] == JoinedColumn("a", None, "a")
    assert plan_join(LEFT, RIGHT, how="fullOuter").columns[0] == JoinedColumn("a", "a", "a")
    semi = plan_join(LEFT, RIGHT, how="left_semi", left_columns=["v"])
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
        ({"on": "a"}, OptionError, r"lacks the partition key\(s\) \(b, c\)"),
        ({"on": []}, OptionError, "expected column names or pairs"),
        ({"on": [1]}, OptionError, "on: 1 is neither a column name nor a pair"),
        ({"on": ["a", ("b", "c"), "x"]}, SchemaError, "column 'x' is not there"),
        ({"left_columns": ["x"]}, SchemaError, "left_columns: column 'x' is not there"),
        ({"right_columns": ["x"], "how": "semi"}, SchemaError, "right_columns: column 'x'"),
    ],
)
def test_plans_that_do_not_work(arguments, error, message):
    with pytest.raises(error, match=message):
        plan_join(LEFT, RIGHT, **arguments)


def test_names_of_both_sides():
    other = Sides("/r", HashPartitioner("a", "c"), a=pa.int32(), c=pa.string(), v=pa.int8())
    with pytest.raises(SchemaError, match="both sides have 'v': leave them out"):
        plan_join(LEFT, other)
    plan = plan_join(LEFT, other, suffixes=("", "_other"))
    assert [c.name for c in plan.columns] == ["a", "b", "v", "c", "v_other"]
    with pytest.raises(SchemaError, match="two columns v"):
        plan_join(LEFT, other, suffixes=("", ""))


def test_keys_that_nothing_is_known_of():
    with pytest.raises(OptionError, match="do not say which columns are equal"):
        plan_join(MINE, MINE)
    with pytest.raises(SchemaError, match="a nested column cannot be joined on"):
        plan_join(MINE, MINE, on="v")
    with pytest.raises(OptionError, match="not co-partitioned"):
        plan_join(LEFT, MINE)
    turns = Sides("/t", RoundRobinPartitioner(), a=pa.int32())
    with pytest.raises(OptionError, match="not co-partitioned"):
        plan_join(turns, turns, on="a")


def test_ranges_of_dates_join(tmp_path):
    days = pa.array([dt.date(2024, 1, 1) + dt.timedelta(i % 90) for i in range(900)], pa.date32())
    ranges = RangePartitioner("day", bounds=[dt.date(2024, 1, 20 + i) for i in range(5)])
    for name in "ab":
        table = pa.table({"day": days, name: range(900)})
        write_shuffle(table, tmp_path / name, num_subpartitions=7, partitioner=ranges, options=FAST)
    a, b = open_shuffle(tmp_path / "a"), open_shuffle(tmp_path / "b")
    found = pa.Table.from_batches(join_range(a, b, plan_join(a, b), group_bytes=1))
    assert found.num_rows == 90 * 10 * 10
    assert found.schema.names == ["day", "a", "b"]
