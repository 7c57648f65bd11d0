"""A function per group: which form it has, what it is given, and what its results may be."""

import datetime
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from arrow_format.arrays.batches import BATCH_BYTES
from arrow_format.errors import MissingPackageError, OptionError, SchemaError
from arrow_format.jobs.commit import commit_job
from arrow_shuffle import open_shuffle
from connector.operators import frame_calls
from connector.spark_version import SPARK
from tests.support.operations import made, written
from tests.support.session_in_process import SessionInProcess, Settings
from tests.support.small_shuffles import begun_with

SESSION = SessionInProcess()
SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])
NUMBERS = pd.ArrowDtype(pa.int64())
ROWS = pa.table({"k": [i % 5 for i in range(40)], "v": pa.array([*range(39), None])})


@pytest.fixture
def shuffle(tmp_path):
    return written(tmp_path / "s", ROWS, "k", n=3)


def run(rows, function, schema=SCHEMA, spark=SESSION, **how):
    found = made(rows.map_groups(function, schema, **how), spark=spark)
    return found.sort_by("k").to_pylist()


def frames(frame):
    assert isinstance(frame, pd.DataFrame)
    return pd.DataFrame({"n": [len(frame)], "k": [frame["k"].iloc[0]]})


def keyed(key, frame):
    return frames(frame).assign(k=key[0])


def tables(rows: pa.Table) -> pa.Table:
    assert isinstance(rows, pa.Table)
    return pa.table({"n": [len(rows)], "k": rows["k"].slice(0, 1)})


def keyed_tables(key, rows: "pa.Table"):
    return pa.table({"k": pa.array([key[0].as_py()]), "n": [len(rows)]})


def only_for_type_checkers(rows: "pa.Table") -> "no.such.Module":  # noqa: F821
    return tables(rows)


class Counts:
    def method(self, rows: pa.Table):
        return tables(rows)

    def __call__(self, key, rows: pa.Table):
        return keyed_tables(key, rows)


def extended(frame, *, more=0):
    return frames(frame).assign(n=lambda made: made["n"] + more)


@pytest.mark.parametrize(
    "function",
    [
        frames, keyed, tables, keyed_tables, only_for_type_checkers, Counts().method, Counts(),
        lambda frame: frames(frame), partial(extended, more=0),
        lambda key, frame, add=0: keyed(key, frame),
    ],
)  # fmt: skip
@pytest.mark.parametrize("spark", [None, SESSION])
def test_forms_of_functions(shuffle, function, spark):
    assert run(shuffle, function, spark=spark) == [{"k": k, "n": 8} for k in range(5)]


def test_a_group_is_a_frame_of_its_own(shuffle):
    """Integers without nulls are integers, whatever the other groups have; a change stays here."""

    def changes(key, frame):
        assert list(frame.index) == list(range(8))
        assert frame["v"].dtype == ("float64" if key == (4,) else "int64")
        assert list(frame.columns) == ["v", "k"]
        frame["v"] = 0
        frame.loc[0, "k"] = 100
        return frames(frame)

    found = run(shuffle.select("v", "k"), changes)
    assert found == [{"k": 100, "n": 8}] * 5
    found = run(shuffle.select("v"), lambda frame: frames(frame.assign(k=len(frame.columns))))
    assert found == [{"k": 1, "n": 8}] * 5


def test_values_inside_of_others_have_types_of_their_group_too(tmp_path):
    types = [pa.list_(pa.int64()), pa.struct([("a", pa.bool_())]), pa.map_(pa.int32(), pa.int8())]
    columns = {"l": types[0], "s": types[1], "m": types[2], "k": pa.int64(), "v": pa.int64()}
    rows = [
        {"k": 1, "l": [2**60 + 1, 5], "s": {"a": True}, "m": [(1, 1)]},
        {"k": 2, "l": [None], "s": {"a": None}, "m": [(1, None)]},
        {"k": 3, "l": None, "s": None, "m": None},
    ]
    table = pa.Table.from_pylist(rows, schema=pa.schema(list(columns.items())))
    seen = {}

    def look(name, key, frame):
        assert list(frame.columns) == list(columns)
        assert list(frame.index) == [0]
        values = frame["l"].iloc[0], frame["s"].iloc[0], frame["m"].iloc[0]
        kinds = getattr(values[0], "dtype", None), *map(repr, values)
        seen.setdefault(name, {})[key[0]] = kinds
        return frame

    schema = table.schema
    for name, of in {"together": table, **{str(k): table[k - 1 : k] for k in (1, 2, 3)}}.items():
        asked = written(tmp_path / name, of, "k", n=1).map_groups(partial(look, name), schema)
        assert made(asked, spark=SESSION).sort_by("k").equals(of)
    assert seen["together"] == seen["1"] | seen["2"] | seen["3"]
    assert seen["together"][1][0] == "int64"


