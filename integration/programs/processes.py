"""Descendants of processes, from Linux's ``/proc``: which to count, and which to kill."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """A process that ran a moment ago."""

    pid: int
    command: str
    """Its arguments, with blanks between them."""


def descendants(*pids: int) -> list[Process]:
    """Return the processes below ``pids``, parents before children; zombies are left out."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name is in brackets and may hold anything, brackets too.
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # gone meanwhile
            continue
        if state != "Z":
            children[int(parent)].append(int(entry.parent.name))
    processes = []
    waiting = list(pids)
    while waiting:
        below = sorted(children.get(waiting.pop(0), ()))
        waiting += below
        processes += [Process(pid, command_of(pid)) for pid in below]
    return processes


def command_of(pid: int) -> str:
    """Return the arguments of a process; nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def executors(*pids: int, application: str = "") -> list[int]:
    """Return the executor JVMs below ``pids``, of one application if its id is given."""
    return [
        p.pid
        for p in descendants(*pids)
        if "CoarseGrainedExecutorBackend" in p.command and application in p.command
    ]


def python_workers(*pids: int) -> list[int]:
    """Return the Python processes that run tasks below ``pids``: what ``pyspark.daemon`` forked."""
    daemons = [p.pid for p in descendants(*pids) if "pyspark.daemon" in p.command]
    forked = {p.pid for p in descendants(*daemons)}
    return [pid for pid in daemons if pid in forked]


def is_running(pid: int) -> bool:
    """Whether a process runs and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def kill(pid: int) -> bool:
    """Send SIGKILL; False when the process was gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def processor_seconds(*pids: int) -> float:
    """Return the processor time of processes and all below them, of those that ended too."""
    ticks = 0
    for pid in (*pids, *(process.pid for process in descendants(*pids))):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # gone meanwhile: its parent has its time
            continue
        ticks += sum(map(int, fields[11:15]))  # user and system, then those of waited-for children
    return ticks / os.sysconf("SC_CLK_TCK")
