"""Results of tasks that the tasks write as a shuffle themselves, so that they stay partitioned."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from arrow_format.arrays.stored_types import data_schema
from arrow_format.errors import OptionError
from arrow_format.jobs.job import begin_job
from arrow_format.jobs.target import newest_entry
from arrow_format.operators.placement import Placement, plan_placement
from arrow_format.options import ReadOptions, WriteOptions, check_mode, check_read_options
from arrow_format.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    import pyarrow as pa

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.operators.tasks import GroupResults, Operation
    from arrow_format.options import WriteMode
    from arrow_format.read.rows import Rows
    from arrow_format.storage.open import Place, Storage


@dataclass(frozen=True)
class Into:
    """Where results are written as a shuffle, and how."""

    storage: Storage
    keys: str | Sequence[str] | None
    num_subpartitions: int | None
    mode: WriteMode
    options: WriteOptions | None

    def begin(
        self,
        operation: Operation,
        results: GroupResults,
        schema: pa.Schema,
        begin: Callable[..., ShuffleJob] = begin_job,
    ) -> tuple[ShuffleJob, PlacedRows]:
        """Return the job that writes the results of an operation, and the rows of its map tasks.

        A map task writes the results of the group that has its number. ``schema`` is that of what
        is stored; ``begin`` begins the job, by default without types of Spark.
        """
        stored = data_schema(schema)
        placement = plan_placement(
            operation.placed_as,
            stored,
            operation.names,
            keys=self.keys,
            num_subpartitions=self.num_subpartitions,
        )
        existing = newest_entry(self.storage) if self.mode == "append" else None
        job = begin(
            self.storage,
            schema,
            num_subpartitions=placement.num_subpartitions,
            partitioner=placement.partitioner,
            sort_by=() if existing is None else existing.sort_by,
            combine=None if existing is None else existing.combine,
            options=self.options,
        )
        return job, PlacedRows(results, placement, stored, operation.paths)


@dataclass(frozen=True)
class PlacedRows:
    """The rows that each map task writes."""

    results: GroupResults
    placement: Placement
    schema: pa.Schema
    where: str

    def __call__(self, number: int) -> Generator[pa.RecordBatch | Rows]:
        """Yield the rows of a map task."""
        with closing(self.results(number)) as results:
            yield from self.placement.rows(results, self.schema, self.where)


Options: TypeAlias = "ReadOptions | WriteOptions | Sequence[ReadOptions | WriteOptions] | None"
"""How to read; or with ``into`` how to write; or both."""


def check_into(
    into: Place | None,
    options: Options,
    *,
    keys: str | Sequence[str] | None,
    num_subpartitions: int | None,
    mode: WriteMode,
    storage_options: Mapping[str, str] | None,
    name_of_keys: str = "keys",
) -> tuple[ReadOptions | None, Into | None]:
    """Return how to read, and where and how to write; raises OptionError.

    ``name_of_keys`` is the argument that ``keys`` was given as.
    """
    reading: ReadOptions | None = None
    writing: WriteOptions | None = None
    for given in options if isinstance(options, Sequence) else [options]:
        if isinstance(given, WriteOptions):
            writing = given
        elif given is not None:
            reading = check_read_options(given)
    mode = check_mode(mode)
    if into is not None:
        storage = open_storage(into, storage_options)
        return reading, Into(storage, keys, num_subpartitions, mode, writing)
    only_with = {
        name_of_keys: keys,
        "num_subpartitions": num_subpartitions,
        "mode": None if mode == "errorifexists" else mode,
        "options=WriteOptions(...)": writing,
    }
    for name, value in only_with.items():
        if value is not None:
            msg = f"{name}: only with into=..., the path where the result is written as a shuffle"
            raise OptionError(msg)
    return reading, None
