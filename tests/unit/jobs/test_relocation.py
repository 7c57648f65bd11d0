"""Whose local directories a shuffle's are: copies, moves, disks that are not mounted."""

from __future__ import annotations

import pickle
import shutil
import subprocess
from dataclasses import replace

import pyarrow as pa
import pytest

from arrow_format import (
    CorruptShuffleError,
    MergePolicy,
    OptionError,
    StorageError,
    WriteOptions,
    delete_rows,
    erasure_status,
    merge_shuffle,
    open_shuffle,
    relocate_shuffle,
)
from arrow_format.jobs.cleanup import abort_job
from arrow_format.jobs.job import run_map_task
from arrow_format.log.names import IDENTITY_DIRECTORY, MAP_OUTPUT_DIRECTORY
from arrow_format.storage.local_dirs import ROOT_LIST_NAME
from arrow_format.storage.open import PosixStorage
from arrow_format.storage.root_owner import DIRECTORY_ID_NAME, MARKER_NAME
from tests.support.customers import status_after
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import (
    begin,
    begun_with,
    collect,
    files_below,
    numbered,
    sorted_values,
    write_rows,
)

ALWAYS = MergePolicy(rewrite="always")
PLAIN = WriteOptions(codec="none", sync=False, statistics=())
"""The log has no values of rows, which would keep a receipt of a deletion open."""


def append(path, disk, *values, mode="append"):
    options = replace(PLAIN, local_dirs=(str(disk),) if disk else ())
    table = pa.table({"k": list(values), "v": list(values)})
    return write_rows(path, table, "k", n=4, mode=mode, options=options, for_spark=False)


def holds(report, *kinds):
    return [(one.by, one.name) for one in report.holds if one.by in (kinds or ("relocate",))]


def data_files(disk):
    return [name for name in files_below(disk) if name.endswith(".data")]


@pytest.fixture
def original(tmp_path, monkeypatch):
    """A shuffle of four versions, with all files on a disk of its own."""
    monkeypatch.setattr("arrow_format.write.map_output.first_root", lambda *_: 1)
    for value in range(4):
        append(tmp_path / "original", tmp_path / "disk", value)
    assert len(data_files(tmp_path / "disk")) == 4
    return tmp_path / "original"


@pytest.fixture
def disk(original):
    return original.with_name("disk")


@pytest.fixture
def copy(original):
    return shutil.copytree(original, original.with_name("copy"))


# A copy -------------------------------------------------------------------------------------------


@guarantee("copies and local directories")
@pytest.mark.parametrize("how", ["gc", "merge", "delete", "gives up"])
def test_a_collection_of_a_copy_removes_nothing_that_the_original_reads(original, copy, disk, how):
    if how == "gc":
        append(copy, None, 9, mode="overwrite")
    elif how == "merge":
        merge_shuffle(copy, policy=ALWAYS, by="map_output")
    elif how == "delete":
        delete_rows(copy, {"k": [0, 1, 2, 3]})
    else:
        job = unfinished(original, disk)
        shutil.copytree(original, copy, dirs_exist_ok=True)
    before = files_below(disk)
    for dry_run in (True, False, False):
        report = collect(copy, dry_run=dry_run)
        assert holds(report) == [("relocate", str(original))]
        assert "arrow-shuffle relocate" in str(report)
    assert files_below(disk) == before
    assert sorted_values(original) == [0, 1, 2, 3]
    assert open_shuffle(original).verify().ok
    if how == "gives up":
        assert collect(original).fenced_jobs == (job.job_id,)
        assert len(data_files(disk)) == 4


def unfinished(path, disk):
    options = replace(PLAIN, local_dirs=(str(disk),))
    job, _ = begun_with(path, pa.table({"k": [7], "v": [7]}), n=4, options=options)
    return job


