"""The content of a simulated storage, and what each call makes of it: pure functions.

Paths are relative to the shuffle; those of other shuffles and of local directories are absolute.

A call is a tuple of its kind and arguments, and an answer a tuple of the clock, how it went and a
value; both can be compared and hashed. :func:`carry_out` never changes a :class:`Files`: it returns
another one, so that an exploration goes back by keeping the old one.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

Call: TypeAlias = tuple[Any, ...]
"""Kind and arguments, the path first."""

OK, EXISTS, MISSING, FAILED, INTERRUPTED = "ok", "exists", "missing", "failed", "interrupted"

CHANGES = frozenset(
    {"put", "temp", "link", "create", "finish", "upload", "delete", "delete_all", "mkdir", "prune"}
)
"""Kinds of calls that may change the content, of those that the library makes."""

PUTS = frozenset({"put", "link"})
"""Kinds of calls that create an object of a given name, if there is none."""

LISTINGS = frozenset({"list", "files"})


class Answer(NamedTuple):
    """What a call returned."""

    now_ms: int
    """The storage's clock."""
    how: str
    value: Any = None
    jumped_ms: int = 0
    """How far the clock of the one who called has jumped until now."""


class Entry(NamedTuple):
    """A file, or a directory without data."""

    data: bytes | None
    modified_ms: int


class Files:
    """All files and directories of a storage by their paths; not changed once it is made."""

    __slots__ = ("entries", "key", "listed", "without_temporaries")

    def __init__(self, entries: dict[str, Entry], key: int) -> None:
        self.entries = entries
        self.key = key
        """Equal for equal content."""
        self.listed: dict[Call, Any] = {}
        self.without_temporaries: Files | None = None

    def paths(self) -> list[str]:
        """Return the paths of the files, sorted."""
        return sorted(path for path, entry in self.entries.items() if entry.data is not None)

    def finished(self) -> Files:
        """Return the content without temporary files."""
        if self.without_temporaries is None:
            gone: dict[str, Entry | None] = {path: None for path in self.entries if ".tmp-" in path}
            self.without_temporaries = self.changed(gone) if gone else self
        return self.without_temporaries

    def changed(self, changes: dict[str, Entry | None]) -> Files:
        """Return the content with some entries added, replaced, or removed (None)."""
        entries, key = dict(self.entries), self.key
        for path, entry in changes.items():
            old = entries.pop(path, None)
            if old is not None:
                key ^= hash((path, old))
            if entry is not None:
                entries[path] = entry
                key ^= hash((path, entry))
        return Files(entries, key)


EMPTY = Files({}, 0)


