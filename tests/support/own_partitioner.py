"""A partitioner of a user's own, of which no key says where its rows are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from arrow_format.keys.partitioner import Assign


@dataclass(frozen=True, repr=False)
class OwnPartitioner:
    """Places rows as a function says that gets a batch and the number of subpartitions."""

    place: Callable[[pa.RecordBatch, int], Any]
    description: Any = field(default_factory=lambda: {"kind": "own"})
    column: str | None = None
    """What a schema must have."""

    def describe(self) -> Any:
        return self.description

    def check(self, schema: pa.Schema) -> None:
        if self.column is not None:
            schema.field(self.column)

    def bind(self, schema: pa.Schema, num_subpartitions: int, map_task: int) -> Assign:
        return lambda batch: self.place(batch, num_subpartitions)
