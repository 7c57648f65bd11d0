"""What ``arrow-shuffle`` tells of rows that wait to be flushed: values and lines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from arrow_format.jobs.receipt import count_of, format_bytes
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.pending import pending_outputs
from arrow_format.read.shuffle import check_there
from arrow_format.storage.open import open_storage
from connector.cli.charts import printable


@dataclass(frozen=True, slots=True)
class PendingFacts:
    """What a stream with a flush interval has pending."""

    path: str
    num_commits: int
    num_rows: int
    """Rows that were written; a flush keeps the latest of each key."""
    num_bytes: int
    """Bytes of their data files."""


def pending_facts(path: str) -> PendingFacts:
    """Look at what is pending.

    Raises
    ------
    ShuffleError
        There is nothing at the path, or the log cannot be read.
    """
    storage = open_storage(path)
    check_there(storage)
    log = CommitLog(storage)
    entries = log.read(partial(pending_outputs, log)).entries
    return PendingFacts(
        storage.root,
        len(entries),
        sum(entry.num_rows for entry in entries),
        sum(entry.num_bytes for entry in entries),
    )


def pending_text(facts: PendingFacts) -> str:
    """Describe what is pending in a few words."""
    return (
        f"{count_of(facts.num_commits, 'pending commit')} of {count_of(facts.num_rows, 'row')}, "
        f"{format_bytes(facts.num_bytes)}"
    )


def pending_lines(facts: PendingFacts) -> list[str]:
    """Describe a path that has no version, but something pending."""
    return [
        printable(facts.path),
        f"  no version yet; {pending_text(facts)}: 'arrow-shuffle flush' makes one",
    ]


def pending_as_json(facts: PendingFacts) -> dict[str, Any]:
    """Return the same as values that ``json.dumps`` takes."""
    return {
        "path": facts.path,
        "version": None,
        "num_pending": facts.num_commits,
        "num_pending_rows": facts.num_rows,
        "num_pending_bytes": facts.num_bytes,
    }
