"""The reference of options: every option, once, and the page as it is generated."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from arrow_format.write.merge_policy import MergePolicy
from connector.options import batch, stream
from tests.support.options_page import PLACES, described, docs_of, options_page

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "options.md"
OPTIONS = [
    *batch.WRITE_OPTIONS,
    *batch.BATCH_WRITE_OPTIONS,
    *stream.SINK_OPTIONS,
    *batch.READ_OPTIONS,
    *batch.BATCH_READ_OPTIONS,
    *stream.SOURCE_OPTIONS,
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
        doc, default = described(option)
        assert doc.endswith(".")
        assert default
        assert "|" not in doc + default
        assert not re.search(r"None|\(\)|:`", doc + default), "no words of Python alone"


def test_a_docstring_has_each_field_and_no_other():
    for settings in {option.settings for option in OPTIONS} | {MergePolicy}:
        assert set(docs_of(settings)) == {field.name for field in fields(settings)}, settings


def test_an_internal_option_is_not_on_the_page():
    for option in (batch.PIN, batch.ARROW_FILTER):
        assert f"`{option.name}`" not in options_page()


@pytest.mark.skipif(not PAGE.exists(), reason="the page is not in this checkout")
def test_the_page_is_what_is_generated():
    assert PAGE.read_text("utf-8") == options_page(), "run python -m tests.support.options_page"
