"""A dataset of files as the source of a write in one process: one task reads all of them.

Loaded where there is one: PyArrow's datasets import pandas, which takes 0.3 s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.dataset as ds

from arrow_format.scan.scan import ScannedRows, plan_scan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa


def is_of_files(dataset: ds.Dataset) -> bool:
    """Whether a dataset consists of files; PyArrow gives a reader of the others."""
    if isinstance(dataset, ds.UnionDataset):
        return all(map(is_of_files, dataset.children))
    return isinstance(dataset, ds.FileSystemDataset)


def rows_of_files(
    dataset: ds.Dataset, *, for_spark: bool
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return schema and rows of a dataset of files, in a generator to be closed.

    Raises as :func:`~arrow_format.scan.scan.plan_scan` and the rows as its
    :meth:`~arrow_format.scan.scan.DatasetScan.read`.
    """
    scan = plan_scan(dataset, parallelism=1, num_tasks=1, for_spark=for_spark)
    return scan.schema, scan.read(0)


def columns_of_files(
    dataset: ds.Dataset, columns: Sequence[str], *, for_spark: bool
) -> ScannedRows:
    """Return some columns of a dataset of files, for a sample; raises as :func:`rows_of_files`."""
    scan = plan_scan(dataset, parallelism=1, num_tasks=1, columns=columns, for_spark=for_spark)
    return ScannedRows(scan)
