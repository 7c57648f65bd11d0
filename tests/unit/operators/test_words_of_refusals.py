"""What is refused is refused in words of ours, by the name of the argument that was given."""

import pyarrow as pa
import pytest

from arrow_format.errors import OptionError
from tests.support.operations import written


@pytest.fixture
def rows(tmp_path):
    return written(tmp_path / "s", pa.table({"k": [1]}), "k")


@pytest.mark.parametrize("function", [max, dict])
def test_a_function_without_a_signature(rows, function):
    with pytest.raises(OptionError, match="does not say what it takes"):
        rows.map_groups(function, "k bigint")


@pytest.mark.parametrize("by", [None, [], ["k", 3]])
def test_what_is_grouped_by_is_called_by(rows, by):
    with pytest.raises(OptionError, match=r"^by="):
        rows.aggregate(by)


def test_an_order_is_asked_for_or_not(rows):
    for asked in (rows, rows.select("k")):
        with pytest.raises(OptionError, match="ordered='k': expected True or False"):
            asked.read(ordered="k")


def test_why_the_rows_of_a_chain_are_not_placed_is_said_of_where_they_lost_their_keys(rows):
    lost = rows.map_subpartitions(lambda _, rows: rows, "x bigint")
    later = lost.map_subpartitions(lambda _, rows: rows, "y bigint")
    with pytest.raises(OptionError, match=r"the result lacks 'k', by which .*Write it first"):
        later.aggregate("y")
