"""Explanations of chains: what is read of each shuffle is what a read reads."""

import pyarrow as pa
import pytest

from arrow_shuffle import BroadcastPartitioner
from tests.support.operations import written

ROWS = pa.table({"k": list(range(100)), "a": list(range(100))})


@pytest.fixture
def rows(tmp_path):
    return written(tmp_path / "rows", ROWS, "k", n=8)


def test_subpartitions_of_a_chain_restrict_what_it_is_made_of(tmp_path, rows):
    others = written(tmp_path / "others", ROWS.rename_columns(["k", "b"]), "k", n=8)
    joined = rows.join(others)
    for asked in (
        joined.select(subpartitions=[2, 3]),
        joined.select(subpartitions=[2, 3]).aggregate("k").select(),
        joined.select(subpartitions=[1, 2, 3]).aggregate("k").select(subpartitions=[2, 3]),
    ):
        reads = [str(read) for _, read in asked.explain().reads]
        assert len(reads) == 2
        assert all(" ".join(read.split()).count("subpartitions 2 of 2") == 1 for read in reads), (
            reads
        )


def test_a_broadcast_shuffle_of_fewer_subpartitions(tmp_path, rows):
    small = written(
        tmp_path / "small", ROWS.rename_columns(["k", "b"]), n=4, partitioner=BroadcastPartitioner()
    )
    asked = rows.select(subpartitions=7).join(small)
    assert asked.to_table().num_rows
    assert [path for path, _ in asked.explain().reads] == [rows.path, small.path]
