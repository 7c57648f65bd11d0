"""What a consumption delivers, and what counts as consumed."""

import pickle

import pytest

from arrow_format import MergePolicy, merge_shuffle
from arrow_format.errors import (
    ClosedError,
    CorruptShuffleError,
    RequestTimeoutError,
    ShuffleNotFoundError,
)
from arrow_format.log.consumers import record_path
from arrow_format.storage.open import open_storage
from arrow_format.streaming.consumption import Consumer
from arrow_shuffle import consume
from tests.support.consumers import ConsumerRegistry
from tests.support.guarantees import guarantee
from tests.support.results import PIPELINED, numbers, rows, take, write
from tests.support.small_shuffles import collect, flip

# Consumption


@guarantee("consumed once")
@pytest.mark.parametrize("kind", PIPELINED)
def test_a_pipelined_version_is_consumed_once_by_each_name(path, kind):
    write(path, 1, result_type=kind)
    write(path, 2)
    assert take(path, "a") == [1, 2]
    write(path, 3)
    write(path, 4)
    assert take(path, "a") == [3, 4]
    assert take(path, "b") == [1, 2, 3, 4]
    with pytest.raises(RequestTimeoutError, match="nothing new and this does not wait"):
        take(path, "a")


@pytest.mark.parametrize("kind", PIPELINED)
def test_nothing_new_is_an_empty_result_where_that_is_allowed(path, kind):
    with pytest.raises(ShuffleNotFoundError):
        consume(path, consumer="a", allow_empty=True)
    write(path, 1, result_type=kind)
    assert take(path, "a", allow_empty=True) == [1]
    for timeout in (0.0, 0.01):
        with consume(path, consumer="a", request_timeout=timeout, allow_empty=True) as consumption:
            shuffle = consumption.shuffle
            assert (shuffle.version, shuffle.num_rows) == (1, 0)
            assert shuffle.subpartition_rows.to_pylist() == [0] * shuffle.num_subpartitions
            assert shuffle.schema.names == ["k"]
            assert rows(shuffle) == []
            assert shuffle.verify().ok
    write(path, 2)
    assert take(path, "a", allow_empty=True) == [2]
    merge_shuffle(path, policy=MergePolicy(rewrite="always"), by="map_output")
    assert take(path, "a", allow_empty=True) == []
    write(path, 3)
    assert take(path, "a", allow_empty=True) == [3]
    assert take(path, "b", allow_empty=True) == [1, 2, 3]


@guarantee("consumed once")
@pytest.mark.parametrize("kind", PIPELINED)
def test_what_was_not_committed_comes_again(path, kind):
    write(path, 1, result_type=kind)
    with (
        pytest.raises(KeyError),
        consume(path, consumer="a") as consumption,
    ):
        raise KeyError(rows(consumption.shuffle))
    with consume(path, consumer="a") as consumption:
        consumption.close()
    assert take(path, "a") == [1]


def test_a_blocking_persistent_result_is_consumed_any_number_of_times(path):
    write(path, 1)
    write(path, 2)
    assert [take(path, name) for name in ("a", "a", "b")] == [[1, 2]] * 3
    collect(path)
    assert take(path, "a") == [1, 2]


def test_a_pinned_consumption_is_not_changed_by_what_comes(path):
    write(path, 1, result_type="PIPELINED")
    with consume(path, consumer="a") as consumption:
        write(path, 2)
        assert rows(consumption.shuffle) == [1]
        assert consumption.shuffle.version == 1
    assert take(path, "a") == [2]


def test_a_consumption_travels_as_what_it_is(path):
    write(path, 1, result_type="PIPELINED")
    take(path, "a")
    write(path, 2)
    with consume(path, consumer="a") as consumption:
        assert rows(pickle.loads(pickle.dumps(consumption.shuffle))) == [2]


def test_a_merge_hides_nothing_and_brings_nothing(path):
    write(path, 1, result_type="PIPELINED")
    take(path, "a")
    write(path, 2)
    merge_shuffle(path, by="map_output")
    collect(path)
    assert take(path, "a") == [2]
    merge_shuffle(path, by="map_output")
    with pytest.raises(RequestTimeoutError):
        take(path, "a")


def test_versions_that_overwrite_are_consumed_like_others(path):
    write(path, 1, result_type="PIPELINED")
    take(path, "a")
    write(path, 2)
    write(path, 3, mode="overwrite", result_type="PIPELINED")
    assert take(path, "a") == [2, 3]
    assert take(path, "b") == [1, 2, 3]


def test_a_consumption_ends_once(tmp_path):
    write(tmp_path / "s", 1, result_type="PIPELINED")
    consumption = consume(tmp_path / "s", consumer="a")
    consumption.commit()
    with pytest.raises(ClosedError, match="consumption by 'a' has ended"):
        consumption.commit()


@guarantee("progress")
def test_progress_is_durable_and_verified(path):
    write(path, 1, result_type="PIPELINED")
    take(path, "a")
    registry = ConsumerRegistry(open_storage(path))
    assert registry.all_progress() == {"a": 1}
    flip(path / record_path("a", numbers(path)[-1]), 5)
    with pytest.raises(CorruptShuffleError, match=r"a/0+3.json: .*how far consumer a has come"):
        take(path, "a")


@guarantee("progress")
def test_progress_never_goes_back(tmp_path):
    registry = ConsumerRegistry(open_storage(tmp_path))
    for version in (3, 7, 5):
        registry.advance("a", version)
        assert registry.register("a", 0) == max(3, registry.progress("a"))
    assert registry.progress("a") == 7
    consumer = Consumer(open_storage(tmp_path), "a")
    for version in range(30):
        consumer.commit(version)
        assert registry.progress("a") == max(version, 7)
    assert numbers(tmp_path) == list(range(25, 35)), "the last ten"
    consumer.close()
