"""Calls of a user's function for each subpartition of one input or several."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from arrow_format.arrays.stored_types import conform, in_time_zone
from arrow_format.operators.results import results_of
from arrow_format.operators.subpartition_readers import each_subpartition, row_source

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    import pyarrow as pa

    from arrow_format.operators.inputs import InputSlice
    from arrow_format.operators.placement import Result
    from arrow_format.operators.subpartition_readers import RowSource


@dataclass(frozen=True)
class EachSubpartition:
    """Calls the user's function for subpartitions, and checks its results."""

    inputs: tuple[InputSlice, ...]
    function: Callable[..., Iterable[pa.RecordBatch]]
    schema: pa.Schema
    time_zone: str | None
    """Of the timestamps that the function reads; as they are stored when None."""

    def __call__(self, subpartitions: Sequence[int]) -> Generator[Result]:
        """Yield the results of the function, subpartition after subpartition."""
        paths = ", ".join(each.rows.path for each in self.inputs)
        sources: list[RowSource] = [
            row_source(each.rows, subpartitions, each.columns) for each in self.inputs
        ]
        if self.time_zone is not None:
            sources = [RowSourceInTimeZone(source, self.time_zone) for source in sources]
        with closing(each_subpartition(subpartitions, sources)) as turns:
            for subpartition, readers in turns:
                where = f"subpartition {subpartition} of {paths}"
                call = partial(self.function, subpartition, *readers)
                for batch in results_of(call, self.schema, caller="map_subpartitions", where=where):
                    yield range(subpartition, subpartition + 1), batch
                # They would keep the rows of a broadcast shuffle.
                del readers, call


class RowSourceInTimeZone:
    """Reads rows through another reader of subpartitions, with timestamps in a time zone."""

    def __init__(self, source: RowSource, time_zone: str) -> None:
        self._source = source
        self.schema = in_time_zone(source.schema, time_zone)

    def batches_of(self, subpartition: int) -> Generator[pa.RecordBatch]:
        """Yield the rows of a subpartition."""
        with closing(self._source.batches_of(subpartition)) as batches:
            for batch in batches:
                yield conform(batch, self.schema)
                del batch  # before the next is read

    def close(self) -> None:
        """Stop reading."""
        self._source.close()
