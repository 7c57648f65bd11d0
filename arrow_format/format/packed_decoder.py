"""Packed columns back into Arrow arrays; pure.

See :mod:`arrow_format.format.packed_layout`. The caller has checked the CRC of the chunk. Here,
every length is checked to stay inside of its column.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from arrow_format.format.packed_layout import (
    AS_IT_IS,
    FLOAT_WIDTHS,
    HAS_NULLS,
    LENGTH_WIDTHS,
    MAX_DIGITS,
    NODE,
    WIDTHS,
    Kind,
    children_of,
    kind_of,
    num_nodes,
    number_dtype,
    padding,
)
from arrow_format.format.packed_runs import Few, Runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

MAX_LENGTH = (1 << 31) - 1
"""Largest offset of a column."""

JOINED_ROWS = 1 << 12
"""Chunks of which so many values each are wanted, or fewer, are unpacked together: to call NumPy
for each takes longer than to copy them once more."""

JOINED_VALUES = 1 << 16
"""Together they have so many values at most, or one more chunk: of more, what is made on the way is
new memory of the system, which takes longer."""


class Unpacker:
    """Unpacks columns of one data schema; what follows from their types alone is computed once."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._nodes: dict[int, tuple[_Node, int]] = {}
        """Of the columns that were unpacked: readers of a wide table leave out most."""

    def unpack(
        self,
        content: pa.Buffer,
        columns: Iterable[tuple[int, Sequence[tuple[int, int]]]],
        rows: Sequence[tuple[int, int, int]],
    ) -> list[pa.Array]:
        """Return columns of some chunks, the rows of each chunk behind those of the one before.

        Values that are stored as Arrow has them are views of ``content``, where all rows of a
        single chunk are wanted; all others are in memory of their own.

        Parameters
        ----------
        content
            Has the packed columns.
        columns
            Positions in the schema, each with the bytes ``[start, stop)`` of every chunk that hold
            it. A byte becomes 16 at most.
        rows
            Of every chunk the number of its rows, and ``first`` and ``end`` of those wanted.

        Raises
        ------
        ValueError
            There is something that is no packed column of that type, or the chunks have more items
            or characters together than one array can.
        """
        runs = Runs.of(rows)
        reader = _Reader(content)
        arrays = []
        for column, sections in columns:
            known = self._nodes.get(column)
            if known is None:
                type_ = self._schema.field(column).type
                known = self._nodes[column] = _node_of(type_), NODE.size * num_nodes(type_)
            node, header_bytes = known
            reader.begin(sections, header_bytes)
            arrays.append(reader.array(node, runs))
            reader.end()
        return arrays


@dataclass(frozen=True, slots=True)
class _Node:
    """What a type implies for its node."""

    type: pa.DataType
    kind: Kind
    value_bytes: int
    """Bytes of a fixed-width value in Arrow; 0 for others."""
    widths: tuple[int, ...]
    """Widths the node may have."""
    wide: np.dtype[np.unsignedinteger] | None
    """Unsigned type that packed numbers become; None for other kinds."""
    children: tuple[_Node, ...]
    times: int
    """Values of each child per value, for structs and fixed-size lists."""
    pair: tuple[pa.Field, pa.Field] | None
    """Key and item of a map."""


def _node_of(type_: pa.DataType) -> _Node:
    kind = kind_of(type_)
    dtype = number_dtype(type_) if kind is Kind.NUMBERS else None
    if dtype is not None:
        widths = *(width for width in WIDTHS if width <= dtype.itemsize), AS_IT_IS
    elif kind is Kind.FLOATS:
        widths = *FLOAT_WIDTHS, AS_IT_IS
    elif kind in (Kind.BYTES, Kind.LISTS):
        widths = LENGTH_WIDTHS
    else:
        widths = (AS_IT_IS,)
    return _Node(
        type_,
        kind,
        type_.bit_width // 8 if kind in (Kind.NUMBERS, Kind.FLOATS, Kind.RAW) else 0,
        widths,
        None if dtype is None else np.dtype(f"<u{dtype.itemsize}"),
        tuple(map(_node_of, children_of(type_))),
        type_.list_size if pt.is_fixed_size_list(type_) else 1,
        (type_.key_field, type_.item_field) if pt.is_map(type_) else None,
    )


