"""Commands that change what is stored: merge, gc, consumers, release, drop, flush."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Annotated, cast

import typer

from arrow_format.errors import OptionError, ShuffleError, ShuffleNotFoundError
from connector.cli.output import (
    FOUND_WRONG,
    JsonOption,
    PathArgument,
    print_json,
    print_lines,
    progress,
    show,
    show_all,
)

if TYPE_CHECKING:
    from arrow_format.options import MergeBy, RewriteChoice


def merge(
    path: PathArgument,
    by: Annotated[
        str,
        typer.Option(
            metavar="subpartition|map_output",
            help="What a new file holds: a range of subpartitions of all map outputs, or adjacent "
            "map outputs.",
        ),
    ] = "subpartition",
    rewrite: Annotated[
        str,
        typer.Option(
            metavar="auto|always|never",
            help="Whether to join regions, or only to copy them into fewer files.",
        ),
    ] = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be merged and change nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Merge map outputs into fewer files and regions, as a new version of the same rows."""
    from arrow_format.jobs.merge import merge_shuffle, plan_merge
    from arrow_format.read.shuffle import open_shuffle
    from arrow_format.write.merge_policy import MergePolicy

    policy = MergePolicy(rewrite=cast("RewriteChoice", rewrite))
    way = cast("MergeBy", by)
    plan = plan_merge(open_shuffle(path), policy, way)
    if dry_run:
        show(plan, as_json=as_json)
        return
    started = time.perf_counter()
    with progress(f"Merging {plan.path}", plan.num_bytes) as advance:
        report = merge_shuffle(path, by=way, policy=policy, on_bytes=advance)
    show(report, as_json=as_json, seconds=time.perf_counter() - started)


def gc(
    path: PathArgument,
    retention: Annotated[
        str,
        typer.Option(
            metavar="24h",
            help="How long a superseded version stays readable, and how long an unfinished job "
            "may write nothing before it is given up: a number with s, m, h or d.",
        ),
    ] = "24h",
    compact_log: Annotated[
        bool,
        typer.Option(
            "--compact-log",
            help="Leave nothing of the log before the oldest version that is kept, nor the bounds "
            "and statistics there that may be of deleted rows.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed and change nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove versions superseded longer ago than the retention, and files of dead jobs.

    Rows of a stream that have waited longer than its flush interval become a version first.
    """
    from arrow_format.option_fields import DURATION
    from arrow_format.streaming.collection import collect_garbage

    span = DURATION.of_text("--retention", retention)
    with progress(f"Collecting garbage of {path}", None) as advance:
        report = collect_garbage(
            path, retention=span, compact_log=compact_log, dry_run=dry_run, on_bytes=advance
        )
    show(report, as_json=as_json)


def consumers(
    path: PathArgument,
    forget: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Forget this consumer; nothing waits for it then."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the consumers of a shuffle and the progress of each, or forget one."""
    from arrow_format.streaming.consumption import forget_consumer, list_consumers

    if forget is not None and not forget_consumer(path, forget):
        names = ", ".join(consumer.name for consumer in list_consumers(path)) or "none"
        msg = f"{path}: no consumer is called {forget!r}; the consumers are: {names}"
        raise OptionError(msg)
    states = list_consumers(path)
    if forget is None and not states:
        _check_is_shuffle(path)
    show_all(path, "consumer", states, as_json=as_json)


def _check_is_shuffle(path: str) -> None:
    """Raise ShuffleNotFoundError unless the path has a log, or a consumer waits for one."""
    from arrow_format.log.names import CONSUMER_DIRECTORY, LOG_DIRECTORY
    from arrow_format.storage.open import open_storage

    storage = open_storage(path)
    if not any(map(storage.list, (LOG_DIRECTORY, CONSUMER_DIRECTORY))):
        msg = f"{path}: holds no shuffle, and no consumer waits for one; check the path"
        raise ShuffleNotFoundError(msg)


def release(
    path: PathArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Remove all rows, for good.")] = False,
) -> None:
    """Release a whole shuffle: remove its rows and its pending commits.

    Readers get an error afterwards that says it was released.
    """
    from arrow_format.streaming.consumption import release_shuffle

    what = _what_is_released(path)
    if not yes:
        msg = f"{what} would be removed for good; give --yes to do it"
        raise OptionError(msg)
    release_shuffle(path)
    print_lines([f"{what}: released"])


def drop(
    path: PathArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Remove all of it, for good.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Even if a consumer reads, or has rows to consume.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove a shuffle for good: its versions, tags, consumers, local directories and its log.

    One that was stopped goes on. Files that are none of a shuffle stay, and are named.
    """
    from arrow_format.jobs.drop import drop_shuffle

    if not yes:
        msg = f"{path}: would be removed for good, with all versions and tags; give --yes to do it"
        raise OptionError(msg)
    with progress(f"Removing {path}", None) as advance:
        receipt = drop_shuffle(path, force=force, on_bytes=advance)
    show(receipt, as_json=as_json)
    if not receipt.is_complete:
        raise typer.Exit(FOUND_WRONG)


def _what_is_released(path: str) -> str:
    """Describe what a release removes; raise ShuffleNotFoundError where that is nothing."""
    from arrow_format.read.shuffle import open_shuffle
    from connector.cli.inspection import pending_facts

    try:
        shuffle = open_shuffle(path)
    except ShuffleNotFoundError:
        waiting = pending_facts(path)
        if not waiting.num_commits:
            raise
        return f"{waiting.path}: {waiting.counts}, and no version"
    what = f"{shuffle.path}: {shuffle.num_rows:,} rows in version {shuffle.version}"
    with contextlib.suppress(ShuffleError):  # a shuffle with a damaged log can be released too
        waiting = pending_facts(path)
        return f"{what}, and {waiting.counts}" if waiting.num_commits else what
    return what


def flush(
    path: PathArgument,
    timeout: Annotated[
        str,
        typer.Option(
            metavar="30s",
            help="How long to wait for consumers where a bounded result is full: a number with "
            "s, m, h or d.",
        ),
    ] = "30s",
    due: Annotated[
        bool,
        typer.Option("--due", help="Flush only what has waited longer than the stream's interval."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Commit what a stream with a flush interval has pending as a version, now."""
    from arrow_format.log.commit_log import CommitLog
    from arrow_format.options import SECONDS, WriteOptions
    from arrow_format.storage.open import open_storage
    from arrow_format.streaming.flush_pending import flush_pending

    options = WriteOptions(back_pressure_timeout=SECONDS.of_text("--timeout", timeout))
    receipt = flush_pending(path, due=due, options=options)
    if receipt is None and not CommitLog(open_storage(path)).newest_version():
        msg = f"{path}: holds no shuffle, and nothing is pending; check the path"
        raise ShuffleNotFoundError(msg)
    if as_json:
        print_json({"path": path, "flushed": receipt and receipt.as_json()})
    else:
        nothing = "nothing is due" if due else "nothing is pending"
        print_lines([str(receipt) if receipt else f"{path}: {nothing}"])
