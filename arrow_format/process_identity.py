"""Which process something belongs to, and whether that process still runs.

A process number alone says little: it is used again, means another process after a restart of the
machine, and another one in each container. So an identity names all that tells processes apart,
and where it cannot tell from here it says so.
"""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arrow_format.strict_json import natural, text

if TYPE_CHECKING:
    from collections.abc import Mapping

_PROC = Path("/proc")
_START_FIELD = 19
"""Place of the start time among the fields of ``/proc/<pid>/stat`` that follow the name."""
_STATE_FIELD, _PARENT_FIELD = 0, 1
_DEAD_STATES = ("Z", "X")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of one machine."""

    host: str
    boot: str
    """Which run of the machine's kernel, and which container: process numbers count in these."""
    pid: int
    started: int
    """Clock ticks after the boot; 0 where the system does not tell."""

    def is_alive(self) -> bool | None:
        """Whether it still runs; None when that cannot be told from here."""
        here = this_process()
        if (self.host, self.boot) != (here.host, here.boot) or not self.boot:
            return None
        fields = _fields(self.pid)
        if fields is None:
            return None if _is_there(self.pid) else False
        return (
            fields[_STATE_FIELD] not in _DEAD_STATES and int(fields[_START_FIELD]) == self.started
        )

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def to_json(self) -> dict[str, Any]:
        """JSON of it."""
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> ProcessIdentity:
        """Inverse of :meth:`to_json`.

        Raises
        ------
        KeyError, TypeError, ValueError
            It is not of that form.
        """
        return ProcessIdentity(
            host=text(value["host"])[:255],
            boot=text(value["boot"])[:255],
            pid=natural(value["pid"], 1 << 32),
            started=natural(value["started"]),
        )


def this_process() -> ProcessIdentity:
    """Return the process that calls this."""
    return _identity(os.getpid())


def java_above(pid: int | None = None) -> ProcessIdentity | None:
    """Return the nearest Java process above one, this one by default: the Spark that started it.

    None where there is none, or where the system does not tell (other than Linux).
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
    """Return which boot and which container this is; empty where the system does not tell."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = (_PROC / "self/ns/pid").readlink()
    except OSError:
        return ""
    return f"{boot} {namespace}"


def _fields(pid: int) -> list[str] | None:
    """Return the fields after the name in ``/proc/<pid>/stat``; None when it is not there."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name is in parentheses and may itself hold spaces and parentheses.
    return stat.rpartition(")")[2].split()


def _is_there(pid: int) -> bool:
    """Whether a process has that number; also one that the system hides from this user."""
    try:
        os.kill(pid, 0)  # no signal at all: it only asks
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
