"""Map statuses on their way from the tasks to the committing process, kept small.

Rows and bytes per subpartition travel compressed up to 64 KiB; larger ones stay behind, and the
commit reads them from the indexes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrow_format.errors import ShuffleError
from arrow_format.log.entry import output_from_json, output_to_json
from arrow_format.log.totals_file import encode_totals, read_totals
from arrow_format.model import MapStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TOTALS_BYTES = 64 << 10


def status_to_row(status: MapStatus) -> dict[str, Any]:
    """Row of a status, by column name of the status schema."""
    totals = None
    if status.subpartition_rows is not None and status.subpartition_bytes is not None:
        totals = encode_totals(status.subpartition_rows, status.subpartition_bytes)
    return {
        "map_task": status.output.map_task,
        "attempt": status.output.attempt,
        "num_rows": status.output.num_rows,
        "num_bytes": status.output.num_bytes,
        "map_output": json.dumps(output_to_json(status.output)),
        "totals": totals if totals is not None and len(totals) <= MAX_TOTALS_BYTES else None,
    }


def status_from_row(row: Mapping[str, Any], num_subpartitions: int) -> MapStatus:
    """Inverse of :func:`status_to_row`, from a Spark row or a dict.

    Raises
    ------
    ShuffleError
        It is not a map status.
    """
    try:
        output = output_from_json(json.loads(row["map_output"]))
        if row["totals"] is None:
            return MapStatus(output)
        return MapStatus(output, *read_totals(pa.py_buffer(row["totals"]), num_subpartitions))
    except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
        msg = (
            f"not a map status of ShuffleMapTask ({type(error).__name__}: {error}); pass what "
            "df.mapInArrow(task, task.status_schema).collect() returned"
        )
        raise ShuffleError(msg) from error
