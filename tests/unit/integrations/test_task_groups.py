"""What each task of another library reads."""

import pyarrow as pa
import pytest

from arrow_format import BroadcastPartitioner, OptionError, SchemaError
from tests.support.small_shuffles import shuffle_of


@pytest.fixture(scope="module")
def shuffle(tmp_path_factory):
    path = tmp_path_factory.mktemp("groups") / "s"
    table = pa.table({"k": range(1000), "text": ["x" * 100] * 1000})
    return shuffle_of(path, table, "k", n=20)


def subpartitions(groups):
    return [group.subpartitions for group in groups]


def test_groups_are_all_subpartitions_in_order(shuffle):
    groups = shuffle.task_groups(20_000)
    assert 1 < len(groups) < 20
    assert [i for group in groups for i in group.subpartitions] == list(range(20))
    for group in groups:
        assert group.num_rows == shuffle.read(group.subpartitions).read_all().num_rows
        assert group.num_bytes <= 20_000
    total = sum(group.num_bytes for group in groups)
    assert total == pytest.approx(shuffle.to_table().nbytes, rel=0.2)


def test_fewer_columns_make_larger_groups(shuffle):
    assert len(shuffle.task_groups(20_000, columns=["k"])) == 1


def test_a_group_for_each_subpartition(shuffle):
    few = shuffle.where("k = 7")
    assert subpartitions(few.task_groups(None, [3, 9])) == [[3], [9]]
    assert len(few.task_groups(None)) == 20


def test_a_filter_leaves_out_what_it_excludes(shuffle):
    keys = [7, 8, 500]
    wanted = sorted({shuffle.subpartition_of(k=key) for key in keys})
    (group,) = shuffle.where("k IN (7, 8, 500)").task_groups(1 << 30)
    assert group.subpartitions == wanted


def test_one_group_at_least(shuffle):
    (group,) = shuffle.task_groups(1, [])
    assert (group.subpartitions, group.num_rows) == ([], 0)


def test_broadcast_rows_count_in_every_subpartition(tmp_path):
    table = pa.table({"k": range(10)})
    shuffle = shuffle_of(tmp_path / "s", table, n=4, partitioner=BroadcastPartitioner())
    groups = shuffle.task_groups(None)
    assert [group.num_rows for group in groups] == [
        shuffle.read(group.subpartitions).read_all().num_rows for group in groups
    ]
    assert sorted(i for group in groups for i in group.subpartitions) == [0, 1, 2, 3]


def test_bad_arguments(shuffle):
    with pytest.raises(OptionError, match="max_bytes=0"):
        shuffle.task_groups(0)
    with pytest.raises(OptionError, match="subpartition 20 is out of range"):
        shuffle.task_groups(None, [20])
    with pytest.raises(SchemaError, match="'x'"):
        shuffle.task_groups(1, columns=["x"])


def test_numbers_are_those_of_python(shuffle):
    groups = shuffle.task_groups(20_000)
    assert {type(n) for group in groups for n in (group.num_bytes, group.num_rows)} == {int}
