"""What memory a process takes, from Linux's ``/proc``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def figures_of(program: str, *arguments: object, **environment: str) -> list[int]:
    """Run a program in a process of its own; return the numbers that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=PROJECT,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return [int(figure) for figure in done.stdout.split()]


def resident_bytes(process: int | str = "self", *, peak: bool = True) -> int:
    """Return the resident set of a process in bytes, with ``peak`` its largest so far."""
    name = "VmHWM" if peak else "VmRSS"
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    msg = f"/proc/{process}/status has no {name}"
    raise ValueError(msg)


def forget_peak() -> int:
    """Start the peak of this process again from what it takes now; return that, in bytes."""
    resident = resident_bytes(peak=False)
    Path("/proc/self/clear_refs").write_text("5")
    return resident
