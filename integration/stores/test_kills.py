"""A server of a store is killed while three processes write, and started again.

Moto keeps its objects in memory, and azurite writes what it holds some seconds late, a new
container too: neither outlives a kill.
"""

from __future__ import annotations

import contextlib
import random
import time
from typing import TYPE_CHECKING

import pytest

from tests.support import gcs_server, seaweedfs_server
from tests.support.store_server import free_port, installed
from tests.support.stored_shuffle import StoredShuffle

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.support.store_server import StoreServer

ROUNDS = 5
AWAY_S = 3.0

WRITES = """
import json, sys, pyarrow as pa
import arrow_format
path, writer, options = sys.argv[1], int(sys.argv[2]), json.load(sys.stdin)
parts = arrow_format.WriteOptions(codec="none", sort_buffer_bytes=4 << 20)
for turn in range(8):
    first = (writer * 8 + turn) * 1_000_000
    count = 600_000 if turn % 4 == 3 else 10
    table = pa.table({"k": [i % 9 for i in range(count)], "v": range(first, first + count)})
    how = {"keys": "k", "num_subpartitions": 3, "mode": "append", "options": parts}
    try:
        arrow_format.write_shuffle(table, path, storage_options=options, **how)
        print(first, count, "done", flush=True)
    except arrow_format.UnsettledCommitError:
        print(first, count, "unsettled", flush=True)
    except arrow_format.ShuffleError as error:
        there = "committed as version" in str(error)
        print(first, count, "done" if there else "failed", flush=True)
"""


def starting(store: str, state: Path) -> Callable[[], AbstractContextManager[StoreServer]]:
    """Return what starts a server, each time on the same port and with what it held."""
    port = free_port()
    if store == "gs":
        return lambda: gcs_server.serving(state, port, page=1_000)
    program = installed("weed", "WEED", "SeaweedFS")
    ports = seaweedfs_server.new_ports()
    return lambda: seaweedfs_server.serving(program, ports, state=state)


@pytest.mark.parametrize("kill", range(ROUNDS))
@pytest.mark.parametrize("store", ["seaweedfs", "gs"])
def test_a_server_that_is_killed(store, kill, tmp_path):
    """Server killed under 3 writers, started again after 3 s: nothing lost, nothing by halves"""
    start = starting(store, tmp_path)
    with contextlib.ExitStack() as running:
        stored = StoredShuffle.at(running.enter_context(start()))
        stored.write(999_000_000)
        writers = [stored.start(WRITES, writer) for writer in range(3)]
        time.sleep(random.uniform(1, 3))
        running.close()
        time.sleep(AWAY_S)
        running.enter_context(start())
        answers = [writer.communicate() for writer in writers]
        assert [writer.returncode for writer in writers] == [0] * 3, answers
        ends = [line.split() for said, _ in answers for line in said.splitlines()]
        assert len(ends) == 24
        found: dict[int, int] = {}
        for value in stored.values():
            found[value // 1_000_000] = found.get(value // 1_000_000, 0) + 1
        assert found.pop(999) == 10
        for first, count, end in ends:
            there = found.pop(int(first) // 1_000_000, 0)
            assert there in (0, int(count)), "whole or not at all"
            assert end == "unsettled" or (there > 0) == (end == "done"), (first, count, end)
        assert not found