def test_results_may_be_returned_again_with_other_values(shuffle):
    """As in ``applyInPandas``, which converts each before the next call."""
    result = pd.DataFrame({"k": [0], "n": [0]})
    block = np.zeros((1, 2), np.int64)
    inside = []

    def again(key, frame):
        result.loc[0, ["k", "n"]] = [key[0], len(frame)]
        return result

    def of_a_block(key, frame):
        block[0] = key[0], len(frame)
        return pd.DataFrame(block, columns=["k", "n"], copy=False)

    def with_a_list(key, frame):
        inside[:] = [len(frame)]
        return pd.DataFrame({"k": key, "n": [inside]})

    expected = [{"k": k, "n": 8} for k in range(5)]
    assert run(shuffle, again) == run(shuffle, of_a_block) == expected
    lists = pa.schema([("k", pa.int64()), ("n", pa.list_(pa.int64()))])
    sizes = iter(range(5))
    found = run(shuffle, lambda key, frame: with_a_list(key, frame[: next(sizes)]), lists)
    assert sorted(row["n"][0] for row in found) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("rows_each", [1, 12_000])
@pytest.mark.parametrize("with_into", [False, True])
def test_a_function_may_use_one_buffer_for_all_results(tmp_path, rows_each, with_into):
    """NumPy's memory becomes that of a table, or of a column of a frame, without a copy."""
    rows = written(tmp_path / "s", pa.table({"k": [i % 5 for i in range(40)]}), "k", n=1)
    block = np.zeros((2, rows_each), np.int64)
    text = bytearray(2)

    def fill(k):
        block[0], block[1] = k, k + 100
        text[:] = b"%02d" % k

    def of_tables(key, rows: pa.Table):
        fill(key[0].as_py())
        return pa.table({"k": block[0], "n": block[1], "t": pa.repeat(bytes(text), rows_each)})

    def of_frames(key, frame):
        fill(key[0])
        columns = {"k": block[0], "n": block[1], "t": [text] * rows_each}
        return pd.DataFrame(columns, copy=False)

    def of_arrow_in_pandas(key, frame):
        fill(key[0])
        columns = [pd.Series(pd.array(pa.array(part), dtype=NUMBERS)) for part in block]
        return pd.DataFrame({"k": columns[0], "n": columns[1], "t": [bytes(text)] * rows_each})

    schema = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("t", pa.binary())])
    for number, function in enumerate((of_tables, of_frames, of_arrow_in_pandas)):
        into = tmp_path / str(number) if with_into else None
        table = made(rows.map_groups(function, schema), into, spark=SESSION)
        assert len(table) == 5 * rows_each
        seen = {
            tuple(row.values()) for row in table.group_by(schema.names).aggregate([]).to_pylist()
        }
        assert seen == {(k, k + 100, b"%02d" % k) for k in range(5)}


@pytest.mark.slow
def test_results_of_several_types_are_each_in_their_rows(tmp_path):
    """Types that alternate from group to group are converted with their own."""
    table = pa.table({"k": list(range(60)), "v": [None if i % 3 else i for i in range(60)]})
    rows = written(tmp_path / "s", table, "k")

    def of_group(key, frame):
        frame["t"] = pd.Series([f"t{key[0]}"], dtype=("string", "category", object)[key[0] % 3])
        frame["d"] = [pd.NaT, datetime.date(2024, 1, 1), None][key[0] % 3]
        return frame[["t", "d", "v", "k"]] if key[0] % 2 else frame

    schema = pa.schema(
        [("k", pa.int64()), ("v", pa.int64()), ("t", pa.string()), ("d", pa.date32())]
    )
    for into in (None, tmp_path / "into"):
        table = made(rows.map_groups(of_group, schema), into, spark=SESSION)
        assert table.sort_by("k").to_pylist() == [
            {
                "k": k,
                "v": None if k % 3 else k,
                "t": f"t{k}",
                "d": datetime.date(2024, 1, 1) if k % 3 == 1 else None,
            }
            for k in range(60)
        ]


