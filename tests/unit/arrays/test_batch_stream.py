"""A reader gives its rows once: it never looks complete after an error, nor empty after its end."""

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from arrow_format.arrays.batch_stream import BatchReader
from arrow_format.errors import ClosedError, CorruptShuffleError

BATCH = pa.record_batch({"a": [1, 2]})

USES = {
    "read_all": lambda reader: reader.read_all().num_rows,
    "read_pandas": lambda reader: len(reader.read_pandas()),
    "loop": lambda reader: sum(batch.num_rows for batch in reader),
    "list": lambda reader: sum(batch.num_rows for batch in list(reader)),
    "table": lambda reader: pa.table(reader).num_rows,
    "from_batches": lambda reader: pa.Table.from_batches(reader, reader.schema).num_rows,
    "from_stream": lambda reader: pa.RecordBatchReader.from_stream(reader).read_all().num_rows,
    "cast": lambda reader: reader.cast(pa.schema({"a": pa.int32()})).read_all().num_rows,
    "polars": lambda reader: pl.DataFrame(reader).height,
    "duckdb": lambda reader: duckdb.sql("SELECT count(*) FROM reader").fetchall()[0][0],
}

USE_ERRORS = (ClosedError, duckdb.Error)
"""DuckDB makes an error of its own of every other, with the name and the text of that."""


def failing(error):
    yield BATCH
    raise error


def test_a_sound_one_ends():
    reader = BatchReader(BATCH.schema, iter([BATCH, BATCH]))
    assert reader.schema == BATCH.schema
    assert reader.read_all().num_rows == 4
    with pytest.raises(StopIteration):
        reader.read_next_batch()


def test_an_error_comes_again():
    reader = BatchReader(BATCH.schema, failing(CorruptShuffleError("chunk 3 is damaged")))
    assert reader.read_next_batch() == BATCH
    for _ in range(3):
        with pytest.raises(CorruptShuffleError, match="chunk 3 is damaged"):
            reader.read_next_batch()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()])
def test_what_was_interrupted_does_not_end_as_if_complete(error):
    reader = BatchReader(BATCH.schema, failing(error))
    reader.read_next_batch()
    with pytest.raises(type(error)):
        reader.read_next_batch()
    for _ in range(2):
        with pytest.raises(ClosedError, match=f"ended by {type(error).__name__}; read again"):
            reader.read_next_batch()


OTHERS = [use for use in USES if use != "loop"]


@pytest.mark.parametrize(
    ("first", "second"),
    [("loop", "loop"), *((use, "loop") for use in OTHERS), *(("loop", use) for use in OTHERS)],
)
def test_a_second_use_is_an_error_and_not_an_empty_result(first, second):
    reader = BatchReader(BATCH.schema, iter([BATCH, BATCH]))
    assert USES[first](reader) == 4
    for _ in range(2):
        with pytest.raises(USE_ERRORS, match="gives its rows once"):
            USES[second](reader)


@pytest.mark.parametrize("use", USES)
def test_one_without_rows_may_be_read_again_since_none_is_the_right_answer(use):
    reader = BatchReader(BATCH.schema, iter([]))
    assert [USES[use](reader) for _ in range(2)] == [0, 0]


@pytest.mark.parametrize("use", USES)
def test_whoever_looked_at_the_first_batch_gets_the_rest(use):
    reader = BatchReader(BATCH.schema, iter([BATCH, BATCH]))
    assert next(reader) == BATCH
    assert USES[use](reader) == 2
    reader = BatchReader(BATCH.schema, iter([BATCH, BATCH]))
    for _ in reader:
        break
    assert USES[use](reader) == 2
    reader = BatchReader(BATCH.schema, iter([BATCH]))
    assert next(reader) == BATCH
    assert USES[use](reader) == 0


def test_an_error_comes_again_through_a_stream():
    reader = BatchReader(BATCH.schema, failing(CorruptShuffleError("chunk 3 is damaged")))
    stream = pa.RecordBatchReader.from_stream(reader)
    stream.read_next_batch()
    for _ in range(3):
        with pytest.raises(pa.ArrowException, match="CorruptShuffleError: chunk 3 is damaged"):
            stream.read_next_batch()


def test_a_loop_keeps_to_the_rules_of_iterators():
    batches = iter(BatchReader(BATCH.schema, iter([BATCH, BATCH])))
    assert [next(batches, None), *batches] == [BATCH, BATCH]
    assert next(batches, None) is None
    assert list(batches) == []


def test_a_stream_takes_the_schema_that_is_asked_for():
    wanted = pa.schema({"a": pa.int8()})
    reader = BatchReader(BATCH.schema, iter([BATCH]))
    assert pa.RecordBatchReader.from_stream(reader, schema=wanted).read_all().schema == wanted


def test_a_cast_is_checked_before_any_row_is_read():
    reader = BatchReader(BATCH.schema, iter([BATCH]))
    with pytest.raises(ValueError, match="names"):
        reader.cast(pa.schema({"b": pa.int32()}))
    assert reader.cast(pa.schema({"a": pa.int32()})).read_all()["a"].to_pylist() == [1, 2]


def test_a_closed_one_lets_go_and_cannot_be_mistaken_for_complete():
    closed = []

    def batches():
        try:
            yield from (BATCH, BATCH)
        finally:
            closed.append(True)

    with BatchReader(BATCH.schema, batches()) as reader:
        next(reader)
        assert not closed
    assert closed
    reader.close()
    for use in USES.values():
        with pytest.raises(USE_ERRORS, match="was closed; read again"):
            use(reader)
    with pytest.raises(ClosedError, match="was closed; read again"):
        next(reader)


LONG = [pa.record_batch({"a": pa.array(range(i * 100_000, (i + 1) * 100_000))}) for i in range(20)]


def shown(reader):
    str(duckdb.sql("SELECT * FROM reader"))


def limited(reader):
    duckdb.sql("SELECT * FROM reader LIMIT 5").fetchall()


def streamed(reader):
    pa.RecordBatchReader.from_stream(reader).read_next_batch()


@pytest.mark.parametrize(
    ("first", "use"),
    [*((streamed, use) for use in USES.values()), (streamed, next), (shown, next), (limited, next)],
    ids=[*USES, "next", "next after one that is shown", "next after one that is limited"],
)
def test_a_use_after_a_stream_that_stopped_early_is_an_error(first, use):
    """What it had read ahead is missing from the rest, and nothing says how much that is."""
    reader = BatchReader(LONG[0].schema, iter(LONG))
    first(reader)
    with pytest.raises(USE_ERRORS, match="gives its rows once"):
        use(reader)


def test_of_two_streams_one_gets_the_rows():
    reader = BatchReader(LONG[0].schema, iter(LONG))
    one, other = (pa.RecordBatchReader.from_stream(reader) for _ in range(2))
    first = one.read_next_batch()
    for _ in range(2):
        with pytest.raises(pa.ArrowException, match="gives its rows once"):
            other.read_all()
    assert first.num_rows + one.read_all().num_rows == 2_000_000
