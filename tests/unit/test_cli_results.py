"""The commands about results: consumers, release, flush."""

import json

import pyarrow as pa
import pytest

from arrow_format import WriteOptions, consume, open_shuffle, write_shuffle
from arrow_format.commit import commit_job
from arrow_format.errors import ResultReleasedError
from arrow_format.job import begin_job, run_map_task
from arrow_format.partitioner import HashPartitioner
from connector.cli import main

FAST = WriteOptions(sync=False, result_type="PIPELINED")


@pytest.fixture
def run(capsys):
    """Run the command; return exit status, what it printed, and its errors."""

    def call(*arguments):
        status = main([str(one) for one in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def path(tmp_path):
    for value in (1, 2):
        write_shuffle(
            pa.table({"k": [value]}),
            tmp_path / "s",
            num_subpartitions=2,
            keys="k",
            mode="append",
            options=FAST,
        )
    return tmp_path / "s"


def test_consumers_are_shown_with_what_they_have_before_them(run, path):
    assert run("consumers", path) == (0, f"{path}: 0 consumers\n", "")
    with consume(path, consumer="quick"):
        status, out, _ = run("consumers", path)
        assert status == 0
        assert "quick  version 0; 2 versions of" in out
        assert "at work, process" in out
    assert "quick  version 2; nothing before it; not at work" in run("consumers", path)[1]
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
        assert (status, "is at work" in err) == (1, True)
    assert run("consumers", path, "--forget", "a") == (0, f"{path}: 0 consumers\n", "")
    status, _, err = run("consumers", path, "--forget", "a")
    assert status == 2
    assert "there is no consumer 'a'; there are: none" in err


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


def test_flush_makes_a_version_of_what_is_pending(run, path):
    assert run("flush", path) == (0, f"{path}: nothing is pending\n", "")
    schema = pa.schema([("k", pa.int64())])
    job = begin_job(path, schema, num_subpartitions=2, partitioner=HashPartitioner("k"))
    rows = pa.record_batch([[5, 5, 6]], schema=schema)
    commit_job(job, [run_map_task(job, 0, 0, [rows])], mode="append", pending=True)
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


@pytest.mark.parametrize("command", ["consumers", "release", "flush"])
def test_where_nothing_is(run, tmp_path, command):
    status, out, err = run(command, tmp_path / "nothing", *(["--yes"] * (command == "release")))
    assert status == 1
    assert out == ""
    assert "ShuffleNotFoundError" in err
