"""``check=True`` of joins and of functions per group in Spark's tasks."""

import numpy as np
import pyarrow as pa
import pytest

from arrow_format.errors import CorruptShuffleError, OptionError
from arrow_shuffle import ColumnPartitioner, HashPartitioner, RangePartitioner, open_shuffle
from tests.support.exhaustive import exhaustive
from tests.support.foreign_writer import append_misplaced
from tests.support.guarantees import guarantee
from tests.support.operations import made, written
from tests.support.session_in_process import SessionInProcess

PLACES = [None, SessionInProcess()]
"""This process, and Spark."""

N = 6
ITEMS = pa.table({"k": np.arange(400) % N, "v": np.arange(400)})
KINDS = {
    "hash": HashPartitioner("v"),
    "range": RangePartitioner("v", bounds=[100, 200]),
    "column": ColumnPartitioner("k"),
}
TABLE_SCHEMA = pa.schema({"n": pa.int64()})


def counted(group: pa.Table):
    return pa.table({"n": [group.num_rows]})


def one_elsewhere(ids, _):
    ids[123] = (ids[123] + 1) % N
    return ids


def placed(path, partitioner, place=None, table=ITEMS):
    if place is None:
        return written(path, table, n=N, partitioner=partitioner)
    append_misplaced(path, table, partitioner, place, num_subpartitions=N, placed=True)
    return open_shuffle(path)


@guarantee("checked joins")
@exhaustive(least=8)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", [1, 1 << 30])
@pytest.mark.parametrize("filter", [None, "v >= 123 AND v < 124"])
@pytest.mark.parametrize("into", [False, True])
@pytest.mark.parametrize("spark", PLACES)
def test_functions_per_group_see_no_misplaced_row(tmp_path, kind, target, filter, into, spark):
    good = placed(tmp_path / "good", KINDS[kind])
    bad = placed(tmp_path / "bad", KINDS[kind], one_elsewhere)
    how = {"target_partition_bytes": target, "spark": spark}
    if into:
        how |= {"into": tmp_path / "into", "keys": "n", "mode": "overwrite"}

    def groups(rows, **more):
        made(rows.select(filter=filter).map_groups(counted, TABLE_SCHEMA, **more), **how)

    groups(good, check=True)
    groups(bad)
    with pytest.raises(CorruptShuffleError, match=r"bad/.*shuffle\.data.*is in subpartition \d"):
        groups(bad, check=True)


@guarantee("checked joins")
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("how", ["inner", "left", "full", "anti"])
def test_a_join_in_tasks_joins_no_misplaced_row(tmp_path, first, how):
    good = placed(tmp_path / "good", KINDS["hash"])
    bad = placed(tmp_path / "bad", KINDS["hash"], one_elsewhere, ITEMS.rename_columns(["k2", "v"]))
    left, right = (bad, good) if first else (good, bad)
    made(left.join(right, how=how), spark=PLACES[1], target_partition_bytes=1)
    checked = left.join(right, how=how, check=True)
    with pytest.raises(CorruptShuffleError, match=r"bad/.*belongs to subpartition"):
        made(checked, spark=PLACES[1], target_partition_bytes=1)


def test_what_check_may_be(tmp_path):
    rows = placed(tmp_path / "s", KINDS["hash"])
    with pytest.raises(OptionError, match="check='yes': expected True or False"):
        rows.map_groups(counted, TABLE_SCHEMA, check="yes")
