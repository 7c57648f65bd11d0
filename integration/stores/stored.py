"""A shuffle in a store, for tests of what becomes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import arrow_format
from tests.support.store_server import PROJECT

if TYPE_CHECKING:
    from tests.support.store_server import StoreServer


class Stored:
    """A shuffle in a bucket of its own."""

    def __init__(self, server: StoreServer) -> None:
        self.path = f"{server.scheme}://{server.new_bucket()}/some/shuffle"
        self.options = server.options
        self.given: dict[str, Any] = {"storage_options": server.options}

    def write(self, start: int, count: int = 10, mode: str = "append", **how: Any) -> int:  # noqa: ANN401
        """Write consecutive values; return the version."""
        numbers = range(start, start + count)
        table = pa.table({"k": [number % 17 for number in numbers], "v": list(numbers)})
        receipt = arrow_format.write_shuffle(
            table, self.path, keys="k", num_subpartitions=5, mode=mode, **self.given, **how
        )
        assert receipt.version is not None
        return receipt.version

    def open(self, version: int | str | None = None) -> arrow_format.ShuffleDataset:
        """Open a version."""
        return arrow_format.open_shuffle(self.path, version, **self.given)

    def values(self, version: int | str | None = None) -> list[int]:
        """Return the values of a version that is whole."""
        opened = self.open(version)
        assert opened.verify().ok
        return sorted(opened.read(columns=["v"]).read_all()["v"].to_pylist())

    def start(self, program: str, *arguments: object) -> subprocess.Popen[str]:
        """Start a process that gets the path and ``arguments``, and the options on its input."""
        process = subprocess.Popen(
            [sys.executable, "-c", program, self.path, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=PROJECT,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(self.options))
        process.stdin.close()
        process.stdin = None  # for communicate()
        return process
