"""Names in the log: what is an entry, and which checkpoint begins where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.log.names import (
    SEGMENT_ENTRIES,
    entries_in,
    entry_path,
    link_of,
    numbers_of,
    range_path,
    ranges_in,
    segment_of,
    segments_in,
)

NUMBERS = st.integers(1, 10**18)


@given(number=NUMBERS)
def test_few_checkpoints_hold_all_up_to_a_number(number):
    steps = 0
    at = number
    while at:
        assert 0 <= link_of(at) < at
        at = link_of(at)
        steps += 1
    assert steps == number.bit_count()


@given(number=NUMBERS, other=NUMBERS)
def test_what_checkpoints_hold_is_nested_or_apart(number, other):
    """So that one that is based on others never cuts one of them."""
    low, high = sorted((number, other))
    assert link_of(high) >= low or link_of(high) <= link_of(low)


@given(number=NUMBERS)
def test_a_number_lies_in_its_segment(number):
    segment = segment_of(number)
    assert number in numbers_of(segment)
    assert numbers_of(segment).stop == numbers_of(segment + 1).start
    for path in (entry_path(number), range_path(number)):
        directory, name = path.split("/")[1:]
        assert segments_in([directory]) == [segment]
        assert entries_in([name]) + ranges_in([name]) in ([number], [])
    assert entries_in([entry_path(number).split("/")[2]]) == [number]


def test_the_first_segment_begins_with_number_one():
    assert numbers_of(0) == range(1, SEGMENT_ENTRIES)


@pytest.mark.parametrize("digit", ["\u0663", "\uff13", "\U0001d7db"])
def test_names_with_digits_of_other_scripts_are_no_names(digit):
    """What another program put there must not make the log lack an entry."""
    assert segments_in([f"{'0' * 17}{digit}"]) == []
    assert entries_in([f"{'0' * 19}{digit}.entry"]) == []
    assert ranges_in([f"{'0' * 19}{digit}.range"]) == []


def test_other_names_are_no_entries():
    names = [
        ".tmp-x",
        "2.entry",
        f"{2:020d}.entry.bak",
        f"{2:020d}.base",
        f"{2:020d}.range~",
        f"{7:020d}.entry\n",
    ]
    assert entries_in([*names, f"{9:020d}.entry", f"{3:020d}.entry"]) == [3, 9]
    assert ranges_in([*names, f"{2:020d}.range"]) == [2]
    assert segments_in(["expired", "damaged", f"{1:018d}", f"{0:018d}", "1"]) == [0, 1]
