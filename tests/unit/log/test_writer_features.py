"""What only newer releases may write: this one reads it, and changes nothing."""

from pathlib import Path
from shutil import copytree

import pytest

from arrow_format import (
    delete_rows,
    merge_shuffle,
    open_shuffle,
    repair_shuffle,
    rollback_shuffle,
    tag_shuffle,
    untag_shuffle,
)
from arrow_format.errors import FormatVersionError
from arrow_format.log.names import entry_path
from tests.support.hostile import entry_json, forged_frame
from tests.support.logs import log_of
from tests.support.results import rows, write
from tests.support.small_shuffles import collect, files_below

KIT = Path(__file__).parents[2] / "compat" / "v1"


def test_what_only_newer_releases_may_write_is_read_and_written_no_more(tmp_path):
    for value in range(3):
        write(tmp_path, value)
    tag_shuffle(tmp_path, "one", 1)
    delete_rows(tmp_path, {"k": [1]})
    file = tmp_path / entry_path(log_of(tmp_path).newest_version())
    state = entry_json(file.read_bytes())["state"]
    file.write_bytes(forged_frame(file.read_bytes(), {"state": {**state, "writers": ["masks"]}}))
    before = files_below(tmp_path)
    assert rows(open_shuffle(tmp_path)) == [0, 2]
    for act in (
        lambda: write(tmp_path, 4),
        lambda: write(tmp_path, 4, mode="overwrite"),
        lambda: merge_shuffle(tmp_path, by="map_output"),
        lambda: delete_rows(tmp_path, {"k": [2]}),
        lambda: rollback_shuffle(tmp_path, 2),
        lambda: tag_shuffle(tmp_path, "two", 2),
        lambda: untag_shuffle(tmp_path, "one"),
        lambda: collect(tmp_path),
        lambda: collect(tmp_path, dry_run=True),
        lambda: repair_shuffle(tmp_path, dry_run=False),
    ):
        with pytest.raises(FormatVersionError, match=r"feature 'masks', which .* can be read"):
            act()
    assert files_below(tmp_path) == before


@pytest.mark.parametrize(
    "act",
    [
        lambda path: delete_rows(path, {"id": [2]}),
        lambda path: delete_rows(path, {"id": [2]}, erase=False),
        lambda path: merge_shuffle(path, by="map_output"),
        lambda path: merge_shuffle(path, by="subpartition"),
    ],
)
def test_files_of_more_subpartitions_are_not_opened_to_be_replaced(path, act):
    copytree(KIT / "rescaled" / "shuffle", path)
    with pytest.raises(FormatVersionError, match=r"feature 'rescale', which .* can be read"):
        act(path)
