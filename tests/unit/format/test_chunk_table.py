"""Where columns are in the chunks of a table, against what follows from each chunk alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.format import chunk_table
from arrow_format.format.chunk_table import ChunkFrames, ChunkTable
from arrow_format.format.codec_zstd import ZstdCodec


@st.composite
def tables(draw):
    """A table of a few chunks of some columns, each with frames of its own."""
    num_columns = draw(st.integers(1, 6))
    chunks, first_row = [], 0
    for number in range(draw(st.integers(1, 5))):
        num_frames = draw(st.integers(1, num_columns))
        column_frame = [*range(num_frames)]
        column_frame += [
            draw(st.integers(0, num_frames - 1)) for _ in range(num_columns - num_frames)
        ]
        sizes = st.lists(st.integers(0, 50), min_size=num_columns, max_size=num_columns)
        lengths = draw(st.lists(st.integers(1, 99), min_size=num_frames, max_size=num_frames))
        order = draw(st.permutations(column_frame))
        frames = ChunkFrames(
            ZstdCodec.encoding, order, draw(sizes), lengths, [7 * n for n in lengths]
        )
        chunks.append((first_row, 1_000 * number, frames))
        first_row += draw(st.integers(1, 9))
    return ChunkTable.of(chunks, first_row), [frames for _, _, frames in chunks]


def place_of(frames, column):
    """Bytes of a column in its frame: behind those of the same frame that come before it."""
    frame = frames.column_frame[column]
    before = [i for i in range(column) if frames.column_frame[i] == frame]
    start = sum(frames.column_raw_length[i] for i in before)
    return start, start + frames.column_raw_length[column]


@pytest.mark.parametrize("many", [1, 1 << 30], ids=["of all at once", "one after the other"])
@given(tables(), st.data())
def test_places_are_those_that_follow_from_the_frames_of_a_chunk(many, made, data):
    table, known = made
    chunks = data.draw(st.lists(st.integers(0, len(known) - 1), min_size=1, max_size=8))
    columns = data.draw(st.lists(st.integers(0, len(known[0].column_frame) - 1), max_size=6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_table, "MANY_CHUNKS", many)
        found = table.places(chunks, columns)
    assert [places.chunk for places in found] == chunks
    for places, frames in zip(found, [known[chunk] for chunk in chunks], strict=True):
        assert places.table is table
        assert places.num_rows == int(table.num_rows[places.chunk])
        assert places.encoding == ZstdCodec.encoding
        used = sorted({frames.column_frame[i] for i in columns})
        assert places.number == used
        assert places.offset == [frames.edges[frame] for frame in used]
        assert places.length == [frames.length[frame] for frame in used]
        assert places.crc32 == [frames.crc32[frame] for frame in used]
        assert places.raw_length == [
            sum(frames.column_raw_length[i] for i in frames.columns_of(frame)) for frame in used
        ]
        assert places.columns == [
            (used.index(frames.column_frame[i]), *place_of(frames, i)) for i in columns
        ]
        some = data.draw(
            st.lists(st.sampled_from(range(len(columns))), max_size=4) if columns else st.just([])
        )
        (expected,) = table.places([places.chunk], [columns[i] for i in some])
        assert places.of_columns(some) == expected
