"""How a reader of any language answers the kit: a line of JSON for each line of JSON.

A line asks for rows, ``{"shuffle": path, "version": number, "rows": path}``. The reader writes them
to the second path as an Arrow IPC file: by subpartition, each in reading order, with the schema of
the version and its number in a last column ``_subpartition`` (int32, not nullable). Rows that every
subpartition reads are in each. It answers ``{"answer": "rows"}``; or ``"damage"``, ``"newer"``,
``"absent"``, and why, where it refuses the version.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def serve(read: Callable[[Path, int], pa.Table], refusals: Mapping[type[Exception], str]) -> None:
    """Answer the lines of standard input until it ends.

    Parameters
    ----------
    read
        Returns the rows of a version.
    refusals
        The answer to each error that it raises; any other is ``"untyped"``.
    """
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            rows = read(Path(asked["shuffle"]), asked["version"])
            with pa.ipc.new_file(asked["rows"], rows.schema) as out:
                out.write_table(rows)
            said = {"answer": "rows"}
        except Exception as error:
            kinds = (answer for kind, answer in refusals.items() if isinstance(error, kind))
            said = {"answer": next(kinds, "untyped"), "why": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), flush=True)
