"""What a local write takes its rows from, and what it refuses."""

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import connector
from arrow_format import (
    CorruptShuffleError,
    OptionError,
    RangePartitioner,
    SchemaError,
    ShuffleError,
    StorageError,
    append_shuffle,
    open_shuffle,
)
from arrow_format.arrays.batch_stream import BatchReader
from tests.support.small_shuffles import FAST, files_below, write_rows

TABLE = pa.table({"k": [3, 1, 2], "v": ["x", None, "a text of more than 12 bytes"]})


def write(rows, path, **arguments):
    return write_rows(path, rows, **{"keys": "k", "n": 2, **arguments})


@pytest.mark.parametrize(
    "source",
    [
        lambda: TABLE,
        lambda: TABLE.to_reader(),
        lambda: TABLE.to_batches(),
        lambda: BatchReader(TABLE.schema, TABLE.to_batches()),
        lambda: pl.DataFrame(TABLE),
        lambda: TABLE.to_pandas(),
        lambda: duckdb.sql('SELECT * FROM "TABLE"'),
    ],
    ids=["table", "reader", "batches", "our reader", "polars", "pandas", "duckdb"],
)
def test_sources(source, tmp_path):
    write(source(), tmp_path / "s")
    rows = open_shuffle(tmp_path / "s").read().read_all()
    assert sorted(rows.to_pylist(), key=str) == sorted(TABLE.to_pylist(), key=str)


@pytest.mark.parametrize("type_", [pa.string_view(), pa.binary_view()], ids=str)
@pytest.mark.parametrize("values", [["a", None, "b"], ["", ""], [None], [], ["q" * 20, None]])
@pytest.mark.parametrize("form", [lambda t: t, pa.Table.to_reader, pa.Table.to_batches])
def test_views_of_text_and_bytes(type_, values, form, tmp_path):
    """Without a data buffer as well, where PyArrow's C interface ended the process once."""
    text = pa.array(values, pa.string()).cast(type_)
    nested = pa.ListArray.from_arrays([0, len(text)] + [len(text)] * (len(text) - 1), text)
    nested = nested.slice(0, len(text))
    table = pa.table({"k": pa.array(range(len(text)), pa.int64()), "v": text, "l": nested})
    if not values and form is pa.Table.to_batches:
        pytest.skip("no batches have no schema")
    write(form(table), tmp_path / "s", n=1)
    found = open_shuffle(tmp_path / "s").read().read_all()
    assert found.to_pylist() == table.to_pylist()


def test_damage_of_a_shuffle_that_is_written_again_keeps_its_name(tmp_path):
    write(TABLE, tmp_path / "one")
    for file in tmp_path.glob("one/map_outputs/**/*.data"):
        file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(CorruptShuffleError):
        write(open_shuffle(tmp_path / "one").read(), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_reader_that_was_read_is_refused(tmp_path):
    write(TABLE, tmp_path / "one")
    reader = open_shuffle(tmp_path / "one").read()
    reader.read_all()
    with pytest.raises(ShuffleError, match="gives its rows once"):
        write(reader, tmp_path / "other")
    assert not (tmp_path / "other").exists()


class DataFrame:
    """Like a DataFrame of Spark, which has Arrow's C stream too: taking it collects all rows."""

    def __arrow_c_stream__(self, requested_schema=None):
        raise AssertionError("all rows were collected")


DataFrame.__module__ = "pyspark.sql.classic.dataframe"


class Derived(DataFrame):
    pass


@pytest.mark.parametrize("frame", [DataFrame(), Derived()])
@pytest.mark.parametrize("partitioning", [{}, {"keys": None, "partitioner": RangePartitioner("k")}])
def test_a_frame_of_spark_is_refused(frame, partitioning, tmp_path):
    with pytest.raises(SchemaError, match=r"is a Spark .*arrow_shuffle\.write_shuffle"):
        write(frame, tmp_path / "s", **partitioning)
    assert not (tmp_path / "s").exists()


def test_a_frame_of_spark_is_refused_for_a_sample():
    with pytest.raises(ShuffleError, match=r"arrow_shuffle\.sample_range_partitioner"):
        RangePartitioner.sampled(DataFrame(), "k", 4)


def test_a_real_frame_of_spark_is_refused(spark, tmp_path):
    frame = spark.sql("SELECT 1 AS k, current_timestamp() AS t")
    with pytest.raises(SchemaError, match=r"is a Spark .*arrow_shuffle\.write_shuffle"):
        write(frame, tmp_path / "s")
    assert files_below(tmp_path) == []


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (pd.DataFrame({"k": [1]}), "pandas DataFrame"),
        (pl.DataFrame({"k": [1]}), "polars DataFrame"),
        (TABLE, "pyarrow Table"),
        (TABLE.to_reader(), "pyarrow RecordBatchReader"),
        (BatchReader(TABLE.schema, TABLE.to_batches()), "arrow_format BatchReader"),
        (None, "source is NoneType"),
    ],
    ids=["pandas", "polars", "table", "reader", "our reader", "nothing"],
)
def test_rows_in_memory_are_refused_by_the_write_of_spark(source, kind, tmp_path):
    with pytest.raises(ShuffleError, match=rf"{kind}: .*leave spark out"):
        connector.write_shuffle(source, tmp_path / "s", keys="k", num_subpartitions=2)
    assert not (tmp_path / "s").exists()


