"""How many subpartitions a shuffle gets where its writer does not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.errors import OptionError
from arrow_format.keys.partitioner import ColumnPartitioner
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.read.presentation import count_of, format_bytes

if TYPE_CHECKING:
    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.keys.partitioner import Partitioner
    from arrow_format.log.state import VersionShape

SUBPARTITION_BYTES = 32 << 20
"""Bytes of rows in memory that a subpartition has at most: a join takes it in one pass."""

LEAST_BYTES = 1 << 20
"""A subpartition of fewer gives a core too little to do."""

MOST = 1 << 14

MUCH_BETTER = 4
"""The receipt names a better number where this one is so many times too large or too small."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A number of subpartitions that the user left out."""

    number: int
    reason: str
    cores: int
    """That work on the subpartitions concurrently."""

    def note(self, receipt: ShuffleReceipt) -> str:
        """Say what was chosen, and what would have been better by the bytes that were written."""
        said = f"{count_of(self.number, 'subpartition')}, {self.reason}"
        raw_bytes = receipt.counters.get("raw_bytes", 0)
        better = number_for(raw_bytes, self.cores)
        if 1 / MUCH_BETTER < self.number / better < MUCH_BETTER:
            return said
        return (
            f"{said}; by the {format_bytes(raw_bytes)} of rows that were written, "
            f"num_subpartitions={better} would have been better"
        )


def number_for(num_bytes: int, cores: int) -> int:
    """Return a power of two: each subpartition has at most :data:`SUBPARTITION_BYTES`.

    There are two for each core where they have :data:`LEAST_BYTES`, and :data:`MOST` at most.
    """
    by_bytes = -(-num_bytes // SUBPARTITION_BYTES)
    by_cores = min(2 * cores, num_bytes // LEAST_BYTES)
    return min(MOST, 1 << (max(by_bytes, by_cores, 1) - 1).bit_length())


def by_bytes(num_bytes: int | None, cores: int) -> Choice:
    """Choose by the bytes of rows; raises OptionError where they are not known."""
    if num_bytes is None:
        msg = (
            "num_subpartitions: give it, 1 to 1,000,000; how many bytes the rows have is only "
            f"known when they were read. One for each {format_bytes(SUBPARTITION_BYTES)} is enough"
        )
        raise OptionError(msg)
    return Choice(number_for(num_bytes, cores), f"by {format_bytes(num_bytes)} of rows", cores)


def of_new_files(given: int, shape: VersionShape | None) -> int:
    """Return how many subpartitions files have that are added to a shuffle, where a write asks.

    Once it was rescaled that says it: what a write or a stream gives is of when it was set up.
    ``shape`` is that of the shuffle, None where it begins.
    """
    return given if shape is None or shape.rescaled_to is None else shape.rescaled_to


def settled(partitioner: Partitioner, shape: VersionShape | None) -> int | None:
    """Return the number that the shuffle that is there has, or bounds of ranges; None for neither.

    That of the shuffle counts if the bounds fit it. Raises OptionError where a column of the rows
    has the subpartitions, and no shuffle says how many there are.
    """
    bounds = partitioner.bounds if isinstance(partitioner, RangePartitioner) else None
    num_ranges = 0 if bounds is None else bounds.num_rows + 1
    if shape is not None and shape.new_subpartitions >= num_ranges:
        return shape.new_subpartitions
    if num_ranges:
        return num_ranges
    if isinstance(partitioner, ColumnPartitioner):
        msg = (
            f"num_subpartitions: give it; column {partitioner.column!r} has the subpartitions, and "
            "no row says how many there are"
        )
        raise OptionError(msg)
    return None
