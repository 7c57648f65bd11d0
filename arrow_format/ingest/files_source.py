"""A dataset of files as the source of a write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds

from arrow_format.ingest.scan import ScannedRows, plan_scan, selected_names
from arrow_format.keys.range_partitioner import RangePartitioner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.ingest.scan import DatasetScan


def is_of_files(dataset: ds.Dataset) -> bool:
    """Whether a dataset consists of files; PyArrow gives a reader of the others."""
    if isinstance(dataset, ds.UnionDataset):
        return all(map(is_of_files, dataset.children))
    return isinstance(dataset, ds.FileSystemDataset)


@dataclass(frozen=True)
class FilesSource:
    """Some columns and rows of a dataset of files; its methods raise as :func:`plan_scan`."""

    dataset: ds.Dataset
    columns: Sequence[str] | None
    """Names, in output order; all when None."""
    filter: ds.Expression | None
    """Rows for which it is true are read, besides the filter of the dataset itself."""

    reads_ahead = True

    @property
    def schema(self) -> pa.Schema:
        """Of the rows, as the dataset has it."""
        schema = self.dataset.schema
        if self.columns is None:
            return schema
        return pa.schema([schema.field(name) for name in selected_names(schema, self.columns)])

    def plan(
        self,
        *,
        for_spark: bool,
        parallelism: int = 1,
        num_tasks: int | None = None,
        subpartition: str | None = None,
    ) -> DatasetScan:
        """Plan the scan; see :class:`~arrow_format.ingest.source.Source`."""
        del subpartition
        return plan_scan(
            self.dataset,
            parallelism=parallelism,
            num_tasks=num_tasks,
            columns=self.columns,
            filter=self.filter,
            for_spark=for_spark,
        )

    def sample(
        self, ranges: RangePartitioner, num_subpartitions: int, *, for_spark: bool
    ) -> RangePartitioner:
        """Read key columns and those of the filter twice: to count rows, and to take some."""
        names = [name for name, _ in ranges.keys]
        part = FilesSource(self.dataset, names, self.filter)
        rows = ScannedRows(part.plan(for_spark=for_spark, num_tasks=1))
        return RangePartitioner.sampled(rows, ranges.keys, num_subpartitions)
