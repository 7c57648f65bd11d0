"""A merge that others overtake: masks go along, and only what is gone is left out."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import (
    CommitConflictError,
    MergePolicy,
    delete_rows,
    merge_shuffle,
    rollback_shuffle,
)
from arrow_format.jobs import mask_rows, rebased_merge
from arrow_format.jobs.merge_work import MapOutputMerges, SubpartitionMerge
from arrow_format.write.merge_policy import PlannedMerge
from arrow_shuffle import open_shuffle
from tests.support.exhaustive import exhaustive
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import write_rows
from tests.unit.jobs.test_mask_rows import (
    TINY,
    N,
    append,
    append_with_broadcasts,
    check,
    contents,
    mask,
    rows,
    without,
)

NEVER, ALWAYS = ({"policy": MergePolicy(rewrite=rewrite)} for rewrite in ("never", "always"))
BY_SUBPARTITION = {**ALWAYS, "by": "subpartition"}


def meanwhile(monkeypatch, act):
    """Do something after each task of a merge has written its file."""
    for kind in (MapOutputMerges, SubpartitionMerge):

        def write(self, job, number, attempt, *rest, real=kind.write):
            status = real(self, job, number, attempt, *rest)
            act(number)
            return status

        monkeypatch.setattr(kind, "write", write)


@pytest.mark.slow
@guarantee("masked rows")
@exhaustive()
@pytest.mark.parametrize("max_inside", [4096, 0])
@pytest.mark.parametrize("writes", [append, append_with_broadcasts])
@pytest.mark.parametrize("how", [NEVER, ALWAYS, BY_SUBPARTITION])
def test_masks_put_meanwhile_go_along(tmp_path, monkeypatch, writes, how, max_inside):
    monkeypatch.setattr(mask_rows, "MAX_INSIDE_BYTES", max_inside)
    path = tmp_path / "s"
    for start in range(0, 4000, 1000):
        writes(path, start)
    mask(path, [3, 5, 8])
    expected = without(contents(path), [4, 6, 7, 30])

    def act(number):
        if number == 0:
            mask(path, [4, 6])
            mask(path, [7, 30])

    meanwhile(monkeypatch, act)
    report = merge_shuffle(path, options=TINY, **{"by": "map_output", **how})
    assert report.version == open_shuffle(path).version
    assert report.plan.merges
    assert len({output.job_id for output in open_shuffle(path).map_outputs}) == 1
    check(path, expected)
    mask(path, [9])
    check(path, without(expected, [9]))


@pytest.mark.slow
@guarantee("masked rows")
def test_a_mask_at_each_moment_starves_no_merge(path, monkeypatch):
    """Whoever puts masks on every input is faster at each try of the commit."""
    for start in range(0, 3000, 1000):
        append(path, start)
    expected = contents(path)
    keys = list(range(10))
    real = rebased_merge.RebasedMerge.fitted

    def fitted(self, *arguments):
        found = real(self, *arguments)
        if keys:
            mask(path, [keys.pop()])
        return found

    monkeypatch.setattr(rebased_merge.RebasedMerge, "fitted", fitted)
    merge_shuffle(path, options=TINY, **{"by": "map_output", **ALWAYS})
    assert not keys
    assert len(open_shuffle(path).map_outputs) == 1
    check(path, without(expected, range(10)))


@pytest.mark.slow
@guarantee("concurrent merge")
@pytest.mark.parametrize("lost", [0, 1])
def test_only_the_merge_whose_inputs_are_gone_is_left_out(path, monkeypatch, lost):
    for start in range(0, 1600, 400):  # no key is in two files
        table = rows(start, num_keys=1 << 40)
        write_rows(path, table, "k", n=N, mode="append", options=TINY)
    pairs = tuple(PlannedMerge(rewrite=True, first=first, end=first + 2) for first in (0, 2))
    monkeypatch.setattr(MergePolicy, "plan_version", lambda *_: pairs)
    key, masked = 800 * lost, 800 * (1 - lost)
    expected = without(contents(path), [key, masked])

    def act(number):
        if number == 1:
            delete_rows(path, {"k": [key]}, options=TINY)
            mask(path, [masked])

    meanwhile(monkeypatch, act)
    merge_shuffle(path, options=TINY, by="map_output")
    outputs = open_shuffle(path).map_outputs
    assert [len(output.files) for output in outputs] == [1, 1, 1]
    check(path, expected)
    named = {file.data_path for output in outputs for file in output.files}
    merged = [
        output for output in outputs if output.position.last_version > output.position.version
    ]
    (job,) = {output.job_id for output in merged}
    left = {str(each.relative_to(path)) for each in (path / "map_outputs" / job).glob("*.data")}
    assert left <= named


@pytest.mark.slow
@guarantee("masked rows")
@pytest.mark.parametrize(("how", "goes"), [(NEVER, True), (ALWAYS, False)])
def test_sorted_rows_that_were_joined_are_merged_again(path, monkeypatch, how, goes):
    for start in (0, 1000):
        append(path, start, sort_by=[("v", "descending")])
    expected = without(contents(path), [4])
    meanwhile(monkeypatch, lambda number: mask(path, [4]))
    if goes:
        merge_shuffle(path, options=TINY, **{"by": "map_output", **how})
    else:
        with pytest.raises(CommitConflictError, match="has other rows"):
            merge_shuffle(path, options=TINY, **{"by": "map_output", **how})
    assert contents(path) == expected


def append_halves(path, **how):
    """Write two map outputs of 100 rows of each of two subpartitions; return two keys of each."""
    options = replace(TINY, sort_buffer_bytes=1 << 20)
    table = pa.table({"k": np.arange(40)})
    write_rows(f"{path}-keys", table, "k", n=2, options=options)
    keys = [open_shuffle(f"{path}-keys").subpartition(i).read_all()["k"][:2] for i in range(2)]
    ids = np.tile(np.concatenate(keys), 50)
    for start in range(2):
        v = np.random.default_rng(start).permutation(200)
        rows = pa.table({"k": ids, "v": v})
        write_rows(path, rows, "k", n=2, mode="append", options=options, **how)
    return [each.to_pylist() for each in keys]


@guarantee("masked rows")
def test_sorted_rows_that_were_joined_may_be_in_regions_as_large_as_before(path, monkeypatch):
    ((key, _), _) = append_halves(path, sort_by="v")
    expected = without(contents(path), [key])
    monkeypatch.setattr(MergePolicy, "range_bytes", lambda *_: 400)
    meanwhile(monkeypatch, lambda number: mask(path, [key]))
    with pytest.raises(CommitConflictError, match="has other rows"):
        merge_shuffle(path, options=TINY, **BY_SUBPARTITION)
    assert contents(path) == expected


@guarantee("masked rows")
def test_a_new_file_of_which_no_row_is_left_is_not_named(path, monkeypatch):
    first, _ = append_halves(path)
    expected = without(contents(path), first)
    monkeypatch.setattr(MergePolicy, "range_bytes", lambda *_: 400)
    meanwhile(monkeypatch, lambda number: mask(path, first) if number == 0 else None)
    report = merge_shuffle(path, options=TINY, **BY_SUBPARTITION)
    assert report.plan.num_tasks == 2
    shuffle = open_shuffle(path)
    assert len(shuffle.map_outputs) == 1
    assert contents(path) == expected
    assert sum(shuffle.subpartition_bytes.to_pylist()) == shuffle.num_bytes


@guarantee("concurrent merge")
def test_a_merge_of_what_was_rolled_back_meanwhile_fails(path, monkeypatch):
    append(path, 0)
    append(path, 1000)
    expected = contents(path)
    meanwhile(monkeypatch, lambda number: rollback_shuffle(path, 2))
    with pytest.raises(CommitConflictError):
        merge_shuffle(path, options=TINY, **{"by": "map_output", **ALWAYS})
    assert contents(path) == expected
