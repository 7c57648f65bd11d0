"""The sentence first: how many lines of an error precede the one that says what is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import arrow_shuffle
from arrow_shuffle import open_shuffle
from connector.pickling import pickle_by_value
from integration.programs.other_sessions import connect_session, printed_by
from tests.support.guarantees import guarantee
from tests.support.spark_session import spark_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

MOST_LINES = 5
pytestmark = pytest.mark.spark


def outer(rows: Any) -> Any:
    return inner(rows)


def inner(rows: Any) -> Any:
    msg = f"{len(rows.columns)} columns are too few"
    raise ValueError(msg)


def ends(_: Any) -> Any:
    return next(iter(()))


def nothing(_: Any) -> None:
    return None


def of_subpartition(_: int, rows: Any) -> Iterator[Any]:
    yield from outer(rows.read_all().to_pandas())


def program(spark: SparkSession, directory: Path) -> dict[str, str]:
    """Return what each mistake is answered with."""
    pickle_by_value(__name__)
    path = str(directory / "s")
    rows = spark.range(0, 40, 1, 2)
    arrow_shuffle.write_shuffle(rows, path, keys="id", num_subpartitions=4)

    def load(path: str, **options: str) -> int:
        return spark.read.format("arrow_shuffle").options(**options).load(path).count()

    def write(**options: str) -> None:
        writer = rows.write.format("arrow_shuffle").mode("append")
        writer.options(**options).save(str(directory / "new"))

    def run(query: Any) -> None:
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def sink() -> None:
        ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        writer = ticks.writeStream.format("arrow_shuffle").option("numSubpartitions", 2)
        writer = writer.option("checkpointLocation", str(directory / "a")).option("keys", "nokey")
        run(writer.start(str(directory / "new")))

    def source() -> None:
        reader = spark.readStream.format("arrow_shuffle").option("startingVersion", "77")
        writer = reader.load(path).writeStream.format("noop")
        run(writer.option("checkpointLocation", str(directory / "b")).start())

    def damaged() -> int:
        other = str(directory / "damaged")
        arrow_shuffle.write_shuffle(rows, other, keys="id", num_subpartitions=4)
        for file in Path(other).rglob("*.data"):
            file.write_bytes(b"\0" * file.stat().st_size)
        return load(other)

    calls: dict[str, Callable[[], object]] = {
        "load nothing": lambda: load(str(directory / "none")),
        "load option": lambda: load(path, wrong="1"),
        "load damaged": damaged,
        "write option": lambda: write(keys="id", numSubpartitions="2", sortBuferBytes="1"),
        "write key": lambda: write(keys="nokey", numSubpartitions="2"),
        "sink": sink,
        "source": source,
        "user": lambda: open_shuffle(path).map_groups(outer, "id long").to_spark(spark).collect(),
        "user ends": lambda: (
            open_shuffle(path).map_groups(ends, "id long").to_spark(spark).collect()
        ),
        "user into": lambda: (
            open_shuffle(path).map_groups(outer, "id long").write(directory / "into", spark=spark)
        ),
        "user of subpartitions": lambda: (
            open_shuffle(path)
            .map_subpartitions(of_subpartition, "id long")
            .to_spark(spark)
            .collect()
        ),
        "nothing": lambda: (
            open_shuffle(path).map_groups(nothing, "id long").to_spark(spark).collect()
        ),
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
        except Exception as error:
            found[name] = str(error)
    return found


SENTENCES = {
    "load nothing": "ShuffleNotFoundError: ",
    "load option": "OptionError: option 'wrong' is not known",
    "load damaged": "CorruptShuffleError: ",
    "write option": "did you mean 'sortBufferBytes'?",
    "write key": "SchemaError: key column 'nokey' is not there",
    "sink": "SchemaError: key column 'nokey' is not there",
    "source": "ShuffleNotFoundError: ",
    "user": "ValueError: 1 columns are too few",
    "user ends": "RuntimeError: the function raised StopIteration",
    "user into": "ValueError: 1 columns are too few",
    "user of subpartitions": "ValueError: 1 columns are too few",
    "nothing": "SchemaError: the function returned None",
}


@pytest.fixture(scope="module", params=["classic", "connect"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the program found, on a session of either kind."""
    directory = tmp_path_factory.mktemp(request.param)
    return printed_by("integration.test_plain_errors", request.param, directory)


@guarantee("plain errors")
def test_few_lines_precede_the_sentence(found: dict[str, str]):
    assert found.keys() == SENTENCES.keys()
    for name, sentence in SENTENCES.items():
        before, there, _ = found[name].partition(sentence)
        assert there, found[name]
        lines = before.split("\n")[:-1]
        if "are too few" in sentence:  # the frames of the user's function precede it, too
            lines = [line for line in lines if not line.startswith("  ")]
        assert len(lines) <= MOST_LINES, found[name]


@guarantee("plain errors")
def test_of_a_users_function_only_its_own_frames_are_shown(found: dict[str, str]):
    for name in SENTENCES:
        if not name.startswith("user"):
            continue
        text, *_ = found[name].partition("JVM stacktrace")
        frames = [line for line in text.splitlines() if line.lstrip().startswith('File "')]
        if name == "user ends":
            frames = frames[1:]  # no frame of the user's has this error itself
        assert frames, found[name]
        assert all(__file__ in frame for frame in frames), found[name]


def main(way: str, directory: Path) -> None:
    """Print what the program found."""
    session = connect_session if way == "connect" else spark_session
    with session(directory / "scratch") as spark:
        print(json.dumps(program(spark, directory)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
