"""A mask has the rows that were put into it, whichever pieces and regions they are in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.format.chunk_table import ChunkTable
from arrow_format.format.codec_none import message_frames
from arrow_format.format.masks import PIECE_ROWS, RowMask, masked_subpartitions, rows_beyond
from arrow_format.format.regions import RegionKind, region_of

ROWS = st.dictionaries(
    st.integers(0, 3),
    st.lists(st.integers(0, 3 * PIECE_ROWS), min_size=1, unique=True).map(
        lambda rows: np.array(sorted(rows), np.int64)
    ),
)


def num_rows(rows):
    return sum(map(len, rows.values()))


def as_lists(rows):
    return {region: each.tolist() for region, each in rows.items()}


def a_region(kind, num_rows):
    """Return a region of one subpartition and one chunk."""
    chunks = ChunkTable.of([(0, 0, message_frames(1, 1, 0))], num_rows)
    return region_of(kind, 0, np.zeros(1, np.int32), np.array([num_rows]), chunks, 1)


@given(rows=ROWS, others=ROWS)
def test_a_mask_has_its_rows_after_it_was_encoded(rows, others):
    mask = RowMask.decode(RowMask.of(rows).encode(), num_rows(rows), 4, 1_000_000)
    assert as_lists(mask.rows()) == as_lists(rows)
    united = mask.united(others)
    expected = {
        region: np.array(sorted({*rows.get(region, ()), *others.get(region, ())}), np.int64)
        for region in {*rows, *others}
    }
    assert as_lists(united.rows()) == as_lists(expected)
    assert united.encode() == RowMask.of(expected).encode()
    assert as_lists(mask.rows()) == as_lists(rows), "it has its own rows alone"


@given(
    others=ROWS,
    first=st.sampled_from([0, 1, 77, PIECE_ROWS]),
    num_bytes=st.sampled_from([1, 9, PIECE_ROWS // 8, PIECE_ROWS // 8 + 1]),
)
def test_a_mask_of_other_pieces_is_united_too(others, first, num_bytes):
    stretch = np.full(num_bytes, 255, np.uint8)
    mask = RowMask.of_stretches([(3, first, stretch)])
    gone = {3: np.arange(first, first + 8 * len(stretch))}
    expected = {
        region: np.union1d(gone.get(region, ()), others.get(region, ())).astype(np.int64)
        for region in {*gone, *others}
    }
    assert mask.united(others).encode() == RowMask.of(expected).encode()


@given(rows=ROWS.filter(bool), more=st.integers(0, 9), data=st.data())
def test_broadcast_rows_that_are_gone_are_counted(rows, more, data):
    kinds = [data.draw(st.sampled_from(RegionKind)) for _ in range(4)]
    lengths = [int(rows[number][-1]) + 1 + more if number in rows else 1 for number in range(4)]
    regions = [*map(a_region, kinds, lengths)]
    mask = RowMask.decode(RowMask.of(rows).encode(), num_rows(rows), 4, 1_000_000)
    broadcast = [len(each) for n, each in rows.items() if kinds[n] is RegionKind.BROADCAST]
    assert mask.broadcast_rows(regions) == sum(broadcast)
    number = data.draw(st.sampled_from([*rows]))
    last = int(rows[number][-1])
    regions[number] = a_region(kinds[number], last)
    message = f"a mask has row {last} of region {number}, of {last} rows"
    with pytest.raises(ValueError, match=message):
        mask.broadcast_rows(regions)
    with pytest.raises(ValueError, match=message):
        masked_subpartitions(mask.rows(), regions, 1)


@given(kept=ROWS, lengths=st.lists(st.integers(1, 4 * PIECE_ROWS), min_size=4, max_size=4))
def test_a_mask_of_all_but_some_rows(kept, lengths):
    kept = {region: rows[rows < lengths[region]] for region, rows in kept.items()}
    mask = RowMask.all_but(kept, lengths)
    assert mask.num_rows == sum(lengths) - num_rows(kept)
    gone = mask.rows()
    for region, length in enumerate(lengths):
        left = np.setdiff1d(np.arange(length), gone.get(region, ()))
        assert left.tolist() == [*kept.get(region, ())]


@given(before=ROWS, now=ROWS)
def test_rows_that_one_mask_has_beyond_another(before, now):
    expected = {region: sorted({*rows} - {*before.get(region, ())}) for region, rows in now.items()}
    found = rows_beyond(RowMask.of(now), RowMask.of(before))
    assert as_lists(found) == {region: rows for region, rows in expected.items() if rows}
    assert as_lists(rows_beyond(RowMask.of(now), None)) == as_lists(now)
    assert rows_beyond(None, RowMask.of(before)) == {}


@given(rows=ROWS, region=st.integers(0, 3), first=st.integers(0, 200_000), data=st.data())
def test_any_rows_are_asked_for(rows, region, first, data):
    end = first + data.draw(st.integers(1, 100_000))
    gone = RowMask.of(rows).gone(region, first, end)
    expected = [row - first for row in rows.get(region, ()) if first <= row < end]
    assert ([] if gone is None else np.flatnonzero(gone).tolist()) == expected
    assert (gone is None) == (not expected)
    assert RowMask.of(rows).has_rows_of(region) == (region in rows)


@pytest.mark.parametrize(
    ("rows", "stated", "regions", "stored"),
    [
        ({0: [1, 2]}, 3, 1, 9), ({2: [1]}, 1, 2, 9), ({0: [0]}, 0, 1, 9),
        ({0: [1, 9]}, 2, 1, 9), ({1: [7]}, 1, 3, 9), ({0: [70_000]}, 1, 1, 70_000),
    ],
)  # fmt: skip
def test_a_mask_of_other_rows_is_refused(rows, stated, regions, stored):
    frame = RowMask.of({at: np.array(each) for at, each in rows.items()}).encode()
    with pytest.raises(ValueError, match=r"has [12] rows|no region|cannot be there"):
        RowMask.decode(frame, stated, regions, stored)


def test_the_last_row_of_a_file_may_be_masked():
    frame = RowMask.of({1: np.array([6])}).encode()
    assert as_lists(RowMask.decode(frame, 1, 3, 9).rows()) == {1: [6]}


def test_bytes_that_are_no_mask_are_refused():
    with pytest.raises(ValueError, match="no mask"):
        RowMask.decode(b"abc", 1, 1, 9)
    first = RowMask.of({0: np.array([9])})
    twice = RowMask(np.array([0, 0]), first._bitmaps * 2)
    with pytest.raises(ValueError, match="not in order"):
        RowMask.decode(twice.encode(), 2, 1, 99)
