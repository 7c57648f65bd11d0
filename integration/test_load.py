"""The loads end by themselves, whatever hangs in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from integration.load.crowd import run_crowd

if TYPE_CHECKING:
    from pathlib import Path


def test_one_of_a_crowd_that_does_not_end_is_killed_and_named(tmp_path: Path):
    crowd = run_crowd(tmp_path, seconds=0.1, readers=1, writers=1, patience_s=0)
    (named,) = (one for one in crowd.problems if one.startswith("merger and collector (process "))
    assert named.endswith("had not ended 0 s after it was to stop, and was killed")
