"""What ``arrow-shuffle plan`` tells of a read plan, as lines and as JSON. Pure."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from arrow_format.jobs.receipt import count_of, format_bytes
from arrow_format.read.explain import plan_lines
from connector.cli.charts import printable

if TYPE_CHECKING:
    from arrow_format.read.explain import ReadPlan

MAX_LINES = 200
"""Lines of a plan that are shown; ``--json`` has all."""


def read_plan_lines(plan: ReadPlan, shuffle_bytes: int) -> list[str]:
    """Describe a plan: its reads, then what they are in all.

    Parameters
    ----------
    shuffle_bytes
        Bytes of all data files of the version.
    """
    every = plan_lines(plan)
    lines = [printable(line) for line in islice(every, MAX_LINES)]
    left = sum(1 for _ in every)
    if left:
        lines.append(f"... and {left:,} more lines; --json has all")
    total = (
        f"{count_of(len(plan.reads), 'read')} of {count_of(plan.num_chunks, 'chunk')}, "
        f"{format_bytes(plan.num_bytes)} of {format_bytes(shuffle_bytes)}"
    )
    return [*lines, total]


def read_plan_as_json(plan: ReadPlan) -> dict[str, Any]:
    """Return a plan as JSON has it."""
    return {
        "num_reads": len(plan.reads),
        "num_chunks": plan.num_chunks,
        "num_bytes": plan.num_bytes,
        "groups": [
            {
                "first": group.first,
                "end": group.end,
                "files": [
                    {
                        "path": file.path,
                        "map_task": file.map_task,
                        "attempt": file.attempt,
                        "reads": [
                            {
                                "offset": read.offset,
                                "length": read.length,
                                "chunks": [[c.region, c.chunk] for c in read.chunks],
                            }
                            for read in file.reads
                        ],
                    }
                    for file in group.files
                ],
            }
            for group in plan.groups
        ],
    }
