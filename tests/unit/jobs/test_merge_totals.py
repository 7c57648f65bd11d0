"""Totals of a merged version are those of its map outputs, whatever its tasks have said of them."""

from dataclasses import replace

import pytest

from arrow_format import MergePolicy, open_shuffle
from arrow_format.jobs.merge import merge_with
from tests.support.small_shuffles import FAST, N, numbered, write_tasks


def merge_by(run, path, by, rewrite):
    """Merge, with what runs the tasks."""
    policy, nothing = (
        MergePolicy(rewrite=rewrite),
        {"expected_version": None, "storage_options": None},
    )
    return merge_with(run, path, by=by, policy=policy, options=FAST, **nothing)


def totals_of_files(shuffle):
    """Rows of each subpartition, by what is read."""
    return [shuffle.subpartition(number).read_all().num_rows for number in range(N)]


@pytest.mark.parametrize("rewrite", ["always", "never"])
def test_they_are_read_from_the_indexes_when_a_status_has_none(path, rewrite):
    for start, ids in enumerate(([0, 1, 1], [1, 3], [3, 3, 3])):
        write_tasks(path, [[numbered(ids, 10 * start)]], N, mode="append")
    before = open_shuffle(path)

    def run(job, work):
        for number in range(work.num_tasks):
            status = work.write(job, number, 0)
            yield replace(status, subpartition_rows=None, subpartition_bytes=None)

    report = merge_by(run, path, "map_output", rewrite)
    assert report.version == 4
    merged = open_shuffle(path)
    assert merged.subpartition_rows.to_pylist() == before.subpartition_rows.to_pylist()
    assert totals_of_files(merged) == merged.subpartition_rows.to_pylist() == [1, 3, 0, 4, 0]
    num_bytes = sum(file.data_bytes for output in merged.map_outputs for file in output.files)
    assert sum(merged.subpartition_bytes.to_pylist()) == num_bytes


def test_a_range_without_rows_has_no_file(path):
    """As of subpartitions that were weighed by what another version had."""
    for start, ids in enumerate(([0, 3], [3, 0], [0, 0])):
        write_tasks(path, [[numbered(ids, 10 * start)]], N, mode="append")
    empty = []

    def run(job, work):
        (piece,) = work.pieces
        finer = replace(work, pieces=(replace(piece, first=1, end=3),))
        empty.append(finer.write(job, 0, 1))
        yield work.write(job, 0, 0)

    merge_by(run, path, "subpartition", "always")
    (status,) = empty
    assert status.output.files == ()
    assert status.subpartition_rows.tolist() == status.subpartition_bytes.tolist() == [0] * N
    assert totals_of_files(open_shuffle(path)) == [4, 0, 0, 2, 0]
