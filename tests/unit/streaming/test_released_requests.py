"""What a request for a pipelined result waits for, when consumers before have consumed it."""

import threading
from datetime import timedelta

import pytest

from arrow_format import RequestTimeoutError, collect_garbage
from arrow_shuffle import consume
from tests.support.results import take, write


def append(path, *values):
    write(path, *values, result_type="PIPELINED")


@pytest.fixture
def consumed(tmp_path):
    """A shuffle whose two versions one consumer has consumed, and a collection released."""
    for values in ((1, 2), (3,)):
        append(tmp_path / "s", *values)
    assert take(tmp_path / "s", "first") == [1, 2, 3]
    assert collect_garbage(tmp_path / "s", retention=timedelta(0)).released
    return tmp_path / "s"


def test_a_new_consumer_of_what_was_released_has_nothing_yet(consumed):
    with pytest.raises(RequestTimeoutError, match="nothing new"):
        consume(consumed, consumer="second")
    assert take(consumed, "second", allow_empty=True) == []


def test_a_new_consumer_waits_for_the_first_rows_after_a_release(consumed):
    late = threading.Timer(0.3, append, (consumed, 7))
    late.start()
    try:
        assert take(consumed, "second", request_timeout=60) == [7]
    finally:
        late.join()
    assert take(consumed, "first") == [7]


def test_a_new_consumer_begins_with_what_a_release_left(consumed):
    append(consumed, 8)
    assert take(consumed, "second") == [8]
