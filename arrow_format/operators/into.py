"""Results of tasks that the tasks write as a shuffle themselves, so that they stay partitioned."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrow_format.arrays.stored_types import data_schema
from arrow_format.errors import OptionError
from arrow_format.jobs.job import begin_job, log_before_write
from arrow_format.jobs.num_subpartitions import of_new_files
from arrow_format.keys.partitioner import Partitioner, key_columns, partitioner_from_description
from arrow_format.operators.placement import Placement, plan_placement
from arrow_format.options import WriteOptions, keeps_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.log.reader import LogView
    from arrow_format.model import Transaction
    from arrow_format.operators.task_plan import GroupResults, TaskPlan
    from arrow_format.options import WriteMode
    from arrow_format.read.rows import Rows
    from arrow_format.storage.open import Storage


@dataclass(frozen=True)
class Into:
    """Where results are written as a shuffle, and how."""

    storage: Storage
    keys: str | Sequence[str] | None
    num_subpartitions: int | None
    mode: WriteMode
    options: WriteOptions | None
    replacing: Replacing | None = None
    """The groups that are replaced in what is there; None where no groups are."""

    @property
    def commits(self) -> dict[str, Any]:
        """What the commit says besides, as :func:`~arrow_format.jobs.run.run_job` takes it."""
        return {} if self.replacing is None else self.replacing.commits

    def begin(
        self,
        plan: TaskPlan,
        results: GroupResults,
        schema: pa.Schema,
        begin: Callable[..., ShuffleJob] = begin_job,
    ) -> tuple[ShuffleJob, PlacedRows]:
        """Return the job that writes the results of a plan, and the rows of its map tasks.

        A map task writes the results of the group that has its number. ``schema`` is that of what
        is stored; ``begin`` begins the job, by default without types of Spark.
        """
        plan.check_stored_once()
        stored = data_schema(schema)
        view = log_before_write(self.storage) if self.replacing is None else self.replacing.view
        there = view.shape if self.replacing or keeps_rows(self.mode) else None
        rescaled_to = None if there is None or self.replacing else there.rescaled_to
        placement = plan_placement(
            plan.placed_as,
            stored,
            plan.names,
            keys=self.keys,
            num_subpartitions=rescaled_to or self.num_subpartitions,
        )
        options = self.options
        if self.replacing is not None:
            placement = self.replacing.placement(placement, self.num_subpartitions)
            if there is not None:
                options = replace(options or WriteOptions(), codec=there.codec)
        job = begin(
            self.storage,
            schema,
            num_subpartitions=placement.num_subpartitions,
            partitioner=placement.partitioner,
            sort_by=() if there is None else there.sort_by,
            combine=None if there is None else there.combine,
            unique=() if there is None else there.unique_names,
            sequence_by=None if self.replacing is None or there is None else there.sequence_name,
            options=options,
            view=view,
        )
        return job, PlacedRows(results, placement, stored, plan.paths)


@dataclass(frozen=True)
class Replacing:
    """Groups of a result that are replaced, or all of it, and what the commit of that says."""

    view: LogView
    """The log of the result as it was when it was decided which."""
    keys: tuple[str, ...]
    """Columns of the groups' keys, by which the result is partitioned."""
    changed: pa.RecordBatch | None
    """Keys of the groups; None: all rows are replaced."""
    transaction: Transaction
    note: str
    """What is computed and why, for the receipt."""

    @property
    def mode(self) -> WriteMode:
        """How the rows are written."""
        return "overwrite" if self.changed is None else "replace_groups"

    @property
    def commits(self) -> dict[str, Any]:
        """What the commit says besides its rows.

        It follows no version that changed rows since: it is not known whether their groups are
        still what the source makes of them.
        """
        said: dict[str, Any] = {
            "transaction": self.transaction,
            "expected_version": self.view.state.version,
        }
        if self.changed is not None and self.view.shape is not None:
            ids = self.view.shape.columns.by_name
            called = [str(ids[name]) for name in self.keys]
            columns = [self.changed[name] for name in self.keys]
            said["gone"] = pa.RecordBatch.from_arrays(columns, called)
        return said

    def noted(self, receipt: ShuffleReceipt) -> ShuffleReceipt:
        """Return the receipt of the write, which says what was computed."""
        if receipt.is_repetition:  # another process did it meanwhile
            return receipt
        return replace(receipt, notes=(self.note, *receipt.notes))

    def placement(self, made: Placement, num_subpartitions: int | None) -> Placement:
        """Return how rows are placed: as in what is there; raises OptionError for other keys."""
        given = key_columns(made.partitioner) or ()
        if {*given} != {*self.keys}:
            msg = (
                f"keys={list(given)}: the groups are by {', '.join(self.keys)}, and what is "
                "replaced is found by these; leave keys out"
            )
            raise OptionError(msg)
        there = self.view.shape
        if there is None:
            return made
        partitioner = partitioner_from_description(there.partitioner)
        assert isinstance(partitioner, Partitioner)  # it has these keys
        n = there.new_subpartitions if num_subpartitions is None else num_subpartitions
        n = of_new_files(n, None if self.changed is None else there)
        stays = made.stays and n == made.num_subpartitions and partitioner == made.partitioner
        return Placement(partitioner, n, stays)


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
