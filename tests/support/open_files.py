"""The files that this process has open."""

from __future__ import annotations

from pathlib import Path


def open_files() -> set[tuple[str, str]]:
    """Return number and target of each descriptor of a file, a directory or a pipe.

    Sockets are left out: clients of object stores, which earlier tests made, open and close their
    connections in threads of their own, whatever test runs.
    """
    links = {each.name: _target(each) for each in Path("/proc/self/fd").iterdir()}
    return {
        (name, target)
        for name, target in links.items()
        if target and not target.startswith("socket:")
    }


def _target(link: Path) -> str | None:
    """Return what a descriptor is of; None if it was closed meanwhile, as that of the listing."""
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return None
