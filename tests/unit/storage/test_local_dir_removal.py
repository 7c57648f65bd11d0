"""Removal of local roots beside tasks that still run: no file is left where nothing names it."""

import uuid

import pytest

from arrow_format.storage.local_dir_removal import remove_root_list
from arrow_format.storage.local_dirs import ROOT_LIST_NAME, known_roots, put_root_list, root_path
from arrow_format.storage.open import PosixStorage, open_made_directory
from arrow_format.storage.root_owner import LocalRoot, Marker, Owner, list_roots, put_marker


@pytest.mark.parametrize("which", [0, 1])
def test_the_list_stays_while_one_of_several_roots_has_a_file(tmp_path, which):
    """A task puts it after the roots were looked at, and before the list is removed."""
    job_id = uuid.uuid4().hex
    directory = f"map_outputs/{job_id}"
    paths = [root_path(str(tmp_path / disk), job_id) for disk in ("a", "b")]

    class Late(PosixStorage):
        def delete(self, path):
            root = open_made_directory(paths[which])
            put_marker(root, Marker(job_id, Owner("id", self.root, 0)), sync=False)
            root.put_if_absent("late.shuffle.data", b"x", sync=False)
            super().delete(path)

    storage = Late(str(tmp_path / "shuffle"))
    roots = list_roots(paths, sync=False)
    put_root_list(storage, directory, roots, sync=False)
    remove_root_list(storage, directory, roots)
    assert storage.stat(f"{directory}/{ROOT_LIST_NAME}") is not None


def test_a_root_that_is_named_and_listed_has_the_id_of_the_list(tmp_path):
    """By which it is told whether the disk is there."""
    storage = PosixStorage(str(tmp_path / "shuffle"))
    job_id = uuid.uuid4().hex
    paths = [root_path(str(tmp_path / disk), job_id) for disk in ("a", "b", "c")]
    listed = list_roots(paths[:2], sync=False)
    assert all(root.directory_id for root in listed)
    put_root_list(storage, f"map_outputs/{job_id}", listed, sync=False)
    known = known_roots(storage, f"map_outputs/{job_id}", paths[1:])
    assert {*known} == {*listed, LocalRoot(paths[2])}
    assert len(known) == 3
