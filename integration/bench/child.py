"""One measurement in a fresh process, so that no earlier one leaves it memory or threads."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROJECT = Path(__file__).resolve().parents[2]

THREAD_VARIABLES = (
    "POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "RAYON_NUM_THREADS",
)  # fmt: skip
"""Environment variables that say how many threads libraries start."""


class ChildError(RuntimeError):
    """A measurement failed; the message ends with what its process printed."""


@contextmanager
def timed() -> Iterator[dict[str, Any]]:
    """Add ``seconds`` and ``cpu_seconds`` of the block to the dictionary that is yielded."""
    answer: dict[str, Any] = {}
    gc.collect()
    cpu_before, started = time.process_time(), time.perf_counter()
    yield answer
    answer["seconds"] = time.perf_counter() - started
    answer["cpu_seconds"] = time.process_time() - cpu_before


def run_in_child(
    function: Callable[..., dict[str, Any]], *, cores: int = 1, **arguments: object
) -> dict[str, Any]:
    """Call ``function`` in a new Python process on one core, or more; return its answer.

    ``function`` is at the top of a module; its keyword arguments and its answer, a dictionary, are
    what JSON can hold. Raises ChildError if the process fails.
    """
    name = f"{function.__module__}:{function.__qualname__}"
    completed = subprocess.run(
        [sys.executable, "-m", "integration.bench.child", str(cores), name, json.dumps(arguments)],
        cwd=PROJECT,
        env={**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(cores))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if completed.returncode:
        msg = f"{name}({arguments}) failed:\n{completed.stderr[-4000:]}"
        raise ChildError(msg)
    answer: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    return answer


def stay_on(cores: int) -> None:
    """Bind this process, and every thread it will start, to so many cores."""
    if hasattr(os, "sched_setaffinity"):  # Linux only; elsewhere the thread counts have to do
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[-cores:]))
    import pyarrow as pa

    pa.set_cpu_count(cores)
    pa.set_io_thread_count(cores)


def main() -> None:
    """Run what the parent asked for and print the answer as the last line."""
    cores, name, arguments = sys.argv[1:]
    stay_on(int(cores))
    module, _, function = name.partition(":")
    answer = getattr(import_module(module), function)(**json.loads(arguments))
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
