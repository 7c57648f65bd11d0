"""What users' functions raise: with subpartition, path and cause, in words that Spark prints."""

import datetime as dt
import traceback

import pyarrow as pa
import pytest

from arrow_format.arrays.stored_types import in_time_zone
from arrow_format.errors import CorruptShuffleError
from arrow_format.operators.join import ThenOfGroup
from arrow_format.operators.results import results_of
from arrow_shuffle import BroadcastPartitioner
from tests.support.guarantees import guarantee
from tests.support.operations import made, written

SCHEMA = pa.schema({"n": pa.int64()})
BATCH = pa.record_batch([pa.array([1], pa.int64())], schema=SCHEMA)


def printed(call):
    """What PySpark makes of the error: neither cause nor context."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        list(results_of(call, SCHEMA, caller="map_subpartitions", where="subpartition 3 of /s"))
    error = caught.value
    error.__cause__ = None
    return error, "".join(traceback.format_exception(error))


def empty():
    return pa.RecordBatchReader.from_batches(SCHEMA, [])


def first():
    return [empty().read_next_batch()]


def firsts():
    yield BATCH
    yield empty().read_next_batch()


@pytest.mark.parametrize("function", [first, firsts])
def test_an_empty_subpartition_is_named(function):
    error, said = printed(function)
    assert type(error) is RuntimeError
    assert str(error).startswith("subpartition 3 of /s: the function raised StopIteration")
    assert "the subpartition is empty, or the reader at its end" in said
    assert f"in {function.__name__}\n" in said
    assert "in map_subpartitions, subpartition 3 of /s" in said


def chained():
    try:
        {}["what"]
    except KeyError as error:
        raise ValueError("no price") from error


def meanwhile():
    yield BATCH
    try:
        {}["what"]
    except KeyError:
        raise ValueError("no price")  # noqa: B904


@pytest.mark.parametrize("function", [chained, meanwhile])
def test_the_cause_is_told(function):
    error, said = printed(function)
    assert type(error) is ValueError
    assert "caused by:\nTraceback" in said
    assert "KeyError: 'what'" in said


def test_what_hides_its_cause_has_none():
    def hiding():
        try:
            {}["what"]
        except KeyError:
            raise ValueError("no price") from None

    assert "KeyError" not in printed(hiding)[1]


def test_other_runtime_errors_stay_themselves():
    def function():
        raise RuntimeError("mine") from StopIteration()

    assert str(printed(function)[0]) == "mine"


def test_a_subpartition_that_is_empty(tmp_path):
    shuffle = written(tmp_path / "s", pa.table({"n": [1]}), "n")
    asked = shuffle.map_subpartitions(lambda _, reader: [reader.read_next_batch()], SCHEMA)
    with pytest.raises(RuntimeError, match=rf"subpartition \d of {shuffle.path}: the function"):
        made(asked, time_zone="UTC")


@guarantee("session time zone")
@pytest.mark.parametrize("partitioner", [None, BroadcastPartitioner()])
def test_timestamps_have_the_zone_that_is_asked_for(tmp_path, partitioner):
    """What a function gets and what it may yield; the instants are the same."""
    instant = pa.timestamp("us", "UTC")
    stored = pa.schema({"at": instant, "in": pa.list_(pa.struct({"at": instant})),
                        "local": pa.timestamp("us")})  # fmt: skip
    zoned = in_time_zone(stored, "Asia/Tokyo")
    assert [str(type_) for type_ in zoned.types] == [
        "timestamp[us, tz=Asia/Tokyo]",
        "list<item: struct<at: timestamp[us, tz=Asia/Tokyo]>>",
        "timestamp[us]",
    ]
    noon = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
    rows = [{"at": noon, "in": [{"at": noon}, None], "local": noon.replace(tzinfo=None)}]
    how = {"keys": "at"} if partitioner is None else {"partitioner": partitioner}
    shuffle = written(tmp_path / "s", pa.Table.from_pylist(rows, stored), n=2, **how)
    seen = []

    def function(_, reader):
        assert reader.schema.equals(zoned)
        for batch in reader:
            seen.extend(batch.to_pylist())
            yield batch

    found = made(shuffle.map_subpartitions(function, stored), time_zone="Asia/Tokyo")
    assert {row["at"].hour for row in seen} == {row["in"][0]["at"].hour for row in seen} == {21}
    assert {row["local"].hour for row in seen} == {12}
    assert found.schema.equals(stored)
    assert found.to_pylist() == rows * (1 if partitioner is None else 2)


def test_then_reads_an_error_again_and_no_end():
    said = []

    def joined(_):
        yield BATCH
        raise CorruptShuffleError("damaged")

    def then(reader):
        yield reader.read_next_batch()
        for _ in range(2):
            try:
                reader.read_next_batch()
            except CorruptShuffleError as error:
                said.append(str(error))
        yield BATCH

    found = list(ThenOfGroup(joined, SCHEMA, then, SCHEMA, "/a and /b")([0, 1]))
    assert found == [BATCH, BATCH]
    assert len(said) == 2
    assert all("damaged" in text for text in said)


@pytest.mark.slow
def test_a_large_batch_is_copied_in_parts():
    large = pa.record_batch([pa.array(range(6_000_000), pa.int64())], schema=SCHEMA)
    parts = list(results_of(lambda: [large, large[:0]], SCHEMA, caller="map", where="here"))
    assert [part.num_rows for part in parts] == [3_000_000] * 2
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([large]))
