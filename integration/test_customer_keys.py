"""Objects that a store encrypts with keys of the customer, through a whole life of a shuffle."""

import base64
import os
from datetime import timedelta

import pyarrow as pa
import pytest

from arrow_format import collect_garbage, merge_shuffle, open_shuffle, write_shuffle
from arrow_format.errors import StorageError
from arrow_format.options import WriteOptions

ROWS = 600_000
"""16 bytes each: an upload has two parts."""
KEY_ID = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"


def customer_key():
    return {
        "aws_server_side_encryption": "sse-c",
        "aws_sse_customer_key_base64": base64.b64encode(os.urandom(32)).decode(),
    }


def live(path, options):
    rows = pa.table({"k": range(ROWS), "v": range(ROWS)})
    for _ in range(2):
        write_shuffle(
            rows,
            path,
            keys="k",
            num_subpartitions=3,
            mode="append",
            storage_options=options,
            options=WriteOptions(codec="none", sort_buffer_bytes=32 << 20),
        )
    merge_shuffle(path, storage_options=options, by="map_output")
    assert collect_garbage(path, storage_options=options, retention=timedelta(0)).num_files > 0
    shuffle = open_shuffle(path, storage_options=options)
    assert shuffle.verify().ok
    assert shuffle.read().read_all().num_rows == 2 * ROWS


def test_a_key_that_only_the_client_has(seaweedfs):
    path = f"s3://{seaweedfs.new_bucket()}/a"
    live(path, seaweedfs.options | customer_key())
    with pytest.raises(StorageError, match=r"400 Bad Request: .*must provide the customer key"):
        open_shuffle(path, storage_options=seaweedfs.options)
    other = seaweedfs.options | customer_key()
    with pytest.raises(StorageError, match="403 Forbidden") as error:
        open_shuffle(path, storage_options=other)
    assert other["aws_sse_customer_key_base64"] not in str(error.value)


def test_a_key_of_a_key_service_is_named_with_every_object(s3):
    bucket = s3.new_bucket()
    own = {"aws_server_side_encryption": "aws:kms", "aws_sse_kms_key_id": KEY_ID}
    live(f"s3://{bucket}/a", s3.options | own)
    heads = [s3.client().head_object(Bucket=bucket, Key=key) for key in s3.keys(bucket)]
    assert {head["ServerSideEncryption"] for head in heads} == {"aws:kms"}
    assert {head["SSEKMSKeyId"] for head in heads} == {KEY_ID}
