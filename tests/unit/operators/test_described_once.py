"""A description is of what was given when it was made."""

import numpy as np
import pyarrow as pa
import pytest

from arrow_format.errors import OptionError
from tests.support.operations import written

ROWS = pa.table({"k": [i % 7 for i in range(70)], "a": list(range(70))})


@pytest.fixture
def rows(tmp_path):
    return written(tmp_path / "s", ROWS, "k")


def test_what_the_caller_changes_later_changes_nothing(rows):
    keys, array = {"k": [1]}, np.array([1])
    by, functions, on = ["k"], {"n": ("*", "count")}, ["k"]
    asked = {
        "keys": rows.select(key_values=keys),
        "array": rows.select(key_values={"k": array}),
        "by": rows.aggregate(by),
        "functions": rows.aggregate("k", functions),
        "on": rows.join(rows.select("k"), on, "semi"),
    }
    before = {name: rows.to_table().sort_by("k") for name, rows in asked.items()}
    keys["k"] = [2]
    array[0] = 2
    by.append("a")
    functions["m"] = ("a", "max")
    on.append("a")
    for name, operation in asked.items():
        assert operation.schema == before[name].schema
        assert operation.to_table().sort_by("k").equals(before[name]), name


def test_subpartitions_are_whole_numbers(rows):
    one = rows.select(subpartitions=1).to_table()
    assert rows.select(subpartitions=np.int64(1)).to_table().equals(one)
    with pytest.raises(OptionError, match=r"subpartition 1\.5: expected a whole number"):
        rows.select(subpartitions=1.5)
    with pytest.raises(OptionError, match="out of range"):
        rows.select(subpartitions=range(1 << 50))


def ages(rows: pa.Table) -> pa.Table:
    return pa.table({"first": rows["a"][:1]})


def test_names_that_come_once(rows):
    sort_by = (key for key in [("a", "descending")])
    assert (
        min(rows.map_groups(ages, "first bigint", sort_by=sort_by).to_table()["first"].to_pylist())
        == 63
    )
    assert rows.aggregate(name for name in ["k"]).to_table().num_rows == 7
