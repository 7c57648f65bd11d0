"""Names of scans: what is read, and by which way where there are several."""

from types import SimpleNamespace

from arrow_format.storage.object_store import ObjectStorage
from arrow_format.storage.open import PosixStorage
from connector.source import described as described_source
from connector.source.described import describe, described_format


def test_a_long_list_of_subpartitions_is_cut():
    many = ",".join(map(str, range(100)))
    assert describe("/s", 3, None) == "arrow_shuffle /s version 3"
    assert describe("/s", 3, "3,7-9") == "arrow_shuffle /s version 3 subpartitions 3,7-9"
    assert describe("/s", 3, many).endswith(",22,...")


def named(spark, storage, version=1):
    shuffle = SimpleNamespace(
        storage=storage,
        path=storage.root,
        version=version,
        span=None,
        filter=None,
        latest_column=None,
    )
    return described_format(spark, shuffle, None)


def test_one_address_by_two_endpoints_has_two_names(spark):
    ours = {"aws_endpoint_url": "http://127.0.0.1:1", "aws_allow_http": "true"}
    theirs = ours | {"aws_endpoint_url": "http://127.0.0.1:2"}
    name = "arrow_shuffle s3://bucket/s version 1"
    places = [ObjectStorage("s3://bucket/s", options) for options in (ours, theirs, ours)]
    assert [named(spark, place) for place in places] == [name, f"{name} (2)", name]
    assert named(spark, ObjectStorage("s3://BUCKET/s", ours)) == name.replace("bucket", "BUCKET")
    assert named(spark, ObjectStorage("s3://bucket/other", theirs)).endswith("other version 1")
    assert [named(spark, PosixStorage("/s")) for _ in range(2)] == [
        "arrow_shuffle /s version 1"
    ] * 2


def test_what_is_read_with_other_options_has_another_name_also_where_names_are_many(
    spark, monkeypatch
):
    monkeypatch.setattr(described_source, "MOST_NAMES", 1)
    session = spark.newSession()
    options = {"aws_endpoint_url": "http://127.0.0.1:1", "aws_allow_http": "true"}
    store = ObjectStorage("s3://bucket/s", options)
    names = [named(session, place, i) for i in range(3) for place in (PosixStorage("/s"), store)]
    read = described_source.UNDESCRIBED
    assert names == ["arrow_shuffle /s version 0", read, f"{read} (2)", read, f"{read} (2)", read]
