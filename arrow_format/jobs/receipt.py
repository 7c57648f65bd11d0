"""The receipt of a committed write: a value that users keep, and how it prints.

Apart from commits, since a process that keeps or prints a receipt need not load what commits.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.compute as pc

from arrow_format.arrays.buffers import to_scalar
from arrow_format.read.presentation import count_of, format_bytes, html_skew, html_table, size_facts
from arrow_format.report import Report
from arrow_format.write.merge_policy import MergePolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MANY_MAP_OUTPUTS = 64
"""A write of fewer is not worth a sentence: what it leaves, a merge from time to time joins."""


@dataclass(frozen=True, slots=True, eq=False)
class ShuffleReceipt(Report):
    """What one committed write added to a shuffle.

    .. code-block:: python

        receipt = orders.append(new_rows)
        print(receipt.version, receipt.num_rows, receipt.num_bytes)

    Parameters
    ----------
    path
        Absolute path or URI of the shuffle.
    version
        Version the write became, from 1.
    num_rows
        Rows written; a broadcast row counts once.
    num_replaced
        Rows of the version before that those of an upsert replaced; 0 of other writes.
    num_bytes
        Bytes of the data files on disk; indexes, about a thousandth of it, not counted.
    num_map_outputs
        Map tasks that ran, those without rows included.
    num_subpartitions
        Subpartitions of the shuffle.
    subpartition_rows
        Rows delivered to each subpartition; of an upsert less those that it replaced.
    subpartition_bytes
        Bytes of each subpartition: its share of the data files, summing to ``num_bytes``.
    counters
        What the map tasks did, added up: see :class:`arrow_format.write.counters.MapCounters`.
    is_repetition
        Whether the transaction was committed before: the receipt is that of its first commit, and
        nothing was written now. Where the entry of that was removed since, long after its version
        expired, the fields of subpartitions are 0 and empty.
    notes
        What the write chose by itself, a sentence each: the number of subpartitions if none was
        given.
    where
        ``in this process`` where a Spark session was active, and none was given; else empty.
    """

    path: str
    version: int
    num_rows: int
    num_bytes: int
    num_map_outputs: int
    num_subpartitions: int
    subpartition_rows: pa.Int64Array
    subpartition_bytes: pa.Int64Array
    counters: Mapping[str, int] = field(default_factory=dict)
    num_replaced: int = 0
    is_repetition: bool = False
    notes: tuple[str, ...] = ()
    where: str = ""

    def noting(self, *notes: str) -> Self:
        """Return it with more notes; a repetition has none, since nothing was chosen."""
        return self if self.is_repetition else replace(self, notes=(*self.notes, *notes))

    def _num_empty(self) -> int:
        rows = self.subpartition_rows
        return int(pc.sum(pc.equal(rows, to_scalar(0, rows.type))).as_py() or 0)

    @property
    def advice(self) -> str | None:
        """What would make reading this write cheaper, with the command; None where nothing would.

        A reader of a subpartition opens each map output. Of many small pieces a merge by
        subpartition makes one.
        """
        if self.num_map_outputs < MANY_MAP_OUTPUTS or not self.num_subpartitions:
            return None
        piece = self.num_bytes / (self.num_map_outputs * self.num_subpartitions)
        if piece >= MergePolicy().min_read_bytes:
            return None
        return (
            f"a subpartition is in {self.num_map_outputs:,} map outputs, with "
            f"{format_bytes(int(piece))} in each. To read it at once: "
            f"arrow-shuffle merge --by subpartition {shlex.quote(self.path)}"
        )

    def _lines(self) -> Iterator[str]:
        # How many rows each subpartition has more says nothing where others were replaced.
        empty = "" if self.num_replaced else f"({self._num_empty():,} empty) "
        subpartitions = count_of(self.num_subpartitions, f"{empty}subpartition")
        yield (
            (f"{self.where}: " if self.where else "")
            + f"shuffle {self.path} version {self.version}: {count_of(self.num_rows, 'row')}, "
            + (f"in the place of {self.num_replaced:,}, " if self.num_replaced else "")
            + f"{format_bytes(self.num_bytes)} on disk, "
            f"{count_of(self.num_map_outputs, 'map output')}, {subpartitions}"
            + ("; committed before, and nothing was written now" if self.is_repetition else "")
        )
        yield from self.notes
        if self.advice:
            yield self.advice

    def _repr_html_(self) -> str:
        sizes = size_facts(
            self.num_rows, self.num_bytes, self.num_map_outputs, self.subpartition_rows
        )
        facts = [("written", self.where)] if self.where else []
        facts += [("path", self.path), ("version", str(self.version)), *sizes]
        facts += [("note", note) for note in self.notes]
        facts += [("advice", self.advice)] if self.advice else []
        skew = html_skew(self.subpartition_rows) if self.num_subpartitions else ""
        return html_table(facts) + skew
