"""CONFORMANCE, group "Partitioning": the hash is Spark's, bit for bit.

Compared with `hash` and `repartition` themselves.
"""

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from arrow_format.keys.spark_hash import check_hashable, hash_columns, subpartition_ids
from tests.support.guarantees import guarantee

pytestmark = pytest.mark.spark

NUM_ROWS = 400
TEXTS = ["", "a", "ab", "abc", "abcd", "é", "日本語", "🦆", "\x00", "x" * 5_001, "naïve " * 50]
OCTETS = [b"", b"\x00", b"\x80", b"\xff" * 3, b"\x7f\x80\x81\xff", bytes(range(256)) * 9]
EXACT = Context(prec=80)


def column(values, data_type, generator):
    """`NUM_ROWS` draws from `values`, a tenth of them null."""
    picks = generator.integers(0, len(values), NUM_ROWS)
    nulls = generator.random(NUM_ROWS) < 0.1
    drawn = [None if null else values[pick] for pick, null in zip(picks, nulls, strict=True)]
    return pa.array(drawn, data_type)


def integers(bits, generator):
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return [0, 1, -1, low, high, *generator.integers(low, high, 100).tolist()]


def floats(generator):
    edges = [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 5e-324, 1.5]
    return edges + generator.normal(0, 1e9, 100).tolist()


def decimals(precision, scale, generator):
    """Of either sign and any number of digits, among them both sides of every byte boundary."""
    most = 10**precision - 1
    unscaled = {0, most}
    for bits in range(7, 127, 8):
        unscaled |= {2**bits - 1, 2**bits, 2**bits + 1}
    unscaled |= {int.from_bytes(generator.bytes(n % 16 + 1), "big") for n in range(100)}
    signed = [sign * value for value in sorted(unscaled) if value <= most for sign in (1, -1)]
    return [Decimal(value).scaleb(-scale, EXACT) for value in signed]


def some_lists(values, generator):
    with_null = [None, *values]
    draws = [generator.integers(0, len(with_null), size) for size in [0, 1, 1, 2, 3, 5, 8] * 6]
    return [[with_null[index] for index in draw] for draw in draws]


def some_structs(fields, generator):
    return [
        {
            name: None if generator.random() < 0.2 else values[generator.integers(0, len(values))]
            for name, values in fields.items()
        }
        for _ in range(60)
    ]


