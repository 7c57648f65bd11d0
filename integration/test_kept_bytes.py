"""Buckets that keep what is deleted: a deletion of rows does not say that their bytes are gone.

In the store, as other programs see it, the bytes of the rows are still there.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import arrow_format
from arrow_format import WriteOptions
from connector.environment.facts import collect
from connector.environment.findings import findings
from tests.support.exhaustive import exhaustive

if TYPE_CHECKING:
    from tests.support.s3_server import S3Server

PERSON = "A person who asked to be forgotten"


def kept_versions(server: S3Server, bucket: str) -> list[bytes]:
    """Return the content of all versions of all objects."""
    client = server.client()
    found = client.get_paginator("list_object_versions").paginate(Bucket=bucket)
    versions = [one for page in found for one in page.get("Versions", [])]
    return [
        client.get_object(Bucket=bucket, Key=one["Key"], VersionId=one["VersionId"])["Body"].read()
        for one in versions
    ]


@exhaustive(but="store")
@pytest.mark.parametrize("store", ["s3", "seaweedfs"])
@pytest.mark.parametrize("is_versioned", [False, True])
def test_gone_is_as_far_as_the_store_lists_it(request, store, is_versioned):
    server = request.getfixturevalue(store)
    bucket = server.new_bucket()
    if is_versioned:
        server.client().put_bucket_versioning(
            Bucket=bucket, VersioningConfiguration={"Status": "Enabled"}
        )
    path, stored = f"s3://{bucket}/a", {"storage_options": server.options}
    arrow_format.write_shuffle(
        pa.table({"k": [1, 2, 3], "v": [PERSON, "x", "y"]}), path, keys="k", num_subpartitions=2,
        options=WriteOptions(codec="none"), **stored,
    )  # fmt: skip
    receipt = arrow_format.delete_rows(path, {"k": [1]}, **stored)
    assert "versioning and soft delete of the store keep bytes longer" in str(receipt)
    arrow_format.collect_garbage(path, retention=timedelta(0), **stored)
    status = arrow_format.erasure_status(path, receipt, **stored)
    assert status.is_gone
    assert "the deleted rows is gone, as far as the store lists it" in str(status)
    assert "versioning and soft delete of the store keep bytes longer" in str(status)
    is_kept = any(PERSON.encode() in content for content in kept_versions(server, bucket))
    assert is_kept == is_versioned
    facts = collect(path=path, storage_options=server.options)
    said = [one for one in findings(replace(facts, spark_home=None)) if one.code == "kept-versions"]
    assert len(said) == is_versioned
    for one in said:
        assert one.severity == "note"
        assert "keeps the bytes of objects that are deleted" in str(one)
        assert "lifecycle rule" in str(one)
