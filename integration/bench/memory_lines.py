"""Lines of the table on memory and open files, from what one stream took. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from integration.bench import targets
from integration.bench.results import Line, Target, amount_line

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB = 1 << 20


def memory_limit(base_bytes: int, sort_buffer_bytes: int, largest_batch_bytes: int) -> int:
    """Bytes that a map task may take at most, as users are promised."""
    return base_bytes + sort_buffer_bytes * 5 // 4 + 64 * MIB + largest_batch_bytes


def memory_lines(case: str, found: Mapping[str, Any]) -> list[Line]:
    """Lines of the table on one stream; ``found`` is the answer of ``stream_once``."""
    limit = memory_limit(
        found["base_bytes"], found["sort_buffer_bytes"], found["largest_batch_bytes"]
    )
    lines = [
        amount_line(
            case,
            f"peak RSS, limit = 1 (base {found['base_bytes'] / MIB:.0f} MiB)",
            ("peak", found["peak_bytes"] / MIB),
            ("limit", limit / MIB),
            "MiB",
            targets.PEAK_MEMORY,
        ),
    ]
    if found["open_files"] is not None:
        lines.append(
            amount_line(
                case,
                "open files, most allowed = 1",
                ("open", found["open_files"]),
                ("allowed", targets.MAX_OPEN_FILES),
                "files",
                Target(at_most=1),
            )
        )
    return lines
