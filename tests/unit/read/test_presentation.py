"""Numbers and pictures for people."""

import xml.etree.ElementTree as ET

import pyarrow as pa
import pytest

from arrow_format.read.presentation import MAX_BARS, PICTURE_HEIGHT, format_bytes, html_skew


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1.0 kB"),
        (1_000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (999_999_999, "1.0 GB"),
        (999_960_000_000, "1.0 TB"),
        (2e15, "2000.0 TB"),
        (5_449_999, "5.4 MB"),
    ],
)
def test_bytes_for_people(num_bytes, text):
    assert format_bytes(num_bytes) == text


def heights(rows):
    picture = ET.fromstring(html_skew(pa.array(rows, pa.int64())))
    return [
        int(bar.partition("v-")[2].partition("h")[0]) for bar in picture[1].get("d").split("z")[:-1]
    ]


def test_the_largest_subpartition_is_the_highest_bar():
    assert heights([1, 0, 600, 300]) == [1, PICTURE_HEIGHT, PICTURE_HEIGHT // 2]


def test_many_subpartitions_share_bars_and_none_is_lost():
    rows = [10] * 20_000
    rows[777] = 600
    drawn = heights(rows)
    assert len(drawn) == MAX_BARS
    assert sorted(drawn)[-2:] == [1, PICTURE_HEIGHT]


def test_without_rows_there_are_no_bars():
    assert heights([0, 0]) == []
