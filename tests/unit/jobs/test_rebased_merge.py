"""A merge that others overtake: masks go along, and only what is gone is left out."""

import pytest

from arrow_format import (
    CommitConflictError,
    MergePolicy,
    delete_rows,
    merge_shuffle,
    open_shuffle,
    rollback_shuffle,
    write_shuffle,
)
from arrow_format.jobs import mask_rows, rebased_merge
from arrow_format.jobs.merge_work import MapOutputMerges, SubpartitionMerge
from arrow_format.write.merge_policy import PlannedMerge
from tests.support.guarantees import guarantee
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
BY_SUBPARTITION = {"by": "subpartition"}


def meanwhile(monkeypatch, act):
    """Do something after each task of a merge has written its file."""
    for kind in (MapOutputMerges, SubpartitionMerge):

        def write(self, job, number, attempt, *rest, real=kind.write):
            status = real(self, job, number, attempt, *rest)
            act(number)
            return status

        monkeypatch.setattr(kind, "write", write)


@guarantee("masked rows")
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
    report = merge_shuffle(path, options=TINY, **how)
    assert report.version == open_shuffle(path).version
    assert report.plan.merges
    assert len({output.job_id for output in open_shuffle(path).map_outputs}) == 1
    check(path, expected)
    mask(path, [9])
    check(path, without(expected, [9]))


@guarantee("masked rows")
def test_a_mask_at_each_moment_starves_no_merge(tmp_path, monkeypatch):
    """Whoever puts masks on every input is faster at each try of the commit."""
    path = tmp_path / "s"
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
    merge_shuffle(path, options=TINY, **ALWAYS)
    assert not keys
    assert len(open_shuffle(path).map_outputs) == 1
    check(path, without(expected, range(10)))


@guarantee("concurrent merge")
@pytest.mark.parametrize("lost", [0, 1])
def test_only_the_merge_whose_inputs_are_gone_is_left_out(tmp_path, monkeypatch, lost):
    path = tmp_path / "s"
    for start in range(0, 1600, 400):  # no key is in two files
        write_shuffle(
            rows(start, num_keys=1 << 40), path, keys="k", num_subpartitions=N, mode="append",
            options=TINY,
        )  # fmt: skip
    pairs = tuple(PlannedMerge(rewrite=True, first=first, end=first + 2) for first in (0, 2))
    monkeypatch.setattr(MergePolicy, "plan_version", lambda *_: pairs)
    key, masked = 800 * lost, 800 * (1 - lost)
    expected = without(contents(path), [key, masked])

    def act(number):
        if number == 1:
            delete_rows(path, {"k": [key]}, options=TINY)
            mask(path, [masked])

    meanwhile(monkeypatch, act)
    merge_shuffle(path, options=TINY)
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


@guarantee("masked rows")
@pytest.mark.parametrize(("how", "goes"), [(NEVER, True), (ALWAYS, False)])
def test_sorted_rows_that_were_joined_are_merged_again(tmp_path, monkeypatch, how, goes):
    path = tmp_path / "s"
    for start in (0, 1000):
        append(path, start, sort_by=[("v", "descending")])
    expected = without(contents(path), [4])
    meanwhile(monkeypatch, lambda number: mask(path, [4]))
    if goes:
        merge_shuffle(path, options=TINY, **how)
    else:
        with pytest.raises(CommitConflictError, match="has other rows"):
            merge_shuffle(path, options=TINY, **how)
    assert contents(path) == expected


@guarantee("concurrent merge")
def test_a_merge_of_what_was_rolled_back_meanwhile_fails(tmp_path, monkeypatch):
    path = tmp_path / "s"
    append(path, 0)
    append(path, 1000)
    expected = contents(path)
    meanwhile(monkeypatch, lambda number: rollback_shuffle(path, 2))
    with pytest.raises(CommitConflictError):
        merge_shuffle(path, options=TINY, **ALWAYS)
    assert contents(path) == expected
