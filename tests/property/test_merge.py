"""Merged is read as unmerged was: any rows, codecs, map outputs, versions, sort keys, policies."""

import tempfile
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from arrow_format import MergePolicy, merge_shuffle, open_shuffle
from arrow_format.format.regions import RegionKind
from arrow_format.keys.sort_keys import ORDERS
from arrow_format.model import BROADCAST
from arrow_format.options import MERGE_BY
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.storage.open import PosixStorage
from tests.property.test_round_trip import OPTIONS, read_with_ids
from tests.support.guarantees import guarantee
from tests.support.merges import files_of
from tests.support.own_partitioner import OwnPartitioner
from tests.support.small_shuffles import write_tasks
from tests.support.tables import frozen, tables

POLICIES = st.builds(
    MergePolicy,
    rewrite=st.sampled_from(["never", "auto", "always"]),
    min_regions=st.sampled_from([2, 8]),
    max_fan_in=st.sampled_from([2, 3, 128]),
    target_file_bytes=st.sampled_from([1_000, 5_000, 1 << 30]),
)
ROWS = st.lists(st.integers(0, 3), max_size=4)
"""Which rows of the table a map task writes: one slice of it after the other."""


def by_row(everyone):
    """Send rows by their number `v`, every so many of them to everyone."""

    def place(batch, num_subpartitions):
        v = batch["v"].to_numpy()
        ids = v * 7 % num_subpartitions
        if everyone:
            ids[v % everyone == 0] = BROADCAST
        return ids

    return OwnPartitioner(place)


@guarantee("merged rows")
@given(
    tables(max_rows=30),
    st.sampled_from([1, 5, 300]),
    st.lists(st.tuples(st.lists(ROWS, min_size=1, max_size=3), OPTIONS), min_size=1, max_size=3),
    st.sampled_from([0, 3]),
    st.sampled_from([(), *((("v", order),) for order in ORDERS)]),
    POLICIES,
    st.sampled_from(MERGE_BY),
    OPTIONS,
)
def test_rows_and_their_order_stay(table, n, versions, everyone, sort_by, policy, by, options):
    quarter = table.num_rows // 4 + 1
    with tempfile.TemporaryDirectory() as directory:
        for tasks, how in versions:
            parts = [
                [
                    batch
                    for part in rows
                    for batch in table.slice(part * quarter, quarter).to_batches()
                ]
                for rows in tasks
            ]
            write_tasks(
                directory, parts, n, mode="append", schema=table.schema,
                partitioner=by_row(everyone), options=how, sort_by=sort_by,
            )  # fmt: skip
        before = open_shuffle(directory)
        expected = [(s, frozen(row)) for s, row in read_with_ids(before)]
        if by == "subpartition" and policy.rewrite == "never":
            policy = MergePolicy(rewrite="always")
        report = merge_shuffle(directory, by=by, policy=policy, options=options)
        merged = open_shuffle(directory)

        assert [(s, frozen(row)) for s, row in read_with_ids(merged)] == expected
        assert merged.subpartition_rows.equals(before.subpartition_rows)
        assert merged.schema.equals(before.schema)
        assert merged.verify().num_rows == before.num_rows
        assert merged.version == before.version + bool(report.plan.merges)
        if by == "map_output":
            assert len(merged.map_outputs) <= len(before.map_outputs)
        elif report.plan.merges:
            check_each_subpartition_is_in_one_place(directory, merged, everyone)
        for s in range(0, n, 97):
            alone = [frozen(row) for row in merged.subpartition(s).read_all().to_pylist()]
            assert alone == [row for one, row in expected if one == s]
        check_broadcast_is_stored_once(directory, before, merged)


def check_each_subpartition_is_in_one_place(directory, merged, everyone):
    """Without broadcast rows; with them a file for each range between them."""
    files = files_of(merged)
    assert all(file.num_regions == 1 for file in files)
    assert all(file.num_broadcast_rows in (0, file.num_rows) for file in files)
    if not everyone:
        for before, after in pairwise(files):
            assert before.end_subpartition <= after.first_subpartition


def check_broadcast_is_stored_once(directory, before, merged):
    storage = PosixStorage(directory)

    def broadcast_rows(shuffle):
        return sum(
            region.num_rows
            for file in files_of(shuffle)
            for region in PartitionedFileReader(storage, file).regions
            if region.kind is RegionKind.BROADCAST
        )

    assert broadcast_rows(merged) == broadcast_rows(before)
