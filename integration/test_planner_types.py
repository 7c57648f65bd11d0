"""Every type and golden shuffle by the reader in the JVM: the rows of Python's, or its error."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

import arrow_shuffle
from arrow_format import HashPartitioner, WriteOptions
from arrow_format.errors import SchemaError, ShuffleError
from arrow_shuffle import open_shuffle
from integration.programs.planner import (
    FORMAT,
    PLAIN,
    exchanged,
    plan_of,
    planning_session,
    rows_of,
)
from integration.test_every_type import (
    HASHABLE,
    NUM_SUBPARTITIONS,
    SUPPORTED,
    comparable,
    contents,
    frame,
    keys_of,
)
from tests.compat import product
from tests.compat.damages import Moment
from tests.compat.golden import SEEN_WHOLE
from tests.compat.kit import Case, as_bits, cases, in_some_order
from tests.support.exhaustive import exhaustive, part
from tests.support.foreign_writer import append_misplaced
from tests.support.guarantees import guarantee
from tests.support.spark_session import spark_settings

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

SMALL = {"sync": False, "sort_buffer_bytes": 64 << 10, "chunk_bytes": 1 << 10}
MANY = 20_000
"""Rows from which on they are hashed by Spark, not compared one by one."""


@pytest.fixture(scope="module")
def planner(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    return planning_session(spark, tmp_path_factory.mktemp("types"), PLAIN)


def load(planner: SparkSession, path: Path, **options: object) -> DataFrame:
    return planner.read.format(FORMAT).options(**options).load(str(path))


# Types -------------------------------------------------------------------------------------------


@guarantee("Spark types")
@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_rows_and_schema_come_back_as_written(
    planner: SparkSession, tmp_path: Path, codec: str
) -> None:
    written = frame(planner, SUPPORTED)
    options = WriteOptions(**SMALL, codec=codec)
    arrow_shuffle.write_shuffle(
        written, tmp_path / "s", keys="k", num_subpartitions=NUM_SUBPARTITIONS, options=options
    )

    back = load(planner, tmp_path / "s")

    assert back.schema.fields == written.schema.fields
    found, expected = (sorted(df.collect(), key=lambda row: row["k"]) for df in (back, written))
    assert len(found) == len(expected) > 15
    differing = {
        name
        for one, other in zip(found, expected, strict=True)
        for name, value, wanted in zip(written.columns, one, other, strict=True)
        if comparable(value) != comparable(wanted)
    }
    assert not differing
    parts = [
        expr
        for i, name in enumerate(SUPPORTED)
        for expr in (f"`nested {name}`.x AS x{i}", f"`nested {name}`.y.z AS z{i}")
    ]
    some = [df.selectExpr("k", *parts) for df in (back, written)]
    assert some[0].schema == some[1].schema
    assert contents(some[0]) == contents(some[1])
    for few in (["get(`tight long`, 0)", "`mapped byte`['a']"], ["get(`nested string`.y, 0).z"]):
        one, other = (contents(df.selectExpr("k", *few)) for df in (back, written))
        assert one == other
    where = "`nested int`.x > 0 AND `nested string`.x IS NOT NULL"
    assert back.where(where).count() == written.where(where).count() > 0


FLAT = [
    name
    for name in HASHABLE
    if name not in ("float", "double", "array", "struct", "empty struct", "user-defined")
]
"""Types by which tables are joined without an exchange."""


@guarantee("joins in SQL")
@exhaustive(but="name", least=6)
@pytest.mark.parametrize("name", FLAT)
def test_keys_of_any_flat_type_are_joined_where_they_lie(
    planner: SparkSession, tmp_path: Path, name: str
) -> None:
    rows = frame(planner, {name: HASHABLE[name]})
    optional, *_ = keys_of(name)
    written = rows.selectExpr("k", f"`{optional}` AS c").union(
        rows.selectExpr("k + 100", f"`required {name}`")
    )
    arrow_shuffle.write_shuffle(written, tmp_path / "s", keys="c", num_subpartitions=8)
    df = load(planner, tmp_path / "s")
    joined = df.alias("a").join(df.alias("b"), "c").selectExpr("a.k", "b.k")
    assert exchanged(plan_of(joined)) == []
    expected = written.alias("a").join(written.alias("b"), "c").selectExpr("a.k", "b.k")
    assert rows_of(joined) == rows_of(expected)
    grouped = df.groupBy("c").count()
    assert exchanged(plan_of(grouped)) == []
    assert sorted(row["count"] for row in grouped.collect()) == sorted(
        row["count"] for row in written.groupBy("c").count().collect()
    )


@guarantee("joins in SQL")
@pytest.mark.parametrize("name", ["float", "double", "array", "struct", "user-defined"])
def test_keys_of_other_types_are_exchanged(
    planner: SparkSession, tmp_path: Path, name: str
) -> None:
    rows = frame(planner, {name: HASHABLE[name]})
    optional, *_ = keys_of(name)
    arrow_shuffle.write_shuffle(rows, tmp_path / "s", keys=optional, num_subpartitions=8)
    df = load(planner, tmp_path / "s").select("k", optional)
    assert "no partitioning" in plan_of(df)
    if name != "user-defined":
        found, expected = (of.groupBy(optional).count() for of in (df, rows))
        assert repr(rows_of(found)) == repr(rows_of(expected))  # of NaN too
    assert contents(df) == contents(rows.select("k", optional))


@guarantee("joins in SQL")
@pytest.mark.parametrize("name", ["a.b", "a`b", "*", "K", "_x y", "Ünïcode", "1", "_subpartitions"])
def test_keys_of_any_name_are_joined_and_pushed(
    planner: SparkSession, tmp_path: Path, name: str
) -> None:
    table = pa.table(
        {name: [*range(40)], "v.w": [*range(40)], "s": [{"v.w": i} for i in range(40)]}
    )
    arrow_shuffle.write_shuffle(table, tmp_path / "s", keys=name, num_subpartitions=8)
    column = f"`{name.replace('`', '``')}`"
    df = load(planner, tmp_path / "s")
    joined = df.alias("a").join(df.alias("b"), name).selectExpr(column, "a.`v.w`", "b.s.`v.w`")
    assert exchanged(plan_of(joined)) == []
    assert rows_of(joined) == [(i, i, i) for i in sorted(range(40), key=lambda i: repr((i, i, i)))]
    few = df.where(f"{column} IN (3, 17) AND `v.w` < 10").select("`v.w`")
    assert rows_of(few) == [(3,)]
    assert "subpartitions {" in plan_of(few)


def test_names_that_differ_in_case_are_apart_where_the_session_tells_them_apart(
    planner: SparkSession, tmp_path: Path
) -> None:
    table = pa.table({"k": [*range(9)], "K": [*range(9, 18)], "v": [*range(9)]})
    arrow_shuffle.write_shuffle(table, tmp_path / "s", keys="K", num_subpartitions=4)
    with spark_settings(planner, {"spark.sql.caseSensitive": "true"}):
        df = load(planner, tmp_path / "s")
        assert rows_of(df.where("K = 10").select("k", "K")) == [(1, 10)]
        assert rows_of(df.where("k = 1").select("k", "K")) == [(1, 10)]
        grouped = df.groupBy("K").count()
        assert exchanged(plan_of(grouped)) == []
        assert grouped.count() == 9


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.uint64(), 2), (pa.uint8(), 2), (pa.float16(), np.float16(1)),
        (pa.timestamp("ns"), 1), (pa.list_(pa.int32(), 1), [1]),
    ],
    ids=str,
)  # fmt: skip
def test_what_spark_has_no_type_for_is_refused_by_name(
    planner: SparkSession, tmp_path: Path, type_: pa.DataType, value: object
) -> None:
    table = pa.table({"k": [1], "u": pa.array([value], type_)})
    arrow_shuffle.write_shuffle(
        table, tmp_path / "s", num_subpartitions=2, keys="k", for_spark=False
    )
    with pytest.raises(SchemaError, match="column 'u'"):
        open_shuffle(tmp_path / "s").to_spark(planner)
    with pytest.raises(PySparkException, match=r"column u .*which this Spark lacks"):
        load(planner, tmp_path / "s")


# Golden shuffles ---------------------------------------------------------------------------------


def read(planner: SparkSession, path: Path, version: int) -> DataFrame:
    df = load(planner, path, version=version)
    return df.select("*", "_subpartition")


def by_subpartition(table: pa.Table) -> pa.Table:
    return table.take(np.argsort(table["_subpartition"].to_numpy(), kind="stable"))


def alike(case: Case, found: pa.Table) -> bool:
    """Whether rows are those of a golden shuffle; those of a subpartition may be in any order."""
    expected = case.expected
    assert expected is not None
    if len(found) != len(expected):
        return False
    found = by_subpartition(found)
    try:
        plainly = expected.cast(found.schema)
        if as_bits(plainly).equals(as_bits(found)):
            return True
        return bool(as_bits(in_some_order(plainly)).equals(as_bits(in_some_order(found))))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError):
        pass
    return _texts(found) == _texts(expected.cast(found.schema, safe=False))


def _texts(table: pa.Table) -> list[str]:
    return sorted(map(repr, zip(*(map(str, column) for column in table.columns), strict=True)))


GOLDEN = [case for case in cases() if case.damage is None and case.answer == "rows"]


@exhaustive(but="case", least=45)
@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_a_golden_shuffle_is_read_as_python_reads_it(planner: SparkSession, case: Case) -> None:
    with case.in_place() as shuffle:
        try:
            open_shuffle(shuffle, case.version).to_spark(planner)
        except SchemaError as error:
            with pytest.raises(PySparkException, match="which this Spark lacks"):
                read(planner, shuffle, case.version)
            column = re.search(r"column '(\w+)", str(error))
            assert column is not None
            return
        df = read(planner, shuffle, case.version)
        assert df.count() == len(case.expected or [])
        if len(case.expected or []) < MANY:
            assert alike(case, df.toArrow())
        else:
            values = [name for name in df.columns if name != "_subpartition"]
            python = open_shuffle(shuffle, case.version).to_spark(planner, coalesce=True)
            sums = [f"sum(CAST(xxhash64(`{name}`) AS DECIMAL(38, 0)))" for name in values]
            assert df.selectExpr(*sums).collect() == python.selectExpr(*sums).collect()


ANSWERS = {
    "CorruptShuffleException": "damage",
    "FormatVersionException": "newer",
    "ShuffleNotFoundException": "absent",
    "there is no shuffle": "absent",
    "TABLE_OR_VIEW_NOT_FOUND": "absent",
    "which this Spark lacks": "lacking",
    "IllegalArgumentException": "absent",
}
FILE = re.compile(r"\d{5}-\d+-[0-9a-f]+-\d+|\d{18,}|arrow-shuffle-root|commit_log$")
"""What tells a file of a shuffle from others: of a map output without its ending."""

REFUSED = [
    case
    for case in cases()
    if (case.damage is not None or case.answer != "rows") and case.answer != SEEN_WHOLE
]


def refusal_of(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    return next((answer for said, answer in ANSWERS.items() if said in text), text[:500])


@guarantee("noticed damage")
@exhaustive(but="case", least=60)
@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_damage_is_an_error_that_names_the_file(planner: SparkSession, case: Case) -> None:
    expected_files: set[str] = set()
    if not isinstance(case.damage, Moment):
        with case.in_place() as shuffle:
            try:
                product.read(shuffle, case.version)
            except ShuffleError as error:
                expected_files = set(FILE.findall(str(error)))
    with case.in_place() as shuffle:
        try:
            found = read(planner, shuffle, case.version).toArrow()
        except (PySparkException, Py4JJavaError, pa.ArrowInvalid) as error:
            answer, message = refusal_of(error), str(error)
        else:
            answer, message = "rows", ""
            if case.expected is not None:
                assert alike(case, found)
    if answer == "lacking":
        return
    assert answer in case.answer.split(" or "), message[:2_000]
    if answer == "damage" and expected_files:
        assert expected_files & set(FILE.findall(message)), (expected_files, message[:2_000])


# Where rows lie ----------------------------------------------------------------------------------

N = 6
ITEMS = pa.table({"k": pa.array(np.arange(400) % 50), "v": np.arange(400)})
ELSEWHERE = r"bad/.*shuffle\.data.*a row lies in subpartition \d.*places it in \d"


def one_elsewhere(ids: np.ndarray, _: pa.RecordBatch) -> np.ndarray:
    ids[123] = (ids[123] + 1) % N
    return ids


@pytest.fixture
def misplaced(tmp_path: Path) -> Path:
    """A shuffle of which one row of 400 lies elsewhere, and whose log says that none does."""
    for batch in (ITEMS, ITEMS.slice(0, 100)):
        place = one_elsewhere if batch is ITEMS else lambda ids, _: ids
        append_misplaced(
            tmp_path / "bad", batch, HashPartitioner("k"), place,
            num_subpartitions=N, placed=True, options=WriteOptions(**SMALL),
        )  # fmt: skip
    return tmp_path / "bad"


@guarantee("joins in SQL")
@pytest.mark.parametrize("query", ["join", "group", "distinct", "window", "other side"])
def test_a_row_that_lies_elsewhere_is_an_error_where_partitioning_is_reported(
    planner: SparkSession, misplaced: Path, tmp_path: Path, query: str
) -> None:
    arrow_shuffle.write_shuffle(ITEMS, tmp_path / "good", keys="k", num_subpartitions=N)

    def asked(bad: DataFrame) -> DataFrame:
        good = load(planner, tmp_path / "good")
        return {
            "join": lambda: bad.join(good.withColumnRenamed("v", "w"), "k"),
            "other side": lambda: good.withColumnRenamed("v", "w").join(bad, "k", "left"),
            "group": lambda: bad.groupBy("k").count(),
            "distinct": lambda: bad.select("k").distinct(),
            "window": lambda: bad.selectExpr("v", "count(*) OVER (PARTITION BY k) AS n"),
        }[query]()

    with pytest.raises(Exception, match=f"(?s){ELSEWHERE}"):
        asked(load(planner, misplaced)).collect()
    unchecked = load(planner, misplaced, **{"check-placement": "false"})
    assert exchanged(plan_of(asked(unchecked))) == []
    asked(unchecked).collect()
    # Without the keys nothing is reported, so that nothing is lost.
    assert load(planner, misplaced).select("v").distinct().count() == 400


@guarantee("joins in SQL")
def test_rows_that_another_writer_marked_as_placed_nowhere_are_exchanged(
    planner: SparkSession, tmp_path: Path
) -> None:
    append_misplaced(
        tmp_path / "s", ITEMS, HashPartitioner("k"), one_elsewhere, num_subpartitions=N
    )
    df = load(planner, tmp_path / "s")
    grouped = df.groupBy("k").count()
    assert exchanged(plan_of(grouped)) == [("k",)]
    assert {row["count"] for row in grouped.collect()} == {8}
    for key in range(50):
        assert df.where(f"k = {key}").count() == 8


def test_every_case_of_the_kit_is_asked() -> None:
    assert len(GOLDEN) + len(REFUSED) + sum(c.answer == SEEN_WHOLE for c in cases()) == len(cases())
    assert len(part(GOLDEN, 45)) >= 45