def parents(path: str) -> list[str]:
    """Return the directories above a path, the root "" first."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts))]


def carry_out(files: Files, call: Call, now_ms: int, has_directories: bool) -> tuple[Files, Answer]:
    """Return the content after a call, and its answer."""
    files, how, value = _HANDLERS[call[0]](files, call, now_ms, has_directories)
    return files, Answer(now_ms, how, value)


_Result: TypeAlias = tuple[Files, str, Any]


def _made(files: Files, path: str, now_ms: int, changes: dict[str, Entry | None]) -> None:
    """Add the directories above a path that are missing to some changes."""
    for parent in parents(path):
        if parent not in files.entries:
            changes[parent] = Entry(None, now_ms)


def _mkdir(files: Files, call: Call, now_ms: int, has_directories: bool) -> _Result:
    changes: dict[str, Entry | None] = {}
    _made(files, call[1] + "/x", now_ms, changes)
    return (files.changed(changes) if changes else files), OK, None


def _create(files: Files, call: Call, now_ms: int, has_directories: bool) -> _Result:
    """``create path data makes_directories``: a new file, with its directories or not."""
    _, path, data, makes_directories = call
    if path in files.entries:
        return files, EXISTS, None
    if not makes_directories and path.rpartition("/")[0] not in files.entries:
        return files, MISSING, None
    changes: dict[str, Entry | None] = {path: Entry(data, now_ms)}
    _made(files, path, now_ms, changes)
    return files.changed(changes), OK, None


def _finish(files: Files, call: Call, now_ms: int, has_directories: bool) -> _Result:
    """``finish path data``: what a writer has written; nothing if the file was removed."""
    _, path, data = call
    if path not in files.entries:
        return files, OK, None
    return files.changed({path: Entry(data, now_ms)}), OK, None


def _upload(files: Files, call: Call, now_ms: int, has_directories: bool) -> _Result:
    return files.changed({call[1]: Entry(call[2], now_ms)}), OK, None


def _put(files: Files, call: Call, now_ms: int, has_directories: bool) -> _Result:
    """``put path data``: conditional; equal bytes are this very put, as object stores see it."""
    _, path, data = call
    there = files.entries.get(path)
    if there is not None:
        return files, OK if there.data == data else EXISTS, None
    return files.changed({path: Entry(data, now_ms)}), OK, None


def _link(files: Files, call: Call, now_ms: int, has_directories: bool) -> _Result:
    """``link path temporary``: give a temporary file its name, and remove its own."""
    _, path, temporary = call
    source = files.entries.get(temporary)
    if source is None:
        return files, MISSING, None
    if path in files.entries:
        return files.changed({temporary: None}), EXISTS, None
    return files.changed({path: Entry(source.data, now_ms), temporary: None}), OK, None


def _read(files: Files, call: Call, now_ms: int, has_directories: bool) -> _Result:
    entry = files.entries.get(call[1])
    if entry is None or entry.data is None:
        return files, MISSING, None
    return files, OK, entry.data


def _stat(files: Files, call: Call, now_ms: int, has_directories: bool) -> _Result:
    path = call[1]
    entry = files.entries.get(path)
    if entry is not None:
        data = entry.data
        return files, OK, (0 if data is None else len(data), data is None, entry.modified_ms)
    if not has_directories:
        above = f"{path}/" if path else ""
        if any(each.startswith(above) for each in files.entries):
            return files, OK, (0, True, None)
    return files, OK, None


def _list(files: Files, call: Call, now_ms: int, has_directories: bool) -> _Result:
    value = files.listed.get(call)
    if value is None:
        start = len(call[1]) + 1 if call[1] else 0
        above = call[1] + "/" if call[1] else ""
        names = {path[start:].partition("/")[0] for path in files.entries if path.startswith(above)}
        value = files.listed[call] = tuple(sorted(names - {""}))
    return files, OK, value


def _files(files: Files, call: Call, now_ms: int, has_directories: bool) -> _Result:
    value = files.listed.get(call)
    if value is None:
        _, path, depth = call
        above = path + "/" if path else ""
        value = files.listed[call] = tuple(
            (each, len(entry.data), entry.modified_ms)
            for each, entry in sorted(files.entries.items())
            if entry.data is not None
            and each.startswith(above)
            and each.count("/", len(above)) < depth
        )
    return files, OK, value


def _delete(files: Files, call: Call, now_ms: int, has_directories: bool) -> _Result:
    return (files.changed({call[1]: None}) if call[1] in files.entries else files), OK, None


def _delete_all(files: Files, call: Call, now_ms: int, has_directories: bool) -> _Result:
    gone: dict[str, Entry | None] = {path: None for path in call[1] if path in files.entries}
    return (files.changed(gone) if gone else files), OK, None


def _prune(files: Files, call: Call, now_ms: int, has_directories: bool) -> _Result:
    """``prune path root and_root``: remove the directories from a path up to its storage's root
    that are empty."""
    _, path, root, and_root = call
    gone: dict[str, Entry | None] = {}
    for directory in [path, *reversed(parents(path))]:
        if directory not in files.entries or not (directory + "/").startswith(root):
            continue
        if directory == root and not and_root:
            continue
        below = (each for each, _ in _below(files, directory) if each != directory)
        if all(each in gone for each in below):
            gone[directory] = None
    return (files.changed(gone) if gone else files), OK, None


def _copy(files: Files, call: Call, now_ms: int, has_directories: bool) -> _Result:
    """``copy path to``: copy a directory, as its files are, to a new one."""
    copied = dict(_moved(files, call[1], call[2]))
    return files.changed(copied), OK, None


def _rename(files: Files, call: Call, now_ms: int, has_directories: bool) -> _Result:
    """``rename path to``: move a directory with all in it; "" is the shuffle."""
    gone: dict[str, Entry | None] = {path: None for path, _ in _below(files, call[1])}
    return files.changed({**gone, **dict(_moved(files, call[1], call[2]))}), OK, None


def _unmount(files: Files, call: Call, now_ms: int, has_directories: bool) -> _Result:
    """``unmount path``: what is below the mount point is seen no more; that stays, and is empty."""
    path = call[1]
    gone: dict[str, Entry | None] = {each: None for each, _ in _below(files, path) if each != path}
    return files.changed({**gone, **dict(_moved(files, path, UNMOUNTED + path))}), OK, None


def _mount(files: Files, call: Call, now_ms: int, has_directories: bool) -> _Result:
    """``mount path``: what was unmounted is there again, and what was written instead is not."""
    path = call[1]
    gone: dict[str, Entry | None] = {each: None for each, _ in _below(files, path)}
    gone |= {each: None for each, _ in _below(files, UNMOUNTED + path)}
    return files.changed({**gone, **dict(_moved(files, UNMOUNTED + path, path))}), OK, None


UNMOUNTED = "/unmounted"
"""Before the paths of what cannot be seen."""


def _below(files: Files, path: str) -> list[tuple[str, Entry]]:
    """Return a directory and what is below it; "" is the shuffle, which is at no other path."""
    return [
        (each, entry)
        for each, entry in files.entries.items()
        if (each == path or each.startswith(f"{path}/") if path else not each.startswith("/"))
    ]


def _moved(files: Files, path: str, to: str) -> list[tuple[str, Entry]]:
    below = ((each[len(path) :].strip("/"), entry) for each, entry in _below(files, path))
    return [("/".join(part for part in (to, rest) if part), entry) for rest, entry in below]


def has_unmounted(files: Files) -> bool:
    """Whether a disk cannot be seen."""
    return any(path.startswith(UNMOUNTED) for path in files.entries)


def all_mounted(files: Files) -> Files:
    """Return the content with all disks where they were."""
    points = [path.removeprefix(UNMOUNTED) for path in files.entries if path.startswith(UNMOUNTED)]
    return _mount(files, ("mount", min(points)), 0, True)[0] if points else files


def _sleep(files: Files, call: Call, now_ms: int, has_directories: bool) -> _Result:
    return files, OK, None


_HANDLERS = {
    "mkdir": _mkdir,
    "create": _create,
    "temp": _create,
    "finish": _finish,
    "upload": _upload,
    "put": _put,
    "link": _link,
    "read": _read,
    "stat": _stat,
    "list": _list,
    "files": _files,
    "delete": _delete,
    "delete_all": _delete_all,
    "prune": _prune,
    "copy": _copy,
    "rename": _rename,
    "unmount": _unmount,
    "mount": _mount,
    "sleep": _sleep,
}
