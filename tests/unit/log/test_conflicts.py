"""Each pair of operations: what one does where the other is committed while it is under way."""

import itertools
import shutil
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from arrow_format.errors import CommitConflictError, OptionError, ShuffleError
from arrow_format.jobs.alter import drop_columns
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.garbage import _Collection
from arrow_format.jobs.merge import merge_shuffle
from arrow_format.jobs.replacement import Replacement, replace_outputs
from arrow_format.jobs.rescale import rescale_shuffle
from arrow_format.jobs.rollback import rollback_shuffle
from arrow_format.jobs.tags import tag_shuffle
from arrow_format.jobs.target import open_target
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.log.conflicts import BROKEN_BY, NEEDS, Need
from arrow_format.read.shuffle import open_shuffle
from arrow_format.storage.open import open_storage
from arrow_format.streaming.consumption import release_shuffle
from arrow_format.write.merge_policy import MergePolicy
from tests.support.interrupted_storage import before_first_entry
from tests.support.logs import log_of
from tests.support.small_shuffles import FAST, begin, collect, numbered, run, values, write_tasks

ROOT = Path(__file__).parents[3]
ALL = MergePolicy(rewrite="always")
BY_P = HashPartitioner("p")
OTHER_N = 3
NEWEST = 4
REPLACED = [0, 1]
NEW = itertools.count(100, 10)


@pytest.fixture(scope="module", params=[None, ("p", "v")], ids=["", "unique"])
def made(request, tmp_path_factory):
    """Version 1 of three subpartitions, then one of five and two that append to it."""
    path = tmp_path_factory.mktemp("made") / "shuffle"
    how = {"partitioner": BY_P}
    write_tasks(path, [[numbered([0, 1])]], OTHER_N, **how)
    write_tasks(path, [[numbered(REPLACED, 10)]], 5, mode="overwrite", unique=request.param, **how)
    write_tasks(path, [[numbered([2, 3], 20)]], 5, mode="append", **how)
    write_tasks(path, [[numbered([4, 1], 30)]], 5, mode="append", **how)
    return path


@pytest.fixture
def path(made, path):
    shutil.copytree(made, path)
    return path


def write(path, mode, expected=None, n=5, *, pending=False):
    unique = ("p", "v") if mode == "upsert" else ()
    job = begin(path, n=n, partitioner=BY_P, unique=unique)
    open_target(job, mode, expected_version=expected)
    # An append has rows that no other write has, and an upsert replaces a whole map output.
    rows = run(job, 0, REPLACED, start=10 if mode == "upsert" else next(NEW))
    commit_job(job, [rows], mode=mode, pending=pending, expected_version=expected)


def skip_unless_possible(path, *operations):
    """What waits for a flush has no identity, and without one nothing is replaced."""
    if open_shuffle(path).unique:
        if "pending" in operations:
            pytest.skip("refused, see test_upsert")
    elif "upsert" in operations:
        pytest.skip("refused, see test_upsert")


def delete(path, expected=None):
    shuffle = open_shuffle(path)
    nought = np.zeros(5, np.int64)
    change = Replacement((shuffle.map_outputs[0],), ())
    replace_outputs("delete", shuffle, FAST, 1, lambda _: ([change], (nought, nought)), expected)


def expire(path):
    """Let all but the newest version expire; jobs that are under way go on."""
    time.sleep(0.002)
    collection = _Collection(open_storage(path), timedelta(0))
    collection._expire(collection._plan())
    collection._remove_files(collection._plan())


DO = {
    "append": lambda path, **how: write(path, "append", **how),
    "upsert": lambda path, **how: write(path, "upsert", **how),
    "overwrite": lambda path, **how: write(path, "overwrite", n=OTHER_N, **how),
    "merge": lambda path, expected=None: merge_shuffle(
        path, policy=ALL, options=FAST, expected_version=expected, by="map_output"
    ),
    "delete": delete,
    # To the version of another shape.
    "rollback": lambda path, expected=None: rollback_shuffle(path, 1, expected_version=expected),
    "alter": lambda path, expected=None: drop_columns(path, "s", expected_version=expected),
    "rescale": lambda path, expected=None: rescale_shuffle(path, 15, expected_version=expected),
    "release": lambda path, expected=None: release_shuffle(path, expected_version=expected),
    "expire": expire,
    "tag": lambda path: tag_shuffle(path, "first", 1),
    "pending": lambda path: write(path, "append", pending=True),
}


def while_under_way(path, operation, meanwhile, **how):
    """Do one thing, and another in the moment before its first entry would be put."""
    with before_first_entry(lambda: DO[meanwhile](path)):
        DO[operation](path, **how)


