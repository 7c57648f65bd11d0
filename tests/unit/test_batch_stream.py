"""A reader that failed says so again, and never looks complete."""

import pyarrow as pa
import pytest

from arrow_format.batch_stream import reader_of
from arrow_format.errors import ClosedError, CorruptShuffleError

BATCH = pa.record_batch({"a": [1, 2]})


def failing(error):
    yield BATCH
    raise error


def test_a_sound_one_ends():
    reader = reader_of(BATCH.schema, iter([BATCH, BATCH]))
    assert reader.read_all().num_rows == 4
    with pytest.raises(StopIteration):
        reader.read_next_batch()


def test_an_error_comes_again():
    reader = reader_of(BATCH.schema, failing(CorruptShuffleError("chunk 3 is damaged")))
    assert reader.read_next_batch() == BATCH
    for _ in range(3):
        with pytest.raises(CorruptShuffleError, match="chunk 3 is damaged"):
            reader.read_next_batch()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()])
def test_what_was_interrupted_does_not_end_as_if_complete(error):
    reader = reader_of(BATCH.schema, failing(error))
    reader.read_next_batch()
    with pytest.raises(type(error)):
        reader.read_next_batch()
    for _ in range(2):
        with pytest.raises(ClosedError, match=f"ended by {type(error).__name__}; read again"):
            reader.read_next_batch()
