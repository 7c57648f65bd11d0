"""Identifies the process that owns something, and checks whether it still runs.

A process number alone is ambiguous: it is reused, restarts with the machine, and each container
counts its own. An identity therefore names host, kernel run, container and start time.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from arrow_format.model import Natural  # noqa: TC001  msgspec reads the annotations

_PROC = Path("/proc")
_START_FIELD = 19
"""Position of the start time among the fields after the name in ``/proc/<pid>/stat``."""
_STATE_FIELD, _PARENT_FIELD = 0, 1
_DEAD_STATES = ("Z", "X")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of one machine."""

    host: Annotated[str, Meta(max_length=255)]
    boot: Annotated[str, Meta(max_length=255)]
    """Boot of the machine's kernel, and the container: process numbers are unique within both."""
    pid: Annotated[int, Meta(ge=0, le=1 << 32)]
    started: Natural
    """Clock ticks after the boot; 0 where the system does not report it."""

    def is_alive(self) -> bool | None:
        """Whether the process still runs; None when this process cannot determine it."""
        here = this_process()
        if (self.host, self.boot) != (here.host, here.boot) or not self.boot:
            return None
        fields = _fields(self.pid)
        if fields is None:
            return None if _exists(self.pid) else False
        return (
            fields[_STATE_FIELD] not in _DEAD_STATES and int(fields[_START_FIELD]) == self.started
        )

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def this_process() -> ProcessIdentity:
    """Return the identity of the calling process."""
    return _identity(os.getpid())


def java_above(pid: int | None = None) -> ProcessIdentity | None:
    """Return the nearest Java ancestor of a process, by default of this one: its Spark.

    None without such an ancestor, or where there is no ``/proc`` (other than Linux).
    """
    pid = os.getpid() if pid is None else pid
    while pid > 1:
        fields = _fields(pid)
        if fields is None:
            return None
        if _name(pid) == "java":
            return _identity(pid)
        pid = int(fields[_PARENT_FIELD])
    return None


@lru_cache(64)
def _identity(pid: int) -> ProcessIdentity:
    fields = _fields(pid)
    return ProcessIdentity(
        host=socket.gethostname(),
        boot=_boot() if fields else "",
        pid=pid,
        started=int(fields[_START_FIELD]) if fields else 0,
    )


@lru_cache(1)
def _boot() -> str:
    """Return the boot and container of this process; empty where there is no ``/proc``."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = (_PROC / "self/ns/pid").readlink()
    except OSError:
        return ""
    return f"{boot} {namespace}"


def _fields(pid: int) -> list[str] | None:
    """Return the fields after the name in ``/proc/<pid>/stat``; None without such a file."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name is in parentheses and may itself hold spaces and parentheses.
    return stat.rpartition(")")[2].split()


def _exists(pid: int) -> bool:
    """Whether a process has that number, even if the system hides it from this user."""
    try:
        os.kill(pid, 0)  # sends no signal, only checks
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _name(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""
