"""Tags: versions that are kept under a name after they expire.

The log's state has the tags. All that the numbers up to a tagged version do is put as one range
before the entry that sets the tag, and stays when the segment of that number is removed. A version
that has not expired is in no segment that a collection removes, whose view may be older.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.errors import OptionError, ShuffleExistsError
from arrow_format.log.commit_log import CommitLog, draft
from arrow_format.log.conflicts import Claims, check_needs
from arrow_format.log.entry import TAG
from arrow_format.log.pending import no_version_error
from arrow_format.log.state import Tag
from arrow_format.log.version_names import parse_version_name, resolve_version
from arrow_format.options import check_name
from arrow_format.read.shuffle import check_there
from arrow_format.report import Report
from arrow_format.storage.open import Place, open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogView
    from arrow_format.log.version_names import VersionName


@dataclass(frozen=True, slots=True)
class TaggedVersion(Report):
    """A version that is kept under a name.

    .. code-block:: python

        tagged = orders.tag("2026-Q3")
        print(tagged.name, tagged.version)

    Parameters
    ----------
    name
        Name of the tag.
    version
        Number of the version.
    """

    name: str
    version: int

    def _lines(self) -> Iterator[str]:
        yield f"{self.name}: version {self.version}"


def tag_shuffle(
    path: Place,
    name: str,
    version: VersionName | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
) -> TaggedVersion:
    """Keep a version under a name: it stays readable by number and name after it expires.

    Parameters, result and errors are those of :meth:`arrow_shuffle.Shuffle.tag`.
    """
    check_tag_name(name)
    wanted = None if version is None else parse_version_name(version)
    storage = open_storage(path, storage_options)
    check_there(storage)
    log = CommitLog(storage)
    tagged = log.read(lambda view: _prepared(log, view, name, wanted))

    def decide(view: LogView) -> LogEntry:
        # What was put stays: it is in no segment that a collection of an older view removes.
        _check_tag(log, view, name, tagged)
        return draft(view, TAG, state={"tags": {**view.state.tags, name: Tag(tagged)}})

    log.append(decide, sync=True)
    return TaggedVersion(name, tagged)


def check_tag_name(name: str) -> str:
    """Return a name that a tag may have; raises OptionError."""
    if not isinstance(parse_version_name(check_name("name", name)), str):
        problem = (
            f"reads as a number or a date, which name a version as well; give another, such as "
            f"v-{name}"
        )
        raise OptionError.of("name", name, problem)
    return name


def _prepared(log: CommitLog, view: LogView, name: str, wanted: VersionName | None) -> int:
    """Return the version to be tagged, once all up to it is in one file."""
    version = resolve_version(log, view, wanted)
    if not view.state.version:
        raise no_version_error(log)
    version = view.state.version if version is None else version
    _check_tag(log, view, name, version)
    log.version_at(view, version)  # else it is no version, or damaged
    if log.tag_of(view, version) is None:
        log.put_base(view, version)
    return version


def _check_tag(log: CommitLog, view: LogView, name: str, version: int) -> None:
    log.check_writers(view)
    before = view.state.tags.get(name)
    if before is not None:
        msg = (
            f"{log.root}: version {before.version} has the tag {name!r} already; remove it "
            f"(arrow-shuffle tag {log.root} {name} --remove), or take another name"
        )
        raise ShuffleExistsError(msg)
    check_needs("tag", log, view, Claims(source=version))


def untag_shuffle(
    path: Place, name: str, *, storage_options: Mapping[str, str] | None = None
) -> bool:
    """Remove a tag: its version expires like any other.

    Parameters, result and errors are those of :meth:`arrow_shuffle.Shuffle.untag`.
    """
    check_tag_name(name)
    storage = open_storage(path, storage_options)
    check_there(storage)

    def decide(view: LogView) -> LogEntry | None:
        if name not in view.state.tags:
            return None
        tags = {other: tag for other, tag in view.state.tags.items() if other != name}
        return draft(view, TAG, state={"tags": tags})

    return CommitLog(storage).append(decide, sync=True) is not None


def list_tags(
    path: Place, *, storage_options: Mapping[str, str] | None = None
) -> tuple[TaggedVersion, ...]:
    """Return the tags of a shuffle, by name.

    Parameters, result and errors are those of :meth:`arrow_shuffle.Shuffle.tags`.
    """
    storage = open_storage(path, storage_options)
    check_there(storage)
    log = CommitLog(storage)
    tags = log.read(lambda view: view.state.tags if view.newest else None)
    if tags is None:
        raise no_version_error(log)
    return tuple(TaggedVersion(name, tag.version) for name, tag in sorted(tags.items()))
