"""Small results that are written and consumed, and processes that consume them."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrow_format import ResultPartitionType, WriteOptions, write_shuffle
from arrow_format.process_identity import this_process
from arrow_shuffle import consume
from tests.support.consumers import ConsumerRegistry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from arrow_format import Shuffle, ShuffleReceipt
    from arrow_format.options import WriteMode
    from arrow_format.storage.open import Place, Storage

ROOT = Path(__file__).parents[2]
N = 3
TYPES = list(ResultPartitionType)
PIPELINED = [result_type for result_type in TYPES if result_type.is_pipelined]
BLOCKING = [result_type for result_type in TYPES if result_type.is_blocking]


def write(path: Place, *values: int, mode: WriteMode = "append", **options: Any) -> ShuffleReceipt:
    """Commit rows of one column."""
    return write_shuffle(
        pa.table({"k": list(values)}),
        path,
        num_subpartitions=N,
        keys="k",
        mode=mode,
        options=WriteOptions(sync=False, **options),
    )


def take(path: Place, consumer: str, **options: Any) -> list[int]:
    """What one consumption delivers, sorted."""
    with consume(path, consumer=consumer, **options) as consumption:
        return rows(consumption.shuffle)


def rows(shuffle: Shuffle) -> list[int]:
    """Return the rows of a shuffle, sorted."""
    return sorted(shuffle.read().read_all()["k"].to_pylist())


def numbers(directory: Path, name: str = "a") -> list[int]:
    """Numbers of the records of a consumer."""
    return [
        int(file.stem) for file in sorted((Path(directory) / "consumers" / name).glob("*.json"))
    ]


@contextmanager
def child(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that runs ``program`` and has said that it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


ELSEWHERE = replace(this_process(), host="another", boot="another boot")


def elsewhere(storage: Storage, name: str = "a") -> None:
    """Take a name as a process of another machine, whatever process holds it."""
    registry = ConsumerRegistry(storage)
    registry.put(name, registry.newest(name).taken_by(ELSEWHERE))
