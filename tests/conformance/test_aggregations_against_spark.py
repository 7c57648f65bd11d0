"""CONFORMANCE, group "Against Spark": aggregations give what Spark's SQL gives.

Every function over every type of number, passes included.

Hypothesis makes the groups, Spark answers for all of them in two queries, and each column is then
aggregated here, with little memory and with much.
"""

import datetime as dt
import math
from decimal import Context, Decimal
from fractions import Fraction

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from arrow_format import ArithmeticOverflowError, open_shuffle, write_shuffle
from arrow_format.operators.aggregate import aggregate_in_passes, aggregate_range
from arrow_format.operators.aggregation_plan import plan_aggregation
from connector.spark_types import spark_schema_of
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import FAST
from tests.support.spark_session import spark_settings

# Its examples are drawn in a fixture, where the plugin does not see them.
pytestmark = [pytest.mark.spark, pytest.mark.hypothesis]

EXACT = Context(prec=90)
MICROSECOND = dt.timedelta(microseconds=1)
SKIP_NULLS = pc.ScalarAggregateOptions(skip_nulls=True)


def integers(bits):
    edges = [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1]
    return st.integers(-9, 9) | st.sampled_from(edges)


def floats(largest):
    """Numbers that add up exactly in whatever order, and the odd ones."""
    odd = [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, largest]
    return st.integers(-800, 800).map(lambda n: n / 8) | st.sampled_from(odd)


