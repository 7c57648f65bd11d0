"""Appends of several processes to each store: nothing lost, nothing doubled."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

import arrow_format
from arrow_format.storage.open import ObjectExistsError, open_storage

PROCESSES, TURNS = 4, 250
NAMES, WRITERS = 200, 8

APPENDS = """
import json, sys, pyarrow as pa
import arrow_format
path, writer, turns, options = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.load(sys.stdin)
for turn in range(turns):
    first = (writer * turns + turn) * 10
    table = pa.table({"k": list(range(10)), "v": list(range(first, first + 10))})
    print(arrow_format.write_shuffle(table, path, keys="k", num_subpartitions=5, mode="append",
                                     storage_options=options).version, flush=True)
"""


def test_appends(stored):
    """4 processes that append 250 times each: nothing lost, nothing doubled"""
    writers = [stored.start(APPENDS, writer, TURNS) for writer in range(PROCESSES)]
    answers = [writer.communicate() for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * PROCESSES, answers
    versions = sorted(int(line) for said, _ in answers for line in said.split())
    assert versions == list(range(1, PROCESSES * TURNS + 1))
    assert stored.values() == list(range(PROCESSES * TURNS * 10))


def test_one_winner(stored):
    """200 names that 8 threads put at the same time: one winner each"""
    storage = open_storage(stored.path, stored.options)
    storage.check_puts()
    together = threading.Barrier(WRITERS)
    winners: list[tuple[int, int]] = []
    errors: list[Exception] = []

    def put(writer: int) -> None:
        for name in range(NAMES):
            together.wait()
            try:
                storage.put_if_absent(f"{name}", b"%d by %d" % (name, writer), sync=False)
                winners.append((name, writer))
            except ObjectExistsError:
                pass
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=put, args=(writer,)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert Counter(name for name, _ in winners) == Counter(range(NAMES))
    for name, writer in winners:
        assert storage.read(f"{name}") == b"%d by %d" % (name, writer)


@pytest.mark.parametrize("store", ["gs"])
def test_a_racy_store_is_refused(request, store):
    server = request.getfixturevalue(store)
    path = f"{server.scheme}://{server.new_bucket('racy')}/a"
    with pytest.raises(arrow_format.StorageError, match="where several put at once"):
        open_storage(path, server.options).check_puts()
