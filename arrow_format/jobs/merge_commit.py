"""The commit of a merge: an entry that names all map outputs of the version anew."""

from __future__ import annotations

import time
import uuid
import zlib
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.errors import CommitConflictError
from arrow_format.jobs.cleanup import clean_up
from arrow_format.jobs.decision import decide_commit
from arrow_format.log.commit_log import CommitLog, Snapshot
from arrow_format.log.entry import LogEntry, TotalsFile
from arrow_format.log.names import totals_path
from arrow_format.log.replacement import PlacedOutputs, Replacement, replace_outputs
from arrow_format.log.totals_file import encode_totals, put_totals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.model import Int64Array


def commit_replacements(
    job: ShuffleJob, replacements: Sequence[Replacement], added_bytes: Int64Array
) -> tuple[Snapshot, LogEntry]:
    """Publish merged map outputs in the place of their inputs, as a version of the same rows.

    What another writer appended meanwhile is part of the new version, behind the rest.

    Parameters
    ----------
    job
        The merge.
    replacements
        In reading order, at least one.
    added_bytes
        Bytes per subpartition that the merged files have more than their inputs.

    Returns
    -------
    tuple
        The version that was replaced, and the new entry.

    Raises
    ------
    CommitConflictError
        An input is not part of the newest version any more; nothing was committed.
    StorageError
        The entry could not be written; or it was, and may not survive a power failure.
    UnsettledCommitError
        The store did not answer; the merged files stay, since the entry may still appear.
    """
    log = CommitLog(job.storage)
    rounds: list[tuple[Snapshot, LogEntry]] = []

    def decide(newest: Snapshot | None) -> LogEntry:
        if newest is None:
            msg = f"{job.storage.root}: the shuffle is gone; nothing was committed"
            raise CommitConflictError(msg)
        outputs = replace_outputs(PlacedOutputs.of(newest.entries), replacements)
        rows, sizes = log.totals(newest)
        if rounds:
            # Another writer was faster, and its rows are part of the totals now.
            job.storage.delete(rounds[-1][1].totals.path)
        commit_id = uuid.uuid4().hex
        totals = encode_totals(rows, shared_again(sizes + added_bytes))
        described = TotalsFile(totals_path(job.job_id, commit_id), len(totals), zlib.crc32(totals))
        rounds.append((newest, _entry(newest.newest, job, commit_id, outputs, described)))
        put_totals(job.storage, rounds[-1][1], totals, sync=job.options.sync)
        return rounds[-1][1]

    try:
        # No other process commits this job. But where this one is interrupted while its put is
        # under way, an abort must not remove what that put may still publish: it asks the decision.
        decide_commit(job, job.job_id)
        committed = log.append(
            decide, sync=job.options.sync, job_id=job.job_id, after=job.base_version
        )
    except BaseException as error:
        clean_up(job, log, rounds[-1][1].totals if rounds else None, error)
        raise
    replaced, entry = rounds[-1]
    return replaced, committed or entry


def shared_again(sizes: Int64Array) -> Int64Array:
    """Return bytes per subpartition of the same sum of which none is below 0.

    How the bytes of its files are shared out is each writer's affair, so that what a merge saves of
    one subpartition may be more than another writer had counted for it.
    """
    missing = -int(np.minimum(sizes, 0).sum())
    shared: Int64Array = np.maximum(sizes, 0)
    shared -= np.diff(np.minimum(np.cumsum(shared), missing), prepend=0)
    return shared


def _entry(
    newest: LogEntry, job: ShuffleJob, commit_id: str, outputs: PlacedOutputs, totals: TotalsFile
) -> LogEntry:
    """Return the entry, still without its version number: what is not replaced stays as it is."""
    return LogEntry(
        version=0,
        operation="replace",
        shuffle_id=newest.shuffle_id,
        job_id=job.job_id,
        commit_id=commit_id,
        committed_at_ms=time.time_ns() // 1_000_000,
        data_schema=newest.data_schema,
        spark_schema=newest.spark_schema,
        num_subpartitions=newest.num_subpartitions,
        partitioner=newest.partitioner,
        map_outputs=outputs.outputs,
        totals=totals,
        sort_by=newest.sort_by,
        roots=outputs.roots,
        result=newest.result,
        content=newest.content_version,
    )
