"""``check=True`` of joins and of functions per group in Spark's tasks."""

import numpy as np
import pyarrow as pa
import pytest

import connector
from arrow_format import (
    ColumnPartitioner,
    CorruptShuffleError,
    HashPartitioner,
    OptionError,
    RangePartitioner,
    write_shuffle,
)
from tests.support.exhaustive import exhaustive
from tests.support.foreign_writer import append_misplaced
from tests.support.guarantees import guarantee
from tests.support.session_in_process import SessionInProcess
from tests.support.small_shuffles import FAST

SPARK = SessionInProcess()
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


def one_elsewhere(ids, batch):
    del batch
    ids[123] = (ids[123] + 1) % N
    return ids


def written(path, partitioner, place=None, table=ITEMS):
    if place is None:
        write_shuffle(table, path, partitioner=partitioner, num_subpartitions=N, options=FAST)
    else:
        append_misplaced(path, table, partitioner, place, num_subpartitions=N, placed=True)
    return path


@guarantee("checked joins")
@exhaustive(least=8)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", [1, 1 << 30])
@pytest.mark.parametrize("filter", [None, "v >= 123 AND v < 124"])
@pytest.mark.parametrize("into", [False, True])
def test_functions_per_group_see_no_misplaced_row(tmp_path, kind, target, filter, into):
    good = written(tmp_path / "good", KINDS[kind])
    bad = written(tmp_path / "bad", KINDS[kind], one_elsewhere)
    how = {"target_partition_bytes": target, "filter": filter}

    def groups(path, **more):
        if into:
            more |= {"into": tmp_path / "into", "keys": "n", "mode": "overwrite"}
        made = connector.map_groups(SPARK, path, counted, TABLE_SCHEMA, **how, **more)
        return None if into else made.toArrow()

    groups(good, check=True)
    groups(bad)
    with pytest.raises(CorruptShuffleError, match=r"bad/.*shuffle\.data.*is in subpartition \d"):
        groups(bad, check=True)


@guarantee("checked joins")
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("how", ["inner", "left", "full", "anti"])
def test_a_join_in_tasks_joins_no_misplaced_row(tmp_path, first, how):
    good = written(tmp_path / "good", KINDS["hash"])
    bad = written(tmp_path / "bad", KINDS["hash"], one_elsewhere, ITEMS.rename_columns(["k2", "v"]))
    sides = (bad, good) if first else (good, bad)
    options = {"how": how, "target_partition_bytes": 1}
    connector.join_shuffles(SPARK, *sides, **options).toArrow()
    with pytest.raises(CorruptShuffleError, match=r"bad/.*belongs to subpartition"):
        connector.join_shuffles(SPARK, *sides, check=True, **options).toArrow()


def test_what_check_may_be(tmp_path):
    path = written(tmp_path / "s", KINDS["hash"])
    with pytest.raises(OptionError, match="check='yes': expected True or False"):
        connector.map_groups(SPARK, path, counted, TABLE_SCHEMA, check="yes")
