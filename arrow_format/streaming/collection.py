"""Garbage collection as users call it: what is overdue is flushed, and the rest collected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format.errors import BackPressureTimeoutError, ShuffleError, ShuffleNotFoundError
from arrow_format.jobs.garbage import check_retention, collect
from arrow_format.options import DEFAULT_RETENTION, WriteOptions, check_flag, ignore
from arrow_format.storage.open import Place, open_storage
from arrow_format.streaming.flush_pending import flush_pending

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta

    from arrow_format.jobs.gc_files import GcReport

_PATIENCE_S = 1.0
"""For the consumers of a full result; a collection does not wait for them, and comes again."""


def collect_garbage(
    path: Place,
    *,
    retention: timedelta = DEFAULT_RETENTION,
    compact_log: bool = False,
    dry_run: bool = False,
    on_bytes: Callable[[int], None] = ignore,
    storage_options: Mapping[str, str] | None = None,
) -> GcReport:
    """Remove versions that were superseded long ago, and what unfinished jobs left.

    .. code-block:: python

        print(arrow_shuffle.collect_garbage("/data/orders", retention=timedelta(days=7)))

    The newest version is kept whatever its age, and so is everything that a version within the
    retention names, and of a pipelined result every version that a known consumer has not consumed.
    What was released is removed whatever its age. Rows of a version that is kept are never touched.
    Before that, rows of a stream that have waited longer than its flush interval become a version,
    unless consumers of a full result have to consume first.

    Parameters
    ----------
    path
        Directory or URI of the shuffle.
    retention
        How long a version can still be opened and read after another superseded it; and for how
        long an unfinished job may have written nothing before it is given up. A job that is given
        up fails when it commits, if it still runs. Choose more than the longest read, and than the
        longest time in which no task of a running job writes anything.
    compact_log
        Leave nothing of the log before the oldest version that is kept: entries before it are made
        blank, and with them the bounds of ranges and the statistics in them, which may be values of
        deleted rows. Without it they go with their segment of 512 entries. Each entry since the
        last time is written once; do it after a deletion, when earlier versions may expire. What a
        dry run reports is without it.
    dry_run
        Change nothing, and report what would be done. Where a result would be released, the report
        says so, and what would expire and be removed without that.
    on_bytes
        Called with the bytes of each file that was removed, for progress.
    storage_options
        As for :func:`~arrow_shuffle.open_shuffle`.

    Returns
    -------
    GcReport
        What was done.

    Raises
    ------
    OptionError
        The retention is not a timedelta, or negative; or ``compact_log`` is neither True nor False.
    ShuffleNotFoundError
        The path holds neither a shuffle nor files of a job.
    CorruptShuffleError, FormatVersionError
        The log is damaged, so that nothing is known to be garbage. Or the newest version lacks a
        file: an older one may be all that is left. Nothing was removed. Or what is overdue cannot
        be flushed; the rest was collected.
    StorageError
        Something could not be removed, or flushed. The next collection tries again.
    """
    check_retention(retention)
    check_flag("compact_log", compact_log)
    storage = open_storage(path, storage_options)
    failure: ShuffleError | None = None
    if not dry_run:
        try:
            flush_pending(
                storage, due=True, options=WriteOptions(back_pressure_timeout=_PATIENCE_S)
            )
        except (BackPressureTimeoutError, ShuffleNotFoundError):
            pass  # consumers come first; and the collection says what is not there
        except ShuffleError as error:
            failure = error
    report = collect(
        storage,
        retention=retention,
        compact_log=compact_log,
        dry_run=dry_run,
        on_bytes=on_bytes,
    )
    if failure is not None:
        raise failure
    return report
