"""Entries of map outputs whose files are nowhere: for tests of the log alone."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.arrays.column_ids import give_ids
from arrow_format.log.commit_log import draft
from arrow_format.log.outputs import NO_OUTPUTS, MapOutputs
from arrow_format.log.state import VersionShape
from arrow_format.model import MapOutput, PartitionedFile
from tests.support.small_shuffles import SCHEMA

if TYPE_CHECKING:
    from typing import Any

    from arrow_format.log.commit_log import CommitLog
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogView

N = 4
COLUMNS = give_ids(SCHEMA, [], 0)
SHAPE = VersionShape("the-shuffle", SCHEMA, None, N, {"kind": "column", "column": "p"}, COLUMNS.ids)
FILE = PartitionedFile("a", 1, 1, 8, 8, 8, 8, 8)


def one_output(job_id: str) -> MapOutputs:
    """A map output of one row, whose file is nowhere."""
    file = PartitionedFile(f"map_outputs/{job_id}/x", 1, 1, 8, 8, 8, 8, 8)
    return MapOutputs.of([MapOutput(job_id, 0, 0, (file,))]).with_columns(COLUMNS)


def next_entry(view: LogView, operation: str = "append", **changes: Any) -> LogEntry:
    """Draft an entry of a job with one row, without files."""
    if not view.state.version and operation == "append":
        operation = "overwrite"
    fields: dict[str, Any] = {"state": {}, **changes}
    if operation in ("append", "overwrite", "pending", "pending-overwrite"):
        fields.setdefault("job_id", uuid.uuid4().hex)
        fields["map_outputs"] = one_output(fields["job_id"])
        totals = np.zeros(N, np.int64), np.zeros(N, np.int64)
        totals[0][0], totals[1][0] = 1, 8
        fields["totals"] = totals
        if operation.startswith("pending"):
            fields["pending_shape"] = SHAPE
            fields["state"] = {"last_column_id": max(COLUMNS.ids), **fields["state"]}
        else:
            fields["state"] = {
                "shape": SHAPE,
                "last_column_id": max(COLUMNS.ids),
                **fields["state"],
            }
    fields.setdefault("map_outputs", NO_OUTPUTS)
    return draft(view, operation, **fields)


def commit(log: CommitLog, operation: str = "append", **changes: Any) -> LogEntry:
    """Commit an entry of a job with one row, without files."""
    entry = log.append(lambda view: next_entry(view, operation, **changes), sync=False)
    assert entry is not None
    return entry


def fence(log: CommitLog, *jobs: str) -> LogEntry:
    return commit(log, "fence", gives_up=jobs)
