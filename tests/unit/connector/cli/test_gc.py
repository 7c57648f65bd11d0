"""The command ``arrow-shuffle gc``: what it removes, says and answers."""

import json

import pytest

from arrow_format import open_shuffle
from arrow_format.log.names import entry_path
from tests.support.logs import start_job
from tests.support.small_shuffles import files_below, numbered, values, write_tasks


@pytest.fixture
def path(tmp_path):
    for start in (0, 100):
        write_tasks(tmp_path, [[numbered(range(5), start)]], 5, mode="overwrite")
    return tmp_path


def test_it_removes_what_expired(run, path):
    job, _ = start_job(path)
    status, out, err = run("gc", path, "--retention", "0s")
    assert (status, err) == (0, "")
    first, *lines = out.splitlines()
    assert first.startswith(f"{path} (retention 0s): ")
    assert first.endswith(" removed")
    assert "  versions  2; expired: 1 version" in lines
    assert f"  jobs      given up: {job.job_id}" in lines
    assert any(line.endswith("-0.shuffle.data") for line in lines)
    assert sorted(values(path)) == list(range(100, 105))
    assert len(list(path.glob("map_outputs/*/*"))) == 2


def test_it_compacts_the_log(run, path):
    before = (path / entry_path(1)).stat().st_size
    assert run("gc", path, "--retention", "0s", "--compact-log")[0] == 0
    assert (path / entry_path(1)).stat().st_size < before / 2
    assert sorted(values(path)) == list(range(100, 105))


def test_by_default_a_day_is_kept(run, path):
    start_job(path)
    before = files_below(path)
    status, out, _ = run("gc", path)
    assert status == 0
    assert "(retention 1d): 0 files of 0 B removed" in out
    assert "  versions  1 to 2; none expired" in out
    assert "unfinished, and left alone" in out
    assert files_below(path) == before


def test_a_dry_run_changes_nothing(run, path):
    before = {one: one.stat().st_mtime_ns for one in path.rglob("*")}
    status, out, _ = run("gc", path, "--retention", "0s", "--dry-run")
    assert status == 0
    assert "would be removed" in out
    assert "would be expired: 1 version" in out
    assert {one: one.stat().st_mtime_ns for one in path.rglob("*")} == before
    assert open_shuffle(path, 1).num_rows == 5


def test_json(run, path):
    status, out, _ = run("gc", path, "--retention", "0s", "--dry-run", "--json")
    said = json.loads(out)
    assert status == 0
    assert said["dry_run"] is True
    assert said["expired_versions"] == [1]
    status, out, _ = run("gc", path, "--retention", "0s", "--json")
    done = json.loads(out)
    assert done == said | {"dry_run": False}
    assert done["num_bytes"] == sum(file["num_bytes"] for file in done["files"]) > 0
    assert (done["oldest_version"], done["newest_version"]) == (2, 2)
    assert done["retention"] == "P0D"


@pytest.mark.parametrize("text", ["1", "h", "-1h", "1.5h", "1h30m", "", "1000000000d", "1w"])
def test_a_bad_retention_is_bad_usage(run, path, text):
    before = files_below(path)
    status, out, err = run("gc", path, f"--retention={text}")
    assert (status, out) == (2, "")
    assert err.startswith("arrow-shuffle: OptionError: --retention=")
    assert err.count("\n") == 1
    assert files_below(path) == before


def test_what_is_found_wrong(run, path, tmp_path):
    status, _, err = run("gc", tmp_path / "absent")
    assert status == 1
    assert "ShuffleNotFoundError" in err
    (path / entry_path(1)).write_bytes(b"damaged")
    status, _, err = run("gc", path, "--retention", "0s")
    assert status == 1
    assert "CorruptShuffleError" in err
    assert run("gc")[0] == 2


def test_inspect_shows_versions_that_are_left_and_fences(run, path):
    start_job(path)
    run("gc", path, "--retention", "0s")
    write_tasks(path, [[numbered(range(5), 200)]], 5, mode="append")
    status, out, err = run("inspect", path, "--json")
    assert (status, err) == (0, "")
    found = [(one["version"], one["operation"], one["live"]) for one in json.loads(out)["versions"]]
    assert found == [
        (2, "overwrite", True),
        (3, "fence", False),
        (4, "expire", False),
        (5, "append", True),
    ]
    status, out, err = run("head", path, "--subpartition", 1, "--version", 1)
    assert status == 1
    assert "version 1 has expired and was removed by garbage collection" in err
