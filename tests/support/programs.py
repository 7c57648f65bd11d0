"""Programs that tests run in a Python of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def run_python(
    program: str, *arguments: object, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a program, whatever it ends with, and return what it printed."""
    return subprocess.run(
        [sys.executable, *options, "-c", program, *map(str, arguments)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def printed(program: str, *arguments: object) -> str:
    """Return what a program prints that ends well."""
    done = run_python(program, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout
