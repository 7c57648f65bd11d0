"""A function per group: which form it has, what it is given, and what its results may be."""

import datetime
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

import connector
from arrow_format import MissingPackageError, OptionError, SchemaError, open_shuffle, write_shuffle
from arrow_format.arrays.batches import BATCH_BYTES
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.keys.partitioner import HashPartitioner
from connector.operators import groups
from connector.spark_version import SPARK
from tests.support.session_in_process import SessionInProcess, Settings
from tests.support.small_shuffles import FAST

SESSION = SessionInProcess()
SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])
NUMBERS = pd.ArrowDtype(pa.int64())
ROWS = pa.table({"k": [i % 5 for i in range(40)], "v": pa.array([*range(39), None])})


@pytest.fixture
def path(tmp_path):
    write_shuffle(ROWS, tmp_path / "s", num_subpartitions=3, keys="k", options=FAST)
    return tmp_path / "s"


def run(path, function, schema=SCHEMA, **how):
    rows = connector.map_groups(SESSION, path, function, schema, **how).collect()
    return sorted(rows, key=lambda row: row["k"])


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
def test_forms_of_functions(path, function):
    assert run(path, function) == [{"k": k, "n": 8} for k in range(5)]


def test_a_group_is_a_frame_of_its_own(path):
    """Integers without nulls are integers, whatever the other groups have; a change stays here."""

    def changes(key, frame):
        assert list(frame.index) == list(range(8))
        assert frame["v"].dtype == ("float64" if key == (4,) else "int64")
        assert list(frame.columns) == ["v", "k"]
        frame["v"] = 0
        frame.loc[0, "k"] = 100
        return frames(frame)

    found = run(path, changes, columns=["v", "k"])
    assert found == [{"k": 100, "n": 8}] * 5
    assert (
        run(path, lambda frame: frames(frame.assign(k=len(frame.columns))), columns=["v"])
        == [{"k": 1, "n": 8}] * 5
    )


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
        path = tmp_path / name
        write_shuffle(of, path, num_subpartitions=1, keys="k", options=FAST)
        made = connector.map_groups(SESSION, path, partial(look, name), schema).toArrow()
        assert made.sort_by("k").equals(of)
    assert seen["together"] == seen["1"] | seen["2"] | seen["3"]
    assert seen["together"][1][0] == "int64"


def test_results_may_be_returned_again_with_other_values(path):
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
    assert run(path, again) == run(path, of_a_block) == expected
    lists = pa.schema([("k", pa.int64()), ("n", pa.list_(pa.int64()))])
    sizes = iter(range(5))
    found = run(path, lambda key, frame: with_a_list(key, frame[: next(sizes)]), lists)
    assert sorted(row["n"][0] for row in found) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("rows_each", [1, 12_000])
@pytest.mark.parametrize("with_into", [False, True])
def test_a_function_may_use_one_buffer_for_all_results(tmp_path, rows_each, with_into):
    """NumPy's memory becomes that of a table, or of a column of a frame, without a copy."""
    rows = pa.table({"k": [i % 5 for i in range(40)]})
    write_shuffle(rows, tmp_path / "s", num_subpartitions=1, keys="k", options=FAST)
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
        how = {"into": tmp_path / str(number), "options": FAST} if with_into else {}
        made = connector.map_groups(SESSION, tmp_path / "s", function, schema, **how)
        table = open_shuffle(how["into"]).to_table() if with_into else made.toArrow()
        assert len(table) == 5 * rows_each
        seen = {
            tuple(row.values()) for row in table.group_by(schema.names).aggregate([]).to_pylist()
        }
        assert seen == {(k, k + 100, b"%02d" % k) for k in range(5)}


