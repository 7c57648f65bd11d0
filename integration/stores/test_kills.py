"""A server of a store is killed while three processes write, and started again.

Moto keeps its objects in memory, and azurite writes what it holds some seconds late, a new
container too: neither outlives a kill. They do what they are asked, and all answers are lost.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.support import gcs_server, seaweedfs_server
from tests.support.fault_proxy import proxy_to
from tests.support.store_server import free_port, installed
from tests.support.stored_shuffle import StoredShuffle
from tests.support.stores import STORES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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
    how = {"keys": "k", "num_subpartitions": 5, "mode": "append", "options": parts}
    try:
        arrow_format.write_shuffle(table, path, storage_options=options, **how)
        print(first, count, "done", flush=True)
    except arrow_format.UnsettledCommitError:
        print(first, count, "unsettled", flush=True)
    except arrow_format.StorageError as error:
        there = "committed as version" in str(error)
        print(first, count, "done" if there else f"failed: {str(error)!r}", flush=True)
"""


def starting(store: str, state: Path) -> Callable[[], AbstractContextManager[StoreServer]]:
    """Return what starts a server, each time on the same port and with what it held."""
    port = free_port()
    if store == "gs":
        return lambda: gcs_server.serving(state, port, page=1_000)
    program = installed("weed", "WEED", "SeaweedFS")
    ports = seaweedfs_server.new_ports()
    return lambda: seaweedfs_server.serving(program, ports, state=state)


@contextlib.contextmanager
def killed(
    start: Callable[[], AbstractContextManager[StoreServer]],
) -> Iterator[tuple[StoredShuffle, Callable[[], None]]]:
    """Give a place in a server, and what kills it and starts it again."""
    with contextlib.ExitStack() as running:

        def kill() -> None:
            running.close()
            time.sleep(AWAY_S)
            running.enter_context(start())

        yield StoredShuffle.at(running.enter_context(start())), kill


@contextlib.contextmanager
def unheard(server: StoreServer) -> Iterator[tuple[StoredShuffle, Callable[[], None]]]:
    """Give a place in a server, and what loses all its answers for some time."""
    with proxy_to(server) as proxy:

        def lose() -> None:
            proxy.break_next("lost", "", times=sys.maxsize)
            time.sleep(AWAY_S)
            proxy.break_next("lost", "", times=0)
            assert proxy.broken

        yield StoredShuffle.at(server).by(proxy.options), lose


@pytest.mark.parametrize("kill", range(ROUNDS))
@pytest.mark.parametrize("store", STORES)
def test_a_server_that_is_killed(request, store, kill, tmp_path):
    """Server killed (moto, azurite: unheard) for 3 s under 3 writers: nothing lost or by halves"""
    if store in ("s3", "azure"):
        place = unheard(request.getfixturevalue(store))
    else:
        place = killed(starting(store, tmp_path))
    with place as (stored, take_away):
        stored.write(999_000_000)
        writers = [stored.start(WRITES, writer) for writer in range(3)]
        while stored.open().version < 4:  # they take seconds to start, on a busy machine more
            time.sleep(0.1)
        time.sleep(random.uniform(0, 1))
        assert None in [writer.poll() for writer in writers]
        take_away()
        answers = [writer.communicate() for writer in writers]
        assert [writer.returncode for writer in writers] == [0] * 3, answers
        ends = [line.split(maxsplit=2) for said, _ in answers for line in said.splitlines()]
        assert len(ends) == 24
        # A server may forget the parts of an upload. All else is repeated until it is back.
        assert {end for _, count, end in ends if count == "10"} == {"done"}, answers
        found: dict[int, int] = {}
        for value in stored.values():
            found[value // 1_000_000] = found.get(value // 1_000_000, 0) + 1
        assert found.pop(999) == 10
        for first, count, end in ends:
            there = found.pop(int(first) // 1_000_000, 0)
            assert there in (0, int(count)), "whole or not at all"
            assert end == "unsettled" or (there > 0) == (end == "done"), (first, count, end)
        assert not found
