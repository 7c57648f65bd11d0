"""What a store is asked before anything is written to it."""

import os
import pickle
import subprocess
import sys

import pytest

from arrow_format.errors import StorageError
from arrow_format.storage import object_store
from arrow_format.storage.object_store import ObjectStorage
from arrow_format.storage.protocol import (
    ObjectExistsError,
    ObjectNotFoundError,
    StoreRefusedError,
)
from arrow_format.storage.put_probe import PROBE_DIRECTORY, ROUNDS, WRITERS, Puts, check_store
from tests.support.guarantees import guarantee
from tests.support.store_server import most_at_once, round_trips


def storage_of(s3, kind, prefix="root"):
    bucket = s3.new_bucket(kind)
    return ObjectStorage(f"s3://{bucket}/{prefix}", s3.options), bucket


# What is decided ----------------------------------------------------------------------------------

ONE, TWO = b"one", b"two"


@pytest.mark.parametrize(
    ("puts", "flaw"),
    [
        (Puts((ONE,), (TWO,), ONE, is_listed=True), None),
        (Puts((), (ONE, TWO), TWO, is_listed=True), None),  # the winner's answer was lost
        (Puts((ONE, TWO), (), TWO, is_listed=True), "of 2 puts of one name it acknowledged 2"),
        (Puts((ONE,), (TWO,), TWO, is_listed=True), "has other bytes"),
        (Puts((), (ONE, TWO), b"", is_listed=True), "has other bytes"),
        (Puts((ONE,), (TWO,), None, is_listed=False), "a read did not find it"),
        (Puts((ONE,), (TWO,), ONE, is_listed=False), "it changes names"),
    ],
)
def test_what_is_wrong_with_a_store(puts, flaw):
    found = puts.flaw()
    assert found is None if flaw is None else flaw in found


# Stores that are refused --------------------------------------------------------------------------


@guarantee("atomic conditions")
@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [
        ("careless", StoreRefusedError, r"ignores the condition of a put \(If-None-Match\)"),
        ("racy", StoreRefusedError, "where several put at once: of 4 puts of one name"),
        ("lagging", StoreRefusedError, "it changes names, as some do"),
        ("readonly", StorageError, "403.*cannot put an object there.*Check the credentials"),
    ],
)
def test_a_store_on_which_commits_are_not_safe(s3, kind, error, said):
    storage, bucket = storage_of(s3, kind)
    for _ in range(2):  # it is asked again
        with pytest.raises(error, match=f"^s3://{bucket}/root.*{said}"):
            storage.check_puts()
    with pytest.raises(error, match=said):
        storage.put_if_absent("a", b"x", sync=True)
    assert s3.keys(bucket) == []


@guarantee("kept names")
def test_a_store_that_changes_a_name_is_refused_for_that_name(s3):
    storage, bucket = storage_of(s3, "renaming", "a+b")
    with pytest.raises(StoreRefusedError, match="it changes names"):
        storage.check_puts()
    ObjectStorage(f"s3://{bucket}/a-b", s3.options).check_puts()
    with pytest.raises(StoreRefusedError, match="it changes names"):
        storage.check_puts()
    assert s3.keys(bucket) == []


# Stores that are not ------------------------------------------------------------------------------


def test_a_lost_answer_a_conflict_and_no_leave_to_delete_are_no_reason_to_refuse(s3):
    for kind in ("forgetful", "quarrelling", "appendonly", "slow"):
        storage, bucket = storage_of(s3, kind)
        storage.check_puts()
        left = [key for key in s3.keys(bucket) if not key.startswith(f"root/{PROBE_DIRECTORY}/")]
        assert left == []
        assert len(s3.keys(bucket)) == (ROUNDS if kind == "appendonly" else 0)
        storage.put_if_absent("a", b"mine", sync=True)
        with pytest.raises(ObjectExistsError):
            storage.put_if_absent("a", b"yours", sync=True)


