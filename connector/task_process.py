"""What every task does first to the Python process that Spark runs it in."""

from __future__ import annotations

import gc
from functools import cache

import pyarrow as pa


def begin_task() -> None:
    """Keep Arrow to one core, and what is loaded out of later collections of garbage.

    A Spark task owns one core; Arrow would take them all. PySpark collects garbage after each task
    of a process that it keeps, which takes 50 ms to look at the modules alone: the first task has
    them looked at no more.
    """
    pa.set_cpu_count(1)
    _freeze()


@cache
def _freeze() -> None:
    # Once: to ask how much is frozen takes 10 ms, since Python counts it.
    gc.freeze()
