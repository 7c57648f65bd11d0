"""What is worth merging, decided from numbers alone."""

import pickle
from dataclasses import replace
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format import MergePolicy, OptionError
from arrow_format.model import MapOutput, Mask, PartitionedFile
from arrow_format.write.merge_policy import Facts, PlannedMerge

MB = 1 << 20
first = attrgetter("first")
POLICY = MergePolicy(target_file_bytes=100 * MB)


def file_of(data_bytes, num_regions=1, index_bytes=1_000):
    return PartitionedFile("x", 10, num_regions, data_bytes, data_bytes * 4, index_bytes, 0, 0)


def output_of(*files):
    return MapOutput("job", 0, 0, files)


def outputs_of(*sizes, num_regions=1):
    return [output_of(file_of(size, num_regions)) for size in sizes]


def append(first, end):
    return PlannedMerge(rewrite=False, first=first, end=end)


def rewrite(first, end):
    return PlannedMerge(rewrite=True, first=first, end=end)


def test_few_regions_are_left_alone():
    assert POLICY.plan_map_task([file_of(1_000, 7)], 20_000) is None
    assert POLICY.plan_map_task([file_of(1_000, 8)], 20_000) == rewrite(0, 1)
    assert POLICY.plan_map_task([], 20_000) is None


def test_regions_with_long_reads_are_left_alone():
    """23 regions of `lineitem`: 40 KB for each subpartition at n = 200, 4 KB at n = 2,000."""
    lineitem = [file_of(185_000_000, 23)]
    assert POLICY.plan_map_task(lineitem, 200) is None
    assert POLICY.plan_map_task(lineitem, 2_000) == rewrite(0, 1)


def test_always_and_never():
    always, never = MergePolicy(rewrite="always"), MergePolicy(rewrite="never")
    assert always.plan_map_task([file_of(1 << 40, 2)], 1) == rewrite(0, 1)
    assert always.plan_map_task([file_of(5, 1)], 1) is None, "one region is as few as there can be"
    assert never.plan_map_task([file_of(5, 1_000)], 20_000) is None


def test_all_files_of_a_map_task_become_one():
    assert POLICY.plan_map_task([file_of(1_000, 5), file_of(1_000, 3)], 9) == rewrite(0, 2)


def test_indexes_that_would_not_fit_into_memory():
    large = file_of(MB, 5_000, index_bytes=20 * MB)
    assert POLICY.plan_map_task([large], 20_000) == rewrite(0, 1)
    assert POLICY.plan_map_task([large, large], 20_000) is None
    assert MergePolicy(rewrite="always").plan_map_task([large, large], 20_000) is None
    assert MergePolicy(rewrite="never").plan_version([output_of(large, large)], 1) == ()
    three = [output_of(large), *outputs_of(MB, MB)]
    assert MergePolicy(rewrite="never").plan_version([*three, output_of(large)], 1) == (
        append(0, 3),
    )


def test_small_map_outputs_are_appended_up_to_the_target():
    sizes = [40 * MB, 40 * MB, 40 * MB, 10 * MB, 10 * MB]
    assert POLICY.plan_version(outputs_of(*sizes), 2) == (append(0, 2), append(2, 5))


def test_a_large_map_output_is_not_copied_for_the_sake_of_small_ones():
    sizes = [MB, 60 * MB, MB, MB, 50 * MB, MB]
    assert POLICY.plan_version(outputs_of(*sizes), 2) == (append(2, 4),)


def test_a_large_map_output_of_many_files_is_not_copied_either():
    large = output_of(file_of(90 * MB), file_of(90 * MB))
    small = output_of(file_of(2 * MB), file_of(2 * MB))
    assert POLICY.plan_version([large], 2) == ()
    assert POLICY.plan_version([small], 2) == (append(0, 1),)


def test_rewriting_is_decided_for_what_becomes_one_file():
    """Each map task wrote one region; together they are many."""
    outputs = outputs_of(*[MB] * 12)
    assert POLICY.plan_version(outputs, 2) == (append(0, 12),)
    assert POLICY.plan_version(outputs, 2_000) == (rewrite(0, 12),)
    large = outputs_of(500 * MB, num_regions=100)
    assert POLICY.plan_version(large, 2_000) == (rewrite(0, 1),)


@pytest.mark.parametrize("outputs", [[], outputs_of(MB), [output_of()], [output_of()] * 3])
def test_nothing_to_do(outputs):
    assert MergePolicy(rewrite="always").plan_version(outputs, 5) == ()


def test_map_outputs_without_rows_go_with_their_neighbours():
    outputs = [output_of(), *outputs_of(MB), output_of(), *outputs_of(MB)]
    assert POLICY.plan_version(outputs, 2) == (append(0, 4),)


