"""A select of a select: what the first leaves out, its own filter and the keys may be of."""

import pyarrow as pa
import pytest

from arrow_format.errors import SchemaError
from tests.support.operations import written

ROWS = pa.table(
    {"k": [i % 7 for i in range(70)], "a": list(range(70)), "b": [1.0] * 35 + [9.0] * 35}
)


@pytest.fixture(params=["shuffle", "computed"])
def rows(request, tmp_path):
    shuffle = written(tmp_path / "s", ROWS, "k")
    if request.param == "shuffle":
        return shuffle.select()
    return shuffle.map_subpartitions(lambda _, rows: rows, ROWS.schema)


def test_the_filter_of_a_select_may_be_of_columns_that_it_leaves_out(rows):
    few = rows.select("a", filter="b > 5")
    assert few.select().to_table().num_rows == 35
    assert sorted(few.select("a", filter="a >= 60").to_table()["a"].to_pylist()) == list(
        range(60, 70)
    )


def test_so_may_keys(rows):
    few = rows.select("a", key_values={"k": [3]})
    assert sorted(few.select(filter="a >= 50").to_table()["a"].to_pylist()) == [52, 59, 66]
    assert rows.select("a").select(key_values={"k": [3]}).to_table().num_rows == 10


def test_a_later_filter_of_such_a_column_is_refused(rows):
    with pytest.raises(SchemaError, match=r"'b' .*was left out by an earlier select"):
        rows.select("a", filter="b > 5").select(filter="b > 6")
