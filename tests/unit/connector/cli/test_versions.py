"""The commands rollback, tag, repair and relocate, versions by name, and what gc says of holds."""

import json
import shutil
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from arrow_format import WriteOptions, write_shuffle
from arrow_format.log.names import entry_path
from arrow_format.read.shuffle import open_shuffle
from connector.cli.main import main
from tests.support.small_shuffles import numbered, values, write_rows, write_tasks


@pytest.fixture
def path(path):
    for start in (0, 10, 20):
        write_tasks(path, [[numbered([0, 1], start)]], 5, mode="append")
    return path


@pytest.fixture
def command(capsys):
    """Run a command; return its status, and what it printed to stdout or else to stderr."""

    def run(*arguments):
        status = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, out or err

    return run


@pytest.mark.slow
def test_rollback(path, command):
    status, text = command("rollback", path, "1")
    assert status == 0
    assert text.startswith(f"rolled back: shuffle {path} version 4: 2 rows")
    status, text = command("rollback", path, 3, "--json", "--expected-version", 4)
    facts = json.loads(text)
    assert (facts["version"], facts["num_rows"]) == (5, 6)
    status, text = command("rollback", path, 1, "--expected-version", 4)
    assert status == 1
    assert "CommitConflictError" in text
    assert "followed by version 5" in text
    assert command("rollback", path, 3, "--undo-deletions")[0] == 0  # there are none
    assert command("rollback", path, "9")[0] == 1
    assert command("rollback", path, "a b")[0] == 2
    assert values(path) == values(path, 3)


@pytest.mark.slow
def test_alter(path, command):
    status, text = command("alter", path, "--rename", "v=number", "--drop", "s")
    assert (status, text) == (0, f"{path}: version 4 has the columns p, number\n")
    status, text = command("alter", path, "--rename", "p=part", "--expected-version", 4, "--json")
    schema = {"part": "int32", "number": "int64"}
    assert json.loads(text) == {"path": str(path), "version": 5, "schema": schema}
    assert open_shuffle(path).schema.names == ["part", "number"]
    for arguments, code, problem in (
        (["--drop", "part"], 2, "decides the subpartition of each row"),
        (["--rename", "part"], 2, "expected OLD=NEW"),
        (["--rename", "part=a", "--rename", "part=b"], 2, "a column is named twice"),
        ([], 2, "no column is to be renamed or dropped"),
        (["--drop", "number", "--expected-version", 4], 1, "followed by version 5"),
    ):
        status, text = command("alter", path, *arguments)
        assert (status, problem in text) == (code, True)


@pytest.mark.slow
def test_another_number_of_subpartitions(tmp_path, command):
    path = tmp_path / "hashed"
    write_rows(path, pa.table({"k": [1, 2, 3]}), "k", n=8)
    status, text = command("rescale", path, 16)
    assert (status, "new files have 16 subpartitions" in text) == (0, True)
    status, text = command("rescale", path, 12, "--json")
    assert status == 0
    assert json.loads(text) == {
        "path": str(path), "version": 3, "num_subpartitions": 4, "rescaled_to": 12, "is_new": True
    }  # fmt: skip
    assert command("merge", path)[0] == 0
    assert open_shuffle(path).num_subpartitions == 12
    for arguments, code, problem in (
        (["0"], 2, "from 1 to"),
        (["16", "--expected-version", "9"], 1, "is not there"),
    ):
        status, text = command("rescale", path, *arguments)
        assert (status, problem in text) == (code, True), text


@pytest.mark.slow
def test_columns_that_identify_a_row(path, command):
    assert command("alter", path, "--unique", "p,v")[0] == 0
    assert open_shuffle(path).unique == ("p", "v")
    assert "rows identified by p, v, format version 1" in command("inspect", path)[1]
    for arguments, code, problem in (
        (["--unique", "p"], 1, "of the rows have the key of another one"),
        (["--unique", "v"], 2, "partitioned by 'p'"),
        (["--unique", "p,v", "--drop", "s"], 2, "in a version of their own"),
    ):
        status, text = command("alter", path, *arguments)
        assert (status, problem in text) == (code, True), text
    assert command("alter", path, "--unique", "")[0] == 0
    assert open_shuffle(path).unique == ()