@pytest.mark.parametrize("meanwhile", DO)
@pytest.mark.parametrize("operation", NEEDS)
def test_an_operation_is_rebased_over_all_that_leaves_what_it_needs(path, operation, meanwhile):
    breaks = {need for need in NEEDS[operation] if meanwhile in BROKEN_BY[need]} - {Need.EXPECTED}
    skip_unless_possible(path, operation, meanwhile)
    log = log_of(path)
    if not breaks:
        while_under_way(path, operation, meanwhile)
        return
    with pytest.raises(ShuffleError):
        while_under_way(path, operation, meanwhile)
    entries = log.records(range(NEWEST + 1, log.newest_version() + 1)).values()
    assert [entry.operation for entry in entries][:1] == [meanwhile]
    assert {entry.operation for entry in entries} <= {meanwhile, "fence", "expire"}


@pytest.mark.parametrize("meanwhile", sorted({*DO} - {"pending", "expire", "tag"}))
@pytest.mark.parametrize("operation", [name for name in NEEDS if Need.EXPECTED in NEEDS[name]])
def test_with_an_expected_version_no_rows_may_have_changed(path, operation, meanwhile):
    skip_unless_possible(path, operation, meanwhile)
    if meanwhile in BROKEN_BY[Need.EXPECTED]:
        with pytest.raises(
            CommitConflictError, match=r"expected_version=4: version 4 (was followed|has expired)"
        ):
            while_under_way(path, operation, meanwhile, expected=NEWEST)
    elif meanwhile not in {name for need in NEEDS[operation] for name in BROKEN_BY[need]}:
        while_under_way(path, operation, meanwhile, expected=NEWEST)


@pytest.mark.parametrize("operation", [name for name in NEEDS if Need.EXPECTED in NEEDS[name]])
def test_an_expected_version_is_checked_when_the_job_begins(path, operation, monkeypatch):
    monkeypatch.setattr(
        "arrow_format.write.partitioned_file.PartitionedFileWriter.__init__",
        lambda *_, **__: pytest.fail("rows were written"),
    )
    skip_unless_possible(path, operation)
    before = values(path)
    for expected, problem in [(3, "was followed by version 4"), (5, "is not there")]:
        with pytest.raises(CommitConflictError, match=problem):
            DO[operation](path, expected=expected)
    assert values(path) == before


def test_an_expected_version_that_has_expired_is_refused(path):
    write(path, "append")
    merge_shuffle(path, policy=ALL, options=FAST, by="map_output")
    collect(path)
    with pytest.raises(CommitConflictError, match="version 5 has expired, the oldest is 6"):
        write(path, "append", expected=5)
    write(path, "append", expected=6)


def test_a_merge_after_the_expected_version_does_not_count(path):
    merge_shuffle(path, policy=ALL, options=FAST, by="map_output")
    write(path, "append", expected=NEWEST)
    assert len(values(path)) == 8


def test_a_number_that_is_no_version_is_not_there(path):
    tag_shuffle(path, "first", 1)  # number 5
    merge_shuffle(path, policy=ALL, options=FAST, by="map_output")
    with pytest.raises(CommitConflictError, match="version 5 is not there, the newest is 6"):
        write(path, "append", expected=5)


def test_version_0_expects_that_there_is_none(tmp_path):
    write(tmp_path / "new", "append", expected=0)
    with pytest.raises(CommitConflictError, match="means that there is none yet, and the newest"):
        write(tmp_path / "new", "append", expected=0)


@pytest.mark.parametrize("expected", [-1, True, "4", 1.0])
def test_an_expected_version_is_a_number(path, expected):
    for operation in ("append", "merge", "rollback", "release"):
        with pytest.raises(OptionError, match="expected_version="):
            DO[operation](path, expected=expected)


def test_a_merge_of_what_was_rolled_back_to_is_a_conflict(path):
    # The same map outputs, in another place of reading order.
    with (
        pytest.raises(CommitConflictError, match="rolled back"),
        before_first_entry(lambda: rollback_shuffle(path, NEWEST)),
    ):
        merge_shuffle(path, policy=ALL, options=FAST, by="map_output")
    assert values(path) == values(path, NEWEST)


def test_the_guide_has_the_rules():
    guide = (ROOT / "docs/guide/long-lived-tables.md").read_text("utf-8")
    for operation, needs in NEEDS.items():
        others = [need for need in needs if need is not Need.EXPECTED]
        breaking = sorted({f"`{name}`" for need in others for name in BROKEN_BY[need]})
        cells = (
            f"`{operation}`",
            "; ".join(need.value for need in others) or "nothing",
            ", ".join(breaking) or "none",
            "yes" if Need.EXPECTED in needs else "no",
        )
        assert f"| {' | '.join(cells)} |\n" in guide
