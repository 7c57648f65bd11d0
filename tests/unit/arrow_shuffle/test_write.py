"""What is written where: rows in memory, files and tables here, and in tasks of a session."""

import inspect
import re
import textwrap
from functools import partial

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import arrow_shuffle
from arrow_format.errors import OptionError, SchemaError
from tests.support.lake_tables import iceberg_table
from tests.support.programs import printed
from tests.support.small_shuffles import files_below

COLUMNS = {"k": [3, 1, 2], "v": [0.5, 1.5, 2.5]}


@pytest.mark.slow
def test_the_import_is_light():
    code = (
        "import sys, arrow_shuffle\n"
        "arrow_shuffle.errors.OptionError, arrow_shuffle.WriteOptions, dir(arrow_shuffle)\n"
        "print(*{m.partition('.')[0] for m in sys.modules} & {'pandas', 'pyspark', 'polars'})\n"
        "import arrow_shuffle.operation, arrow_shuffle.write\n"
        "print(*{m.partition('.')[0] for m in sys.modules} & {'pandas', 'pyspark', 'polars'})"
    )
    assert printed(code) == "\n\n"


@pytest.mark.slow
def test_a_first_lookup_imports_what_it_uses(tmp_path):
    arrow_shuffle.write_shuffle(pa.table(COLUMNS), tmp_path / "s", num_subpartitions=2, keys="k")
    code = (
        "import sys, arrow_format\n"
        "found = arrow_format.open_shuffle(sys.argv[1]).lookup({'k': 1}).read_all()\n"
        "print(found.num_rows, *{'pandas', 'numpy.ma', 'html', 'obstore'} & {*sys.modules})\n"
        "print(*(m for m in sys.modules if m.startswith('arrow_format.')))"
    )
    first, ours = printed(code, tmp_path / "s").splitlines()
    assert first == "1"
    others = {"explanation", "answers", "verify", "presentation", "object_store", "write", "jobs"}
    assert not [name for name in ours.split() if others & {*name.split(".")}]


def test_the_example_of_help_prints_what_it_says(tmp_path, capsys):
    text = inspect.getdoc(arrow_shuffle.write_shuffle)
    block = text.partition(".. code-block:: python\n\n")[2].partition("\nParameters")[0]
    code = textwrap.dedent(block).replace("/data/", f"{tmp_path}/")
    exec(code, {})  # the example as help() shows it
    assert capsys.readouterr().out == re.search("# (.*)", code)[1] + "\n"


@pytest.mark.parametrize(
    "source",
    [
        pa.table(COLUMNS),
        pa.table(COLUMNS).to_batches(),
        pa.table(COLUMNS).to_reader(),
        pd.DataFrame(COLUMNS),
        pl.DataFrame(COLUMNS),
    ],
    ids=lambda source: f"{type(source).__module__}.{type(source).__name__}",
)
def test_rows_in_memory_are_written_here(tmp_path, source):
    receipt = arrow_shuffle.write_shuffle(source, tmp_path / "s", num_subpartitions=2, keys="k")
    assert receipt.num_rows == 3
    rows = arrow_shuffle.open_shuffle(tmp_path / "s").to_table()
    assert rows.sort_by("v").to_pydict() == COLUMNS


def test_a_frame_of_pandas_may_have_any_columns(tmp_path):
    frame = pd.DataFrame({"k": [1, 2], "mapInArrow": [3, 4]})
    receipt = arrow_shuffle.write_shuffle(frame, tmp_path / "s", num_subpartitions=2, keys="k")
    assert receipt.num_rows == 2


