"""A dataset of files as the source of a write in one process: one task reads all of them.

Loaded where there is one: PyArrow's datasets import pandas, which takes 0.3 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds

from arrow_format.ingest.scan import ScannedRows, plan_scan, selected_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from arrow_format.ingest.scan import DatasetScan


def is_of_files(dataset: ds.Dataset) -> bool:
    """Whether a dataset consists of files; PyArrow gives a reader of the others."""
    if isinstance(dataset, ds.UnionDataset):
        return all(map(is_of_files, dataset.children))
    return isinstance(dataset, ds.FileSystemDataset)


@dataclass(frozen=True)
class FileRows:
    """Some columns and rows of a dataset of files; its methods raise as :func:`plan_scan`."""

    dataset: ds.Dataset
    columns: Sequence[str] | None
    """Names, in output order; all when None."""
    filter: ds.Expression | None
    """Rows for which it is true are read, besides the filter of the dataset itself."""

    @property
    def schema(self) -> pa.Schema:
        """Of the rows, as the dataset has it."""
        schema = self.dataset.schema
        if self.columns is None:
            return schema
        return pa.schema([schema.field(name) for name in selected_names(schema, self.columns)])

    def read(self, *, for_spark: bool) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return schema and rows, in a generator to be closed.

        They raise as :meth:`~arrow_format.ingest.scan.DatasetScan.read`.
        """
        scan = self._planned(self.columns, for_spark=for_spark)
        return scan.schema, scan.read(0)

    def for_sample(self, columns: Sequence[str], *, for_spark: bool) -> ScannedRows:
        """Return these columns of the rows."""
        return ScannedRows(self._planned(columns, for_spark=for_spark))

    def _planned(self, columns: Sequence[str] | None, *, for_spark: bool) -> DatasetScan:
        return plan_scan(
            self.dataset,
            parallelism=1,
            num_tasks=1,
            columns=columns,
            filter=self.filter,
            for_spark=for_spark,
        )