def every_type():
    """A table with a column for each type that can be a hash key, named by what it holds."""
    generator = np.random.default_rng(5)
    days = [date(1970, 1, 1), date(1969, 12, 31), date(1, 1, 1), date(9999, 12, 31)]
    days += [date(1970, 1, 1) + timedelta(days=n) for n in integers(15, generator)]
    instants = [
        datetime(1970, 1, 1) + timedelta(microseconds=n)
        for n in [0, 1, -1, -(10**15), 10**15, *integers(54, generator)[5:]]
    ]
    instants += [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)]
    longs = integers(64, generator)
    pair = pa.struct([("a", pa.int64()), ("b", pa.string())])
    pairs = some_structs({"a": longs, "b": TEXTS}, generator)
    deep = pa.struct([("pairs", pa.list_(pair)), ("d", pa.decimal128(38, 9)), ("p", pair)])
    wide = decimals(38, 9, generator)
    some = {
        "boolean": ([True, False], pa.bool_()),
        "byte": (integers(8, generator), pa.int8()),
        "short": (integers(16, generator), pa.int16()),
        "int": (integers(32, generator), pa.int32()),
        "long": (longs, pa.int64()),
        "float": (np.float32(floats(generator)), pa.float32()),
        "double": (floats(generator), pa.float64()),
        "narrow": (decimals(9, 2, generator), pa.decimal128(9, 2)),
        "narrowest_long": (decimals(10, 0, generator), pa.decimal128(10, 0)),
        "widest_long": (decimals(18, 18, generator), pa.decimal128(18, 18)),
        "narrowest_big": (decimals(19, 0, generator), pa.decimal128(19, 0)),
        "wide": (wide, pa.decimal128(38, 9)),
        "string": (TEXTS, pa.string()),
        "binary": (OCTETS, pa.binary()),
        "date": (days, pa.date32()),
        "timestamp": ([t.replace(tzinfo=UTC) for t in instants], pa.timestamp("us", "UTC")),
        "timestamp_ntz": (instants, pa.timestamp("us")),
        "interval": ([timedelta(microseconds=n // 100) for n in longs], pa.duration("us")),
        "time": ([n % 86_400_000_000 * 1_000 for n in longs], pa.time64("ns")),
        "list": (some_lists(integers(32, generator), generator), pa.list_(pa.int32())),
        "strings": (some_lists(TEXTS, generator), pa.list_(pa.string())),
        "doubles": (some_lists(floats(generator), generator), pa.list_(pa.float64())),
        "matrix": (
            some_lists(some_lists(wide, generator), generator),
            pa.list_(pa.list_(pa.decimal128(38, 9))),
        ),
        "pair": (pairs, pair),
        "deep": (
            some_structs({"pairs": some_lists(pairs, generator), "d": wide, "p": pairs}, generator),
            deep,
        ),
    }
    arrays = {name: column(*draws, generator) for name, draws in some.items()}
    return pa.table({"row": pa.array(range(NUM_ROWS)), **arrays})


TABLE = every_type()
KEYS = [name for name in TABLE.column_names if name != "row"]
KEY_LISTS = [
    ["string"],
    ["long", "string"],
    ["string", "long"],
    ["wide", "double", "date"],
    ["deep", "float", "narrow", "boolean"],
    KEYS,
    KEYS[::-1],
]


@pytest.fixture(scope="module")
def frame(spark):
    schema = from_arrow_schema(TABLE.schema, prefer_timestamp_ntz=True)
    cached = spark.createDataFrame(TABLE, schema=schema).cache()
    yield cached
    cached.unpersist()


@pytest.fixture(scope="module")
def answers(frame):
    """The rows as Spark hands them out, each with Spark's hash of every single column."""
    hashes = [F.hash(name).alias(f"hash of {name}") for name in KEYS]
    return frame.select("*", *hashes).toArrow()


def hashes_of(table, keys):
    """Hash batch by batch, as a map task does."""
    parts = [hash_columns([batch[key] for key in keys]) for batch in table.to_batches()]
    return np.concatenate(parts)


def test_no_row_is_lost_on_the_way(answers):
    assert sorted(answers["row"].to_pylist()) == list(range(NUM_ROWS))
    assert all(0 < answers[name].null_count < NUM_ROWS for name in KEYS)


@pytest.mark.parametrize("name", KEYS)
def test_a_column_hashes_as_in_spark(answers, name):
    check_hashable(answers.schema.field(name))
    expected = answers[f"hash of {name}"].to_pylist()
    assert hashes_of(answers, [name]).tolist() == expected


@pytest.mark.parametrize("name", ["string", "deep", "boolean", "wide"])
def test_a_slice_hashes_as_in_spark(answers, name):
    part = answers.slice(13, 101)
    expected = part[f"hash of {name}"].to_pylist()
    assert hashes_of(part, [name]).tolist() == expected


@pytest.mark.parametrize("keys", KEY_LISTS, ids=lambda keys: ",".join(keys)[:30])
def test_several_keys_fold_in_order(frame, keys):
    pmods = [F.expr(f"pmod(hash({', '.join(keys)}), {n})").alias(str(n)) for n in (7, 20_000)]
    answered = frame.select(*keys, F.hash(*keys).alias("expected"), *pmods).toArrow()
    hashes = hashes_of(answered, keys)
    assert hashes.tolist() == answered["expected"].to_pylist()
    for n in (7, 20_000):
        assert subpartition_ids(hashes, n).tolist() == answered[str(n)].to_pylist()


@guarantee("placement")
@pytest.mark.parametrize(
    ("num_subpartitions", "keys"),
    [(1, ["string"]), (5, ["wide", "double", "date"]), (11, ["string", "long"]), (16, KEYS)],
)
def test_a_row_lands_where_repartition_puts_it(frame, num_subpartitions, keys):
    spread = frame.repartition(num_subpartitions, *keys)
    landed = spread.select(*keys, F.spark_partition_id().alias("landed")).toArrow()
    assert len(landed) == NUM_ROWS
    ids = subpartition_ids(hashes_of(landed, keys), num_subpartitions)
    assert ids.tolist() == landed["landed"].to_pylist()