def test_results_of_several_types_are_each_in_their_rows(tmp_path):
    """Types that alternate from group to group are converted with their own."""
    rows = pa.table({"k": list(range(60)), "v": [None if i % 3 else i for i in range(60)]})
    write_shuffle(rows, tmp_path / "s", num_subpartitions=4, keys="k", options=FAST)

    def of_group(key, frame):
        frame["t"] = pd.Series([f"t{key[0]}"], dtype=("string", "category", object)[key[0] % 3])
        frame["d"] = [pd.NaT, datetime.date(2024, 1, 1), None][key[0] % 3]
        return frame[["t", "d", "v", "k"]] if key[0] % 2 else frame

    schema = pa.schema(
        [("k", pa.int64()), ("v", pa.int64()), ("t", pa.string()), ("d", pa.date32())]
    )
    for into in (None, tmp_path / "into"):
        how = {} if into is None else {"into": into, "options": FAST}
        made = connector.map_groups(SESSION, tmp_path / "s", of_group, schema, **how)
        table = made.toArrow() if into is None else open_shuffle(into).to_table()
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
    rows = pa.table({"k": [i // 2 for i in range(40)], "v": list(range(40)), "t": ["x"] * 40})
    write_shuffle(rows, tmp_path / "s", num_subpartitions=1, keys="k", options=FAST)
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
    assert len(run(tmp_path / "s", changes, schema)) == 40
    assert all(frame.equals(copy) for frame, copy in kept)


def test_large_results_do_not_wait_for_others(tmp_path):
    """A row may be a model of a megabyte, and a block has tens of thousands of groups."""
    rows = pa.table({"k": list(range(100))})
    write_shuffle(rows, tmp_path / "s", num_subpartitions=1, keys="k", options=FAST)

    def model(key, frame):
        return pd.DataFrame({"k": key, "m": [b"x" * (1 << 20)]})

    schema = pa.schema([("k", pa.int64()), ("m", pa.binary())])
    task = connector.map_groups(SESSION, tmp_path / "s", model, schema).task
    sizes = [(batch.num_rows, batch.nbytes) for _, batch in task.results.work([0])]
    assert sum(num_rows for num_rows, _ in sizes) == 100
    assert max(num_bytes for _, num_bytes in sizes) <= BATCH_BYTES + (1 << 20)


def test_groups_without_rows_or_columns_in_their_results(path):
    empty = [pd.DataFrame(), pd.DataFrame({"k": [], "n": []})]

    def some(key, frame):
        return frames(frame) if key[0] < 3 else empty[key[0] - 3]

    assert run(path, some) == [{"k": k, "n": 8} for k in range(3)]
    assert run(path, lambda frame: empty[0]) == []
    none = pa.table({"k": pa.array([], pa.int64()), "n": pa.array([], pa.int64())})

    def few(key, rows: pa.Table):
        return none if key[0].as_py() < 4 else tables(rows)

    assert run(path, few) == [{"k": 4, "n": 8}]


def run_with(path, function, **settings):
    conf = {f"spark.sql.{name.replace('__', '.')}": value for name, value in settings.items()}
    session = SessionInProcess(Settings(**conf))
    return connector.map_groups(session, path, function, SCHEMA).collect()


def test_settings_of_the_session_are_those_of_apply_in_pandas(path):
    by_position = "legacy__execution__pandas__groupedMap__assignColumnsByName"
    found = run_with(path, frames, **{by_position: "false"})
    assert sorted(row["n"] for row in found) == [0, 1, 2, 3, 4]
    assert {row["k"] for row in found} == {8}

    def halves(frame):
        return frames(frame).assign(n=2.5)

    safely = "execution__pandas__convertToArrowArraySafely"
    assert {row["n"] for row in run_with(path, halves, **{safely: "false"})} == {2}
    for settings in ({}, {safely: "true"}):  # the default of the version, and said
        with pytest.raises(Exception, match="convertToArrowArraySafely"):
            run_with(path, halves, **settings)
    kinds = set()

    def nullable(frame):
        kinds.add(str(frame["v"].dtype))
        return frames(frame)

    prefer = {"execution__pythonUDF__pandas__preferIntExtensionDtype": "true"}
    run_with(path, nullable, **prefer)
    assert kinds == ({"Int64"} if SPARK >= (4, 2) else {"int64", "float64"})


def mixed(key, frame):
    """Types that differ from group to group: they cannot be joined before they are cast."""
    numbers = [1, 2.0, "3", True, None]
    return pd.DataFrame({"k": key, "n": pd.Series([numbers[key[0]]])})


def test_results_are_cast_one_by_one_where_their_types_differ(path):
    assert [row["n"] for row in run(path, mixed)] == [1, 2, 3, 1, None]


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
def test_what_goes_wrong_is_told_with_the_group(path, function, error, message):
    with pytest.raises(error, match=message) as caught:
        run(path, function)
    assert any(
        note.startswith("in map_groups, the group k=") and note.endswith(f"of {path}")
        for note in caught.value.__notes__
    )


def test_tables_must_have_the_types_of_the_schema(path):
    def untyped(rows: pa.Table):
        return pa.table({"k": ["x"], "n": [1]})

    def frame(rows: pa.Table):
        return frames(rows.to_pandas())

    with pytest.raises(SchemaError, match=r"the group k=. of .*column 'k' is string, not int64"):
        run(path, untyped)
    with pytest.raises(SchemaError, match=r"returned a DataFrame: expected a pyarrow\.Table"):
        run(path, frame)


def test_a_collated_column_is_no_sort_key(tmp_path):
    collated = StructType().add("k", LongType()).add("s", StringType("UTF8_LCASE"))
    rows = pa.table({"k": [1, 1], "s": ["b", "A"]})
    job = begin_job(
        tmp_path, rows.schema, partitioner=HashPartitioner("k"), num_subpartitions=1,
        options=FAST, spark_schema=collated.json(),
    )  # fmt: skip
    commit_job(job, [run_map_task(job, 0, 0, rows.to_batches())])
    for order in (["s"], [("s", "descending")]):
        with pytest.raises(SchemaError, match=r"column 's' .* cannot be a sort key: .*UTF8_LCASE"):
            run(tmp_path, frames, sort_by=order)
    assert run(tmp_path, frames, sort_by=["k"]) == [{"k": 1, "n": 2}]


def test_arguments(path):
    for function, message in [
        (7, "function is int"),
        (lambda: None, "function takes 0 arguments"),
        (lambda a, b, c: None, "function takes 3 arguments"),
    ]:
        with pytest.raises(OptionError, match=message):
            run(path, function)
    with pytest.raises(OptionError, match="columns is empty"):
        run(path, frames, columns=[])
    for how in ({"sort_by": "nope"}, {"columns": ["nope"]}, {"filter": "nope = 1"}):
        with pytest.raises(SchemaError, match="'nope' is not there"):
            run(path, frames, **how)


def test_frames_of_types_that_spark_lacks_are_refused_before_a_task(tmp_path):
    unsigned = pa.table({"k": [1, 1], "v": pa.array([3, 4], pa.uint8())})
    path = tmp_path / "s"
    write_shuffle(unsigned, path, num_subpartitions=1, keys="k", for_spark=False, options=FAST)
    with pytest.raises(SchemaError, match="column 'v' has type uint8, which Spark cannot read"):
        connector.map_groups(SESSION, path, frames, SCHEMA)
    assert run(path, frames, columns=["k"]) == run(path, tables) == [{"k": 1, "n": 2}]


def test_frames_need_pandas_and_tables_are_told_to_need_spark_s(path, monkeypatch):
    def missing(package, what):
        raise MissingPackageError(what, name=package)

    monkeypatch.setattr(groups, "require", missing)
    with pytest.raises(MissingPackageError, match="map_groups, unless its function takes a py"):
        run(path, frames)
    assert run(path, tables)[0] == {"k": 0, "n": 8}


@pytest.mark.parametrize(("cores", "tasks"), [(1, 2), (4, 8), (100, 40)])
def test_small_shuffles_have_two_tasks_for_each_core_as_far_as_there_are_subpartitions(
    tmp_path, cores, tasks
):
    rows = pa.table({"k": range(2_000), "v": range(2_000)})
    write_shuffle(rows, tmp_path / "s", num_subpartitions=40, keys="k", options=FAST)
    session = SessionInProcess(cores=cores)
    schema = pa.schema([("k", pa.int64())])
    mapped = connector.map_groups(session, tmp_path / "s", lambda rows: rows, schema)
    each = connector.map_subpartitions(session, tmp_path / "s", lambda _, rows: rows, schema)
    for frame in (mapped, each):
        assert tasks <= len(frame.numbers) <= tasks + 1
