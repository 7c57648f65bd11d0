"""What a process takes, as Linux tells it."""

from __future__ import annotations

from pathlib import Path


def resident_bytes(process: int | str = "self", *, peak: bool = True) -> int:
    """Return the resident set of a process in bytes, its largest so far with ``peak``."""
    name = "VmHWM" if peak else "VmRSS"
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    msg = f"process {process} tells no {name}"
    raise ValueError(msg)
