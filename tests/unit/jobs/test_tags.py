"""Tags: what they keep, what becomes of their files, and races with collections."""

import pickle

import pytest

from arrow_format.errors import (
    CorruptShuffleError,
    OptionError,
    ResultReleasedError,
    ShuffleError,
    ShuffleExistsError,
    ShuffleNotFoundError,
)
from arrow_format.jobs.merge import merge_shuffle
from arrow_format.jobs.repair import repair_shuffle
from arrow_format.jobs.tags import TaggedVersion, list_tags, tag_shuffle, untag_shuffle
from arrow_format.log.names import segment_of, segment_path
from arrow_format.log.reader import LogReader
from arrow_format.read.shuffle import open_shuffle
from arrow_format.storage.open import open_storage
from arrow_format.streaming.consumption import release_shuffle
from arrow_format.write.merge_policy import MergePolicy
from tests.support.interrupted_storage import (
    before_first_entry,
    dies_after,
)
from tests.support.small_log import small_segments
from tests.support.small_shuffles import FAST, collect, numbered, values, write_tasks


@pytest.fixture
def path(path):
    for start in (0, 10, 20):
        write_tasks(path, [[numbered([0, 1], start)]], 5, mode="append")
    return path


def tag_files(path):
    return sorted(file.name for file in path.glob("commit_log/*/*.range"))


def test_a_tagged_version_is_read_by_number_and_name_after_it_expired(path):
    before = open_shuffle(path, 2)
    rows = before.read().read_all()
    assert tag_shuffle(path, "v-2", 2) == TaggedVersion("v-2", 2)
    merge_shuffle(path, policy=MergePolicy(rewrite="always"), options=FAST, by="map_output")
    collect(path)
    for name in (2, "v-2"):
        tagged = open_shuffle(path, name)
        assert tagged.version == 2
        assert tagged.read().read_all() == rows
        assert tagged.subpartition_rows == before.subpartition_rows
        assert tagged.verify().ok
        assert pickle.loads(pickle.dumps(tagged)).read().read_all() == rows
    match = "version 1 has expired .*; there are versions 5 to 5, and by tags 2"
    with pytest.raises(ShuffleNotFoundError, match=match):
        open_shuffle(path, 1)


def test_the_newest_is_tagged_by_default(path):
    assert tag_shuffle(path, "latest").version == 3
    assert list_tags(path) == (TaggedVersion("latest", 3),)
    assert str(list_tags(path)[0]) == "latest: version 3"


def test_a_tag_of_a_tag(path):
    expected = values(path, 1)
    tag_shuffle(path, "a", 1)
    collect(path)
    tag_shuffle(path, "b", "a")
    untag_shuffle(path, "a")
    collect(path)
    assert values(path, "b") == expected


def test_a_tag_twice_is_an_error_that_says_which_version_has_it(path):
    tag_shuffle(path, "a", 1)
    files = tag_files(path)
    with pytest.raises(ShuffleExistsError, match="version 1 has the tag 'a' already"):
        tag_shuffle(path, "a", 2)
    assert list_tags(path) == (TaggedVersion("a", 1),)
    assert tag_files(path) == files


@pytest.mark.parametrize("name", ["", "a b", "../a", "a/b", "a.b", "x" * 101, 3, None])
def test_names_have_a_form(path, name):
    for act in (tag_shuffle, untag_shuffle):
        with pytest.raises(OptionError, match="expected 1 to 100 letters"):
            act(path, name)
    assert not tag_files(path)


@pytest.mark.parametrize("name", ["7", "2026-11-20", "20261120"])
def test_names_that_mean_another_version_are_refused(path, name):
    with pytest.raises(OptionError, match="reads as a number or a date"):
        tag_shuffle(path, name)


def test_what_cannot_be_tagged(path, tmp_path):
    collect(path)
    with pytest.raises(ShuffleNotFoundError, match="version 1 has expired"):
        tag_shuffle(path, "a", 1)
    with pytest.raises(ShuffleNotFoundError, match="version 9 is not there"):
        tag_shuffle(path, "a", 9)
    with pytest.raises(ShuffleNotFoundError, match="is not there"):
        tag_shuffle(tmp_path / "none", "a")
    (tmp_path / "empty").mkdir()
    for act in (
        lambda: tag_shuffle(tmp_path / "empty", "a"),
        lambda: list_tags(tmp_path / "empty"),
    ):
        with pytest.raises(ShuffleNotFoundError, match="holds no committed shuffle"):
            act()
    release_shuffle(path)
    with pytest.raises(ResultReleasedError):
        tag_shuffle(path, "a")
    assert not tag_files(path)


