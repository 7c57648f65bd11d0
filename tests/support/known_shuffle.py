"""What plans look at of a shuffle: they need no files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from arrow_format.model import MapOutput


@dataclass
class KnownShuffle:
    partitioner: Any
    schema: pa.Schema
    path: str = "/s"
    num_subpartitions: int = 4
    map_outputs: tuple[MapOutput, ...] = ()
    combine: dict[str, str] = field(default_factory=dict)