class _Codes(NamedTuple):
    """Packed numbers of adjacent chunks, one behind the other."""

    width: int
    chunks: slice
    edges: list[int]
    """Where those of each chunk begin among those of all, then where they end."""
    codes: npt.NDArray[Any]

    @property
    def at(self) -> slice:
        """Where they are among those of all chunks."""
        return slice(self.edges[0], self.edges[-1])

    def each(self, of_chunks: Sequence[float], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return what all chunks have for each number: one for all where it is the same."""
        values = of_chunks[self.chunks]
        if len(values) == 1 or values.count(values[0]) == len(values):
            return np.array(values[0], dtype)
        return np.repeat(np.array(values, dtype), np.diff(self.edges))


class _Reader:
    """Reads the nodes of a column one after the other, each of all chunks."""

    __slots__ = ("_bytes", "_content", "_headers", "_positions", "_starts", "_stops", "_view")

    def __init__(self, content: pa.Buffer) -> None:
        self._content = content
        self._view = memoryview(content)
        self._bytes = np.frombuffer(content, np.uint8)

    def begin(self, sections: Sequence[tuple[int, int]], header_bytes: int) -> None:
        """Go to a column: its bytes of every chunk, of which the first are headers."""
        self._starts, self._stops = zip(*sections, strict=True)
        self._headers = 0
        self._positions: list[int] = [start + header_bytes for start in self._starts]
        for start, stop in sections:
            if start + header_bytes > stop:
                msg = f"a column of {stop - start} bytes is shorter than its headers"
                raise ValueError(msg)

    def end(self) -> None:
        """Raise ValueError unless the column ends where its buffers do."""
        for position, stop in zip(self._positions, self._stops, strict=True):
            if position != stop:
                msg = f"a column ends at byte {stop}, its nodes at {position}"
                raise ValueError(msg)

    def array(self, node: _Node, runs: Runs) -> pa.Array:
        """Read values of the next node, and those inside it."""
        nulls, widths, digits, bases = self._header(node)
        kind = node.kind
        for length, _, _ in runs.rows:
            if length > MAX_LENGTH:
                msg = f"a node has {length} values"
                raise ValueError(msg)
        num_values = runs.edges[-1]
        if kind is Kind.NOTHING:
            return pa.nulls(num_values)
        buffers = [self._bits(runs, nulls) if any(nulls) else None]
        children: list[pa.Array] | None = None
        if kind is Kind.NUMBERS:
            buffers.append(self._numbers(node, widths, bases, runs))
        elif kind is Kind.FLOATS:
            buffers.append(self._floats(widths, bases, digits, runs))
        elif kind is Kind.BYTES:
            offsets, inside = self._offsets(widths, bases, runs)
            buffers += [offsets, self._values(1, inside)]
        elif kind is Kind.RAW:
            buffers.append(self._values(node.value_bytes, runs))
        elif kind is Kind.BITS:
            buffers.append(self._bits(runs))
        elif kind is Kind.PARTS:
            inside = runs.times(node.times)
            children = [self.array(child, inside) for child in node.children]
        else:
            offsets, inside = self._offsets(widths, bases, runs)
            buffers.append(offsets)
            children = [self.array(child, inside) for child in node.children]
        if node.pair:
            children = [pa.StructArray.from_arrays(children, fields=node.pair)]
        return pa.Array.from_buffers(node.type, num_values, buffers, children=children)

    def _header(self, node: _Node) -> Iterable[tuple[int, ...]]:
        """Return the flags, widths, digits and bases of a node."""
        at, view = self._headers, self._view
        self._headers += NODE.size
        header = [*zip(*[NODE.unpack_from(view, at + start) for start in self._starts])]  # noqa: B905
        for flags in {*header[0]}:
            if flags & ~HAS_NULLS or (flags and node.kind is Kind.NOTHING):
                msg = f"a node of type {node.type} has flags {flags:#x}"
                raise ValueError(msg)
        for width in {*header[1]}:
            if width not in node.widths:
                msg = f"a node of type {node.type} has width {width}"
                raise ValueError(msg)
        return header

    def _take(self, chunk: int, num_bytes: int) -> int:
        """Skip a buffer of a chunk; return its position."""
        start = self._positions[chunk]
        end = start + num_bytes
        if end > self._stops[chunk]:
            msg = f"a buffer ends at byte {end}, its column at {self._stops[chunk]}"
            raise ValueError(msg)
        self._positions[chunk] = end + padding(num_bytes)
        return start

    def _take_each(self, num_bytes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Skip a buffer of each chunk; return their positions."""
        starts = np.array(self._positions)
        ends = starts + num_bytes
        if (ends > self._stops).any():
            msg = "a buffer ends behind its column"
            raise ValueError(msg)
        self._positions = (ends + -num_bytes % 8).tolist()
        return starts

    def _few_codes(
        self, widths: Sequence[int], few: Few, wide: np.dtype[Any], num_words: int = 1
    ) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[Any]]]:
        """Yield the numbers of each width that chunks have, with their places among all.

        As :meth:`_codes` has them, of shape (numbers, words).
        """
        of_chunk = np.array(widths)
        sizes = np.where(of_chunk == AS_IT_IS, num_words * wide.itemsize, of_chunk)
        starts = self._take_each(few.extents[:, 0] * sizes)[few.chunk] + few.row * sizes[few.chunk]
        of_value = of_chunk[few.chunk]
        for width in {*widths}:
            at = np.flatnonzero(of_value == width)
            size, dtype = num_words * wide.itemsize, wide
            if width != AS_IT_IS:
                size, dtype = width, _UNSIGNED[width]
            yield width, at, self._bytes[starts[at][:, None] + np.arange(size)].view(dtype)

    def _wanted(self, sizes: Iterable[int], runs: Runs) -> list[tuple[int, int]]:
        """Skip the values of each chunk, of so many bytes each; return where the wanted ones are.

        Before memory is taken for what they become: there may be none.
        """
        found = []
        for chunk, (size, (length, first, end)) in enumerate(zip(sizes, runs.rows, strict=True)):
            start = self._take(chunk, length * size)
            found.append((start + first * size, start + end * size))
        return found

    def _values(self, size: int, runs: Runs) -> pa.Buffer:
        """Read values of ``size`` bytes."""
        found = self._wanted(repeat(size, len(runs.rows)), runs)
        if runs.are_all:
            ((start, stop),) = found
            return self._content.slice(start, stop - start)
        return pa.py_buffer(b"".join([self._view[start:stop] for start, stop in found]))

    def _bits(self, runs: Runs, are_there: Sequence[int] | None = None) -> pa.Buffer:
        """Read a bitmap; the bits of chunks that have none are set."""
        if runs.are_all:
            num_bytes = -(-runs.rows[0][0] // 8)
            return self._content.slice(self._take(0, num_bytes), num_bytes)
        found = []
        for chunk, (length, first, end) in enumerate(runs.rows):
            if are_there is None or are_there[chunk]:
                start = self._take(chunk, -(-length // 8))
                bitmap = self._bytes[start : start + -(-end // 8)]
                found.append((chunk, bitmap, first, end))
        bits = np.ones(runs.edges[-1], np.uint8)
        for chunk, bitmap, first, end in found:
            into = bits[runs.edges[chunk] : runs.edges[chunk + 1]]
            into[:] = np.unpackbits(bitmap, count=end, bitorder="little")[first:]
        return pa.py_buffer(np.packbits(bits, bitorder="little"))

    def _codes(
        self, widths: Sequence[int], runs: Runs, wide: np.dtype[Any], num_words: int = 1
    ) -> list[_Codes]:
        """Return the numbers of all chunks, those of adjacent small ones of one width together.

        Those that are stored as Arrow has them are of type ``wide``, ``num_words`` for each value.
        """
        as_it_is = num_words * wide.itemsize
        found = self._wanted([as_it_is if w == AS_IT_IS else w for w in widths], runs)
        if len(found) == 1:  # as in a lookup, which has little else to do
            ((start, stop),), (width,) = found, widths
            dtype = wide if width == AS_IT_IS else _UNSIGNED[width]
            codes = self._bytes[start:stop].view(dtype)
            return [_Codes(width, slice(0, 1), runs.edges, codes)]
        are_small = runs.edges[-1] <= JOINED_ROWS * len(found)
        most = runs.edges[0] + JOINED_VALUES
        ends = []
        for chunk, (width, behind) in enumerate(pairwise([*widths, -1]), 1):
            if width != behind or not are_small or runs.edges[chunk] >= most:
                ends.append(chunk)
                most = runs.edges[chunk] + JOINED_VALUES
        groups = []
        for first, end in pairwise([0, *ends]):
            width = widths[first]
            pieces = [self._view[start:stop] for start, stop in found[first:end]]
            codes = np.frombuffer(
                pieces[0] if len(pieces) == 1 else b"".join(pieces),
                wide if width == AS_IT_IS else _UNSIGNED[width],
            )
            groups.append(_Codes(width, slice(first, end), runs.edges[first : end + 1], codes))
        return groups

    def _numbers(
        self, node: _Node, widths: Sequence[int], bases: Sequence[int], runs: Runs
    ) -> pa.Buffer:
        wide, size = node.wide, node.wide.itemsize  # type: ignore[union-attr]
        if runs.are_all and widths[0] == AS_IT_IS:
            return self._values(node.value_bytes, runs)
        num_words = node.value_bytes // size
        if runs.few is not None:
            return self._few_numbers(wide, num_words, widths, bases, runs.few)  # type: ignore[arg-type]
        groups = self._codes(widths, runs, wide, num_words)  # type: ignore[arg-type]
        # Modulo 2**64, or less where the type is narrower: bases may be negative.
        bases = [base % (1 << 8 * size) for base in bases]
        # The lower word of a decimal has the number, the upper one is nought of most.
        buffer, values = _allocated(runs.edges[-1] * num_words, wide)  # type: ignore[arg-type]
        words = values.reshape(-1, num_words)
        words[:, 1:] = 0
        low = words[:, 0]
        for group in groups:
            at = group.at
            if group.width == AS_IT_IS:
                words[at] = group.codes.reshape(-1, num_words)
                continue
            np.add(group.codes, group.each(bases, wide), out=low[at], dtype=wide)  # type: ignore[arg-type]
            if num_words > 1 and (group.width == size or max(bases[group.chunks]) >= 1 << 62):
                np.right_shift(low[at].view("<i8"), 63, out=words[at, 1].view("<i8"))
        return buffer

    def _few_numbers(
        self,
        wide: np.dtype[Any],
        num_words: int,
        widths: Sequence[int],
        bases: Sequence[int],
        few: Few,
    ) -> pa.Buffer:
        words = np.zeros((len(few.chunk), num_words), wide)
        added = np.array([base % (1 << 8 * wide.itemsize) for base in bases], wide)
        for width, at, codes in self._few_codes(widths, few, wide, num_words):
            if width == AS_IT_IS:
                words[at] = codes
                continue
            low = np.add(codes[:, 0], added[few.chunk[at]], dtype=wide)
            words[at, 0] = low
            if num_words > 1:
                words[at, 1] = (low.view("<i8") >> 63).view(wide)
        return pa.py_buffer(words)

    def _few_floats(
        self, widths: Sequence[int], bases: Sequence[int], digits: Sequence[int], few: Few
    ) -> pa.Buffer:
        values = np.empty(len(few.chunk), _FLOAT)
        for width, number in {*zip(widths, digits, strict=True)}:
            _check_digits(0 if width == AS_IT_IS else number)
        added, powers = np.array(bases), np.array([10.0**number for number in digits])
        for width, at, codes in self._few_codes(widths, few, _FLOAT):
            chunk = few.chunk[at]
            if width == AS_IT_IS:
                values[at] = codes[:, 0]
                continue
            values[at] = np.add(codes[:, 0], added[chunk], dtype=np.int64) / powers[chunk]
        return pa.py_buffer(values)

    def _floats(
        self, widths: Sequence[int], bases: Sequence[int], digits: Sequence[int], runs: Runs
    ) -> pa.Buffer:
        if runs.are_all and widths[0] == AS_IT_IS:
            return self._values(_FLOAT.itemsize, runs)
        if runs.few is not None:
            return self._few_floats(widths, bases, digits, runs.few)
        groups = self._codes(widths, runs, _FLOAT)
        buffer, values = _allocated(runs.edges[-1], _FLOAT)
        powers = [10.0**number for number in digits]
        for group in groups:
            if group.width == AS_IT_IS:
                values[group.at] = group.codes
                continue
            for number in digits[group.chunks]:
                _check_digits(number)
            integers: npt.NDArray[Any] = group.codes
            if any(bases[group.chunks]):
                integers = np.add(group.codes, group.each(bases, _INTEGER), dtype=_INTEGER)
            np.divide(integers, group.each(powers, _FLOAT), out=values[group.at], dtype=_FLOAT)
        return buffer

    def _offsets(
        self, widths: Sequence[int], bases: Sequence[int], runs: Runs
    ) -> tuple[pa.Buffer, Runs]:
        """Return the offsets of what is wanted, and what is inside of that."""
        if runs.few is not None:
            return self._few_offsets(widths, bases, runs.few)
        whole = Runs.of([(length, 0, length) for length, _, _ in runs.rows])
        groups = self._codes(widths, whole, _OFFSET)
        most = 0
        for (length, _, _), width, base in zip(runs.rows, widths, bases, strict=True):
            most += length * (base + (1 << 8 * width) - 1)
            _check_base(length, width, base)
        # Nearly always the widths alone show that they fit together, without adding.
        if most > MAX_LENGTH:
            total = sum(
                length * base for (length, _, _), base in zip(runs.rows, bases, strict=True)
            )
            total += sum(int(group.codes.sum(dtype=np.int64)) for group in groups)
            if total > MAX_LENGTH:
                raise _too_long(total)
        around = [(0, 0)] * len(runs.rows)
        if whole.edges[-1] > runs.edges[-1]:
            groups, around = _wanted_lengths(groups, bases, runs)
        buffer, offsets = _allocated(runs.edges[-1] + 1, _OFFSET)
        offsets[0] = 0
        sizes = offsets[1:]
        for group in groups:
            added = group.each(bases, _OFFSET)
            np.add(group.codes, added, out=sizes[group.at], dtype=_OFFSET, casting="unsafe")
        np.add.accumulate(sizes, 0, _OFFSET, sizes)
        # No length is negative, so the last sum is the largest.
        ends = offsets[runs.edges].tolist()
        inside = [
            (before + stop - start + after, before, before + stop - start)
            for (before, after), (start, stop) in zip(around, pairwise(ends), strict=True)
        ]
        return buffer, Runs.of(inside)

    def _few_offsets(
        self, widths: Sequence[int], bases: Sequence[int], few: Few
    ) -> tuple[pa.Buffer, Runs]:
        lengths, first, end = few.extents.T
        starts = self._take_each(lengths * widths)
        stops = starts + lengths * widths
        each = zip(starts.tolist(), stops.tolist(), widths, strict=True)
        codes = np.concatenate(
            [
                *(self._bytes[start:stop].view(_UNSIGNED[width]) for start, stop, width in each),
                np.zeros(1, np.uint8),  # so that what is behind all has a place
            ]
        )
        ends = lengths.cumsum()
        begins = ends - lengths
        edges = np.stack([begins, begins + first, begins + end, ends], axis=1)
        sums = np.add.reduceat(codes, edges.ravel(), dtype=np.int64).reshape(-1, 4)[:, :3]
        sums[np.diff(edges) == 0] = 0
        for number, width, base in zip(lengths.tolist(), widths, bases, strict=True):
            _check_base(number, width, base)
        added = np.array(bases)
        sums += np.stack([first, end - first, lengths - end], axis=1) * added[:, None]
        if int(sums.sum()) > MAX_LENGTH:
            raise _too_long(int(sums.sum()))
        offsets = np.zeros(len(few.chunk) + 1, _OFFSET)
        wanted = codes[begins[few.chunk] + few.row] + added[few.chunk]
        wanted.cumsum(out=offsets[1:])
        inside = np.stack([sums.sum(axis=1), sums[:, 0], sums[:, 0] + sums[:, 1]], axis=1)
        return pa.py_buffer(offsets), Runs.of([*map(tuple, inside.tolist())])


def _allocated(num_values: int, dtype: np.dtype[Any]) -> tuple[pa.Buffer, npt.NDArray[Any]]:
    """Return memory for values, as a buffer and as an array.

    Of Arrow's pool, which keeps what is given back: the system hands out new pages one by one, each
    cleared first, which takes longer than to unpack values into them.
    """
    buffer = pa.allocate_buffer(num_values * dtype.itemsize)
    return buffer, np.frombuffer(buffer, dtype)


def _wanted_lengths(
    groups: Sequence[_Codes], bases: Sequence[int], runs: Runs
) -> tuple[list[_Codes], list[tuple[int, int]]]:
    """Return the lengths that are wanted of all, and of each chunk the sums before and after."""
    wanted, around = [], []
    for group in groups:
        pieces = []
        numbers = range(len(runs.rows))[group.chunks]
        for chunk, (start, stop) in zip(numbers, pairwise(group.edges), strict=True):
            length, first, end = runs.rows[chunk]
            codes, base = group.codes[start - group.edges[0] : stop - group.edges[0]], bases[chunk]
            before = after = 0
            if end - first < length:
                before = first * base + int(codes[:first].sum(dtype=np.int64))
                after = (length - end) * base + int(codes[end:].sum(dtype=np.int64))
            around.append((before, after))
            pieces.append(codes[first:end])
        edges = runs.edges[numbers.start : numbers.stop + 1]
        codes = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        wanted.append(group._replace(edges=edges, codes=codes))
    return wanted, around


def _check_base(num_lengths: int, width: int, base: int) -> None:
    """Raise ValueError where lengths exceed any offset; also of none: a base has 32 bits."""
    if not 0 <= base <= MAX_LENGTH or num_lengths * base > MAX_LENGTH:
        msg = f"{num_lengths} lengths of {width} bytes, of {base} or more"
        raise ValueError(msg)


def _too_long(total: int) -> ValueError:
    return ValueError(f"lengths add up to {total}")


def _check_digits(digits: int) -> None:
    if digits > MAX_DIGITS:
        msg = f"floats of {digits} digits"
        raise ValueError(msg)


_FLOAT, _INTEGER, _OFFSET = np.dtype("<f8"), np.dtype("<i8"), np.dtype("<i4")
_UNSIGNED = {width: np.dtype(f"<u{width}") for width in WIDTHS}
