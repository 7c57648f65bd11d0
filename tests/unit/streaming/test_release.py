"""When a result goes: with its consumers, its application, or by name."""

import signal
from datetime import timedelta

import pyarrow as pa
import pytest

from arrow_format import (
    MergePolicy,
    collect_garbage,
    forget_consumer,
    list_consumers,
    merge_shuffle,
    open_shuffle,
    release_shuffle,
    write_shuffle,
)
from arrow_format.errors import (
    ConsumerError,
    OptionError,
    ResultReleasedError,
)
from arrow_format.process_identity import ProcessIdentity
from arrow_format.storage.open import open_storage
from arrow_format.streaming.consumption import Consumer
from arrow_shuffle import consume
from tests.support.consumers import ConsumerRegistry
from tests.support.guarantees import guarantee
from tests.support.results import TYPES, child, numbers, rows, take, write
from tests.support.small_shuffles import collect, files_below

# Release


@guarantee("blocking results")
def test_a_blocking_result_goes_with_the_last_of_its_consumers(path):
    storage = open_storage(path)
    ConsumerRegistry(storage).register("slow", 0)
    write(path, 1, 2, result_type="BLOCKING")
    assert take(path, "fast") == [1, 2]
    assert take(path, "fast") == [1, 2]
    assert rows(open_shuffle(path)) == [1, 2]
    assert take(path, "slow") == [1, 2]
    with pytest.raises(ResultReleasedError, match="consumed by fast, slow"):
        open_shuffle(path)
    assert not [name for name in files_below(path) if name.startswith("map_outputs")]


@pytest.mark.slow
@guarantee("blocking results")
@pytest.mark.parametrize("expires", [False, True])
def test_a_blocking_result_that_was_merged_goes_all_the_same(path, expires):
    """Before its consumptions and between them; also where the versions that one saw expired."""
    everything = MergePolicy(rewrite="always")

    for name in ("early", "late"):
        ConsumerRegistry(open_storage(path)).register(name, 0)
    for value in range(4):
        write(path, value, result_type="BLOCKING")
    merge_shuffle(path, policy=MergePolicy(rewrite="never"), by="map_output")
    assert take(path, "early") == [0, 1, 2, 3]
    for policy in (MergePolicy(rewrite="always", max_fan_in=2), everything):
        assert merge_shuffle(path, policy=policy, by="map_output").version is not None
    if expires:
        collect(path)
    assert rows(open_shuffle(path)) == [0, 1, 2, 3], "somebody has it still before them"
    states = {state.name: state.unconsumed_versions for state in list_consumers(path)}
    assert states["early"] == 0
    assert states["late"] > 0
    assert take(path, "late") == [0, 1, 2, 3]
    with pytest.raises(ResultReleasedError, match="consumed by early, late"):
        open_shuffle(path)
    assert not [name for name in files_below(path) if name.startswith("map_outputs")]


def test_a_blocking_result_that_is_merged_while_it_is_consumed_goes_all_the_same(path):
    write(path, 1, result_type="BLOCKING")
    write(path, 2)
    with consume(path, consumer="a") as consumption:
        assert rows(consumption.shuffle) == [1, 2]
        merge_shuffle(path, by="map_output")
        collect(path)
    with pytest.raises(ResultReleasedError):
        open_shuffle(path)


@pytest.mark.slow
def test_a_blocking_result_of_a_dead_application_is_found_by_gc(path):
    program = """
import sys, time
import pyarrow as pa
from arrow_format import WriteOptions, write_shuffle
write_shuffle(pa.table({"k": [1]}), sys.argv[1], num_subpartitions=3, keys="k",
              options=WriteOptions(result_type="BLOCKING"))
print("ready", flush=True)
time.sleep(600)
"""
    with child(program, path) as process:
        assert collect_garbage(path).num_files == 0
        assert rows(open_shuffle(path)) == [1]
        process.send_signal(signal.SIGKILL)
        process.wait()
        collect_garbage(path)
        with pytest.raises(ResultReleasedError, match=rf"has ended: process {process.pid} on"):
            open_shuffle(path)
    assert not [name for name in files_below(path) if name.startswith("map_outputs")]


