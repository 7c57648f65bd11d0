"""Reads of the data source up to its tasks: which columns can be asked for. No JVM needed."""

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from arrow_format import open_shuffle, rename_columns, rollback_shuffle, write_shuffle
from arrow_format.errors import SchemaError
from arrow_format.jobs.commit import commit_job
from connector import ArrowShuffleDataSource
from connector.source.reader import ShuffleSourceReader, spark_schema
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import FAST, begun_with, write_rows
from tests.unit.connector.test_spark_types import PointUDT

K = StructType([StructField("k", LongType())])
TABLE = pa.table({"k": [1, 2, 3], "t": pa.array([1, 2, 3], pa.timestamp("ns"))})


@pytest.fixture(params=["no type", "no class", "no metadata"])
def path(tmp_path, request):
    """A shuffle with a column `t` that Spark cannot read, each for another reason."""
    spark = None
    table = TABLE
    if request.param == "no class":
        spark = StructType([*K, StructField("t", PointUDT())]).json()
    if request.param == "no metadata":
        broken = pa.field("t", pa.int64(), metadata={"SPARK::metadata::json": "{"})
        table = TABLE.cast(pa.schema([TABLE.schema.field("k"), broken]))
    job, statuses = begun_with(tmp_path / "s", table, spark_schema=spark)
    commit_job(job, statuses)
    return tmp_path / "s"


def test_a_column_that_is_not_asked_for_does_not_matter(path):
    assert spark_schema(open_shuffle(path), ["k"]) == K
    reader = ShuffleSourceReader({"path": str(path)}, K)
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    assert sorted(pa.Table.from_batches(batches)["k"].to_pylist()) == [1, 2, 3]
    numbered = StructType([*K, StructField("_subpartition", IntegerType(), nullable=False)])
    assert spark_schema(open_shuffle(path), ["k"], with_subpartition=True) == numbered
    reader = ShuffleSourceReader({"path": str(path), "withSubpartition": "true"}, numbered)
    assert reader.partitions()
    empty = ShuffleSourceReader({"path": str(path)}, StructType([]))
    assert sum(b.num_rows for partition in empty.partitions() for b in empty.read(partition)) == 3


def test_it_is_refused_where_it_is_asked_for(path):
    asked = StructType([StructField("t", LongType())])
    for read in (
        lambda: ShuffleSourceReader({"path": str(path)}, asked),
        lambda: spark_schema(open_shuffle(path)),
        lambda: spark_schema(open_shuffle(path), ["t"]),
    ):
        with pytest.raises(SchemaError, match=r"column 't' has|user-defined type needs its"):
            read()


def test_a_column_that_is_not_there_is_named_beside_those_that_are(path):
    with pytest.raises(SchemaError, match=r"column 'x' is not there; columns are k, t$"):
        ShuffleSourceReader({"path": str(path)}, StructType([StructField("x", LongType())]))
    options = {"path": str(path), "withSubpartition": "true"}
    with pytest.raises(SchemaError, match=r"'x' is not there; columns are k, t, _subpartition$"):
        ShuffleSourceReader(options, StructType([StructField("x", LongType())]))


@guarantee("columns by id")
@pytest.mark.parametrize("how", [{"mode": "append"}, {"mode": "overwrite"}])
def test_what_was_loaded_before_reads_what_its_names_meant(tmp_path, how):
    path = tmp_path / "s"
    rows = pa.table({"k": [1, 2], "a": [3, 4], "b": [5, 6]})
    write_rows(path, rows, "k", n=2)
    source = ArrowShuffleDataSource({"path": str(path)})
    schema = source.schema()
    # Rows of later versions are read too.
    write_shuffle(rows, path, keys="k", num_subpartitions=2, options=FAST, **how)
    assert source.reader(schema).partitions()
    version = rename_columns(path, {"a": "b", "b": "a"}).version
    for source_of_then in (source, pickle.loads(pickle.dumps(source))):
        with pytest.raises(SchemaError, match="'a', 'b' was renamed or dropped since the DataFr"):
            source_of_then.reader(schema)
        assert source_of_then.reader(StructType([schema["k"]])).partitions()
    rollback_shuffle(path, version - 1)
    assert source.reader(schema).partitions()
