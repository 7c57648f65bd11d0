"""Requests for results that are still to come, or never come."""

import threading
import time

import pyarrow as pa
import pytest

from arrow_format import WriteOptions, open_shuffle
from arrow_format.errors import (
    OptionError,
    RequestTimeoutError,
    ResultFailedError,
    ResultReleasedError,
    ShuffleNotFoundError,
)
from arrow_format.jobs.cleanup import abort_after
from arrow_format.log.consumers import consumer_directory
from arrow_format.storage.open import open_storage
from arrow_format.streaming.consumption import Consumer
from arrow_format.streaming.lease import take_lease
from arrow_shuffle import consume
from tests.support.consumers import ConsumerRegistry
from tests.support.guarantees import guarantee
from tests.support.logs import fence, put
from tests.support.results import N, elsewhere, take, write
from tests.support.small_shuffles import begun_with, files_below


def begin_write(path):
    """The job of a producer that is at work."""
    return begun_with(path, pa.table({"k": pa.array([], pa.int64())}), n=N)[0]


# Requests


def test_a_consumer_may_ask_before_the_producer_is_there(tmp_path):
    path = tmp_path / "not" / "there"
    taken = []
    asking = threading.Thread(target=lambda: taken.append(take(path, "a", request_timeout=30)))
    asking.start()
    while not (path / consumer_directory("a")).exists():
        time.sleep(0.01)
    write(path, 1, 2, result_type="PIPELINED")
    asking.join()
    assert taken == [[1, 2]]


def test_a_producer_with_mode_errorifexists_is_not_stopped_by_who_waits(path):
    ConsumerRegistry(open_storage(path)).register("waiting", 0)
    with pytest.raises(RequestTimeoutError, match=r"no committed shuffle after 0\.0\d+ s"):
        take(path, "a", request_timeout=0.05)
    write(path, 1, mode="errorifexists")
    assert take(path, "a") == [1]


@pytest.mark.parametrize(
    "timeout",
    [
        -1,
        -0.5,
        float("nan"),
        True,
        "1",
        None,
        10**400,
        -(10**400),
        pytest.param(1 << 50_000, id="x"),
    ],
)
def test_a_bad_timeout_is_refused(tmp_path, timeout):
    with pytest.raises(
        OptionError,
        match=r"^request_timeout.*: expected (seconds|a whole number with)",
    ):
        consume(tmp_path / "s", consumer="a", request_timeout=timeout)
    assert files_below(tmp_path) == []
    if timeout is not None:
        with pytest.raises(OptionError, match=r"^back_pressure_timeout.*: expected seconds, 0 or"):
            WriteOptions(back_pressure_timeout=timeout)


@guarantee("requests")
@pytest.mark.parametrize("timeout", [0, 0.05])
def test_a_request_for_what_never_was_there_leaves_nothing(tmp_path, timeout):
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "table.parquet").write_bytes(b"somebody's")
    for name in ("mistyped", "empty", "other"):
        with pytest.raises(ShuffleNotFoundError):
            take(tmp_path / name, "a", request_timeout=timeout)
    assert files_below(tmp_path) == ["empty", "other", "other/table.parquet"]


def test_who_has_let_go_of_a_name_takes_it_from_nobody(tmp_path):
    storage = open_storage(tmp_path / "s")
    first = Consumer(storage, "a")
    first.register(0)
    first.close()
    second = Consumer(storage, "a")
    second.register(0)
    first.close()
    assert list(ConsumerRegistry(storage).records()) == ["a"]
    second.close()


def test_a_request_for_a_file_says_so(tmp_path):
    (tmp_path / "file").write_text("somebody's")
    for timeout in (0.0, 0.1):
        with pytest.raises(ShuffleNotFoundError, match="is a file, not the directory"):
            take(tmp_path / "file", "a", request_timeout=timeout)


def test_a_request_that_does_not_wait_makes_no_directory_on_the_way(tmp_path):
    with pytest.raises(ShuffleNotFoundError, match="mistyped: is not there"):
        take(tmp_path / "not" / "mistyped", "a")
    assert files_below(tmp_path) == []


@guarantee("requests")
def test_a_request_in_vain_takes_nothing_from_others(tmp_path):
    storage = open_storage(tmp_path / "s")
    registry = ConsumerRegistry(storage)

    def ask():
        with pytest.raises(RequestTimeoutError):
            take(tmp_path / "s", "a", request_timeout=0.05)

    take_lease(storage, "b").end()
    registry.register("b", 0)
    ask()
    assert registry.all_progress() == {"b": 0}, "another name"
    registry.register("a", 0)
    ask()
    assert registry.all_progress() == {"a": 0, "b": 0}, "this name was known before"

    taken = Consumer(storage, "c")
    taken.register(0)
    elsewhere(storage, "c")
    taken.close()
    assert registry.progress("c") == 0, "another process has taken it over"


def test_a_request_while_the_producer_is_at_work_stays_known(tmp_path):
    job = begin_write(tmp_path / "s")
    with pytest.raises(RequestTimeoutError):
        take(tmp_path / "s", "a", request_timeout=0.05)
    assert ConsumerRegistry(job.storage).all_progress() == {"a": 0}


@pytest.mark.slow
def test_waiting_costs_next_to_no_processor_time(tmp_path):
    before = time.process_time()
    with pytest.raises(RequestTimeoutError):
        take(tmp_path / "s", "a", request_timeout=2)
    assert time.process_time() - before < 0.5


@guarantee("absent results")
def test_each_absence_has_its_own_error(path):
    with pytest.raises(ShuffleNotFoundError) as unknown:
        take(path, "a")
    assert type(unknown.value) is ShuffleNotFoundError

    ConsumerRegistry(open_storage(path)).register("a", 0)
    job = begin_write(path)
    abort_after(job, RuntimeError("the producer failed"))
    with pytest.raises(ResultFailedError, match=rf"producer .* failed \(job {job.job_id}"):
        take(path, "a")
    with pytest.raises(ResultFailedError):
        take(path, "a", request_timeout=0.05)

    write(path, 1, result_type="BLOCKING")
    assert take(path, "a") == [1]
    with pytest.raises(ResultReleasedError, match=r"released \(consumed by a\); version 2 was"):
        take(path, "a")
    with pytest.raises(ResultReleasedError):
        open_shuffle(path)


def test_a_failure_while_a_consumer_waits_ends_its_waiting(path):
    errors = []

    def ask():
        try:
            take(path, "a", request_timeout=60)
        except ResultFailedError as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    while not (path / consumer_directory("a")).exists():
        time.sleep(0.01)
    job = begin_write(path)
    time.sleep(0.1)
    abort_after(job, RuntimeError("the producer failed"))
    asking.join(20)
    assert len(errors) == 1


def test_a_failed_write_that_nobody_waits_for_leaves_nothing(tmp_path):
    job = begin_write(tmp_path / "s")
    abort_after(job, RuntimeError("the producer failed"))
    assert not (tmp_path / "s").exists()


def test_a_failure_is_learned_of_behind_jobs_that_were_given_up_since(path):
    """A collection that gives up other jobs takes numbers, too; a commit that waits ends it."""
    ConsumerRegistry(open_storage(path)).register("a", 0)
    abort_after(begin_write(path), RuntimeError("the producer failed"))
    fence(path, "another")
    with pytest.raises(ResultFailedError, match="the producer of the result failed"):
        take(path, "a")
    put(path, [(1, 1)], result_type="PIPELINED")
    with pytest.raises(ShuffleNotFoundError, match="holds no committed shuffle"):
        take(path, "a")
