"""The commands about results: consumers, release, flush."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from arrow_format import WriteOptions, open_shuffle
from arrow_format.errors import ResultReleasedError
from arrow_format.storage.open import PosixStorage
from arrow_format.streaming import flush_pending as pending_flush
from arrow_shuffle import consume
from tests.support.consumers import ConsumerRegistry
from tests.support.logs import put
from tests.support.small_shuffles import write_rows

PIPELINED = WriteOptions(sync=False, result_type="PIPELINED")


@pytest.fixture
def path(tmp_path):
    for value in (1, 2):
        write_rows(
            tmp_path / "s", pa.table({"k": [value]}), "k", n=4, mode="append", options=PIPELINED
        )
    return tmp_path / "s"


def test_consumers_are_shown_with_what_they_have_before_them(run, path):
    assert run("consumers", path) == (0, f"{path}: 0 consumers\n", "")
    with consume(path, consumer="quick"):
        status, out, _ = run("consumers", path)
        assert status == 0
        assert "quick: version 0; 2 versions of" in out
        assert "running, process" in out
    assert "quick: version 2; nothing before it; not running" in run("consumers", path)[1]
    found = json.loads(run("consumers", path, "--json")[1])
    assert found["consumers"] == [
        {
            "name": "quick",
            "version": 2,
            "unconsumed_versions": 0,
            "unconsumed_bytes": 0,
            "held_by": None,
        }
    ]


def test_a_consumer_is_forgotten_by_name(run, path):
    with consume(path, consumer="a"):
        status, _, err = run("consumers", path, "--forget", "a")
        assert (status, "is held by process" in err) == (1, True)
    assert run("consumers", path, "--forget", "a") == (0, f"{path}: 0 consumers\n", "")
    status, _, err = run("consumers", path, "--forget", "a")
    assert status == 2
    assert "no consumer is called 'a'; the consumers are: none" in err


def test_a_release_asks_first(run, path):
    status, _, err = run("release", path)
    assert status == 2
    assert "2 rows in version 2 would be removed for good; give --yes" in err
    assert open_shuffle(path).num_rows == 2
    status, out, _ = run("release", path, "--yes")
    assert (status, out) == (0, f"{path}: 2 rows in version 2: released\n")
    with pytest.raises(ResultReleasedError):
        open_shuffle(path)
    status, _, err = run("release", path, "--yes")
    assert status == 1
    assert "ResultReleasedError" in err


def test_a_drop_asks_first_and_says_what_it_left(run, path):
    status, _, err = run("drop", path)
    assert (status, "would be removed for good" in err) == (2, True)
    (Path(path) / "mine").touch()
    with consume(path, consumer="a"):
        status, _, err = run("drop", path, "--yes")
        assert (status, "consumer 'a' is held by process" in err) == (1, True)
    status, out, _ = run("drop", path, "--yes", "--force")
    assert status == 0
    assert out.startswith(f"{path}: dropped (last version 2); ")
    assert out.endswith(f"\n  consumer a\n  left, as none of a shuffle: {path}/mine\n")
    assert run("drop", path, "--yes")[0] == 1


def test_a_drop_as_json(run, path):
    status, out, _ = run("drop", path, "--yes", "--json")
    assert (status, json.loads(out)["last_version"]) == (0, 2)


@pytest.mark.slow
def test_flush_makes_a_version_of_what_is_pending(run, path):
    assert run("flush", path) == (0, f"{path}: nothing is pending\n", "")
    put_pending(path, 5, 5, 6)
    shown = run("inspect", path)[1]
    assert "  PIPELINED, consumers: none\n" in shown
    assert "  1 pending commit of a stream: a version at its next flush\n" in shown
    with consume(path, consumer="a"):
        found = json.loads(run("inspect", path, "--json")[1])
    assert (found["result_type"], found["consumers"], found["num_pending"]) == (
        "PIPELINED",
        {"a": 0},
        1,
    )
    status, out, _ = run("flush", path)
    assert status == 0
    assert "version 4: 2 rows" in out
    assert json.loads(run("flush", path, "--json")[1]) == {"path": str(path), "flushed": None}


def put_pending(path, *values, **options):
    """Commit a row for each value, as a micro-batch of a stream with a flush interval does."""
    put(path, [(value,) for value in values], schema=pa.schema([("k", pa.int64())]), **options)


@pytest.mark.slow
def test_a_flush_that_waits_for_a_consumer_ends_soon_and_names_it(run, tmp_path):
    path = tmp_path / "s"
    bounded = {"result_type": "PIPELINED_BOUNDED", "max_unconsumed_versions": 1}
    put_pending(path, 1, **bounded)
    assert run("flush", path)[0] == 0
    with consume(path, consumer="slow") as consumption:
        consumption.close()
    put_pending(path, 2)
    status, out, err = run("flush", path, "--timeout", "0s")
    assert (status, out) == (1, "")
    assert "waited 0 s for consumer 'slow', which has consumed up to version 0" in err
    assert "wait longer (backPressureTimeout; arrow-shuffle flush --timeout)" in err
    assert run("flush", path, "--timeout", "soon")[0] == 2
    assert "1 pending commit of a stream" in run("inspect", path)[1]
    with consume(path, consumer="slow"):
        pass
    assert run("flush", path, "--timeout", "0s")[0] == 0


def test_a_flush_waits_for_half_a_minute_unless_told_otherwise(run, path, monkeypatch):
    put_pending(path, 1)
    given = []

    def flush_pending(path, *, due, options):
        given.append(options.back_pressure_timeout)

    monkeypatch.setattr(pending_flush, "flush_pending", flush_pending)
    for arguments in ((), ("--timeout", "2m")):
        run("flush", path, *arguments)
    assert given == [30, 120]


@pytest.mark.slow
def test_what_only_waits_is_shown_and_can_be_released(run, tmp_path):
    path = tmp_path / "s"
    put_pending(path, 1, 2)
    put_pending(path, 3)
    status, out, err = run("inspect", path)
    assert (status, err) == (0, "")
    first, second = out.splitlines()
    assert first == str(path)
    assert second.startswith("  no version yet; 2 pending commits of 3 rows, ")
    assert second.endswith(": 'arrow-shuffle flush' makes one")
    found = json.loads(run("inspect", path, "--json")[1])
    assert found.pop("num_bytes") > 0
    assert found.pop("counts") in second
    assert found == {"path": str(path), "num_commits": 2, "num_rows": 3}
    assert "version 1 is not there" in run("inspect", path, "--version", "1")[2]

    status, _, err = run("release", path)
    assert status == 2
    assert "2 pending commits of 3 rows" in err
    assert "and no version would be removed for good; give --yes" in err
    status, out, _ = run("release", path, "--yes")
    assert status == 0
    assert out.endswith("and no version: released\n")
    assert not list(path.glob("map_outputs/*/*"))
    for command in ("inspect", "release"):
        status, _, err = run(command, path)
        assert status == 1
        assert "the result was released (released by name); it had no version" in err

    put_pending(path, 4)
    assert "no version yet; 1 pending commit of 1 row, " in run("inspect", path)[1]
    assert run("flush", path)[0] == 0
    assert open_shuffle(path).num_rows == 1
    put_pending(path, 5, 6)
    version = open_shuffle(path).version
    expected = f"1 rows in version {version}, and 1 pending commit of 2 rows"
    assert expected in run("release", path)[2]
    assert run("release", path, "--yes")[0] == 0
    assert "ResultReleasedError" in run("release", path, "--yes")[2]


@pytest.mark.parametrize("command", ["consumers", "release", "flush"])
def test_where_nothing_is(run, tmp_path, command):
    status, out, err = run(command, tmp_path / "nothing", *(["--yes"] * (command == "release")))
    assert status == 1
    assert out == ""
    assert "ShuffleNotFoundError" in err


def test_consumers_of_what_is_no_shuffle(run, tmp_path):
    status, out, err = run("consumers", tmp_path)
    assert (status, out) == (1, "")
    assert f"ShuffleNotFoundError: {tmp_path}: holds no shuffle, and no consumer waits" in err
    ConsumerRegistry(PosixStorage(str(tmp_path))).register("early", 0)
    assert "early: version 0" in run("consumers", tmp_path)[1]
    assert run("consumers", tmp_path, "--forget", "early")[:2] == (0, f"{tmp_path}: 0 consumers\n")


def test_consumers_of_what_is_pending_or_released(run, tmp_path):
    put_pending(tmp_path, 1, 2)
    assert run("consumers", tmp_path)[:2] == (0, f"{tmp_path}: 0 consumers\n")
    assert run("release", tmp_path, "--yes")[0] == 0
    assert run("consumers", tmp_path)[:2] == (0, f"{tmp_path}: 0 consumers\n")
