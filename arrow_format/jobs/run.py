"""A write from its target to its commit, with map tasks that a function runs.

The one order of these steps, for jobs of Spark, a pool of this machine, and a single map task; for
one target, and for several that take the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from arrow_format.errors import ShuffleError
from arrow_format.jobs.cleanup import abort_after, version_after
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
    before: Sequence[ShuffleReceipt] = (),
) -> tuple[ShuffleReceipt, ...]:
    """Run map tasks that write to several jobs, and commit each, as :func:`run_job` does one.

    All targets are checked before any row is written. ``run`` gets the jobs that are to be written,
    and gives the statuses of each, in their order. They are committed in the order of targets; when
    something fails the files of all that are not committed are removed, and a note of the error
    says which are, as the log has it. No transaction of any may have been committed before; of
    targets that are no jobs for that reason the note says so too, by their receipts ``before``.
    """
    receipts: dict[int, ShuffleReceipt] = {}
    opened: dict[int, ShuffleJob] = {}
    last = None
    """The last whose commit began."""
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
                last, target = number, targets[number]
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
        versions: dict[int, int | None] = {n: each.version for n, each in receipts.items()}
        if last is not None and last not in receipts:
            versions[last] = _version_of(opened[last])
        if versions or before:
            _note_what_is_there(error, targets, versions, before)
        raise
    return tuple(receipts[number] for number in range(len(targets)))


def _version_of(job: ShuffleJob) -> int | None:
    """Return the version of a job whose commit failed: 0 for none, None if that is not known."""
    try:
        return version_after(job) or 0
    except ShuffleError:
        return None


def _note_what_is_there(
    error: BaseException,
    targets: Sequence[TargetJob],
    versions: Mapping[int, int | None],
    before: Sequence[ShuffleReceipt],
) -> None:
    """Note which targets of a write that failed are there, and how the others are written.

    ``versions`` are those of targets by number: 0 or none for what is not there, None for what is
    not known. Nothing is noted where nothing is there, or of one target, whose error says it.
    """
    there = [f"{each.path} was there before as version {each.version}" for each in before]
    missing, unknown, once = [], [], []
    for number, target in enumerate(targets):
        root, version = target.job.storage.root, versions.get(number, 0)
        if version == 0:
            missing.append(root)
            continue
        if version is None:
            unknown.append(root)
        else:
            there.append(f"{root} is there as version {version}")
        if target.transaction is None and target.mode != "ignore":
            once.append((root, version))
    if len(targets) + len(before) == 1 or not (there or unknown):
        return
    parts = [", ".join(there)] if there else []
    if missing:
        parts.append(f"nothing was committed to {', '.join(missing)}")
    if unknown:
        parts.append(f"it is not known whether {', '.join(unknown)} was committed")
    note = f"of {len(targets) + len(before)} targets {'; '.join(parts)}. "
    written = [root for root, version in once if version is not None]
    if not missing and not unknown:
        note += "All are there: do not write the rows again"
    elif not once:
        note += "Repeated as it is, the write writes only what is not there"
    else:
        advice = []
        if written:
            advice.append(f"leave out {', '.join(written)}")
        if len(written) < len(once):
            advice.append(f"leave out {', '.join(unknown)} if it has a new version")
        note += (
            f"To write the others, {', and '.join(advice)}: without a transaction rows would be "
            "written again"
        )
    error.add_note(note)
