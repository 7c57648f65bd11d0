"""What an index of the kit says that contradicts itself, the data file or the log.

Each is a change of a version of one region of one chunk.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard

from tests.compat.rewritten import Version, lying, two_frames, with_dictionary, without_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def _overlapping(version: Version) -> None:
    """Two chunks of one place."""
    part = version.part
    for name in ("chunk_encoding", "chunk_frames", "column_frame", "column_raw_length"):
        part[name] *= 2
    part["frame_length"] *= 2
    part["frame_crc32"] *= 2
    part["chunk_rows"] *= 2
    part["num_rows"] *= 2
    part["subpartition_rows"] = [6]
    part["chunk_gap"].append(-part["frame_length"][0])
    version.file["num_rows"] *= 2
    version.add(num_rows=3)


def _unaligned(version: Version) -> None:
    version.part["chunk_gap"] = [12]
    version.put_data(version.data[:8] + bytes(4) + version.data[8:])


def _of_two_frames(version: Version) -> None:
    """A frame that no column names."""
    frame = zstandard.compress(b"")
    version.part["chunk_frames"] = [2]
    version.part["frame_length"].append(len(frame))
    version.part["frame_crc32"].append(zlib.crc32(frame))
    version.put_data(version.data + frame)


def _large_chunk(version: Version) -> None:
    """A text that takes more than a chunk of several rows may."""
    lengths = np.array([0, 0, 9 << 20], "<u4").tobytes() + bytes(4)
    text = np.random.default_rng(1).integers(0, 2, (9 << 20) // 4096, np.uint8).repeat(4096)
    version.put_column(2, bytes([0, 4, *bytes(14)]) + lengths + text.tobytes())


def _dense_chunk(version: Version) -> None:
    """A text that takes more than 32,768 times its bytes: raw lengths alone say so."""
    stored = version.part["frame_length"][0]
    version.part["column_raw_length"][2] = 32_769 * stored


def _many_rows(version: Version) -> None:
    rows = (1 << 25) + 1
    version.part.update(chunk_rows=[rows], subpartition_rows=[0], large=[rows])
    version.part["num_rows"] = version.file["num_rows"] = rows
    version.add(num_rows=rows - 3)


def _large_region(version: Version) -> None:
    """A region of 2**31 rows, in chunks that may be so large."""
    place, (length,) = version.part["chunk_gap"][0], version.part["frame_length"]
    frame = version.data[place : place + length] + bytes(-length % 8)
    for name in ("chunk_encoding", "chunk_frames", "column_frame", "column_raw_length"):
        version.part[name] *= 64
    version.part["frame_length"] *= 64
    version.part["frame_crc32"] *= 64
    version.part["chunk_gap"] += [-length % 8] * 63
    version.part["chunk_rows"] = [1 << 25] * 64
    version.put_data(version.data + frame * 63)
    version.part.update(num_rows=1 << 31, subpartition_rows=[0], large=[1 << 31])
    version.put_rows(1 << 31)


def _regions(change: Callable[[list[dict[str, Any]]], object]) -> Callable[[Version], object]:
    """Change the parts of a file of two regions."""

    def changed(version: Version) -> None:
        version.put_region()
        change(version.blocks[0])

    return changed


def _broadcast(change: Callable[[Version], object]) -> Callable[[Version], object]:
    """Have all rows in both of two subpartitions, but for a change."""

    def changed(version: Version) -> None:
        version.put_subpartitions(2)
        version.totals[1] = {"num_rows": 3, "num_bytes": 0}
        version.part.update(kind=1, subpartition_gap=[], subpartition_rows=[])
        version.ranges = [(0, 2)]
        version.file.update(num_broadcast_rows=3, first_subpartition=0, end_subpartition=2)
        change(version)

    return changed


def _elsewhere(version: Version) -> None:
    """Rows in subpartition 0, and the log says that they are in 1."""
    version.put_subpartitions(2)
    version.ranges = [(0, 2)]
    version.file.update(first_subpartition=1, end_subpartition=2)


def _in_parts(
    subpartitions: tuple[int, int],
    ranges: list[tuple[int, int]],
    change: Callable[[Version, dict[str, Any]], object] = lambda version, part: None,
) -> Callable[[Version], object]:
    """Have two rows in a subpartition, and one in another; the chunk is in both parts.

    There is a block for each range, the second with the second part, which may be changed.
    """

    def changed(version: Version) -> None:
        version.put_subpartitions(2)
        first, second = (
            {**version.part, "subpartition_gap": [of + 1 - begin]}
            for of, (begin, _) in zip(subpartitions, (ranges * 2)[:2], strict=True)
        )
        first.update(num_rows=2, subpartition_rows=[2])
        second.update(num_rows=1, subpartition_rows=[1], first_row=2, rows_before=2)
        change(version, second)
        for of, num_rows in zip(subpartitions, (2, 1), strict=True):
            version.totals[of]["num_rows"] = num_rows
        version.blocks = [[first], [second]] if len(ranges) == 2 else [[first, second]]
        version.ranges = ranges
        version.file.update(first_subpartition=0, end_subpartition=2)

    return changed


def _elsewhere_too(version: Version, part: dict[str, Any]) -> None:
    """Put the chunk once more, where the part says that it is."""
    place, (length,) = part["chunk_gap"][0], part["frame_length"]
    part["chunk_gap"] = [len(version.data)]
    version.put_data(version.data + version.data[place : place + length] + bytes(-length % 8))


def _raw_lengths(_: Version, part: dict[str, Any]) -> None:
    first, second, *others = part["column_raw_length"]
    part["column_raw_length"] = [first + 8, second - 8, *others]


def _falls(*subpartitions: int) -> Callable[[Version], object]:
    """Have the chunk, and so three rows, once in each of some subpartitions."""

    def changed(version: Version) -> None:
        version.put_subpartitions(3)
        part, parts = version.part, []
        chunk = version.data[part["chunk_gap"][0] :]
        version.ranges = [(0, 3)]
        for number, of in enumerate(subpartitions):
            place = {"first_row": 3 * number, "chunk_gap": [len(version.data)]}
            parts.append({**part, **place, "subpartition_gap": [of + 1]})
            version.put_data(version.data + chunk)
        version.blocks = [parts]
        version.file.update(first_subpartition=0, end_subpartition=3)
        version.put_rows(3 * len(subpartitions))
        for of in range(3):
            version.totals[of]["num_rows"] = 3 * subpartitions.count(of)

    return changed


def _two_broadcast_parts(version: Version) -> None:
    version.put_region()
    version.blocks[0][1].update(region=0, first_row=3)
    version.totals[1]["num_rows"] = 6
    version.file.update(num_regions=1, num_broadcast_rows=6)


def _of_fewer(version: Version) -> None:
    """Say that the version has a subpartition, and the file two."""
    version.head["state"]["shape"]["num_subpartitions"] = 1
    version.totals[1]["num_rows"] = 0


INDEX: Mapping[str, Callable[[Version], object]] = {
    "rows of subpartitions are no sum": lambda v: v.part.update(subpartition_rows=[2]),
    "a subpartition behind the range": lambda v: v.part.update(subpartition_gap=[2]),
    "a large number that is none": lambda v: v.part.update(subpartition_rows=[0], large=[3]),
    "a large number of nothing": lambda v: v.part.update(large=[256]),
    "a subpartition of no row": lambda v: v.part.update(
        subpartition_gap=[1, 0], subpartition_rows=[3, 0]
    ),
    "rows of chunks are no sum": lambda v: v.part.update(chunk_rows=[2]),
    "a row that no part has": lambda v: v.part.update(first_row=1, rows_before=1),
    "a chunk that is not aligned": _unaligned,
    "a chunk behind the data file": lambda v: v.part.update(chunk_gap=[1 << 30]),
    "a frame longer than the data file": lambda v: v.part.update(frame_length=[1 << 40]),
    "chunks of one place": _overlapping,
    "a chunk that two blocks describe otherwise": _in_parts((0, 1), [(0, 1), (1, 2)], _raw_lengths),
    "a chunk that has a place for each of two blocks": _in_parts(
        (0, 1), [(0, 1), (1, 2)], _elsewhere_too
    ),
    "a chunk of both sides of a wrap": _in_parts((1, 0), [(0, 2)]),
    "a region that wraps twice": _falls(2, 0, 2, 1),
    "a region that goes on behind where it began": _falls(1, 2, 0, 2),
    "a chunk of several rows and more than 8 MiB": _large_chunk,
    "columns larger than their frames can be": _dense_chunk,
    "more than 2**25 rows in a chunk": _many_rows,
    "a frame without columns": _of_two_frames,
    "a frame that is not there": lambda v: v.part.update(column_frame=[0, 0, 0, 1]),
    "a frame below 0": lambda v: v.part.update(column_frame=[0, 0, 0, -1]),
    "a chunk of no row": lambda v: v.part.update(chunk_rows=[0]),
    "a chunk at the magic": lambda v: v.part.update(chunk_gap=[0]),
    "a chunk of no frame": lambda v: v.part.update(chunk_frames=[0]),
    "a frame of no byte": lambda v: v.part.update(frame_length=[0], frame_crc32=[0]),
    "a column of less than no byte": lambda v: v.part["column_raw_length"].__setitem__(0, -1),
    "a list that is too short": lambda v: v.part.update(chunk_encoding=[]),
    "a frame too many": lambda v: v.part.update(frame_length=v.part["frame_length"] * 2),
    "a part of no chunk": lambda v: v.part.update(
        {name: [] for name in v.part if name.startswith(("chunk", "column", "frame"))}
    ),
    "a region of no row": lambda v: v.part.update(num_rows=0, subpartition_rows=[0]),
    "a region of 2**31 rows": _large_region,
    "a region below 0": lambda v: v.part.update(region=-1),
    "a region that is missing": _regions(lambda parts: parts[1].update(region=2)),
    "another number of regions": lambda v: v.file.update(num_regions=2),
    "parts in another order": _regions(list.reverse),
    "a region before the one before": _regions(
        lambda parts: (parts[0].update(region=1), parts[1].update(region=0), parts.reverse())
    ),
    "a part of one row twice": _regions(lambda parts: parts[1].update(region=0)),
    "more rows before a part than its chunk has": lambda v: v.part.update(rows_before=3),
    "less than no row before a part": lambda v: v.part.update(rows_before=-1),
    "another number of rows": lambda v: v.put_rows(4),
    "subpartitions of a block that are not there": lambda v: setattr(v, "ranges", [(0, 2)]),
    "a block of no subpartition": lambda v: setattr(v, "ranges", [(0, 0)]),
    "a block that does not state its size": lambda v: setattr(v, "of_block", without_size),
    "a block of two frames": lambda v: setattr(v, "of_block", two_frames),
    "a block of a dictionary": lambda v: setattr(v, "of_block", with_dictionary),
    "a block of fewer bytes than it states": lambda v: setattr(v, "of_block", lying(8)),
    "a block of more than 64 MiB": lambda v: setattr(v, "of_block", lying(65 << 20)),
    "rows outside of the range that the log states": _elsewhere,
    "subpartitions of broadcast rows": _broadcast(lambda v: v.part.update(subpartition_gap=[1])),
    "broadcast rows in a block of some subpartitions": _broadcast(
        lambda v: setattr(v, "ranges", [(0, 1)])
    ),
    "broadcast rows of some subpartitions": _broadcast(lambda v: v.file.update(end_subpartition=1)),
    "broadcast rows in two parts": _broadcast(_two_broadcast_parts),
    "broadcast rows of more subpartitions than the version has": _broadcast(_of_fewer),
    "another number of broadcast rows": _broadcast(lambda v: v.file.update(num_broadcast_rows=2)),
}