def test_unusual_names_that_a_store_keeps(s3):
    for prefix in ("a b", "ä", "a\u0308", "%20", "a:b", "quote'd", "+"):
        storage, bucket = storage_of(s3, "bucket", prefix)
        storage.put_if_absent("x", b"x", sync=True)
        assert s3.keys(bucket) == [f"{prefix}/x"]


# What it costs ------------------------------------------------------------------------------------


@guarantee("few requests")
def test_what_it_asks_and_how_often(s3, monkeypatch):
    storage, bucket = storage_of(s3, "slow")
    seen = []
    for _ in range(10):  # a machine that is busy does not begin all at once
        monkeypatch.setattr(object_store, "_CHECKED", set())
        with s3.requests(bucket) as requests:
            storage.check_puts()
        puts = [one for one in requests if one.method == "PUT"]
        assert len(puts) == WRITERS * ROUNDS
        assert len(requests) == WRITERS * ROUNDS + ROUNDS + 2
        seen.append((round_trips(requests), -most_at_once(puts)))
    assert min(seen) == (ROUNDS + 2, -WRITERS)
    with s3.requests(bucket) as requests:
        storage.check_puts()
        ObjectStorage(f"s3://{bucket}/another", s3.options).check_puts()
    assert requests == []


RECEIVE = """
import pickle, sys
storage = pickle.load(sys.stdin.buffer)
storage.check_puts()
"""


@pytest.mark.parametrize(
    ("is_checked", "elsewhere", "asks"),
    [(True, False, False), (False, False, True), (True, True, True)],
)
def test_another_process_knows_what_the_one_that_sent_it_the_storage_knew(
    s3, is_checked, elsewhere, asks
):
    """Unless its environment names another endpoint."""
    storage, bucket = storage_of(s3, "bucket")
    if is_checked:
        storage.check_puts()
    environment = os.environ | ({"AWS_ANOTHER_ENDPOINT": "http://x"} if elsewhere else {})
    with s3.requests(bucket) as requests:
        subprocess.run(
            [sys.executable, "-c", RECEIVE],
            input=pickle.dumps(storage),
            env=environment,
            check=True,
        )
    assert bool(requests) == asks


def test_a_storage_that_was_sent_is_the_same(s3):
    storage, _ = storage_of(s3, "bucket", "a+b")
    received = pickle.loads(pickle.dumps(storage))
    assert received == storage
    assert hash(received) == hash(storage)
    assert storage._as_checked() not in object_store._CHECKED


class Unanswered:
    """A store of which the puts of some of those that come together get no answer."""

    root = "s3://bucket/root"

    def __init__(self, *numbers, is_stored):
        self._numbers, self._is_stored = set(numbers), is_stored
        self.objects = {}

    def put_once(self, path, data):
        is_lost = int(data.split()[-1]) in self._numbers
        if path in self.objects and not is_lost:
            raise ObjectExistsError(path)
        if not is_lost or self._is_stored:
            self.objects.setdefault(path, data)
        if is_lost:
            msg = "no answer"
            raise StorageError(msg)

    def read(self, path):
        if path not in self.objects:
            raise ObjectNotFoundError(path)
        return self.objects[path]

    def keys_below(self, path):
        return set(self.objects)

    def key(self, path):
        return path

    def delete_all(self, paths):
        for path in paths:
            self.objects.pop(path, None)


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_put_without_an_answer_is_no_reason_to_refuse(is_stored):
    store = Unanswered(0, 3, is_stored=is_stored)
    check_store(store, num_rounds=ROUNDS)
    assert store.objects == {}


@pytest.mark.parametrize("is_stored", [False, True])
def test_one_answer_alone_says_nothing(is_stored):
    store = Unanswered(0, 1, 3, is_stored=is_stored)
    with pytest.raises(StorageError, match="no answer"):
        check_store(store, num_rounds=ROUNDS)
    assert store.objects == {}