def grow(path, count=8):
    for start in range(count):
        write_tasks(path, [[numbered([0], 100 + start)]], 5, mode="overwrite")
    collect(path, 3)


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_all_up_to_a_tag_stays_when_its_segment_is_removed(path, version):
    """Of any number: also where a checkpoint was, whose place it takes."""
    with small_segments(4, 2):
        write_tasks(path, [[numbered([0, 1], 30)]], 5, mode="append")
        expected = values(path, version)
        reader = LogReader(open_storage(path))
        reader.snapshot()
        tag_shuffle(path, "a", version)
        tag_shuffle(path, "b", version)
        assert len(values(path)) == 8
        reader.snapshot()
        grow(path)
        segment = path / segment_path(segment_of(version))
        assert [file.name for file in segment.iterdir()] == [f"{version:020d}.range"]
        assert values(path, version) == values(path, "a") == expected
        assert open_shuffle(path, "a").verify().ok
        assert untag_shuffle(path, "a")
        assert not untag_shuffle(path, "a")
        grow(path)
        assert values(path, "b") == expected
        untag_shuffle(path, "b")
        report = collect(path, dry_run=True)
        assert any(file.path.endswith(f"{version:020d}.range") for file in report.files)
        grow(path)
        assert not segment.exists()
        assert values(path) == [107]
        with pytest.raises(ShuffleNotFoundError):
            open_shuffle(path, version)


def test_a_dry_run_names_the_tag(path):
    tag_shuffle(path, "b", 2)
    report = collect(path, dry_run=True)
    said = "tag b: version 2; 'arrow-shuffle tag --remove' removes it"
    assert [str(hold) for hold in report.holds] == [said]
    assert f"  kept by   {said}" in str(report).splitlines()


def test_files_of_map_outputs_are_removed_though_two_tags_name_others_of_the_job(path):
    write_tasks(path, [[numbered([0], 50)], [numbered([1], 51)]], 5, mode="overwrite")
    job = open_shuffle(path).map_outputs[0].job_id
    tag_shuffle(path, "a")
    tag_shuffle(path, "b")
    write_tasks(path, [[numbered([0], 60)]], 5, mode="overwrite")
    collect(path)
    assert len(list(path.glob(f"map_outputs/{job}/*.data"))) == 2
    untag_shuffle(path, "a")
    untag_shuffle(path, "b")
    collect(path)
    assert not list(path.glob(f"map_outputs/{job}/*"))


def test_a_version_that_expires_while_it_is_tagged_is_refused(path):
    with (
        before_first_entry(lambda: collect(path)),
        pytest.raises(ShuffleNotFoundError, match="version 1 has expired"),
    ):
        tag_shuffle(path, "a", 1)
    assert list_tags(path) == ()


def test_a_collection_before_the_entry_of_a_tag_leaves_what_it_needs(path):
    with before_first_entry(lambda: collect(path)):
        tag_shuffle(path, "a", 3)
    write_tasks(path, [[numbered([0], 50)]], 5, mode="overwrite")
    collect(path)
    assert values(path, "a") == values(path, 3)
    assert len(values(path, 3)) == 6


def test_killed_anywhere_a_tag_is_set_or_not(path):
    for calls in range(10):
        died = dies_after(calls, lambda: tag_shuffle(path, "a", 1))
        assert bool(list_tags(path)) is not died
        if not died:
            break
    collect(path)
    assert len(tag_files(path)) == 1
    assert values(path, "a") == [0, 1]


def test_a_damaged_range_of_a_tag_is_named_and_made_again(path):
    tag_shuffle(path, "a", 1)
    collect(path)
    (file,) = path.glob("commit_log/*/*.range")
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    for version in ("a", None):
        with pytest.raises(CorruptShuffleError, match=file.name):
            open_shuffle(path, version)
    report = repair_shuffle(path, dry_run=False)
    assert (report.given_up, report.checkpoints) == ((), (str(file),))
    assert file.read_bytes() == data
    assert values(path, "a") == [0, 1]
    assert len(values(path)) == 6


def test_damage_in_a_tagged_version_is_not_called_expired(path):
    tag_shuffle(path, "a", 1)
    collect(path)
    shuffle = open_shuffle(path, "a")
    (path / shuffle.map_outputs[0].files[0].data_path).unlink()
    with pytest.raises(ShuffleError, match="not there; cannot read it") as raised:
        shuffle.read().read_all()
    assert isinstance(raised.value, CorruptShuffleError)
