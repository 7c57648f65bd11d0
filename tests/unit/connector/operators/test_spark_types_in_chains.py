"""What Spark knows of a column beyond its Arrow type survives a chain, wherever it is run."""

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from arrow_format.errors import SchemaError
from arrow_shuffle import open_shuffle
from tests.support.operations import written
from tests.support.session_in_process import SessionInProcess, Settings
from tests.support.small_shuffles import FAST

SPARK = SessionInProcess(Settings())
COLLATED = StructType([StructField("k", LongType()), StructField("s", StringType("UTF8_LCASE"))])
ROWS = pa.table({"k": [1, 1, 2], "s": ["a", "A", "b"]})


def same(rows: pa.Table) -> pa.Table:
    return rows


@pytest.fixture
def declared(tmp_path):
    return written(tmp_path / "rows", ROWS, "k").map_groups(same, COLLATED)


@pytest.fixture
def stored(tmp_path, declared):
    declared.write(tmp_path / "stored", spark=SPARK, options=FAST)
    return open_shuffle(tmp_path / "stored")


def test_a_declared_collation_is_that_of_the_rows(declared):
    assert declared.select().to_spark(SPARK).schema == COLLATED
    with pytest.raises(SchemaError, match="collation UTF8_LCASE"):
        declared.aggregate(["k", "s"])
    with pytest.raises(SchemaError, match="collation UTF8_LCASE"):
        declared.select(filter="s = 'a'")


def test_a_value_of_a_column_is_what_the_column_is(stored):
    first = stored.aggregate("k", {"x": ("s", "first")})
    assert first.select().to_spark(SPARK).schema == first.to_spark(SPARK).schema
    with pytest.raises(SchemaError, match="column 'x' has the collation UTF8_LCASE"):
        first.select(filter="x = 'a'")
    joined = stored.join(stored, suffixes=("_l", "_r"))
    with pytest.raises(SchemaError, match="column 's_l' has the collation UTF8_LCASE"):
        joined.aggregate(["k", "s_l"])


@pytest.mark.parametrize("spark", [None, SPARK])
def test_what_is_written_says_so_too(tmp_path, stored, declared, spark):
    asked = {
        "select": stored.select(),
        "join": stored.join(stored.select("k"), how="semi"),
        "aggregate": stored.aggregate("k", {"s": ("s", "first")}),
        "map": declared,
    }
    for what, rows in asked.items():
        rows.write(tmp_path / what, spark=spark, options=FAST)
        with pytest.raises(SchemaError, match="collation UTF8_LCASE"):
            open_shuffle(tmp_path / what).aggregate(["k", "s"])
