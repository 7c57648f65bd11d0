"""A write from its target to its commit, with map tasks that a function runs.

The one order of these steps, for jobs of Spark, a pool of this machine, and a single map task; for
one target, and for several that take the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from arrow_format.jobs.cleanup import abort_after
from arrow_format.jobs.commit import commit_job, find_receipt, receipt_of
from arrow_format.jobs.target import open_target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.model import MapStatus, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetJob:
    """A job that was begun, and what its commit says besides, as :func:`commit_job` takes it."""

    job: ShuffleJob
    mode: str
    expected_version: int | None = None
    transaction: Transaction | None = None
    gone: pa.RecordBatch | None = None


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
    target = TargetJob(
        job=job,
        mode=mode,
        expected_version=expected_version,
        transaction=transaction,
        gone=gone,
    )
    (receipt,) = run_jobs(
        [target], lambda jobs: (run(each) for each in jobs), num_map_outputs=num_map_outputs
    )
    return receipt


def run_jobs(
    targets: Sequence[TargetJob],
    run: Callable[[Sequence[ShuffleJob]], Iterable[Iterable[MapStatus]]],
    *,
    num_map_outputs: int | None = None,
) -> tuple[ShuffleReceipt, ...]:
    """Run map tasks that write to several jobs, and commit each, as :func:`run_job` does one.

    All targets are checked before any row is written. ``run`` gets the jobs that are to be written,
    and gives the statuses of each, in their order. They are committed in the order of targets; when
    something fails the files of all that are not committed are removed, and a note of the error
    says which are. No transaction of any may have been committed before.
    """
    receipts: dict[int, ShuffleReceipt] = {}
    opened: dict[int, ShuffleJob] = {}
    try:
        for number, target in enumerate(targets):
            existing = open_target(
                target.job, target.mode, expected_version=target.expected_version
            )
            if existing is not None and target.mode == "ignore":
                receipts[number] = receipt_of(target.job.storage, existing)
            else:
                opened[number] = replace(target.job, num_map_tasks=num_map_outputs)
        if opened:
            jobs = {number: replace(job, has_directory=True) for number, job in opened.items()}
            for number, statuses in zip(jobs, run(list(jobs.values())), strict=True):
                target = targets[number]
                receipts[number] = commit_job(
                    opened[number],
                    statuses,
                    mode=target.mode,
                    expected_map_outputs=num_map_outputs,
                    expected_version=target.expected_version,
                    transaction=target.transaction,
                    gone=target.gone,
                )
                del opened[number]
    except BaseException as error:
        for job in opened.values():
            abort_after(job, error)
        if receipts:
            error.add_note(_what_is_there(targets, receipts))
        raise
    return tuple(receipts[number] for number in range(len(targets)))


def _what_is_there(targets: Sequence[TargetJob], receipts: Mapping[int, ShuffleReceipt]) -> str:
    """Say which targets of a write that failed are there."""
    there = [
        f"{receipt.path} is there as version {receipt.version}" for receipt in receipts.values()
    ]
    missing = [
        target.job.storage.root for number, target in enumerate(targets) if number not in receipts
    ]
    return (
        f"of {len(targets)} targets {', '.join(there)}; nothing was committed to "
        f"{', '.join(missing)}. Repeated with the same transactions, the write writes these alone"
    )
