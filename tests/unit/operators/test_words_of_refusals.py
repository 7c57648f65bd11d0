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
