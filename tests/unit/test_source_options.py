"""Options of the data source: texts to checked values."""

import pytest

from arrow_format import OptionError, ReadOptions
from connector.source_options import format_subpartitions, parse_read_options, parse_subpartitions


def test_subpartitions_there_and_back():
    assert parse_subpartitions("3, 7-9,12") == (3, 7, 8, 9, 12)
    assert format_subpartitions((3, 7, 8, 9, 12)) == "3,7-9,12"


@pytest.mark.parametrize("text", ["0-99999999999", "1000000", "5,3-1000000"])
def test_numbers_that_no_shuffle_has_are_not_counted_out(text):
    with pytest.raises(OptionError, match=r"expected numbers below 1,000,000"):
        parse_subpartitions(text)


def test_options_of_reading_reach_the_reader():
    found = parse_read_options({"path": "/s", "memoryBytes": "128m", "MEMORYMAP": "true"})
    assert found.options == ReadOptions(memory_bytes=128 << 20, memory_map=True)
    assert parse_read_options({"path": "/s"}).options == ReadOptions()


def test_splitting_needs_coalescing():
    assert parse_read_options({"path": "/s", "splitSkewed": "true"}).split_skewed
    with pytest.raises(OptionError, match=r"option splitSkewed: coalesce=false asks for exactly"):
        parse_read_options({"path": "/s", "splitSkewed": "true", "coalesce": "false"})
