"""Faults of stores at each kind of request: an append is there once, or it is not and says so.

A proxy on the way to a server breaks one request of an append, a read or a collection. Here some
faults on each store and all of them on one; a night goes through all.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import arrow_format
from arrow_format import MergePolicy, StorageError, UnsettledCommitError, WriteOptions
from arrow_format.storage.open import open_storage
from arrow_format.storage.put_probe import PROBE_DIRECTORY
from tests.support.exhaustive import IS_NIGHT
from tests.support.fault_proxy import FAULTS, REFUSALS, proxy_to
from tests.support.guarantees import guarantee
from tests.support.stores import STORES, retrying_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.store_server import StoreServer

NONE = timedelta(0)
ROWS = 10
PART_ROWS = 600_000
"""Rows that make more than one part of an upload."""
PATIENCE = {"timeout": "2s"}
"""For a request that gets no answer, in place of 30 seconds."""

PATTERNS = {
    "entry": {"": r"PUT .*/\d{20}\.entry"},
    "probe": {"": rf"PUT .*/{PROBE_DIRECTORY}/"},
    "start": {"az": r"PUT .*comp=block&", "": r"POST .*\?uploads"},
    "complete": {"az": r"PUT .*comp=blocklist", "": r"POST .*uploadId="},
    "list": {"az": r"GET .*comp=list", "": r"GET .*list-type="},
    "delete": {"gs": r"DELETE .*/map_outputs/", "az": r"POST .*comp=batch", "": r"POST .*\?delete"},
    "read": {"": r"GET .*/map_outputs/.*\.data"},
}
"""The requests of each kind that is broken; another of some schemes."""

ANSWERED = {"409": "409 Conflict", "412": "412 Precondition Failed"}
NOT_REPEATED = {*product(("complete", "list", "delete", "read"), ANSWERED), ("start", "412")}
"""What ends with an error: an answer that repeating would not change. All else works. On Azure an
upload has no start: its first block, which may come again, is a part like any other."""


def some(faults: tuple[str, ...]) -> list[Any]:
    """Return a store, a kind of request and a fault, of all that are run now."""
    return [
        pytest.param(store, point, fault, id=f"{store}-{point}-{fault}")
        for store, point, fault in product(STORES, PATTERNS, FAULTS)
        if IS_NIGHT or store == "gs" or fault in faults
    ]


@pytest.fixture(autouse=True)
def short_pauses() -> Iterator[None]:
    """Retries after pauses that tests need not wait for."""
    with retrying_for(10):
        yield


class Shuffle:
    """A shuffle in a store, by way of a proxy or directly."""

    def __init__(self, server: StoreServer) -> None:
        self.scheme = server.scheme
        self.path = f"{server.scheme}://{server.new_bucket()}/some/shuffle"
        self.direct = server.options
        self.append(self.direct, 0)
        self.append(self.direct, ROWS)

    def merge(self, options: dict[str, str]) -> None:
        """Ask the store by way of a proxy, as a process does once; leave something to collect."""
        arrow_format.merge_shuffle(
            self.path, policy=MergePolicy(rewrite="always"), storage_options=options
        )

    def append(self, options: dict[str, str], start: int, count: int = ROWS) -> None:
        table = pa.table({"k": pa.array(range(count)), "v": pa.array(range(start, start + count))})
        arrow_format.write_shuffle(
            table, self.path, keys="k", num_subpartitions=3, mode="append",
            options=WriteOptions(codec="none"), storage_options=options,
        )  # fmt: skip

    def act(self, point: str, options: dict[str, str]) -> range:
        """Make requests of a kind; the values that are added by that."""
        if point == "read":
            self.values(options)
            return range(0)
        if point == "delete":
            arrow_format.collect_garbage(self.path, retention=timedelta(0), storage_options=options)
            return range(0)
        added = range(1_000, 1_000 + (PART_ROWS if point in ("start", "complete") else ROWS))
        self.append(options, added.start, len(added))
        return added

    def values(self, options: dict[str, str] | None = None) -> list[int]:
        opened = arrow_format.open_shuffle(self.path, storage_options=options or self.direct)
        assert opened.verify().ok
        return sorted(opened.read().read_all()["v"].to_pylist())


@guarantee("store faults")
@pytest.mark.parametrize(("store", "point", "fault"), some(("lost",)))
def test_a_request_that_is_broken_does_no_harm(request, store, point, fault):
    """One request of each kind lost, doubled, cut, silent or refused: works, or a clear error"""
    server = request.getfixturevalue(store)
    shuffle = Shuffle(server)
    before = list(range(2 * ROWS))
    with proxy_to(server) as proxy:
        options = proxy.options | (PATIENCE if fault == "silent" else {})
        if point != "probe":
            shuffle.merge(options)
        proxy.break_next(fault, PATTERNS[point].get(shuffle.scheme) or PATTERNS[point][""])
        if (point, fault) in NOT_REPEATED or (store, point, fault) == ("azure", "start", "409"):
            said = rf"{shuffle.path}.*{ANSWERED[fault]}.*cannot "
            with pytest.raises(StorageError, match=said) as error:
                shuffle.act(point, options)
            assert not isinstance(error.value, UnsettledCommitError)
        else:
            before += shuffle.act(point, options)
    assert len(proxy.broken) == 1
    assert shuffle.values() == before
    shuffle.append(shuffle.direct, 500)
    shuffle.act("delete", shuffle.direct)
    assert shuffle.values() == sorted([*before, *range(500, 500 + ROWS)])


@guarantee("store faults")
@pytest.mark.parametrize("fault", ["lost", "cut", "silent", *REFUSALS])
@pytest.mark.parametrize("store", STORES if IS_NIGHT else ["gs"])
def test_a_commit_that_is_never_answered_says_what_is_known(request, store, fault):
    """A commit that is never answered, or always refused: an error that says what is known"""
    server = request.getfixturevalue(store)
    shuffle = Shuffle(server)
    before = list(range(2 * ROWS))
    with retrying_for(1), proxy_to(server) as proxy:
        options = proxy.options | (PATIENCE if fault == "silent" else {})
        shuffle.merge(options)
        proxy.break_next(fault, PATTERNS["entry"][""], times=1_000_000)
        with pytest.raises(StorageError) as error:
            shuffle.act("entry", options)
    found = shuffle.values()
    is_there = found == [*before, *range(1_000, 1_000 + ROWS)]
    assert is_there or found == before
    if not isinstance(error.value, UnsettledCommitError):
        assert is_there == ("committed as version" in str(error.value))
    if is_there:
        assert fault == "lost"
    shuffle.append(shuffle.direct, 500)
    assert shuffle.values() == sorted([*found, *range(500, 500 + ROWS)])


@guarantee("refused commit")
@pytest.mark.parametrize("store", STORES if ALL else ["gs"])
def test_a_commit_that_is_refused_says_so_and_leaves_nothing(request, store):
    """A commit that is refused (403): an error that says so, and no files of it"""
    server = request.getfixturevalue(store)
    shuffle = Shuffle(server)
    with proxy_to(server) as proxy:
        shuffle.merge(proxy.options)
        storage = open_storage(shuffle.path, shuffle.direct)
        before = storage.files("", depth=9)
        proxy.break_next("403", PATTERNS["entry"][""], times=1_000_000)
        with pytest.raises(StorageError, match=r"so there is no new version \(.*403") as error:
            shuffle.act("entry", proxy.options)
        assert not isinstance(error.value, UnsettledCommitError)
        assert len(proxy.broken) == 1
    assert storage.files("", depth=9) == before
    assert shuffle.values() == list(range(2 * ROWS))