@guarantee("copies and local directories")
def test_a_copy_that_is_told_so_leaves_the_roots_to_the_original(original, copy, disk):
    told = relocate_shuffle(copy, "copied")
    assert (told.became, told.taken) == ("copied", ())
    assert "of its own" in str(told)
    before = files_below(disk)
    append(copy, disk, 4)
    merge_shuffle(copy, policy=ALWAYS, by="map_output")
    report = collect(copy)
    assert holds(report) == []
    assert files_below(disk) == before, "its own file there has gone"
    assert sorted_values(original) == [0, 1, 2, 3]
    # It has all rows itself now, so the original may go.
    append(original, None, 9, mode="overwrite")
    collect(original)
    assert files_below(disk) == []
    assert sorted_values(copy) == [0, 1, 2, 3, 4]
    with pytest.raises(OptionError, match="is where it was written, and no copy"):
        relocate_shuffle(copy, "copied")


def test_a_copy_that_wrote_before_it_was_told_to_the_end_keeps_its_own(
    original, copy, disk, monkeypatch
):
    """The first time a list could not be removed; found by the simulator."""
    with monkeypatch.context() as patch:
        patch.setattr(PosixStorage, "delete", refused)
        with pytest.raises(StorageError, match="refused"):
            relocate_shuffle(copy, "copied")
    append(copy, disk, 9)
    theirs = data_files(disk)
    relocate_shuffle(copy, "copied")
    assert sorted_values(copy) == [0, 1, 2, 3, 9]
    append(copy, None, 7, mode="overwrite")
    assert holds(collect(copy)) == []
    assert len(data_files(disk)) == len(theirs) - 1
    assert sorted_values(original) == [0, 1, 2, 3]
    assert sorted_values(copy) == [7]


def refused(self, path):
    msg = f"{self.root}/{path}: refused"
    raise StorageError(msg)


def test_the_original_is_no_copy_and_a_copy_was_not_moved(original, copy, disk):
    with pytest.raises(OptionError, match="is where it was written, and no copy"):
        relocate_shuffle(original, "copied")
    with pytest.raises(OptionError, match=f"was not moved: .* is at {original}. Relocate this one"):
        relocate_shuffle(copy, "moved")
    assert relocate_shuffle(original, "moved").taken == ()
    with pytest.raises(OptionError, match="became='lost': expected 'moved' or 'copied'"):
        relocate_shuffle(copy, "lost")


def test_an_old_backup_does_not_take_the_files_of_what_was_moved_since(original, copy, disk):
    """What it says of itself is where nothing is any more; what the roots bear is in use."""
    moved = original.rename(original.with_name("moved"))
    assert len(relocate_shuffle(moved, "moved").taken) == 4
    with pytest.raises(OptionError, match=f"was not moved: .* is at {moved}"):
        relocate_shuffle(copy, "moved")
    append(copy, None, 9, mode="overwrite")
    assert holds(collect(copy)) == [("relocate", str(moved))]
    assert sorted_values(moved) == [0, 1, 2, 3]


def test_where_it_was_is_a_shuffle_that_no_longer_says_what_it_is(original, copy, disk):
    (identity,) = (original / IDENTITY_DIRECTORY).iterdir()
    identity.write_bytes(b"{}")
    assert len(relocate_shuffle(copy, "moved").taken) == 4
    assert sorted_values(copy) == [0, 1, 2, 3]


def test_a_copy_writes_into_no_local_directory_before_it_is_told(original, copy, disk):
    before = files_below(copy)
    with pytest.raises(StorageError, match=r"moved or is a copy.*arrow-shuffle relocate"):
        append(copy, disk, 5)
    assert files_below(copy) == before
    assert append(copy, None, 5).num_rows == 1
    relocate_shuffle(copy, "copied")
    assert append(copy, disk, 6).num_rows == 1
    assert sorted_values(copy) == [0, 1, 2, 3, 5, 6]


