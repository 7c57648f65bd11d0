"""Which columns share a frame, and where a reader finds those that it wants."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.format.column_frames import (
    MIN_FRAME_BYTES,
    FrameTable,
    frame_header,
    group_columns,
)

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
    groups = group_columns(lengths)
    frames = [b"".join(columns[i] for i in group) for group in groups]  # as if none were compressed
    stored = frame_header(7, groups, lengths, [*map(len, frames)]) + b"".join(frames)
    table = FrameTable(pa.py_buffer(stored), len(lengths), num_rows=7, raw_length=sum(lengths))
    wanted = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=8))
    selection = table.select(wanted)
    content = b"".join(stored[start:stop] for start, stop in selection.extents)
    assert len(content) == selection.num_bytes
    assert [content[start:stop] for _, start, stop in selection.sections] == [
        columns[i] for i in wanted
    ]
    needed = sum(
        len(frame) for group, frame in zip(groups, frames, strict=True) if {*group} & {*wanted}
    )
    assert selection.num_bytes == needed


def test_a_header_that_is_cut_is_said_to_be():
    for num_bytes in (0, 8, 31):
        with pytest.raises(ValueError, match=f"^{num_bytes} bytes are too few for 3 columns"):
            FrameTable(pa.py_buffer(bytes(num_bytes)), 3, num_rows=0, raw_length=0)
