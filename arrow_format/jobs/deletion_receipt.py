"""The receipt of a deletion of rows by key: a value that is kept until the last byte is gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping  # noqa: TC003  read by msgspec
from dataclasses import dataclass, replace
from typing import Any

from msgspec import convert, json, to_builtins

from arrow_format.errors import OptionError
from arrow_format.log.framing import corrupt_if_malformed
from arrow_format.model import Name, Natural  # noqa: TC001  read by msgspec
from arrow_format.read.presentation import count_of, format_bytes
from arrow_format.report import Report


@dataclass(frozen=True, slots=True)
class HoldingFile:
    """A partitioned file that held rows of deleted keys, or may have."""

    job_id: str
    map_task: Natural
    root: str
    """Local root that ``path`` is relative to; empty for the shuffle itself."""
    path: str
    """Without suffix."""
    directory_id: str = ""
    """Id of the local directory that the root is in, by which its disk is known; empty where
    nothing said it. Here too, since a job's list of its roots may be gone before its files."""


@dataclass(frozen=True, slots=True)
class DeletionReceipt(Report):
    """What a deletion of the rows of given keys did, and what still holds these rows.

    It names no key. Keep it (:meth:`to_json`) until :func:`~arrow_format.erasure_status` says that
    the last byte is gone.

    Parameters
    ----------
    path
        Absolute path or URI of the shuffle.
    version
        Version that the deletion became; the searched one when no row had a key.
    commit_id
        Of that version, by which the shuffle knows its receipt: a log that was restored from before
        the deletion, or repaired, has another commit of that number.
    searched_version
        Version whose rows were searched.
    unsearched_version
        The last version that was appended after the search and before :attr:`version`; its rows
        were kept, whatever their keys. 0 for none.
    num_keys
        Keys given, repeated ones included.
    num_rows
        Rows deleted, without those that were masked before; a broadcast row counts once.
    subpartition_rows
        Rows that each subpartition delivers less, by subpartition; others are left out.
    num_files
        Partitioned files that were replaced, or have a mask now.
    num_bytes
        Bytes of their data files.
    written_bytes
        Bytes of the data files in their place; 0 where only a mask was put.
    oldest_version
        The oldest version that could be opened when the deletion was committed: versions from it to
        before :attr:`version` may hold the rows.
    tags
        Tags of versions that may hold the rows, and these versions.
    pending
        Numbers of pending commits that hold rows of the keys, or may; also of those that came while
        the deletion ran.
    bound_columns
        Key columns of which a deleted value is a bound of the range partitioner. Bounds are in the
        log and in every index, of versions until the shuffle is overwritten with others.
    statistics_columns
        Columns of which the log has a smallest or largest value that may be a deleted one: in
        entries before :attr:`version`, of files that it has no more. Or a bound of ranges, of a
        shape that the shuffle had before.
    files
        Files that held the rows or may have: the replaced ones, and those that only earlier
        versions and tags name.
    is_repetition
        Whether the transaction was committed before: nothing was deleted now, and the rest is of
        its first commit.
    erases
        Whether files were written again without the rows. Else they were only marked as gone, and
        no later look says that the last byte is; so :attr:`files` has those with masks alone, and
        bounds were not looked for.
    """

    path: str
    version: Natural
    commit_id: Name
    searched_version: Natural
    unsearched_version: Natural
    num_keys: Natural
    num_rows: Natural
    subpartition_rows: Mapping[Natural, Natural]
    num_files: Natural
    num_bytes: Natural
    written_bytes: Natural
    oldest_version: Natural
    tags: Mapping[str, Natural]
    pending: tuple[Natural, ...]
    bound_columns: tuple[str, ...]
    statistics_columns: tuple[str, ...]
    files: tuple[HoldingFile, ...]
    is_repetition: bool = False
    erases: bool = True

    def to_json(self) -> str:
        """Return the receipt as JSON text, for :meth:`from_json`."""
        return json.encode(self).decode()

    @staticmethod
    def from_json(value: str) -> DeletionReceipt:
        """Return the receipt that :meth:`to_json` made text of.

        Raises
        ------
        OptionError
            The text is not a receipt.
        """
        try:
            return json.decode(value, type=DeletionReceipt)
        except (TypeError, ValueError, RecursionError) as error:
            msg = (
                f"not a receipt of a deletion ({error}); give what DeletionReceipt.to_json() "
                "returned, or arrow-shuffle delete --json printed"
            )
            raise OptionError(msg) from error

    def in_log(self) -> dict[str, Any]:
        """Return the receipt as the log keeps it, without its path, for :meth:`from_log`."""
        value: dict[str, Any] = to_builtins(self, str_keys=True)
        del value["path"]
        return value

    @staticmethod
    def from_log(value: Mapping[str, Any], path: str) -> DeletionReceipt:
        """Return the receipt of a deletion that a shuffle's log has, for a repetition.

        Raises
        ------
        CorruptShuffleError
            It is not a receipt.
        """
        with corrupt_if_malformed(f"{path}: the receipt in a log entry"):
            found = convert({**value, "path": path}, DeletionReceipt, str_keys=True)
        return replace(found, is_repetition=True)

    def _lines(self) -> Iterator[str]:
        keys = count_of(self.num_keys, "key")
        if self.is_repetition:
            yield f"{self.path}: is a repetition; nothing was deleted. The first time:"
        if not self.num_files:
            yield f"{self.path}: version {self.searched_version} has no row of {keys}"
        else:
            what = f"{count_of(self.num_rows, 'row')} of {keys} deleted"
            if not self.num_rows:  # there is a file nevertheless
                what = f"the rows of {keys}, all of them masked before, erased"
            yield f"{self.path}: {what} as version {self.version}"
            files = count_of(self.num_files, "file")
            sizes = f"{format_bytes(self.num_bytes)} -> {format_bytes(self.written_bytes)}"
            yield f"  rewritten  {files}, {sizes}" if self.erases else f"  masked     in {files}"
        if self.unsearched_version:
            yield (
                f"  unsearched versions up to {self.unsearched_version} were appended meanwhile; "
                "delete again if they may have rows of the keys"
            )
        if self.pending:
            yield (
                f"  pending    commits {', '.join(map(str, self.pending))} may hold rows of the "
                f"keys; run arrow-shuffle flush {self.path}, and delete again"
            )
        if self.bound_columns:
            yield (
                f"  bounds     values of {', '.join(self.bound_columns)} are bounds of the range "
                "partitioner, in the log and the indexes; overwrite the shuffle with other bounds, "
                "and collect with --compact-log"
            )
        if self.statistics_columns:
            yield (
                f"  statistics values of {', '.join(self.statistics_columns)} in the log before it "
                "may be of deleted rows; collect with --compact-log"
            )
        if not self.files:
            return
        last = self.version - 1 if self.num_files else self.version
        if self.oldest_version <= last:
            first = f"{self.oldest_version} to " if self.oldest_version < last else ""
            files = count_of(len(self.files), "file")
            yield f"  versions   {first}{last} may still hold the rows, in {files}"
        if not self.erases:
            yield (
                f"  on disk    {count_of(len(self.files), 'file')} may hold the rows; to erase "
                "them, delete the keys again without --no-erase"
            )
            return
        for name, version in self.tags.items():
            yield (
                f"  tag        {name!r} keeps version {version}, which may hold the rows; remove it"
            )
        yield (
            f"  next       arrow-shuffle gc {self.path} --retention 24h, a day from now (or with "
            "0s now, if no reader needs the versions before); then check this receipt"
        )
        yield from kept_by_store(self.path)


def kept_by_store(path: str) -> Iterator[str]:
    """Yield the line of a receipt or status about bytes that nothing here can see."""
    if "://" in path:
        yield (
            "  store      versioning and soft delete of the store keep bytes longer; see the "
            "guide, Deletion by key"
        )
