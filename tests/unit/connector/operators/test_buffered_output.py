"""The stage for ``mapInArrow`` without a JVM: what it takes, yields, and refuses."""

import pickle

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import OperatorAttributes, OptionError
from connector import BufferedOutput
from tests.support.recorded_output import Clock


def batch(*ids):
    return pa.record_batch({"k": [number % 2 for number in ids], "id": list(ids)})


def ids_of(batches):
    return [part["id"].to_pylist() for part in batches]


def test_it_yields_at_the_end_and_when_a_batch_comes_after_the_interval():
    clock = Clock()

    def arriving():
        yield batch(1, 2, 3)
        clock.now += 119
        yield batch(4)
        clock.now += 1
        yield batch(5)
        clock.now += 60
        yield batch(6, 8)

    stage = BufferedOutput(keys=["k"], max_interval="2min", clock=clock)
    assert stage.is_buffered
    assert ids_of(stage(arriving())) == [[4, 5], [8]]


@pytest.mark.parametrize(
    "options",
    [
        {"keys": ["k"]},
        {"keys": ["k"], "max_interval": "1s", "attributes": OperatorAttributes()},
        {"max_interval": "1s"},
        {"max_interval": "1s", "parallelism": 2},
    ],
)
def test_otherwise_rows_pass_through(options):
    stage = BufferedOutput(**options)
    assert not stage.is_buffered
    arriving = [batch(1, 2, 3), batch(4)]
    assert list(stage(iter(arriving))) == arriving


def test_without_keys_it_needs_to_be_alone():
    stage = BufferedOutput(max_interval="1h", parallelism=1)
    assert ids_of(stage(iter([batch(1, 2, 3), batch(7, 4)]))) == [[4]]


def test_it_travels_by_pickle():
    stage = pickle.loads(pickle.dumps(BufferedOutput(keys="k", max_interval="1h")))
    assert ids_of(stage(iter([batch(1, 2, 3)]))) == [[2, 3]]
    assert ids_of(stage(iter([batch(1, 4)]))) == [[1, 4]]  # and can be called again


@pytest.mark.slow
def test_what_it_spills_goes_with_the_executor_and_with_an_early_end(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/nowhere")
    stage = BufferedOutput(keys="id", max_interval="1h", max_buffered_bytes=64 << 10)
    seen = []

    def arriving():
        for start in range(0, 20_000, 1_000):
            yield batch(*range(start, start + 1_000))
            seen.append(len(list(tmp_path.iterdir())))

    results = stage(arriving())
    assert next(results).num_rows >= 10_000
    assert max(seen) == 1
    results.close()
    assert not list(tmp_path.iterdir())


def test_nothing_is_left_when_the_input_fails_whoever_keeps_the_error(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    stage = BufferedOutput(keys="id", max_interval="1h", max_buffered_bytes=64 << 10)

    def arriving():
        for start in range(0, 20_000, 1_000):
            yield batch(*range(start, start + 1_000))
        assert list(tmp_path.iterdir())
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more") as kept:
        list(stage(arriving()))
    assert not list(tmp_path.iterdir()), kept.traceback


@pytest.mark.slow
def test_batches_for_the_jvm_are_not_small():
    stage = BufferedOutput(keys="id", max_interval="1h", max_buffered_bytes=1 << 20)
    ids = np.random.default_rng(0).permutation(50_000)
    arriving = (batch(*part.tolist()) for part in np.split(ids, 50))
    found = list(stage(arriving))
    assert [part.num_rows >= 10_000 for part in found[:-1]] == [True] * (len(found) - 1)
    assert sorted(number for ids in ids_of(found) for number in ids) == list(range(50_000))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_interval": "0s"}, r"max_interval='0s': expected a whole number above zero"),
        (
            {"max_interval": "2"},
            "max_interval='2': expected a whole .* with a unit, as 500ms, 90s, 2min or 1h$",
        ),
        ({"max_interval": 5}, "max_interval=5: expected a timedelta"),
        ({"max_interval": "1s", "max_buffered_bytes": 5}, "max_buffered_bytes=5"),
        ({"max_interval": "1s", "memory_buffer_only": "yes"}, "memory_buffer_only='yes'"),
        ({"max_interval": "1s", "keys": [1]}, r"keys=\[1\]"),
        ({"max_interval": "1s", "timestamp": ""}, "timestamp=''"),
        (
            {"max_interval": "1s", "timestamp": ["a", "b"]},
            r"timestamp=\['a', 'b'\]: expected the na",
        ),
        ({"max_interval": "1s", "clock": None}, "clock=None: expected a function"),
        (
            {"max_interval": "2ss"},
            "max_interval='2ss': expected a whole number above zero with a unit",
        ),
        ({"max_interval": "1s", "attributes": True}, "attributes=True"),
        ({"max_interval": "1s", "parallelism": 0}, "parallelism=0"),
    ],
)
def test_bad_options_are_named_where_the_stage_is_made(options, said):
    with pytest.raises(OptionError, match=said):
        BufferedOutput(**options)