def test_what_a_function_does_to_its_frame_stays_there(tmp_path):
    """Frames of a block are slices of it, and share neither values nor labels."""
    table = pa.table({"k": [i // 2 for i in range(40)], "v": list(range(40)), "t": ["x"] * 40})
    rows = written(tmp_path / "s", table, "k", n=1)
    kept = []

    def changes(key, frame):
        assert (frame.index.name, frame.columns.name) == (None, None)
        assert list(frame.index) == [0, 1]
        assert (frame["v"] // 2 == key[0]).all()
        assert list(frame["t"]) == ["x", "x"]
        frame.index.name = frame.columns.name = "changed"
        seen = frame[["k", "v"]]
        kept.append((frame, frame.copy()))
        frame["v"] += 1
        frame.loc[1, "t"] = "y"
        frame["new"] = 1
        frame.iloc[0, 0] = -1
        kept[-1] = frame, frame.copy()
        return seen

    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    assert len(run(rows, changes, schema)) == 40
    assert all(frame.equals(copy) for frame, copy in kept)


def test_large_results_do_not_wait_for_others(tmp_path):
    """A row may be a model of a megabyte, and a block has tens of thousands of groups."""
    rows = written(tmp_path / "s", pa.table({"k": list(range(100))}), "k", n=1)

    def model(key, frame):
        return pd.DataFrame({"k": key, "m": [b"x" * (1 << 20)]})

    schema = pa.schema([("k", pa.int64()), ("m", pa.binary())])
    task = rows.map_groups(model, schema).to_spark(SESSION).task
    sizes = [(batch.num_rows, batch.nbytes) for _, batch in task.results.work([0])]
    assert sum(num_rows for num_rows, _ in sizes) == 100
    assert max(num_bytes for _, num_bytes in sizes) <= BATCH_BYTES + (1 << 20)


def test_groups_without_rows_or_columns_in_their_results(shuffle):
    empty = [pd.DataFrame(), pd.DataFrame({"k": [], "n": []})]

    def some(key, frame):
        return frames(frame) if key[0] < 3 else empty[key[0] - 3]

    assert run(shuffle, some) == [{"k": k, "n": 8} for k in range(3)]
    assert run(shuffle, lambda frame: empty[0]) == []
    none = pa.table({"k": pa.array([], pa.int64()), "n": pa.array([], pa.int64())})

    def few(key, rows: pa.Table):
        return none if key[0].as_py() < 4 else tables(rows)

    assert run(shuffle, few) == [{"k": 4, "n": 8}]


def run_with(rows, function, **settings):
    conf = {f"spark.sql.{name.replace('__', '.')}": value for name, value in settings.items()}
    session = SessionInProcess(Settings(**conf))
    return made(rows.map_groups(function, SCHEMA), spark=session).to_pylist()


def test_settings_of_the_session_are_those_of_apply_in_pandas(shuffle):
    by_position = "legacy__execution__pandas__groupedMap__assignColumnsByName"
    found = run_with(shuffle, frames, **{by_position: "false"})
    assert sorted(row["n"] for row in found) == [0, 1, 2, 3, 4]
    assert {row["k"] for row in found} == {8}

    def halves(frame):
        return frames(frame).assign(n=2.5)

    safely = "execution__pandas__convertToArrowArraySafely"
    assert {row["n"] for row in run_with(shuffle, halves, **{safely: "false"})} == {2}
    for settings in ({}, {safely: "true"}):  # the default of the version, and said
        with pytest.raises(Exception, match="convertToArrowArraySafely"):
            run_with(shuffle, halves, **settings)
    kinds = set()

    def nullable(frame):
        kinds.add(str(frame["v"].dtype))
        return frames(frame)

    prefer = {"execution__pythonUDF__pandas__preferIntExtensionDtype": "true"}
    run_with(shuffle, nullable, **prefer)
    assert kinds == ({"Int64"} if SPARK >= (4, 2) else {"int64", "float64"})


def mixed(key, frame):
    """Types that differ from group to group: they cannot be joined before they are cast."""
    numbers = [1, 2.0, "3", True, None]
    return pd.DataFrame({"k": key, "n": pd.Series([numbers[key[0]]])})


def test_results_are_cast_one_by_one_where_their_types_differ(shuffle):
    assert [row["n"] for row in run(shuffle, mixed)] == [1, 2, 3, 1, None]


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda f: f.rename(columns={"v": "n "}), SchemaError, "it lacks n and it has n  besides"),
        (lambda f: frames(f).set_axis([0, 1], axis=1).assign(x=1), SchemaError, "it lacks k, n"),
        (lambda f: pd.DataFrame([[1, 2, 3]]), SchemaError, "has 3 columns, and the schema 2: k"),
        (lambda f: f["k"], SchemaError, "returned a Series: expected a pandas.DataFrame"),
        (lambda f: next(iter(())), RuntimeError, "the function raised StopIteration"),
        (lambda f: frames(f).assign(n="x"), Exception, "'n'"),
        (lambda f: 1 / 0, ZeroDivisionError, "division"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("spark", [None, SESSION])
def test_what_goes_wrong_is_told_with_the_group(shuffle, function, error, message, spark):
    with pytest.raises(error, match=message) as caught:
        run(shuffle, function, spark=spark)
    assert any(
        note.startswith("in map_groups, the group k=") and note.endswith(f"of {shuffle.path}")
        for note in caught.value.__notes__
    )


def test_tables_must_have_the_types_of_the_schema(shuffle):
    def untyped(rows: pa.Table):
        return pa.table({"k": ["x"], "n": [1]})

    def frame(rows: pa.Table):
        return frames(rows.to_pandas())

    with pytest.raises(SchemaError, match=r"the group k=. of .*column 'k' is string, not int64"):
        run(shuffle, untyped)
    with pytest.raises(SchemaError, match=r"returned a DataFrame: expected a pyarrow\.Table"):
        run(shuffle, frame)


def test_what_compares_a_collated_column_is_refused(tmp_path):
    """Spark says that texts are equal whose bytes are not."""
    collated = StructType().add("k", LongType()).add("s", StringType("UTF8_LCASE"))
    rows = pa.table({"k": [1, 1], "s": ["b", "A"]})
    job, statuses = begun_with(tmp_path, rows, n=1, spark_schema=collated.json())
    commit_job(job, statuses)
    shuffle = open_shuffle(tmp_path)
    for order in (["s"], [("s", "descending")]):
        with pytest.raises(SchemaError, match=r"sort_by: column 's' has the collation UTF8_LCASE"):
            shuffle.map_groups(frames, SCHEMA, sort_by=order)
    with pytest.raises(SchemaError, match=r"on: column 's' has the collation UTF8_LCASE, and only"):
        shuffle.join(shuffle, on=["k", "s"])
    with pytest.raises(SchemaError, match=r"by: column 's' has the collation"):
        shuffle.aggregate(["k", "s"])
    with pytest.raises(SchemaError, match=r"max\(s\): column 's' has the collation"):
        shuffle.aggregate("k", {"s": "max"})
    first = shuffle.aggregate("k", {"s": "first"})
    assert made(first, spark=SESSION).equals(made(first))
    assert run(shuffle, frames, sort_by=["k"]) == [{"k": 1, "n": 2}]


def test_arguments(shuffle):
    for function, message in [
        (7, "function is int"),
        (lambda: None, "function takes 0 arguments"),
        (lambda a, b, c: None, "function takes 3 arguments"),
    ]:
        with pytest.raises(OptionError, match=message):
            run(shuffle, function)
    with pytest.raises(SchemaError, match="'nope' is not there"):
        run(shuffle, frames, sort_by="nope")


def test_frames_of_types_that_spark_lacks_are_refused_before_a_task(tmp_path):
    unsigned = pa.table({"k": [1, 1], "v": pa.array([3, 4], pa.uint8())})
    rows = written(tmp_path / "s", unsigned, "k", for_spark=False)
    with pytest.raises(SchemaError, match="column 'v' has type uint8, which Spark cannot read"):
        rows.map_groups(frames, SCHEMA)
    assert run(rows.select("k"), frames) == run(rows, tables) == [{"k": 1, "n": 2}]


def test_frames_need_pandas_and_tables_are_told_to_need_spark_s(shuffle, monkeypatch):
    def missing(package, what):
        raise MissingPackageError(what, name=package)

    monkeypatch.setattr(frame_calls, "require", missing)
    with pytest.raises(MissingPackageError, match="map_groups, unless its function takes a py"):
        run(shuffle, frames)
    assert run(shuffle, tables)[0] == {"k": 0, "n": 8}


@pytest.mark.parametrize(("cores", "tasks"), [(1, 2), (4, 8), (100, 40)])
def test_small_shuffles_have_two_tasks_for_each_core_as_far_as_there_are_subpartitions(
    tmp_path, cores, tasks
):
    rows = written(tmp_path / "s", pa.table({"k": range(2_000), "v": range(2_000)}), "k", n=40)
    mapped = rows.map_groups(lambda rows: rows, "k bigint")
    for asked in (mapped, rows.map_subpartitions(lambda _, rows: rows, "k bigint")):
        frame = asked.to_spark(SessionInProcess(cores=cores))
        assert tasks <= len(frame.numbers) <= tasks + 1
