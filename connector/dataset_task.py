"""Map tasks that read a dataset of files or a table themselves, so that no row enters the JVM.

Spark starts the tasks and collects their statuses. Apart from :mod:`connector.map_task`, whose
tasks must not load the scans.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from arrow_format.errors import SchemaError
from arrow_format.jobs.job import begin_job
from connector.map_task import NumberedMapTask, begin_spark_job, options_of_tasks
from connector.spark_types import arrow_schema_of, spark_schema_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from arrow_format.ingest.scan import Scan
    from arrow_format.keys.partitioner import Partitioner
    from arrow_format.options import WriteOptions
    from arrow_format.storage.open import Place


class DatasetMapTask(NumberedMapTask):
    """Scans the part of a dataset that has its number, and writes the shuffle.

    Other arguments are those of :class:`~connector.map_task.ShuffleMapTask`.
    """

    reads_ahead = True

    def __init__(
        self,
        path: Place,
        scan: Scan,
        *,
        num_subpartitions: int,
        partitioner: Partitioner,
        sort_by: Sequence[str | tuple[str, str]] | None = (),
        combine: Mapping[str, str] | None = None,
        options: WriteOptions | None = None,
    ) -> None:
        try:
            spark_schema = spark_schema_of(scan.schema)
            arrow_schema_of(spark_schema)
        except SchemaError:  # Spark lacks a type: the shuffle is one without a Spark schema
            begin = partial(begin_job, path, scan.schema)
        else:
            begin = partial(begin_spark_job, path, spark_schema)
        job = begin(
            num_subpartitions=num_subpartitions,
            partitioner=partitioner,
            sort_by=sort_by,
            combine=combine,
            options=options_of_tasks(options),
        )
        super().__init__(job, scan.read)
