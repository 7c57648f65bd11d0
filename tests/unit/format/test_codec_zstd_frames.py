"""Which columns share a frame, and where a reader finds those that it wants."""

from __future__ import annotations

import zlib
from itertools import pairwise

import zstandard
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.format.codec_zstd import MIN_FRAME_BYTES, FrameEncoder, group_columns
from tests.support.chunks import places_of

LENGTHS = st.lists(st.sampled_from([16, 24, 1_000, 4_088, 4_096, 9_000]), min_size=1, max_size=30)


def test_large_columns_are_alone_and_small_ones_share_wherever_they_are():
    assert group_columns([16, 5_000, 16, 4_096, 4_000, 64, 16]) == [[1], [3], [0, 2, 4, 5], [6]]


@given(LENGTHS)
def test_every_column_is_in_one_frame_and_only_the_last_shared_one_is_small(lengths):
    groups = group_columns(lengths)
    assert sorted(column for group in groups for column in group) == [*range(len(lengths))]
    assert all(group == sorted(group) for group in groups)
    sizes = [sum(lengths[column] for column in group) for group in groups]
    assert all(size >= MIN_FRAME_BYTES for size in sizes[:-1])
    assert all(
        size < 2 * MIN_FRAME_BYTES
        for group, size in zip(groups, sizes, strict=True)
        if len(group) > 1
    )


@given(lengths=LENGTHS, data=st.data())
def test_some_columns_are_found_in_the_frames_that_hold_them_and_in_no_other(lengths, data):
    columns = [bytes([number]) * length for number, length in enumerate(lengths)]
    (chunk,) = FrameEncoder(1, 256 << 10).encode([columns])
    frames = chunk.frames
    assert frames.column_raw_length == lengths
    payload = memoryview(chunk.payload)
    contents = [zstandard.decompress(payload[a:b]) for a, b in pairwise(frames.edges)]
    wanted = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=8))
    places = places_of(frames, wanted)
    found = [contents[number] for number in places.number]
    assert [*map(len, found)] == places.raw_length
    stored = [
        payload[at : at + size] for at, size in zip(places.offset, places.length, strict=True)
    ]
    assert [*map(zlib.crc32, stored)] == places.crc32
    assert [*map(zstandard.decompress, stored)] == found
    assert [found[i][start:stop] for i, start, stop in places.columns] == [
        columns[i] for i in wanted
    ]
    groups = [frames.columns_of(frame) for frame in range(len(frames.length))]
    assert groups == group_columns(lengths)
    numbers = [i for i, group in enumerate(groups) if {*group} & {*wanted}]
    assert places.number == numbers
