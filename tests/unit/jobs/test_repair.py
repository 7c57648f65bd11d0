"""Repair of the log: damaged and lost entries, gaps, checkpoints; never more than is needed."""

import shutil

import pytest
import zstandard

from arrow_format.errors import CorruptShuffleError, FormatVersionError, ShuffleNotFoundError
from arrow_format.jobs.repair import repair_shuffle
from arrow_format.log.names import entry_path, range_path
from arrow_format.read.shuffle import open_shuffle
from arrow_shuffle import consume
from tests.support.hostile import forged_frame
from tests.support.interrupted_storage import dies_after
from tests.support.logs import log_of
from tests.support.small_log import small_segments
from tests.support.small_shuffles import collect, files_below, numbered, values, write_tasks


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """150 versions of a row each, with checkpoints at 64 and 128."""
    path = tmp_path_factory.mktemp("made") / "shuffle"
    for number in range(150):
        write_tasks(path, [[numbered([0], number)]], 5, mode="append" if number else "overwrite")
    return path


@pytest.fixture
def path(made, path):
    shutil.copytree(made, path)
    return path


def put_in_place(file, data):
    file.unlink()  # it may be linked
    file.write_bytes(data)


def damage(file, at=-5):
    data = bytearray(file.read_bytes())
    data[at] ^= 0xFF
    put_in_place(file, data)
    return bytes(data)


def aside(path):
    return sorted(file.name for file in path.glob("commit_log/damaged/*"))


def map_outputs(path):
    return [name for name in files_below(path) if name.startswith("map_outputs/")]


def test_a_sound_log_is_left_alone(path):
    before = files_below(path)
    for dry_run in (True, False):
        report = repair_shuffle(path, dry_run)
        assert report.is_sound
        assert report.newest_number == report.newest_version == 150
        assert "sound up to number 150" in str(report)
    assert files_below(path) == before


@pytest.mark.slow
@pytest.mark.parametrize("at", [5, -5])  # in the head, and in a section
def test_a_damaged_newest_entry_is_given_up(path, at):
    file = path / entry_path(150)
    data = damage(file, at)
    with pytest.raises(CorruptShuffleError):
        open_shuffle(path)
    outputs = map_outputs(path)
    before = files_below(path)
    report = repair_shuffle(path)
    assert report.dry_run
    assert files_below(path) == before
    (lost,) = report.given_up
    assert lost.number == 150
    assert str(file) in lost.problem
    if at < 0:
        assert (lost.operation, lost.num_rows) == ("append", 1)
        assert len(lost.job_id) == 32
        assert "150: append of job" in str(lost)
    else:
        assert (lost.operation, lost.num_rows, lost.job_id) == (None, None, None)
        assert "nothing is known of it" in str(lost)
    done = repair_shuffle(path, dry_run=False)
    assert done.given_up == report.given_up
    assert done.newest_version == 149
    assert values(path) == list(range(149))
    assert map_outputs(path) == outputs
    (name,) = aside(path)
    assert name.startswith(f"{150:020d}-")
    assert (path / "commit_log/damaged" / name).read_bytes() == data
    assert repair_shuffle(path).is_sound
    write_tasks(path, [[numbered([0], 500)]], 5, mode="append")
    assert values(path)[-2:] == [148, 500]


def test_after_a_gap_everything_is_given_up(path):
    (path / entry_path(147)).unlink()
    report = repair_shuffle(path, dry_run=False)
    assert [lost.number for lost in report.given_up] == [150, 149, 148, 147]
    assert [lost.problem is None for lost in report.given_up] == [True, True, True, False]
    assert "is not there" in report.given_up[-1].problem
    assert report.given_up[0].operation == "append"
    assert report.given_up[-1].operation is None
    assert len(aside(path)) == 3
    assert values(path) == list(range(146))


@pytest.mark.slow
def test_a_damaged_entry_that_a_checkpoint_replaces_costs_no_version(path):
    damage(path / entry_path(20))
    assert repair_shuffle(path).is_sound
    assert values(path) == list(range(150))


@pytest.mark.slow
def test_a_damaged_checkpoint_is_made_again(path):
    for number in (64, 128):
        file = path / range_path(number)
        whole = file.read_bytes()
        damage(file)
        report = repair_shuffle(path, dry_run=False)
        assert not report.given_up
        assert report.checkpoints == (str(file),)
        assert file.read_bytes() == whole
        assert values(path) == list(range(150))
        assert values(path, 100) == list(range(100))


@pytest.mark.slow
def test_a_lost_checkpoint_needs_no_repair(path):
    (path / range_path(128)).unlink()
    assert repair_shuffle(path).is_sound
    assert values(path) == list(range(150))


