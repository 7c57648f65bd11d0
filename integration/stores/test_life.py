"""The life of a shuffle in each store, without Spark. A docstring is a row of the guide's table."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import arrow_format
import arrow_shuffle
from arrow_format import (
    MergePolicy,
    ResultReleasedError,
    ShuffleExistsError,
    ShuffleNotFoundError,
    StorageError,
    WriteOptions,
)
from arrow_format.storage.open import open_storage
from arrow_format.streaming.version_hold import VersionHold

NONE = timedelta(0)


def test_write(stored):
    """Write, also in parts, append, read, look up, filter, verify; modes of a write"""
    assert stored.write(0, 10_000, "errorifexists") == 1
    parts = WriteOptions(codec="none", sort_buffer_bytes=4 << 20)
    stored.write(10_000, 1_500_000, options=parts)
    shuffle = stored.open()
    assert shuffle.num_rows == 1_510_000
    assert stored.values() == list(range(1_510_000))
    found = shuffle.lookup({"k": [3]}).read_all()["v"].to_pylist()
    assert len(found) == len(range(3, 10_000, 17)) + len(range(10_000 + 15, 1_510_000, 17))
    kept = shuffle.where("v >= 1509990").read().read_all()["v"].to_pylist()
    assert sorted(kept) == list(range(1_509_990, 1_510_000))
    with pytest.raises(ShuffleExistsError):
        stored.write(0, 1, "errorifexists")
    assert stored.write(0, 1, "ignore") == 2
    stored.write(0, 5, "overwrite")
    assert stored.values() == list(range(5))


def test_deletion(stored):
    """Deletion by key, both merges, collection, status of an erasure"""
    for start in range(0, 1_200, 200):
        stored.write(start, 200)
    receipt = arrow_format.delete_rows(stored.path, {"k": [3, 4]}, **stored.given)
    left = [value for value in range(1_200) if value % 17 not in (3, 4)]
    assert stored.values() == left
    assert stored.values(6) == list(range(1_200))
    assert not arrow_format.erasure_status(stored.path, receipt, **stored.given).is_gone
    arrow_format.merge_shuffle(
        stored.path, by="map_output", policy=MergePolicy(rewrite="always"), **stored.given
    )
    stored.write(2_000)
    arrow_format.merge_shuffle(stored.path, by="subpartition", **stored.given)
    wanted = [*left, *range(2_000, 2_010)]
    assert stored.values() == wanted
    arrow_format.collect_garbage(stored.path, retention=NONE, compact_log=True, **stored.given)
    assert stored.values() == wanted
    with pytest.raises(ShuffleNotFoundError, match="expired"):
        stored.values(6)
    assert arrow_format.erasure_status(stored.path, receipt, **stored.given).is_gone


def test_many_objects(stored):
    """Collection of more objects than one request deletes"""
    for start in range(0, 700, 5):
        stored.write(start, 5)
    arrow_format.merge_shuffle(stored.path, by="map_output", **stored.given)
    report = arrow_format.collect_garbage(stored.path, retention=NONE, **stored.given)
    assert report.num_files >= 280
    files = open_storage(stored.path, stored.options).files("map_outputs", depth=3)
    assert len(files) == 2
    assert stored.values() == list(range(700))


def test_tags(stored):
    """Tags, rollback, overwrite, expiry"""
    for start in range(0, 40, 10):
        stored.write(start)
    arrow_format.tag_shuffle(stored.path, "first", 1, **stored.given)
    arrow_format.rollback_shuffle(stored.path, 2, **stored.given)
    assert stored.values() == list(range(20))
    stored.write(0, mode="overwrite")
    storage = open_storage(stored.path, stored.options)
    with VersionHold.take(storage, 3) as hold:  # what no tag keeps, a reader may hold
        report = arrow_format.collect_garbage(stored.path, retention=NONE, **stored.given)
        assert ("reader", 3) in [(held.by, held.version) for held in report.holds]
        assert stored.values(3) == list(range(30))
        hold.move(report.newest_version)
        assert storage.list("consumers") == [hold.name]
    assert storage.list("consumers") == []
    arrow_format.collect_garbage(stored.path, retention=NONE, **stored.given)
    assert stored.values("first") == list(range(10))
    for version in (2, 3, 4, 5):
        with pytest.raises(ShuffleNotFoundError):
            stored.values(version)
    arrow_format.untag_shuffle(stored.path, "first", **stored.given)
    arrow_format.collect_garbage(stored.path, retention=NONE, **stored.given)
    with pytest.raises(ShuffleNotFoundError):
        stored.values(1)


def test_consumers(stored):
    """Consumers of a result, forgetting one, release"""
    stored.write(0, options=WriteOptions(result_type="PIPELINED"))
    with arrow_shuffle.consume(stored.path, consumer="c", **stored.given) as first:
        assert first.shuffle.num_rows == 10
    stored.write(10)
    with arrow_shuffle.consume(stored.path, consumer="c", **stored.given) as second:
        assert sorted(second.shuffle.read().read_all()["v"].to_pylist()) == list(range(10, 20))
    arrow_format.forget_consumer(stored.path, "c", **stored.given)
    arrow_format.release_shuffle(stored.path, **stored.given)
    with pytest.raises(ResultReleasedError):
        stored.values()


def test_command(stored):
    """Command: `inspect`, `verify`, `head`, `plan`, `merge`, `gc`, `tags`, `consumers`"""
    stored.write(0, 1_000)
    stored.write(1_000, 1_000)
    variables = {name.upper(): value for name, value in stored.options.items()}
    for prefix in ("AWS", "AZURE", "GOOGLE"):
        variables[f"{prefix}_ALLOW_HTTP"] = "true"
    program = str(Path(sys.executable).parent / "arrow-shuffle")
    for words in (
        ["inspect"], ["verify"], ["head"], ["plan", "--subpartitions", "1"], ["merge"],
        ["gc", "--dry-run"], ["gc", "--retention", "0s"], ["tags"], ["consumers"],
    ):  # fmt: skip
        done = subprocess.run(
            [program, words[0], stored.path, *words[1:]],
            env=os.environ | variables, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        told = done.stdout + done.stderr
        assert done.returncode == 0, told
        for name, value in stored.options.items():
            assert "token" not in name or value not in told
            assert not name.endswith("_key") or value not in told


@pytest.mark.parametrize(
    "name",
    [
        "a b", "ünï/日本", "50%25", "100%", "a%20b", "a+b&c=d", "q'u\"o", "semi;colon,~tilde!*()",
        "#hash", "[b]{c}^`|<>", "e\u0301", "\U0001f600", "a:b",
    ],
)  # fmt: skip
def test_names(stored, name):
    """Unusual characters in a prefix"""
    stored.path = f"{stored.path}/{name}"
    stored.write(0)
    stored.write(10)
    assert stored.values() == list(range(20))
    arrow_format.merge_shuffle(stored.path, by="map_output", **stored.given)
    arrow_format.collect_garbage(stored.path, retention=NONE, **stored.given)
    assert stored.values() == list(range(20))


def test_what_is_not_there(stored):
    """No bucket, nothing at the path, wrong credentials: a clear error"""
    with pytest.raises(ShuffleNotFoundError, match=f"{stored.path}: is not there"):
        stored.values()
    secret = next(n for n in stored.options if n.endswith(("_key_id", "account_key", "_token")))
    wrong = dict.fromkeys([secret], "d3JvbmcgYW5kIHNlY3JldCBrZXk=")
    denied = stored.by(stored.options | wrong)
    for ask in (denied.values, lambda: denied.write(0)):
        with pytest.raises(StorageError, match="Check the credentials") as error:
            ask()
        assert wrong[secret] not in str(error.value)
    stored.path = f"{stored.path.partition('://')[0]}://no-such-bucket-here/a"
    for ask in (stored.values, lambda: stored.write(0)):
        with pytest.raises(arrow_format.ShuffleError, match="no such bucket"):
            ask()
