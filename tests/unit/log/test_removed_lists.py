"""A file in the place of the list of a removed segment that is none, or another log's."""

import pytest

from arrow_format.errors import CorruptShuffleError, ShuffleError
from arrow_format.jobs.tags import tag_shuffle, untag_shuffle
from arrow_format.log.job_ends import encode_removed
from arrow_format.log.names import expired_path
from arrow_format.read.shuffle import open_shuffle
from tests.support.small_shuffles import collect, numbered, values, write_tasks


@pytest.fixture
def path(tmp_path):
    for start in (0, 10):
        write_tasks(tmp_path / "x", [[numbered([0, 1], start)]], 5, mode="append")
    return tmp_path / "x"


def put(path, what):
    """Put a file in the place of the list of the first segment, whose entries are there."""
    file = path / expired_path(0)
    file.parent.mkdir()
    file.write_bytes(encode_removed(["another"], []) if what == "another log's" else what)
    return file


@pytest.mark.parametrize("what", [b"", b"x", b"garbage" * 100, "another log's"])
def test_the_file_is_named_and_not_the_log_blamed(path, what):
    file = put(path, what)
    for act in (
        lambda: open_shuffle(path),
        lambda: collect(path),
    ):
        with pytest.raises(CorruptShuffleError, match=f"{file}: .*remove it") as caught:
            act()
        assert "read again" not in str(caught.value)
    with pytest.raises(ShuffleError, match=f"{file}: "):
        write_tasks(path, [[numbered([0, 1], 20)]], 5, mode="append")
    file.unlink()
    assert {0, 1, 10, 11} <= set(values(path))
    write_tasks(path, [[numbered([0, 1], 30)]], 5, mode="append")
    assert open_shuffle(path).verify().ok


def test_the_error_of_a_damaged_tag_says_how_to_go_on(path):
    tag_shuffle(path, "v-1", 1)
    write_tasks(path, [[numbered([0, 1], 20)]], 5, mode="overwrite")
    collect(path)
    (file,) = path.glob("commit_log/*/*.range")
    file.write_bytes(b"x")
    match = rf"{file}: .*give the tag up: arrow-shuffle tag {path} v-1 --remove"
    for act in (
        lambda: open_shuffle(path, "v-1"),
        lambda: collect(path),
    ):
        with pytest.raises(CorruptShuffleError, match=match):
            act()
    file.unlink()
    with pytest.raises(CorruptShuffleError, match=match):
        collect(path)
    untag_shuffle(path, "v-1")
    collect(path)
    assert values(path) == [20, 21]
