"""The reference of options: every option of the table, once, and the page as it is generated."""

from pathlib import Path

import pytest

from connector.options import table
from tests.support.options_page import PLACES, options_page

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "options.md"
OPTIONS = [
    *table.WRITE_OPTIONS,
    *table.BATCH_WRITE_OPTIONS,
    *table.SINK_OPTIONS,
    *table.READ_OPTIONS,
    *table.BATCH_READ_OPTIONS,
    *table.SOURCE_OPTIONS,
]


def test_every_option_is_on_the_page_once():
    rows = [line for line in options_page().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [
        option.name for _, options in PLACES.values() for option in options
    ]
    assert sorted(row.split("`")[1] for row in rows) == sorted(option.name for option in OPTIONS)
    assert len({option.name.lower() for option in OPTIONS}) == len(rows)
    assert all(row.count(" | ") == 3 for row in rows)


def test_every_option_is_described():
    for option in OPTIONS:
        assert option.doc.strip()
        assert not option.doc.endswith(".")
        assert "|" not in option.doc


def test_an_internal_option_is_not_on_the_page():
    assert f"`{table.PIN.name}`" not in options_page()


@pytest.mark.skipif(not PAGE.exists(), reason="the page is not in this checkout")
def test_the_page_is_what_is_generated():
    assert PAGE.read_text("utf-8") == options_page(), "run python -m tests.support.options_page"
