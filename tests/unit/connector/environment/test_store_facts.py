"""What is seen of an object store at a path, without Spark."""

from dataclasses import replace

import pytest

from arrow_format.storage.put_probe import MANY_ROUNDS, PROBE_DIRECTORY, WRITERS
from connector.environment.facts import collect
from connector.environment.findings import findings


def seen(s3, kind):
    bucket = s3.new_bucket(kind)
    path = f"s3://{bucket}/shuffles"
    with s3.requests(bucket) as requests:
        facts = collect(path=path, storage_options=s3.options)
    return replace(facts, spark_home=None), bucket, requests


def test_a_sound_store_is_asked_for_long_and_nothing_is_left(s3):
    facts, bucket, requests = seen(s3, "bucket")
    assert findings(facts) == findings(replace(facts, path=None))
    puts = [one.path for one in requests if one.method == "PUT"]
    probes = [path for path in puts if PROBE_DIRECTORY in path and "doctor" not in path]
    assert len(probes) == WRITERS * MANY_ROUNDS
    assert s3.keys(bucket) == []


@pytest.mark.parametrize(
    ("kind", "code", "texts"),
    [
        ("careless", "conditional-puts", ["ignores the condition", "No write is safe there"]),
        ("racy", "conditional-puts", ["where several put at once", "No write is safe there"]),
        ("lagging", "conditional-puts", ["it changes names", "No write is safe there"]),
        ("readonly", "path", ["cannot put an object there", "who may write"]),
        ("appendonly", "no-deletion", ["nothing can be deleted at s3://", "collections and rel"]),
    ],
)
def test_what_is_wrong_with_a_store_is_said_with_what_to_do(s3, kind, code, texts):
    facts, bucket, _ = seen(s3, kind)
    (found,) = [one for one in findings(facts) if one.code == code]
    for text in texts:
        assert text in str(found)
    assert found.severity == ("note" if kind == "appendonly" else "problem")
    left = s3.keys(bucket)
    assert all(f"/{PROBE_DIRECTORY}/" in key for key in left), "where a collection finds it"
    assert bool(left) == (kind == "appendonly")
