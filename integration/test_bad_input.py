"""Bad input gets an error of its own, before any task runs where that can be, and leaves nothing.

Types and column names that cannot be written have their tests in ``test_every_type.py``.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import arrow_shuffle
from arrow_format import (
    ColumnPartitioner,
    CorruptShuffleError,
    FormatVersionError,
    OptionError,
    RangePartitioner,
    RoundRobinPartitioner,
    SchemaError,
    ShuffleError,
    ShuffleExistsError,
    ShuffleNotFoundError,
    StorageError,
    WriteOptions,
)
from arrow_shuffle import open_shuffle
from integration.programs.ways import FAST, WAYS, by_function
from tests.support.exhaustive import exhaustive
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import files_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

N = 4
A_TASK_RAN = "if(id < 0, '', raise_error(concat('a task ran ', id))) AS trap"


@pytest.fixture
def trap(spark: SparkSession) -> DataFrame:
    """A frame whose tasks fail, so that an error without that failure came before them."""
    return spark.range(3).selectExpr("id AS k", "id AS v", A_TASK_RAN)


@contextmanager
def refused(
    message: str, kind: type[Exception] = ShuffleError
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Expect an error that says ``message``, as literal text, and that no task ran."""
    with pytest.raises(kind, match=re.escape(message)) as caught:
        yield caught
    assert "a task ran" not in str(caught.value)


def save(df: DataFrame, path: Path, mode: str = "append", **options: object) -> None:
    known = {"keys": "k", "numSubpartitions": N} | options
    given = {name: str(value) for name, value in known.items() if value is not None}
    df.write.format("arrow_shuffle").options(**given).mode(mode).save(str(path))


def write(df: DataFrame, path: Path, **arguments: Any) -> arrow_shuffle.ShuffleReceipt:
    known = {"keys": "k", "num_subpartitions": N, "options": FAST} | arguments
    return arrow_shuffle.write_shuffle(df, path, **known)


# Arguments and options of a write ----------------------------------------------------------------


@dataclass(frozen=True)
class Bad:
    """One bad write, as arguments of the function and as options of the data source."""

    message: str
    kind: type[Exception] = OptionError
    arguments: dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    other_message: str | None = None
    """What the data source says where it differs."""


WHOLE = "expected a whole number of subpartitions from 1 to 1,000,000"
CODECS = "expected one of 'zstd', 'none'"

