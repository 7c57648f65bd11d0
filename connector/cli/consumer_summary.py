"""What ``arrow-shuffle consumers`` tells: lines and JSON. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from arrow_format.jobs.receipt import count_of, format_bytes
from connector.cli.charts import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.streaming.consumption import ConsumerState


def consumers_lines(path: str, consumers: Sequence[ConsumerState]) -> list[str]:
    """Describe the consumers of a shuffle, a line each."""
    lines = [f"{printable(path)}: {count_of(len(consumers), 'consumer')}"]
    widest = max((len(one.name) for one in consumers), default=0)
    for one in consumers:
        left = (
            f"{count_of(one.unconsumed_versions, 'version')} of "
            f"{format_bytes(one.unconsumed_bytes)} before it"
            if one.unconsumed_versions
            else "nothing before it"
        )
        at_work = f"at work, {printable(one.held_by)}" if one.held_by else "not at work"
        lines.append(f"  {one.name:<{widest}}  version {one.version:,}; {left}; {at_work}")
    return lines


def consumers_as_json(path: str, consumers: Sequence[ConsumerState]) -> dict[str, Any]:
    """Return the consumers as values that ``json.dumps`` takes."""
    return {"path": path, "consumers": [asdict(one) for one in consumers]}
