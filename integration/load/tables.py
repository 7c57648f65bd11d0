"""The tables of ``docs/explanation/scale.md``: ``python -m integration.load.tables``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.options import WriteOptions
from integration.load.model import (
    DOLLARS_PER_GB_MONTH,
    GB,
    PB,
    TB,
    Shuffle,
    merge_cost,
    merge_tasks,
    merged,
    opened_bytes,
    read_cost,
    read_merged_cost,
    write_cost,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from integration.load.model import Cost


@dataclass(frozen=True)
class Size:
    """A shuffle of the tables, with as many tasks that read as subpartitions."""

    name: str
    stored_bytes: int
    map_outputs: int
    subpartitions: int


SIZES = (
    Size("1 TB", TB, 2_000, 2_000),
    Size("10 TB", 10 * TB, 5_000, 5_000),
    Size("100 TB", 100 * TB, 20_000, 20_000),
    Size("1 PB", PB, 100_000, 100_000),
)
WAYS = {
    "defaults": WriteOptions(),
    "`sort_buffer_bytes` of 1 GiB": WriteOptions(sort_buffer_bytes=1 << 30),
    '`rewrite="always"`': WriteOptions(rewrite="always"),
}
MERGED = WAYS["`sort_buffer_bytes` of 1 GiB"]
"""How a shuffle was written that is merged."""
READING_HEAD = ["Size", "Written", "gets", "bytes read, stored = 1", "a task waits", "requests"]


def shuffle_of(size: Size, options: WriteOptions) -> Shuffle:
    """Return a shuffle of a size, written in some way."""
    return Shuffle(size.stored_bytes, size.map_outputs, size.subpartitions, options=options)


def significant(number: float) -> str:
    """Return a number with two digits that count, without an exponent."""
    if number >= 10:
        digits = max(0, int(math.log10(number)) - 1)
        return f"{round(number, -digits):,.0f}"
    return f"{number:.1f}"


def quantity(number: float) -> str:
    """Return a large number with two digits that count."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{significant(number / limit)} {unit}"
    return significant(number)


def dollars(amount: float) -> str:
    """Return an amount of money."""
    return f"${amount:,.2f}" if amount < 10 else f"${significant(amount)}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def written() -> Iterator[str]:
    """Yield what writing takes, by size."""
    rows: list[tuple[str, Callable[[Size, Shuffle], str]]] = [
        ("map outputs, subpartitions", lambda s, _: f"{s.map_outputs:,}, {s.subpartitions:,}"),
        ("regions of a map output", lambda _, f: f"{f.regions:,}"),
        ("index of a map output, bytes", lambda _, f: quantity(f.index_bytes)),
        ("all indexes, bytes", lambda _, f: quantity(f.map_outputs * f.index_bytes)),
        ("statuses that the driver gets, bytes", lambda _, f: quantity(f.driver_bytes)),
        ("memory of an open shuffle, bytes", lambda _, f: quantity(opened_bytes(f))),
        ("puts", lambda _, f: quantity(write_cost(f).puts)),
        ("requests", lambda _, f: dollars(write_cost(f).dollars)),
        (
            "storage for a month",
            lambda s, _: dollars(s.stored_bytes / GB * DOLLARS_PER_GB_MONTH),
        ),
    ]
    shuffles = [(size, shuffle_of(size, WriteOptions())) for size in SIZES]
    cells = [[name, *(cell(*one) for one in shuffles)] for name, cell in rows]
    return table(["Written with defaults", *(size.name for size in SIZES)], cells)


def read() -> Iterator[str]:
    """Yield what reading takes, by size and by how it was written."""
    rows = []
    for size in SIZES:
        for name, options in WAYS.items():
            cost = read_cost(shuffle_of(size, options), size.subpartitions)
            rows.append([size.name, name, *_reading(cost, size)])
        cost = read_merged_cost(shuffle_of(size, MERGED), size.subpartitions)
        rows.append([size.name, "the second, merged by subpartition", *_reading(cost, size)])
    return table(READING_HEAD, rows)


def merging() -> Iterator[str]:
    """Yield what a merge by subpartition takes, by how the shuffle was written."""
    rows = []
    for size in SIZES:
        for name, options in WAYS.items():
            shuffle = shuffle_of(size, options)
            file = merged(shuffle)
            facts = [
                f"{merge_tasks(shuffle):,}",
                quantity(file.stored_bytes),
                f"{file.regions:,}",
                *_reading(merge_cost(shuffle), size),
            ]
            rows.append([size.name, name, *facts])
    head = [*READING_HEAD[:2], "tasks", "bytes of a file", "its regions", *READING_HEAD[2:]]
    return table(head, rows)


def _reading(cost: Cost, size: Size) -> list[str]:
    seconds = cost.waiting_seconds()
    hours = seconds >= 3600
    waits = f"{significant(seconds / 3600)} h" if hours else f"{significant(seconds)} s"
    return [
        quantity(cost.gets),
        significant(cost.read_bytes / size.stored_bytes),
        waits,
        dollars(cost.dollars),
    ]


TABLES = (written, read, merging)

if __name__ == "__main__":
    for one in TABLES:
        print("\n".join(one()), end="\n\n")