def test_a_copy_without_what_the_shuffle_says_of_itself(original, copy, disk):
    shutil.rmtree(copy / IDENTITY_DIRECTORY)
    append(copy, None, 9, mode="overwrite")
    assert holds(collect(copy)) == [("relocate", str(original))]
    relocate_shuffle(copy, "copied")
    assert holds(collect(copy)) == []
    assert sorted_values(original) == [0, 1, 2, 3]


def test_a_copy_of_a_shuffle_without_local_directories_needs_nothing(tmp_path):
    append(tmp_path / "s", None, 1)
    copy = shutil.copytree(tmp_path / "s", tmp_path / "copy")
    for became in ("moved", "copied"):
        relocate_shuffle(copy, became)
    append(copy, None, 2, mode="overwrite")
    assert collect(copy).num_files > 0
    assert not (copy / IDENTITY_DIRECTORY).exists()


def test_a_root_without_its_marker_is_no_rest_to_a_copy(original, copy, disk):
    """An interrupted removal leaves one; a marker that somebody lost does as well."""
    relocate_shuffle(copy, "copied")
    for marker in disk.rglob(MARKER_NAME):
        marker.rename(marker.with_suffix(".lost"))
    before = files_below(disk)
    append(copy, None, 9, mode="overwrite")
    collect(copy)
    assert files_below(disk) == before


# A move -------------------------------------------------------------------------------------------


def renamed(original):
    return original.rename(original.with_name("renamed"))


def below_a_renamed_parent(original):
    parent = original.parent / "parent"
    parent.mkdir()
    original.rename(parent / "s")
    return parent.rename(parent.with_name("other")) / "s"


def restored_elsewhere(original):
    elsewhere = shutil.copytree(original, original.with_name("restored"))
    shutil.rmtree(original)
    return elsewhere


def restored_in_place(original):
    """By ``tar`` or ``rsync``: the path is the same, and the directory another."""
    kept = original.rename(original.with_name("kept"))
    shutil.copytree(kept, original)
    shutil.rmtree(kept)
    return original


@guarantee("copies and local directories")
@pytest.mark.parametrize(
    "move", [renamed, below_a_renamed_parent, restored_elsewhere, restored_in_place]
)
def test_a_shuffle_that_was_moved_removes_its_files_once_it_is_told(original, disk, move):
    path = move(original)
    assert sorted_values(path) == [0, 1, 2, 3]
    append(path, None, 9, mode="overwrite")
    before = files_below(disk)
    report = collect(path)
    assert holds(report) == [("relocate", str(original))]
    assert files_below(disk) == before
    told = relocate_shuffle(path, "moved")
    assert len(told.taken) == 4
    assert relocate_shuffle(path, "moved").taken == (), "the second time nothing is left to do"
    report = collect(path)
    assert holds(report) == []
    assert files_below(disk) == []
    assert append(path, disk, 10).num_rows == 1
    assert sorted_values(path) == [9, 10]


def test_a_disk_that_was_away_when_a_shuffle_was_moved(original, disk):
    path = renamed(original)
    away = disk.rename(disk.with_name("away"))
    disk.mkdir()
    told = relocate_shuffle(path, "moved")
    assert (told.taken, told.unseen) == ((), (str(disk),))
    assert "unseen" in str(told)
    disk.rmdir()
    away.rename(disk)
    append(path, None, 9, mode="overwrite")
    assert holds(collect(path)) == [("relocate", str(original))]
    assert len(relocate_shuffle(path, "moved").taken) == 4
    collect(path)
    assert files_below(disk) == []