@pytest.mark.slow
def test_checkpoints_of_numbers_that_are_given_up_go_with_them(path):
    for number in range(120, 151):
        (path / entry_path(number)).unlink()
    report = repair_shuffle(path, dry_run=False)
    assert report.newest_number == 119
    assert not (path / range_path(128)).exists()
    assert [lost.number for lost in report.given_up] == list(range(144, 119, -1))
    for number in range(119, 135):
        write_tasks(path, [[numbered([0], number)]], 5, mode="append")
    assert values(path) == list(range(135))


def test_a_newest_entry_that_does_not_continue_the_rest_is_given_up(path):
    entry = path / entry_path(150)
    of_another_log = forged_frame(entry.read_bytes(), {"commit_id": "another", "parent": "other"})
    put_in_place(entry, of_another_log)
    report = repair_shuffle(path, dry_run=False)
    assert [lost.number for lost in report.given_up] == [150]
    assert values(path) == list(range(149))


def test_what_a_newer_release_wrote_is_not_given_up(path):
    file = path / entry_path(150)
    put_in_place(file, forged_frame(file.read_bytes(), {"state": {"readers": ["from tomorrow"]}}))
    with pytest.raises(FormatVersionError, match="from tomorrow"):
        repair_shuffle(path, dry_run=False)
    assert not aside(path)
    assert file.exists()


@pytest.mark.slow
def test_where_nothing_can_be_read_back_nothing_changes(path):
    collect(path)
    for file in path.glob("commit_log/0*/*"):
        if file.suffix != ".entry":
            file.unlink()
    (path / entry_path(1)).unlink()
    before = files_below(path)
    with pytest.raises(CorruptShuffleError, match="no entry of the log can be read back"):
        repair_shuffle(path, dry_run=False)
    assert files_below(path) == before


def test_without_a_log(tmp_path):
    with pytest.raises(ShuffleNotFoundError, match="is not there"):
        repair_shuffle(tmp_path / "none")
    with pytest.raises(ShuffleNotFoundError, match="holds no log"):
        repair_shuffle(tmp_path)


@pytest.mark.slow
def test_killed_anywhere_the_next_repair_ends_the_same(path):
    (path / entry_path(148)).unlink()
    damage(path / range_path(128))
    for calls in range(20):
        if not dies_after(calls, lambda: repair_shuffle(path, dry_run=False)):
            break
    else:
        pytest.fail("it was never carried out")
    assert values(path) == list(range(147))
    assert repair_shuffle(path).is_sound
    assert any(name.startswith(f"{150:020d}") for name in aside(path))


@pytest.mark.slow
def test_files_of_jobs_that_were_given_up_are_collected(path):
    damage(path / entry_path(150))
    repair_shuffle(path, dry_run=False)
    collect(path)
    assert len(list(path.glob("map_outputs/*/*.data"))) == 149
    assert log_of(path).newest_version() > 149
    assert len(aside(path)) == 1


def test_consumers_that_are_ahead_are_named(path):
    with consume(path, consumer="fast") as consumption:
        consumption.shuffle.read().read_all()
    damage(path / entry_path(150))
    assert repair_shuffle(path).consumers == ("fast",)


@pytest.mark.parametrize("section", ["added", "totals", "jobs"])
@pytest.mark.parametrize("number", [128, 144])
def test_a_checkpoint_with_a_section_that_cannot_be_decoded_is_made_again(path, section, number):
    """Its checksums fit: as of a writer with a fault, whose entries are whole."""
    file = path / range_path(number)
    whole = file.read_bytes()
    put_in_place(file, forged_frame(whole, {}, {section: b"no table"}))
    report = repair_shuffle(path, dry_run=False)
    assert not report.given_up
    assert report.checkpoints == (str(file),)
    assert file.read_bytes() == whole
    assert values(path) == list(range(150))


@pytest.mark.slow
def test_a_base_with_a_section_that_cannot_be_decoded_is_not_called_sound(tmp_path):
    """What it replaces is gone, so that nothing before it is left to go back to."""
    with small_segments(4, 2):
        for number in range(12):
            write_tasks(tmp_path, [[numbered([0], number)]], 5, mode="overwrite")
        collect(tmp_path, 3)
        file = tmp_path / range_path(log_of(tmp_path).view().state.base)
        no_table = zstandard.compress(b"no table")
        put_in_place(file, forged_frame(file.read_bytes(), {}, {"jobs": no_table}))
        assert values(tmp_path) == [11], "no reader of the newest version needs that section"
        before = files_below(tmp_path)
        with pytest.raises(CorruptShuffleError, match="no entry of the log can be read back"):
            repair_shuffle(tmp_path, dry_run=False)
        assert files_below(tmp_path) == before