@pytest.mark.slow
@guarantee("blocking results")
@pytest.mark.parametrize(
    "kind", [result_type for result_type in TYPES if result_type.name != "BLOCKING"]
)
def test_other_results_outlive_their_application(tmp_path, kind):
    program = """
import sys
import pyarrow as pa
from arrow_format import WriteOptions, write_shuffle
from arrow_shuffle import consume
write_shuffle(pa.table({"k": [1]}), sys.argv[1], num_subpartitions=3, keys="k",
              options=WriteOptions(result_type=sys.argv[2]))
print("ready", flush=True)
"""
    with child(program, tmp_path / "s", kind.name) as process:
        process.wait()
    collect_garbage(tmp_path / "s", retention=timedelta(0))
    assert rows(open_shuffle(tmp_path / "s")) == [1]


@pytest.mark.parametrize("kind", TYPES)
def test_any_result_can_be_released_by_name_and_written_anew(path, kind):
    write(path, 1, result_type=kind)
    write(path, 2)
    assert release_shuffle(path) is True
    assert release_shuffle(path) is False
    assert not [name for name in files_below(path) if name.startswith("map_outputs")]
    with pytest.raises(ResultReleasedError, match="released by name"):
        open_shuffle(path)
    write_shuffle(pa.table({"other": ["x"]}), path, num_subpartitions=7, keys="other")
    assert open_shuffle(path).read().read_all().to_pylist() == [{"other": "x"}]


@pytest.mark.slow
@guarantee("held versions")
def test_gc_releases_what_all_have_consumed_and_keeps_what_is_before_the_slowest(path):
    write(path, 1, result_type="PIPELINED")
    for value in range(2, 7):
        write(path, value)
    assert take(path, "fast") == [1, 2, 3, 4, 5, 6]
    slow = Consumer(open_storage(path), "slow")
    slow.register(0)
    slow.commit(2)
    slow.close()
    collect_garbage(path)
    assert rows(open_shuffle(path)) == [3, 4, 5, 6]
    write(path, 7)
    # However short the retention, what a consumer has before it stays, version by version.
    collect(path)
    assert take(path, "fast") == [7]
    with consume(path, consumer="slow") as consumption:
        assert rows(consumption.shuffle) == [3, 4, 5, 6, 7]
        assert len({output.job_id for output in consumption.shuffle.map_outputs}) == 5
    collect(path)
    collect(path)
    assert rows(open_shuffle(path)) == []
    assert not [name for name in files_below(path) if name.startswith("map_outputs")]
    write(path, 8)
    assert take(path, "slow") == [8]
    with pytest.raises(OptionError):
        write(path, 9, result_type="BLOCKING")


@guarantee("held versions")
@pytest.mark.parametrize("kind", TYPES)
def test_consumers_hold_versions_back_of_pipelined_results_alone(tmp_path, kind):
    write(tmp_path, 1, result_type=kind)
    write(tmp_path, 2)
    ConsumerRegistry(open_storage(tmp_path)).register("a", 0)
    report = collect(tmp_path)
    assert report.oldest_version == (1 if kind.is_pipelined else 2)
    release_shuffle(tmp_path)
    report = collect_garbage(tmp_path)
    assert report.oldest_version == report.newest_version, "although no consumer holds a version"


@pytest.mark.slow
def test_consumers_themselves_remove_what_they_have_consumed(path):
    write(path, 0, result_type="PIPELINED")
    assert take(path, "a") == [0]
    most = 0
    for value in range(1, 45):
        write(path, value)
        assert take(path, "a") == [value]
        most = max(most, sum(name.startswith("map_outputs") for name in files_below(path)))
    assert most < 2 * 3 * 10


def test_a_consumer_that_is_forgotten_begins_anew(path):
    write(path, 1, result_type="PIPELINED")
    take(path, "a")
    assert forget_consumer(path, "a") is True
    assert forget_consumer(path, "a") is False
    assert take(path, "a") == [1]
    assert numbers(path) == [6, 7, 8, 9], "none is used again"


def test_who_was_forgotten_while_it_slept_records_nothing(tmp_path):
    storage = open_storage(tmp_path)
    write(tmp_path, 1, result_type="PIPELINED")
    write(tmp_path, 2)
    sleeper = Consumer(storage, "a")
    sleeper.register(0)
    with pytest.MonkeyPatch.context() as patch:  # a machine that has not heard of it for long
        patch.setattr(ProcessIdentity, "is_alive", lambda _: False)
        assert forget_consumer(tmp_path, "a")
    with consume(tmp_path, consumer="a"):
        with pytest.raises(ConsumerError, match="was taken over by"):
            sleeper.commit(2)
        assert ConsumerRegistry(storage).progress("a") == 0
    assert ConsumerRegistry(storage).progress("a") == 2