def decimals(precision, scale):
    most = 10**precision - 1
    unscaled = st.integers(-min(most, 999), min(most, 999)) | st.sampled_from(
        [most, -most, most // 3]
    )
    return unscaled.map(lambda n: Decimal(n).scaleb(-scale, EXACT))


DECIMALS = [(5, 2), (7, 7), (15, 2), (18, 0), (28, 9), (38, 0), (38, 10), (38, 33), (38, 37)]
NUMBERS = {
    "i8": (pa.int8(), integers(8)),
    "i16": (pa.int16(), integers(16)),
    "i32": (pa.int32(), integers(32)),
    "i64": (pa.int64(), integers(64)),
    "f32": (pa.float32(), floats(2.0**127)),
    "f64": (pa.float64(), floats(2.0**1023)),
} | {f"d{p}_{s}": (pa.decimal128(p, s), decimals(p, s)) for p, s in DECIMALS}
OTHERS = {
    "b": (pa.bool_(), st.booleans()),
    "s": (pa.string(), st.sampled_from(["", "a", "A", "é", "\x00"])),
    "x": (pa.binary(), st.sampled_from([b"", b"a", b"\xff"])),
    "day": (pa.date32(), st.dates()),
    "at": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    "local": (pa.timestamp("us"), st.datetimes()),
    "took": (
        pa.duration("us"),
        st.integers(-9, 9).map(lambda n: n * MICROSECOND)
        | st.sampled_from([dt.timedelta(days=106_751_991), dt.timedelta(days=-106_751_991)]),
    ),
}
COLUMNS = NUMBERS | OTHERS
LARGEST = {
    "i64": 2**63 - 1,
    "d38_0": Decimal(10**38 - 1),
    "d38_37": Decimal(10**38 - 1).scaleb(-37, EXACT),
    "took": dt.timedelta(days=106_751_991),
}

ALL = ("min", "max", "first", "last", "count", "collect_list", "collect_set", "count_distinct")
NUMERIC = ("sum", "avg", "stddev", "stddev_pop", "var_samp", "var_pop", "kurtosis", "skewness",
           "product")  # fmt: skip
ALIASES = ("mean", "std", "stddev_samp", "variance", "array_agg", "any_value", "first_value",
           "last_value")  # fmt: skip
BOOLEAN = ("bool_and", "every", "bool_or", "some", "any", "count_if")
SKIPPING = ("first skipping nulls", "last skipping nulls")
ROUNDED = {"sum", *NUMERIC[1:], *ALIASES[:4]}
"""Where results are doubles, Spark adds the same numbers up by other formulas or in other order."""

TRIED = {"sum": F.try_sum, "avg": F.try_avg, "mean": F.try_avg}
"""Null where Spark would fail the query: the sum, or a sum on the way to it, is too large."""


def functions_of(column):
    found = list(ALL)
    if column in NUMBERS:
        found += NUMERIC
    if column == "took":
        found += ["sum", "avg"]
    if column == "i16":
        found += ALIASES
    if column == "b":
        found += BOOLEAN
    return found


def spark_says(column, function):
    if function in SKIPPING:
        return getattr(F, function.split()[0])(column, ignorenulls=True)
    if function == "any":
        return F.expr(f"any({column})")
    return TRIED.get(function, getattr(F, function, None))(column)


def drawn_groups():
    """As many groups as the profile has examples; each a list of rows."""
    row = st.tuples(*(st.none() | values for _, values in COLUMNS.values()))
    found = []

    @settings(phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(row, min_size=1, max_size=7))
    def draw(rows):
        found.append(rows)

    draw()
    found.append([(None,) * len(COLUMNS)] * 2)
    found.append([tuple(LARGEST.get(name) for name in COLUMNS)] * 2)
    # 5 / 11 is 0.4545: it is rounded once, and not to 0.5 and then to 1.
    found.append(
        [
            tuple(
                Decimal(units).scaleb(-type_.scale, EXACT) if pa.types.is_decimal(type_) else None
                for type_, _ in COLUMNS.values()
            )
            for units in [5] + [0] * 10
        ]
    )
    return found


@pytest.fixture(scope="module")
def groups():
    drawn = [(k, *row) for k, rows in enumerate(drawn_groups()) for row in rows]
    schema = pa.schema(
        [("k", pa.int64()), *((name, type_) for name, (type_, _) in COLUMNS.items())]
    )
    by_column = zip(*drawn, strict=True)
    return pa.table(
        [pa.array(c, field.type) for c, field in zip(by_column, schema, strict=True)], schema=schema
    )


@pytest.fixture(scope="module")
def answers(spark, groups):
    """What Spark gives: by column and function a field and the result of each group."""
    numbered = groups.append_column("i", pa.array(range(groups.num_rows)))
    schema = spark_schema_of(numbered.schema)
    # Compiling some hundred functions takes longer than interpreting them for few rows.
    interpreted = {"spark.sql.codegen.wholeStage": "false",
                   "spark.sql.codegen.factoryMode": "NO_CODEGEN",
                   "spark.sql.shuffle.partitions": "1"}  # fmt: skip
    found = {}
    with spark_settings(spark, interpreted):
        # In this order for functions that depend on it, through exchange and aggregation.
        rows = spark.createDataFrame(numbered, schema).repartition(1, "k")
        rows = rows.sortWithinPartitions("k", "i")
        # A count of distinct values in the same query would change the order of its rows.
        for distinct in (False, True):
            asked = [
                spark_says(column, function).alias(f"{column}->{function}")
                for column in COLUMNS
                for function in [*functions_of(column), *SKIPPING]
                if (function == "count_distinct") == distinct
            ]
            df = rows.groupBy("k").agg(*asked)
            table = df.toArrow().sort_by("k")
            for field in df.schema.fields[1:]:
                found[tuple(field.name.split("->"))] = field, table[field.name].to_pylist()
    return found


def planned(shuffle, column):
    asked = {function: (column, function) for function in functions_of(column)}
    for function in SKIPPING:
        asked[function] = (column, function.split()[0], SKIP_NULLS)
    return plan_aggregation(shuffle, "k", asked)


def aggregated(shuffle, plan, group_bytes=None):
    return pa.Table.from_batches(
        aggregate_range(shuffle, plan, group_bytes=group_bytes), plan.schema
    )


def same(found, expected, largest=0.0):
    """Whether two results are equal; doubles up to rounding of numbers that large."""
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(found, float) and isinstance(expected, float):
        if math.isnan(found) or math.isnan(expected):
            return math.isnan(found) and math.isnan(expected)
        tolerance = 1e-9 if largest else 0.0
        return math.isclose(found, expected, rel_tol=tolerance, abs_tol=1e-12 * largest)
    return found == expected


def of_set(value):
    """What sets are put in order by: equal for both zeros."""
    return repr(value + 0 if value == 0 else value)


def assert_same(function, values, found, expected):
    largest = 0.0
    if function in ROUNDED:
        finite = [abs(float(v)) for v in values if isinstance(v, int | float | Decimal)]
        largest = max([v for v in finite if math.isfinite(v)], default=0.0)
        if function in ("kurtosis", "skewness"):
            largest = 1.0
    if function == "collect_set":
        found, expected = (sorted(values, key=of_set) for values in (found, expected))
    assert same(found, expected, largest), (function, values, found, expected)


@guarantee("aggregations")
@pytest.mark.parametrize("column", COLUMNS)
def test_every_function_gives_what_spark_gives(groups, answers, tmp_path, column):
    rows = groups.select(["k", column])
    values = {k: [] for k in rows["k"].to_pylist()}
    for row in rows.to_pylist():
        values[row["k"]].append(row[column])
    tried = [function for function in TRIED if function in functions_of(column)]
    too_large = {
        (k, function)
        for k, count in enumerate(answers[column, "count"][1])
        for function in tried
        if count and answers[column, function][1][k] is None
    }
    raising = {k for k, _ in too_large}
    fits = [k not in raising for k in rows["k"].to_pylist()]
    write_shuffle(rows.filter(fits), tmp_path / "s", keys="k", num_subpartitions=2, options=FAST)
    shuffle = open_shuffle(tmp_path / "s")
    plan = planned(shuffle, column)
    types = {field.name: field.dataType for field in spark_schema_of(plan.schema)}
    del types["k"]
    assert types == {function: answers[column, function][0].dataType for function in types}
    for group_bytes in (None, 1_000):
        found = aggregated(shuffle, plan, group_bytes).to_pylist()
        assert sorted(row["k"] for row in found) == sorted(values.keys() - raising)
        for row in found:
            k = row.pop("k")
            for function, value in row.items():
                assert_same(function, values[k], value, answers[column, function][1][k])

    for k in raising:
        batches = rows.filter(pc.equal(rows["k"], k)).to_batches(max_chunksize=1)
        for function in tried:
            plan = plan_aggregation(shuffle, "k", {"y": (column, function)})
            expected = answers[column, function][1][k]
            if (k, function) in too_large:  # perhaps only a sum on the way to the last
                expected = result_that_fits(values[k], function, plan.schema.field("y").type)
            for block_bytes in (1, 1 << 20):
                results = aggregate_in_passes(
                    lambda b=batches: b, plan, block_bytes=block_bytes, num_rows=len(batches)
                )
                if expected is None:
                    message = rf"{function}\({column}\) of the group k={k} is outside"
                    with pytest.raises(ArithmeticOverflowError, match=message):
                        list(results)
                else:
                    (row,) = pa.concat_tables(results).to_pylist()
                    assert_same(function, values[k], row["y"], expected)


def result_that_fits(values, function, type_):
    """The exact result if the type holds it; None otherwise."""
    values = [value for value in values if value is not None]
    if isinstance(values[0], dt.timedelta):
        total = sum(value // MICROSECOND for value in values)
        if function == "avg":
            total = half_up(Fraction(total, len(values)))
        return total * MICROSECOND if -(2**63) <= total < 2**63 else None
    total = sum(map(Fraction, values))
    if not pa.types.is_decimal(type_):
        return int(total) if -(2**63) <= total < 2**63 else None
    if function == "avg":
        unscaled = total * 10 ** -values[0].as_tuple().exponent
        if abs(unscaled) >= 10**38:
            return None  # Spark sums with 38 digits
        total /= len(values)
    unscaled = half_up(total * 10**type_.scale)
    fits = abs(unscaled) < 10**type_.precision
    return Decimal(unscaled).scaleb(-type_.scale, EXACT) if fits else None


def half_up(number):
    whole = math.floor(abs(number) + Fraction(1, 2))
    return whole if number >= 0 else -whole