@pytest.mark.slow
def test_tags(path, command):
    assert command("tag", path, "release-7", "--version", 2) == (
        0,
        f"{path}: tagged release-7: version 2\n",
    )
    status, text = command("tag", path, "release-7")
    assert status == 1
    assert "version 2 has the tag 'release-7' already" in text
    assert command("tag", path, "newest")[0] == 0
    assert command("tags", path)[1].splitlines() == [
        f"{path}: 2 tags",
        "  newest: version 3",
        "  release-7: version 2",
    ]
    assert json.loads(command("tags", path, "--json")[1])["tags"] == [
        {"name": "newest", "version": 3},
        {"name": "release-7", "version": 2},
    ]
    assert "tags: newest (version 3), release-7 (version 2)" in command("inspect", path)[1]
    assert json.loads(command("inspect", path, "--json")[1])["tags"] == {
        "newest": 3,
        "release-7": 2,
    }
    assert command("tag", path, "newest", "--remove") == (0, f"{path}: removed tag newest\n")
    status, text = command("tag", path, "newest", "--remove")
    assert status == 2
    assert "the tags are: release-7" in text
    assert command("tag", path, "release-7", "--remove", "--version", 2)[0] == 2
    assert command("tag", path, "a/b")[0] == 2


def test_gc_says_what_holds_versions(path, command):
    command("tag", path, "release-7", "--version", 1)
    status, text = command("gc", path, "--dry-run")
    assert status == 0
    lines = [line.strip() for line in text.splitlines()]
    assert "kept by   tag release-7: version 1; 'arrow-shuffle tag --remove' removes it" in lines
    assert any(
        line.startswith("retention 1 day, 0:00:00: versions from 1; collect with a shorter")
        for line in lines
    )
    assert json.loads(command("gc", path, "--dry-run", "--json")[1])["holds"] == [
        {"by": "tag", "name": "release-7", "version": 1},
        {"by": "retention", "name": "1 day, 0:00:00", "version": 1},
    ]
    text = command("gc", path, "--retention", "0s")[1]
    assert "tag release-7" in text
    assert "retention 0" in text
    assert values(path, "release-7") == [0, 1]


def test_versions_by_name(path, command):
    now = datetime.now(UTC).isoformat()
    for name, version in [("2", 2), (now, 3)]:
        status, text = command("inspect", path, "--version", name, "--json")
        assert status == 0
        assert json.loads(text)["version"] == version
    status, text = command("verify", path, "--version", "2020-01-01 00:00")
    assert status == 1
    assert "no version that can be opened was committed by 2020-01-01" in text
    status, text = command("head", path, "--subpartition", 0, "--version", "a b")
    assert status == 2
    assert "expected a number, a date and time" in text


def test_repair(path, command):
    status, text = command("repair", path, "--yes")
    assert status == 0
    assert "the log is sound up to number 3" in text
    file = path / entry_path(3)
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data[:-1])
    status, text = command("repair", path)
    assert status == 1
    assert "1 number would be given up" in text
    assert "3: append of job" in text
    assert "Stop all writers, and give --yes" in text
    assert file.exists()
    status, text = command("repair", path, "--json")
    facts = json.loads(text)
    assert status == 1
    assert facts["dry_run"]
    assert not facts["is_sound"]
    assert [lost["number"] for lost in facts["given_up"]] == [3]
    status, text = command("repair", path, "--yes")
    assert status == 0
    assert "1 file moved to commit_log/damaged" in text
    assert open_shuffle(path).version == 2
    assert command("repair", path)[0] == 0


@pytest.mark.slow
def test_relocate(tmp_path, command, monkeypatch):
    monkeypatch.setattr("arrow_format.write.map_output.first_root", lambda *_: 1)
    options = WriteOptions(sync=False, local_dirs=(str(tmp_path / "disk"),))
    path = tmp_path / "s"
    write_rows(path, pa.table({"k": [1]}), "k", n=2, options=options)
    assert command("relocate", path)[0] == 2
    assert command("relocate", path, "--moved", "--copied")[0] == 2
    copy = shutil.copytree(path, tmp_path / "copy")
    write_shuffle(pa.table({"k": [2]}), copy, keys="k", num_subpartitions=2, mode="overwrite")
    text = command("gc", copy, "--retention", "0s")[1]
    assert f"local directories of the shuffle at {path}" in text
    assert json.loads(command("gc", copy, "--json")[1])["holds"] == [
        {"by": "relocate", "name": str(path), "version": 0}
    ]
    status, text = command("relocate", copy, "--moved")
    assert status == 2
    assert f"belong to is at {path}" in text
    status, text = command("relocate", copy, "--copied")
    assert status == 0
    assert "a copy with an id of its own" in text
    facts = json.loads(command("relocate", path, "--moved", "--json")[1])
    assert facts == {"path": str(path), "became": "moved", "taken": [], "unseen": []}
