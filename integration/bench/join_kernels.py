"""Ways to join two tables in memory, on the groups that a task joins; runs in a fresh process.

Ours as :func:`connector.join_shuffles` uses it, Acero's hash join, and DuckDB's; the last two also
on row numbers alone, with the rest taken by number, as they must where a column is nested.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from arrow_format import open_shuffle
from arrow_format.operators.hash_join import Indexed, join_blocks
from arrow_format.operators.join_plan import plan_join
from arrow_format.read.plan import group_adjacent

KEYS = ("l_orderkey", "o_orderkey")
GROUP_BYTES = 48 << 20
"""Raw bytes of both sides that a join by default options holds."""

MOST_GROUPS = 12

Join = Callable[[pa.RecordBatch, pa.RecordBatch], int]
"""Joins two sides, in whole, and says how many rows came out."""


def _ours(plan: Any) -> Join:  # noqa: ANN401
    def join(left: pa.RecordBatch, right: pa.RecordBatch) -> int:
        held = Indexed(right, plan, is_left=False)
        return sum(found.num_rows for found in join_blocks(held, left.schema, [left], plan))

    return join


def _tables(left: pa.RecordBatch, right: pa.RecordBatch) -> tuple[pa.Table, pa.Table]:
    return pa.Table.from_batches([left]), pa.Table.from_batches([right])


def _numbered(batch: pa.RecordBatch, key: str, name: str) -> pa.Table:
    return pa.table({key: batch.column(key), name: pa.array(np.arange(batch.num_rows))})


def _taken(left: pa.RecordBatch, right: pa.RecordBatch, pairs: pa.Table) -> int:
    sides = left.take(pairs["i"].combine_chunks()), right.take(pairs["j"].combine_chunks())
    return int(sides[0].num_rows)


def _acero(left: pa.RecordBatch, right: pa.RecordBatch) -> int:
    one, other = _tables(left, right)
    return int(one.join(other, *KEYS, join_type="inner", use_threads=False).num_rows)


def _acero_rows(left: pa.RecordBatch, right: pa.RecordBatch) -> int:
    one, other = _numbered(left, KEYS[0], "i"), _numbered(right, KEYS[1], "j")
    return _taken(left, right, one.join(other, *KEYS, join_type="inner", use_threads=False))


def _duckdb(*, rows_only: bool) -> Join:
    import duckdb

    connection = duckdb.connect(config={"threads": 1})

    def join(left: pa.RecordBatch, right: pa.RecordBatch) -> int:
        one, other = (
            (_numbered(left, KEYS[0], "i"), _numbered(right, KEYS[1], "j"))
            if rows_only
            else _tables(left, right)
        )
        relation = connection.from_arrow(one).join(
            connection.from_arrow(other), f"{KEYS[0]} = {KEYS[1]}"
        )
        found = relation.to_arrow_table()
        return _taken(left, right, found) if rows_only else int(found.num_rows)

    return join


KERNELS = ("ours", "Acero", "Acero, row numbers", "DuckDB", "DuckDB, row numbers")


def join_once(kernel: str, shuffles: str, repeat: int) -> dict[str, Any]:
    """Join some of the groups of two shuffles in memory, a few times.

    Parameters
    ----------
    kernel
        One of :data:`KERNELS`.
    shuffles
        Directory with the shuffles ``items`` and ``orders``.
    repeat
        Rounds.

    Returns
    -------
    dict
        ``seconds`` of each round, for all groups; ``num_rows`` that came out in one.
    """
    left, right = (open_shuffle(Path(shuffles) / name) for name in ("items", "orders"))
    plan = plan_join(left, right, on=[KEYS])
    join = {
        "ours": lambda: _ours(plan),
        "Acero": lambda: _acero,
        "Acero, row numbers": lambda: _acero_rows,
        "DuckDB": lambda: _duckdb(rows_only=False),
        "DuckDB, row numbers": lambda: _duckdb(rows_only=True),
    }[kernel]()
    raw_bytes = left.raw_bytes.to_numpy() + right.raw_bytes.to_numpy()
    groups = group_adjacent(raw_bytes, GROUP_BYTES)[:MOST_GROUPS]

    def whole(shuffle: Any, first: int, end: int) -> pa.RecordBatch:  # noqa: ANN401
        return pa.concat_batches([run.batch for run in shuffle.reader(first, end)])

    sides = [(whole(left, *group), whole(right, *group)) for group in groups]
    seconds = []
    for _ in range(repeat + 1):
        started = time.perf_counter()
        num_rows = sum(join(*pair) for pair in sides)
        seconds.append(time.perf_counter() - started)
    return {"seconds": seconds[1:], "num_rows": num_rows}
