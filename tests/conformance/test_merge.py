"""CONFORMANCE, group "Commit": a merged version equals the one before."""

from dataclasses import replace
from itertools import pairwise

import pytest

from arrow_format import (
    MergePolicy,
    merge_shuffle,
    open_shuffle,
)
from arrow_format.format.regions import RegionKind
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.delta import decoded
from arrow_format.log.outputs import key_of
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.storage.open import PosixStorage
from arrow_format.write.rewrite_plan import MIN_FAN_IN
from tests.support.exhaustive import exhaustive
from tests.support.guarantees import guarantee
from tests.support.merges import (
    ALWAYS,
    CODECS,
    NEVER,
    POLICIES,
    TINY,
    N,
    append_version,
    contents,
    files_of,
)
from tests.support.small_shuffles import (
    files_below,
    numbered,
    root_numbers,
    write_tasks,
)


def index_of(path, file):
    return PartitionedFileReader(PosixStorage(str(path)), file)


@guarantee("merged rows")
@POLICIES
@exhaustive(least=4)
@CODECS
@pytest.mark.parametrize("broadcast", [False, True], ids=["unicast", "mixed"])
def test_a_merged_version_has_the_same_rows_in_the_same_order(path, policy, codec, broadcast):
    for _ in range(3):
        append_version(path, options=replace(TINY, codec=codec), broadcast=broadcast)
    before = open_shuffle(path)
    expected = contents(before)
    told: list[int] = []
    report = merge_shuffle(path, policy=policy, options=TINY, on_bytes=told.append, by="map_output")
    merged = open_shuffle(path)
    assert contents(merged) == expected
    assert sum(told) == report.plan.num_bytes
    assert len(told) > 1, "progress is told on the way"
    assert (report.version, merged.version) == (4, 4)
    assert report.num_map_outputs == (6, 1)
    assert merged.subpartition_rows.equals(before.subpartition_rows)
    assert sum(merged.subpartition_bytes.to_pylist()) == merged.num_bytes == report.after.data_bytes
    assert merged.verify().num_rows == merged.num_rows == before.num_rows
    (file,) = files_of(merged)
    assert (report.before.num_files, report.after.num_files) == (6, 1)
    if policy is NEVER:
        assert file.num_regions == sum(one.num_regions for one in files_of(before))
    elif not broadcast:
        assert 1 < file.num_regions <= -(-report.before.num_regions // MIN_FAN_IN)
    else:
        kinds = [region.kind for region in index_of(path, file).regions]
        assert (RegionKind.UNICAST, RegionKind.UNICAST) not in set(pairwise(kinds))
    assert contents(open_shuffle(path, version=3)) == expected, "the version before stays"


def test_the_entry_names_everything(path):
    append_version(path)
    append_version(path)
    first = open_shuffle(path, 1).snapshot.newest
    report = merge_shuffle(path, policy=NEVER, options=TINY, by="map_output")
    entry = open_shuffle(path).snapshot.newest
    assert entry.operation == "merge"
    inputs = open_shuffle(path, 2).map_outputs
    assert sorted(decoded(entry.content.removed).to_pylist()) == sorted(map(key_of, inputs))
    assert entry.shuffle_id == first.shuffle_id
    assert entry.partitioner == first.partitioner
    (output,) = entry.map_outputs
    assert output.job_id == entry.job_id != first.job_id
    assert CommitLog(PosixStorage(str(path))).find_job(first.job_id).version == 1
    metadata = index_of(path, output.files[0]).metadata
    assert (metadata.job_id, metadata.map_task, metadata.attempt) == (output.job_id, 0, 0)
    assert report.plan.num_bytes == report.before.data_bytes


def test_appending_and_overwriting_go_on_after_a_merge(path):
    append_version(path)
    append_version(path)
    merge_shuffle(path, policy=ALWAYS, options=TINY, by="map_output")
    append_version(path)
    shuffle = open_shuffle(path)
    assert [output.position.version for output in shuffle.map_outputs] == [1, 4, 4]
    assert shuffle.map_outputs[0].position.last_version == 2
    expected = contents(shuffle)
    merge_shuffle(path, policy=ALWAYS, options=TINY, by="map_output")
    assert contents(open_shuffle(path)) == expected
    write_tasks(path, [[numbered([1])]], N, mode="overwrite")
    assert open_shuffle(path).num_rows == 1
    open_shuffle(path).verify()


def test_nothing_to_merge_commits_nothing(path):
    append_version(path, num_tasks=1, rows=20)
    before = files_below(path)
    report = merge_shuffle(path, by="map_output")
    assert report.plan.merges == ()
    assert (report.version, report.num_map_outputs) == (1, (1, 1))
    assert files_below(path) == before


def test_map_tasks_without_rows_and_no_rows_at_all(path):
    write_tasks(path, [[numbered([])], [numbered([1])], [numbered([])], [numbered([2], 1)]], N)
    merge_shuffle(path, policy=ALWAYS, options=TINY, by="map_output")
    assert open_shuffle(path).read().read_all()["v"].to_pylist() == [0, 1]
    assert len(open_shuffle(path).map_outputs) == 1
    write_tasks(path, [[numbered([])]] * 2, N, mode="overwrite")
    assert merge_shuffle(path, policy=ALWAYS, by="map_output").plan.merges == ()


def test_several_merges_are_one_version(path):
    for _ in range(4):
        append_version(path)
    expected = contents(open_shuffle(path))
    sizes = [file.data_bytes for file in files_of(open_shuffle(path))]
    policy = MergePolicy(rewrite="never", target_file_bytes=3 * max(sizes))
    report = merge_shuffle(path, policy=policy, options=TINY, by="map_output")
    merged = open_shuffle(path)
    assert contents(merged) == expected
    assert len(report.plan.merges) > 1
    assert report.version == 5
    assert len({output.map_task for output in merged.map_outputs}) == len(merged.map_outputs)
    merged.verify()


def test_local_directories(tmp_path, path):
    dirs = [tmp_path / name for name in ("one", "two")]
    for one in dirs:
        one.mkdir()
    options = replace(TINY, local_dirs=tuple(map(str, dirs)))
    for _ in range(2):
        append_version(path, num_tasks=4, options=options)
    append_version(path)
    before = open_shuffle(path)
    assert set(root_numbers(files_of(before), *dirs)) == {0, 1, 2}
    expected = contents(before)
    policy = MergePolicy(rewrite="never", target_file_bytes=before.num_bytes // 3)
    merge_shuffle(path, policy=policy, options=options, by="map_output")
    merged = open_shuffle(path)
    assert contents(merged) == expected
    merged.verify()
    assert set(root_numbers(files_of(merged), *dirs)) <= {0, 1, 2}


def test_a_pinned_reader_goes_on(path):
    append_version(path, num_tasks=3)
    pinned = open_shuffle(path)
    reader = pinned.subpartition(1)
    expected = contents(pinned)
    merge_shuffle(path, policy=ALWAYS, options=TINY, by="map_output")
    assert reader.read_all() == expected[1]
    assert contents(pinned) == expected


def test_sorted_shuffles_stay_sorted(path):
    sort_by = (("s", "descending"), ("v", "ascending"))
    for _ in range(2):
        append_version(path, sort_by=sort_by, rows=400)
    expected = contents(open_shuffle(path))
    num_regions = sum(file.num_regions for file in files_of(open_shuffle(path)))
    merge_shuffle(path, policy=ALWAYS, options=TINY, by="map_output")
    merged = open_shuffle(path)
    assert contents(merged) == expected
    assert files_of(merged)[0].num_regions <= num_regions // 2 + 1, "two at a time fit in here"
    merge_shuffle(
        path, policy=ALWAYS, options=replace(TINY, sort_buffer_bytes=1 << 20), by="map_output"
    )
    assert contents(open_shuffle(path)) == expected
    (file,) = files_of(open_shuffle(path))
    assert file.num_regions == 1
    for table in expected[:N]:
        order = table.sort_by([("s", "descending"), ("v", "ascending")])
        assert order.equals(table.combine_chunks())