@pytest.mark.parametrize("by", ["link", "bind mount"])
def test_another_way_to_the_same_directory_is_no_move(original, disk, by):
    other = original.with_name("other")
    if by == "link":
        other.symlink_to(original)
        collect_and_check(original, other, disk)
        return
    other.mkdir()
    try:
        subprocess.run(["mount", "--bind", original, other], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user cannot mount")
    try:
        collect_and_check(original, other, disk)
    finally:
        subprocess.run(["umount", "--lazy", other], check=True)


def collect_and_check(original, other, disk):
    append(other, None, 9, mode="overwrite")
    append(other, disk, 10)
    report = collect(other)
    assert holds(report) == []
    assert len(data_files(disk)) == 1
    assert sorted_values(original) == [9, 10]


def test_a_link_that_leads_to_a_copy_now(original, disk):
    """A shuffle is known by the directory, and not by the link."""
    link = original.with_name("link")
    link.symlink_to(original)
    append(link, disk, 4)
    copy = shutil.copytree(original, original.with_name("copy"))
    link.unlink()
    link.symlink_to(copy)
    append(link, None, 9, mode="overwrite")
    assert holds(collect(link)) == [("relocate", str(original))]
    assert sorted_values(original) == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_two_shuffles_share_a_local_directory(original, disk):
    other = original.with_name("another")
    append(other, disk, 5)
    assert len([one for one in disk.iterdir() if one.name == DIRECTORY_ID_NAME]) == 1
    append(other, None, 6, mode="overwrite")
    collect(other)
    assert len(data_files(disk)) == 4
    assert sorted_values(original) == [0, 1, 2, 3]
    append(original, None, 9, mode="overwrite")
    append(other, disk, 7)
    collect(original)
    assert len(data_files(disk)) == 1
    assert sorted_values(other) == [6, 7]


def test_jobs_of_several_processes_find_one_identity(tmp_path):
    """Tasks of a bare hook make the roots themselves; each writes down whose they are."""
    options = replace(PLAIN, local_dirs=(str(tmp_path / "disk"),))
    job = begin(tmp_path / "s", options=options)
    for task in range(3):
        run_map_task(pickle.loads(pickle.dumps(job)), task, 0, [numbered([task])])
    assert len(list((tmp_path / "s" / IDENTITY_DIRECTORY).iterdir())) == 1
    abort_job(job)
    assert files_below(tmp_path / "disk") == []


def test_an_identity_that_says_nothing(original, disk):
    (identity,) = (original / IDENTITY_DIRECTORY).iterdir()
    identity.write_bytes(b"{}")
    append(original, None, 9, mode="overwrite")
    with pytest.raises(CorruptShuffleError, match=f"{identity.name}: does not say which shuffle"):
        collect(original)
    assert len(data_files(disk)) == 4


# A disk that is not mounted -----------------------------------------------------------------------


@pytest.fixture
def deleted(original, disk):
    """Two of four rows of the only file on the disk were deleted: what stays is not there."""
    append(original, disk, 0, 1, 2, 3, mode="overwrite")
    collect(original)
    assert len(data_files(disk)) == 1
    return delete_rows(original, {"k": [0, 2]}, options=PLAIN)


def unmount(disk):
    """What it leaves: the mount point, which is empty."""
    disk.rename(disk.with_name("unmounted"))
    disk.mkdir()


def mount(disk):
    shutil.rmtree(disk, ignore_errors=True)
    disk.with_name("unmounted").rename(disk)


@guarantee("unmounted disks")
@pytest.mark.parametrize("what_is_there", ["an empty directory", "nothing", "another disk"])
def test_a_disk_that_is_not_mounted_is_not_gone(original, disk, deleted, what_is_there):
    unmount(disk)
    if what_is_there == "nothing":
        disk.rmdir()
    elif what_is_there == "another disk":
        append(original.with_name("another"), disk, 5)
    for _ in range(2):
        report = collect(original)
        assert holds(report, "unseen") == [("unseen", str(disk))]
        assert "mount it" in str(report)
        status = erasure_status(original, deleted)
        assert not status.is_gone
        assert status.unreachable == (str(disk),)
    mount(disk)
    assert not erasure_status(original, deleted).is_gone
    report = collect(original)
    assert report.holds == ()
    assert erasure_status(original, deleted).is_gone
    assert files_below(disk) == []
    assert sorted_values(original) == [1, 3]


@pytest.mark.slow
@guarantee("unmounted disks")
def test_a_job_that_writes_while_the_disk_is_away(original, disk, deleted):
    """It makes the directory on the disk below, with an id of its own."""
    unmount(disk)
    append(original, disk, 5)
    assert len(data_files(disk)) == 1
    assert not status_after(original, deleted).is_gone
    append(original, None, 9, mode="overwrite")
    assert holds(collect(original), "unseen") == [("unseen", str(disk))]
    assert data_files(disk) == [], "what was written there is seen"
    mount(disk)
    collect(original)
    assert files_below(disk) == []
    assert erasure_status(original, deleted).is_gone


@guarantee("unmounted disks")
def test_an_abort_while_the_disk_is_away(original, disk):
    job = unfinished(original, disk)
    assert len(data_files(disk)) == 5
    unmount(disk)
    abort_job(job, alone=True)
    assert (original / MAP_OUTPUT_DIRECTORY / job.job_id / ROOT_LIST_NAME).exists()
    mount(disk)
    collect(original)
    assert len(data_files(disk)) == 4
    assert sorted_values(original) == [0, 1, 2, 3]


def test_a_directory_that_takes_no_id_gets_no_files(tmp_path):
    """Nobody would know whether what is not found there is gone."""
    disk = tmp_path / "disk"
    disk.mkdir()
    (disk / DIRECTORY_ID_NAME).write_text("not an id")
    receipt = append(tmp_path / "s", disk, 1, 2)
    assert receipt.counters["failed_directories"] == 1
    assert [one.name for one in disk.iterdir()] == [DIRECTORY_ID_NAME]
    append(tmp_path / "s", None, 3, mode="overwrite")
    assert collect(tmp_path / "s").holds == ()


@pytest.mark.slow
@guarantee("unmounted disks")
@pytest.mark.parametrize("lists_are", ["those of a copy", "removed by hand"])
def test_a_receipt_knows_the_disk_whose_files_it_names(original, disk, lists_are):
    """Another directory at the path is another disk, also where no list of roots says it."""
    path = original
    if lists_are == "those of a copy":
        path = original.with_name("copy")
        shutil.copytree(original, path)
        relocate_shuffle(path, "copied")
    receipt = delete_rows(path, {"k": [2]}, options=PLAIN)
    append(path, None, 9)
    merge_shuffle(path, policy=ALWAYS, options=PLAIN, by="map_output")
    for list_ in path.rglob(ROOT_LIST_NAME):
        list_.unlink()
    assert not erasure_status(path, receipt).is_gone
    disk.rename(disk.with_name("unmounted"))
    disk.mkdir()
    assert not erasure_status(path, receipt).is_gone
    append(path, disk, 5)  # which gives the mount point an id of its own
    status = erasure_status(path, receipt)
    assert (status.is_gone, status.unreachable) == (False, (str(disk),))
    assert type(receipt).from_json(receipt.to_json()) == receipt


@guarantee("copies and local directories")
def test_one_whose_files_were_taken_over_while_it_was_away_is_the_copy_now(original, disk):
    copy, away = original.with_name("copy"), original.with_name("away")
    shutil.copytree(original, copy)
    original.rename(away)
    relocate_shuffle(copy, "moved")
    away.rename(original)
    append(original, None, 9, mode="overwrite")
    assert holds(collect(original))
    with pytest.raises(OptionError, match="was not moved"):
        relocate_shuffle(original, "moved")
    relocate_shuffle(original, "copied")
    assert not holds(collect(original))
    assert sorted_values(copy) == [0, 1, 2, 3]
    assert len(data_files(disk)) == 4
    with pytest.raises(OptionError, match="is where it was written"):
        relocate_shuffle(copy, "copied")