SIZES = st.lists(st.sampled_from([0, 1, MB, 30 * MB, 50 * MB, 300 * MB]), max_size=30)


@given(SIZES, st.sampled_from(["auto", "always", "never"]), st.sampled_from([1, 20_000]))
def test_merges_are_disjoint_in_order_and_of_a_file_each(sizes, how, n):
    outputs = outputs_of(*sizes)
    policy = MergePolicy(rewrite=how, target_file_bytes=100 * MB)
    end, merged = 0, set()
    for merge in policy.plan_version(outputs, n):
        assert end <= merge.first < merge.end <= len(outputs)
        end = merge.end
        facts = Facts.of(f for output in outputs[merge.first : end] for f in output.files)
        assert facts.num_files > 1, "every merge saves a file"
        assert facts.data_bytes <= 100 * MB or merge.end - merge.first == 1
        merged.update(range(merge.first, merge.end))
    small = {i for i, size in enumerate(sizes) if size <= 30 * MB} - merged
    assert not any(i + 1 in small for i in small), "two small neighbours are never left"


MASKED = st.lists(st.tuples(st.sampled_from([1, MB, 60 * MB, 300 * MB]), st.integers(0, 100)))


@given(
    MASKED,
    st.sampled_from(["auto", "always", "never"]),
    st.sampled_from([1, 20_000]),
    st.sampled_from([0, 20, 99, 100]),
)
def test_masks_add_merges_of_single_files_and_change_nothing_else(files, how, n, percent):
    policy = MergePolicy(rewrite=how, target_file_bytes=100 * MB, max_masked_percent=percent)
    outputs = [
        output_of(replace(file_of(size), num_rows=100 - gone, mask=Mask(gone)))
        for size, gone in files
    ]
    plan = policy.plan_version(outputs, n)
    without = policy.plan_version(outputs_of(*(size for size, _ in files)), n)
    merged = {i for merge in without for i in range(merge.first, merge.end)}
    wanted = {i for i, (_, gone) in enumerate(files) if gone > percent} - merged
    assert sorted(plan, key=first) == sorted(
        [*without, *(append(i, i + 1) for i in wanted)], key=first
    )


def test_a_map_output_of_large_indexes_is_not_joined_for_its_masks():
    large = replace(file_of(MB, 1, index_bytes=20 * MB), mask=Mask(10))
    assert POLICY.plan_version([output_of(large)], 1) == (append(0, 1),)
    assert POLICY.plan_version([output_of(large, large)], 1) == ()
    bulky = replace(file_of(90 * MB), mask=Mask(10))
    assert POLICY.plan_version([output_of(bulky, bulky)], 1) == (append(0, 1),)


def test_masks_are_reason_enough_for_a_merge_by_subpartition():
    facts = Facts(1, 1, MB, 10, 1, num_rows=100, masked_rows=21)
    assert POLICY.should_merge_by_subpartition(facts, 200)
    assert not POLICY.should_merge_by_subpartition(replace(facts, masked_rows=20), 200)
    assert not MergePolicy(rewrite="never").should_merge_by_subpartition(facts, 200)


def test_merging_what_was_merged_changes_nothing():
    merged = [output_of(file_of(90 * MB, 1)), output_of(file_of(3 * MB, 4))]
    assert POLICY.plan_version(merged, 20_000) == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rewrite", "sometimes"),
        ("min_regions", 1),
        ("min_read_bytes", 0),
        ("max_fan_in", 1),
        ("target_file_bytes", 0),
        ("max_index_bytes", "1"),
        ("max_masked_percent", 101),
    ],
)
def test_bad_values_are_named(name, value):
    with pytest.raises(OptionError, match=f"{name}={value!r}: expected"):
        MergePolicy(**{name: value})


def test_a_policy_travels():
    assert pickle.loads(pickle.dumps(POLICY)) == POLICY


def whole(data_bytes, index_bytes):
    return Facts(1_000, 1_000, data_bytes, index_bytes, 1_000_000)


def test_a_range_of_subpartitions_is_worth_its_indexes_and_fits_into_an_object():
    gb, tb = 1 << 30, 1 << 40
    policy = MergePolicy()
    assert policy.range_bytes(whole(10 * MB, MB)) == 16 * MB, "as many tasks as get work"
    assert policy.range_bytes(whole(6_400 * MB, MB)) == 100 * MB, "64 tasks"
    assert policy.range_bytes(whole(tb, MB)) == gb == policy.target_file_bytes
    assert policy.range_bytes(whole(tb, gb)) == 4 * gb, "indexes that each task reads"
    assert policy.range_bytes(whole(100 * tb, tb)) == 64 * gb, "10,000 parts of 8 MiB are more"
    assert MergePolicy(target_file_bytes=tb).range_bytes(whole(100 * tb, tb)) == tb
