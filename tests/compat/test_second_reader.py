"""A reader that was written from the pages of the format alone reads what the golden files hold."""

import pytest

from integration.readers.rows import read
from tests.compat.test_golden_files import EXPECTED, expected_of, in_place, in_some_order, named


@pytest.mark.parametrize("expected", EXPECTED, ids=named)
def test_a_second_reader_reads_a_golden_shuffle_as_it_was_written(expected, tmp_path):
    version = int(expected.stem.removeprefix("expected-"))
    found = read(in_place(expected.parent, tmp_path) / "shuffle", version)
    rows = expected_of(expected)
    assert found.schema.equals(rows.schema)
    if "combined" in expected.parent.name:  # rows of a region are in no order
        rows, found = (in_some_order(table) for table in (rows, found))
    assert found.combine_chunks().equals(rows)
