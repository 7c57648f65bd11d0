"""Names of the directories that the files of a job are in: pure.

A store splits a prefix that many ask for by how its names go on, so the files of a job of many map
tasks must not all begin alike: hex digits stand before the id of the job, more of them the higher
the map task. So a small job is found by one listing, and a large one by a few.
"""

from __future__ import annotations

import re
import zlib

from arrow_format.log.names import MAP_OUTPUT_DIRECTORY

FOLD_FROM = (64, 4096)
"""The map tasks from which on there is one digit, and there are two."""

_FOLD = re.compile(r"[0-9a-f]{1,2}")
_FILE = re.compile(rf"{MAP_OUTPUT_DIRECTORY}/(?:{_FOLD.pattern}/)?([0-9a-f]{{32}})/[^/]+")

DEPTH = 3
"""Of the files of jobs below :data:`~arrow_format.log.names.MAP_OUTPUT_DIRECTORY`, at most."""


def job_directory(job_id: str, digits: str = "") -> str:
    """Directory of files of a job, that of such digits; "" for the one every job has."""
    return "/".join(filter(None, (MAP_OUTPUT_DIRECTORY, digits, job_id)))


def digits_of(job_id: str, map_task: int) -> str:
    """Return the hex digits before the id of a job, for files of a map task in a store."""
    crc = f"{zlib.crc32(f'{job_id}/{map_task}'.encode()):08x}"
    return crc[: _num_digits(map_task)]


def all_digits(num_map_tasks: int | None) -> list[str]:
    """Return all digits that files of a job of so many map tasks may have; None: of any job."""
    most = len(FOLD_FROM) if num_map_tasks is None else _num_digits(num_map_tasks - 1)
    return ["", *(f"{n:0{count}x}" for count in range(1, most + 1) for n in range(16**count))]


def _num_digits(map_task: int) -> int:
    return sum(map_task >= first for first in FOLD_FROM)


def digits_in(names: list[str]) -> list[str]:
    """Return the names of a listing of all jobs that are digits before jobs."""
    return [name for name in names if _FOLD.fullmatch(name)]


def job_of(path: str) -> str | None:
    """Return the job that a file below the directory of all is of; None if it is of none."""
    match = _FILE.fullmatch(path)
    return match and match[1]