def test_for_spark_is_passed_on(tmp_path):
    table = pa.table({"k": [1], "v": pa.array([1], pa.uint8())})
    for for_spark, stored in ((True, pa.int16()), (False, pa.uint8())):
        path = tmp_path / str(for_spark)
        arrow_shuffle.write_shuffle(table, path, num_subpartitions=1, keys="k", for_spark=for_spark)
        assert arrow_shuffle.open_shuffle(path).schema.field("v").type == stored
    with pytest.raises(OptionError, match=r"for_spark=''"):
        arrow_shuffle.write_shuffle(table, path, num_subpartitions=1, keys="k", for_spark="")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"columns": ["k"]}, "columns: only for a pyarrow dataset"),
        ({"filter": ds.field("k") > 1}, "filter: only for a pyarrow dataset"),
        ({"num_map_tasks": 2}, "num_map_tasks: only for files and tables"),
        ({"spark": object()}, "spark=<object .*expected a SparkSession"),
        ({"spark": False}, "spark=False: expected a SparkSession"),
    ],
)
@pytest.mark.parametrize("append", [False, True])
def test_what_is_for_files_or_sessions_is_refused_of_rows_in_memory(
    tmp_path, append, given, message
):
    table, path = pa.table(COLUMNS), tmp_path / "s"
    write = partial(arrow_shuffle.write_shuffle, path=path, keys="k")
    if append:
        write(table)
        write = arrow_shuffle.open_shuffle(path).append
    before = files_below(tmp_path)
    with pytest.raises(OptionError, match=f"^{message}"):
        write(table, **given)
    assert files_below(tmp_path) == before


@pytest.fixture
def files(tmp_path):
    pq.write_table(pa.table(COLUMNS), tmp_path / "rows.parquet")
    return ds.dataset(tmp_path / "rows.parquet")


@pytest.mark.parametrize("make", [lambda t: ds.dataset(t), lambda t: None], ids=["memory", "files"])
def test_a_dataset_without_a_session_is_written_here(tmp_path, files, make):
    source = make(pa.table(COLUMNS)) or files
    receipt = arrow_shuffle.write_shuffle(source, tmp_path / "s", num_subpartitions=2, keys="k")
    assert receipt.num_map_outputs == 1
    assert arrow_shuffle.open_shuffle(tmp_path / "s").append(source).num_rows == 3
    rows = arrow_shuffle.open_shuffle(tmp_path / "s").to_table()
    assert sorted(rows["v"].to_pylist()) == sorted(COLUMNS["v"] * 2)


@pytest.mark.slow
def test_tables_of_delta_and_iceberg_without_a_session_are_written_here(tmp_path):
    rows = pa.table(COLUMNS)
    write_deltalake(tmp_path / "delta", rows)
    for name, source in {
        "d": DeltaTable(tmp_path / "delta"), "i": iceberg_table(tmp_path, rows),
    }.items():  # fmt: skip
        path = tmp_path / name
        ranges = arrow_shuffle.RangePartitioner(keys="k")
        arrow_shuffle.write_shuffle(source, path, partitioner=ranges, num_subpartitions=2)
        arrow_shuffle.open_shuffle(path).append(source)
        arrow_shuffle.write_shuffle(
            source, tmp_path / f"{name}k", keys="k", num_subpartitions=2, columns=["k"]
        )
        shuffle = arrow_shuffle.open_shuffle(path)
        assert sorted(shuffle.to_table()["k"].to_pylist()) == [1, 1, 2, 2, 3, 3]
        assert shuffle.partitioner.bounds.num_rows == 1
        assert arrow_shuffle.open_shuffle(tmp_path / f"{name}k").schema.names == ["k"]


def test_a_filter_of_iceberg_is_given_to_its_scan(tmp_path):
    source = iceberg_table(tmp_path, pa.table(COLUMNS))
    with pytest.raises(OptionError, match=r"row_filter="):
        arrow_shuffle.write_shuffle(source, tmp_path / "s", keys="k", filter=ds.field("k") > 1)


def test_no_rows_at_all_are_refused_as_arrow_format_does(tmp_path):
    with pytest.raises(SchemaError, match="source is int"):
        arrow_shuffle.write_shuffle(3, tmp_path / "s", num_subpartitions=1, keys="k")


def test_a_consumption_is_of_what_users_open(path):
    arrow_shuffle.write_shuffle(pa.table(COLUMNS), path, num_subpartitions=1, keys="k")
    opened = arrow_shuffle.open_shuffle(path)
    for asked in (arrow_shuffle.consume(path, consumer="a"), opened.consume("b")):
        with asked as consumption:
            assert isinstance(consumption, arrow_shuffle.Consumption)
            assert isinstance(consumption.shuffle, arrow_shuffle.Shuffle)
            assert consumption.shuffle.aggregate("k").to_table().num_rows == 3
    assert [each.name for each in opened.consumers()] == ["a", "b"]