BAD_WRITES = {
    "missing key": Bad(
        "key column 'nope' is not there; columns are k, v, trap",
        SchemaError,
        {"keys": ["k", "nope"]},
        {"keys": "k,nope"},
    ),
    "key in another case": Bad(
        "key column 'K' is not there (did you mean 'k'?)", SchemaError, {"keys": "K"}, {"keys": "K"}
    ),
    "key twice": Bad("a column is named twice", OptionError, {"keys": ["k", "k"]}, {"keys": "k,k"}),
    "no keys": Bad(
        "exactly one of keys and partitioner must be given, found neither",
        OptionError,
        {"keys": None},
        {"keys": None},
        "option keys or partitioner is missing",
    ),
    "keys and partitioner": Bad(
        "exactly one of keys and partitioner must be given, found both",
        OptionError,
        {"partitioner": ColumnPartitioner("k")},
        {"partitioner": "roundrobin"},
        "option keys='k': partitioner=roundrobin takes none",
    ),
    "n of 0": Bad(
        f"num_subpartitions=0: {WHOLE}",
        OptionError,
        {"num_subpartitions": 0},
        {"numSubpartitions": 0},
        f"option numSubpartitions='0': {WHOLE}",
    ),
    "n below 0": Bad(
        f"num_subpartitions=-1: {WHOLE}",
        OptionError,
        {"num_subpartitions": -1},
        {"numSubpartitions": -1},
        f"option numSubpartitions='-1': {WHOLE}",
    ),
    "n too large": Bad(
        f"num_subpartitions=1000001: {WHOLE}",
        OptionError,
        {"num_subpartitions": 1_000_001},
        {"numSubpartitions": 1_000_001},
        f"option numSubpartitions='1000001': {WHOLE}",
    ),
    "n as text": Bad(
        f"num_subpartitions='many': {WHOLE}",
        OptionError,
        {"num_subpartitions": "many"},
        {"numSubpartitions": "many"},
        f"option numSubpartitions='many': {WHOLE}",
    ),
    "n as digits": Bad(f"num_subpartitions='8': {WHOLE}", OptionError, {"num_subpartitions": "8"}),
    "n as a fraction": Bad(
        f"num_subpartitions=2.5: {WHOLE}",
        OptionError,
        {"num_subpartitions": 2.5},
        {"numSubpartitions": 2.5},
        f"option numSubpartitions='2.5': {WHOLE}",
    ),
    "no n": Bad("option numSubpartitions is missing", options={"numSubpartitions": None}),
    "unknown mode": Bad(
        "mode='replace': expected one of 'errorifexists', 'overwrite', 'append', 'upsert'",
        OptionError,
        {"mode": "replace"},
    ),
    "unknown option": Bad(
        "option 'numpartitions' is not known (did you mean 'numSubpartitions'?)",
        options={"numPartitions": 2},
    ),
    "unknown codec": Bad(
        "option codec='lzo': expected one of 'zstd', 'none'", options={"codec": "lzo"}
    ),
    "codec level": Bad("option codecLevel='99': expected", options={"codecLevel": "99"}),
    "chunk size": Bad(
        "option chunkBytes='big': expected a whole number of bytes from 1 to 4,194,304, such as",
        options={"chunkBytes": "big"},
    ),
    "buffer size": Bad("option sortBufferBytes='1': expected", options={"sortBufferBytes": 1}),
    "unknown partitioner": Bad(
        "option partitioner='modulo': expected one of 'hash', 'range', 'roundrobin', 'broadcast'",
        options={"partitioner": "modulo"},
    ),
    "partition column of text": Bad(
        "column 'trap' is string; a ColumnPartitioner needs an integer column",
        SchemaError,
        {"keys": None, "partitioner": ColumnPartitioner("trap")},
        {"keys": "trap", "partitioner": "column"},
    ),
    "range without bounds": Bad(
        "option partitioner=range needs bounds", options={"partitioner": "range", "keys": "k"}
    ),
    "range of a column that is not there": Bad(
        "range keys: column 'nope' is not there; columns are k, v, trap",
        SchemaError,
        {"keys": None, "partitioner": RangePartitioner("nope")},
        {"partitioner": "range", "keys": "nope", "rangeBounds": "[1]"},
    ),
    "too many bounds": Bad(
        f"{N} bounds make {N + 1} ranges; num_subpartitions is {N}",
        OptionError,
        {"keys": None, "partitioner": RangePartitioner("k", bounds=range(N))},
        {"partitioner": "range", "keys": "k", "rangeBounds": str(list(range(N)))},
    ),
    "broadcast with keys": Bad(
        "option keys='k': partitioner=broadcast takes none",
        options={"keys": "k", "partitioner": "broadcast"},
    ),
    "sort key that is not there": Bad(
        "sort_by: column 'V' is not there (did you mean 'v'?); columns are k, v, trap",
        SchemaError,
        {"sort_by": ("V",)},
        {"sortBy": "V"},
    ),
    "sort key twice": Bad(
        "a column is named twice",
        OptionError,
        {"sort_by": ("v", ("v", "descending"))},
        {"sortBy": "v, v desc"},
    ),
    "order of a sort key": Bad(
        "order 'up' is not one of 'ascending', 'descending'",
        OptionError,
        {"sort_by": [("v", "up")]},
        {"sortBy": '[["v", "up"]]'},
    ),
    "local_dirs": Bad(
        "option localDirs='a,b': expected different absolute", options={"localDirs": "a,b"}
    ),
}


def given_to(side: str) -> list[Any]:
    return [
        pytest.param(bad, id=name)
        for name, bad in BAD_WRITES.items()
        if getattr(bad, side) is not None
    ]


@pytest.mark.parametrize("bad", given_to("arguments"))
def test_bad_arguments(trap: DataFrame, tmp_path: Path, bad: Bad):
    with refused(bad.message, bad.kind):
        write(trap, tmp_path / "s", **bad.arguments)

    hook = {"keys": "k", "num_subpartitions": N} | bad.arguments
    if "mode" not in hook:
        with refused(bad.message, bad.kind):
            arrow_shuffle.ShuffleMapTask(tmp_path / "s", schema=trap.schema, **hook)
    assert files_below(tmp_path) == []


@exhaustive(but="bad", least=6)
@pytest.mark.parametrize("bad", given_to("options"))
def test_bad_options(trap: DataFrame, tmp_path: Path, bad: Bad):
    with refused(bad.other_message or bad.message, Exception):
        save(trap, tmp_path / "s", **bad.options)

    assert files_below(tmp_path) == []


def test_bad_write_options():
    for arguments, message in [
        ({"codec": "lzo"}, f"codec='lzo': {CODECS}"),
        (
            {"codec_level": 99},
            "codec_level=99: expected a whole number of zstd levels from -7 to 22",
        ),
        ({"chunk_bytes": 0}, "chunk_bytes=0: expected a whole number of bytes from 1 to"),
        ({"sort_buffer_bytes": "1g"}, "sort_buffer_bytes='1g': expected a whole number of bytes"),
        ({"write_order": "sorted"}, "write_order='sorted': expected one of 'rotated', 'natural'"),
        ({"sync": 1}, "sync=1: expected True or False"),
        ({"local_dirs": ("a",)}, "local_dirs=('a',): expected a tuple of different absolute"),
    ]:
        with refused(message, OptionError):
            WriteOptions(**arguments)


def test_sources_that_are_none(spark: SparkSession, tmp_path: Path):
    with refused("source is pyarrow InMemoryDataset: expected a Spark DataFrame", SchemaError):
        write(ds.dataset(pa.table({"k": [1]})), tmp_path / "s", spark=spark)
    with refused("source is list: expected a Spark DataFrame", SchemaError):
        write([1, 2], tmp_path / "s", spark=spark)
    assert files_below(tmp_path) == []


# Paths of a write --------------------------------------------------------------------------------


@guarantee("foreign URIs")
@pytest.mark.parametrize("path", ["hdfs://user:secret@host/shuffle", "dbfs:/shuffle", "C:/shuffle"])
def test_uris_that_are_none_of_ours(
    spark: SparkSession, trap: DataFrame, path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    scheme = path.partition(":")[0].lower()
    what = "looks like a drive of Windows, which" if scheme == "c" else f"{scheme}:"
    expected = f"path={scheme}:...: {what} is not supported"
    with refused(expected, OptionError):
        arrow_shuffle.write_shuffle(trap, path, keys="k", num_subpartitions=N)
    with refused(expected, OptionError):
        open_shuffle(path).to_spark(spark)
    with refused(expected, Exception):
        spark.read.format("arrow_shuffle").load(path)
    with refused(expected, Exception):
        trap.write.format("arrow_shuffle").options(keys="k", numSubpartitions=2).mode(
            "append"
        ).save(path)
    assert files_below(tmp_path) == []


def test_a_shuffle_is_there(spark: SparkSession, trap: DataFrame, tmp_path: Path):
    path = tmp_path / "s"
    df = spark.range(5).toDF("k")
    write(df, path)
    before = files_below(path)

    with refused(
        f"{path}: there is a shuffle already (version 1); choose another path, or mode append, "
        "overwrite or ignore",
        ShuffleExistsError,
    ):
        write(trap, path)
    same = trap.selectExpr("if(trap = '', k, k + 1) AS k")  # not k for both: Spark would take k
    another = "cannot append rows of another schema: column 'v' (int64) is not in the shuffle"
    with refused(another, SchemaError):
        write(trap, path, mode="append")
    with refused(another, Exception):
        save(trap, path)
    with refused("has 4 subpartitions; cannot append with 5", SchemaError):
        write(same, path, mode="append", num_subpartitions=5)
    with refused("has 4 subpartitions; cannot append with 5", Exception):
        save(same, path, numSubpartitions=5)
    hashed = "is partitioned by {'kind': 'hash', 'keys': ['k'], 'seed': 42}; cannot append rows"
    with refused(hashed, SchemaError):
        write(same, path, mode="append", keys=None, partitioner=RoundRobinPartitioner())
    with refused(hashed, Exception):
        save(same, path, keys=None, partitioner="roundrobin")
    assert files_below(path) == before
    assert open_shuffle(path).to_spark(spark).count() == 5


def test_another_writer_was_faster(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "s"
    df = spark.range(5).toDF("k")
    task = arrow_shuffle.ShuffleMapTask(path, schema=df.schema, keys="k", num_subpartitions=N)
    statuses = df.mapInArrow(task, task.status_schema).collect()
    write(df, path)

    with refused("there is a shuffle already (version 1)", ShuffleExistsError):
        arrow_shuffle.commit_shuffle(task, statuses)
    with refused("expected one map output of each of 2 map tasks, found 1 (missing: [1]"):
        arrow_shuffle.commit_shuffle(task, statuses[:1], mode="append", expected_map_outputs=2)
    with refused("more than once: [0]"):
        arrow_shuffle.commit_shuffle(task, [statuses[0], statuses[0]], mode="append")
    with refused("not a map status of ShuffleMapTask (KeyError: 'map_output')"):
        arrow_shuffle.commit_shuffle(task, pa.table({"k": [1]}), mode="append")

    # The files were left for another try.
    first = arrow_shuffle.commit_shuffle(task, statuses, mode="append")
    again = arrow_shuffle.commit_shuffle(task, statuses, mode="append")
    assert (first.version, again.version) == (2, 2)
    assert open_shuffle(path).to_spark(spark).count() == 10


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_the_directory_holds_something_else(trap: DataFrame, tmp_path: Path, mode: str):
    (tmp_path / "thesis.tex").write_text("precious")
    message = f"{tmp_path}: holds 'thesis.tex' and is not a shuffle; nothing was changed"

    with refused(message, ShuffleExistsError):
        write(trap, tmp_path, mode=mode)
    with refused(message, Exception):
        save(trap, tmp_path, mode)

    assert files_below(tmp_path) == ["thesis.tex"]


def test_the_path_is_a_file(spark: SparkSession, trap: DataFrame, tmp_path: Path):
    path = tmp_path / "file"
    path.write_text("precious")

    with refused(f"{path}: is a file; give a directory for the shuffle", ShuffleExistsError):
        write(trap, path)
    with refused(f"{path}: is a file; give a directory for the shuffle", Exception):
        save(trap, path)
    with refused(f"{path}: is a file, not the directory of a shuffle", ShuffleNotFoundError):
        open_shuffle(path).to_spark(spark)
    with refused(f"{path}: is a file, not the directory of a shuffle", Exception):
        spark.read.format("arrow_shuffle").load(str(path))
    # A file where a directory above should be.
    with refused(f"{path}/deeper", StorageError):
        write(trap, path / "deeper")

    assert path.read_text() == "precious"


@contextmanager
def unprivileged() -> Iterator[None]:
    """Drop the rights of root, which may write everywhere, in the threads of this process."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_path_without_permission(trap: DataFrame):
    # Not below pytest's directory, which is open to its owner alone.
    with tempfile.TemporaryDirectory() as directory:
        closed = Path(directory)
        closed.chmod(0o555)
        message = "permission denied; cannot make the directory. Give this user access to it"
        with unprivileged(), refused(message, StorageError) as caught:
            write(trap, closed / "s")
        assert str(caught.value).startswith(f"{closed}/s")
        assert files_below(closed) == []


# Reading what is not there -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two map outputs with rows in every subpartition; two versions."""
    path = tmp_path_factory.mktemp("sound") / "s"
    df = spark.range(0, 400, 1, 2).selectExpr("id AS k", "concat('row ', id) AS s")
    write(df, path)
    write(df, path, mode="append")
    return path


def every_way(spark: SparkSession, path: Path, **options: object) -> list[Callable[[], object]]:
    """The ways of reading all rows; options are those of the data source, and of no function."""
    text = {name: str(value) for name, value in options.items()}
    listed = ", ".join(f"{name} '{value}'" for name, value in {"path": path, **text}.items())

    def by_sql() -> object:
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW bad USING arrow_shuffle OPTIONS ({listed})")
        return spark.sql("SELECT * FROM bad").collect()

    def with_a_schema() -> object:
        reader = spark.read.format("arrow_shuffle").schema("s string").options(**text)
        return reader.load(str(path)).collect()

    return [
        lambda: spark.read.format("arrow_shuffle").options(**text).load(str(path)).collect(),
        with_a_schema,
        by_sql,
    ]


@pytest.mark.parametrize("name", ["nowhere", "empty", "foreign", "uncommitted"])
def test_no_shuffle_there(spark: SparkSession, tmp_path: Path, name: str):
    path = tmp_path / name
    message = f"{path}: holds no committed shuffle; nothing was written, or not committed"
    match name:
        case "nowhere":
            message = f"{path}: is not there; check the path"
        case "empty":
            path.mkdir()
        case "foreign":
            path.mkdir()
            (path / "part-0.parquet").write_text("")
        case "uncommitted":
            df = spark.range(5).toDF("k")
            task = arrow_shuffle.ShuffleMapTask(
                path, schema=df.schema, keys="k", num_subpartitions=N
            )
            df.mapInArrow(task, task.status_schema).collect()
    before = files_below(tmp_path)

    with refused(message, ShuffleNotFoundError):
        open_shuffle(path).to_spark(spark)
    for read in every_way(spark, path):
        with refused(message, Exception):
            read()
    assert files_below(tmp_path) == before


def test_no_such_version(spark: SparkSession, sound: Path):
    message = f"{sound}: version {{}} is not there; there are versions 1 to 2"

    for version in (0, 3, -1):
        with refused(message.format(version), ShuffleNotFoundError):
            open_shuffle(sound, version).to_spark(spark)
    for read in every_way(spark, sound, version=3):
        with refused(message.format(3), Exception):
            read()


def test_subpartition_out_of_range(spark: SparkSession, sound: Path):
    message = f"subpartition {N} is out of range; the shuffle has {N}, 0 to {N - 1}"

    for wanted in (N, [0, 1, N], range(2, N + 1)):
        with refused(message, OptionError):
            open_shuffle(sound).select(subpartitions=wanted).to_spark(spark)
        with refused(message, OptionError):
            open_shuffle(sound).read(wanted)
    for read in every_way(spark, sound, subpartitions=f"0-1,{N}"):
        with refused(message, Exception):
            read()


def read_by_method(
    spark: SparkSession,
    path: Path,
    *,
    version: Any = None,
    columns: Sequence[str] = (),
    subpartitions: Any = None,
    **arguments: Any,
) -> DataFrame:
    selected = open_shuffle(path, version).select(*columns, subpartitions=subpartitions)
    return selected.to_spark(spark, **arguments)


def test_bad_arguments_of_a_read(spark: SparkSession, sound: Path):
    for arguments, message, kind in [
        ({"subpartitions": -1}, "subpartition -1 is out of range", OptionError),
        ({"subpartitions": ["1"]}, "subpartition '1': expected a whole number", OptionError),
        ({"subpartitions": []}, "subpartitions is empty: expected at least one", OptionError),
        ({"columns": ["k", "x"]}, "column 'x' is not there; columns are k, s", SchemaError),
        ({"version": "a b"}, "version='a b': expected a number, a date and time", OptionError),
        ({"version": "none"}, "no version has the tag 'none'", ShuffleNotFoundError),
        ({"target_partition_bytes": 0}, "target_partition_bytes=0: expected a", OptionError),
        ({"split_skewed": 1}, "split_skewed=1: expected True or False", OptionError),
        (
            {"split_skewed": True, "coalesce": False},
            "split_skewed=True: without coalesce each subpartition is exactly one",
            OptionError,
        ),
    ]:
        with refused(message, kind):
            read_by_method(spark, sound, **arguments)


def test_an_option_of_a_read_that_is_not_known(spark: SparkSession, sound: Path):
    for read in every_way(spark, sound, subpartition=1):
        with refused(
            "option 'subpartition' is not known (did you mean 'subpartitions'?)", Exception
        ):
            read()


@exhaustive(but="options, message", least=4)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subpartitions": "3-1"}, "subpartitions='3-1': expected numbers and ranges such as 3,7"),
        ({"subpartitions": "x"}, "subpartitions='x': expected numbers and ranges such as 3,7-9"),
        ({"coalesce": "yes"}, "option coalesce='yes': expected true or false"),
        ({"targetPartitionBytes": "0"}, "option targetPartitionBytes='0': expected a whole"),
        ({"version": "a b"}, "option version='a b': expected a number, a date and time as"),
        ({"version": "2026-11-20"}, "option version='2026-11-20': expected a time with a zone"),
        ({"expectedVersion": "-1"}, "option expectedVersion='-1': expected a whole number"),
        ({"splitSkewed": "1"}, "option splitSkewed='1': expected true or false"),
        (
            {"splitSkewed": "true", "coalesce": "false"},
            "option splitSkewed='true': without coalesce",
        ),
        ({"memoryBytes": "1k"}, "option memoryBytes='1k': expected a whole number of bytes from"),
        ({"memoryMap": "maybe"}, "option memoryMap='maybe': expected true or false"),
    ],
)
def test_bad_options_of_a_read(
    spark: SparkSession, sound: Path, options: dict[str, str], message: str
):
    reader = spark.read.format("arrow_shuffle").options(**options)
    with refused(message, Exception):
        reader.load(str(sound)).collect()


def test_a_schema_that_does_not_fit(spark: SparkSession, sound: Path):
    for schema, message in [
        ("k long, x int", "column 'x' is not there; columns are k, s"),
        ("k int", "column 'k' is bigint, not int; cast after reading"),
    ]:
        with refused(message, Exception):
            spark.read.format("arrow_shuffle").schema(schema).load(str(sound)).collect()
    reader = spark.read.format("arrow_shuffle").option("withSubpartition", "true").schema("k long")
    with refused("add `_subpartition int` to it", Exception):
        reader.load(str(sound)).collect()
    with refused("no path was given; use load(path) or save(path)", Exception):
        spark.read.format("arrow_shuffle").load()


# Damage ------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(sound: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return shutil.copytree(sound, tmp_path / "damaged")


def flip(path: Path, where: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(len(content) * where)] ^= 0x10
    path.write_bytes(content)


def every_way_finds(
    spark: SparkSession, path: Path, pattern: str, kind: type[Exception], *, in_tasks: bool = False
) -> None:
    """Expect the error of every reader; where tasks find it, which are tried twice, of one only."""
    with pytest.raises(kind, match=pattern):
        open_shuffle(path).read().read_all()
    with pytest.raises(Exception, match=pattern):
        open_shuffle(path).to_spark(spark).collect()
    if in_tasks:
        return
    with pytest.raises(Exception, match=pattern):
        open_shuffle(path).select("k").to_spark(spark, coalesce=False).collect()
    for read in every_way(spark, path):
        with pytest.raises(Exception, match=pattern):
            read()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "data",
            r" \(map task 1, attempt 0\), region 0, chunk \d+ at byte \d+, wanted for subpart",
        ),
        ("index", ": "),
    ],
)
def test_a_flipped_byte(spark: SparkSession, damaged: Path, kind: str, message: str):
    (file, *_) = sorted(damaged.glob(f"map_outputs/*/00001-*.{kind}"))
    # Statistics are before that in an index: a read without a filter does not look at them.
    flip(file, 0.6)

    pattern = f"{re.escape(file.name)}{message}"
    every_way_finds(spark, damaged, pattern, CorruptShuffleError, in_tasks=kind == "index")
    (problem,) = open_shuffle(damaged).verify(raise_on_damage=False).problems
    assert file.name in str(problem)


