"""The receipt of a deletion of rows by key: a value that is kept until the last byte is gone.

A look (:mod:`arrow_format.jobs.erasure`) returns it with what is left of what held the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
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


_KEEP = ", and keep that receipt in the place of this one"
_COMPACT = "run arrow-shuffle gc {path} --compact-log when earlier versions may expire"

_HOLDING = {
    "versions": "versions   {found} may still hold the rows",
    "files": "on disk    {found} may hold the rows",
    "tags": "tags       {found} may hold the rows; remove them",
    "rolled_back": "undone     version {found} was rolled back to one before the deletion; delete "
    f"again{_KEEP}",
    "pending": "pending    commits {found} may hold rows of the keys; run arrow-shuffle flush "
    f"{{path}}, and delete again{_KEEP}",
    "flushed": f"flushed    commits {{found}}, after the deletion; delete again{_KEEP}",
    "unsearched_version": "unsearched versions up to {found}, appended while the deletion ran, may "
    f"have rows of the keys; delete again{_KEEP}",
    "unreachable": "unseen     {found}; mount them, and look again",
    "bound_columns": "bounds     values of {found} are bounds of the range partitioner, in the log "
    f"and the indexes; overwrite the shuffle with other bounds, and {_COMPACT}",
    "statistics_columns": "statistics values of {found} in old entries of the log may be of "
    f"deleted rows; {_COMPACT}",
}
"""Fields with what may hold the rows, and what to do where one is not empty."""

_NOT_IN_LOG = {
    "path",
    "is_looked_at",
    "versions",
    "readers",
    "rolled_back",
    "flushed",
    "unreachable",
    "files_with_dropped_columns",
}


@dataclass(frozen=True, slots=True)
class DeletionReceipt(Report):
    """What a deletion of the rows of given keys did, and what still holds these rows.

    .. code-block:: python

        receipt = orders.delete({"customer": [17, 18]})
        text = receipt.to_json()
        print(orders.erasure_status(arrow_shuffle.DeletionReceipt.from_json(text)).is_gone)

    It names no key. Keep it (:meth:`to_json`) until :meth:`arrow_shuffle.Shuffle.erasure_status`
    says that the last byte is gone. That returns it *looked at*: what holds the rows is then what
    still does.

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
        Tags of versions that may hold the rows, and these versions. Looked at: that name a file of
        the receipt.
    pending
        Numbers of pending commits that hold rows of the keys, or may; also of those that came while
        the deletion ran. Looked at: that were not flushed.
    bound_columns
        Key columns of which a deleted value is a bound of the range partitioner. Bounds are in the
        log and in every index, of versions until the shuffle is overwritten with others. Looked at:
        all of them, or none once the newest version, the tags and the entries of the log have other
        bounds. Bounds of a later write are not among them, whatever values they are: only another
        deletion looks for its keys there.
    statistics_columns
        Columns of which the log has a smallest or largest value that may be a deleted one: in
        entries before :attr:`version`, of files that it has no more. Or a bound of ranges, of a
        shape that the shuffle had before. Looked at: none once the log has nothing from before the
        deletion.
    files
        Files that held the rows or may have: the replaced ones, and those that only earlier
        versions and tags name. Looked at: of which the data or the index exists.
    is_repetition
        Whether the transaction was committed before: nothing was deleted now, and the rest is of
        its first commit.
    erases
        Whether files were written again without the rows. Else they were only marked as gone, and
        no later look says that the last byte is; so :attr:`files` has those with masks alone, and
        bounds were not looked for.
    is_looked_at
        Whether it is what :meth:`arrow_shuffle.Shuffle.erasure_status` returned. The fields from
        here on are of the look, and empty without one.
    versions
        First and last of each range of versions, ascending, that can be opened and name a file of
        the receipt, or one that a merge or a later deletion made of such files after
        :attr:`rolled_back`. Of those before the deletion some between the two may name none.
    rolled_back
        The last version that brought rows back which deletions had taken away, this one among them
        or one committed close to it; 0 for none. The rows may be in files of any name since.
    flushed
        Pending commits of the receipt that were flushed since: a version may have their rows again.
    unreachable
        Local directories of files that cannot be seen from this machine: they do not hold the id
        that a job put there.
    readers
        Readers that are at work and hold one of these versions, or an earlier one, and that
        version: no collection lets it expire, or a later one, until they end or move on.
    files_with_dropped_columns
        Files of the newest version that have columns which were dropped: dropping erases nothing.
        Values of the rows that were not deleted; :attr:`is_gone` says nothing of them.
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
    is_looked_at: bool = False
    versions: tuple[tuple[Natural, Natural], ...] = ()
    rolled_back: Natural = 0
    flushed: tuple[Natural, ...] = ()
    unreachable: tuple[str, ...] = ()
    readers: Mapping[str, Natural] = field(default_factory=dict)
    files_with_dropped_columns: Natural = 0

    @property
    def is_gone(self) -> bool:
        """Whether a look found that the last byte of the rows is gone, as far as a store lists it.

        Versioning and soft delete of a store keep bytes that no listing shows. Rows that were only
        marked as gone (``erase=False``) never are: nothing follows when their bytes go.
        """
        holding = any(getattr(self, name) for name in _HOLDING)
        return self.is_looked_at and self.erases and not holding

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
        """Return the receipt as the log keeps it, without path and look, for :meth:`from_log`."""
        value: dict[str, Any] = to_builtins(self, str_keys=True)
        return {name: value[name] for name in value if name not in _NOT_IN_LOG}

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
        if not self.is_looked_at:
            yield from self._done()
        elif self.is_gone:
            listed = ", as far as the store lists it" if "://" in self.path else ""
            yield f"{self.path}: the last byte of the deleted rows is gone{listed}"
        else:
            yield f"{self.path}: the deleted rows are not gone"
        yield from self._holding()
        if "://" in self.path and (self.is_gone or (self.files and not self.is_looked_at)):
            yield (
                "  store      versioning and soft delete of the store keep bytes longer; see the "
                "guide, Deletion by key"
            )

    def _done(self) -> Iterator[str]:
        """Yield what the deletion did."""
        keys = count_of(self.num_keys, "key")
        if self.is_repetition:
            yield f"{self.path}: is a repetition; nothing was deleted. The first time:"
        if not self.num_files:
            yield f"{self.path}: version {self.searched_version} has no row of {keys}"
            return
        what = f"{count_of(self.num_rows, 'row')} of {keys} deleted"
        if not self.num_rows:  # there is a file nevertheless
            what = f"the rows of {keys}, all of them masked before, erased"
        yield f"{self.path}: {what} as version {self.version}"
        files = count_of(self.num_files, "file")
        sizes = f"{format_bytes(self.num_bytes)} -> {format_bytes(self.written_bytes)}"
        yield f"  rewritten  {files}, {sizes}" if self.erases else f"  masked     in {files}"

    def _holding(self) -> Iterator[str]:
        """Yield what holds the rows, or may, and what to do about it."""
        if not self.erases and (self.files or self.is_looked_at):
            yield (
                "  not erased the rows were marked as gone; to erase them, delete the keys again "
                f"without --no-erase{_KEEP}"
            )
        versions = self.versions or self._versions_before()
        holding = {name: getattr(self, name) for name in _HOLDING} | {"versions": versions}
        found = {name: _listed(values) for name, values in holding.items() if values}
        if self.files:
            one = f"{self.files[0].root or self.path}/{self.files[0].path}"
            such_as = f" (such as {one})" if self.is_looked_at else ""
            found["files"] = f"{count_of(len(self.files), 'file')}{such_as}"
        for name, what in found.items():
            yield f"  {_HOLDING[name].format(found=what, path=self.path)}"
        if self.readers:
            yield (
                f"  readers    {_listed(self.readers)} keep the versions from these on from "
                "collection: wait until they end or move on, or end them"
            )
        if self.erases and (versions or self.files):
            yield (
                f"  next       arrow-shuffle gc {self.path} --retention 24h, a day after the "
                "deletion (or with 0s now, if no reader needs the versions before); then check "
                "this receipt"
            )
        if self.files_with_dropped_columns:
            count = count_of(self.files_with_dropped_columns, "file")
            yield (
                f"  note       {count} of the newest version have columns that were dropped, which "
                f"erases nothing; a merge that joins them does: arrow-shuffle merge {self.path} "
                "--rewrite always"
            )

    def _versions_before(self) -> tuple[tuple[Natural, Natural], ...]:
        """Return the range of versions that may hold the rows as far as the deletion knew."""
        last = self.version - 1 if self.num_files else self.version
        is_known = self.files and self.oldest_version <= last and not self.is_looked_at
        return ((self.oldest_version, last),) if is_known else ()


def _listed(values: object) -> str:
    """Return one value, or several, in a text; of a range its ends, of a tag its version too."""
    if isinstance(values, Mapping):
        return ", ".join(f"{name!r} (version {version})" for name, version in values.items())
    if not isinstance(values, tuple):
        return str(values)
    ends = (value if isinstance(value, tuple) else (value,) for value in values)
    return ", ".join(" to ".join(map(str, dict.fromkeys(each))) for each in ends)
