"""A write from its target to its commit, with map tasks that a function runs.

The one order of these steps, for a job of Spark, a pool of this machine, and a single map task.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from arrow_format.jobs.cleanup import abort_after
from arrow_format.jobs.commit import commit_job, find_receipt, receipt_of
from arrow_format.jobs.target import open_target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.model import MapStatus, Transaction


def run_job(
    job: ShuffleJob,
    mode: str,
    run: Callable[[ShuffleJob], Iterable[MapStatus]],
    *,
    num_map_outputs: int | None = None,
    expected_version: int | None = None,
    transaction: Transaction | None = None,
    gone: pa.RecordBatch | None = None,
) -> ShuffleReceipt:
    """Run the map tasks of a job and commit their map outputs; if that fails, remove them.

    ``run`` returns when no task is running; its statuses are taken one by one. It is not called
    where the transaction was committed before; nor with mode ``ignore`` and an existing shuffle,
    where the receipt is that of the newest version.
    ``num_map_outputs`` is checked if given; of the keys ``gone`` an upsert leaves no row. Raises as
    :func:`~arrow_format.write_shuffle`.
    """
    before = find_receipt(job.storage, transaction)
    if before is not None:
        return before
    existing = open_target(job, mode, expected_version=expected_version)
    if existing is not None and mode == "ignore":
        return receipt_of(job.storage, existing)
    job = replace(job, num_map_tasks=num_map_outputs)
    try:
        return commit_job(
            job,
            run(replace(job, has_directory=True)),
            mode=mode,
            expected_map_outputs=num_map_outputs,
            expected_version=expected_version,
            transaction=transaction,
            gone=gone,
        )
    except BaseException as error:
        abort_after(job, error)
        raise