def test_a_flipped_byte_in_the_log(spark: SparkSession, damaged: Path):
    entry = sorted(damaged.glob("commit_log/*/*.entry"))[-1]
    flip(entry, 0.1)

    every_way_finds(
        spark, damaged, rf"{re.escape(entry.name)}: log entry does not match", CorruptShuffleError
    )


def test_a_file_that_is_gone(spark: SparkSession, damaged: Path):
    (file, *_) = sorted(damaged.glob("map_outputs/*/00000-*.data"))
    file.unlink()

    pattern = rf"{re.escape(file.name)}: not there"
    every_way_finds(spark, damaged, pattern, CorruptShuffleError, in_tasks=True)


def test_a_newer_format_version(spark: SparkSession, damaged: Path):
    entry = sorted(damaged.glob("commit_log/*/*.entry"))[-1]
    body, _, rest = entry.read_bytes().partition(b"\n")
    rest = rest.partition(b"\n")[2]
    body = body.replace(b'"format_version":1', b'"format_version":2')
    entry.write_bytes(
        body + b"\narrow-shuffle-log %d %08x\n" % (len(body), zlib.crc32(body)) + rest
    )  # fmt: skip
    message = (
        rf"{re.escape(entry.name)}: log entry has format version 2, this arrow-shuffle reads up "
        "to 1; read it with a newer one"
    )

    every_way_finds(spark, damaged, message, FormatVersionError)
    with pytest.raises(FormatVersionError, match=message):
        write(spark.range(3).selectExpr("id AS k", "'' AS s"), damaged, mode="append")


