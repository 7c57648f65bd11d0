"""The package that users import: the names of both others, and which function is called."""

import inspect
import re
import subprocess
import sys
import textwrap

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import arrow_format
import arrow_shuffle
import connector
from arrow_format import OptionError, SchemaError
from arrow_shuffle import by_argument
from tests.support.lake_tables import iceberg_table
from tests.support.small_shuffles import files_below

OPERATIONS = {"aggregate_shuffle", "join_shuffles", "map_subpartitions"}
BY_ARGUMENT = {"append_shuffle", "consume", "merge_shuffle", "write_shuffle", *OPERATIONS}
COLUMNS = {"k": [3, 1, 2], "v": [0.5, 1.5, 2.5]}


def test_every_public_name_is_the_same_object():
    names = {*arrow_format.__all__, *connector.__all__}
    assert set(arrow_shuffle.__all__) == names
    for package in (arrow_format, connector):
        for name in set(package.__all__) - BY_ARGUMENT:
            assert getattr(arrow_shuffle, name) is getattr(package, name), name


def test_functions_of_one_name_in_both_are_called_by_argument():
    both = set(arrow_format.__all__) & set(connector.__all__)
    differing = {n for n in both if getattr(arrow_format, n) is not getattr(connector, n)}
    assert differing == BY_ARGUMENT
    for name in BY_ARGUMENT:
        module = "write" if name in ("append_shuffle", "write_shuffle") else "by_argument"
        assert getattr(arrow_shuffle, name).__module__ == f"arrow_shuffle.{module}"


def test_the_import_is_light():
    code = (
        "import sys, arrow_shuffle\n"
        "arrow_shuffle.OptionError, arrow_shuffle.WriteOptions, dir(arrow_shuffle)\n"
        "print(*{m.partition('.')[0] for m in sys.modules} & {'pandas', 'pyspark', 'polars'})\n"
        "import arrow_shuffle.by_argument, arrow_shuffle.write\n"
        "print(*{m.partition('.')[0] for m in sys.modules} & {'pandas', 'pyspark', 'polars'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n\n"


def test_a_first_lookup_imports_what_it_uses(tmp_path):
    arrow_shuffle.write_shuffle(pa.table(COLUMNS), tmp_path / "s", num_subpartitions=2, keys="k")
    code = (
        "import sys, arrow_format\n"
        "found = arrow_format.open_shuffle(sys.argv[1]).lookup({'k': 1}).read_all()\n"
        "print(found.num_rows, *{'pandas', 'numpy.ma', 'html', 'obstore'} & {*sys.modules})\n"
        "print(*(m for m in sys.modules if m.startswith('arrow_format.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "s")],
        capture_output=True,
        text=True,
        check=True,
    )
    first, ours = done.stdout.splitlines()
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
@pytest.mark.parametrize("write", [arrow_shuffle.write_shuffle, arrow_shuffle.append_shuffle])
def test_what_is_for_files_or_sessions_is_refused_of_rows_in_memory(
    tmp_path, write, given, message
):
    table, path = pa.table(COLUMNS), tmp_path / "s"
    how = {"keys": "k"} if write is arrow_shuffle.write_shuffle else {}
    if not how:
        arrow_shuffle.write_shuffle(table, path, keys="k")
    before = files_below(tmp_path)
    with pytest.raises(OptionError, match=f"^{message}"):
        write(table, path, **how, **given)
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
    assert arrow_shuffle.append_shuffle(source, tmp_path / "s").num_rows == 3
    rows = arrow_shuffle.open_shuffle(tmp_path / "s").to_table()
    assert sorted(rows["v"].to_pylist()) == sorted(COLUMNS["v"] * 2)


def test_tables_of_delta_and_iceberg_without_a_session_are_written_here(tmp_path):
    rows = pa.table(COLUMNS)
    write_deltalake(tmp_path / "delta", rows)
    for name, source in {
        "d": DeltaTable(tmp_path / "delta"), "i": iceberg_table(tmp_path, rows),
    }.items():  # fmt: skip
        path = tmp_path / name
        ranges = arrow_shuffle.RangePartitioner(keys="k")
        arrow_shuffle.write_shuffle(source, path, partitioner=ranges, num_subpartitions=2)
        arrow_shuffle.append_shuffle(source, path)
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


def test_a_consumer_without_a_session_reads_here(tmp_path):
    path = tmp_path / "s"
    arrow_shuffle.write_shuffle(pa.table(COLUMNS), path, num_subpartitions=1, keys="k")
    for place in ((path,), ()):
        named = {} if place else {"path": path}
        with arrow_shuffle.consume(*place, **named, consumer="c") as consumption:
            assert isinstance(consumption, arrow_shuffle.Consumption)
    session = object()
    for place, named in (((session, path), {}), ((session,), {"path": path})):
        consumption = arrow_shuffle.consume(*place, **named, consumer="s")
        assert isinstance(consumption, arrow_shuffle.SparkConsumption)
        consumption.__exit__(None, None, None)


def test_a_session_without_a_path_is_told_that_it_is_missing():
    from pyspark.sql import SparkSession

    session = object.__new__(SparkSession)
    with pytest.raises(TypeError, match="'path'"):
        arrow_shuffle.consume(session, consumer="s")


def test_operations_are_those_of_the_session_or_of_this_process(tmp_path):
    from pyspark.sql import SparkSession

    for name in "ab":
        table = pa.table({"k": [3, 1, 2], name: [1, 2, 3]})
        arrow_shuffle.write_shuffle(table, tmp_path / name, num_subpartitions=2, keys="k")
    paths = [tmp_path / "a", tmp_path / "b"]
    schema = pa.schema({"k": pa.int64()})
    columns = {"columns": ["k"]}
    for reader in (
        arrow_shuffle.join_shuffles(*paths),
        arrow_shuffle.join_shuffles(left=paths[0], right=paths[1]),
        arrow_shuffle.aggregate_shuffle(paths[0], "k", {"a": "sum"}),
        arrow_shuffle.map_subpartitions(paths[0], lambda _, r: r, schema, **columns),
    ):
        assert isinstance(reader, arrow_shuffle.BatchReader)
        assert reader.read_all().num_rows == 3
    session = object.__new__(SparkSession)
    for name in OPERATIONS:
        for first, more in (((session,), {}), ((), {"spark": session})):
            with pytest.raises(TypeError, match="missing"):
                getattr(arrow_shuffle, name)(*first, **more)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aggregate_shuffle", by_argument._Aggregate),
        ("join_shuffles", by_argument._Join),
        ("map_subpartitions", by_argument._Map),
    ],
)
def test_type_checkers_know_the_arguments_of_operations(name, kind):
    given = {"into", "shuffles", "shuffle", "function", "left", "right", "on", "how", "keys"}
    given |= {"aggregations"}
    given -= {"keys"} if name != "aggregate_shuffle" else set()
    given |= {"schema"} if name == "map_subpartitions" else set()
    known = set(kind.__annotations__)
    for package, others in ((connector, {"spark"}), (arrow_format, {"executor", "time_zone"})):
        parameters = set(inspect.signature(getattr(package, name)).parameters)
        assert parameters - given - others == known
