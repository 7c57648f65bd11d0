"""Files of a multiple of a version's subpartitions are merged, and lose rows, like any other."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from msgspec import structs

import arrow_shuffle
from arrow_format.jobs.cleanup import publish
from arrow_format.log.commit_log import CommitLog, draft
from arrow_format.storage.open import open_storage
from arrow_shuffle import MergePolicy, open_shuffle, write_shuffle

ALWAYS = MergePolicy(rewrite="always")


def rows(first):
    return pa.table({"k": range(first, first + 500), "v": range(500)})


def append(path, first, n, mode="append", **how):
    write_shuffle(rows(first), path, keys="k", num_subpartitions=n, mode=mode, **how)


@pytest.fixture(params=[(), ("v",)], ids=["in any order", "sorted"])
def mixed(tmp_path, request):
    """Three map outputs of 16 and two of 8 subpartitions, in a version of 8."""
    path, how = tmp_path / "s", {"sort_by": request.param}
    for first in (0, 100, 200):
        append(path, first, 16, "append" if first else "errorifexists", **how)
    log = CommitLog(open_storage(path))

    def decide(view):
        shape = structs.replace(view.state.shape, num_subpartitions=8)
        return draft(view, "alter", state={"shape": shape})

    publish(log, decide, "it has fewer subpartitions")
    for first in (300, 400):
        append(path, first, 8, **how)
    return path


def stored(path):
    return Counter((row["k"], row["v"]) for row in open_shuffle(path).read().read_all().to_pylist())


def by_subpartition(path):
    shuffle = open_shuffle(path)
    return [
        [(row["k"], row["v"]) for row in shuffle.read(subpartitions=i).read_all().to_pylist()]
        for i in range(8)
    ]


def numbers(path):
    return [
        file.num_subpartitions for output in open_shuffle(path).map_outputs for file in output.files
    ]


@pytest.mark.parametrize("rewrite", ["always", "never"])
def test_a_merge_joins_files_of_one_number(mixed, rewrite):
    before = by_subpartition(mixed)
    open_shuffle(mixed).merge("map_output", policy=MergePolicy(rewrite=rewrite))
    assert numbers(mixed) == [16, 8]
    assert by_subpartition(mixed) == before
    assert not open_shuffle(mixed).verify().problems


def test_a_merge_by_subpartition_gives_all_files_the_number_of_the_version(mixed):
    before = by_subpartition(mixed)
    open_shuffle(mixed).merge("subpartition", policy=ALWAYS)
    assert {*numbers(mixed)} == {8}
    assert by_subpartition(mixed) == before
    assert not open_shuffle(mixed).verify().problems


@pytest.mark.parametrize("erase", [True, False])
def test_rows_of_keys_are_deleted(mixed, erase):
    before = stored(mixed)
    receipt = open_shuffle(mixed).delete({"k": [*range(350, 360)]}, erase=erase)
    left = Counter({row: count for row, count in before.items() if not 350 <= row[0] < 360})
    assert (receipt.num_rows, stored(mixed)) == (40, left)
    assert sum(receipt.subpartition_rows.values()) == 40
    assert numbers(mixed) == [16, 16, 16, 8, 8]
    assert not open_shuffle(mixed).verify().problems


@pytest.mark.parametrize("by", ["map_output", "subpartition"])
def test_rows_that_are_deleted_during_a_merge_are_gone(mixed, by):
    left = Counter({row: count for row, count in stored(mixed).items() if row[0] != 350})
    is_done = False

    def delete(num_bytes):
        nonlocal is_done
        if not is_done:
            is_done = True
            open_shuffle(mixed).delete({"k": [350]}, erase=False)

    try:
        open_shuffle(mixed).merge(by, policy=ALWAYS, on_bytes=delete)
    except arrow_shuffle.errors.CommitConflictError:
        assert by == "subpartition"  # no row of it can be followed
    assert stored(mixed) == left
    assert not open_shuffle(mixed).verify().problems
