"""Groups of two shuffles by equal keys: whole, each once, those of one side alone too."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import arrow_shuffle
from arrow_format.operators.groups import cogrouped_blocks
from arrow_shuffle.errors import OptionError, SchemaError
from tests.support.exhaustive import examples
from tests.support.small_shuffles import FAST
from tests.support.spark_order_model import as_key

MADE = pa.schema([("k", pa.float64()), ("left", pa.string()), ("right", pa.string())])
KEYS = st.sampled_from([None, float("nan"), 0.0, -0.0, 1.5, -7.0, 2.0**60])


def kept(path, keys, n=3, name="k", **how):
    columns = {name: pa.array(keys, pa.float64()), "v": pa.array(range(len(keys)), pa.int64())}
    arrow_shuffle.write_shuffle(
        pa.table(columns), path, keys=name, num_subpartitions=n, options=FAST, **how
    )
    return arrow_shuffle.open_shuffle(path)


def both(key, left: pa.Table, right: pa.Table):
    values = [[str(sorted(rows["v"].to_pylist()))] for rows in (left, right)]
    return pa.table([[key[0].as_py()], *values], schema=MADE)


def modelled(left, right):
    found = {}
    for side, keys in enumerate((left, right)):
        for value, key in enumerate(keys):
            found.setdefault(as_key(key), ([], []))[side].append(value)
    return {key: (str(values[0]), str(values[1])) for key, values in found.items()}


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(20, 200)
)
@given(left=st.lists(KEYS, max_size=20), right=st.lists(KEYS, max_size=20), sorts=st.booleans())
def test_each_key_comes_once_with_its_rows_of_both_sides(tmp_path_factory, left, right, sorts):
    path = tmp_path_factory.mktemp("cogroup")
    sides = kept(path / "l", left), kept(path / "r", right, name="id", sort_by="v" if sorts else ())
    rows = sides[0].cogroup(sides[1]).map_groups(both, MADE).to_table().to_pylist()
    found = {as_key(row["k"]): (row["left"], row["right"]) for row in rows}
    assert len(found) == len(rows)
    assert found == modelled(left, right)


def test_groups_stay_whole_where_both_sides_take_several_passes(tmp_path):
    left, right = [float(i % 50) for i in range(4000)], [float(i % 70) for i in range(3000)]
    sides = kept(tmp_path / "l", left, n=1), kept(tmp_path / "r", right, n=1)
    keys, columns = (("k",), ("k",)), (("k", "v"), ("k", "v"))
    blocks = [*cogrouped_blocks(sides, keys, columns, group_bytes=20_000)]
    assert len(blocks) > 3
    found = [key for block in blocks for key in block.keys(("k",))["k"].to_pylist()]
    assert sorted(found) == [float(i) for i in range(70)]
    for block in blocks:
        assert block.other is not None
        for group, key in enumerate(block.keys(("k",))["k"].to_pylist()):
            for batch, starts in ((block.batch, block.starts), block.other):
                rows = batch["k"][starts[group] : starts[group + 1]].to_pylist()
                assert {*rows} <= {key}
        assert block.starts[-1] == block.batch.num_rows
        assert block.other[1][-1] == block.other[0].num_rows


def test_frames_and_a_write_that_stays_where_it_is(tmp_path):
    left, right = kept(tmp_path / "l", [1.0, 1.0, 2.0]), kept(tmp_path / "r", [2.0, 3.0])

    def counted(key, mine, theirs):
        count = mine.iloc[:0].reindex([0]).assign(k=key[0], mine=len(mine), theirs=len(theirs))
        return count[["k", "mine", "theirs"]]

    groups = left.select("v").cogroup(right).map_groups(counted, "k double, mine int, theirs int")
    receipt = groups.write(tmp_path / "out", options=FAST)
    rows = arrow_shuffle.open_shuffle(tmp_path / "out").to_table().to_pylist()
    found = sorted((row["k"], row["mine"], row["theirs"]) for row in rows)
    assert found == [(1.0, 2, 0), (2.0, 1, 1), (3.0, 0, 1)]
    assert receipt.num_subpartitions == 3
    assert groups.explain().what.startswith("cogroup of")


def test_sides_and_functions_that_do_not_fit_are_refused(tmp_path):
    left, right = kept(tmp_path / "l", [1.0]), kept(tmp_path / "r", [1.0], name="v")
    with pytest.raises(OptionError, match="not co-partitioned"):
        left.cogroup(right).map_groups(both, MADE)
    with pytest.raises(OptionError, match=r"takes 1 arguments: expected function\(left, right\)"):
        left.cogroup(left).map_groups(lambda rows: rows, MADE)
    with pytest.raises(OptionError, match="expected a shuffle that is open"):
        left.cogroup("r")
    how = {"keys": "k", "num_subpartitions": 3, "options": FAST}
    for name, type_ in (("a", pa.int16()), ("b", pa.int32())):
        rows = pa.table({"k": pa.array([1], type_)})
        arrow_shuffle.write_shuffle(rows, tmp_path / name, **how)
    a, b = (arrow_shuffle.open_shuffle(tmp_path / name) for name in "ab")
    with pytest.raises(SchemaError, match=r"is int16, 'k' of .* is int32: cast"):
        a.cogroup(b).map_groups(both, MADE)
