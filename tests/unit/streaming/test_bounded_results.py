"""Back pressure: the producer of a bounded result waits for its consumers."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from arrow_format import (
    ResultPartitionType,
)
from arrow_format.errors import (
    BackPressureTimeoutError,
)
from arrow_format.jobs.back_pressure import Unconsumed, fits_bounds
from arrow_format.log.result import ResultDescription
from arrow_format.storage.open import open_storage
from tests.support.consumers import ConsumerRegistry
from tests.support.guarantees import guarantee
from tests.support.results import take, write
from tests.support.small_shuffles import files_below

# Back pressure


def test_who_overwrites_waits_for_consumers_that_get_every_version(tmp_path):
    bounded = {"result_type": "PIPELINED_BOUNDED", "max_unconsumed_versions": 2}
    overwrite = partial(write, tmp_path, mode="overwrite", back_pressure_timeout=0, **bounded)
    for value in range(4):  # no consumer is registered
        overwrite(value)
    take(tmp_path, "a")
    for value in (5, 6):
        overwrite(value)
    with pytest.raises(BackPressureTimeoutError, match=r"consumer 'a'.* 2 versions of"):
        overwrite(7)
    assert take(tmp_path, "a") == [5, 6]
    overwrite(7)


@pytest.mark.parametrize(
    ("bounds", "unconsumed", "num_bytes", "expected"),
    [
        ((100, None), (0, 0), 1000, True),
        ((100, None), (1, 40), 60, True),
        ((100, None), (1, 40), 61, False),
        ((None, 2), (1, 10**9), 10**9, True),
        ((None, 2), (2, 0), 0, False),
        ((100, 5), (4, 99), 2, False),
        ((100, 5), (5, 1), 1, False),
    ],
)
def test_when_there_is_room(bounds, unconsumed, num_bytes, expected):
    result = ResultDescription(ResultPartitionType.PIPELINED_BOUNDED, *bounds)
    assert fits_bounds(result, Unconsumed("a", 0, *unconsumed), num_bytes) is expected


@pytest.mark.slow
@guarantee("back pressure")
def test_the_producer_waits_for_the_slowest_consumer_and_names_it(path):
    bounded = {"result_type": "PIPELINED_BOUNDED", "max_unconsumed_versions": 2}
    write(path, 1, **bounded)
    take(path, "fast")
    ConsumerRegistry(open_storage(path)).register("slow", 0)
    write(path, 2)
    before = files_below(path)
    began = time.process_time()
    with pytest.raises(
        BackPressureTimeoutError,
        match=r"waited 0.5 s for consumer 'slow', which has consumed up to version 0; 2 versions",
    ):
        write(path, 3, back_pressure_timeout=0.5)
    assert time.process_time() - began < 0.4
    assert files_below(path) == before

    done = []

    def produce():
        write(path, 3, back_pressure_timeout=60)
        done.append(time.monotonic())

    producer = threading.Thread(target=produce)
    producer.start()
    time.sleep(0.3)
    assert not done
    assert take(path, "slow") == [1, 2]
    producer.join(30)
    assert done
    assert take(path, "slow") == [3]
    assert take(path, "fast") == [2, 3]


def test_a_bounded_result_waits_for_its_first_consumer_too(path):
    write(path, 1, result_type="PIPELINED_BOUNDED", max_unconsumed_bytes=1)
    with pytest.raises(BackPressureTimeoutError, match="any consumer: none is registered"):
        write(path, 2, back_pressure_timeout=0)
    assert take(path, "a") == [1]
    write(path, 2, back_pressure_timeout=0)


@guarantee("back pressure")
def test_two_producers_do_not_pass_the_bound_together(path):
    write(path, 0, result_type="PIPELINED_BOUNDED", max_unconsumed_versions=3)
    failed = []

    def produce(value):
        try:
            write(path, value, back_pressure_timeout=0.3)
        except BackPressureTimeoutError as error:
            failed.append(error)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(produce, range(1, 7)))
    assert len(failed) == 4
    assert len(take(path, "a")) == 3