class Column:
    """Like a column of Spark, which refuses to be iterated over."""

    def __iter__(self):
        raise TypeError("Column is not iterable")

    def __repr__(self):
        return "Column<'k'>"


@pytest.mark.parametrize("form", [Column(), [Column()]])
@pytest.mark.parametrize("argument", ["keys", "sort_by"])
def test_columns_of_spark_are_no_names(form, argument, tmp_path):
    message = rf"^{argument}=.*Column<'k'>.* expected (one|a) column name"
    with pytest.raises(OptionError, match=message):
        write(TABLE, tmp_path / "s", **{argument: form})
    assert not (tmp_path / "s").exists()


def test_a_path_that_cannot_be_written_says_what_failed():
    """And not that what was begun could not be removed."""
    with pytest.raises(StorageError, match=r"/proc/x.*cannot make the directory"):
        write(TABLE, "/proc/x")


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"k": range(10), "v": 1.5}).sample(5, random_state=1),
        pd.DataFrame({"k": range(10), "v": 1.5}).set_index(pd.Index(range(10), name="row")),
        pd.DataFrame(
            {"k": range(10), "v": 1.5}, index=pd.MultiIndex.from_product([[*"ab"], range(5)])
        ),
        pd.DataFrame({"k": range(10), "v": 1.5}),
    ],
    ids=["sampled", "named", "of two levels", "numbered"],
)
def test_the_index_of_pandas_is_dropped_as_spark_and_polars_do(tmp_path, frame):
    write(frame, tmp_path / "s")
    append_shuffle(frame, tmp_path / "s", options=FAST)
    shuffle = open_shuffle(tmp_path / "s")
    assert shuffle.schema.names == ["k", "v"]
    assert sorted(shuffle.to_pandas()["k"]) == sorted([*frame["k"]] * 2)


def test_the_index_of_pandas_is_written_if_asked_for(tmp_path):
    frame = pd.DataFrame({"k": [1, 2], "v": [3, 4]}).set_index("k")
    with pytest.raises(SchemaError, match="key column 'k' is not there") as raised:
        write(frame, tmp_path / "s")
    assert raised.value.__notes__ == [
        "the index of the frame (k) is not written; frame.reset_index() makes it a column"
    ]
    write(frame.reset_index(), tmp_path / "s")
    assert open_shuffle(tmp_path / "s").schema.names == ["k", "v"]


def test_a_column_that_pandas_would_take_for_an_index_is_written_from_a_table(tmp_path):
    table = pa.Table.from_pandas(pd.DataFrame({"k": [1, 2]}, index=[5, 6]))
    write(table, tmp_path / "s")
    assert open_shuffle(tmp_path / "s").schema.names == ["k", "__index_level_0__"]