# Failures in the user's own plan -----------------------------------------------------------------


@exhaustive()
@pytest.mark.parametrize("way", [name for name in WAYS if name != "mapInArrow"])
@pytest.mark.parametrize("there", [False, True], ids=["new", "append"])
def test_a_failing_task_leaves_nothing(spark: SparkSession, tmp_path: Path, way: str, there: bool):
    path = tmp_path / "s"
    rows = spark.range(0, 60_000, 1, 3)
    if there:
        by_function(rows.toDF("k"), path, ["k"], N)
    before = files_of_rows(tmp_path)
    df = rows.selectExpr("if(id = 59999, raise_error('my own mistake'), id) AS k")

    with pytest.raises(Exception, match="my own mistake"):
        WAYS[way](df, path, ["k"], N)

    assert files_of_rows(tmp_path) == before


def files_of_rows(path: Path) -> list[str]:
    """What is below a directory but for the log, which keeps that a job was aborted."""
    return [name for name in files_below(path) if name != "s" and "commit_log" not in name]


def test_a_row_without_a_subpartition_fails_its_task(spark: SparkSession, tmp_path: Path):
    df = spark.range(0, 5, 1, 1).selectExpr("id AS k")

    with pytest.raises(Exception, match="column 'k' holds subpartition 4; there are 4, so it must"):
        write(df, tmp_path / "s", keys=None, partitioner=ColumnPartitioner("k"))
    with pytest.raises(Exception, match="column 'k' holds subpartition 4; there are 4, so it must"):
        save(df, tmp_path / "s", partitioner="column")

    assert files_of_rows(tmp_path) == []
