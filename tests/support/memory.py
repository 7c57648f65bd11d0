"""What memory a process takes, from Linux's ``/proc``."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import subprocess
import sys
import traceback
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

PROJECT = Path(__file__).parents[2]

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        *("arrow_format.jobs.merge", "arrow_format.jobs.write", "arrow_format.read.shuffle"),
        *("pyarrow.parquet", "pyarrow.dataset"),
    ]
)


PRELUDE = """
import sys
import numpy as np
import pyarrow as pa
from tests.support.memory import forget_peak, resident_bytes
pa.set_cpu_count(1)
"""


def figures_of(program: str, *arguments: object, **environment: str) -> list[int]:
    """Run a program behind :data:`PRELUDE` in a process of its own; return the numbers it prints.

    It is a fork of one that has only loaded modules, unless it has an environment of its own, which
    they read.
    """
    program = f"{PRELUDE}\n{program}"
    if environment:
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
    receiving, sending = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=_run, args=(program, list(map(str, arguments)), sending))
    process.start()
    sending.close()
    try:
        has_ended, text = receiving.recv()
    except EOFError:
        has_ended, text = False, "it died"
    process.join()
    assert has_ended, text
    return [int(figure) for figure in text.split()]


def check_memory(num_rows: int, allowed: int, program: str, *arguments: object) -> None:
    """Run a program that prints its rows, and the bytes it took at most: not more than allowed."""
    rows, over_base = figures_of(program, *arguments)
    assert rows == num_rows
    assert over_base <= allowed, f"{over_base >> 20} MiB over base, {allowed >> 20} allowed"


def _run(program: str, arguments: list[str], sending: Connection) -> None:
    sys.argv[1:] = arguments
    os.chdir(PROJECT)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(program, {"__name__": "__main__"})
    except BaseException:
        sending.send((False, traceback.format_exc()))
    else:
        sending.send((True, printed.getvalue()))


def traced_peak(call: Callable[[], object]) -> int:
    """Return the most bytes that Python and NumPy hold at once for a call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


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
