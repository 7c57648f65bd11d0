"""Which shuffles go together: against the ids that partitioners really assign."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import (
    BroadcastPartitioner,
    ColumnPartitioner,
    HashPartitioner,
    OptionError,
    RangePartitioner,
    RoundRobinPartitioner,
)
from arrow_format.keys.co_partitioning import check_co_partitioned, partition_keys, placed_as
from tests.support.known_shuffle import KnownShuffle

SCHEMA = pa.schema(
    {
        "a": pa.int64(), "b": pa.string(), "i": pa.int32(), "pid": pa.int32(),
        "d9": pa.decimal128(9, 2), "d18": pa.decimal128(18, 2), "d20": pa.decimal128(20, 2),
        "t": pa.timestamp("us", "UTC"), "n": pa.timestamp("us"), "s": pa.int8(),
    }
)  # fmt: skip
HASH = HashPartitioner("a")
RANGE = RangePartitioner("i", bounds=[3, 9])


def here(path, partitioner, n=8):
    return KnownShuffle(partitioner, SCHEMA, path, n)


@pytest.mark.parametrize(
    "partitioners",
    [
        (HASH,),
        (RoundRobinPartitioner(),),
        (HASH, HASH, HASH),
        (HashPartitioner("i", "d9"), HashPartitioner("s", "d18")),
        (RANGE, RangePartitioner("s", bounds=[3, 9])),
        (ColumnPartitioner("pid"), ColumnPartitioner("pid")),
        ({"kind": "mine", "x": 1}, {"x": 1, "kind": "mine"}),
        (HASH, BroadcastPartitioner()),
        (BroadcastPartitioner(), RoundRobinPartitioner()),
        (BroadcastPartitioner(), BroadcastPartitioner()),
        (RangePartitioner("d9", bounds=[Decimal("1.50")]),
         RangePartitioner("d18", bounds=[Decimal("1.50")])),
    ],
)  # fmt: skip
def test_these_go_together(partitioners):
    check_co_partitioned([here(str(i), one) for i, one in enumerate(partitioners)])


@pytest.mark.parametrize(
    ("left", "right", "why"),
    [
        (HASH, RANGE, "left is partitioned by hash, the right by range"),
        (HASH, HashPartitioner("a", "b"), "left's keys are a, the right's a, b"),
        (HASH, HashPartitioner("i"), "'a' is int64, the right's 'i' is int32, and equal values"),
        (HashPartitioner("d18"), HashPartitioner("d20"), "'d20' is decimal128(20, 2), and equal"),
        (HashPartitioner("t"), HashPartitioner("n"), "placed differently"),
        (HASH, HashPartitioner("b"), "is string, and"),
        (RoundRobinPartitioner(), RoundRobinPartitioner(), "both assign rows round-robin"),
        (RANGE, RangePartitioner("i", bounds=[3, 8]), "the bounds differ"),
        (RANGE, RangePartitioner("i", bounds=[3]), "the bounds differ"),
        (RangePartitioner("i", bounds=[3]), RangePartitioner(("i", "descending"), bounds=[3]),
         "the left's keys go ascending, the right's descending"),
        (RANGE, RangePartitioner("a", bounds=[3, 9]), "placed differently"),
        (ColumnPartitioner("pid"), ColumnPartitioner("i"), "the left's partitioner is"),
        ({"kind": "mine", "x": 1}, {"kind": "mine", "x": 2}, "the left's partitioner is"),
    ],
)  # fmt: skip
def test_these_do_not_and_the_error_says_why(left, right, why):
    with pytest.raises(OptionError, match="not co-partitioned") as caught:
        check_co_partitioned([here("/x/left", left), here("/x/right", right)])
    assert why in str(caught.value)
    assert "/x/left" in str(caught.value)
    assert "/x/right" in str(caught.value)


def test_numbers_of_subpartitions_count_except_for_broadcast_rows():
    with pytest.raises(OptionError, match="the left has 8 subpartitions, the right 9"):
        check_co_partitioned([here("p", HASH), here("q", HASH, 9)])
    check_co_partitioned([here("p", HASH), here("q", BroadcastPartitioner(), 9)])
    shuffles = [here("p", HASH), here("q", BroadcastPartitioner(), 9), here("r", HASH, 7)]
    with pytest.raises(OptionError, match="left: p, right: r"):
        check_co_partitioned(shuffles)


def test_keys():
    assert partition_keys(here("p", HashPartitioner("b", "a"))) == ("b", "a")
    assert partition_keys(here("p", RANGE)) == ("i",)
    assert partition_keys(here("p", ColumnPartitioner("pid"))) == ("pid",)
    assert partition_keys(here("p", BroadcastPartitioner())) == ()
    assert partition_keys(here("p", {"kind": "mine"})) is None


TYPES = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.decimal128(9, 0), pa.decimal128(18, 0),
    pa.decimal128(20, 0), pa.decimal128(38, 0), pa.decimal128(18, 1), pa.float32(), pa.float64(),
]  # fmt: skip


@pytest.mark.parametrize("nested", [False, True])
def test_types_that_are_placed_alike_hash_alike(nested):
    """And where they are not, there is a value that tells them apart."""

    def ids(type_):
        values = pa.array(range(-50, 60), pa.int8())
        column = values.cast(pa.int64()).cast(pa.decimal128(38, 0)).cast(type_) if (
            pa.types.is_decimal(type_)) else values.cast(type_)  # fmt: skip
        if nested:
            column = pa.StructArray.from_arrays([column], ["x"])
        batch = pa.record_batch({"k": column})
        return column.type, HashPartitioner("k").bind(batch.schema, 64, 0)(batch)

    found = [ids(type_) for type_ in TYPES]
    for one, ids_one in found:
        for other, ids_other in found:
            alike = bool(np.array_equal(ids_one, ids_other))
            assert (placed_as(one) == placed_as(other)) <= alike, (one, other)
    assert placed_as(pa.list_(pa.int16())) == placed_as(pa.list_(pa.int32())) == "array of int"
