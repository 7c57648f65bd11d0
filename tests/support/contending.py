"""One process that writes, merges, reads or collects while others do; prints JSON lines.

``python -m tests.support.contending ROLE NUMBER PATH TURNS RETENTION``
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrow_format import collect_garbage, merge_shuffle, open_shuffle
from arrow_format.errors import CommitConflictError, ShuffleError, ShuffleNotFoundError
from arrow_format.options import WriteOptions
from tests.support.small_shuffles import write_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from arrow_format.options import WriteMode

N = 4
ROWS = 40

PAUSES = {"append": 0.0, "read": 0.02, "merge": 0.1, "gc": 0.2, "overwrite": 0.3}
"""Seconds between two turns."""


def work(role: str, number: int, path: str, turns: int, retention: float) -> Iterator[Any]:
    """Do the same thing several times; yield what became of each."""
    act: Callable[[int], dict[str, Any]] = {
        "append": lambda turn: _write(number, turn, path, "append"),
        "overwrite": lambda turn: _write(number, turn, path, "overwrite"),
        "merge": lambda turn: _merge(path),
        "read": lambda turn: _read(path),
        "gc": lambda turn: _collect(path, retention),
    }[role]
    for turn in range(turns):
        started = time.monotonic()
        try:
            outcome = act(turn)
        except (ShuffleError, OSError) as error:
            outcome = {"error": type(error).__name__, "message": str(error)}
            outcome["allowed"] = time.monotonic() - started >= retention and (
                (isinstance(error, CommitConflictError) and "given up" in str(error))
                or (isinstance(error, ShuffleNotFoundError) and "has expired" in str(error))
            )
            if role == "merge" and isinstance(error, CommitConflictError):
                outcome["allowed"] = True
        yield {"role": role} | outcome
        time.sleep(PAUSES[role])


def _write(number: int, turn: int, path: str, mode: WriteMode) -> dict[str, Any]:
    first = (number * 10_000 + turn) * ROWS
    rows = pa.table({"v": range(first, first + ROWS)})
    receipt = write_rows(path, rows, "v", n=N, mode=mode)
    return {"version": receipt.version, "first": first}


def _merge(path: str) -> dict[str, Any]:
    report = merge_shuffle(path, options=WriteOptions(sync=False), by="map_output")
    return {"version": report.version} if report.plan.merges else {}


def _read(path: str) -> dict[str, Any]:
    shuffle = open_shuffle(path)
    rows = shuffle.read().read_all()["v"].to_pylist()
    num_rows = sum(shuffle.subpartition_rows.to_pylist())
    firsts = sorted(v for v in rows if v % ROWS == 0)
    # Whole writes only: each of them has all of its rows.
    whole = sorted(rows) == [v for first in firsts for v in range(first, first + ROWS)]
    return {"version": shuffle.version, "firsts": firsts, "whole": whole and num_rows == len(rows)}


def _collect(path: str, retention: float) -> dict[str, Any]:
    report = collect_garbage(path, retention=timedelta(seconds=retention))
    return {"expired": len(report.expired_versions), "fenced": len(report.fenced_jobs)}


if __name__ == "__main__":
    with TemporaryDirectory() as warm:  # imports everything
        for one in ("append", "read"):
            list(work(one, 0, warm, 1, 0))
    print("ready", flush=True)
    sys.stdin.readline()
    for said in work(
        sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
    ):
        print(json.dumps(said), flush=True)
