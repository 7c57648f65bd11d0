"""Faults of stores at each kind of request: an append is there once, or it is not and says so.

A proxy on the way to a server breaks one request of an append, a read or a collection. Each
change tries a part of them, in which each request, fault and store is; a night goes through all.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest

import arrow_format
from arrow_format import MergePolicy, StorageError, UnsettledCommitError, WriteOptions
from arrow_format.storage.put_probe import PROBE_DIRECTORY
from tests.support.exhaustive import exhaustive
from tests.support.fault_proxy import FAULTS, REFUSALS, proxy_to
from tests.support.guarantees import guarantee
from tests.support.stored_shuffle import StoredShuffle
from tests.support.stores import STORES, retrying_for

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@pytest.fixture(autouse=True)
def short_pauses() -> Iterator[None]:
    """Retries after pauses that tests need not wait for."""
    with retrying_for(10):
        yield


@pytest.fixture
def shuffle(request, store) -> StoredShuffle:
    """A shuffle of two versions in a store."""
    shuffle = StoredShuffle.at(request.getfixturevalue(store))
    for start in (0, ROWS):
        shuffle.write(start, ROWS)
    return shuffle


def ask(shuffle: StoredShuffle) -> None:
    """Ask the store what a process asks once, and leave something to collect."""
    arrow_format.merge_shuffle(
        shuffle.path, by="map_output", policy=MergePolicy(rewrite="always"), **shuffle.given
    )


def act(shuffle: StoredShuffle, point: str) -> range:
    """Make requests of a kind; the values that are added by that."""
    if point == "read":
        shuffle.values()
        return range(0)
    if point == "delete":
        shuffle.collect()
        return range(0)
    added = range(1_000, 1_000 + (PART_ROWS if point in ("start", "complete") else ROWS))
    shuffle.write(added.start, len(added), options=WriteOptions(codec="none"))
    return added


@guarantee("store faults")
@exhaustive(least=32)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("point", PATTERNS)
@pytest.mark.parametrize("store", STORES)
def test_a_request_that_is_broken_does_no_harm(request, shuffle, store, point, fault):
    """One request of each kind lost, doubled, cut, silent or refused: works, or a clear error"""
    server = request.getfixturevalue(store)
    before = list(range(2 * ROWS))
    with proxy_to(server) as proxy:
        options = proxy.options | (PATIENCE if fault == "silent" else {})
        if point != "probe":
            ask(shuffle.by(options))
        proxy.break_next(fault, PATTERNS[point].get(server.scheme) or PATTERNS[point][""])
        if (point, fault) in NOT_REPEATED or (store, point, fault) == ("azure", "start", "409"):
            said = rf"{shuffle.path}.*{ANSWERED[fault]}.*cannot "
            with pytest.raises(StorageError, match=said) as error:
                act(shuffle.by(options), point)
            assert not isinstance(error.value, UnsettledCommitError)
        else:
            before += act(shuffle.by(options), point)
    assert len(proxy.broken) == 1
    assert shuffle.values() == before
    shuffle.write(500, ROWS)
    act(shuffle, "delete")
    assert shuffle.values() == sorted([*before, *range(500, 500 + ROWS)])


@guarantee("store faults")
@exhaustive(but="store")
@pytest.mark.parametrize("fault", ["lost", "cut", "silent", *REFUSALS])
@pytest.mark.parametrize("store", STORES)
def test_a_commit_that_is_never_answered_says_what_is_known(request, shuffle, store, fault):
    """A commit that is never answered, or always refused: an error that says what is known"""
    server = request.getfixturevalue(store)
    before = list(range(2 * ROWS))
    with retrying_for(1), proxy_to(server) as proxy:
        options = proxy.options | (PATIENCE if fault == "silent" else {})
        ask(shuffle.by(options))
        proxy.break_next(fault, PATTERNS["entry"][""], times=1_000_000)
        with pytest.raises(StorageError) as error:
            act(shuffle.by(options), "entry")
    found = shuffle.values()
    is_there = found == [*before, *range(1_000, 1_000 + ROWS)]
    assert is_there or found == before
    if not isinstance(error.value, UnsettledCommitError):
        assert is_there == ("committed as version" in str(error.value))
    if is_there:
        assert fault == "lost"
    shuffle.write(500, ROWS)
    assert shuffle.values() == sorted([*found, *range(500, 500 + ROWS)])


@guarantee("refused commit")
@exhaustive(but="store")
@pytest.mark.parametrize("store", STORES)
def test_a_commit_that_is_refused_says_so_and_leaves_nothing(request, shuffle, store):
    """A commit that is refused (403): an error that says so, and no files of it"""
    server = request.getfixturevalue(store)
    with proxy_to(server) as proxy:
        ask(shuffle.by(proxy.options))
        before = shuffle.files()
        proxy.break_next("403", PATTERNS["entry"][""], times=1_000_000)
        with pytest.raises(StorageError, match=r"so there is no new version \(.*403") as error:
            act(shuffle.by(proxy.options), "entry")
        assert not isinstance(error.value, UnsettledCommitError)
        assert len(proxy.broken) == 1
    assert shuffle.files() == before
    assert shuffle.values() == list(range(2 * ROWS))
